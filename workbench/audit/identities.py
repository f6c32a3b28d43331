"""The identities of a stored step: what must be equal if the trainer did what it says.

Order: from the question to the optimizer, so that the first violation is the one nearest to its cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.agent.episode import collate
from workbench.agent.protocol import Dialogue, turn_length
from workbench.agent.retrievers import RetrieverDown
from workbench.agent.tokenizer import Codec
from workbench.agent.worlds import Question, World, build
from workbench.algorithms import resolve
from workbench.audit.check import Check, Residual, explain
from workbench.audit.networks import Networks, optimizer
from workbench.batch import Batch
from workbench.learn.networks import autocast
from workbench.learn.rollouts import critic_values, scored
from workbench.learn.run import settings_of
from workbench.learn.update import rate
from workbench.objective import Algorithm, LossTerms, prepare
from workbench.objective.advantage import positions, value_loss
from workbench.objective.schedule import EarlyStop, Schedule
from workbench.replay.play import Loaded, weigh
from workbench.spec import OptimizerSettings, RunSettings
from workbench.store import batches
from workbench.store.batches import StoredBatch, StoredUpdate

# Largest difference by rounding, in float32 and in bfloat16: of a log-prob in nats, of a value, as a share of a number.
NATS, VALUE, SHARE = {"float32": 1e-3, "bfloat16": 0.25}, {"float32": 1e-3, "bfloat16": 0.05}, 1e-3
WEIGHTS = 0.02  # of the length of a step, between the weights that it led to and those that it must lead to
DEVIATIONS = 6.0  # of a sum of sampled log-probs from its mean: by chance once in 5e8 steps


Look = Callable[["Case"], Iterator[Check]]


class Missing(Exception):
    """What an identity needs is not stored; the text says what."""


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
        must = (look.__doc__ or "").split("\n")[0].rstrip(".")
        IDENTITIES[look.__name__] = Identity(look.__name__, must, means, look)
        return look

    return declare


@dataclass
class Case:
    """A stored step, its settings, and the other stored steps of its run."""

    stored: StoredBatch
    settings: RunSettings
    read: Callable[[int], StoredBatch | None]  # a step with its weights; None where it is not stored
    _networks: dict[int, Networks] = field(default_factory=dict)
    _log_probs: dict[tuple[int, bool], Tensor] = field(default_factory=dict)

    @cached_property
    def own(self) -> Algorithm:
        """The algorithm that ran."""
        algorithm = resolve(self.settings.algorithm, self.settings.slots)
        return algorithm.within(self.settings.world.completion_budget)

    @cached_property
    def loaded(self) -> Loaded:
        """The batch as tensors."""
        return Loaded(self.stored, self.own, torch.float32)

    @property
    def sampled_at(self) -> int:
        """Iteration whose policy sampled the batch."""
        return self.stored.updates[0].rollout_step if self.stored.updates else self.stored.step

    def networks(self, step: int) -> Networks:
        """Policy and critic at the start of a step. Raises Missing where their weights are not stored."""
        if step not in self._networks:
            found = self.stored if step == self.stored.step else self.read(step)
            if found is None or not found.weights:
                raise Missing(f"the weights of step {step} (record.batches.weights_mb, last, every)")
            self._networks[step] = Networks(found, self.settings)
        return self._networks[step]

    def log_probs_at(self, step: int, replay: bool = True) -> Tensor:
        """Log-probs (B, T) of the batch under the policy of a step, by the trainer's forward.

        With `replay` a mixture takes the experts that the run's old pass took.
        """
        if (step, replay) not in self._log_probs:
            networks = self.networks(step)
            batch, temperature = self.loaded.batch, self.settings.engine.temperature
            given = self.own.routing.replayed(replace(batch, routes_old=None)) if replay else None
            found = scored(networks.policy, batch, temperature, networks.compute, given)[0]
            self._log_probs[step, replay] = found
        return self._log_probs[step, replay]

    @cached_property
    def terms(self) -> list[tuple[LossTerms, Tensor, Tensor | None]]:
        """Terms of the loss of every update, and d loss / d log-prob (b, T), of the stored log-probs."""
        clipped, found = self.own.stabilise.needs_bias, []
        for update in self.stored.updates:
            batch = self.loaded.minibatch(self.own, update)
            found.append(weigh(self.own, batch, self.loaded, update, clipped=clipped))
        return found

    def check(self, name: str, logged: Any, expected: Any, mask: np.ndarray, tolerance: float, **more: Any) -> Check:
        """Compare two arrays (B, T) of the whole batch."""
        found = explain(_array(logged), _array(expected), mask, tolerance)
        return self.of(name, found, tolerance, **more)

    def of(self, name: str, found: Residual, tolerance: float, rows: np.ndarray | None = None, **more: Any) -> Check:
        """Return the check of a residual; `rows` are the rows of the batch that its rows are."""
        at = self.stored.trajectory if rows is None else self.stored.trajectory[rows]
        return Check(
            name, self.stored.step, gap=found.gap, tolerance=tolerance, logged=found.logged, expected=found.expected,
            says=found.says, trajectories=tuple(int(at[i]) for i in found.rows), **more,
        )  # fmt: skip

    def number(self, name: str, logged: float | None, expected: float, share: float = SHARE, **more: Any) -> Check:
        """Compare two numbers; how many times the one is the other is said where they differ."""
        if logged is None:
            return Check(name, self.stored.step, missing="the trainer's own number", **more)
        tolerance = share * max(abs(expected), 1e-3)
        times = f"{logged / expected:.4g} times what it must be" if expected and math.isfinite(logged) else ""
        gap = abs(logged - expected) if math.isfinite(logged) and math.isfinite(expected) else math.inf
        says = times if gap > tolerance else ""
        return Check(
            name, self.stored.step, gap=gap, tolerance=tolerance, logged=logged, expected=expected, says=says, **more
        )

    @cached_property
    def told(self) -> list[Dialogue]:
        """Every episode once more: the stored turns handed to the world, in the order of the batch."""
        settings, stored = self.settings, self.stored
        if settings.model is not None or settings.world.kind == "dataset":
            raise Missing("the tokenizer and the questions of the run (only worlds of our own are asked again)")
        if self.own.select.rounds > 1:
            raise Missing("which questions the selection drew again")
        if settings.fault is None and settings.world.retriever.kind == "http":
            raise Missing("what the retriever's server answered then")
        world: Any = build(settings.world)
        codec = Codec(world.tokenizer(), settings.wording)
        size = settings.learn.group_size or self.own.group_size
        prompts = settings.learn.episodes // size
        questions = world.questions("train", settings.seed, stored.step * prompts, prompts)
        told = []
        for row in range(len(stored.tokens)):
            tokens = stored.tokens[row, : stored.length[row]].tolist()
            told.append(_told(world, codec, questions[row // size], row // size, tokens))
        return told

    @cached_property
    def retold(self) -> Batch:
        """The episodes of `told` as a batch."""
        return collate([dialogue.episode() for dialogue in self.told], 0)

    @cached_property
    def updated(self) -> list[tuple[StoredUpdate, float, float]]:
        """Take every update again: (update, its largest log-prob gap, its gradient norm).

        It stops after an update whose log-probs are not those of the run.
        """
        if self.settings.learn.balance_coef and self.stored.routes_behaviour is not None:
            raise Missing("the gradient of the load-balancing loss (learn.balance_coef)")
        return list(self._updates())

    end: Networks | None = None  # after the last update of the step, where every update could be taken again

    def _updates(self) -> Iterator[tuple[StoredUpdate, float, float]]:
        networks, learn, stored = self.networks(self.stored.step).copy(), self.settings.learn, self.stored
        steps = optimizer(networks.policy_parameters, learn.policy, stored, "policy")
        for update in stored.updates:
            gradient, apart = self._gradient(networks, update)
            norm = _norm(gradient)
            yield update, apart, norm
            if not apart <= NATS[self.settings.compute.dtype]:
                return
            if steps is None:  # its state is not stored
                return
            after = update.scalars.get("grad_norm_after")
            if not after or not math.isfinite(after) or not norm:
                continue  # left out by the early stop, or for a gradient that is not finite
            # As long as the trainer says: a wrong length is a violation of its own, and none of all that follows.
            for parameter, g in zip(networks.policy_parameters, gradient, strict=True):
                parameter.grad = g * (after / norm)
            for group in steps.param_groups:
                group["lr"] = update.scalars.get("lr") or group["lr"]
            steps.step()
        self.end = networks

    def _gradient(self, networks: Networks, update: StoredUpdate) -> tuple[list[Tensor], float]:
        """Gradient of the loss of an update under `networks`, and its largest log-prob gap in nats."""
        stored, coefficient = self.stored, self.settings.learn.entropy_coef
        needs_bias = self.own.stabilise.needs_bias
        _, weights, lost = self.terms[update.index]
        trained = update.mask if update.mask is not None else stored.mask[update.rows]
        parameters, apart, start = networks.policy_parameters, 0.0, 0
        total, bias = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
        for size in update.passes:
            part = slice(start, start + size)
            start += size
            width = int(stored.length[update.rows[part]].max())
            tokens = torch.from_numpy(stored.tokens[update.rows[part], :width]).long()
            mask = torch.from_numpy(trained[part, :width])
            replay = self.loaded.replayed(update, part, width)
            log_prob, entropy = networks.log_probs(tokens, mask, bool(coefficient), replay)
            was = torch.from_numpy(update.log_prob[part, :width])
            gap = torch.where(mask, (log_prob.detach() - was).abs(), 0).max()
            apart = max(apart, float(gap)) if not torch.isnan(gap) else math.inf
            outputs, pulls = [log_prob], [torch.where(mask, weights[part, :width], 0)]
            if coefficient:
                outputs, pulls = [*outputs, entropy], [*pulls, -coefficient * mask.float() / max(1, trained.sum())]
            torch._foreach_add_(total, torch.autograd.grad(outputs, parameters, pulls, retain_graph=needs_bias))
            if needs_bias and lost is not None:
                torch._foreach_add_(bias, torch.autograd.grad(log_prob, parameters, lost[part, :width]))
        return (self.own.stabilise.on_gradient(total, bias)[0] if needs_bias else total), apart


def _told(world: World, codec: Codec, question: Question, group: int, tokens: Sequence[int]) -> Dialogue:
    """Hand an episode's turns to the world: after the prompt, each up to its closing tag or the limit of tokens."""
    dialogue = Dialogue(world, codec, question, group)
    rest = list(tokens[dialogue.prompt_length :])
    while rest and dialogue.ended is None:
        turn = rest[: turn_length(codec, rest[: world.max_turn_tokens])]
        read = dialogue.turn(turn, [0.0] * len(turn))
        rest = rest[len(turn) + len(read) :]
    if dialogue.ended is None:
        dialogue.stop()
    return dialogue


