"""The words of measuring: levels, units, alarms, diagnostics; how a run can end; the checks of the guard."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, get_args


class Level(StrEnum):
    """The grain at which a quantity is measured; each level is one table of the store."""

    TOKEN = "token"
    TURN = "turn"
    TURN_STEP = "turn_step"
    TRAJECTORY = "trajectory"
    UPDATE = "update"
    STEP = "step"
    RUN = "run"

    @property
    def table(self) -> str:
        """Name of the table whose rows have this grain (an optimizer update is a row of `minibatch`)."""
        return "minibatch" if self is Level.UPDATE else self.value


class Unit(StrEnum):
    """The unit of a measured quantity, as axes and tooltips print it."""

    NATS = "nats"
    RATIO = "ratio"
    FRACTION = "fraction"
    REWARD = "reward"
    NORM = "norm"
    COUNT = "count"
    TOKENS = "tokens"
    SECONDS = "s"
    BYTES = "bytes"
    NONE = ""


@dataclass(frozen=True)
class Alarm:
    """A mark on one diagnostic: its value crosses `value` in direction `when` at `points`
    consecutive points.
    """

    when: Literal["above", "below", "at least"]
    value: float
    reason: str  # where the mark comes from
    points: int = 1
    # `value` times the median ("baseline") or the mean ("start") of the run's own first `warmup` points, or
    # times its running maximum ("peak"): absolute thresholds do not carry from one model to another.
    relative: Literal["", "baseline", "start", "peak"] = ""
    warmup: int = 10
    severity: Literal["info", "warning", "critical"] = "warning"


@dataclass(frozen=True)
class Diagnostic:
    """A declared measurement: its name is the column, its level the table, its description the tooltip."""

    name: str
    level: Level
    unit: Unit
    formula: str
    source: str
    description: str
    alarm: Alarm | None = None
    sql_type: Literal["DOUBLE", "BIGINT", "BOOLEAN", "VARCHAR"] = "DOUBLE"
    no_alarm: str = ""  # why it has none; empty where it has one

    @property
    def table(self) -> str:
        """Name of the table that holds this diagnostic's column."""
        return self.level.table


# How a run can end (column `run.outcome`), and what every count of runs does with each of them.
Outcome = Literal[
    "healthy",
    "mild",
    "no_learning",
    "no_clear_change",
    "saturated",
    "recovered",
    "falling",
    "collapsed",
    "diverged",
]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
MEANINGS: dict[Outcome, str] = {
    "healthy": "rose above its start and kept it",
    "mild": "lost a fifth of its best and did not regain it, or had a critical event, but did not lose half",
    "no_learning": "did not rise above its start, and did not lose it: a gain would have shown",
    "no_clear_change": "shows no change that its noise could not hide",
    "saturated": "started near the top of its score and stayed there",
    "recovered": "collapsed, and was back near its best at the end",
    "falling": "was down by half in its last steps, too few of them for the collapse rule",
    "collapsed": "lost half of its best, and did not come back",
    "diverged": (
        "training could not continue: NaN or Inf in a loss, a gradient or the score, or a crashed engine"
    ),
}
# A collapse happened: the event of incidence, survival and regions. NaN counts too, or the arm that died of
# it would look stable; and a run that came back had collapsed all the same (where training stops after a
# collapse, none can).
COLLAPSED: tuple[Outcome, ...] = ("collapsed", "recovered", "diverged")
# It stayed up without a rise, which says nothing about stability: what never rose cannot fall.
NOT_RISEN: tuple[Outcome, ...] = ("no_learning", "no_clear_change", "saturated")
# Neither an event nor a survivor: left out of incidence, censored where the fall may have begun.
UNDECIDED: tuple[Outcome, ...] = ("falling",)


def cause(row: Mapping[str, Any]) -> str:
    """The cause of a bad end by a row of table `run`: diverged, hang, out of memory, killed or failed; else
    empty.
    """
    if row.get("outcome") == "diverged":
        return "diverged"
    if row.get("status") != "failed":
        return ""
    causes = {"hang": "hang", "out of memory": "out of memory", "killed": "killed", "lost": "killed"}
    return next(
        (name for start, name in causes.items() if str(row.get("reason")).startswith(start)), "failed"
    )


