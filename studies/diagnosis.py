"""How often `sorl diagnose` is right: runs whose fault is known against what was named, with intervals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from sorl.analysis.runs import newest
from sorl.cli.audit import checks
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.log import HIDDEN, of_run
from sorl.diagnosis.proofs import first_violations
from sorl.diagnosis.rank import in_order
from sorl.spec import COLLAPSED, UNDECIDED, InputError
from sorl.store.batches import folder_of
from studies import Share, stored

if TYPE_CHECKING:
    from sorl.store.reader import Reader

LABELLED = ("fault_lab", "fault_lab_healthy")
NOTHING = "nothing"
_RUNS = """
    SELECT run_id, experiment, arm, algorithm, seed, outcome, config
    FROM run WHERE status = 'finished' ORDER BY run_id
"""


@dataclass(frozen=True)
class Case:
    """A finished run: the fault that was injected (empty: none) and the causes that were named, most likely
    first.
    """

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
    # first identity that the audit found violated; of runs whose fault is not named first
    proof: str | None = None

    @property
    def healthy(self) -> bool:
        """No fault was injected, and none of its own brought it down."""
        return not self.fault and self.outcome not in (*COLLAPSED, *UNDECIDED)


def cases(reader: Reader, experiments: Sequence[str], runs: Path | None = None) -> Iterator[Case]:
    """Diagnose every finished run of the experiments. The label is read here, and nowhere in the diagnosis.

    With the folder of the runs, each is audited as `sorl diagnose` audits it.
    """
    known = newest(reader.query(_RUNS))
    for row in known[known["experiment"].isin(list(experiments))].to_dict("records"):
        label = json.loads(row["config"]).get(HIDDEN) or {}
        folder = folder_of(runs, str(row["experiment"]), str(row["run_id"])) if runs else None
        audited = checks(runs, folder) if runs and folder else []
        found = in_order(diagnose(of_run(reader, str(row["run_id"])), checks=audited))
        named = tuple(f.cause.name for f in found)
        proof = None
        if label and named[:1] != (label["kind"],):
            proof = next((check.identity for check in first_violations(audited)), None)
        yield Case(
            run_id=str(row["run_id"]),
            experiment=str(row["experiment"]),
            arm=str(row["arm"]),
            algorithm=str(row["algorithm"]),
            seed=int(row["seed"]),
            fault=label.get("kind", ""),
            at_step=label.get("at_step"),
            outcome=row["outcome"],
            named=named,
            since=found[0].clue.step if found else None,
            proof=proof,
        )


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
    """Runs by what was injected (rows; 'none' for healthy ones) and what was named first
    (columns), counts.
    """
    counted = [case for case in found if case.fault or case.healthy]
    rows = pd.Series([case.fault or "none" for case in counted], name="injected", dtype=object)
    columns = pd.Series(
        [case.named[0] if case.named else NOTHING for case in counted], name="named", dtype=object
    )
    return pd.crosstab(rows, columns)


def write(found: Sequence[Case], path: Path) -> None:
    """The cases as a small Parquet file, from which the rates can be counted again without training."""
    pd.DataFrame([{**asdict(case), "named": list(case.named)} for case in found]).to_parquet(
        path, index=False
    )


def read(path: Path) -> list[Case]:
    """The cases of such a file. Raises InputError for a file that is none."""
    rows = stored(path, [f.name for f in fields(Case)], "scored diagnoses")
    return [Case(**{**row, "named": tuple(row["named"])}) for row in rows]


def scores(found: Sequence[Case]) -> str:
    """Markdown: how often the cause was right, by algorithm and by fault, and what it was taken for."""
    faulty = [case for case in found if case.fault]
    groups = [
        ("all", faulty),
        *((name, [c for c in faulty if c.algorithm == name]) for name in _unique(faulty)),
    ]
    lines = ["| runs with a fault | right cause first | among the first three |", "| --- | --- | --- |"]
    lines += [f"| {name} | {right_first(part)} | {right_among_three(part)} |" for name, part in groups]
    fallen = sum(not case.fault and not case.healthy for case in found)
    missed = [case for case in faulty if case.named[:1] != (case.fault,)]
    if proofs := Counter(f"`{case.proof}` in a run with `{case.fault}`" for case in missed if case.proof):
        what = ", ".join(f"{name} ({count})" for name, count in sorted(proofs.items()))
        lines += [
            "",
            f"In {proofs.total()} of the other {len(missed)} the audit proves a violated identity: {what}.",
        ]
    lines += ["", f"False alarms: {false_alarms(found)} of the healthy runs have a finding."]
    if fallen:
        lines += ["", f"Left out: {fallen} runs without a fault that collapsed on their own."]
    lines += [
        "",
        "| injected | runs | right first | among three | otherwise named first |",
        "| --- | --- | --- | --- | --- |",
    ]
    table = confusion(found)
    for fault in table.index:
        part = [case for case in found if (case.fault or ("none" if case.healthy else "")) == fault]
        others = table.loc[fault].drop(labels=[fault if fault != "none" else NOTHING], errors="ignore")
        named = ", ".join(f"{name} {count}" for name, count in others.items() if count)
        right = sum(case.named[:1] == (fault,) if case.fault else not case.named for case in part)
        third = sum(case.fault in case.named[:3] for case in part) if fault != "none" else right
        lines.append(f"| `{fault}` | {len(part)} | {right} | {third} | {named} |")
    return "\n".join(lines)


def _unique(found: Sequence[Case]) -> list[str]:
    return sorted({case.algorithm for case in found})


def main(runs: Path, files: Sequence[Path] = (), output: Path | None = None) -> str:
    """Return rates and confusions of the labelled runs, or of the cases of files; write the cases to
    `output`.

    A run that is in several files counts once, as the last of them has it.
    """
    from sorl.cli.shared import current

    found = (
        [case for file in files for case in read(file)]
        if files
        else list(cases(current(runs), LABELLED, runs))
    )
    found = list({(case.experiment, case.run_id): case for case in found}.values())
    if not found:
        files_of = " and ".join(f"experiments/{name}.toml" for name in LABELLED)
        raise InputError(
            f"no finished run of {' or '.join(LABELLED)} in '{runs}'; `sorl run` {files_of} first"
        )
    if output is not None:
        write(found, output)
    return scores(found)
