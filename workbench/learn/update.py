"""One optimizer update of policy and critic: gradients, norms, clipping bias, evidence."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel, get_scheduler

from sorl.agent.routing import Seen, differing, experts_of, load, routed
from sorl.agent.tokenizer import Spans
from sorl.batch import Batch
from sorl.learn.networks import Critic, autocast, critic_values, log_probs, passes, scored
from sorl.learn.probe import Probe
from sorl.learn.pulse import Pulse
from sorl.measures.evidence import Evidence
from sorl.objective import Algorithm, LossTerms, Normaliser, PolicyLoss, policy_loss, statistics
from sorl.objective.advantage import positions, value_loss
from sorl.objective.select import EarlyStop, MeanKL
from sorl.spec import ComputeSettings, LearnSettings, OptimizerSettings


def optimizer_of(parameters: Iterable[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Return the optimizer that `settings` names, over `parameters`."""
    lr = settings.lr
    decay = settings.weight_decay
    betas = (settings.beta1, settings.beta2)
    if settings.kind == "sgd":
        return torch.optim.SGD(
            parameters, lr=lr, momentum=settings.momentum, weight_decay=decay, foreach=True
        )
    return torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=decay, fused=True)


def rate(settings: OptimizerSettings, update: int, updates: int) -> float:
    """Return the learning rate of update `update` of the run's planned `updates`, by
    transformers' schedules.
    """
    if settings.schedule == "constant" and not settings.warmup:
        return settings.lr
    return settings.lr * float(_factor(settings.schedule, settings.warmup, updates)(update))


@cache
def _factor(schedule: str, warmup: int, updates: int) -> Callable[[int], float]:
    name = "constant_with_warmup" if schedule == "constant" else schedule
    idle = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=1.0)
    made: Any = get_scheduler(name, idle, warmup, updates)
    factor: Callable[[int], float] = made.lr_lambdas[0]
    return factor


def norm(gradients: Sequence[Tensor]) -> float:
    """Global L2 norm over all tensors; NaN or Inf when a gradient is not finite."""
    return float(torch.nn.utils.get_total_norm(gradients, foreach=True))


def step(optimizer: torch.optim.Optimizer, limit: float | None, skip: bool = False) -> tuple[float, float]:
    """Clip the gradients to the norm `limit` and take the step; returns their norm before and after the
    clipping.
    """
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    gradients = [p.grad for p in parameters if p.grad is not None]
    before = after = norm(gradients)
    if limit is not None and before > limit:
        torch._foreach_mul_(gradients, limit / before)
        after = limit
    if math.isfinite(before) and not skip:  # another step would destroy what a post-mortem needs
        optimizer.step()
    return before, after


_OF_BATCH = (
    "trajectory",
    "mask",
    "turn",
    "log_prob_old",
    "log_prob_behaviour",
    "log_prob_ref",
    "advantages",
    "returns",
    "score",
    "group",
)
_OF_TERMS = (
    "correction",
    "corrected",
    "ratio",
    "active_low",
    "active_high",
    "out_of_range",
    "dual",
    "factor",
)


class _Whole(NamedTuple):
    """What the passes of one minibatch have in common."""

    normaliser: Normaliser
    # sums of clip and stabiliser; None where nothing is compared, or there is one pass
    statistics: Tensor | None


class _ClipBias(NamedTuple):
    """Gradients of one minibatch, added up over its passes, a tensor a parameter."""

    taken: list[Tensor]  # of what the clip took from the loss
    beside: list[Tensor]  # of all that the loss holds beside the clipped surrogate


class _Forward(NamedTuple):
    """The answer of the policy to a micro-batch."""

    log_prob: Tensor  # (B, T)
    entropy: Tensor  # (B, T)
    routing: Seen


class _Pass(NamedTuple):
    """What one pass of the policy leaves behind."""

    terms: LossTerms
    log_prob: Tensor  # (B, T)
    entropy: Tensor  # (B, T)
    gradient_weight: Tensor  # d loss / d log-prob, (B, T)
    routes: dict[str, Tensor]


