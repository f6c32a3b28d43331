"""Tokens drawn at another temperature than their log-probs say: sampler and trainer agree, and both are wrong."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.diagnosis.causes.sampler import gap
from workbench.diagnosis.departure import first
from workbench.diagnosis.finding import Cause, Clue, Evidence
from workbench.diagnosis.log import Log

HIDDEN = 4.5  # standard errors, at the best of all places to cut the run in two
FEWEST = 4  # steps on either side of that cut
AGREE = 0.1  # nats a token; where the updates took the policy farther from its sampler, the excess may be theirs
RIGHT = 0.5  # of the success that was usual: with less, what a critic finds better than expected need not be right


def _hidden(log: Log) -> Clue | None:
    """Under the policy itself the mean of -log p over its own samples is its entropy; drawn hotter, it is more."""
    if gap(log) is not None:
        return None
    clue = _of_good_ones(log) or _of_transcripts(log)
    # A policy that has collapsed is another one from step to step, and its data are of none of them.
    return None if clue is None or (log.certain is not None and clue.step > log.certain) else clue


def _of_good_ones(log: Log) -> Clue | None:
    """The same of tokens with a positive advantage, while success lasts: a policy that is right is rarely surprised."""
    # Updates that leave the data behind make its tokens rarer as well: what they were before is what was drawn.
    before = log.series("minibatch", "log_prob_positive") - log.series("minibatch", "displacement_positive")
    surprise = (-before - log.series("step", "entropy")).dropna()
    surprise = surprise[~surprise.index.isin(log.rescored.union(_wrong(log)))]
    rise = first(surprise, "above", points=3, margin=5.0, least=0.03)
    if rise is None:
        return None
    return Clue(
        "sign", 0.8, rise.step,
        f"from step {rise.step} on the tokens of rewarded trajectories are rarer than the policy's entropy allows: "
        f"-log p exceeds it by {rise.value:.3g} nats a token, where {rise.usual:.3g} was usual; sampler and trainer "
        "agree about them, so they were drawn from something else than they were scored by",
        (Evidence("minibatch.log_prob_positive", rise.step, rise.value, rise.usual),),
    )  # fmt: skip


def _wrong(log: Log) -> pd.Index:
    """The steps in which tokens have a positive advantage without a reward: of a critic, when success has fallen."""
    success = log.series("step", "success")
    if not log.measured("minibatch", "value_loss"):
        return success.index[:0]
    return success.index[success < RIGHT * success.expanding().median().cummax()]


def _of_transcripts(log: Log) -> Clue | None:
    names = ("log_prob_behaviour", "entropy", "trained")
    kept = log.transcripts(*names, "log_prob")
    if kept.empty:
        kept = log.transcripts(*names).assign(log_prob=None)
    surprise = _surprise(kept[~kept["step"].isin(log.rescored)])
    if surprise is None:
        return None
    steps = np.unique(surprise["step"])
    best: tuple[float, int] | None = None
    for at in steps[FEWEST:-FEWEST]:
        before = surprise.loc[surprise["step"] < at, "excess"]
        after = surprise.loc[surprise["step"] >= at, "excess"]
        error = np.hypot(before.std() / np.sqrt(len(before)), after.std() / np.sqrt(len(after)))
        score = float((after.mean() - before.mean()) / max(error, 1e-9))
        if best is None or abs(score) > abs(best[0]):
            best = (score, int(at))
    if best is None or abs(best[0]) < HIDDEN:
        return None
    score, step = best
    before = surprise.loc[surprise["step"] < step, "excess"]
    after = surprise.loc[surprise["step"] >= step, "excess"]
    way = "rarer (temperature above the trainer's)" if score > 0 else "likelier (temperature below it)"
    return Clue(
        "sign", 0.8, step,
        f"from step {step} on the sampled tokens are {way} than the log-probs allow that come with them: -log p "
        f"exceeds the entropy by {after.mean():.3g} nats a token, where {before.mean():.3g} was usual "
        f"({abs(score):.1f} standard errors); both sides agree about the tokens, so no ratio shows it",
        (Evidence("token.log_prob_behaviour", step, float(after.mean()), float(before.mean())),),
    )  # fmt: skip


def _surprise(frame: pd.DataFrame) -> pd.DataFrame | None:
    """Of every transcript: its step, and the mean of -log p_mu - H over the tokens that the policy wrote.

    H is the entropy of the policy that the updates made, so it tells what was drawn where that is still the sampler's.
    """
    rows = []
    columns = (frame[name] for name in ("step", "log_prob_behaviour", "entropy", "trained", "log_prob"))
    for step, drawn, entropy, trained, now in zip(*columns, strict=True):
        mask = np.asarray(trained, bool)
        log_prob = np.asarray(drawn, float)[mask]
        excess = -log_prob - np.asarray(entropy, float)[mask]
        if now is not None and not _mean(np.abs(np.asarray(now, float)[mask] - log_prob)) <= AGREE:
            continue
        if np.isfinite(excess).any():
            rows.append((int(step), _mean(excess)))
    found = pd.DataFrame(rows, columns=["step", "excess"])
    return found if found["step"].nunique() > 2 * FEWEST else None


def _mean(values: np.ndarray) -> float:
    """Mean of the finite values; NaN without one."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


TEMPERATURE_HIDDEN = Cause(
    "temperature_hidden",
    "Tokens are drawn at another temperature than their log-probs are reported at",
    "critical",
    ("token.log_prob_behaviour", "token.entropy"),
    "Have the sampler report log-probs after temperature, top-k and top-p (vLLM: logprobs_mode = processed_logprobs), "
    "and let the trainer apply the same temperature.",
    "--set engine.temperature=1.0",
    _hidden,
)
