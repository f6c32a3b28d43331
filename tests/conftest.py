"""Fixtures that several rooms use."""

from tests.learn.tiny import cache, new_run, trained

__all__ = ["cache", "new_run", "trained"]