class Average:
    """The mean of the policy's weights over past updates, each older one weighing `decay` times as much."""

    def __init__(self, policy: PreTrainedModel, decay: float) -> None:
        self.policy = copy.deepcopy(policy).requires_grad_(False)
        self.decay = decay
        self.weight = 1.0  # sum of the weights of the updates so far

    @torch.no_grad()
    def add(self, policy: PreTrainedModel) -> None:
        """Count the weights of `policy` in."""
        self.weight = self.decay * self.weight + 1
        for mean, now in zip(self.policy.parameters(), policy.parameters(), strict=True):
            mean.lerp_(now, 1 / self.weight)

    def anchored(self, batch: Batch, temperature: float, compute: ComputeSettings) -> Batch:
        """Return the batch with the log-probs of the averaged policy as the old ones."""
        return replace(batch, log_prob_old=scored(self.policy, batch, temperature, compute)[0])

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        named = {f"parameter.{i}": mean for i, mean in enumerate(self.policy.parameters())}
        return named | {"weight": torch.tensor(self.weight, dtype=torch.float64)}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over what a checkpoint kept."""
        self.weight = float(state["weight"])
        for i, mean in enumerate(self.policy.parameters()):
            mean.copy_(state[f"parameter.{i}"])


@dataclass
class Learner:
    """The networks, their optimizers and the rule that updates them."""

    algorithm: Algorithm
    settings: LearnSettings
    policy: PreTrainedModel
    critic: Critic | None
    temperature: float = 1.0
    updates: int = 0  # since the start of the run; decides when the true clipping bias is measured
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    planned: int = 0  # updates of the whole run, for the schedules of the learning rate
    spans: Spans | None = None  # tells thoughts, searches and answers apart in the evidence
    skipped: bool = False  # whether the early stop left out the policy's last step
    backward_passes: int = 0  # of the policy since the start of the session
    pulse: Pulse = field(default_factory=Pulse)

    def __post_init__(self) -> None:
        decay = getattr(self.algorithm.proximal, "decay", None)
        self.average = None if decay is None else Average(self.policy, decay)
        self.probe = Probe(self.algorithm, self.temperature)
        self.policy_parameters = [p for p in self.policy.parameters() if p.requires_grad]
        self.policy_optimizer = optimizer_of(self.policy_parameters, self.settings.policy)
        self.optimizers = {"policy": self.policy_optimizer}  # by the name of their network
        if self.critic is not None:
            self.critic_optimizer = optimizer_of(self.critic.parameters(), self.settings.critic)
            self.optimizers["critic"] = self.critic_optimizer

    @property
    def early_stop(self) -> EarlyStop:
        """The rule of `learn.target_kl` where it is set, else the algorithm's."""
        target = self.settings.target_kl
        return self.algorithm.early_stop if target is None else MeanKL(target)

    def follow(self, settings: LearnSettings) -> None:
        """Take over learning rates, clipping and coefficients; the optimizers keep their kind and their
        state.
        """
        self.settings = settings

    def update(self, batch: Batch, epoch: int, rollout_step: int) -> Evidence:
        """Train once on one minibatch; returns what happened, measured at the weights before the step."""
        for owner, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = rate(getattr(self.settings, owner), self.updates, self.planned)
        if self.average is not None:
            batch = self.average.anchored(batch, self.temperature, self.compute)
        every = self.settings.probe_every
        probed: dict[str, float | None] = {}
        # before rows are sorted: parts of like length would be no samples
        if every and self.updates % every == 0:
            probed = self.probe.measure(self.policy, self.policy_parameters, batch)
        if self.compute.micro_batch_tokens is not None:  # rows of like length share a micro-batch
            batch = batch.rows(batch.length.argsort(descending=True, stable=True))
        scalars, seen = self._update_policy(batch)
        if self.critic is not None:
            of_critic, seen_by_critic = self._update_critic(self.critic, batch)
            scalars = scalars | of_critic
            seen = seen | seen_by_critic
        self.updates += 1
        scalars = probed | scalars | {"non_finite": float(len(non_finite(scalars)))}
        now = seen["log_prob"]
        of_batch = batch if now is None else self.algorithm.anchored(batch, now)
        seen |= {name: getattr(of_batch, name) for name in _OF_BATCH} | {"values_old": batch.values}
        if self.spans is not None:
            seen["span"] = self.spans.of(batch.tokens, batch.mask)
        return Evidence(
            epoch=torch.tensor([epoch]),
            rollout_step=torch.tensor([rollout_step]),
            value_clip=self.settings.value_clip,
            scalars={name: [value] for name, value in scalars.items()},
            **{name: None if x is None else x[None] for name, x in seen.items()},  # type: ignore[arg-type]
        )

    def values(self, batch: Batch) -> Tensor | None:
        """Values of the batch under the critic as it is, (B, T), without a graph; None without a critic."""
        if self.critic is None:
            return None
        self.pulse.part("values")
        return critic_values(self.critic, batch, self.compute, self.pulse.count)

    def _update_policy(self, batch: Batch) -> tuple[dict[str, float | None], dict[str, Tensor | None]]:
        """Step the policy; returns what was measured of the update, and of each token (B, T)."""
        bias = self._empty_bias()
        self.policy_optimizer.zero_grad()
        micros = self._micro_batches(batch)
        self.backward_passes += len(micros)
        whole = _Whole(Normaliser.of(batch, len(micros), self.algorithm.correction), self._statistics(micros))
        done = []
        for number, micro in enumerate(micros):
            self._say_micro_batch(number, len(micros))
            done.append(self._policy_pass(micro, whole, bias))
        terms = LossTerms.join([each.terms for each in done])
        log_prob = torch.cat([each.log_prob for each in done])
        scalars, factor = self._finish_gradient(bias, terms)
        scalars |= self._step_policy(batch, terms, log_prob)
        scalars |= {
            "policy_loss": float(terms.policy_loss),
            "kl_loss": float(terms.kl_loss),
            "lr": self.policy_optimizer.param_groups[0]["lr"],
            "stabiliser_ratio": terms.stabiliser_ratio,
            "stabiliser_factor": factor,
            "clipped_rms": terms.clipped_rms,
            "unclipped_rms": terms.unclipped_rms,
        }
        measured: dict[str, Tensor | None] = {name: getattr(terms, name) for name in _OF_TERMS}
        measured["log_prob"] = log_prob
        measured["entropy"] = torch.cat([each.entropy for each in done])
        measured["gradient_weight"] = torch.cat([each.gradient_weight for each in done])
        columns = _joined_routes([each.routes for each in done])
        scalars["expert_load_max"] = _largest_load(columns.pop("load", [torch.zeros(1, 1)]))
        return scalars, measured | {name: torch.cat(known) for name, known in columns.items()}

    def _empty_bias(self) -> _ClipBias | None:
        """Zeros for the clipping bias of the coming update; None where it is not measured."""
        every = self.settings.clip_bias_every
        if not self.algorithm.stabilise.needs_bias and not (every > 0 and self.updates % every == 0):
            return None
        return _ClipBias(
            taken=[torch.zeros_like(p) for p in self.policy_parameters],
            beside=[torch.zeros_like(p) for p in self.policy_parameters],
        )

    def _statistics(self, micros: Sequence[Batch]) -> Tensor | None:
        """Sums of clip and stabiliser over a split minibatch, by passes without gradients."""
        if len(micros) == 1 or not self.algorithm.needs_statistics:
            return None
        with torch.no_grad():
            each = [statistics(self.algorithm, micro, self._forward(micro)[0]) for micro in micros]
        return torch.stack([sums for sums in each if sums is not None]).sum(0)

    def _policy_pass(self, micro: Batch, whole: _Whole, bias: _ClipBias | None) -> _Pass:
        """Add the gradient of a micro-batch to those of the parameters, and its part to the clipping bias."""
        log_prob, entropy, routing = self._forward(micro, bool(self.settings.entropy_coef))
        out = policy_loss(
            self.algorithm, micro, log_prob, normaliser=whole.normaliser, statistics=whole.statistics
        )
        loss = self._with_bonuses(out.loss, micro, entropy, routing, whole)
        if bias is not None:
            self._add_clip_bias(bias, out, loss, log_prob)
        # not before: the passes above would add theirs to the weight of the tokens
        log_prob.retain_grad()
        loss.backward()
        assert log_prob.grad is not None
        return _Pass(
            out.terms, log_prob.detach(), entropy.detach(), log_prob.grad, _of_routes(micro, routing)
        )

    def _with_bonuses(
        self, loss: Tensor, micro: Batch, entropy: Tensor, routing: Seen, whole: _Whole
    ) -> Tensor:
        """The loss less the entropy bonus and plus the balance of the experts, as the settings ask for."""
        settings = self.settings
        tokens = whole.normaliser.tokens
        if settings.entropy_coef:
            loss = loss - settings.entropy_coef * torch.where(micro.mask, entropy, 0).sum() / tokens
        if settings.balance_coef and routing.logits:
            short = micro.trimmed()
            balance = routing.balance(short.inside[:, 1:].to(self.policy.device))
            loss = loss + settings.balance_coef * (micro.mask.sum() / tokens) * balance
        return loss

    def _add_clip_bias(self, bias: _ClipBias, out: PolicyLoss, loss: Tensor, log_prob: Tensor) -> None:
        """Add a pass to the clipping bias, through the same graph, before the graph is freed.

        Where nothing is clipped C is exactly 0.
        """
        (taken,) = torch.autograd.grad(out.taken, log_prob, retain_graph=True)
        if bool(taken.any()):
            through = torch.autograd.grad(log_prob, self.policy_parameters, taken, retain_graph=True)
            torch._foreach_add_(bias.taken, through)
        if loss is not out.surrogate:
            rest = loss - out.surrogate
            own = torch.autograd.grad(rest, self.policy_parameters, retain_graph=True, materialize_grads=True)
            torch._foreach_add_(bias.beside, own)

    def _finish_gradient(
        self, bias: _ClipBias | None, terms: LossTerms
    ) -> tuple[dict[str, float | None], float | None]:
        """Let the stabiliser change the gradient; returns scalars of the clipping bias, and its factor."""
        scalars: dict[str, float | None] = dict.fromkeys(
            ("clip_bias_norm", "clip_bias_ratio", "clip_bias_cosine")
        )
        if bias is None:
            return scalars, terms.stabiliser_factor
        stabilise = self.algorithm.stabilise
        gradients = [p.grad for p in self.policy_parameters if p.grad is not None]
        scalars |= _bias_scalars(list(torch._foreach_sub(gradients, bias.beside)), bias.taken)
        if not stabilise.needs_bias:
            return scalars, terms.stabiliser_factor
        gradients, factor = stabilise.on_gradient(gradients, bias.taken)
        for parameter, gradient in zip(self.policy_parameters, gradients, strict=True):
            parameter.grad = gradient
        return scalars, factor

    def _step_policy(self, batch: Batch, terms: LossTerms, log_prob: Tensor) -> dict[str, float | None]:
        """Step the optimizer unless the early stop skips it; returns the norms of the gradient."""
        self.skipped = self.early_stop.skips(terms.log_ratio, terms.mask)
        factor = self.algorithm.rate.factor(batch, log_prob)
        for group in self.policy_optimizer.param_groups:
            group["lr"] *= factor
        before, after = step(self.policy_optimizer, self.settings.policy.max_grad_norm, self.skipped)
        if self.average is not None:
            self.average.add(self.policy)
        return {"grad_norm": before, "grad_norm_after": 0.0 if self.skipped else after}

    def _update_critic(
        self, critic: Critic, batch: Batch
    ) -> tuple[dict[str, float | None], dict[str, Tensor | None]]:
        """Step the critic; returns what was measured of the update, and of each token (B, T)."""
        self.critic_optimizer.zero_grad()
        where = self.algorithm.advantage.critic_mask
        target = positions(batch, where)
        values = []
        total = 0.0
        micros = self._micro_batches(batch)
        for number, micro in enumerate(micros):
            self._say_micro_batch(number, len(micros), " of the critic")
            trimmed = micro.trimmed()
            with autocast(self.policy.device, self.compute):
                short = critic(trimmed.tokens, trimmed.mask | positions(trimmed, where))
            value = pad(short, (0, micro.tokens.shape[1] - short.shape[1]))
            loss = value_loss(value, micro, self.settings.value_clip, where, target.sum())
            loss.backward()
            values.append(value.detach())
            total += float(loss.detach())
        before, _ = step(self.critic_optimizer, self.settings.critic.max_grad_norm)
        return {"value_loss": total, "critic_grad_norm": before}, {
            "values": torch.cat(values),
            "target": target,
        }

    def _forward(self, micro: Batch, grad_entropy: bool = False) -> _Forward:
        """Log-probs and entropy of a micro-batch (B, T), and its routing; no columns that are all padding are
        read.
        """
        short = micro.trimmed()
        replay = self.algorithm.routing.replayed(short)
        with (
            autocast(self.policy.device, self.compute),
            routed(self.policy, None if replay is None else replay[:, 1:]) as seen,
        ):
            # The balance of a mixture's experts is over all positions, also those that a packed pass leaves
            # out.
            where = None if self.settings.balance_coef and seen.routers else short.mask
            log_prob, entropy = log_probs(self.policy, short.tokens, self.temperature, grad_entropy, where)
        padding = (0, micro.tokens.shape[1] - log_prob.shape[1])
        return _Forward(pad(log_prob, padding), pad(entropy, padding), seen)

    def _say_micro_batch(self, number: int, count: int, whose: str = "") -> None:
        if count > 1:
            self.pulse.detail(f"micro-batch {number + 1} of {count}{whose}")

    def _micro_batches(self, batch: Batch) -> list[Batch]:
        parts = passes(batch.length, self.compute.micro_batch_tokens, self.settings.micro_batch)
        return [batch] if len(parts) == 1 else [batch.rows(rows) for rows in parts]


