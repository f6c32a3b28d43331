"""Identities of a stored step that need neither weights nor world, so that they hold for any trainer's run.

Each compares numbers of different origin: what the sampler wrote and what was trained on, a trainer's own
metric and the tensors that it was made of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sorl.audit.comparison import EXACT, ROUNDINGS, spacing
from sorl.audit.declaration import LOSS
from sorl.audit.identities import DEVIATIONS
from sorl.audit.registry import RECORDED, identity
from sorl.measures.evidence import Missing
from sorl.objective.select import Schedule
from sorl.spec.evidence import Check
from sorl.store.batches import StoredUpdate

if TYPE_CHECKING:
    from sorl.audit.case import Case


def trained_on(case: Case, update: StoredUpdate) -> np.ndarray:
    """The tokens (b, T) that an update trained on."""
    return case.stored.mask[update.rows] if update.mask is None else update.mask


@identity(
    "prompts, observations or padding are trained on, or rows of the mask are exchanged",
    formula="loss mask[i, t] <= mask of the rollouts[i, t], and 0 beyond the end of the response",
    innocent="The trainer trains on purpose on tokens that it did not sample, such as demonstrations.",
    change=(
        "Print the tokens under the mask of one named trajectory. Follow its mask from sampling to the loss."
    ),
)
def trained_mask(case: Case) -> Iterator[Check]:
    """Only tokens that the policy wrote are trained on."""
    stored = case.stored
    allowed = stored.response & stored.mask_sampled if "mask" in case.told else stored.response
    trained = stored.mask.copy()
    for update in stored.updates:
        np.logical_or.at(trained, update.rows, trained_on(case, update))
    yield case.compare(trained, trained & allowed, says="tokens that the policy did not write")
    if "mask" not in case.told:
        raise case.declared.lacks("sampled_mask")


@identity(
    "observations between turns are trained on, or turns are lost",
    formula="stretches of ones in the loss mask of a row = turns that the world counted",
    innocent=(
        "Two turns follow each other without an observation between them, or a turn was masked on purpose."
    ),
    change="Compare the mask of one named trajectory with its transcript: `sorl diagnose RUN --step STEP`.",
    reads=RECORDED,
)
def turns(case: Case) -> Iterator[Check]:
    """A trajectory has as many trained stretches as it took turns."""
    stored = case.stored
    counted = stored.meta.get("turns")
    if counted is None:
        raise case.declared.lacks("turns")
    if "turn" in case.told:
        return  # the trainer says itself where its turns begin
    trained = np.zeros_like(stored.mask)
    for update in stored.updates:
        np.logical_or.at(trained, update.rows, trained_on(case, update))
    begins = trained & ~np.pad(trained, ((0, 0), (1, 0)))[:, :-1]
    yield case.compare(begins.sum(1)[:, None], np.array(counted)[:, None], says="stretches and turns")


@identity(
    "token ids are those of another tokenizer, or padding is counted as text",
    formula="0 <= token id < size of the vocabulary",
    innocent="The configured size leaves out tokens that were added later.",
    change="Decode one named trajectory with the tokenizer of the run. Check added tokens and padding ids.",
)
def token_ids(case: Case) -> Iterator[Check]:
    """Token ids are in the vocabulary."""
    stored = case.stored
    model = stored.meta.get("model", {})
    size = model.get("vocab_size", case.declared.config.get("vocab_size"))
    inside = np.arange(stored.tokens.shape[1]) < stored.length[:, None]
    low = np.maximum(stored.tokens, 0)
    yield case.compare(stored.tokens, low, inside, says="below 0")
    if not isinstance(size, int):
        raise case.declared.lacks("vocabulary")
    yield case.compare(stored.tokens, np.minimum(low, size - 1), inside, says="beyond the vocabulary")


@identity(
    "log-probs are no log-probs: probabilities, negative losses, or numbers of a broken forward pass",
    formula="log p <= 0 and finite at every trained token",
    innocent="The sampler reports scores of another kind on purpose.",
    change=(
        "Look at the first named trajectory. NaN comes from the forward pass, a positive number from a sign."
    ),
)
def log_prob_range(case: Case) -> Iterator[Check]:
    """Log-probs are finite and not above 0."""
    stored = case.stored
    arrays = (
        ("old", None if "log_prob_old" in stored.absent else stored.log_prob_old),
        ("the sampler's", stored.log_prob_behaviour),
        ("the reference's", stored.log_prob_ref),
    )
    for name, log_probs in arrays:
        if log_probs is not None:
            tolerance = case.stored_nats(log_probs)
            yield case.compare(log_probs, np.minimum(log_probs, 0), stored.mask, tolerance, name)
    for update in () if "log_prob" in stored.absent else stored.updates:
        where = trained_on(case, update)
        spread = np.zeros(stored.mask.shape)
        spread[update.rows] = np.where(where, update.log_prob, 0)
        tolerance = case.stored_nats(stored.log_prob_old)
        check = case.compare(spread, np.minimum(spread, 0), None, tolerance, "the policy's")
        yield replace(check, update=update.index)


@identity(
    "old log-probs are taken again inside a step, so that no clip acts, or updates do not move the weights",
    formula=(
        "log pi_old of a token is one number in all updates of a step, and not that of the present policy"
    ),
    innocent=(
        "The algorithm moves its old policy inside a step on purpose, or the first updates changed nothing."
    ),
    change=(
        "Take the old log-probs once, before the first update. Keep weights in float32 if the rate is tiny."
    ),
)
def old_log_probs_fixed(case: Case) -> Iterator[Check]:
    """Old log-probs stay what they are while a step trains."""
    case.need_told("log_prob", "log_prob_old")
    stored = case.stored
    if case.own.schedule != Schedule():
        raise Missing("an algorithm that keeps its old policy for a whole step")
    tolerance = case.stored_nats(stored.log_prob_old)
    for update in stored.updates:
        where = np.zeros(stored.mask.shape, bool)
        where[update.rows] = trained_on(case, update) & stored.mask[update.rows]
        if update.log_prob_old is not None:
            own = stored.log_prob_old.copy()
            own[update.rows] = update.log_prob_old
            check = case.compare(own, stored.log_prob_old, where, tolerance, "another number than before")
            yield replace(check, update=update.index)
        yield from _still(case, update)


def _still(case: Case, update: StoredUpdate) -> Iterator[Check]:
    """Check that an update after one that moved the weights has other log-probs than the old ones.

    Only in float32: coarser numbers may stay what they are when the weights move a little.
    """
    before = case.stored.updates[: update.index]
    moved = [_has_moved(earlier) for earlier in before]
    where = trained_on(case, update)
    if not any(moved) or not where.any() or spacing(update.log_prob[where]) > 2.0**-20:
        return
    old = case.stored.log_prob_old[update.rows] if update.log_prob_old is None else update.log_prob_old
    same = float((update.log_prob[where] == old[where]).mean())
    says = "every ratio is exactly 1 although the weights have moved" if same == 1 else ""
    yield Check(
        update=update.index,
        gap=1.0 if same == 1 else 0.0,
        tolerance=0.5,
        logged=same,
        expected=0.0,
        says=says,
    )


def _has_moved(update: StoredUpdate) -> bool:
    """Whether an update is known to have moved the weights."""
    norm = update.scalars.get("grad_norm")
    rate = update.scalars.get("lr")
    return norm is not None and math.isfinite(norm) and norm > 0 and (rate is None or rate > 0)


@identity(
    "tokens were drawn from another distribution than that of their log-probs (temperature, top-k, top-p)",
    formula=(
        "|mean(log p + H)| <= 6 sd(log p) / sqrt(tokens) + rounding, in the first update of fresh rollouts"
    ),
    innocent="You cut the distribution on purpose (top-k, top-p), or an engine of another precision sampled.",
    change="Compare the sampler's temperature, top-k and top-p with the trainer's temperature.",
    reads=RECORDED,
)
def sampled_entropy(case: Case) -> Iterator[Check]:
    """Sampled tokens are on average as likely as the policy's entropy says."""
    case.need_told("log_prob")
    stored = case.stored
    if not stored.updates:
        return
    first = stored.updates[0]
    entropy = first.scalars.get("entropy")
    if entropy is None:
        raise case.declared.lacks("entropy")
    if first.rollout_step != stored.step:
        raise Missing("rollouts of the policy that is trained")
    case.need_whole_groups()
    log_probs = first.log_prob[trained_on(case, first)].astype(float)
    if not len(log_probs):
        return
    # The variance over all tokens is at least the mean variance at a token, so the bound is a cautious one.
    rounding = EXACT + ROUNDINGS * spacing(log_probs) * max(1.0, float(np.abs(log_probs).max()))
    tolerance = DEVIATIONS * float(log_probs.std()) / math.sqrt(len(log_probs)) + rounding
    excess = float(log_probs.mean()) + entropy
    direction = "flatter" if excess < 0 else "sharper"
    says = f"they were drawn from something {direction}" if abs(excess) > tolerance else ""
    yield Check(
        update=0, gap=abs(excess), tolerance=tolerance, logged=-log_probs.mean(), expected=entropy, says=says
    )


