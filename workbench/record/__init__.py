"""Tensors in, rows out: append-only segments in the run's folder."""

from workbench.record.ledger import Clip, Ledger

__all__ = ["Clip", "Ledger"]
