"""Results that one room computes and another reads: a check of the audit, the effect of removing a cause."""

import math
from dataclasses import dataclass
from typing import NamedTuple

ALPHA = 0.05  # level of every test, two-sided, after correction
REFUTED = 0.5  # of the children: a removal that surely saves fewer is none of what the run died of


@dataclass(frozen=True)
class Check:
    """An identity of a stored step: what was logged, what it must be, and how far apart they may be."""

    identity: str = ""
    step: int = -1
    update: int | None = None
    gap: float = math.nan  # the largest difference
    tolerance: float = math.nan
    logged: float = math.nan  # both sides where the difference is largest
    expected: float = math.nan
    says: str = ""  # what the difference looks like: exchanged, scaled, shifted, ...
    trajectories: tuple[int, ...] = ()  # where it is above the tolerance
    layers: tuple[str, ...] = ()
    missing: str = ""  # what it needs that is not stored; it has not passed then
    means: str = ""  # what is wrong where it is violated

    @property
    def violated(self) -> bool:
        """Whether the two sides are further apart than the tolerance; a side that is not a number is."""
        return not self.missing and not self.gap <= self.tolerance


class Removal(NamedTuple):
    """What removing a cause does to children of a run: how many stay up of how many, and of those left
    unchanged.
    """

    up: int
    draws: int
    plain_up: int
    plain_draws: int
    low: float  # of the difference of the shares, 95 %
    high: float
    p: float  # after Holm's correction over the causes that were tested

    @property
    def dies(self) -> bool:
        """Whether most children left unchanged fall: where they do not, nothing can be seen to save them."""
        return 2 * self.plain_up < self.plain_draws

    @property
    def saves(self) -> bool:
        """Whether the removal is shown to save the run."""
        return self.low > 0 and self.p < ALPHA

    @property
    def refuted(self) -> bool:
        """Whether the removal is shown to leave most children to their fall."""
        return self.dies and self.high < REFUTED

    def __str__(self) -> str:
        gain = self.up / self.draws - self.plain_up / self.plain_draws
        return (
            f"removing it saves {self.up} of {self.draws}, unchanged {self.plain_up} of {self.plain_draws}: "
            f"{gain:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"
        )