def _array(x: Any) -> np.ndarray:
    return x.detach().numpy() if isinstance(x, Tensor) else np.asarray(x)


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(t.double()) for t in tensors]).norm())


# ---- sampling and scoring ----


@identity("data order, prompt template, retriever or transcript is not what the settings say")
def transcripts(case: Case) -> Iterator[Check]:
    """Prompts are the questions of the run's stream, observations what the world answers to the queries."""
    told, stored = case.retold, case.stored
    width = min(told.tokens.shape[1], stored.tokens.shape[1])
    inside = np.arange(width) < np.maximum(told.length.numpy(), stored.length)[:, None]
    yield case.check("transcripts", stored.tokens[:, :width], told.tokens[:, :width], inside, 0.0)
    lengths = np.stack([stored.length, told.length.numpy()])
    if (lengths[0] != lengths[1]).any():
        yield case.check(
            "transcripts", lengths[0][:, None], lengths[1][:, None], np.ones((len(stored.length), 1), bool), 0.0
        )


@identity("prompts, observations or padding are trained on, or turns are shifted")
def loss_mask(case: Case) -> Iterator[Check]:
    """The loss mask is what the policy wrote."""
    told, stored = case.retold, case.stored
    width = stored.tokens.shape[1]
    mask = np.zeros_like(stored.mask_sampled)
    given = told.mask.numpy()[:, :width]
    mask[:, : given.shape[1]] = given
    yield case.check("loss_mask", stored.mask_sampled, mask, np.ones_like(mask), 0.0)