@identity(
    "the backward pass weighs tokens in another way than the declared loss: scale, sign, mask, clip",
    formula="d L / d log pi[i, t] of the backward pass = that of the declared loss, at every trained token",
    innocent=(
        "The declared algorithm is not the one that ran, or float16 training scales its loss on purpose."
    ),
    change=(
        "Read the factor. A whole number is often the micro-batches or ranks, a fraction is often padding."
    ),
    reads=RECORDED,
)
def token_weights(case: Case) -> Iterator[Check]:
    """The gradient of each token's log-prob is that of the declared loss."""
    stored = case.stored
    if all(update.gradient_weight is None for update in stored.updates):
        raise case.declared.lacks("gradient_weight")
    case.hold_loss(*LOSS, "kl")
    for update in stored.updates:
        if update.gradient_weight is None:
            continue
        weighed = _weigh(case, update)
        logged = np.zeros(stored.mask.shape)
        expected = np.zeros(stored.mask.shape)
        where = np.zeros(stored.mask.shape, bool)
        logged[update.rows] = update.gradient_weight
        expected[update.rows] = weighed.weight
        where[update.rows] = weighed.mask & ~_undecided(case, update)
        size = float(np.abs(expected[where]).max(initial=0.0))
        coarse = max(spacing(update.gradient_weight), spacing(update.log_prob))
        check = case.compare(logged, expected, where, max(EXACT, ROUNDINGS * coarse) * size)
        yield replace(check, update=update.index)


