"""The identities of a stored step: what must be equal if the trainer did what it says.

Order: from the question to the optimizer, so that the first violation is the one nearest to its cause.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from sorl.audit.case import EXACT, Case, Owner, explain
from sorl.diagnostics.evidence import Missing
from sorl.learn.networks import critic_values
from sorl.objective import prepare
from sorl.objective.advantage import positions, value_loss
from sorl.objective.select import EarlyStop, Schedule
from sorl.replay.networks import Draws
from sorl.replay.play import weigh
from sorl.spec import first_paragraph
from sorl.spec.evidence import Check

# share of a step's length, between the weights it led to and must lead to
WEIGHTS = {"float32": 0.02, "bfloat16": 0.2}
EPS = float(np.finfo(np.float32).eps)
DEVIATIONS = 6.0  # of what is random from its mean: by chance once in 5e8 steps
# least variance of a draw's place that says something of its random number: a quarter of 1/12
UNSURE = 1 / 48

OWNERS: tuple[Owner, Owner] = ("policy", "critic")

Look = Callable[[Case], Iterator[Check]]
Weights = Mapping[str, np.ndarray]  # of a network, by name


@dataclass(frozen=True)
class Identity:
    """A thing to check: what must be equal, and what it means where it is not."""

    name: str
    must: str
    means: str
    look: Look


IDENTITIES: dict[str, Identity] = {}


def identity(means: str) -> Callable[[Look], Look]:
    """Declare a generator of checks as the identity of its name; its docstring says what must be equal."""

    def declare(look: Look) -> Look:
        must = first_paragraph(look).rstrip(".")
        IDENTITIES[look.__name__] = Identity(look.__name__, must, means, look)
        return look

    return declare


# ---- sampling and scoring ----


@identity("data order, prompt template, retriever or transcript is not what the settings say")
def transcripts(case: Case) -> Iterator[Check]:
    """Prompts are the questions of the run's stream, observations what the world answers to the queries."""
    stored = case.stored
    tokens = case.world_batch.tokens.numpy()
    length = case.world_batch.length.numpy()
    width = min(tokens.shape[1], stored.tokens.shape[1])
    inside = np.arange(width) < np.maximum(length, stored.length)[:, None]
    yield case.compare(stored.tokens[:, :width], tokens[:, :width], inside)
    yield case.compare(stored.length[:, None], length[:, None])


@identity("prompts, observations or padding are trained on, or turns are shifted")
def loss_mask(case: Case) -> Iterator[Check]:
    """The loss mask is what the policy wrote."""
    logged = case.stored.mask_sampled
    written = case.world_batch.mask.numpy()[:, : logged.shape[1]]
    yield case.compare(logged, np.pad(written, ((0, 0), (0, logged.shape[1] - written.shape[1]))))


@identity("rewards are noisy, shifted, exchanged, inverted or paid for something else")
def reward(case: Case) -> Iterator[Check]:
    """The reward is the world's score of the answer in the transcript."""
    yield case.compare(case.stored.score[:, None], case.world_batch.score[:, None], tolerance=1e-6)


@identity("another temperature, precision or policy sampled than the log says")
def behaviour_log_probs(case: Case) -> Iterator[Check]:
    """The sampler's log-probs are those of the policy that sampled."""
    logged = case.stored.log_prob_behaviour
    at = case.sampled_at
    if logged is None:
        raise Missing("the sampler's log-probs")
    yield case.compare(logged, case.log_probs_at(at), case.stored.mask_sampled, case.nats(at, sampler=True))


@identity(
    "tokens were drawn from another distribution than that of their log-probs (temperature, top-k, top-p)"
)
def sampling(case: Case) -> Iterator[Check]:
    """Sampled tokens are as likely as tokens of the policy are on average."""
    draws = case.draws
    mask = case.stored.mask_sampled
    spread = math.sqrt(float(draws.excess_variance[mask].sum()))
    z = float(draws.excess[mask].sum()) / spread if spread else 0.0
    says = (
        f"they were drawn from something {'flatter' if z < 0 else 'sharper'}" if abs(z) > DEVIATIONS else ""
    )
    yield Check(gap=abs(z), tolerance=DEVIATIONS, logged=z, expected=0.0, says=says, weight=spread)


