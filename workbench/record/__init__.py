"""Tensors in, rows out: append-only segments in the run's folder."""
