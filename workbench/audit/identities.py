"""The identities of a stored step: what must be equal if the trainer did what it says.

Order: from the question to the optimizer, so that the first violation is the one nearest to its cause.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sorl.audit.comparison import EXACT, ROUNDINGS, Owner, explain, spacing
from sorl.audit.declaration import LOSS
from sorl.audit.registry import identity
from sorl.measures.evidence import Missing
from sorl.objective import prepare
from sorl.objective.advantage import positions, value_loss
from sorl.objective.select import EarlyStop, Schedule
from sorl.spec.evidence import Check
from sorl.tensors import torch

if TYPE_CHECKING:
    from sorl.audit.case import Case
    from sorl.replay.networks import Draws

# share of a step's length, between the weights it led to and must lead to
WEIGHTS = {"float32": 0.02, "bfloat16": 0.2}
EPS = float(np.finfo(np.float32).eps)
DEVIATIONS = 6.0  # of what is random from its mean: by chance once in 5e8 steps
# least variance of a draw's place that says something of its random number: a quarter of 1/12
UNSURE = 1 / 48

# share of the largest advantage: a row whose rewards' rounding alone moves it further is not compared
UNSTEADY = 0.05
LOSSES = (("policy_loss", ""), ("kl_loss", "KL term"))  # as logged, and what a difference is said of

OWNERS: tuple[Owner, Owner] = ("policy", "critic")

Weights = Mapping[str, np.ndarray]  # of a network, by name


# ---- sampling and scoring ----


@identity(
    "data order, prompt template, retriever or transcript is not what the settings say",
    formula="tokens[i, t] = tokens of world(question(seed, step, i), stored turns of i)[t]",
    innocent=(
        "The world has changed since the run: another version of sorl, another retriever index,"
        " other documents."
    ),
    change=(
        "Compare the first trajectory that is named with `sorl show RUN`. Check the versions in"
        " the row of table run."
    ),
)
def transcripts(case: Case) -> Iterator[Check]:
    """Prompts are the questions of the run's stream, observations what the world answers to the queries."""
    stored = case.stored
    tokens = case.world_batch.tokens.numpy()
    length = case.world_batch.length.numpy()
    width = min(tokens.shape[1], stored.tokens.shape[1])
    inside = np.arange(width) < np.maximum(length, stored.length)[:, None]
    yield case.compare(stored.tokens[:, :width], tokens[:, :width], inside)
    yield case.compare(stored.length[:, None], length[:, None])


@identity(
    "prompts, observations or padding are trained on, or turns are shifted",
    formula="mask[i, t] = 1 where the policy wrote token t, else 0",
    innocent="The world has changed since the run, so that it answers with more or fewer tokens today.",
    change=(
        "Print the tokens under the mask of one named trajectory. Build the mask from token ids,"
        " not from text."
    ),
)
def loss_mask(case: Case) -> Iterator[Check]:
    """The loss mask is what the policy wrote."""
    logged = case.stored.mask_sampled
    written = case.world_batch.mask.numpy()[:, : logged.shape[1]]
    yield case.compare(logged, np.pad(written, ((0, 0), (0, logged.shape[1] - written.shape[1]))))


@identity(
    "rewards are noisy, shifted, exchanged, inverted or paid for something else",
    formula="score_i = score(world, answer of trajectory i)",
    innocent="The scorer has changed since the run: another version, other gold answers, a random judge.",
    change=(
        "Score one named trajectory by hand. Then look for a sort, a filter or a shuffle between"
        " scoring and training."
    ),
)
def reward(case: Case) -> Iterator[Check]:
    """The reward is the world's score of the answer in the transcript."""
    yield case.compare(case.stored.score[:, None], case.world_batch.score[:, None], tolerance=1e-6)


@identity(
    "another temperature, precision or policy sampled than the log says",
    formula="log mu(token) = log pi_k(token), k the step that sampled",
    innocent=(
        "The run sampled on other hardware, with another kernel or in a lower precision than the"
        " tolerance allows for."
    ),
    change=(
        "Compare sampler and trainer on one batch right after a weight sync. `sorl diagnose RUN`"
        " names the usual causes."
    ),
)
def behaviour_log_probs(case: Case) -> Iterator[Check]:
    """The sampler's log-probs are those of the policy that sampled."""
    logged = case.stored.log_prob_behaviour
    at = case.sampled_at
    if logged is None:
        raise case.declared.lacks("log_prob_behaviour")
    yield case.compare(logged, case.log_probs_at(at), case.stored.mask_sampled, case.nats(at, sampler=True))


