"""What can go wrong while sampling."""

from __future__ import annotations


class NonFinite(ArithmeticError):
    """A number that must be finite is NaN or Inf; the message names it, how many rows have it and at which token."""