@identity("rewards are noisy, shifted, exchanged, inverted or paid for something else")
def reward(case: Case) -> Iterator[Check]:
    """The reward is the world's score of the answer in the transcript."""
    logged, expected = case.stored.score[:, None], case.retold.score[:, None]
    yield case.check("reward", logged, expected, np.ones_like(logged, bool), 1e-6)


@identity("another temperature, precision or policy sampled than the log says")
def behaviour_log_probs(case: Case) -> Iterator[Check]:
    """The sampler's log-probs are those of the policy that sampled."""
    expected, stored = case.log_probs_at(case.sampled_at), case.stored
    loose = case.settings.engine.dtype == "bfloat16" or case.settings.engine.kind == "vllm"
    tolerance = NATS["bfloat16" if loose else case.settings.compute.dtype]
    yield case.check("behaviour_log_probs", stored.log_prob_behaviour, expected, stored.mask_sampled, tolerance)


@identity(
    "tokens were drawn from another distribution than the one whose log-probs were kept (temperature, top-k, top-p)"
)
def sampling(case: Case) -> Iterator[Check]:
    """Sampled tokens are as likely as tokens of the policy are on average."""
    stored = case.stored
    log_prob, entropy, variance = case.networks(case.sampled_at).moments(stored)
    mask = stored.mask_sampled
    excess, spread = float((log_prob + entropy)[mask].sum()), math.sqrt(float(variance[mask].sum()))
    z = excess / spread if spread else 0.0
    hotter = "flatter" if z < 0 else "sharper"
    says = f"they were drawn from something {hotter}" if abs(z) > DEVIATIONS else ""
    yield Check("sampling", stored.step, gap=abs(z), tolerance=DEVIATIONS, logged=z, expected=0.0, says=says)