@identity(
    "tokens were drawn from another distribution than that of their log-probs (temperature, top-k, top-p)",
    formula="z = sum(log p + H) / sqrt(sum Var log p), and |z| <= 6",
    innocent="You cut the distribution on purpose (top-k, top-p), and the log-probs are of the whole one.",
    change="Compare the sampler's temperature, top-k and top-p with the trainer's temperature.",
)
def sampling(case: Case) -> Iterator[Check]:
    """Sampled tokens are as likely as tokens of the policy are on average."""
    draws = case.draws
    mask = case.stored.mask_sampled
    spread = math.sqrt(float(draws.excess_variance[mask].sum()))
    z = float(draws.excess[mask].sum()) / spread if spread else 0.0
    says = ""
    if abs(z) > DEVIATIONS:
        says = f"they were drawn from something {'flatter' if z < 0 else 'sharper'}"
    yield Check(gap=abs(z), tolerance=DEVIATIONS, logged=z, expected=0.0, says=says, weight=spread)


@identity(
    "rows were drawn with the same random numbers",
    formula="Q = sum over positions of (sum over rows of place)^2, within 6 deviations of its mean",
    innocent=(
        "The sampler repeats a seed on purpose, for instance to compare two policies on common"
        " random numbers."
    ),
    change=(
        "Look at how the sampler seeds its rows and its ranks. Rows of one prompt must not share"
        " a generator's state."
    ),
)
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


@identity(
    "the ratio's denominator is another policy's, or corrupt",
    formula="log pi_old(token) = log pi_k(token), k as learn.old_log_prob says",
    innocent=(
        "The audit runs on other hardware or with other kernels than the run, and both compute in"
        " low precision."
    ),
    change=(
        "See which trajectories are named. All of them: another policy. A few: rows that were"
        " mixed up or not scored."
    ),
)
def old_log_probs(case: Case) -> Iterator[Check]:
    """Old log-probs are those of the proximal policy."""
    case.need_told("log_prob_old")
    stored = case.stored
    kind = case.declared.old_log_prob
    if kind is None:
        raise case.declared.lacks("old_log_prob")
    if kind == "behaviour" and stored.log_prob_behaviour is None:
        raise case.declared.lacks("log_prob_behaviour")
    at = stored.step if kind == "update" else case.sampled_at
    expected = stored.log_prob_behaviour if kind == "behaviour" else case.log_probs_at(at)
    tolerance = case.stored_nats(stored.log_prob_old) if kind == "behaviour" else case.nats(at)
    yield case.compare(stored.log_prob_old, expected, stored.mask_sampled, tolerance)


@identity(
    "the KL term pulls towards another model",
    formula="log pi_ref(token) = log pi_0(token)",
    innocent="The reference is another model on purpose, or it was moved on purpose during the run.",
    change="Load the reference from the checkpoint that training began with. Check that nothing trains it.",
)
def reference_log_probs(case: Case) -> Iterator[Check]:
    """Reference log-probs are those of the warm start."""
    stored = case.stored
    if stored.log_prob_ref is not None:
        yield case.compare(
            stored.log_prob_ref, case.log_probs_at(0, replay=False), stored.mask_sampled, case.nats(0)
        )


@identity(
    "the critic is read elsewhere, or another one is",
    formula="V[i, t] = critic_k(tokens of i before t)",
    innocent=(
        "The audit runs on other hardware or with other kernels than the run, and both compute in"
        " low precision."
    ),
    change=(
        "Read the difference: a shift by one token is an index, a factor is a normaliser, all"
        " else is another critic."
    ),
)
def values(case: Case) -> Iterator[Check]:
    """Values are the critic's, each of the state before its token."""
    from sorl.learn.networks import critic_values

    stored = case.stored
    if stored.values is None:
        return
    at = stored.step if case.settings.learn.old_values == "update" else case.sampled_at
    expected = critic_values(case.networks(at).critic, case.loaded.batch, case.networks(at).compute)
    inside = (stored.response | stored.mask_sampled) & (
        np.arange(stored.tokens.shape[1]) < stored.length[:, None]
    )
    yield case.compare(stored.values, expected, inside, case.value_tolerance(at))


