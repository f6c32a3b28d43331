"""Stop rules: end training before its last iteration, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.spec import StopSettings


@dataclass(frozen=True)
class Spent:
    """What a run has done between two iterations."""

    steps: int
    updates: int
    tokens: int  # trained on, each epoch counted
    seconds: float  # of training, all sessions
    detection: int | None  # step at which the collapse rule first held


def reason(stop: StopSettings, spent: Spent) -> str:
    """Why training ends now; empty while it goes on. An iteration that crosses a budget has been completed."""
    if stop.after_collapse is not None and spent.detection is not None:
        since = spent.steps - 1 - spent.detection
        if since >= stop.after_collapse:
            told = f"{since} iterations after" if since else "in the iteration of"
            return f"stopped {told} the collapse detected at step {spent.detection} (stop.after_collapse)"
    budgets = (
        ("updates", spent.updates, stop.updates, "optimizer updates"),
        ("tokens", spent.tokens, stop.tokens, "trained tokens"),
        ("seconds", spent.seconds, stop.seconds, "s of training"),
    )
    for name, done, budget, unit in budgets:
        if budget is not None and done >= budget:
            return f"stopped by its budget of {budget:,} {unit} (stop.{name})"
    return ""