# ---- log-probs, values, advantages ----


@identity("the ratio's denominator is another policy's, or corrupt")
def old_log_probs(case: Case) -> Iterator[Check]:
    """Old log-probs are those of the proximal policy."""
    stored, kind = case.stored, case.settings.learn.old_log_prob
    if kind == "behaviour":
        expected: Any = stored.log_prob_behaviour
    else:
        expected = case.log_probs_at(stored.step if kind == "update" else case.sampled_at)
    tolerance = NATS[case.settings.compute.dtype]
    yield case.check("old_log_probs", stored.log_prob_old, expected, stored.mask_sampled, tolerance)


@identity("the KL term pulls towards another model")
def reference_log_probs(case: Case) -> Iterator[Check]:
    """Reference log-probs are those of the warm start."""
    stored = case.stored
    if stored.log_prob_ref is None:
        return
    expected = case.log_probs_at(0, replay=False)
    tolerance = NATS[case.settings.compute.dtype]
    yield case.check("reference_log_probs", stored.log_prob_ref, expected, stored.mask_sampled, tolerance)


@identity("the critic is read elsewhere, or another one is")
def values(case: Case) -> Iterator[Check]:
    """Values are the critic's, each of the state before its token."""
    stored = case.stored
    if stored.values is None:
        return
    at = stored.step if case.settings.learn.old_values == "update" else case.sampled_at
    critic = case.networks(at).critic
    if critic is None:
        raise Missing("the critic's weights")
    with torch.no_grad():
        expected = critic_values(critic, case.loaded.batch, case.networks(at).compute)
    inside = (stored.response | stored.mask_sampled) & (np.arange(stored.tokens.shape[1]) < stored.length[:, None])
    yield case.check("values", stored.values, expected, inside, VALUE[case.settings.compute.dtype])


@identity("advantages are mixed up, scaled or normalised wrongly")
def advantages(case: Case) -> Iterator[Check]:
    """Advantages are made of the stored rewards, values and groups."""
    made, stored = case.loaded.estimated(case.own), case.stored
    expected = made.need("advantages").numpy()
    kept = made.mask.numpy()
    tolerance = 1e-4 * max(1.0, float(np.abs(np.where(kept, expected, 0)).max()))
    yield case.check("advantages", stored.advantages, expected, kept & stored.mask, tolerance)
    if (kept != stored.mask).any():
        yield case.check("advantages", stored.mask, kept, np.ones_like(kept), 0.0)