@identity(
    "advantages are mixed up, scaled or normalised wrongly",
    formula="A = estimator(rewards, values, groups); for GRPO A_i = (R_i - mean_g R) / (std_g R + eps)",
    innocent=(
        "The declared algorithm is not the one that ran (`replay_as`), or the trainer adds a"
        " bonus to rewards later."
    ),
    change="Take one named trajectory and work its advantage out by hand from the rewards of its group.",
)
def advantages(case: Case) -> Iterator[Check]:
    """Advantages are made of the stored rewards, values and groups."""
    case.need_told("advantages", "score")
    case.hold("advantage", "select", "shaping")
    case.need_whole_groups()
    made = case.loaded.estimated(case.own)
    stored = case.stored
    kept = made.mask.numpy()
    expected = made.need("advantages").numpy()
    size = max(1.0, float(np.abs(np.where(kept, expected, 0)).max()))
    rounding = case.advantage_rounding()
    where = kept & stored.mask & (rounding < UNSTEADY * size)[:, None]
    steady = rounding[rounding < UNSTEADY * size]
    share = max(1e-4, spacing(stored.advantages[stored.mask]))
    yield case.compare(stored.advantages, expected, where, share * size + float(steady.max(initial=0.0)))
    if case.declared.own_settings is not None:  # other trainers leave tokens out for reasons of their own
        yield case.compare(stored.mask, kept)


@identity(
    "the critic learns another target",
    formula="G[i, t] = A[i, t] before whitening + V[i, t]",
    innocent="The declared algorithm is not the one that ran: another gamma, lambda or whitening.",
    change=(
        "Work the returns of one short trajectory out by hand. Check gamma, lambda and what"
        " whitening comes before."
    ),
)
def returns(case: Case) -> Iterator[Check]:
    """Returns are advantages before whitening plus values."""
    if case.stored.returns is None:
        return
    case.hold("advantage", "select", "shaping", "kl")
    made = prepare(case.own, case.loaded.batch)
    if case.stored.returns is None or made.returns is None:
        return
    where = positions(replace(made, turn_id=None), case.own.advantage.critic_mask).numpy()
    tolerance = 1e-4 * max(1.0, float(made.returns.abs().max()))
    yield case.compare(case.stored.returns, made.returns, where, tolerance)


# ---- the updates ----


@identity(
    "minibatches repeat or leave out sequences",
    formula="in each epoch every sequence is in exactly one minibatch",
    innocent=(
        "The trainer stopped an epoch early, was killed in this step, or draws minibatches with"
        " replacement on purpose."
    ),
    change=(
        "Look at the sampler of minibatches and its seed on each rank. Check what fills up the"
        " last minibatch."
    ),
)
def order(case: Case) -> Iterator[Check]:
    """Each epoch trains on every sequence once."""
    stored = case.stored
    declared = case.declared
    if case.own.schedule != Schedule():
        raise Missing("the parts of the schedule")
    if declared.unfinished == stored.step:
        raise Missing("the end of the step, in which the run stopped")
    broken = any(update.scalars.get("non_finite") for update in stored.updates)
    may_end = broken or declared.may_end_early or case.own.early_stop != EarlyStop()
    last = max((update.epoch for update in stored.updates), default=0)
    for epoch in range(last + 1 if declared.epochs is None else declared.epochs):
        rows = [update.rows for update in stored.updates if update.epoch == epoch]
        counts = np.bincount(
            np.concatenate([*rows, np.zeros(0, int)]).astype(int), minlength=len(stored.tokens)
        )
        # A loop that does not number its epochs trains on each sequence several times in its only one.
        times = 1 if declared.epochs is not None or last else max(1, int(counts.min()))
        once = np.full_like(counts, times)
        is_cut = declared.minibatches is None or len(rows) < declared.minibatches
        expected = np.minimum(counts, once) if may_end and is_cut else once
        yield case.compare(counts[:, None], expected[:, None], says=f"in epoch {epoch}")


@identity(
    "rows lost their masks, advantages or old log-probs on the way to an update, or have others'",
    formula="mask, A and log pi_old of a row in an update = those of the row in the batch",
    innocent="The trainer makes old log-probs or advantages again between two epochs on purpose.",
    change=(
        "Look at what happens to a row between the batch and the update: a shuffle that moves one array"
        " only, a slice, a recomputation."
    ),
)
def minibatches(case: Case) -> Iterator[Check]:
    """Each update trains on rows of the batch as the batch has them."""
    stored = case.stored
    case.hold("schedule")
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


