"""From the log of a run to the probable cause, the first signal, the culprit and a remedy."""