@dataclass(frozen=True)
class Check:
    """A check of the fair-comparison guard: what it flags, what it only notes (a difference, printed), and
    why.
    """

    name: str
    # By `sorl plan` from the settings, by the trainer before its first step or after each one, or in recorded
    # runs.
    seen: Literal["plan", "start", "step", "compare"]
    severity: Literal["info", "warning", "critical"]  # of what is flagged
    flags: str
    notes: str
    reason: str

    @property
    def kind(self) -> str:
        """Kind of the event that a violation is."""
        return f"guard_{self.name}"


RATIO_TOLERANCE = 1e-3  # nats; float32 rounding gave 3e-6 at most in 500 first updates, a clip range is 0.2

GUARD: tuple[Check, ...] = (
    Check(
        "idle_ratio",
        "plan",
        "warning",
        "arms whose ratio is 1 in every update (one epoch, one minibatch, old log-probs of the policy itself)"
        " and whose updates are then the same",
        "an arm of that kind without such a partner",
        "a ratio of 1 is never clipped, so arms that differ in ratio, clip or stabiliser may be one arm, run"
        " twice",
    ),
    Check(
        "normaliser",
        "plan",
        "warning",
        "arms that differ in the advantage or the aggregation, though their algorithms declare the same one,"
        " and in something else as well, with no third arm that differs in one of the two only",
        "algorithms that declare different advantages or aggregations",
        "both scale every gradient as a learning rate does, so the effects cannot be separated",
    ),
    Check(
        "compute",
        "plan",
        "info",
        "",
        "different numbers of rollouts, sampled episodes, questions, optimizer updates or trained tokens,"
        " planned (from the least to the most, where turns are updated one by one, groups drawn again, or"
        " steps end early) and as recorded",
        "an arm that trains more has more chances to learn and to collapse",
    ),
    Check(
        "task",
        "plan",
        "info",
        "",
        "arms that do not share the world, the policy network or model, its prompt, or the warm start",
        "their success is not on one scale",
    ),
    Check(
        "seeds",
        "plan",
        "info",
        "",
        "different numbers of seeds",
        "intervals of unequal width invite unequal trust",
    ),
    Check(
        "mask",
        "start",
        "critical",
        "on a synthetic batch, tokens that the policy did not write carry a gradient, or the loss changes"
        " with them while the log-probs of the written ones stay; the run ends as failed",
        "",
        "a loss on prompts, observations or padding trains the agent to imitate its retriever",
    ),
    Check(
        "token_identity",
        "step",
        "critical",
        "a trained row that is not the prompt, the sampled turns and the observations, token for token, or"
        " whose turn ids are not the sampler's turns",
        "",
        "text that was decoded and encoded again has other tokens, and their ratios are not those of the"
        " samples",
    ),
    Check(
        "first_ratio",
        "step",
        "warning",
        f"a log-ratio beyond {RATIO_TOLERANCE:g} nats in the first update of a step whose old log-probs are"
        " those of the policy itself",
        "",
        "before the first update policy and old policy are the same, so another ratio is a defect of the"
        " trainer",
    ),
    Check(
        "stuck_batch",
        "step",
        "warning",
        "a step that trains on the very tokens of an earlier one (epochs of one step are meant and are not"
        " flagged)",
        "",
        "a queue that hands out a batch twice is staleness that no setting asked for",
    ),
    Check(
        "questions",
        "compare",
        "warning",
        "arms with one seed, task, number of episodes and group size that trained on different questions or"
        " in another order (those that draw groups again are meant to), or two seeds of such arms that"
        " trained on the same ones",
        "",
        "seeds pair the arms, and are replicates, only if they reach them",
    ),
)


def check(name: str) -> Check:
    """Return the check `name` of the guard; KeyError for one that does not exist."""
    return {c.name: c for c in GUARD}[name]
