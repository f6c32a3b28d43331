"""The sampler is not the policy that the trainer takes it for: its log-probs of the sampled tokens differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.diagnosis.causes.advantages import NOISE, RISE, one_token
from workbench.diagnosis.finding import Cause, Clue, Evidence
from workbench.diagnosis.log import Log

GROWTH = 2.0  # of the disagreement from its first steps to its last ones, from which it is called growing
_TOKENS = ("token.log_prob_behaviour", "token.log_prob_old")
_NEEDS = ("minibatch.mismatch",)


@dataclass(frozen=True)
class Gap:
    """Since when sampler and trainer disagree, by how much, how it goes on, and to which side."""

    step: int
    usual: float | None
    level: float  # mean |log p_old - log p_mu| since then, nats
    growth: float  # last third / first two steps
    sharper: float | None  # share of the confident tokens (p_old > 1/2) that the sampler found likelier


def gap(log: Log) -> Gap | None:
    """The disagreement of sampler and trainer; None where they agree."""
    series = log.series("minibatch", "mismatch")
    series = series[~series.index.isin(log.rescored)]
    if series.empty or one_token(log):
        return None
    start = _start(series)
    if start is None:
        return None
    usual = float(series[series.index < start].median()) if (series.index < start).any() else None
    since = series[series.index >= start]
    head, tail = float(since.iloc[:2].mean()), float(since.iloc[-max(2, len(since) // 3) :].mean())
    return Gap(start, usual, float(since.mean()), tail / max(head, 1e-12), _sharper(log, start))


def _start(series: pd.Series) -> int | None:
    """First of two steps in a row above the noise and well above the median of the steps before."""
    values = series.to_numpy()
    for i in range(len(values) - 1):
        usual = float(np.median(values[:i])) if i else 0.0
        if min(values[i], values[i + 1]) > max(NOISE, RISE * usual):
            return int(series.index[i])
    return None


def _sharper(log: Log, start: int) -> float | None:
    frame = log.transcripts("log_prob_old", "log_prob_behaviour", "trained")
    rows = frame[(frame["step"] >= start) & ~frame["step"].isin(log.rescored)]
    pairs = [
        (np.asarray(old, float)[mask], np.asarray(behaviour, float)[mask])
        for old, behaviour, trained in zip(
            rows["log_prob_old"], rows["log_prob_behaviour"], rows["trained"], strict=True
        )
        for mask in [np.asarray(trained, bool)]
    ]
    if not pairs:
        return None
    old, behaviour = (np.concatenate(part) for part in zip(*pairs, strict=True))
    known = np.isfinite(old) & np.isfinite(behaviour)
    old, difference = old[known], (behaviour - old)[known]
    if len(old) < 50 or difference.std() == 0:
        return None
    confident = difference[(old > np.log(0.5)) & (np.abs(difference) > NOISE)]
    return float((confident > 0).mean()) if len(confident) > 20 else None


def _evidence(found: Gap) -> tuple[Evidence, ...]:
    return (Evidence("minibatch.mismatch", found.step, found.level, found.usual),)


def _temperature(log: Log) -> Clue | None:
    found = gap(log)
    if found is None or found.sharper is None:
        return None
    one_way = max(found.sharper, 1.0 - found.sharper)
    if one_way < 0.9 or found.level < 0.01:
        return None
    direction = "sharper (temperature below the trainer's)" if found.sharper > 0.5 else "flatter (temperature above it)"
    return Clue(
        "sign", 0.9 if found.growth < GROWTH else 0.6, found.step,
        f"from step {found.step} on the sampler's distribution is {direction}: of the tokens that the trainer finds "
        f"likely, {100 * one_way:.0f} % differ in the same direction, by {found.level:.3g} nats a token on average",
        _evidence(found),
    )  # fmt: skip


def _stale(log: Log) -> Clue | None:
    found = gap(log)
    if found is None or _temperature(log) is not None:
        return None
    if found.growth < GROWTH and found.level < 0.05:
        return None
    return Clue(
        "sign", 0.9 if found.growth >= GROWTH else 0.6, found.step,
        f"from step {found.step} on the sampler disagrees with the policy that was to sample, by {found.level:.3g} "
        f"nats a token on average, and the gap has grown {found.growth:.1f} times since: it falls behind as the "
        "policy moves",
        _evidence(found),
    )  # fmt: skip


def _precision(log: Log) -> Clue | None:
    found = gap(log)
    if found is None or found.growth >= GROWTH or found.level >= 0.05 or _temperature(log) is not None:
        return None
    if found.usual is None and log.settings.get("engine.dtype") not in (None, "float32"):
        return None  # as configured, and as it was from the first step on
    return Clue(
        "sign", 0.85, found.step,
        f"from step {found.step} on sampler and trainer disagree by {found.level:.2g} nats a token, to both sides and "
        "no more with time: rounding, as of a sampler in lower precision",
        _evidence(found),
    )  # fmt: skip


STALE_WEIGHTS = Cause(
    "stale_weights",
    "The sampler runs on old weights",
    "critical",
    _NEEDS,
    "Check the weight sync: compare the sampler's log-probs of its own tokens with the trainer's after every sync "
    "(column step.sync_error); look for tied embeddings, a cached copy, a sync that failed silently.",
    "sorl sql \"SELECT step, avg(mismatch), max(mismatch_max) FROM minibatch WHERE run_id = '{run}' GROUP BY step\"",
    _stale,
    needs_one_policy=True,
)
TEMPERATURE = Cause(
    "temperature",
    "Sampling temperature is not the one that log-probs are taken at",
    "critical",
    (*_NEEDS, *_TOKENS),
    "Divide the trainer's logits by the sampler's temperature (and apply its top-k or top-p to neither), or sample "
    "at 1.",
    "--set engine.temperature=1.0",
    _temperature,
    needs_one_policy=True,
)
PRECISION = Cause(
    "low_precision",
    "The sampler computes in lower precision than the trainer",
    "warning",
    _NEEDS,
    "Sample in the trainer's precision, or correct for it (rollout correction: tis, mis, icepop), or take old "
    "log-probs from the sampler.",
    '--set engine.dtype="float32"',
    _precision,
    needs_one_policy=True,
)
