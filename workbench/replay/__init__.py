"""Counterfactual replay: what other algorithms would have done with a stored batch."""
