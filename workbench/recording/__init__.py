"""Tensors in, rows out: append-only segments in the run's folder."""

from sorl.recording.ledger import Clip, Ledger

__all__ = ["Clip", "Ledger"]
