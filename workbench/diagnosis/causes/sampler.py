"""The sampler differs from the policy: in its log-probs, or in what it draws."""

from typing import NamedTuple, Self

import numpy as np
import pandas as pd

from sorl.diagnosis.causes import batch
from sorl.diagnosis.changepoint import Evidence, before, first
from sorl.diagnosis.finding import Clue, among, cause, sql
from sorl.diagnosis.gap import told_apart
from sorl.diagnosis.log import Log

GROWTH = 2.0  # of the disagreement from its first steps to its last ones, from which it is called growing
HIDDEN = 4.5  # standard errors, at the best of all places to cut the run in two
FEWEST = 4  # steps on either side of that cut
# nats a token; where the updates took the policy farther from its sampler, the excess may be theirs
AGREE = 0.1
# share of a mixture's choices: a sampler in bfloat16 differs from a trainer in float32 in at most .017
ROUTES = 0.02
# Of those for each nat between the log-probs, set on seed 1 of experiments/moe_lab.toml. On the others old
# weights and bfloat16 samplers came to 2 to 6, perturbed routers to 13 to 23; rounded weights to 3 to 12, all
# of them below ROUTES.
ROUTES_A_NAT = 7.0
# of the success that was usual: with less, what a critic finds better than expected need not be right
RIGHT = 0.5
_NEEDS = ("minibatch.mismatch",)
_SAMPLER = (
    "sampler_weights",
    "behaviour_log_probs",
    "sampling",
    "sampled_entropy",
)  # identities that a sampler with another policy violates


def parted(log: Log) -> dict[str, Clue]:
    """Return the clue of why sampler and trainer disagree, by the cause that fits; nothing
    where they agree.

    Another trainer's run has no fault lab behind it and more ways to part: `gap.told_apart` reads it.
    """
    if log.is_recorded and log.measured("minibatch", "gap"):
        return told_apart(log)
    series = log.series("minibatch", "mismatch")
    series = series[~series.index.isin(log.rescored)]
    start = _rises(series, batch.NOISE)
    single = (
        log.measured("minibatch", "mismatch_max", "tokens") and batch.corrupt_log_prob.look(log) is not None
    )
    if start is None or single:
        return {}
    gap = _Gap.since(series, start)
    sharper = _sharper(log, start)
    one_way = max(sharper, 1.0 - sharper)
    if one_way >= 0.9 and gap.level >= 0.01:
        reading = _temperature(gap, one_way, is_sharper=sharper > 0.5)
    elif gap.growth >= GROWTH or gap.level >= 0.05:
        reading = _stale_weights(gap)
    else:
        reading = _low_precision(gap, log)
    evidence = Evidence("minibatch.mismatch", start, gap.level, gap.before)
    return {reading.cause: Clue.since("sign", reading.confidence, evidence, reading.says)}


