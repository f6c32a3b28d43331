"""How a log was read: its rows, how many were left out, and what a reader of the verdict has to know."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sorl.spec.files import from_json

MATERIAL = 0.1  # share of a log's rows without which a verdict is about another log


@dataclass(frozen=True)
class NotFinite:
    """A metric with values that are NaN or infinite."""

    column: str  # of ours, `minibatch.grad_norm`, or the metric's own name
    metric: str
    count: int
    values: int  # that were logged
    first_step: int

    def share(self) -> str:
        """Return how many of its values are no numbers, since when."""
        if self.values == 1:
            return f"the only row, step {self.first_step:,}"
        if self.count == self.values:
            return f"all {self.values:,} rows, from step {self.first_step:,} on"
        return f"{self.count:,} of {self.values:,} rows, first in step {self.first_step:,}"


@dataclass(frozen=True)
class Reading:
    """How many rows a log holds and how many of them were left out, with the reasons as sentences.

    `warnings` stand before a verdict: more than MATERIAL of the rows, or of a metric's values, are missing
    from it. `notes` stand after it.
    """

    rows: int  # of the log, those left out included
    left_out: int
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    not_finite: tuple[NotFinite, ...] = ()  # the first to be so first
    trainer: str = ""  # a name of workbench/importing/trainer.py; empty where it cannot be told
    reward_metric: str = ""  # the metric that was read as the reward; empty where none was
    success_metric: str = ""  # the same of the success rate, which is judged before the reward
    # setting of ours -> the trainer's own option that said it, and its value there
    options: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    # column of ours that was not read -> metrics that may be it, under a name that is not known
    candidates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_numbered: bool = False  # no column names the step: rows are numbered
    # column of ours -> what to know of it, if it is what something is found in
    remarks: Mapping[str, str] = field(default_factory=dict)
    # every option of the trainer's configuration, by its own dotted name
    configuration: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)  # package -> version

    @property
    def never_numbers(self) -> set[str]:
        """The columns that were logged and never were a number."""
        return {part.column for part in self.not_finite if part.count == part.values}

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as `sorl diagnose --format json` prints it."""
        return {
            "rows": self.rows,
            "left_out": self.left_out,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "not_finite": [asdict(part) for part in self.not_finite],
            "trainer": self.trainer,
            "reward_metric": self.reward_metric,
            "success_metric": self.success_metric,
            "options": {setting: list(option) for setting, option in self.options.items()},
            "candidates": {column: list(metrics) for column, metrics in self.candidates.items()},
            "is_numbered": self.is_numbered,
            "remarks": dict(self.remarks),
            "versions": dict(self.versions),
        }

    def to_json(self) -> str:
        """Return the text of column `reading` of table `run`: `as_dict` and the whole configuration."""
        return json.dumps({**self.as_dict(), "configuration": dict(self.configuration)}, default=str)

    @classmethod
    def from_json(cls, text: object) -> "Reading | None":
        """Return what column `reading` holds; None where it holds nothing, or no reading."""
        if not isinstance(text, str):
            return None
        try:
            fields = from_json(text)
            return cls(
                rows=int(fields["rows"]),
                left_out=int(fields["left_out"]),
                warnings=tuple(map(str, fields["warnings"])),
                notes=tuple(map(str, fields["notes"])),
                not_finite=tuple(NotFinite(**part) for part in fields.get("not_finite", ())),
                trainer=str(fields.get("trainer", "")),
                reward_metric=str(fields.get("reward_metric", "")),
                success_metric=str(fields.get("success_metric", "")),
                options=_options_from(fields.get("options", {})),
                candidates=_candidates_from(fields.get("candidates", {})),
                is_numbered=bool(fields.get("is_numbered", False)),
                remarks={str(name): str(words) for name, words in fields.get("remarks", {}).items()},
                configuration={str(name): value for name, value in fields.get("configuration", {}).items()},
                versions={str(name): str(version) for name, version in fields.get("versions", {}).items()},
            )
        except (ValueError, TypeError, LookupError, AttributeError):
            return None


def _options_from(table: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    options: dict[str, tuple[str, Any]] = {}
    for setting, (name, value) in table.items():
        options[setting] = (str(name), value)
    return options


def _candidates_from(table: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {column: tuple(map(str, metrics)) for column, metrics in table.items()}