def _of_routes(micro: Batch, seen: Seen) -> dict[str, Tensor]:
    """Routing of a micro-batch: shares of the layers with other experts and the entropy, (B, T); the load,
    (L, E).

    `route_mismatch` compares sampler and old policy, `route_shift` old and present policy. Empty for a dense
    model.
    """
    if (chosen := seen.routes) is None or seen.entropy is None:
        return {}
    layers = len(seen.routers)
    before = 1
    after = micro.tokens.shape[1] - 1 - chosen.shape[1]
    now = pad(chosen.to(micro.tokens.device), (0, 0, before, after), value=experts_of(seen.routers[0]))
    found = {
        "router_entropy": pad(seen.entropy.to(micro.tokens.device), (before, after)),
        "load": load(now[micro.mask], layers, experts_of(seen.routers[0])),
    }
    if micro.routes_old is not None:
        found["route_shift"] = differing(micro.routes_old, now, layers)
        if micro.routes_behaviour is not None:
            found["route_mismatch"] = differing(micro.routes_behaviour, micro.routes_old, layers)
    return found


def _joined_routes(parts: Sequence[dict[str, Tensor]]) -> dict[str, list[Tensor]]:
    """The routing of all passes, by column."""
    return {name: _column(parts, name) for name in parts[0]}