class Weighed(NamedTuple):
    """What the declared loss does with each token of an update, (b, T)."""

    weight: np.ndarray  # d L / d log-prob
    stopped: np.ndarray  # bool, the clip stops the gradient
    dual: np.ndarray  # bool, the dual clip does
    mask: np.ndarray


def _weigh(case: Case, update: StoredUpdate, nudge: float = 0.0) -> Weighed:
    """Weigh the tokens of an update, with its log-probs off by `nudge` nats."""
    from sorl.replay.play import weigh

    moved = replace(update, log_prob=update.log_prob + np.float32(nudge))
    terms, weight, _ = weigh(case.own, case.loaded.minibatch(case.own, update), case.loaded, moved)
    stopped = (terms.active_low | terms.active_high) & terms.mask
    return Weighed(weight.numpy(), stopped.numpy(), terms.dual.numpy(), terms.mask.numpy())


def _undecided(case: Case, update: StoredUpdate) -> np.ndarray:
    """The tokens (b, T) that are so near to a bound of the clip that rounding decides about them."""
    log_probs = update.log_prob[trained_on(case, update)]
    nudge = ROUNDINGS * spacing(log_probs) * max(1.0, float(np.abs(log_probs).max(initial=0.0)))
    above = _weigh(case, update, nudge)
    below = _weigh(case, update, -nudge)
    return np.asarray((above.stopped != below.stopped) | (above.dual != below.dual))


@identity(
    "the clip acts on other ratios or other bounds than the declared ones",
    formula=(
        "clip fraction that the trainer logs = mean over micro-batches of the share of clipped tokens;"
        " where a sequence has one ratio, of clipped sequences"
    ),
    innocent="The trainer counts in another way: every ratio out of the bounds, say.",
    change="Check the bounds of the clip, and which log-probs the ratio is made of.",
    reads=RECORDED,
)
def clip_fraction(case: Case) -> Iterator[Check]:
    """The logged clip fraction is that of the stored ratios."""
    case.need_told("log_prob", "log_prob_old")
    stored = case.stored
    if all(update.scalars.get("clip_frac") is None for update in stored.updates):
        raise case.declared.lacks("clip_frac")
    case.hold_loss("ratio", "clip", "correction")
    for update in stored.updates:
        logged = update.scalars.get("clip_frac")
        if logged is None:
            continue
        weighed = _weigh(case, update)
        undecided = _undecided(case, update)
        ways = [weighed.mask]
        if case.own.ratio.level == "sequence":
            ways.append(_first_of_rows(weighed.mask))
        checks = []
        for mask in ways:
            expected = _mean_of_passes(weighed.stopped, mask, update)
            flips = _mean_of_passes(undecided, mask, update)
            checks.append(case.number(logged, expected, EXACT, least=EXACT + flips, update=update.index))
        yield min(checks, key=lambda check: check.violated)


def _first_of_rows(mask: np.ndarray) -> np.ndarray:
    """The first token under the mask of each row, (b, T): one entry for each sequence."""
    first = np.zeros_like(mask)
    rows = np.flatnonzero(mask.any(axis=1))
    first[rows, mask[rows].argmax(axis=1)] = True
    return first


def _mean_of_passes(flags: np.ndarray, mask: np.ndarray, update: StoredUpdate) -> float:
    """The mean over micro-batches of the share of trained tokens that have a flag."""
    shares = []
    start = 0
    for size in update.passes:
        rows = slice(start, start + size)
        start += size
        if mask[rows].any():
            shares.append(float(flags[rows][mask[rows]].mean()))
    return float(np.mean(shares)) if shares else 0.0
