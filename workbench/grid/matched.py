"""Learning rates that are matched run by run: an arm follows the mean stabiliser factor of another arm's runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from workbench.grid.cell import Cell
from workbench.grid.history import History
from workbench.spec import InputError, nearest


@dataclass(frozen=True)
class Waiting:
    """A cell that cannot be made yet: the run whose factor it takes is not finished."""

    arm: str
    seed: int
    source: str  # arm of this file, or EXPERIMENT/ARM
    here: bool  # whether this file's own grid trains the source

    def __str__(self) -> str:
        """`'ppo, matched' seed 3 waits for st-ppo seed 3`, and what to type where that is not of this grid."""
        told = f"'{self.arm}' seed {self.seed} waits for {self.source} seed {self.seed}"
        experiment = self.source.split("/")[0]
        return told if self.here else f"{told}; train it with `sorl run experiments/{experiment}.toml`"


def matched(
    cell: Cell, sources: Mapping[str, Callable[[int], Cell]], history: History | None, where: str
) -> float | Waiting:
    """The learning rate of a cell with `match`: its own times the factor of its source, or what it waits for.

    `sources` makes the cell of each arm of the file for a seed. InputError for a source that does not exist, is matched
    itself, or has recorded no factor.
    """
    source, seed = str(cell.settings.match), cell.seed
    here = source in sources
    if here:
        other = sources[source](seed)
        if other.settings.match is not None:
            raise InputError(f"{where}: match = '{source}' is matched itself; name the arm that it follows")
        past = history.past(other) if history else None
        factor = history.factor(other) if history and past else None
        if past is not None and factor is None:
            raise InputError(f"{where}: the run of '{source}' seed {seed} has recorded no stabiliser_factor")
    else:
        experiment, slash, arm = source.partition("/")
        if not slash or not arm:
            raise InputError(
                f"{where}: match = '{source}' is no arm of this file{nearest(source, sources)}; arms: "
                f"{', '.join(sources)}; an arm of another experiment is written EXPERIMENT/ARM"
            )
        factor = history.elsewhere(experiment, arm, seed) if history else None
    if factor is None:
        return Waiting(cell.arm, seed, source, here)
    return float(f"{cell.settings.learn.policy.lr * factor:.6g}")
