"""What recorded runs say to a grid whose next cells depend on them: how each ended, its stabiliser's mean factor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workbench.grid.cell import Cell, of_generation
from workbench.grid.folder import folder_of, last_row, read_identity
from workbench.grid.generations import last
from workbench.spec import COLLAPSED, UNDECIDED


@dataclass(frozen=True)
class Past:
    """A finished run."""

    folder: Path
    outcome: str  # empty where it is too short for the collapse rule
    seconds: float  # of training

    @property
    def collapsed(self) -> bool | None:
        """Whether it collapsed, or was on its way down: a search goes on below it. None where that cannot be judged."""
        return self.outcome in (*COLLAPSED, *UNDECIDED) if self.outcome else None


class History:
    """The finished runs of a folder, each read once."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._past: dict[str, Past] = {}
        self._only: set[str] | None = None

    def forget(self) -> None:
        """Know nothing from before: from here on only the cells that were told to `know` count."""
        self._only = set()

    def know(self, cell: Cell) -> None:
        """After `forget`, count this cell: it was run since."""
        if self._only is not None:
            self._only.add(of_generation(cell, 1).run_id)

    def past(self, cell: Cell) -> Past | None:
        """How the newest start of the cell ended; None while it is not finished."""
        name = of_generation(cell, 1).run_id
        if self._only is not None and name not in self._only:
            return None
        if name not in self._past:
            folder = folder_of(self.runs, of_generation(cell, max(1, last(self.runs, cell))))
            row = last_row(folder)
            if row is None or row.get("status") != "finished":
                return None
            self._past[name] = Past(folder, row.get("outcome") or "", float(row.get("seconds") or 0.0))
        return self._past[name]

    def factor(self, cell: Cell) -> float | None:
        """Mean of `stabiliser_factor` over the updates of the cell's run; None while it is not finished."""
        past = self.past(cell)
        return None if past is None else mean_factor(past.folder)

    def elsewhere(self, experiment: str, arm: str, seed: int) -> float | None:
        """The same of the run of an arm of another experiment, in its newest start; None where none is finished."""
        found = []
        for folder in (self.runs / experiment).glob("*/"):
            who = read_identity(folder)
            if (who.get("arm"), who.get("seed")) == (arm, seed):
                row = last_row(folder)
                if row is not None and row.get("status") == "finished":
                    found.append((str(row.get("started_at") or ""), folder))
        return mean_factor(max(found)[1]) if found else None


def mean_factor(folder: Path) -> float | None:
    """Mean of column `stabiliser_factor` of the run's optimizer updates; None where it was not measured."""
    total, n = 0.0, 0
    for file in sorted((folder / "segments" / "minibatch").glob("[0-9]*.parquet")):
        if not file.is_file():
            continue  # to open a pipe waits for its writer
        try:
            column = pq.read_table(file, columns=["stabiliser_factor"])["stabiliser_factor"]
            total += float(pc.sum(column).as_py() or 0.0)
        except (pa.ArrowException, KeyError, OSError):
            continue  # a torn segment, or rows of a trainer that has no such column, or text in it
        n += len(column) - column.null_count
    return total / n if n else None
