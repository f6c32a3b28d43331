"""What can go wrong while sampling."""

from __future__ import annotations


class NonFinite(ArithmeticError):
    """A number that must be finite is NaN or Inf; the message names it, how many rows have it and at which token."""


class StaleWeights(RuntimeError):
    """A sampler in another engine does not compute with the trainer's weights; the message says which are stale."""

    def __init__(self, message: str, error: float, tolerance: float) -> None:
        super().__init__(message)
        self.error, self.tolerance = error, tolerance  # nats, over the probes
