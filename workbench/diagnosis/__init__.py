"""Diagnosis: from what a run logged to the probable cause, the first signal, the culprit, and what to try."""