@identity("rows were drawn with the same random numbers")
def independence(case: Case) -> Iterator[Check]:
    """Tokens are drawn independently of each other."""
    draws = case.draws
    mask = case.stored.mask_sampled
    column = np.broadcast_to(np.arange(mask.shape[1]), mask.shape)
    begins = mask & ~np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
    in_turn = column - np.maximum.accumulate(np.where(begins, column, 0), axis=1)
    for together, words in ((column, "position"), (in_turn, "place in the turn")):
        z = dependence(draws, mask, together)
        says = f"draws at one {words} go together" if abs(z) > DEVIATIONS else ""
        yield Check(gap=abs(z), tolerance=DEVIATIONS, logged=z, expected=0.0, says=says)


def dependence(draws: Draws, mask: np.ndarray, together: np.ndarray) -> float:
    """Return how many deviations the draws (B, T) of each value of `together` are from independent ones.

    Q = sum over groups of (sum of places)^2 is the sum of all variances on average, and about a scaled
    chi-square: by Wilson and Hilferty's cube root a normal number. Draws that were all but certain are left
    out.
    """
    unsure = mask & (draws.place_variance > UNSURE)
    if not unsure.any():
        return 0.0
    sums, variance = (np.bincount(together[unsure], x[unsure]) for x in (draws.place, draws.place_variance))
    # 2 / 9 of one over the degrees of freedom
    share = float(np.square(variance).sum() / variance.sum() ** 2) / 4.5
    return float((np.cbrt(np.square(sums).sum() / variance.sum()) - 1 + share) / math.sqrt(share))


# ---- log-probs, values, advantages ----


@identity("the ratio's denominator is another policy's, or corrupt")
def old_log_probs(case: Case) -> Iterator[Check]:
    """Old log-probs are those of the proximal policy."""
    stored = case.stored
    kind = case.settings.learn.old_log_prob
    at = stored.step if kind == "update" else case.sampled_at
    expected = stored.log_prob_behaviour if kind == "behaviour" else case.log_probs_at(at)
    tolerance = EXACT if kind == "behaviour" else case.nats(at)
    yield case.compare(stored.log_prob_old, expected, stored.mask_sampled, tolerance)


@identity("the KL term pulls towards another model")
def reference_log_probs(case: Case) -> Iterator[Check]:
    """Reference log-probs are those of the warm start."""
    stored = case.stored
    if stored.log_prob_ref is not None:
        yield case.compare(
            stored.log_prob_ref, case.log_probs_at(0, replay=False), stored.mask_sampled, case.nats(0)
        )


@identity("the critic is read elsewhere, or another one is")
def values(case: Case) -> Iterator[Check]:
    """Values are the critic's, each of the state before its token."""
    stored = case.stored
    if stored.values is None:
        return
    at = stored.step if case.settings.learn.old_values == "update" else case.sampled_at
    expected = critic_values(case.networks(at).critic, case.loaded.batch, case.networks(at).compute)
    inside = (stored.response | stored.mask_sampled) & (
        np.arange(stored.tokens.shape[1]) < stored.length[:, None]
    )
    yield case.compare(stored.values, expected, inside, case.value_tolerance(at))


@identity("advantages are mixed up, scaled or normalised wrongly")
def advantages(case: Case) -> Iterator[Check]:
    """Advantages are made of the stored rewards, values and groups."""
    made = case.loaded.estimated(case.own)
    stored = case.stored
    kept = made.mask.numpy()
    expected = made.need("advantages").numpy()
    tolerance = 1e-4 * max(1.0, float(np.abs(np.where(kept, expected, 0)).max()))
    yield case.compare(stored.advantages, expected, kept & stored.mask, tolerance)
    yield case.compare(stored.mask, kept)


@identity("the critic learns another target")
def returns(case: Case) -> Iterator[Check]:
    """Returns are advantages before whitening plus values."""
    made = prepare(case.own, case.loaded.batch)
    if case.stored.returns is None or made.returns is None:
        return
    where = positions(replace(made, turn_id=None), case.own.advantage.critic_mask).numpy()
    tolerance = 1e-4 * max(1.0, float(made.returns.abs().max()))
    yield case.compare(case.stored.returns, made.returns, where, tolerance)


# ---- the updates ----


