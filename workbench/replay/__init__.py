"""Counterfactual replay: what other algorithms would have done with a stored batch."""

from workbench.replay.play import gradients, play
from workbench.replay.tables import Played, Replay

__all__ = ["Played", "Replay", "gradients", "play"]
