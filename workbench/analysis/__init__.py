"""Statistics over runs: comparison, survival, stability regions, results files."""