@identity("the critic learns another target")
def returns(case: Case) -> Iterator[Check]:
    """Returns are advantages before whitening plus values."""
    stored = case.stored
    if stored.returns is None:
        return
    made = prepare(case.own, case.loaded.batch)
    expected = made.returns
    if expected is None:
        return
    where = positions(replace(made, turn_id=None), case.own.advantage.critic_mask).numpy()
    yield case.check("returns", stored.returns, expected, where, 1e-4 * max(1.0, float(expected.abs().max())))


# ---- the updates ----


@identity("minibatches repeat or leave out sequences")
def order(case: Case) -> Iterator[Check]:
    """Each epoch trains on every sequence once."""
    stored, learn = case.stored, case.settings.learn
    if case.own.schedule != Schedule():
        raise Missing("the parts of the schedule")
    stopped = learn.target_kl is not None or case.own.early_stop != EarlyStop()
    for epoch in range(learn.epochs):
        rows = [update.rows for update in stored.updates if update.epoch == epoch]
        broken = any(u.scalars.get("non_finite") for u in stored.updates)
        if not rows and (stopped or broken):
            break
        counts = (
            np.bincount(np.concatenate(rows), minlength=len(stored.tokens)) if rows else np.zeros(len(stored.tokens))
        )
        if (stopped or broken) and epoch == stored.updates[-1].epoch and len(rows) < learn.minibatches:
            counts = np.where(counts == 0, 1, counts)
        one = np.ones((len(counts), 1), bool)
        yield replace(
            case.check("order", counts[:, None], np.ones((len(counts), 1)), one, 0.0), says=f"in epoch {epoch}"
        )


@identity("the loss has another scale, sign, mask or clip")
def loss(case: Case) -> Iterator[Check]:
    """The loss is that of the stored log-probs and advantages."""
    for update in case.stored.updates:
        terms = case.terms[update.index][0]
        scale = max(1e-3, float(terms.token_loss[terms.mask].abs().max())) if bool(terms.mask.any()) else 1e-3
        for name in ("policy_loss", "kl_loss"):
            logged, expected = update.scalars.get(name), float(getattr(terms, name))
            found = case.number("loss", logged, expected, update=update.index)
            # The mean of advantages of both signs is near 0: rounding is a share of their size, not of the mean.
            found = found if found.missing else replace(found, tolerance=max(found.tolerance, 1e-5 * scale))
            yield found if found.violated or name == "policy_loss" else replace(found, says="KL term")


@identity("the backward pass lost or added something: a frozen layer, a scale, an accumulation")
def gradient(case: Case) -> Iterator[Check]:
    """The gradient is that of the loss."""
    for update, apart, norm in case.updated:
        if apart <= NATS[case.settings.compute.dtype]:
            share = 0.01 if case.settings.compute.dtype == "float32" else 0.1
            yield case.number("gradient", update.scalars.get("grad_norm"), norm, share, update=update.index)


@identity("clipping of the gradient norm is off, or another bound acts")
def gradient_clip(case: Case) -> Iterator[Check]:
    """The step is along the gradient, shortened to the bound."""
    limit = case.settings.learn.policy.max_grad_norm
    for update in case.stored.updates:
        before, after = update.scalars.get("grad_norm"), update.scalars.get("grad_norm_after")
        if before is None or not math.isfinite(before) or after == 0:
            continue
        yield case.number("gradient_clip", after, before if limit is None else min(before, limit), update=update.index)


@identity("the schedule is not the configured one")
def learning_rate(case: Case) -> Iterator[Check]:
    """The learning rate is the schedule's."""
    if case.settings.match is not None:
        raise Missing("the learning rate of the matched run")
    learn, first = case.settings.learn, case.stored.meta.get("update")
    planned = case.settings.planned_iterations * learn.epochs * learn.minibatches
    if first is None and (learn.policy.schedule != "constant" or learn.policy.warmup):
        raise Missing("the number of updates before the step")
    for update in case.stored.updates:
        expected = rate(learn.policy, int(first or 0) + update.index, planned)
        yield case.number("learning_rate", update.scalars.get("lr"), expected, 1e-6, update=update.index)


