"""The declaration of a measurement: one decorated function; its name is the column, its docstring the
description.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from sorl.measures.evidence import Missing
from sorl.spec import Alarm, Diagnostic, Level, Unit

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
    "alarms watch table step alone: a single update, turn or trajectory can have any value by chance, and"
    " what lasts shows in a column of the step"
)
NO_MARK = "no source gives a mark that carries from one model or task to another"
OTHER = "another column of the same quantity has it: `grad_norm_max`, `ess_frac_min`, `chi2`, `kl_k3`"
MEANT = "a clip is meant to act; how often it does follows from the settings"

# The notation of the formulas.
SYMBOLS: tuple[tuple[str, str], ...] = (
    ("<x>_m", "mean of x over the tokens of the loss mask m, those that the policy wrote"),
    (
        "m, a",
        "loss mask: 1 where the policy wrote the token; response mask: 1 on every token after the prompt",
    ),
    ("delta", "log_prob - log_prob_old of a token, in nats: the log of its importance ratio"),
    ("r, w", "ratio of a token, exp(clamp(delta, +-20)); ratio that the algorithm pools"),
    ("A, R, G", "advantage, outcome reward, return that the critic learns"),
    ("V, V_old, V^c", "the critic's value, the one behind the advantages, the one clipped to V_old +- eps_V"),
    ("H, z, p", "entropy of the policy at a token, its logits, its probabilities"),
    (
        "g, C",
        "gradient of the policy's loss; clipping bias: what the clip took from the gradient of the surrogate",
    ),
    ("J", "the surrogate, to be made large: no KL term, no entropy bonus, before a stabiliser's factor"),
    ("eps_low, eps_high", "how far a ratio may fall below 1, rise above 1, before the clip stops it"),
    ("K, n_k, s_k", "turns of a trajectory, tokens of turn k, what the policy saw at its beginning"),
    ("k1, k2, k3", "Schulman's three estimates of a KL divergence from samples"),
    ("1[x], #{x}", "1 where x holds and 0 elsewhere; how many times x holds"),
)


@dataclass(frozen=True)
class Measure:
    """A declared measurement: call it for the measured values, None where the evidence lacks
    what they need.
    """

    name: str
    at: tuple[Level, ...]
    unit: Unit
    formula: str
    source: str
    description: str
    function: Callable[..., Any]
    alarm: Alarm | None = None  # on the column of table step
    no_alarm: str = ""  # why the column of table step has none
    sql_type: SqlType = "DOUBLE"
    roll: Roll | None = None  # how a turn column rolls up to its turn index

    def diagnostics(self) -> Iterator[Diagnostic]:
        """Yield one catalogue entry per level, and one for the roll-up of a turn column to its turn index.

        Raises TypeError where the description is missing, or a column of table step has neither alarm nor
        reason.
        """
        if not self.description:
            raise TypeError(f"diagnostic {self.name} has no docstring: it is the description")
        if (Level.STEP in self.at) != bool(self.alarm or self.no_alarm):
            raise TypeError(
                f"diagnostic {self.name}: a column of the step, and no other, has an alarm or `no_alarm`"
            )
        words = (self.source, self.description)
        for level in self.at:
            watched = (self.alarm, self.no_alarm) if level is Level.STEP else (None, FINER)
            yield Diagnostic(
                self.name, level, self.unit, self.formula, *words, watched[0], self.sql_type, watched[1]
            )
        if self.roll:
            formula = f"{ROLL_WORDS[self.roll]} {self.formula}"
            yield Diagnostic(self.name, Level.TURN_STEP, self.unit, formula, *words, no_alarm=FINER)

    def __call__(self, *args: Any) -> Any:
        """Return the measured values; None where the evidence lacks what they need."""
        try:
            return self.function(*args)
        except Missing:
            return None


def diagnostic(
    at: Level | tuple[Level, ...], unit: Unit, formula: str, source: str, **more: Any
) -> Callable[[Callable[..., Any]], Measure]:
    """Declare a function as the measurement that has its name; `more` as in `Measure`: alarm, no_alarm, roll,
    ...
    """

    def declare(function: Callable[..., Any]) -> Measure:
        levels = at if isinstance(at, tuple) else (at,)
        description = " ".join((function.__doc__ or "").split())
        return Measure(function.__name__, levels, unit, formula, source, description, function, **more)

    return declare


def reported(name: str, unit: Unit, formula: str, source: str, description: str) -> Measure:
    """Declare a number that the learner reports once an update (`Evidence.scalars`) as a column of the
    update.
    """
    return Measure(name, (Level.UPDATE,), unit, formula, source, description, lambda t, by: t.scalar(name))


def declared(*modules: object) -> tuple[Measure, ...]:
    """Return the measurements that modules declare, in order of declaration, those in tuples included."""
    measures: list[Measure] = []
    for value in chain.from_iterable(vars(module).values() for module in modules):
        members = value if isinstance(value, tuple) else (value,)
        measures += [member for member in members if isinstance(member, Measure)]
    return tuple(measures)


def measures_at(level: Level, measures: Iterable[Measure]) -> list[Measure]:
    """Return the measurements that have a column at a level."""
    return [measure for measure in measures if level in measure.at]


def mark_size(alarm: Alarm) -> str:
    """Return the mark without its direction: 10 x the median of the run's first 10 points."""
    scales = {
        "": "",
        "peak": " x its running maximum",
        "start": f" x the mean of its first {alarm.warmup} points",
        "baseline": f" x the median of the run's first {alarm.warmup} points",
    }
    return f"{alarm.value:g}{scales[alarm.relative]}"


def mark_words(alarm: Alarm) -> str:
    """Return the mark as part of a sentence: above 10 x the median of the run's first 10 points."""
    held = f" at {alarm.points} points in a row" if alarm.points > 1 else ""
    return f"{alarm.when} {mark_size(alarm)}{held}"


def in_words(alarm: Alarm) -> str:
    """Return the alarm as a sentence without its reason."""
    return f"{alarm.severity} when {mark_words(alarm)}"


def dictionary(catalogue: Sequence[Diagnostic]) -> dict[str, list[Any]]:
    """Return the catalogue as columns of table `diagnostic`."""
    own = ("name", "formula", "source", "description", "level", "unit", "sql_type")
    columns: dict[str, list[Any]] = {}
    for name in own:
        columns[name] = [str(getattr(d, name)) for d in catalogue]
    return columns | {
        "alarm_when": [d.alarm and d.alarm.when for d in catalogue],
        "alarm_value": [d.alarm and d.alarm.value for d in catalogue],
        "table_name": [d.table for d in catalogue],
        "alarm": [d.alarm and f"{in_words(d.alarm)} ({d.alarm.reason})" for d in catalogue],
        "alarm_baseline_points": [
            d.alarm.warmup if d.alarm and d.alarm.relative else None for d in catalogue
        ],
    }
