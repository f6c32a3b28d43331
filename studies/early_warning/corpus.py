"""A labelled corpus: finished runs with their curves, how they ended, since when, and under
which condition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sorl.spec import COLLAPSED, UNDECIDED, InputError
from studies.early_warning.detectors import SIGNALS

if TYPE_CHECKING:
    import pyarrow as pa

    from sorl.analysis.results import Results

HEALTHY = "healthy"
_TEXT = ("run_id", "experiment", "algorithm", "optimizer", "outcome")
_WHOLE = ("seed", "staleness", "onset", "detection")
_REAL = ("lr", "max_grad_norm")


@dataclass(frozen=True)
class Run:
    """One finished run. A curve is its values and where they were measured, (T,) each; `steps` (T,) numbers
    them.
    """

    run_id: str
    experiment: str
    algorithm: str
    optimizer: str
    outcome: str
    seed: int
    staleness: int
    onset: int | None
    detection: int | None
    lr: float
    max_grad_norm: float | None
    steps: np.ndarray
    curves: dict[str, tuple[np.ndarray, np.ndarray]]
    fresh: bool = False  # trained after the detectors and the combined alarm were chosen

    @property
    def collapsed(self) -> bool:
        """It lost what it had, and it is known since when and when the rule said so."""
        return self.outcome in COLLAPSED and self.onset is not None and self.detection is not None

    @property
    def healthy(self) -> bool:
        """It learned and kept it. Mild falls and runs that never learned are neither healthy
        nor collapsed.
        """
        return self.outcome == HEALTHY

    @property
    def lasting(self) -> bool:
        """It did not collapse: healthy, mild, or it never learned. One that was falling at its end is
        undecided.
        """
        return self.outcome not in (*COLLAPSED, *UNDECIDED)

    @property
    def condition(self) -> str:
        """The settings that runs of one algorithm differ in, whichever experiment trained them."""
        return f"{self.algorithm} {self.optimizer} {self.staleness} {self.lr:g} {self.max_grad_norm}"

    def copies(self, other: Run) -> bool:
        """Whether the other has the same seed and bit-equal values of every signal that both logged."""
        if self.seed != other.seed or not np.array_equal(self.steps, other.steps):
            return False
        both = self.curves.keys() & other.curves.keys()
        return bool(both) and all(
            np.array_equal(a, b, equal_nan=True)
            for name in both
            for a, b in zip(self.curves[name], other.curves[name], strict=True)
        )


def of_results(found: Results) -> list[Run]:
    """The finished runs of a results file that have an outcome and a curve of success.

    They count as fresh: the detectors were chosen on runs that the shipped corpus holds, and there they are
    first.
    """
    return list(_runs(found.table, _of_config))


def read(file: Path) -> list[Run]:
    """The runs of a corpus that `write` wrote, or of a results file. Raises InputError for anything else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sorl.analysis import results

    try:
        table = pq.read_table(file, partitioning=None)
    except FileNotFoundError:
        raise InputError(
            f"no file '{file}'; `sorl bench warning EXPERIMENT --output {file}` writes one"
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"'{file}' is no Parquet file ({str(error).splitlines()[0]})") from None
    if results.KEY in (table.schema.metadata or {}):
        return of_results(results.read(file))
    if missing := [
        name for name in (*_TEXT, *_WHOLE, *_REAL, "step", "success") if name not in table.column_names
    ]:
        raise InputError(
            f"'{file}' holds neither a corpus of runs nor results: it lacks {', '.join(missing)}"
        )
    return list(_runs(table, lambda row: row))


def unique(runs: Sequence[Run]) -> list[Run]:
    """Each run once, the first time that it comes."""
    return list({run.run_id: run for run in reversed(runs)}.values())[::-1]


def distinct(runs: Sequence[Run]) -> list[Run]:
    """Each run once by its content: of copies, which are one run trained twice, the last with the curves of
    all.

    The last is the one judged by the newest rule. A run is fresh only if no copy of it was there before.
    """
    groups: list[list[Run]] = []
    buckets: dict[tuple[int, bytes], list[list[Run]]] = {}
    for run in runs:
        bucket = buckets.setdefault((run.seed, run.curves["success"][0].tobytes()), [])
        group = next((group for group in bucket if all(run.copies(other) for other in group)), None)
        if group is None:
            group = []
            bucket.append(group)
            groups.append(group)
        group.append(run)
    return [
        replace(
            group[-1],
            curves={name: curve for run in group for name, curve in run.curves.items()},
            fresh=all(run.fresh for run in group),
        )
        for group in groups
    ]


def write(runs: Sequence[Run], file: Path) -> None:
    """Write the corpus: one row a run, curves as lists, NULL where a step was not measured."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = (*_TEXT, *_WHOLE, *_REAL)
    types = {
        **dict.fromkeys(_TEXT, pa.string()),
        **dict.fromkeys(_WHOLE, pa.int64()),
        **dict.fromkeys(_REAL, pa.float64()),
    }
    columns: dict[str, Any] = {
        name: pa.array([getattr(run, name) for run in runs], types[name]) for name in names
    }
    columns["step"] = pa.array([run.steps.tolist() for run in runs], pa.list_(pa.int64()))
    columns["fresh"] = pa.array([run.fresh for run in runs])
    for name in SIGNALS:
        columns[name] = pa.array([_listed(run.curves.get(name)) for run in runs], pa.list_(pa.float32()))
    pq.write_table(pa.table(columns), file, compression="zstd", compression_level=19)


def _listed(curve: tuple[np.ndarray, np.ndarray] | None) -> list[float | None] | None:
    if curve is None:
        return None
    return [float(x) if known else None for x, known in zip(*curve, strict=True)]


def _of_config(row: dict[str, Any]) -> dict[str, Any]:
    """The columns of a corpus from a row of results."""
    learn = json.loads(row["config"])["learn"]
    policy = learn["policy"]
    return {
        **row,
        "optimizer": policy["kind"],
        "staleness": learn["staleness"],
        "lr": policy["lr"],
        "max_grad_norm": policy["max_grad_norm"],
        "onset": row["collapse_step"],
        "detection": row["detected"],
        "fresh": True,
    }


def _runs(table: pa.Table, columns: Any) -> Iterator[Run]:
    for recorded in table.to_pylist():
        if (
            recorded.get("status", "finished") != "finished"
            or not recorded["outcome"]
            or not recorded["success"]
        ):
            continue
        row = columns(recorded)
        steps = np.array(row["step"], np.int64)
        curves = {name: _curve(row[name]) for name in SIGNALS if row.get(name) is not None}
        plain = {name: row[name] for name in (*_TEXT, *_WHOLE, *_REAL)}
        measured = {name: curve for name, curve in curves.items() if curve[1].any()}
        yield Run(**plain, steps=steps, curves=measured, fresh=bool(row.get("fresh")))


def _curve(values: Sequence[float | None]) -> tuple[np.ndarray, np.ndarray]:
    known = np.array([value is not None for value in values], bool)
    return np.array([np.nan if value is None else value for value in values], float), known
