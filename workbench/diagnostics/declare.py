"""The declaration of a measurement: one decorated function; its name is the column, its docstring the description."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

# Sources that many declarations share.
OURS = "this project"
TRAINERS = "every trainer"
VERL = "verl rollout_corr_helper.py"

# Why a diagnostic has no alarm; the reasons that only columns of the step have stand in step.py.
FINER = (
    "alarms watch table step alone: a single update, turn or trajectory can have any value by chance, and what "
    "lasts shows in a column of the step"
)
NO_MARK = "no source gives a mark that carries from one model or task to another"
OTHER = "another column of the same quantity has it: `grad_norm_max`, `ess_frac_min`, `chi2`, `kl_k3`"
MEANT = "a clip is meant to act; how often it does follows from the settings"

# The notation of the formulas.
SYMBOLS: tuple[tuple[str, str], ...] = (
    ("<x>_m", "mean of x over the tokens of the loss mask m, those that the policy wrote"),
    ("m, a", "loss mask: 1 where the policy wrote the token; response mask: 1 on every token after the prompt"),
    ("delta", "log_prob - log_prob_old of a token, in nats: the log of its importance ratio"),
    ("r, w", "ratio of a token, exp(clamp(delta, +-20)); ratio that the algorithm pools"),
    ("A, R, G", "advantage, outcome reward, return that the critic learns"),
    ("V, V_old, V^c", "the critic's value, the one behind the advantages, the one clipped to V_old +- eps_V"),
    ("H, z, p", "entropy of the policy at a token, its logits, its probabilities"),
    ("g, C", "gradient of the policy's loss; clipping bias: what the clip took from the gradient of the surrogate"),
    ("J", "the surrogate, to be made large: no KL term, no entropy bonus, before a stabiliser's factor"),
    ("eps_low, eps_high", "how far a ratio may fall below 1, rise above 1, before the clip stops it"),
    ("K, n_k, s_k", "turns of a trajectory, tokens of turn k, what the policy saw at its beginning"),
    ("k1, k2, k3", "Schulman's three estimates of a KL divergence from samples"),
    ("1[x], #{x}", "1 where x holds and 0 elsewhere; how many times x holds"),
)


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
    alarm: Alarm | str = ""  # on the column of table step, or the reason why it has none
    sql_type: SqlType = "DOUBLE"
    roll: Roll | None = None

    def diagnostics(self) -> list[Diagnostic]:
        """Return one catalogue entry per level, and one for the roll-up of a turn column to its turn index."""
        entries = [self._entry(level, self.formula, self.sql_type) for level in self.at]
        if self.roll is not None:
            entries.append(self._entry(Level.TURN_STEP, f"{ROLL_WORDS[self.roll]} {self.formula}", "DOUBLE"))
        return entries

    def _entry(self, level: Level, formula: str, sql_type: SqlType) -> Diagnostic:
        alarm = self.alarm if level is Level.STEP else FINER
        found, reason = (alarm, "") if isinstance(alarm, Alarm) else (None, alarm)
        return Diagnostic(self.name, level, self.unit, formula, self.source, self.description, found, sql_type, reason)

    def __call__(self, *args: Any) -> Any:
        """Return the measured values; None when the evidence lacks what they need."""
        return self.function(*args)


def diagnostic(
    at: Level | tuple[Level, ...],
    unit: Unit,
    formula: str,
    source: str,
    *,
    alarm: Alarm | str = "",
    sql_type: SqlType = "DOUBLE",
    roll: Roll | None = None,
) -> Callable[[Callable[..., Any]], Measure]:
    """Declare a function as the measurement that has its name.

    A column of table step has an `alarm`, or in its place the reason why there is none. `roll` says how a turn column
    rolls up to its turn index. Raises TypeError where the description, or one of these two, is missing.
    """

    def declare(function: Callable[..., Any]) -> Measure:
        name, description = function.__name__, " ".join((function.__doc__ or "").split())
        levels = at if isinstance(at, tuple) else (at,)
        if not description:
            raise TypeError(f"diagnostic {name} has no docstring: it is the description")
        if (Level.STEP in levels) != bool(alarm):
            raise TypeError(f"diagnostic {name}: `alarm`, or the reason why there is none, is for columns of the step")
        return Measure(name, levels, unit, formula, source, description, function, alarm, sql_type, roll)

    return declare


def reported(name: str, unit: Unit, formula: str, source: str, description: str) -> Measure:
    """Declare a number that the learner reports once an update (`Evidence.scalars`) as a column of the update."""
    return Measure(name, (Level.UPDATE,), unit, formula, source, description, lambda t, by: t.scalar(name))


def declared(*modules: ModuleType) -> tuple[Measure, ...]:
    """Return the measurements that `modules` declare, in order of declaration, those in tuples included."""
    found = (x for module in modules for value in vars(module).values() for x in _each(value))
    return tuple(x for x in found if isinstance(x, Measure))


def _each(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def mark_words(alarm: Alarm) -> str:
    """Return the mark as part of a sentence: above 10 x the median of the run's first 10 points."""
    scale = {
        "": "",
        "baseline": f" x the median of the run's first {alarm.warmup} points",
        "start": f" x the mean of its first {alarm.warmup} points",
        "peak": " x its running maximum",
    }[alarm.relative]
    held = f" at {alarm.points} points in a row" if alarm.points > 1 else ""
    return f"{alarm.when} {alarm.value:g}{scale}{held}"


def in_words(alarm: Alarm) -> str:
    """Return the trip-wire as a sentence without its reason."""
    return f"{alarm.severity} when {mark_words(alarm)}"


def dictionary(catalogue: Sequence[Diagnostic]) -> dict[str, list[Any]]:
    """Return the catalogue as columns of table `diagnostic`."""
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