@identity("a step was not taken, or taken elsewhere")
def log_probs(case: Case) -> Iterator[Check]:
    """Each update starts from the weights that the update before left."""
    tolerance = NATS[case.settings.compute.dtype]
    for update, apart, _ in case.updated:
        yield Check("log_probs", case.stored.step, update.index, apart, tolerance, apart, 0.0)
    if len(case.updated) < len(case.stored.updates) and case.updated[-1][1] <= tolerance:
        raise Missing(f"the optimizer's state, for updates after {case.updated[-1][0].index}")


@identity("the critic is trained on other targets or with another scale")
def critic_loss(case: Case) -> Iterator[Check]:
    """The critic's loss is that of its values and returns."""
    if case.stored.values is None or case.stored.returns is None:
        return
    where = case.own.advantage.critic_mask
    for update in case.stored.updates:
        if update.values is None:
            raise Missing("the critic's values in each update")
        rows = torch.from_numpy(update.rows).long()
        batch = case.loaded.trained.rows(rows)
        expected = float(value_loss(torch.from_numpy(update.values), batch, case.settings.learn.value_clip, where))
        yield case.number("critic_loss", update.scalars.get("value_loss"), expected, 0.01, update=update.index)


@identity("the critic's backward pass lost or added something")
def critic_gradient(case: Case) -> Iterator[Check]:
    """The critic's gradient is that of its loss."""
    stored, where = case.stored, case.own.advantage.critic_mask
    if stored.values is None or stored.returns is None or not stored.updates:
        return
    networks, update = case.networks(stored.step), stored.updates[0]
    critic = networks.critic
    if critic is None or update.values is None:
        raise Missing("the critic's weights and values")
    batch = case.loaded.trained.rows(torch.from_numpy(update.rows).long())
    with torch.enable_grad(), autocast(torch.device("cpu"), networks.compute):
        made = critic(batch.tokens)
        value = value_loss(made, batch, case.settings.learn.value_clip, where)
    norm = _norm(torch.autograd.grad(value, list(critic.parameters())))
    inside = positions(batch, where).numpy()
    tolerance = VALUE[case.settings.compute.dtype]
    found = explain(update.values, made.detach().numpy(), inside, tolerance)
    yield case.of("critic_gradient", found, tolerance, update.rows, update=0)
    yield case.number("critic_gradient", update.scalars.get("critic_grad_norm"), norm, 0.02, update=0)


@identity("the optimizer took another step: a layer is frozen, its state was lost, a rate differs, weights were loaded")
def weights(case: Case) -> Iterator[Check]:
    """The weights of the next step are those that the updates lead to."""
    stored, after = case.stored, case.read(case.stored.step + 1)
    if after is None or not after.weights or not stored.weights:
        raise Missing(f"the weights of step {stored.step + 1}")
    if case.updated and case.end is not None:
        start = {k: w for k, w in stored.weights.items() if k.startswith("policy.")}
        made = {f"policy.{k}": p.detach().numpy() for k, p in case.end.policy.named_parameters()}
        length = math.sqrt(sum(float(np.square(made[k] - w, dtype=float).sum()) for k, w in start.items()))
        apart = {k: float(np.linalg.norm(after.weights[k] - made[k])) for k in start}
        whole = math.sqrt(sum(x * x for x in apart.values()))
        gap = whole / length if length else float(whole > 0)
        layers = [k for k in sorted(apart, key=apart.__getitem__, reverse=True) if apart[k] > WEIGHTS * length]
        yield _of_layers(case, gap, WEIGHTS, layers, "")
    for part, scalar in (("policy", "grad_norm_after"), ("critic", "critic_grad_norm")):
        own: OptimizerSettings = getattr(case.settings.learn, part)
        taken = sum(bool(update.scalars.get(scalar)) for update in stored.updates)
        moves = {
            k: float(np.abs(after.weights[k] - w).max()) for k, w in stored.weights.items() if k.startswith(f"{part}.")
        }
        if taken and moves:
            still = [k for k, move in moves.items() if move == 0]
            yield _of_layers(case, float(len(still)), 0.0, still, "these weights did not move in the step")
        if own.kind == "adamw" and moves:
            # |m| / sqrt(v) is at most this by Cauchy-Schwarz, whatever the gradients were.
            beta = own.beta1**2 / own.beta2 if own.beta2 else 1.0
            most = (1 - own.beta1) / math.sqrt((1 - own.beta2) * (1 - beta)) if beta < 1 else math.inf
            limit = own.lr * taken * max(1.0, most) * (1 + own.weight_decay)
            far = [k for k, move in moves.items() if move > limit]
            yield _of_layers(
                case, max(moves.values()), limit, far, f"AdamW moves a weight by at most {limit:.3g} a step"
            )


