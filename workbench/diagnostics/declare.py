"""The declaration of a measurement: one decorated function; its name is the column, its docstring the description."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

from workbench.spec import Alarm, Diagnostic, Level, Unit

SqlType = Literal["DOUBLE", "BIGINT", "BOOLEAN", "VARCHAR"]
Roll = Literal["tokens", "turns", "max", "min", "share"]

ROLL_WORDS: dict[Roll, str] = {
    "tokens": "token-weighted mean over the turns with this index of",
    "turns": "mean over the turns with this index of",
    "max": "maximum over the turns with this index of",
    "min": "minimum over the turns with this index of",
    "share": "sum over the turns with this index, as a share of the sum over all turns of the step, of",
}


@dataclass(frozen=True)
class Measure:
    """A declared measurement and the function that computes it, at every level of `at` by the same formula."""

    name: str
    at: tuple[Level, ...]
    unit: Unit
    formula: str
    source: str
    description: str
    function: Callable[..., Any]
    alarms: Mapping[Level, Alarm] = field(default_factory=dict)
    sql_type: SqlType = "DOUBLE"
    roll: Roll | None = None

    def diagnostics(self) -> list[Diagnostic]:
        """One catalogue entry per level, and one for the roll-up of a turn column to its turn index."""
        entries = [
            Diagnostic(
                self.name,
                level,
                self.unit,
                self.formula,
                self.source,
                self.description,
                self.alarms.get(level),
                self.sql_type,
            )
            for level in self.at
        ]
        if self.roll is not None:
            formula = f"{ROLL_WORDS[self.roll]} {self.formula}"
            entries.append(
                Diagnostic(
                    self.name, Level.TURN_STEP, self.unit, formula, self.source, self.description, None, "DOUBLE"
                )
            )
        return entries

    def __call__(self, *args: Any) -> Any:
        """The measured values; None when the evidence lacks what they need."""
        return self.function(*args)


def diagnostic(
    at: Level | tuple[Level, ...],
    unit: Unit,
    formula: str,
    source: str,
    *,
    alarms: Mapping[Level, Alarm] | None = None,
    sql_type: SqlType = "DOUBLE",
    roll: Roll | None = None,
) -> Callable[[Callable[..., Any]], Measure]:
    """Declare a function as the measurement named like it; `roll` says how a turn column rolls up to its turn index."""

    def declare(function: Callable[..., Any]) -> Measure:
        description = " ".join((function.__doc__ or "").split())
        if not description:
            raise TypeError(f"diagnostic {function.__name__} has no docstring: it is the description")
        levels = at if isinstance(at, tuple) else (at,)
        return Measure(
            function.__name__, levels, unit, formula, source, description, function, alarms or {}, sql_type, roll
        )

    return declare


def declared(*modules: ModuleType) -> tuple[Measure, ...]:
    """The measurements that `modules` declare, in order of declaration."""
    return tuple(m for module in modules for m in vars(module).values() if isinstance(m, Measure))


def in_words(alarm: Alarm) -> str:
    """The trip-wire as a sentence without its reason."""
    mark = f"{alarm.value:g}"
    if alarm.relative:
        mark = f"{mark} x the median of the run's first {alarm.warmup} points"
    held = f" at {alarm.points} points in a row" if alarm.points > 1 else ""
    return f"{alarm.severity} when {alarm.when} {mark}{held}"


def dictionary(catalogue: Sequence[Diagnostic]) -> dict[str, list[Any]]:
    """The catalogue as columns of table `diagnostic`."""
    return {
        "name": [d.name for d in catalogue],
        "table_name": [d.table for d in catalogue],
        "level": [d.level.value for d in catalogue],
        "unit": [d.unit.value for d in catalogue],
        "formula": [d.formula for d in catalogue],
        "source": [d.source for d in catalogue],
        "alarm": [None if d.alarm is None else f"{in_words(d.alarm)} ({d.alarm.reason})" for d in catalogue],
        "alarm_when": [d.alarm and d.alarm.when for d in catalogue],
        "alarm_value": [d.alarm and d.alarm.value for d in catalogue],
        "alarm_baseline_points": [d.alarm.warmup if d.alarm and d.alarm.relative else None for d in catalogue],
        "description": [d.description for d in catalogue],
        "sql_type": [d.sql_type for d in catalogue],
    }
