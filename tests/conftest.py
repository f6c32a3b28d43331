"""Fixtures that several rooms use."""

from tests.learn.tiny import cache, new_run

__all__ = ["cache", "new_run"]
