"""A stored step with all that is recomputed from it: transcripts, log-probs, gradients."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sorl.agent.episode import collate
from sorl.agent.protocol import Dialogue, turn_length
from sorl.agent.retrievers import RetrieverDown
from sorl.agent.tokenizer import Codec
from sorl.agent.worlds import build
from sorl.audit.comparison import EXACT, ROUNDINGS, Owner, explain, spacing
from sorl.audit.declaration import Declaration
from sorl.batch import Batch
from sorl.learn.networks import autocast, critic_values, scored
from sorl.learn.update import rate
from sorl.learn.warmstart import tokenizer_of
from sorl.measures.evidence import Missing
from sorl.objective import Algorithm, prepare
from sorl.objective.advantage import positions, value_loss
from sorl.replay.networks import Draws, Networks, norm
from sorl.replay.play import Loaded, gradients_of
from sorl.spec import ComputeSettings, RunSettings
from sorl.spec.evidence import Check
from sorl.store.batches import StoredBatch, StoredUpdate

GRADIENT = {"float32": 0.01, "bfloat16": 0.1}  # share of a gradient norm
# What a batch says that has no list of it.
TOLD_BY_DEFAULT = frozenset({"group", "mask"})
_UNTOLD_ARRAYS = {
    "log_prob": "log-probs of the policy at each update",
    "log_prob_old": "the trainer's own log-probs before the updates",
    "advantages": "the advantages that were trained on",
    "score": "the reward of each rollout",
}
BEGINS = "it begins with other weights than those that the updates before it lead to"


@dataclass
class Retaken:
    """The updates of a step, taken once more from its first weights by one network."""

    networks: Networks
    # of each update: gap to the log-probs or values that it stored
    begins: list[Check] = field(default_factory=list)
    gradients: list[Check] = field(default_factory=list)  # its gradient norm, where it begins as in the run
    missing: str = ""  # why the updates after those of `begins` could not be taken


class _Gradient(NamedTuple):
    """The gradient of an update, computed from stored weights."""

    tensors: list[Tensor]
    gap: float  # largest |recomputed - stored| of its log-probs (nats) or values


class _TakenAgain(NamedTuple):
    """The gradient of an update, and the update with the scalars of the network that has it."""

    gradient: _Gradient
    update: StoredUpdate


@dataclass
class Case:
    """A stored step, what its run says of itself, and the other stored steps of the run."""

    stored: StoredBatch
    declared: Declaration
    read: Callable[[int], StoredBatch | None]  # a step with its weights; None where it is not stored

    def __post_init__(self) -> None:
        self.networks = cache(self._loaded)
        self.log_probs_at = cache(self._log_probs)
        self.retaken_updates = cache(self._retake)

    @property
    def settings(self) -> RunSettings:
        """The settings of sorl's own trainer; raises Missing for a run of another."""
        return self.declared.settings

    @cached_property
    def own(self) -> Algorithm:
        """The algorithm that ran."""
        return self.declared.algorithm(self.stored.meta)

    def hold(self, *slots: str) -> None:
        """Raise Missing where the run does not say what it has in one of these slots of its algorithm."""
        self.declared.hold(self.stored.meta, *slots)

    def hold_loss(self, *slots: str) -> None:
        """The same of the slots of the loss, which a rollout correction of the trainer's own changes too."""
        self.hold(*slots)
        if "correction" in self.told and self.own.correction.kind == "none":
            raise self.declared.lacks("algorithm")

    def need_told(self, *names: str) -> None:
        """Raise Missing where the trainer did not tell one of these arrays and another stands in for it."""
        for name in names:
            if name in self.stored.absent:
                raise Missing(_UNTOLD_ARRAYS[name])

    def need_whole_groups(self) -> None:
        """Raise Missing where the rewards that the advantages were made of are not all here."""
        if "group" not in self.told and self.own.group_size > 1:
            raise self.declared.lacks("group")
        sizes = np.array(self.stored.meta.get("group_rollouts", []))
        _, group, counts = np.unique(self.stored.group, return_inverse=True, return_counts=True)
        if len(sizes) and (counts[group] < sizes).any():
            raise self.declared.lacks("whole_groups")

    def advantage_rounding(self) -> np.ndarray:
        """How far rounding of the rewards in float32 moves the advantage of each row, (B,).

        Rewards of a group that are equal but for rounding are divided by nearly nothing. What that does to a
        row is computed: every second reward is moved by one unit in its last place.
        """
        batch = self.loaded.batch
        signs = torch.ones_like(batch.score)
        signs[::2] = -1
        moved = replace(batch, score=batch.score * (1 + signs * torch.finfo(torch.float32).eps))
        made = prepare(self.own, moved).need("advantages")
        apart = (made - self.loaded.estimated(self.own).need("advantages")).abs()
        return np.asarray(ROUNDINGS * apart.amax(1).numpy())

    def stored_nats(self, log_probs: np.ndarray) -> float:
        """How far two stored log-probs may be apart that are one number, by the precision that they have."""
        mask = self.stored.mask
        size = max(1.0, float(np.abs(log_probs[mask]).max(initial=0.0)))
        return EXACT + ROUNDINGS * spacing(log_probs[mask]) * size

    @property
    def told(self) -> Collection[str]:
        """What a ledger was told of the step, by name; of a run of sorl's own trainer everything."""
        return self.stored.meta.get("told", TOLD_BY_DEFAULT)

    @cached_property
    def loaded(self) -> Loaded:
        """The batch as tensors."""
        return Loaded(self.stored, self.own, torch.float32)

    @property
    def sampled_at(self) -> int:
        """Iteration whose policy sampled the batch."""
        return self.stored.updates[0].rollout_step if self.stored.updates else self.stored.step

    @cached_property
    def draws(self) -> Draws:
        """How likely the sampled tokens are under the policy that sampled."""
        return self.networks(self.sampled_at).draws(self.stored)

    def compare(
        self,
        logged: Any,
        expected: Any,
        where: np.ndarray | None = None,
        tolerance: float = 0.0,
        says: str = "",
    ) -> Check:
        """Compare two arrays (B, T) of the batch, at `where`; `says` is told where the difference has no
        reading.
        """
        a, b = (x.detach().numpy() if isinstance(x, Tensor) else np.asarray(x) for x in (logged, expected))
        found = explain(a, b, np.ones(a.shape, bool) if where is None else where, tolerance)
        rows = tuple(int(self.stored.trajectory[i]) for i in found.trajectories)
        return replace(found, trajectories=rows, says=found.says or (says if rows else ""))

    def number(
        self,
        logged: float | None,
        expected: float,
        share: float = EXACT,
        *,
        least: float = 0.0,
        says: str = "",
        **more: Any,
    ) -> Check:
        """Compare two numbers, to a share of the expected one or `least`, and say how many times as large it
        is.
        """
        if logged is None:
            return Check(missing="needs the trainer's own number", **more)
        tolerance = max(share * max(abs(expected), 1e-3), least)
        gap = _gap_of_numbers(logged, expected)
        if gap > tolerance and not says and expected and math.isfinite(logged):
            says = f"{logged / expected:.4g} times what it must be"
        says = says if gap > tolerance else ""
        return Check(gap=gap, tolerance=tolerance, logged=logged, expected=expected, says=says, **more)

    @cached_property
    def world_batch(self) -> Batch:
        """The episodes once more: the world gets the stored turns, and answers and scores them as it does
        today.
        """
        settings = self.settings
        stored = self.stored
        if settings.world.kind == "dataset":
            raise Missing("the questions of the run (only worlds of our own are asked again)")
        if self.own.select.rounds > 1:
            raise Missing("which questions the selection drew again")
        if settings.fault is None and settings.world.retriever.kind == "http":
            raise Missing("what the retriever's server answered then")
        world: Any = build(settings.world)
        codec = self._codec(world)
        size = settings.learn.group_size or self.own.group_size
        prompts = settings.learn.episodes // size
        questions = world.questions("train", settings.seed, stored.step * prompts, prompts)
        episodes = []
        for row, length in enumerate(stored.length.tolist()):
            dialogue = Dialogue(world, codec, questions[row // size], row // size)
            rest = stored.tokens[row, dialogue.prompt_length : length].tolist()
            # a turn ends with its closing tag, or is as long as it may be
            while rest and dialogue.ended is None:
                turn = rest[: turn_length(codec, rest[: world.max_turn_tokens])]
                try:
                    read = dialogue.turn(turn, [0.0] * len(turn))
                except RetrieverDown as down:
                    raise Missing(f"the retriever: {down}") from None
                rest = rest[len(turn) + len(read) :]
            if dialogue.ended is None:
                dialogue.stop()
            episodes.append(dialogue.episode())
        return collate(episodes, codec.pad_id)

    def _codec(self, world: Any) -> Codec:
        """Text to tokens as in the run. Raises Missing where its model is not on this machine."""
        settings = self.settings
        if settings.model is None:
            return Codec(world.tokenizer(), settings.wording)
        folder = Path(settings.model).expanduser()
        if not folder.is_dir():
            raise Missing(f"the tokenizer of the run's model: there is no folder '{settings.model}' here")
        return Codec(tokenizer_of(folder), settings.wording)

    def _loaded(self, step: int) -> Networks:
        """Policy and critic at the start of a step. Raises Missing where their weights are not stored."""
        found = self.stored if step == self.stored.step else self.read(step)
        if found is None or not found.weights:
            raise self.declared.lacks_weights(step)
        return Networks(found)

    def _log_probs(self, step: int, replay: bool = True, compute: ComputeSettings | None = None) -> Tensor:
        """Log-probs (B, T) under the policy of a step, by the trainer's forward; `replay`: by the run's own
        experts.
        """
        networks = self.networks(step)
        batch = self.loaded.batch
        given = self.own.routing.replayed(replace(batch, routes_old=None)) if replay else None
        return scored(networks.policy, batch, networks.temperature, compute or networks.compute, given)[0]

    def nats(self, step: int, sampler: bool = False) -> float:
        """How far log-probs under the policy of a step may be apart by rounding alone, the sampler's or the
        trainer's.

        In bfloat16 that depends on weights and tokens, so it is measured: trainer and sampler are computed
        once more, each in its own precision, and in float32. vLLM has other kernels, and gets as much as our
        sampler in bfloat16.
        """
        engine = self.settings.engine
        plain = self.settings.compute.dtype == "float32"
        exact_sampler = not sampler or (engine.dtype == "float32" and engine.kind == "hf")
        if plain and exact_sampler:
            return EXACT
        batch = self.loaded.batch
        exact = self._log_probs(step, compute=self._plain)
        apart = float((self.log_probs_at(step) - exact).abs().max())
        if not exact_sampler:
            rounded = self.networks(step).decoded(
                batch.tokens, engine.model_copy(update={"dtype": "bfloat16"})
            )
            apart += float(torch.where(batch.mask, (rounded - exact).abs(), 0).max())
        return EXACT + ROUNDINGS * apart

    def value_tolerance(self, step: int) -> float:
        """The same of values, whose size is the rewards' and not 1; a critic that says 0 has no rounding to
        measure.
        """
        critic = self.networks(step).critic
        batch = self.loaded.batch
        exact = critic_values(critic, batch, self._plain)
        size = max(1.0, float(exact.abs().max()))
        if self.settings.compute.dtype == "float32":
            return EXACT * size
        rounded = critic_values(critic, batch, self._plain.model_copy(update={"dtype": "bfloat16"}))
        return ROUNDINGS * max(torch.finfo(torch.bfloat16).eps * size, float((rounded - exact).abs().max()))

    @property
    def _plain(self) -> ComputeSettings:
        return self.settings.compute.model_copy(update={"device": "cpu", "dtype": "float32"})

    def _retake(self, owner: Owner) -> Retaken:
        """The updates of the step by policy or critic; stops after one that does not begin where the run's
        began.
        """
        stored = self.stored
        tolerance = self.nats(stored.step) if owner == "policy" else self.value_tolerance(stored.step)
        if self.settings.learn.balance_coef and stored.routes_behaviour is not None and owner == "policy":
            raise Missing("the gradient of the load-balancing loss (learn.balance_coef)")
        done = Retaken(self._loaded(stored.step))
        share = GRADIENT[self.settings.compute.dtype]
        for stored_update in stored.updates:
            gradient, update = self._take_again(owner, done.networks, stored_update)
            gap = gradient.gap
            begins = Check(update=update.index, gap=gap, tolerance=tolerance, logged=gap, expected=0.0)
            done.begins.append(replace(begins, says=BEGINS if begins.violated else ""))
            if begins.violated:
                done.missing = f"the weights of the run from update {update.index} on"
                break
            logged = update.scalars.get("grad_norm")
            done.gradients.append(self.number(logged, norm(gradient.tensors), share, update=update.index))
            reason = done.networks.step(gradient.tensors, update, owner)
            if reason:
                done.missing = f"the optimizer's state after update {update.index}: {reason}"
                break
        return done

    def _take_again(self, owner: Owner, networks: Networks, update: StoredUpdate) -> _TakenAgain:
        """The gradient of an update at these weights, and the update with the owner's own scalars."""
        if owner == "policy":
            bias = self.own.stabilise.needs_bias
            at_update = gradients_of(self.loaded, {"": self.own}, update, networks, bias)
            return _TakenAgain(_Gradient(at_update.loss[""], at_update.log_prob_gap), update)
        gradient = self._critic_gradient(networks, update)
        logged = update.scalars.get("critic_grad_norm")
        bound = self.settings.learn.critic.max_grad_norm or math.inf
        after = None if logged is None else min(logged, bound)
        lr = self.rate(owner, update.index)
        scalars = {"grad_norm": logged, "grad_norm_after": after, "lr": lr}
        return _TakenAgain(gradient, replace(update, scalars=scalars))

    def rate(self, owner: Owner, index: int) -> float:
        """The learning rate that the schedule gives an update of the step."""
        learn = self.settings.learn
        planned = self.settings.planned_iterations
        settings = getattr(learn, owner)
        first = self.stored.meta.get("update")
        if first is None and (settings.schedule != "constant" or settings.warmup):
            raise Missing("the number of updates before the step")
        return rate(settings, int(first or 0) + index, planned * learn.epochs * learn.minibatches)

    def _critic_gradient(self, networks: Networks, update: StoredUpdate) -> _Gradient:
        if update.values is None:
            raise Missing("the critic's values in each update")
        batch = self.rows(update)
        where = self.own.advantage.critic_mask
        target = positions(batch, where)
        parameters = list(networks.critic.parameters())
        values = []
        total = [torch.zeros_like(p) for p in parameters]
        for rows in torch.arange(len(batch.tokens)).split(list(update.passes)):
            part = batch.rows(rows)
            recomputed = self._critic_values(networks, part)
            with torch.enable_grad():
                loss = value_loss(recomputed, part, self.settings.learn.value_clip, where, target.sum())
            torch._foreach_add_(total, torch.autograd.grad(loss, parameters))
            values.append(recomputed.detach())
        gap = torch.where(target, (torch.cat(values) - torch.from_numpy(update.values)).abs(), 0).max()
        return _Gradient(total, float(gap))

    def _critic_values(self, networks: Networks, part: Batch) -> Tensor:
        """Values (b, T) of a pass, with gradient; computed at the width of its longest row."""
        trimmed = part.trimmed()
        asked = trimmed.mask | positions(trimmed, self.own.advantage.critic_mask)
        with torch.enable_grad(), autocast(torch.device("cpu"), networks.compute):
            short = networks.critic(trimmed.tokens, asked)
        with torch.enable_grad():
            return pad(short, (0, part.tokens.shape[1] - short.shape[1]))

    def rows(self, update: StoredUpdate) -> Batch:
        """The sequences of an update, as they were trained on."""
        return self.loaded.trained.rows(torch.from_numpy(update.rows).long())


def _gap_of_numbers(logged: float, expected: float) -> float:
    """|logged - expected|; 0 for two NaN or two equal infinities, else infinite where one is not finite."""
    if math.isfinite(logged) and math.isfinite(expected):
        return abs(logged - expected)
    return 0.0 if str(logged) == str(expected) else math.inf
