"""How many seeds a grid needs: what `sorl plan` says of the effect that its seeds can show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.grid.file import Grid
    from workbench.spec import RunSettings

ASSUMED = 0.8  # share of the reference arm's runs that collapse, where no run was recorded: few of them stay up


@dataclass(frozen=True)
class Incidence:
    """The share of the reference arm's runs that collapse within a run, and where that figure comes from."""

    share: float
    basis: str


@dataclass(frozen=True)
class Seeds:
    """The seeds per arm that show a hazard ratio, and what the planned ones can show."""

    hazard_ratio: float
    power: float
    incidence: Incidence
    planned: int
    comparisons: int

    def needed(self, comparisons: int = 1) -> int:
        """Seeds per arm at alpha .05, divided by the number of comparisons."""
        from workbench.analysis.stats import ALPHA, seeds_needed

        return seeds_needed(self.hazard_ratio, self.incidence.share, self.power, ALPHA / comparisons)

    def numbers(self) -> dict[str, Any]:
        """Every figure, for a program."""
        from workbench.analysis.stats import ALPHA, collapses_needed, detectable, power_of, smallest_p

        share = self.incidence.share
        return {
            "hazard_ratio": self.hazard_ratio,
            "power": self.power,
            "alpha": ALPHA,
            "incidence": share,
            "incidence_basis": self.incidence.basis,
            "collapses": collapses_needed(self.hazard_ratio, self.power),
            "seeds": self.needed(),
            "comparisons": self.comparisons,
            "seeds_for_all_comparisons": self.needed(self.comparisons),
            "planned_seeds": self.planned,
            "planned_power": power_of(self.planned, self.hazard_ratio, share),
            "planned_detectable": detectable(self.planned, share, self.power),
            "planned_smallest_p": smallest_p(self.planned, self.planned),
        }

    def sentences(self) -> str:
        """The same in words, with what is assumed."""
        told = self.numbers()
        corrected = (
            f" ({told['seeds_for_all_comparisons']} to show it in each of {self.comparisons} comparisons)"
            if self.comparisons > 1
            else ""
        )
        planned = "1 seed" if self.planned == 1 else f"{self.planned} seeds"
        too_few = (
            f" No test of {planned} against as many can give a p-value below {told['planned_smallest_p']:.2g}."
            if told["planned_smallest_p"] > told["alpha"]
            else ""
        )
        return (
            f"To tell a hazard ratio of {self.hazard_ratio:g} from 1 at {100 * self.power:.0f} % power, alpha .05: "
            f"{told['collapses']:.0f} collapses, about {told['seeds']} seeds per arm{corrected}, if "
            f"{100 * self.incidence.share:.0f} % of the reference arm's runs collapse ({self.incidence.basis}).\n"
            f"The planned {planned} per arm show it with {100 * told['planned_power']:.0f} % power, and a hazard ratio "
            f"of {told['planned_detectable']:.2g} or less with {100 * self.power:.0f} %.{too_few}"
        )


def seeds_for(grid: Grid, runs: Path, hazard_ratio: float, power: float, share: float | None = None) -> Seeds | None:
    """What the seeds of `grid` can show; None for a grid of one arm, which compares nothing.

    `share` is the incidence to assume; without it, that of recorded runs of the grid's arms. Raises InputError for
    numbers that mean nothing.
    """
    from workbench.analysis.stats import ALPHA
    from workbench.spec import InputError

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

    That arm is what the others are to be told from. Runs count for an arm if they share all its settings but the seed.
    Where all or none of the runs have collapsed, (k + 1/2) / (n + 1) keeps the figure off 1; without a collapse on
    record it is ASSUMED.
    """
    found = {arm: _incidence(settings, rows) for arm, settings, rows in _watched(arms, runs)}
    fell = {arm: of for arm, of in found.items() if of[1]}
    if not fell:
        seen = sum(n for _, _, n in found.values())
        return Incidence(ASSUMED, f"assumed: none of {seen} recorded runs did" if seen else "assumed: none is recorded")
    arm = max(fell, key=lambda name: fell[name][0])
    share, events, n = fell[arm]
    return Incidence(share, f"{arm}: {events} of {n} recorded runs")


def _incidence(settings: RunSettings, rows: Any) -> tuple[float, int, int]:
    from workbench.analysis.survival import survival_at

    events, n = int(rows["event"].sum()), len(rows)
    share = 1 - survival_at(rows, settings.iterations)
    return (share if 0 < share < 1 else (events + 0.5) / (n + 1)), events, n


def _watched(arms: Mapping[str, RunSettings], runs: Path) -> list[tuple[str, RunSettings, Any]]:
    """The recorded runs of each arm, as survival.observed has them; arms without any are left out."""
    if not (runs / "sorl.duckdb").is_file():
        return []
    from workbench.analysis.runs import every_run, replicate
    from workbench.analysis.survival import observed
    from workbench.store.reader import Reader

    rows = every_run(Reader(runs))
    if rows.empty:
        return []
    settings = [replicate(config) for config in rows["config"]]
    found = []
    for arm, wanted in arms.items():
        same = replicate(wanted.model_dump_json())
        mine = observed(rows[[s == same for s in settings]])
        if len(mine):
            found.append((arm, wanted, mine))
    return found
