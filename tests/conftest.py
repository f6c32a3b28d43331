"""Fixtures that several rooms use."""

from tests.learn.lab import bench
from tests.learn.tiny import cache, new_run

__all__ = ["bench", "cache", "new_run"]
