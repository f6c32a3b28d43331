"""The sampler differs from the policy: in its log-probs, or in what it draws."""

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
    since = series[series.index >= start]
    past = before(series, start)
    head = float(since.iloc[:2].mean())
    tail = float(since.iloc[-max(2, len(since) // 3) :].mean())
    level = float(since.mean())
    growth = tail / max(head, 1e-12)
    sharper = _sharper(log, start)
    one_way = max(sharper, 1.0 - sharper)
    if one_way >= 0.9 and level >= 0.01:
        direction = (
            "sharper (temperature below the trainer's)" if sharper > 0.5 else "flatter (temperature above it)"
        )
        name = "temperature"
        confidence = 0.9 if growth < GROWTH else 0.6
        says = f"the sampler's distribution is {direction}: of the tokens that the trainer finds likely, "
        says += f"{100 * one_way:.0f} % differ in the same direction, by {level:.3g} nats a token on average"
    elif growth >= GROWTH or level >= 0.05:
        name = "stale_weights"
        confidence = 0.9 if growth >= GROWTH else 0.6
        says = (
            f"the sampler disagrees with the policy that should have sampled, by {level:.3g} nats a token on"
            " average"
        )
        if growth >= GROWTH:
            says += f", and the gap has grown {growth:.1f} times since: it falls behind as the policy moves"
    else:
        dtypes = {log.settings.get("engine.dtype"), log.settings.get("compute.dtype")}
        configured = past is None and bool(dtypes - {None, "float32"})
        name = "as configured" if configured else "low_precision"
        confidence = 0.85
        says = (
            f"sampler and trainer disagree by {level:.2g} nats a token, to both sides and no more with time: "
        )
        says += "rounding, as of a sampler in lower precision"
    return {name: Clue.since("sign", confidence, Evidence("minibatch.mismatch", start, level, past), says)}


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
    old, behaviour, trained = (np.concatenate([np.asarray(x, float) for x in rows[name]]) for name in names)
    known = np.isfinite(old) & np.isfinite(behaviour) & (trained > 0)
    difference = (behaviour - old)[known]
    old = old[known]
    confident = difference[(old > np.log(0.5)) & (np.abs(difference) > batch.NOISE)]
    few = len(old) < 50 or difference.std() == 0 or len(confident) <= 20
    return 0.5 if few else float((confident > 0).mean())


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
    names = ("log_prob_behaviour", "entropy", "trained")
    rows = []
    kept = log.transcripts(*names, "log_prob")
    if kept.empty:
        kept = log.transcripts(*names).assign(log_prob=None)
    kept = kept[~kept["step"].isin(log.rescored)]
    for step, drawn, entropy, trained, now in zip(
        *(kept[name] for name in ("step", *names, "log_prob")), strict=True
    ):
        mask = np.asarray(trained, bool)
        log_prob = np.asarray(drawn, float)[mask]
        excess = np.ma.masked_invalid(-log_prob - np.asarray(entropy, float)[mask])
        moved = np.ma.masked_invalid([0.0] if now is None else np.asarray(now, float)[mask] - log_prob)
        if excess.count() and moved.count() and np.abs(moved.compressed()).mean() <= AGREE:
            rows.append((int(step), float(excess.compressed().mean())))
    # Mean of -log p_mu - H over the policy's tokens of each transcript whose H is still the sampler's.
    surprise = pd.DataFrame(rows, columns=["step", "excess"])
    # the best of all places to cut the run in two
    best = 0.0
    cut = None
    for at in np.unique(surprise["step"])[FEWEST:-FEWEST]:
        late = surprise["step"] >= at
        past = surprise.loc[~late, "excess"]
        since = surprise.loc[late, "excess"]
        error = np.hypot(past.std() / np.sqrt(len(past)), since.std() / np.sqrt(len(since)))
        score = float((since.mean() - past.mean()) / max(error, 1e-9))
        if cut is None or abs(score) > abs(best):
            best = score
            cut = (int(at), past.mean(), since.mean())
    if cut is None or abs(best) < HIDDEN:
        return None
    at, usual, level = cut
    way = "rarer (temperature above the trainer's)" if best > 0 else "likelier (temperature below it)"
    says = (
        f"the sampled tokens are {way} than the log-probs allow that come with them: -log p exceeds the"
        " entropy by "
    )
    says += (
        f"{level:.3g} nats a token, where {usual:.3g} was usual ({abs(best):.1f} standard errors); both"
        " sides "
    )
    shown = Evidence("token.log_prob_behaviour", at, float(level), float(usual))
    return Clue.since("sign", 0.8, shown, f"{says}agree about the tokens, so no ratio shows it")


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
