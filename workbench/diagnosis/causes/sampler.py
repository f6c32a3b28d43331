"""The sampler differs from the policy: in its log-probs, or in what it draws."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.diagnosis.causes.batch import NOISE, RISE, one_token
from workbench.diagnosis.changepoint import before, first
from workbench.diagnosis.finding import Clue, cause, sql
from workbench.diagnosis.log import Log

GROWTH = 2.0  # of the disagreement from its first steps to its last ones, from which it is called growing
HIDDEN = 4.5  # standard errors, at the best of all places to cut the run in two
FEWEST = 4  # steps on either side of that cut
AGREE = 0.1  # nats a token; where the updates took the policy farther from its sampler, the excess may be theirs
RIGHT = 0.5  # of the success that was usual: with less, what a critic finds better than expected need not be right
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
    """Return the disagreement of sampler and trainer; None where they agree."""
    series = log.series("minibatch", "mismatch")
    series = series[~series.index.isin(log.rescored)]
    if series.empty or one_token(log):
        return None
    values = series.to_numpy()
    usual = [float(np.median(values[:i])) if i else 0.0 for i in range(len(values))]  # of the steps before
    above = [value > max(NOISE, RISE * u) for u, value in zip(usual, np.minimum(values[:-1], values[1:]), strict=False)]
    if True not in above:
        return None
    start = int(series.index[above.index(True)])  # two steps in a row above the noise, well above what was usual
    since = series[series.index >= start]
    head, tail = float(since.iloc[:2].mean()), float(since.iloc[-max(2, len(since) // 3) :].mean())
    return Gap(start, before(series, start), float(since.mean()), tail / max(head, 1e-12), _sharper(log, start))


def _sharper(log: Log, start: int) -> float | None:
    names = ("log_prob_old", "log_prob_behaviour", "trained")
    frame = log.transcripts(*names)
    rows = frame[(frame["step"] >= start) & ~frame["step"].isin(log.rescored)]
    if rows.empty:
        return None
    old, behaviour, trained = (np.concatenate([np.asarray(x, float) for x in rows[name]]) for name in names)
    known = np.isfinite(old) & np.isfinite(behaviour) & (trained > 0)
    old, difference = old[known], (behaviour - old)[known]
    if len(old) < 50 or difference.std() == 0:
        return None
    confident = difference[(old > np.log(0.5)) & (np.abs(difference) > NOISE)]
    return float((confident > 0).mean()) if len(confident) > 20 else None


@cause(
    needs_ledger=True,
    needs=_NEEDS,
    needs_one_policy=True,
    change="Check the weight sync: compare the sampler's log-probs of its own tokens with the trainer's after "
    "every sync (column step.sync_error); look for tied embeddings, a cached copy, a sync that failed silently.",
    test=sql("SELECT step, avg(mismatch), max(mismatch_max) FROM minibatch", "GROUP BY step"),
)
def stale_weights(log: Log) -> Clue | None:
    """The sampler runs on old weights."""
    found = gap(log)
    if found is None or temperature.look(log) is not None or (found.growth < GROWTH and found.level < 0.05):
        return None
    return Clue.of(
        "sign", 0.9 if found.growth >= GROWTH else 0.6, "minibatch.mismatch", found.step, found.level, found.usual,
        f"from step {found.step} on the sampler disagrees with the policy that should have sampled, by "
        f"{found.level:.3g} nats a token on average, and the gap has grown {found.growth:.1f} times since: it falls "
        "behind as the policy moves",
    )  # fmt: skip


@cause(
    needs=(*_NEEDS, "token.log_prob_behaviour", "token.log_prob_old"),
    needs_one_policy=True,
    change="Divide the trainer's logits by the sampler's temperature (and apply its top-k or top-p to neither), or "
    "sample at 1.",
    test="--set engine.temperature=1.0",
)
def temperature(log: Log) -> Clue | None:
    """Sampling and log-probs use different temperatures."""
    found = gap(log)
    if found is None or found.sharper is None:
        return None
    one_way = max(found.sharper, 1.0 - found.sharper)
    if one_way < 0.9 or found.level < 0.01:
        return None
    direction = "sharper (temperature below the trainer's)" if found.sharper > 0.5 else "flatter (temperature above it)"
    return Clue.of(
        "sign", 0.9 if found.growth < GROWTH else 0.6, "minibatch.mismatch", found.step, found.level, found.usual,
        f"from step {found.step} on the sampler's distribution is {direction}: of the tokens that the trainer finds "
        f"likely, {100 * one_way:.0f} % differ in the same direction, by {found.level:.3g} nats a token on average",
    )  # fmt: skip


@cause(
    needs=("token.log_prob_behaviour", "token.entropy"),
    change="Have the sampler report log-probs after temperature, top-k and top-p (vLLM: logprobs_mode = "
    "processed_logprobs), and let the trainer apply the same temperature.",
    test="--set engine.temperature=1.0",
)
def temperature_hidden(log: Log) -> Clue | None:
    """Tokens are sampled at another temperature than their log-probs report.

    Under the policy itself the mean of -log p over its own samples is its entropy; drawn hotter, it is more.
    """
    if gap(log) is not None:
        return None
    clue = _of_good_ones(log) or _of_transcripts(log)
    # A policy that has collapsed is another one from step to step, and its data are of none of them.
    return None if clue is None or (log.certain is not None and clue.step > log.certain) else clue


def _of_good_ones(log: Log) -> Clue | None:
    """The same of tokens with a positive advantage, while success lasts: a policy that is right is rarely surprised."""
    # Updates that leave the data behind make its tokens rarer as well: what they were before is what was drawn.
    drawn = log.series("minibatch", "log_prob_positive") - log.series("minibatch", "displacement_positive")
    surprise = (-drawn - log.series("step", "entropy")).dropna()
    surprise = surprise[~surprise.index.isin(log.rescored.union(_wrong(log)))]
    rise = first(surprise, "above", points=3, margin=5.0, least=0.03)
    return rise and Clue.of(
        "sign", 0.8, "minibatch.log_prob_positive", rise.step, rise.value, rise.usual,
        f"from step {rise.step} on the tokens of rewarded trajectories are rarer than the policy's entropy allows: "
        f"-log p exceeds it by {rise.value:.3g} nats a token, where {rise.usual:.3g} was usual; sampler and trainer "
        "agree about them, so they were drawn from something else than they were scored by",
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
    best, cut = 0.0, None
    for at in np.unique(surprise["step"])[FEWEST:-FEWEST]:
        late = surprise["step"] >= at
        past, since = surprise.loc[~late, "excess"], surprise.loc[late, "excess"]
        error = np.hypot(past.std() / np.sqrt(len(past)), since.std() / np.sqrt(len(since)))
        score = float((since.mean() - past.mean()) / max(error, 1e-9))
        if cut is None or abs(score) > abs(best):
            best, cut = score, (int(at), past.mean(), since.mean())
    if cut is None or abs(best) < HIDDEN:
        return None
    step, usual, now = cut
    way = "rarer (temperature above the trainer's)" if best > 0 else "likelier (temperature below it)"
    return Clue.of(
        "sign", 0.8, "token.log_prob_behaviour", step, float(now), float(usual),
        f"from step {step} on the sampled tokens are {way} than the log-probs allow that come with them: -log p "
        f"exceeds the entropy by {now:.3g} nats a token, where {usual:.3g} was usual "
        f"({abs(best):.1f} standard errors); both sides agree about the tokens, so no ratio shows it",
    )  # fmt: skip


def _surprise(frame: pd.DataFrame) -> pd.DataFrame:
    """Step and mean of -log p_mu - H over the policy's tokens of each transcript whose H is still the sampler's."""
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
    return pd.DataFrame(rows, columns=["step", "excess"])


def _mean(values: np.ndarray) -> float:
    """Mean of the finite values; NaN without one."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


@cause(
    without={"engine.dtype": "float32"},
    needs_ledger=True,
    severity="warning",
    needs=_NEEDS,
    needs_one_policy=True,
    change="Sample in the trainer's precision, or correct for it (rollout correction: tis, mis, icepop), or take old "
    "log-probs from the sampler.",
    test='--set engine.dtype="float32"',
)
def low_precision(log: Log) -> Clue | None:
    """The sampler computes in lower precision than the trainer."""
    found = gap(log)
    if found is None or found.growth >= GROWTH or found.level >= 0.05 or temperature.look(log) is not None:
        return None
    if found.usual is None and log.settings.get("engine.dtype") not in (None, "float32"):
        return None  # as configured, and as it was from the first step on
    return Clue.of(
        "sign", 0.85, "minibatch.mismatch", found.step, found.level, found.usual,
        f"from step {found.step} on sampler and trainer disagree by {found.level:.2g} nats a token, to both sides and "
        "no more with time: rounding, as of a sampler in lower precision",
    )  # fmt: skip
