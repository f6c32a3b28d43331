"""Why trainer and sampler disagree, read off the columns `gap*` and the contexts that come again.

Each reason leaves a signature of its own (docs/mismatch.md). They are asked in an order in which an earlier
one rules out the later ones: tokens, then distributions, then weights, then rounding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sorl.diagnosis.changepoint import Evidence, before
from sorl.diagnosis.finding import Clue, Grade
from sorl.diagnosis.log import Log

SIDES = ("sampler", "trainer")
# Marks, set on seeds 1 and 2 of studies.mismatch; counted on seed 3.
KERNELS = 6e-4  # nats a token; 15 times what float32 and TF32 kernels differ by there
RISE = 5.0  # times what was usual, where they never agreed to begin with
BROKEN = 0.2  # of the rows
ONE_SIDE = 0.93  # of the likely tokens that differ
ALL = 0.99  # of the tokens that differ
STEEP = 1.03  # of the sampler's log-prob against the trainer's; one that only leaves out tokens has slope 1
GROWTH = 1.5  # of the gap from the first third of its steps to the last
LAG = 0.05  # nats a token: what older data differ by has a price from here on
FOLLOWS = 3.0  # times the gap of fresh data, that older data have where their age is the reason
FROZEN = 0.1  # of the trainer's shift on contexts that came again
MOVES = 0.25  # the same of a sampler that follows
FEWEST_REVISITS = 10  # tokens
SHIFT = 1e-3  # nats by which the trainer must have moved on them
ROUNDING = 0.012  # nats a token, beyond which rounding is no explanation
ROUNDING_OF_MIXTURE = 0.008  # the same of a mixture of experts, where more than that changes routes
FEWEST_STEPS = 4  # since it began, without which nothing is said
FIRST_STEP = 1  # of training: trainers count from 0 or from 1
FEWEST_ROWS = 10  # trajectories of one age
MIXTURE = re.compile(r"moe|mixtral|\b[0-9.]+b-a[0-9.]+b|deepseek-v[23]|gpt-oss|expert", re.IGNORECASE)


@dataclass(frozen=True)
class Gap:
    """The gap of trainer and sampler since the step at which it began."""

    start: int
    is_from_start: bool  # it is there in the first step of training, before anything could go unsynced
    level: float  # nats a token, mean
    usual: float | None  # the median before
    head: float  # of the first third of the steps
    tail: float  # of the last third
    broken: float  # share of rows that agree up to a token
    sharper: float  # share of likely tokens that the sampler finds likelier
    likelier: float  # share of all tokens
    slope: float  # of the sampler's log-prob against the trainer's

    @property
    def growth(self) -> float:
        """From the first third to the last, times."""
        return self.tail / max(self.head, 1e-12)

    def clue(self, grade: Grade, confidence: float, says: str, column: str = "gap") -> Clue:
        """A clue with the level of the gap, or another column, as its evidence."""
        value = self.level if column == "gap" else float(getattr(self, column))
        name = "gap" if column == "gap" else f"gap_{column}_frac"
        usual = self.usual if column == "gap" else None
        return Clue.since(grade, confidence, Evidence(f"minibatch.{name}", self.start, value, usual), says)


def gap_since(log: Log) -> Gap | None:
    """The gap from the first of two steps at which it lies above kernel noise and what was usual; None where
    there is none, or where it has lasted for too few steps.
    """
    series = log.series("minibatch", "gap")
    values = series.to_numpy()
    usual = np.array([np.median(values[:i]) if i else 0.0 for i in range(max(0, len(values) - 1))])
    marks = np.where(usual <= KERNELS, KERNELS, RISE * usual)
    above = np.flatnonzero(np.minimum(values[:-1], values[1:]) > marks)
    if not len(above):
        return None
    start = int(series.index[above[0]])
    since = series[series.index >= start]
    if len(since) < FEWEST_STEPS:
        return None
    third = max(2, len(since) // 3)
    return Gap(
        start,
        is_from_start=bool(above[0] == 0) and start <= FIRST_STEP,
        level=float(since.mean()),
        usual=before(series, start),
        head=float(since.iloc[:third].mean()),
        tail=float(since.iloc[-third:].mean()),
        broken=_mean_since(log, "gap_broken_frac", start),
        sharper=_mean_since(log, "gap_sharper_frac", start),
        likelier=_mean_since(log, "gap_likelier_frac", start),
        slope=_mean_since(log, "gap_slope", start),
    )


def _mean_since(log: Log, column: str, start: int) -> float:
    series = log.series("minibatch", column)
    return float(series[series.index >= start].mean())


def told_apart(log: Log) -> dict[str, Clue]:
    """The clue of why trainer and sampler disagree, by its cause; nothing where they agree, or where ordinary
    lag is all that parts them.
    """
    gap = gap_since(log)
    if gap is None:
        return {}
    for look in (_other_tokens, _distribution):
        if found := look(gap):
            return found
    ages = _ages(log, gap.start)
    if ages.is_reason:
        return _version_lag(gap, ages)
    return _weights(log, gap)


def _other_tokens(gap: Gap) -> dict[str, Clue]:
    if not gap.broken >= BROKEN:
        return {}
    says = (
        f"in {100 * gap.broken:.0f} % of the rows trainer and sampler agree up to a token and not after it:"
    )
    says += (
        f" the trainer reads other ids from there on; the gap is {gap.level:.2g} nats a token over all rows"
    )
    return {"other_tokens": gap.clue("sign", 0.9, says, "broken")}


def _distribution(gap: Gap) -> dict[str, Clue]:
    if gap.likelier >= ALL and gap.slope <= STEEP:
        says = (
            f"the sampler finds {100 * gap.likelier:.0f} % of its tokens likelier than the trainer does, by"
        )
        says += f" {gap.level:.2g} nats on average: it leaves out unlikely tokens (top-p, top-k) and reports"
        says += " log-probs among the rest"
        return {"truncated_sampling": gap.clue("sign", 0.9, says, "likelier")}
    one_side = max(gap.sharper, 1.0 - gap.sharper)
    if not one_side >= ONE_SIDE:
        return {}
    way = (
        "sharper (temperature below the trainer's)" if gap.sharper > 0.5 else "flatter (temperature above it)"
    )
    says = f"the sampler's distribution is {way}: of the tokens that the trainer finds likely,"
    says += (
        f" {100 * one_side:.0f} % differ in the same direction, by {gap.level:.2g} nats a token on average"
    )
    return {"temperature": gap.clue("sign", 0.9, says, "sharper")}


@dataclass(frozen=True)
class Ages:
    """The gap by the age of the data: means over trajectories, NaN where there are too few."""

    fresh: float  # sampled by the newest weights
    older: float
    age: float  # mean age of the older ones, in steps

    @property
    def is_reason(self) -> bool:
        """Whether age explains the gap: data are older, and fresh ones do not differ alike."""
        if not np.isfinite(self.older):
            return False
        return not self.older < FOLLOWS * self.fresh  # a NaN: none are fresh


def _ages(log: Log, start: int) -> Ages:
    frame = log.table("trajectory")
    if not {"gap", "rollout_step", "step"} <= set(frame):
        return Ages(np.nan, np.nan, np.nan)
    frame = frame[(frame["step"] >= start) & frame["gap"].notna()]
    age = frame["step"] - frame["rollout_step"]
    fresh = frame.loc[age <= 0, "gap"]
    older = frame.loc[age > 0, "gap"]
    return Ages(_mean_of_rows(fresh), _mean_of_rows(older), float(age[age > 0].mean()))


def _mean_of_rows(gaps: pd.Series) -> float:
    return float(gaps.mean()) if len(gaps) >= FEWEST_ROWS else float("nan")


def _version_lag(gap: Gap, ages: Ages) -> dict[str, Clue]:
    if gap.level < LAG:
        return {}
    says = f"data that are {ages.age:.1f} steps old differ by {ages.older:.2g} nats a token"
    if np.isfinite(ages.fresh):
        says += f", and those of the newest weights by {ages.fresh:.2g}: the gap follows the age"
        return {"version_lag": gap.clue("sign", 0.9, says)}
    says += "; no data are of the newest weights, so that nothing tells lag from a sync that is incomplete"
    return {"version_lag": gap.clue("sign", 0.8, says)}


@dataclass(frozen=True)
class Shifts:
    """How far both sides have moved on contexts that came again, in nats."""

    tokens: int
    sampler: float
    trainer: float

    @property
    def share(self) -> float:
        """The sampler's shift over the trainer's; NaN where that is not known."""
        known = self.tokens >= FEWEST_REVISITS and self.trainer >= SHIFT
        return self.sampler / self.trainer if known else float("nan")


def _shifts(log: Log, start: int) -> Shifts:
    """Of the steps in which most visits have an earlier one that is not before the start either."""
    frame = (
        log.table("step")
        .reindex(
            columns=[
                "step",
                "revisited_tokens",
                "revisit_steps",
                *(f"{side}_revisit_shift" for side in SIDES),
            ]
        )
        .dropna()
    )
    late = frame[frame["step"] - frame["revisit_steps"] >= start]
    tokens = late["revisited_tokens"].to_numpy(float)
    if not tokens.sum() > 0:
        return Shifts(0, np.nan, np.nan)
    sampler, trainer = (
        float(np.average(late[f"{side}_revisit_shift"].to_numpy(float), weights=tokens)) for side in SIDES
    )
    return Shifts(int(tokens.sum()), sampler, trainer)


def _weights(log: Log, gap: Gap) -> dict[str, Clue]:
    """Same tokens, same distribution, and age is not the reason: weights, or what is computed of them."""
    shifts = _shifts(log, gap.start)
    if shifts.share <= FROZEN:
        says = (
            f"the sampler still says what it said: on {shifts.tokens:,} tokens whose context came again its"
        )
        says += (
            f" log-probs have moved by {shifts.sampler:.2g} nats, the trainer's by {shifts.trainer:.2g}; the"
        )
        says += f" gap is {gap.level:.2g} nats a token"
        return {"sync_never_lands": gap.clue("sign", 0.95, says)}
    mixture = is_mixture(log.settings)
    if gap.growth >= GROWTH and not gap.is_from_start:
        return _grows(gap, shifts)
    if gap.level <= (ROUNDING_OF_MIXTURE if mixture else ROUNDING):
        says = f"trainer and sampler differ by {gap.level:.2g} nats a token, to both sides and no more with"
        return {
            "low_precision": gap.clue(
                "sign", 0.85, f"{says} time: rounding, as of a sampler in lower precision"
            )
        }
    return _computed_otherwise(mixture, gap)


def _grows(gap: Gap, shifts: Shifts) -> dict[str, Clue]:
    says = (
        f"the gap grows {gap.growth:.1f} times, to {gap.tail:.2g} nats a token, whatever the age of the data"
    )
    if shifts.share >= MOVES:
        says += (
            ", and yet the sampler's log-probs of contexts that came again move as the trainer's do: some of"
        )
        says += " its weights are synced and some are not"
        return {"part_differs": gap.clue("sign", 0.85, says)}
    says += ": the sampler stays behind as the policy moves; no context came again that could tell all of its"
    says += " weights from a part of them"
    return {"sync_never_lands": gap.clue("pattern", 0.7, says)}


def _computed_otherwise(mixture: bool | None, gap: Gap) -> dict[str, Clue]:
    says = f"trainer and sampler differ by {gap.level:.2g} nats a token, from the start, to both sides and no"
    says += " more with time, which is too much for rounding: "
    if mixture:
        says += (
            "one side computes something else, and in a mixture of experts that is first of all the routers"
        )
        return {"route_mismatch": gap.clue("pattern", 0.7, says)}
    says += "one side computes a layer otherwise, or has other weights in it"
    if mixture is None:
        says += "; of a mixture of experts, which this log neither says nor denies, look at the routers first"
        return {"part_differs": gap.clue("pattern", 0.55, says)}
    return {"part_differs": gap.clue("pattern", 0.75, says)}


def is_mixture(settings: Mapping[str, Any]) -> bool | None:
    """Whether the model is a mixture of experts, by what the settings call it; None where they do not."""
    names = [
        str(value) for key, value in settings.items() if key.endswith(("model_name", "model", "model.path"))
    ]
    experts = [value for key, value in settings.items() if key.endswith(("num_experts", "num_local_experts"))]
    if any(isinstance(count, int) and count > 1 for count in experts):
        return True
    return any(MIXTURE.search(name) for name in names) if names else None
