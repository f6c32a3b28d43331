"""Findings that take more than one value: the echo trap, three signs in a row, and a reward that only ever drifts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from workbench.diagnostics.events import Event

SMOOTH = 5  # points of the trailing median of the reward
DRIFT_POINTS, DRIFT = 50, 0.1  # so long one way, by more than so much
SIGNS = ("group_reward_std", "entropy")  # in this order; then the gradient norm, while the rollouts repeat themselves
LATER = {"grad_norm_max": "the gradient norm spikes", "repetition_frac": "the rollouts repeat themselves"}


@dataclass(frozen=True)
class Combined:
    """A finding of this kind as the documentation lists it."""

    kind: str
    severity: str
    happens: str
    reason: str


COMBINED = (
    Combined(
        "echo_trap", "warning",
        "the alarms of `step.group_reward_std` and of `step.entropy` stand at the same step; the message says whether "
        "`step.grad_norm_max` stands too and whether `step.repetition_frac` has doubled",
        "RAGEN's echo trap: rollouts of a prompt become alike, then certain, then the gradient spikes; two of three "
        "leave time to act",
    ),
    Combined(
        "reward_drift", "info",
        f"the trailing median of {SMOOTH} points of `step.reward` has not turned for {DRIFT_POINTS} points and has "
        f"moved by more than {DRIFT:g}",
        "rlwatch tells of a monotone reward: learning, or a reward that is being gamed; read the transcripts",
    ),
)  # fmt: skip


class CombinedWatch:
    """Feed it every step once, in order, with which alarms stand; each finding comes once until it is over."""

    def __init__(self) -> None:
        self._trapped = False
        self._first: list[float] = []  # repetition of the first points
        self._rewards: deque[float] = deque(maxlen=SMOOTH)
        self._run: list[float] = []  # medians since the last turn
        self._drifted = False

    def step(self, step: int, measured: Mapping[str, float | None], stands: Callable[[str], bool]) -> list[Event]:
        """The findings of `step`; `stands` tells whether the alarm of a diagnostic holds at it."""
        return [*self._echo(step, measured, stands), *self._drift(step, measured.get("reward"))]

    def _echo(self, step: int, measured: Mapping[str, float | None], stands: Callable[[str], bool]) -> list[Event]:
        repeated = measured.get("repetition_frac")
        known = repeated is not None and math.isfinite(repeated)
        if known and len(self._first) < 10:
            self._first.append(float(repeated or 0.0))
        trapped = all(stands(name) for name in SIGNS)
        new, self._trapped = trapped and not self._trapped, trapped
        if not new:
            return []
        holds = {
            "grad_norm_max": stands("grad_norm_max"),
            "repetition_frac": known and bool(self._first) and float(repeated or 0.0) > 2 * median(self._first),
        }
        also = [words for name, words in LATER.items() if holds[name]]
        message = "rollouts of a prompt earn the same and the policy no longer chooses: an echo trap"
        return [Event(step, "echo_trap", "warning", "; ".join([message, *also]), SIGNS[0], measured.get(SIGNS[0]))]

    def _drift(self, step: int, reward: float | None) -> list[Event]:
        if reward is None or not math.isfinite(reward):
            return []
        self._rewards.append(reward)
        if len(self._rewards) < SMOOTH:
            return []
        level = median(self._rewards)
        moved = level - self._run[0] if self._run else 0.0
        if self._run and (level - self._run[-1]) * moved < 0:  # it turned: the new stretch begins at the last level
            self._run, self._drifted = [self._run[-1]], False
        self._run.append(level)
        moved = self._run[-1] - self._run[0]
        if self._drifted or len(self._run) <= DRIFT_POINTS or abs(moved) <= DRIFT:
            return []
        self._drifted = True
        way = "up" if moved > 0 else "down"
        message = f"reward went only {way} for {len(self._run) - 1} points, by {abs(moved):.3f}"
        return [Event(step, "reward_drift", "info", message, "reward", reward, DRIFT)]