def _of_layers(case: Case, gap: float, tolerance: float, layers: Sequence[str], says: str) -> Check:
    says = says if layers else ""
    return Check("weights", case.stored.step, None, gap, tolerance, gap, 0.0, says, layers=tuple(layers[:4]))


@identity("its state was lost or reset (resume, new optimizer)")
def optimizer_state(case: Case) -> Iterator[Check]:
    """The optimizer has counted the updates of the run."""
    stored = case.stored
    counted, updates = stored.meta.get("optimizer_steps"), stored.meta.get("update")
    for part in ("policy", "critic"):
        if getattr(case.settings.learn, part).kind != "adamw" or (part == "critic" and stored.values is None):
            continue
        if counted is None or updates is None:
            raise Missing("the steps that the optimizer has counted")
        if part == "critic" or case.own.early_stop == EarlyStop():
            yield case.number("optimizer_state", float(counted[part]), float(updates), 1e-9, layers=(part,))


# ---- a run ----


def audit(folder: Path, steps: Iterable[int], names: Sequence[str] = ()) -> Iterator[Check]:
    """Check the identities of stored steps of a run. Raises InputError for a folder or a step that there is not.

    An identity that holds in all of a step's updates is one check of it: the one with the largest gap.
    """
    settings = settings_of(folder)
    known = set(batches.steps(folder))
    cache: dict[int, StoredBatch | None] = {}

    def read(step: int) -> StoredBatch | None:
        if step not in cache:
            cache[step] = batches.read(folder, step, weights=True) if step in known else None
        return cache[step]

    for step in steps:
        stored = batches.read(folder, step, weights=True)
        case = Case(stored, settings, read)
        for one in IDENTITIES.values():
            if not names or one.name in names:
                yield from _looked(one, case)
        for old in [s for s in cache if s < step - 1 and s != 0]:
            cache.pop(old)


def _looked(one: Identity, case: Case) -> Iterator[Check]:
    found: list[Check] = []
    missing = ""
    try:
        found += one.look(case)
    except Missing as lack:
        missing = f"needs {lack}"
    except RetrieverDown as lack:
        missing = f"needs the retriever: {lack}"
    if broken := [check for check in found if check.violated]:
        yield broken[0]
    elif found and (held := [check for check in found if not check.missing]):
        yield max(held, key=lambda check: check.gap / check.tolerance if check.tolerance else check.gap)
    elif found:
        yield found[0]
    if missing and not found:
        yield Check(one.name, case.stored.step, missing=missing)


def chosen(known: Sequence[int], around: Iterable[int], staleness: int = 0, most: int = 6) -> list[int]:
    """Choose the steps to audit: those nearest to alarms and onset (`around`), then some spread over the run.

    Steps whose next step and whose sampling policy are stored as well come first: more can be checked of them.
    """
    stored = set(known)
    best = [s for s in known if s + 1 in stored and max(0, s - staleness) in stored] or list(known)
    wanted: dict[int, None] = {}
    for step in around:
        if best:
            wanted[min(best, key=lambda other: abs(other - step))] = None
    for i in np.linspace(0, len(best) - 1, min(most, len(best))).astype(int) if best else ():
        wanted[best[i]] = None
    return sorted(list(wanted)[:most])