def _column(parts: Sequence[dict[str, Tensor]], name: str) -> list[Tensor]:
    return [part[name] for part in parts]


def _largest_load(loads: list[Tensor]) -> float | None:
    """Largest share of a layer's assignments that one expert has, times the experts of a layer: 1 = all
    alike.
    """
    counts = torch.stack(loads).sum(0)
    total = float(counts[0].sum())  # as many in every layer
    return float(counts.max()) / total * counts.shape[1] if total else None


def non_finite(scalars: Mapping[str, float | None]) -> list[str]:
    """Return which of an update's numbers are not finite, losses before the gradients that they cause."""
    names = ("policy_loss", "value_loss", "grad_norm", "critic_grad_norm")
    return [name for name in names if not math.isfinite(scalars.get(name) or 0.0)]


def _bias_scalars(clipped: list[Tensor], taken: list[Tensor]) -> dict[str, float | None]:
    """|C|, |C| / |g| and cos(C, g), C the clipping bias and g the gradient of the surrogate without the clip.

    `clipped`: the gradient of the surrogate with it, so -g = `clipped` + `taken` and C = -`taken` in the
    signs of J = -loss (2511.20718, lemma 4.2). NULL where a norm is 0.
    """
    unclipped = torch._foreach_add(clipped, taken)
    bias = norm(taken)
    free = norm(unclipped)
    inner = float(sum((a * b).sum() for a, b in zip(taken, unclipped, strict=True)))
    return {
        "clip_bias_norm": bias,
        "clip_bias_ratio": bias / free if free else None,
        "clip_bias_cosine": inner / (bias * free) if bias and free else None,
    }
