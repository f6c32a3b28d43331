"""What is said of a log, next to what is right: by `sorl diagnose`, by rldoctor and by a plain rule."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.finding import Diagnosis
from sorl.diagnosis.log import Log
from sorl.importing.logs import read
from sorl.spec import InputError
from studies.scalar_logs.bench import PEER

FELL = ("collapsed", "recovered", "falling", "diverged")
FLAT = ("no_learning", "no_clear_change", "saturated")  # of which one is as right as another
FEW = 20  # steps, below which "undecided" is right of a log that a judge gave another word
TENTH = 10  # of a run: what the plain rule smooths over
LOST = 0.5  # of the best smoothed level, below which the plain rule speaks of a fall


@dataclass(frozen=True)
class Expected:
    """A log, and what is right to say of it."""

    log: str
    part: str  # "real" or "generated"
    split: str  # of the real logs
    format: str
    naming: str
    truth: str
    noise: str
    rows: int
    outcomes: tuple[str, ...]  # words that are right; none: not counted
    causes: tuple[str, ...]  # names of the cause that are right; none: not counted
    is_healthy: bool
    is_faulty: bool  # a cause is there to be named


@dataclass(frozen=True)
class Said:
    """What the three say; the plain rule and rldoctor have no answer to a log that is not read."""

    is_read: bool
    steps: int = 0
    word: str | None = None  # None: undecided
    named: tuple[str, ...] = ()  # causes, the first finding first
    serious: tuple[str, ...] = ()  # those of findings that are more than a remark
    critical: tuple[str, ...] = ()
    rule_fell: bool | None = None
    peer: tuple[str, ...] | None = None  # detectors of rldoctor that warn; None: not asked


@dataclass(frozen=True)
class Answer:
    """A log with what is right and what is said of it."""

    expected: Expected
    given: Said

    @property
    def is_whole(self) -> bool:
        """Whether it was read, and of a generated log every step."""
        return self.given.is_read and (self.expected.part == "real" or self.given.steps == self.expected.rows)

    @property
    def is_outcome_right(self) -> bool:
        """Whether the word is right; one of a log that was not read is wrong."""
        accepted = self.expected.outcomes
        word = self.given.word
        if not self.given.is_read:
            return False
        if word is None:
            return "too_short" in accepted or self.given.steps < FEW
        return word in accepted or (word in FLAT and bool({*accepted} & {*FLAT}))

    @property
    def is_fallen(self) -> bool:
        """Whether a fall is among what is right to say."""
        return bool({*self.expected.outcomes} & {*FELL})

    @property
    def says_fallen(self) -> bool:
        """Whether it is called fallen."""
        return self.given.word in FELL

    @property
    def is_alarmed(self) -> bool:
        """Whether sorl says that something is badly wrong, by its verdict or a finding."""
        return self.says_fallen or bool(self.given.critical)

    @property
    def is_first_right(self) -> bool:
        """Whether the first finding names the cause."""
        return any(name in self.expected.causes for name in self.given.named[:1])

    @property
    def is_first_serious_right(self) -> bool:
        """Whether the first finding that is more than a remark names the cause."""
        return any(name in self.expected.causes for name in self.given.serious[:1])

    @property
    def is_peer_right(self) -> bool:
        """Whether the detector of rldoctor that warns first may mean the cause."""
        meant: set[str] = set()
        for name in (self.given.peer or ())[:1]:
            meant |= {name, *PEER.get(name, ())}
        return bool(meant & {*self.expected.causes})


def diagnosis_of(path: Path) -> Diagnosis | None:
    """The diagnosis of a file; None where it cannot be read."""
    try:
        return diagnose(read(path))
    except InputError:
        return None


def said_of(diagnosis: Diagnosis | None) -> Said:
    """What a diagnosis says, and what the plain rule says of the reward that it read."""
    if diagnosis is None:
        return Said(is_read=False)
    severities = [(finding.cause.name, finding.severity) for finding in diagnosis.findings]
    return Said(
        is_read=True,
        steps=diagnosis.log.steps,
        word=diagnosis.log.run.get("outcome"),
        named=tuple(name for name, _ in severities),
        serious=tuple(name for name, severity in severities if severity != "info"),
        critical=tuple(name for name, severity in severities if severity == "critical"),
        rule_fell=has_fallen(rewards_of(diagnosis.log)),
    )


def rewards_of(log: Log) -> np.ndarray:
    """The rewards of a log, empty where it has none."""
    column = next(iter(log.columns("reward")), None)
    return np.array([]) if column is None else log.series(*column.split(".", 1)).to_numpy()


def has_fallen(rewards: np.ndarray) -> bool:
    """The plain rule: the mean of the last tenth is under half of the best mean of a tenth."""
    if not len(rewards):
        return False
    width = max(1, len(rewards) // TENTH)
    smoothed = np.convolve(rewards, np.full(width, 1 / width), mode="valid")
    return bool(smoothed[-1] < LOST * smoothed.max())


_TEXTS = pa.list_(pa.string())
_TYPES = {"str": pa.string(), "bool": pa.bool_(), "int": pa.int64(), "tuple[str, ...]": _TEXTS}
SCHEMA = pa.schema(
    [
        (field.name, _TYPES[str(field.type).removesuffix(" | None")])
        for field in (*fields(Expected), *fields(Said))
    ]
)


def table_of(answers: list[Answer]) -> pa.Table:
    """The answers, a row each."""
    return pa.Table.from_pylist([asdict(a.expected) | asdict(a.given) for a in answers], schema=SCHEMA)


def answers_in(table: pa.Table) -> list[Answer]:
    """Return the answers in such a table. Raises KeyError where a column is missing."""
    return [Answer(Expected(**_part(row, Expected)), Said(**_part(row, Said))) for row in table.to_pylist()]


def _part(row: dict[str, Any], kind: type[Expected] | type[Said]) -> dict[str, Any]:
    values = {field.name: row[field.name] for field in fields(kind)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
