"""Counterfactual replay: what other algorithms would have done with a stored training batch."""

from workbench.replay.gradients import Gradients, Network, gradients
from workbench.replay.play import Played, Replay, play

__all__ = ["Gradients", "Network", "Played", "Replay", "gradients", "play"]