@identity(
    "the loss has another scale, sign, mask or clip",
    formula="L = aggregate(surrogate(log pi - log pi_old, A, clip)) over the tokens of the update",
    innocent=(
        "The declared algorithm is not the one that ran (`replay_as`): another mean over tokens,"
        " another clip."
    ),
    change=(
        "Read the factor. A whole number is often the micro-batches or ranks, a fraction is often"
        " padding in the mean."
    ),
)
def loss(case: Case) -> Iterator[Check]:
    """The loss is that of the stored log-probs and advantages."""
    from sorl.replay.play import weigh

    case.need_told("log_prob", "log_prob_old", "advantages")
    case.hold_loss(*LOSS)
    for update in case.stored.updates:
        logged = [(name, update.scalars.get(name), says) for name, says in LOSSES]
        if all(number is None for _, number, _ in logged):
            raise case.declared.lacks("policy_loss")
        terms, _, _ = weigh(case.own, case.loaded.minibatch(case.own, update), case.loaded, update)
        # The mean of advantages of both signs is near 0: rounding is a share of their size, not of the mean.
        size = float(torch.where(terms.mask, terms.token_loss.abs(), 0).max())
        rounding = spacing(update.log_prob)
        share = max(EXACT, ROUNDINGS * rounding)
        least = max(1e-5, rounding) * max(1e-3, size)
        for name, number, says in logged:
            if number is not None or case.declared.own_settings is not None:
                expected = float(getattr(terms, name))
                yield case.number(number, expected, share, least=least, says=says, update=update.index)


@identity(
    "the backward pass lost or added something: a frozen layer, a scale, an accumulation",
    formula="norm of the gradient = norm of dL / d weights, taken again from the stored weights",
    innocent="The run computed on other hardware or in a lower precision than the tolerance allows for.",
    change=(
        "Compare the norm layer by layer on one batch. Look for frozen layers, loss scales and"
        " lost micro-batches."
    ),
)
def gradient(case: Case) -> Iterator[Check]:
    """The gradient is that of the loss."""
    yield from case.retaken_updates("policy").gradients


@identity(
    "clipping of the gradient norm is off, or another bound acts",
    formula="norm after = min(norm before, bound)",
    innocent="The trainer clips something else on purpose: each value, each layer, or an adaptive bound.",
    change=(
        "Clip after the gradients are unscaled and gathered, before the optimizer's step. Check"
        " which parameters."
    ),
)
def gradient_clip(case: Case) -> Iterator[Check]:
    """The step is along the gradient, shortened to the bound."""
    declared = case.declared
    if not declared.measures_clipped_norm:
        raise declared.lacks("grad_norm_after")
    if declared.own_settings is None and declared.max_grad_norm is None:
        raise declared.lacks("max_grad_norm")
    limit = declared.max_grad_norm or math.inf
    for update in case.stored.updates:
        before = update.scalars.get("grad_norm")
        after = update.scalars.get("grad_norm_after")
        if before is not None and after is None and declared.own_settings is None:
            raise declared.lacks("grad_norm_after")
        if before is not None and math.isfinite(before) and not after == 0 < before:
            yield case.number(after, min(before, limit), update=update.index)


@identity(
    "the schedule is not the configured one",
    formula="lr = schedule(update), to a millionth",
    innocent="The run was resumed with another length or another schedule on purpose.",
    change=(
        "Plot the logged rate over updates. Look at warm-up, at a resumed scheduler, and at"
        " factors of the world size."
    ),
)
def learning_rate(case: Case) -> Iterator[Check]:
    """The learning rate is the schedule's."""
    if case.settings.match is not None:
        raise Missing("the learning rate of the matched run")
    for update in case.stored.updates:
        lr = update.scalars.get("lr")
        least = 1e-6 * case.settings.learn.policy.lr
        yield case.number(lr, case.rate("policy", update.index), 1e-6, least=least, update=update.index)


@identity(
    "a step was not taken, or taken elsewhere",
    formula="log pi(token) in update u = that of the weights which updates 0..u-1 lead to",
    innocent="The run computed on other hardware or in a lower precision than the tolerance allows for.",
    change=(
        "Check that the optimizer steps once an update, and that the model that is scored is the"
        " one that is stepped."
    ),
)
def log_probs(case: Case) -> Iterator[Check]:
    """Each update starts from the weights that the update before left."""
    retaken = case.retaken_updates("policy")
    yield from retaken.begins
    if retaken.missing:
        raise Missing(retaken.missing)


