"""Counterfactual replay: what other algorithms would have done with a stored training batch."""

from workbench.verdict.replay.play import Played, Replay, play

__all__ = ["Played", "Replay", "play"]
