"""Results that one room computes and another reads: a check of the audit, the effect of removing a cause."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

ALPHA = 0.05  # level of every test, two-sided, after correction
_NUMBERS = ("gap", "tolerance", "logged", "expected", "weight")
_TEXTS = ("says", "missing", "means", "change", "changed")
_WHOLE = ("update", "holds_until")
_TOLD = ("says", "trajectories", "layers", "missing", "means", "change", "holds_until", "changed")
FAILED = "could not be checked: "  # begins what a check lacks that an exception stopped
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
    change: str = ""  # what to do then
    holds_until: int | None = None  # of a violated one: the last step before it that was checked and holds
    changed: str = ""  # what happened to the run between those two steps
    weight: float = 1.0  # of a deviation from chance, where those of several steps are pooled
    is_pooled: bool = False  # evidence of several steps together; `step` is about where they begin

    @property
    def failed(self) -> bool:
        """Whether it could not be checked for an exception, not for something that is not stored."""
        return self.missing.startswith(FAILED)

    @property
    def tolerance_share(self) -> float:
        """How much of its tolerance the gap takes, to find the closest shave."""
        return self.gap / self.tolerance if self.tolerance else self.gap

    @property
    def violated(self) -> bool:
        """Whether the two sides are further apart than the tolerance; a side that is not a number is."""
        return not self.missing and not self.gap <= self.tolerance

    def as_dict(self) -> dict[str, Any]:
        """Return the check as JSON has it; what is not known is left out."""
        state = "violated" if self.violated else "holds"
        step = None if self.step < 0 else self.step  # None: of the whole run
        named: dict[str, Any] = {"identity": self.identity, "step": step, "update": self.update}
        named["state"] = "missing" if self.missing else state
        if not self.missing:
            named |= {name: getattr(self, name) for name in _NUMBERS}
        told = {name: getattr(self, name) for name in _TOLD}
        return named | {name: value for name, value in told.items() if value not in (None, "", ())}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the check of such a row. Raises KeyError, TypeError or ValueError for what is none."""
        step = -1 if row["step"] is None else int(row["step"])
        values: dict[str, Any] = {"identity": str(row["identity"]), "step": step}
        values |= {name: float(row[name]) for name in _NUMBERS if name in row}
        values |= {name: str(row[name]) for name in _TEXTS if name in row}
        values |= {name: int(row[name]) for name in _WHOLE if row.get(name) is not None}
        values["trajectories"] = tuple(map(int, row.get("trajectories", ())))
        values["layers"] = tuple(map(str, row.get("layers", ())))
        return cls(**values)


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
            f"{gain:+z.2f} [{self.low:+z.2f}, {self.high:+z.2f}]"
        )
