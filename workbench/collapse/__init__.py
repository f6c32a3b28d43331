"""The verdict on a run over time: whether it collapsed, since when, and the events along it."""
