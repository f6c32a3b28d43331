"""How many seeds a grid needs: what `sorl plan` says of the effect that its seeds can detect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.spec import InputError

if TYPE_CHECKING:
    from workbench.grid.config import Grid
    from workbench.spec import RunSettings

ASSUMED = 0.8  # share of the reference arm's runs that collapse, if no run was recorded: few of them stay up


@dataclass(frozen=True)
class Incidence:
    """The share of the reference arm's runs that collapse, and where that figure comes from."""

    share: float
    basis: str


@dataclass(frozen=True)
class Seeds:
    """The seeds per arm that detect a hazard ratio, and what the planned ones can detect."""

    hazard_ratio: float
    power: float
    incidence: Incidence
    planned: int
    comparisons: int

    def numbers(self) -> dict[str, Any]:
        """Every figure, for a program; `alpha` is divided by the number of comparisons where all are to hold."""
        from workbench.analysis.stats import (
            ALPHA,
            collapses_needed,
            detectable,
            power_of,
            seeds_needed,
            smallest_p,
        )  # fmt: skip

        ratio, share, power = self.hazard_ratio, self.incidence.share, self.power
        return {
            "hazard_ratio": ratio,
            "power": power,
            "alpha": ALPHA,
            "incidence": share,
            "incidence_basis": self.incidence.basis,
            "collapses": collapses_needed(ratio, power),
            "seeds": seeds_needed(ratio, share, power, ALPHA),
            "comparisons": self.comparisons,
            "seeds_for_all_comparisons": seeds_needed(ratio, share, power, ALPHA / self.comparisons),
            "planned_seeds": self.planned,
            "planned_power": power_of(self.planned, ratio, share),
            "planned_detectable": detectable(self.planned, share, power),
            "planned_smallest_p": smallest_p(self.planned, self.planned),
        }

    def sentences(self) -> str:
        """The same in words, with what is assumed."""
        n, planned = self.numbers(), "1 seed" if self.planned == 1 else f"{self.planned} seeds"
        corrected = (
            f" ({n['seeds_for_all_comparisons']} to detect it in each of {self.comparisons} comparisons)"
            if self.comparisons > 1
            else ""
        )
        too_few = (
            f" With {planned} per arm the smallest possible p-value is {n['planned_smallest_p']:.2g}."
            if n["planned_smallest_p"] > n["alpha"]
            else ""
        )
        return (
            f"To detect a hazard ratio of {self.hazard_ratio:g} with {100 * self.power:.0f} % power at alpha .05: "
            f"{n['collapses']:.0f} collapses, about {n['seeds']} seeds per arm{corrected}, if "
            f"{100 * self.incidence.share:.0f} % of the reference arm's runs collapse ({self.incidence.basis}).\n"
            f"The planned {planned} per arm detect it with {100 * n['planned_power']:.0f} % power, and a hazard ratio "
            f"of {n['planned_detectable']:.2g} or less with {100 * self.power:.0f} %.{too_few}"
        )


def seeds_for(grid: Grid, runs: Path, hazard_ratio: float, power: float, share: float | None = None) -> Seeds | None:
    """What the seeds of `grid` can detect; None for a grid of one arm, which compares nothing.

    `share` is the incidence to assume; None = that of recorded runs of the grid's arms. Raises InputError for numbers
    out of range.
    """
    from workbench.analysis.stats import ALPHA

    if hazard_ratio <= 0 or hazard_ratio == 1:
        raise InputError(
            f"--hazard-ratio {hazard_ratio:g} is no effect: it must be above 0 and not 1; type e.g. --hazard-ratio 0.2"
        )
    for name, value, low in (("power", power, ALPHA), ("incidence", share, 0)):
        if value is not None and not low < value < 1:
            raise InputError(f"--{name} {value:g} is not between {low:g} and 1; type e.g. --{name} 0.8")
    if len(grid.arms) < 2:
        return None
    arms = {cell.arm: cell.settings for cell in grid.cells}
    incidence = Incidence(share, "as given") if share is not None else recorded_incidence(arms, runs)
    return Seeds(hazard_ratio, power, incidence, len(grid.seeds), len(arms) - 1)


def recorded_incidence(arms: Mapping[str, RunSettings], runs: Path) -> Incidence:
    """The Kaplan-Meier incidence, at the end of a run, of the arm that collapsed most often in the recorded runs.

    Runs count for an arm if they share all its settings but the seed. If all or none of the runs have collapsed,
    (k + 1/2) / (n + 1) keeps the figure off 1; without a recorded collapse it is ASSUMED.
    """
    from workbench.analysis.runs import every_run, replicate
    from workbench.analysis.survival import observed, survival_at
    from workbench.store.reader import Reader

    collapsed, seen = {}, 0  # arm -> (incidence, collapses, runs)
    rows: Any = every_run(Reader(runs)) if (runs / "sorl.duckdb").is_file() else []
    settings = [replicate(config) for config in rows["config"]] if len(rows) else []
    for arm, wanted in arms.items() if settings else ():
        same = replicate(wanted.model_dump_json())
        mine = observed(rows[[s == same for s in settings]])
        seen += len(mine)
        if len(mine) and (events := int(mine["event"].sum())):
            share = 1 - survival_at(mine, wanted.iterations)
            collapsed[arm] = (share if 0 < share < 1 else (events + 0.5) / (len(mine) + 1), events, len(mine))
    if not collapsed:
        return Incidence(ASSUMED, f"assumed: none of {seen} recorded runs did" if seen else "assumed: none is recorded")
    arm = max(collapsed, key=lambda name: collapsed[name][0])
    share, events, n = collapsed[arm]
    return Incidence(share, f"{arm}: {events} of {n} recorded runs")
