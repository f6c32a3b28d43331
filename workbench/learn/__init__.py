"""Training: one run in one process."""
