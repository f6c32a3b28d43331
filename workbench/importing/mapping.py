"""Names that the user gives: `--map reward=my_metric` says which metric of a log is a column of ours."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sorl.importing.names import CLUES, NAMES, WORDS
from sorl.spec import InputError, nearest

STEP_COLUMN = "step"
# short words for the columns that are asked for most
SHORT = {
    "reward": "step.reward",
    "success": "step.success",
    "entropy": "step.entropy",
    "kl": "step.kl_ref",
    "length": "step.response_tokens",
    "grad_norm": "minibatch.grad_norm",
    "clip_frac": "step.clip_frac",
    "truncated": "step.truncated_frac",
    "lr": "minibatch.lr",
    "policy_loss": "minibatch.policy_loss",
    "value_loss": "minibatch.value_loss",
}
_COLUMNS = tuple(sorted({*NAMES, *WORDS, *CLUES}))
_LISTED = 40  # metrics of a log that a message names


@dataclass(frozen=True)
class NameMap:
    """Which metric is which column, as the user says; empty where the names of a log decide."""

    columns: Mapping[str, str] = field(default_factory=dict, hash=False)  # table.column -> metric
    step: str = ""  # the metric that names the step

    @classmethod
    def of(cls, words: Sequence[str] | None) -> NameMap:
        """Return the map of options such as `reward=my_metric`. Raises InputError for an unknown column."""
        columns: dict[str, str] = {}
        step = ""
        for word in words or ():
            column, equals, metric = (part.strip() for part in word.partition("="))
            if not equals or not column or not metric:
                raise InputError(f"--map '{word}' is no COLUMN=NAME; type for example --map reward=my_metric")
            if column == STEP_COLUMN:
                step = metric
            else:
                columns[_column_of(column)] = metric
        return cls(columns, step)

    def __bool__(self) -> bool:
        return bool(self.columns or self.step)

    def check(self, metrics: Iterable[str], log: str) -> None:
        """Raise InputError where a log lacks a metric that is named here."""
        present = list(metrics)
        for metric in filter(None, (*self.columns.values(), self.step)):
            if metric not in present:
                raise InputError(
                    f"--map names '{metric}', which '{log}' does not have{nearest(metric, present)}; "
                    f"it has: {listed(present)}"
                )


def listed(metrics: Collection[str]) -> str:
    """The metrics of a log for a message, the first of many."""
    names = list(metrics)
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return (", ".join(names[:_LISTED]) or "none") + more


AS_LOGGED = NameMap()


def _column_of(word: str) -> str:
    if word in SHORT:
        return SHORT[word]
    if word in _COLUMNS:
        return word
    bare = [column for column in _COLUMNS if column.partition(".")[2] == word]
    if bare:
        return bare[0]
    allowed = (STEP_COLUMN, *SHORT, *_COLUMNS)
    without_table = [column.partition(".")[2] for column in _COLUMNS]
    raise InputError(
        f"--map: there is no column '{word}'{nearest(word, (*allowed, *without_table))}; allowed: "
        + ", ".join(allowed)
    )
