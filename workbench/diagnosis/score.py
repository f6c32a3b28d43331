"""How often the diagnosis is right: runs whose fault is known against what was named, with intervals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.analysis.runs import newest
from workbench.analysis.statistics import clopper_pearson
from workbench.diagnosis.diagnose import diagnose
from workbench.diagnosis.log import HIDDEN, of_run
from workbench.spec import COLLAPSED, UNDECIDED, InputError

if TYPE_CHECKING:
    from workbench.store.reader import Reader

NOTHING = "nothing"
_RUNS = """
    SELECT run_id, experiment, arm, algorithm, seed, outcome, config FROM run WHERE status = 'finished' ORDER BY run_id
"""


@dataclass(frozen=True)
class Case:
    """A finished run: the fault that was injected (empty: none) and the causes that were named, most likely first."""

    run_id: str
    experiment: str
    arm: str
    algorithm: str
    seed: int
    fault: str
    at_step: int | None
    outcome: str | None
    named: tuple[str, ...]
    since: int | None  # the step from which on the first one is said to show

    @property
    def healthy(self) -> bool:
        """No fault was injected, and none of its own brought it down."""
        return not self.fault and self.outcome not in (*COLLAPSED, *UNDECIDED)


@dataclass(frozen=True)
class Share:
    """`k` of `n`, with a 95 % Clopper-Pearson interval."""

    k: int
    n: int

    def __str__(self) -> str:
        if not self.n:
            return "-"
        low, high = clopper_pearson(self.k, self.n)
        return f"{self.k}/{self.n} = {100 * self.k / self.n:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def cases(reader: Reader, experiments: Sequence[str]) -> Iterator[Case]:
    """Diagnose every finished run of the experiments. The label is read here, and nowhere in the diagnosis."""
    runs = newest(reader.query(_RUNS))
    for row in runs[runs["experiment"].isin(list(experiments))].to_dict("records"):
        label = json.loads(row["config"]).get(HIDDEN) or {}
        found = diagnose(of_run(reader, str(row["run_id"]))).findings
        yield Case(
            run_id=str(row["run_id"]), experiment=str(row["experiment"]), arm=str(row["arm"]),
            algorithm=str(row["algorithm"]), seed=int(row["seed"]), fault=label.get("kind", ""),
            at_step=label.get("at_step"), outcome=row["outcome"], named=tuple(f.cause.name for f in found),
            since=found[0].clue.step if found else None,
        )  # fmt: skip


def right_first(found: Sequence[Case]) -> Share:
    """Runs with a fault whose fault is named first."""
    return _share(found, lambda case: case.named[:1] == (case.fault,))


def right_among_three(found: Sequence[Case]) -> Share:
    """Runs with a fault whose fault is among the first three names."""
    return _share(found, lambda case: case.fault in case.named[:3])


def false_alarms(found: Sequence[Case]) -> Share:
    """Healthy runs in which anything is named."""
    healthy = [case for case in found if case.healthy]
    return Share(sum(bool(case.named) for case in healthy), len(healthy))


def _share(found: Sequence[Case], right: Any) -> Share:
    faulty = [case for case in found if case.fault]
    return Share(sum(map(right, faulty)), len(faulty))


def confusion(found: Sequence[Case]) -> pd.DataFrame:
    """Runs by what was injected (rows; 'none' for healthy ones) and what was named first (columns), counts."""
    counted = [case for case in found if case.fault or case.healthy]
    rows = pd.Series([case.fault or "none" for case in counted], name="injected", dtype=object)
    columns = pd.Series([case.named[0] if case.named else NOTHING for case in counted], name="named", dtype=object)
    return pd.crosstab(rows, columns)


def write(found: Sequence[Case], path: Path) -> None:
    """The cases as a small Parquet file: whoever has it can count again without training."""
    pd.DataFrame([{**asdict(case), "named": list(case.named)} for case in found]).to_parquet(path, index=False)


def read(path: Path) -> list[Case]:
    """The cases of such a file. Raises InputError for a file that is none."""
    rows = stored(path, [f.name for f in fields(Case)], "scored diagnoses")
    return [Case(**{**row, "named": tuple(row["named"])}) for row in rows]


def stored(path: Path, names: Sequence[str], what: str) -> list[dict[str, Any]]:
    """The rows of a file of `what`, columns `names`, None for NULL. Raises InputError for a file that is none."""
    try:
        frame = pd.read_parquet(path, columns=list(names))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"'{path}' holds no {what}: {str(error).splitlines()[0]}") from None
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]