@identity("minibatches repeat or leave out sequences")
def order(case: Case) -> Iterator[Check]:
    """Each epoch trains on every sequence once."""
    stored = case.stored
    learn = case.settings.learn
    if case.own.schedule != Schedule():
        raise Missing("the parts of the schedule")
    broken = any(update.scalars.get("non_finite") for update in stored.updates)
    may_end = broken or learn.target_kl is not None or case.own.early_stop != EarlyStop()
    for epoch in range(learn.epochs):
        rows = [update.rows for update in stored.updates if update.epoch == epoch]
        counts = np.bincount(
            np.concatenate([*rows, np.zeros(0, int)]).astype(int), minlength=len(stored.tokens)
        )
        once = np.ones_like(counts)
        expected = np.minimum(counts, once) if may_end and len(rows) < learn.minibatches else once
        yield case.compare(counts[:, None], expected[:, None], says=f"in epoch {epoch}")


@identity("rows lost their masks, advantages or old log-probs on the way to an update, or have others'")
def minibatches(case: Case) -> Iterator[Check]:
    """Each update trains on rows of the batch as the batch has them."""
    stored = case.stored
    if case.own.schedule != Schedule():
        raise Missing("the parts of the schedule")
    for update in stored.updates:
        for name in ("mask", "advantages", "log_prob_old"):
            trained = getattr(update, name)
            batch = getattr(stored, name)
            if trained is None or batch is None:
                continue  # the same as the batch's, and not stored twice
            found = explain(trained, batch[update.rows], stored.mask[update.rows], EXACT)
            rows = tuple(int(stored.trajectory[update.rows[row]]) for row in found.trajectories)
            says = found.says or ("their " + name.replace("_", " ") if found.violated else "")
            yield replace(found, update=update.index, trajectories=rows, says=says)
        if all(getattr(update, name) is None for name in ("mask", "advantages", "log_prob_old")):
            yield Check(update=update.index, gap=0.0, tolerance=EXACT, logged=0.0, expected=0.0)


@identity("the loss has another scale, sign, mask or clip")
def loss(case: Case) -> Iterator[Check]:
    """The loss is that of the stored log-probs and advantages."""
    for update in case.stored.updates:
        terms, _, _ = weigh(case.own, case.loaded.minibatch(case.own, update), case.loaded, update)
        # The mean of advantages of both signs is near 0: rounding is a share of their size, not of the mean.
        size = float(torch.where(terms.mask, terms.token_loss.abs(), 0).max())
        for name, says in (("policy_loss", ""), ("kl_loss", "KL term")):
            logged = update.scalars.get(name)
            expected = float(getattr(terms, name))
            yield case.number(logged, expected, least=1e-5 * max(1e-3, size), says=says, update=update.index)


@identity("the backward pass lost or added something: a frozen layer, a scale, an accumulation")
def gradient(case: Case) -> Iterator[Check]:
    """The gradient is that of the loss."""
    yield from case.retaken_updates("policy").gradients


@identity("clipping of the gradient norm is off, or another bound acts")
def gradient_clip(case: Case) -> Iterator[Check]:
    """The step is along the gradient, shortened to the bound."""
    limit = case.settings.learn.policy.max_grad_norm or math.inf
    for update in case.stored.updates:
        before = update.scalars.get("grad_norm")
        after = update.scalars.get("grad_norm_after")
        if before is not None and math.isfinite(before) and not after == 0 < before:
            yield case.number(after, min(before, limit), update=update.index)


@identity("the schedule is not the configured one")
def learning_rate(case: Case) -> Iterator[Check]:
    """The learning rate is the schedule's."""
    if case.settings.match is not None:
        raise Missing("the learning rate of the matched run")
    for update in case.stored.updates:
        lr = update.scalars.get("lr")
        least = 1e-6 * case.settings.learn.policy.lr
        yield case.number(lr, case.rate("policy", update.index), 1e-6, least=least, update=update.index)


@identity("a step was not taken, or taken elsewhere")
def log_probs(case: Case) -> Iterator[Check]:
    """Each update starts from the weights that the update before left."""
    retaken = case.retaken_updates("policy")
    yield from retaken.begins
    if retaken.missing:
        raise Missing(retaken.missing)