class _Gap(NamedTuple):
    """The disagreement of sampler and trainer since it began, nats a token."""

    level: float  # on average
    growth: float  # its end over its beginning
    before: float | None  # usual before

    @classmethod
    def since(cls, series: pd.Series, start: int) -> Self:
        """The gap from step `start` on."""
        since = series[series.index >= start]
        head = float(since.iloc[:2].mean())
        tail = float(since.iloc[-max(2, len(since) // 3) :].mean())
        return cls(float(since.mean()), tail / max(head, 1e-12), before(series, start))


class _Reading(NamedTuple):
    """Why sampler and trainer disagree."""

    cause: str
    confidence: float
    says: str


def _temperature(gap: _Gap, one_way: float, *, is_sharper: bool) -> _Reading:
    """Likely tokens differ in one direction: the sampler has another temperature."""
    direction = (
        "sharper (temperature below the trainer's)" if is_sharper else "flatter (temperature above it)"
    )
    says = (
        f"the sampler's distribution is {direction}: of the tokens that the trainer finds likely, "
        f"{100 * one_way:.0f} % differ in the same direction, by {gap.level:.3g} nats a token on average"
    )
    return _Reading("temperature", 0.9 if gap.growth < GROWTH else 0.6, says)


def _stale_weights(gap: _Gap) -> _Reading:
    """The gap is wide, or grows: the sampler has earlier weights."""
    says = (
        f"the sampler disagrees with the policy that should have sampled, by {gap.level:.3g} nats a token on"
        " average"
    )
    if gap.growth < GROWTH:
        return _Reading("stale_weights", 0.6, says)
    grown = f", and the gap has grown {gap.growth:.1f} times since: it falls behind as the policy moves"
    return _Reading("stale_weights", 0.9, says + grown)


def _low_precision(gap: _Gap, log: Log) -> _Reading:
    """The gap is small and to both sides: rounding, which the settings may ask for."""
    dtypes = {log.settings.get("engine.dtype"), log.settings.get("compute.dtype")}
    is_configured = gap.before is None and bool(dtypes - {None, "float32"})
    says = (
        f"sampler and trainer disagree by {gap.level:.2g} nats a token, to both sides and no more with time: "
        "rounding, as of a sampler in lower precision"
    )
    return _Reading("as configured" if is_configured else "low_precision", 0.85, says)


def _rises(series: pd.Series, floor: float) -> int | None:
    """Return the first of two steps in a row that lie above `floor`, and well above what was usual before."""
    values = series.to_numpy()
    usual = np.array([np.median(values[:i]) if i else 0.0 for i in range(len(values) - 1)])
    above = np.flatnonzero(np.minimum(values[:-1], values[1:]) > np.maximum(floor, batch.RISE * usual))
    return int(series.index[above[0]]) if len(above) else None


def _sharper(log: Log, start: int) -> float:
    """Share of the confident tokens (p_old > 1/2) that the sampler found likelier; a half where too few are
    known.
    """
    names = ("log_prob_old", "log_prob_behaviour", "trained")
    frame = log.transcripts(*names)
    rows = frame[(frame["step"] >= start) & ~frame["step"].isin(log.rescored)]
    if rows.empty:
        return 0.5
    old, behaviour, trained = (_joined(rows[name]) for name in names)
    known = np.isfinite(old) & np.isfinite(behaviour) & (trained > 0)
    difference = (behaviour - old)[known]
    old = old[known]
    confident = difference[(old > np.log(0.5)) & (np.abs(difference) > batch.NOISE)]
    few = len(old) < 50 or difference.std() == 0 or len(confident) <= 20
    return 0.5 if few else float((confident > 0).mean())


def _joined(transcripts: pd.Series) -> np.ndarray:
    """The values of all transcripts, one after the other."""
    return np.concatenate([np.asarray(values, float) for values in transcripts])


@cause(
    *_NEEDS,
    needs_ledger=True,
    needs_one_policy=True,
    breaks=_SAMPLER,
    denied_by="behaviour_log_probs",
    explains=("stale_weights", "low_precision", "temperature", "off_policy"),
    change=(
        "Compare the routers' weights in the sampler with the trainer's, and compute them in float32 in both;"
        ' or replay the sampler\'s experts while training (slots.routing = "r3").'
    ),
    test="--set slots.routing=r3",
)
def route_mismatch(log: Log) -> Clue | None:
    """The sampler's routers choose other experts than the trainer's.

    Weights that are old or rounded change log-probs as much as routes; routers that differ change routes
    above all. A dense model has no routes, and the question does not arise.
    """
    routes = log.series("minibatch", "route_mismatch_frac")
    if routes.empty and log.is_recorded:
        return parted(log).get("route_mismatch")
    routes = routes[~routes.index.isin(log.rescored)]
    if (start := _rises(routes, ROUTES)) is None:
        return None
    level = float(routes[routes.index >= start].mean())
    nats = log.series("minibatch", "mismatch")
    apart = float(nats[nats.index.isin(routes.index) & (nats.index >= start)].mean())
    if not level > ROUTES_A_NAT * apart:
        return None
    says = (
        f"{100 * level:.0f} % of the sampler's choices of experts are not those of the trainer's routers at"
        " the "
    )
    says += (
        f"same weights, while the log-probs of its tokens differ by {apart:.2g} nats only: the routers"
        " differ, not "
    )
    shown = Evidence("minibatch.route_mismatch_frac", start, level, before(routes, start))
    return Clue.since("sign", 0.95, shown, f"{says}the age or the rounding of all weights")


stale_weights = among(
    parted,
    "stale_weights",
    "The sampler runs on old weights",
    needs=_NEEDS,
    needs_ledger=True,
    needs_one_policy=True,
    breaks=_SAMPLER,
    denied_by="behaviour_log_probs",
    change=(
        "Check the weight sync: compare the sampler's log-probs of its own tokens with the trainer's after"
        " every sync (column step.sync_error); look for tied embeddings, a cached copy, a sync that failed"
        " silently."
    ),
    test=sql("SELECT step, avg(mismatch), max(mismatch_max) FROM minibatch", "GROUP BY step"),
)
temperature = among(
    parted,
    "temperature",
    "Sampling and log-probs use different temperatures",
    needs=(*_NEEDS, "token.log_prob_behaviour", "token.log_prob_old"),
    needs_one_policy=True,
    breaks=_SAMPLER,
    denied_by="behaviour_log_probs",
    change=(
        "Divide the trainer's logits by the sampler's temperature (and apply its top-k or top-p to neither),"
        " or sample at 1."
    ),
    test="--set engine.temperature=1.0",
)


@cause(
    "token.log_prob_behaviour",
    "token.entropy",
    defined_by="sampling",
    holds="behaviour_log_probs",
    change=(
        "Have the sampler report log-probs after temperature, top-k and top-p (vLLM: logprobs_mode = "
        "processed_logprobs), and let the trainer apply the same temperature."
    ),
    test="--set engine.temperature=1.0",
)
def temperature_hidden(log: Log) -> Clue | None:
    """Tokens are sampled at another temperature than their log-probs report.

    Under the policy itself the mean of -log p over its own samples is its entropy; drawn hotter, it is more.
    """
    if parted(log):
        return None
    clue = _of_good_ones(log) or _of_transcripts(log)
    # A policy that has collapsed is another one from step to step, and its data are of none of them.
    return None if clue is None or (log.certain is not None and clue.step > log.certain) else clue


def _of_good_ones(log: Log) -> Clue | None:
    """The same of tokens with a positive advantage, while success lasts: a policy that is right is rarely
    surprised.
    """
    # Updates that leave the data behind make its tokens rarer as well: what they were before is what was
    # drawn.
    drawn = log.series("minibatch", "log_prob_positive") - log.series("minibatch", "displacement_positive")
    surprise = (-drawn - log.series("step", "entropy")).dropna().rename("minibatch.log_prob_positive")
    skipped = log.rescored
    if log.measured("minibatch", "value_loss"):  # of a critic, which finds tokens good without a reward
        success = log.series("step", "success")
        skipped = skipped.union(success.index[success < RIGHT * success.expanding().median().cummax()])
    surprise = surprise[~surprise.index.isin(skipped)]
    rise = first(surprise, "above", points=3, margin=5.0, least=0.03)
    if rise is None:
        return None
    says = (
        "the tokens of rewarded trajectories are rarer than the policy's entropy allows: -log p exceeds"
        " it by "
    )
    says += (
        f"{rise.value:.3g} nats a token, where {rise.usual:.3g} was usual; sampler and trainer agree about"
        " them, "
    )
    return Clue.since(
        "sign", 0.8, rise, f"{says}so they were drawn from something else than they were scored by"
    )


def _of_transcripts(log: Log) -> Clue | None:
    if log.settings.get("record.tokens") == 1:
        # the only transcript of a step is the one that weighs most in its gradient: its tokens are rare
        return None
    cut = _best_cut(_surprise(log))
    if cut is None or abs(cut.score) < HIDDEN:
        return None
    way = "rarer (temperature above the trainer's)"
    if cut.score <= 0:
        way = "likelier (temperature below it)"
    says = (
        f"the sampled tokens are {way} than the log-probs allow that come with them: -log p exceeds the"
        f" entropy by {cut.level:.3g} nats a token, where {cut.usual:.3g} was usual ({abs(cut.score):.1f}"
        " standard errors); both sides agree about the tokens, so no ratio shows it"
    )
    evidence = Evidence("token.log_prob_behaviour", cut.step, float(cut.level), float(cut.usual))
    return Clue.since("sign", 0.8, evidence, says)


def _surprise(log: Log) -> pd.DataFrame:
    """Mean of -log p_mu - H over the policy's tokens of each transcript whose H is still the sampler's."""
    names = ("log_prob_behaviour", "entropy", "trained")
    transcripts = log.transcripts(*names, "log_prob")
    if transcripts.empty:
        transcripts = log.transcripts(*names).assign(log_prob=None)
    transcripts = transcripts[~transcripts["step"].isin(log.rescored)]
    rows = []
    for step, drawn, entropy, trained, now in zip(
        *(transcripts[name] for name in ("step", *names, "log_prob")), strict=True
    ):
        mask = np.asarray(trained, bool)
        log_prob = np.asarray(drawn, float)[mask]
        excess = np.ma.masked_invalid(-log_prob - np.asarray(entropy, float)[mask])
        moved = np.ma.masked_invalid([0.0] if now is None else np.asarray(now, float)[mask] - log_prob)
        if excess.count() and moved.count() and np.abs(moved.compressed()).mean() <= AGREE:
            rows.append((int(step), float(excess.compressed().mean())))
    return pd.DataFrame(rows, columns=["step", "excess"])


class _Cut(NamedTuple):
    """A step at which the surprise of the tokens changes, nats a token."""

    score: float  # rise in standard errors
    step: int
    usual: float  # before
    level: float  # from the step on


def _best_cut(surprise: pd.DataFrame) -> _Cut | None:
    """The best of all places to cut the run in two; None where it is too short for any."""
    best = None
    for at in np.unique(surprise["step"])[FEWEST:-FEWEST]:
        late = surprise["step"] >= at
        past = surprise.loc[~late, "excess"]
        since = surprise.loc[late, "excess"]
        error = np.hypot(past.std() / np.sqrt(len(past)), since.std() / np.sqrt(len(since)))
        score = float((since.mean() - past.mean()) / max(error, 1e-9))
        if best is None or abs(score) > abs(best.score):
            best = _Cut(score, int(at), past.mean(), since.mean())
    return best


low_precision = among(
    parted,
    "low_precision",
    "The sampler computes in lower precision than the trainer",
    severity="warning",
    needs=_NEEDS,
    needs_ledger=True,
    needs_one_policy=True,
    breaks=_SAMPLER,
    denied_by="behaviour_log_probs",
    without={"engine.dtype": "float32"},
    change=(
        "Sample in the trainer's precision, or correct for it (rollout correction: tis, mis, icepop), or take"
        " old log-probs from the sampler."
    ),
    test='--set engine.dtype="float32"',
)
