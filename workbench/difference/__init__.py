"""What differs between runs that worked and one that did not: settings, versions, data, causes and curves."""