@identity(
    "the critic is trained on other targets or with another scale",
    formula="L_V = 1/2 mean max((V - G)^2, (V_clipped - G)^2)",
    innocent="The run had another value clip than its settings say, by a later change of the code.",
    change=(
        "Read the factor: 2 is a missing half, others are a mean over other tokens. Check the targets too."
    ),
)
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


@identity(
    "the critic's backward pass lost or added something, or a step was not taken",
    formula="norm of the gradient = norm of dL_V / d weights, taken again from the stored weights",
    innocent="The run computed on other hardware or in a lower precision than the tolerance allows for.",
    change="Check that the critic's optimizer keeps its state and steps once an update.",
)
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
    " loaded",
    formula="weights of step k+1 = weights of step k + the steps of its updates",
    innocent="You loaded other weights on purpose, or resumed with another version of the optimizer.",
    change=(
        "Look at the layers that are named. Check the optimizer's parameter groups, and what a"
        " resume restores."
    ),
)
def weights(case: Case) -> Iterator[Check]:
    """The weights of the next step are those that the updates lead to."""
    stored = case.stored
    after = case.read(case.stored.step + 1)
    if after is None or not after.weights or not stored.weights:
        raise case.declared.lacks_weights(stored.step + 1)
    missing = ""
    owners = OWNERS if case.networks(stored.step).critic else OWNERS[:1]
    for owner in owners:
        retaken = case.retaken_updates(owner)
        network = getattr(retaken.networks, owner)
        expected = {f"{owner}.{name}": w.detach().numpy() for name, w in network.named_parameters()}
        still = [k for k, w in after.weights.items() if k in expected and (w == stored.weights[k]).all()]
        length = {k: float(np.linalg.norm(expected[k] - stored.weights[k])) for k in still}
        if still := [k for k in still if length[k] > EPS * np.linalg.norm(stored.weights[k])]:
            says = "these weights did not move in the step"
            yield Check(gap=float(len(still)), tolerance=0.0, logged=0.0, says=says, layers=tuple(still[:4]))
        elif not retaken.missing:
            yield moved(stored.weights, expected, after.weights, WEIGHTS[case.settings.compute.dtype])
        missing = missing or retaken.missing
    if missing:
        raise Missing(missing)


def moved(start: Weights, expected: Weights, after: Weights, share: float) -> Check:
    """Compare the weights after a step with those that are expected of it, to a `share` of its length.

    Rounding has no direction: along the d weights lies 1 / sqrt(d) of its length. So another decay of the
    weights shows there long before it shows in all.
    """
    rest = {name: after[name] - array for name, array in expected.items()}
    size = _length(start[name] for name in expected)
    length = _length(array - start[name] for name, array in expected.items())
    gap = _length(rest.values())
    tolerance = share * length + EPS * size
    inner = sum(float(np.vdot(array, start[name])) for name, array in rest.items())
    along = abs(inner) / size
    part = DEVIATIONS / math.sqrt(sum(array.size for array in rest.values()))
    if gap <= tolerance < along / part:
        direction = "shrink" if inner < 0 else "grow"
        says = f"the weights {direction} by {along / size:.2g} of themselves: another decay"
        return Check(gap=along, tolerance=part * tolerance, logged=along, expected=0.0, says=says)
    far = sorted(
        (k for k in rest if np.linalg.norm(rest[k]) > tolerance), key=lambda k: -np.linalg.norm(rest[k])
    )
    return Check(gap=gap, tolerance=tolerance, logged=gap, expected=0.0, layers=tuple(far[:4]))


def _length(arrays: Iterable[np.ndarray]) -> float:
    """L2 norm over all arrays, summed in float64."""
    return math.sqrt(sum(float(np.square(array, dtype=float).sum()) for array in arrays))


@identity(
    "its state was lost or reset (resume, new optimizer)",
    formula="steps that the optimizer has counted = updates of the run",
    innocent="You reset the optimizer on purpose, or resumed with a version that counts in another way.",
    change=(
        "Check that a checkpoint holds the optimizer's state, and that a resume loads it before"
        " the first step."
    ),
)
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