@identity("the critic is trained on other targets or with another scale")
def critic_loss(case: Case) -> Iterator[Check]:
    """The critic's loss is that of its values and returns."""
    if case.stored.values is None or case.stored.returns is None:
        return
    for update in case.stored.updates:
        if update.values is None:
            raise Missing("the critic's values in each update")
        made = torch.from_numpy(update.values)
        where = case.own.advantage.critic_mask
        expected = float(value_loss(made, case.rows(update), case.settings.learn.value_clip, where))
        yield case.number(update.scalars.get("value_loss"), expected, 0.01, update=update.index)


@identity("the critic's backward pass lost or added something, or a step was not taken")
def critic_gradient(case: Case) -> Iterator[Check]:
    """The critic's gradient is that of its loss, at the weights that the update before left."""
    if case.stored.values is None or case.stored.returns is None:
        return
    retaken = case.retaken_updates("critic")
    yield from (*retaken.begins, *retaken.gradients)
    if retaken.missing:
        raise Missing(retaken.missing)


@identity(
    "the optimizer took another step: a layer is frozen, its state was lost, a rate differs, weights were"
    " loaded"
)
def weights(case: Case) -> Iterator[Check]:
    """The weights of the next step are those that the updates lead to."""
    stored = case.stored
    after = case.read(case.stored.step + 1)
    if after is None or not after.weights or not stored.weights:
        raise Missing(f"the weights of step {stored.step + 1}")
    missing = ""
    owners = OWNERS if case.networks(stored.step).critic else OWNERS[:1]
    for owner in owners:
        retaken = case.retaken_updates(owner)
        network = getattr(retaken.networks, owner)
        made = {f"{owner}.{name}": weight.detach().numpy() for name, weight in network.named_parameters()}
        still = [k for k, w in after.weights.items() if k in made and (w == stored.weights[k]).all()]
        length = {k: float(np.linalg.norm(made[k] - stored.weights[k])) for k in still}
        if still := [k for k in still if length[k] > EPS * np.linalg.norm(stored.weights[k])]:
            says = "these weights did not move in the step"
            yield Check(gap=float(len(still)), tolerance=0.0, logged=0.0, says=says, layers=tuple(still[:4]))
        elif not retaken.missing:
            yield moved(stored.weights, made, after.weights, WEIGHTS[case.settings.compute.dtype])
        missing = missing or retaken.missing
    if missing:
        raise Missing(missing)


def moved(start: Weights, made: Weights, after: Weights, share: float) -> Check:
    """Compare the weights after a step with those that it must lead to (`made`), to a `share` of its length.

    Rounding has no direction: along the d weights lies 1 / sqrt(d) of its length. So another decay of the
    weights shows there long before it shows in all.
    """
    rest = {name: after[name] - array for name, array in made.items()}
    size, length, gap = (
        math.sqrt(sum(float(np.square(array, dtype=float).sum()) for array in arrays))
        for arrays in (
            [start[k] for k in made],
            [array - start[k] for k, array in made.items()],
            rest.values(),
        )
    )
    tolerance = share * length + EPS * size
    inner = sum(float(np.vdot(array, start[name])) for name, array in rest.items())
    along = abs(inner) / size
    part = DEVIATIONS / math.sqrt(sum(array.size for array in rest.values()))
    if gap <= tolerance < along / part:
        says = (
            f"the weights {'shrink' if inner < 0 else 'grow'} by {along / size:.2g} of themselves: another"
            " decay"
        )
        return Check(gap=along, tolerance=part * tolerance, logged=along, expected=0.0, says=says)
    far = sorted(
        (k for k in rest if np.linalg.norm(rest[k]) > tolerance), key=lambda k: -np.linalg.norm(rest[k])
    )
    return Check(gap=gap, tolerance=tolerance, logged=gap, expected=0.0, layers=tuple(far[:4]))


@identity("its state was lost or reset (resume, new optimizer)")
def optimizer_state(case: Case) -> Iterator[Check]:
    """The optimizer has counted the updates of the run."""
    stored = case.stored
    counted = stored.meta.get("optimizer_steps")
    updates = stored.meta.get("update")
    for part in OWNERS:
        if getattr(case.settings.learn, part).kind != "adamw" or (part == "critic" and stored.values is None):
            continue
        if counted is None or updates is None:
            raise Missing("the steps that the optimizer has counted")
        if part == "critic" or case.own.early_stop == EarlyStop():
            yield case.number(float(counted[part]), float(updates), 1e-9, layers=(part,))
