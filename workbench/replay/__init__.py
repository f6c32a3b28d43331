"""Counterfactual replay: what other algorithms would have done with a stored training batch."""

from workbench.replay.play import Gradients, Network, Played, Replay, gradients, play

__all__ = ["Gradients", "Network", "Played", "Replay", "gradients", "play"]
