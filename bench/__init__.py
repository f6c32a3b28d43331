"""Benchmarks, each against its baseline: `sorl bench` runs them from a clone; they are not installed."""
