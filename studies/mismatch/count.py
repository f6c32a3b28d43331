"""Import generated dumps, diagnose them, and count what was named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd

from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.log import of_run
from sorl.diagnosis.rank import in_order
from sorl.importing.dumps.find import dumps_in
from sorl.importing.dumps.record import DumpRecorder, Identity
from sorl.store.reader import Reader
from sorl.store.sync import sync
from studies import Share, stored

EXPERIMENT = "mismatch"
# What is right to say first of a kind.
RIGHT = {
    "version_lag": "version_lag",
    "sync_never_lands": "sync_never_lands",
    "temperature": "temperature",
    "top_p": "truncated_sampling",
    "low_precision": "low_precision",
    "other_tokens": "other_tokens",
    "routing": "route_mismatch",
    "part": "part_differs",
    "clean": "",
    "clean lag": "",
}
# The seven kinds of the page, and clean ones.
GROUP = {kind: "temperature or top-p" if kind in ("temperature", "top_p") else kind for kind in RIGHT}


@dataclass(frozen=True)
class Case:
    """One dump: what was done to it, and what the diagnosis named."""

    name: str
    seed: int
    kind: str
    variant: str
    strength: float
    layout: str
    steps: int
    recurring: bool  # whether prompts come again within it
    onset: int
    mixture: bool
    gap: float  # nats a token, mean over the dump
    named: tuple[str, ...] = ()  # most likely first
    grade: str = ""  # of the first

    @property
    def is_right(self) -> bool:
        """Whether the right cause comes first, or nothing is named of a clean one."""
        return (self.named[0] if self.named else "") == RIGHT[self.kind]

    @property
    def is_confidently_wrong(self) -> bool:
        """Whether a wrong cause comes first, and as more than a pattern that others may leave as well."""
        return bool(self.named) and not self.is_right and self.grade != "pattern"


def record(dump: Path, name: str, runs: Path) -> None:
    """Import a dump as a run."""
    folder = runs / EXPERIMENT / name
    folder.mkdir(parents=True)
    (found,) = dumps_in(dump)
    recorder = DumpRecorder(found, Identity(name, EXPERIMENT, folder))
    for step in found.steps(-1):
        recorder.record(step)
    recorder.finish()


def diagnosed(cases: Sequence[Case], runs: Path) -> Iterator[Case]:
    """The cases with what a diagnosis of their runs names."""
    sync(runs)
    reader = Reader(runs)
    for case in cases:
        findings = in_order(diagnose(of_run(reader, case.name, runs)))
        grade = findings[0].clue.grade if findings else ""
        yield replace(case, named=tuple(f.cause.name for f in findings), grade=grade)


def write(cases: Sequence[Case], path: Path) -> None:
    """The cases as a small Parquet file, from which the rates can be counted again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([{**asdict(case), "named": list(case.named)} for case in cases]).to_parquet(
        path, index=False
    )


def read(path: Path) -> list[Case]:
    """The cases of such a file. Raises InputError for a file that is none."""
    rows = stored(path, [f.name for f in fields(Case)], "answers of the mismatch study")
    return [Case(**{**row, "named": tuple(row["named"])}) for row in rows]


def right_first(cases: Sequence[Case]) -> Share:
    """Dumps with a fault whose cause comes first."""
    faulty = [case for case in cases if RIGHT[case.kind]]
    return Share(sum(case.is_right for case in faulty), len(faulty))


def confidently_wrong(cases: Sequence[Case]) -> Share:
    """Dumps with a fault of which another cause comes first, as a sign or a proof."""
    faulty = [case for case in cases if RIGHT[case.kind]]
    return Share(sum(case.is_confidently_wrong for case in faulty), len(faulty))


def false_alarms(cases: Sequence[Case]) -> Share:
    """Clean dumps of which anything is named."""
    clean = [case for case in cases if not RIGHT[case.kind]]
    return Share(sum(bool(case.named) for case in clean), len(clean))


def table(cases: Sequence[Case]) -> str:
    """Markdown: by kind, how large the gap was, how often the cause came first, and what it was taken for."""
    lines = [
        "| kind | dumps | gap, nats a token | right first | confidently wrong | taken for |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for group in dict.fromkeys(GROUP[case.kind] for case in cases):
        part = [case for case in cases if GROUP[case.kind] == group]
        gaps = [case.gap for case in part]
        right = sum(case.is_right for case in part)
        wrong = sum(case.is_confidently_wrong for case in part)
        taken = sorted({case.named[0] if case.named else "nothing" for case in part if not case.is_right})
        span = f"{np.min(gaps):.2g} to {np.max(gaps):.2g}"
        words = ", ".join(taken) or "-"
        lines.append(f"| {group} | {len(part)} | {span} | {right} | {wrong} | {words} |")
    return "\n".join(lines)


def page(cases: Sequence[Case]) -> str:
    """Markdown: the rates, and the table by kind."""
    rates = "\n".join(f"- {line}" for line in summary(cases).splitlines())
    return f"{rates}\n\n{table(cases)}"


def summary(cases: Sequence[Case]) -> str:
    """The three rates in words."""
    return "\n".join(
        (
            f"right first: {right_first(cases)}",
            f"confidently wrong: {confidently_wrong(cases)}",
            f"false alarms: {false_alarms(cases)}",
        )
    )
