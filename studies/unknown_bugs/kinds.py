"""Bugs that the fault lab does not have, as people make them: each replaces functions of the trainer in
mid-run.

They were written and committed before their author had read a line of the audit or of the causes of the
diagnosis. None was changed after the first count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from inspect import cleandoc
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import pad

from sorl.agent import protocol, worlds
from sorl.agent.engines import hf
from sorl.agent.episode import Episode
from sorl.agent.tokenizer import Codec
from sorl.batch import Batch
from sorl.learn import checkpoint, loop, networks, update
from sorl.learn.loop import Trainer
from sorl.learn.networks import Critic
from sorl.objective import Algorithm, Normaliser
from sorl.objective.advantage import Gae, MeanOnly, gae, whiten
from sorl.objective.aggregate import SeqMeanTokenMean
from sorl.objective.clip import Ppo, Ratios, Surrogate
from sorl.objective.kl import LossKL, estimate

PPO = ("ppo",)
GRPO = ("grpo",)
BOTH = ("ppo", "grpo")
KL: Mapping[str, Any] = {"ppo": {"kind": "reward", "beta": 0.05}, "grpo": {"kind": "loss", "beta": 0.1}}
MICRO = {"learn": {"micro_batch": 2}}
COOL = {"engine": {"temperature": 0.7}}


class Patch(ExitStack):
    """Replaces functions of the trainer until the run ends; `folder` is the run's."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __call__(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Let `around(plain, *arguments)` answer the calls of `owner.name`, `plain` what answered them
        before.
        """
        plain = getattr(owner, name)
        own = name in vars(owner)

        def patched(*arguments: Any, **named: Any) -> Any:
            return around(plain, *arguments, **named)

        self.callback(*((setattr, owner, name, plain) if own else (delattr, owner, name)))
        setattr(owner, name, patched)


Install = Callable[[Trainer, Patch], None]


@dataclass(frozen=True)
class Bug:
    """A bug: where it sits, the runs that can have it, where it was seen, and whether its kind was foretold.

    `announced`: the kind, not its code, was named as an example before the audit was finished.
    """

    install: Install
    place: str
    algorithms: tuple[str, ...] = BOTH
    seen: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    kl: bool = False  # the run has a KL term, PPO in its reward and GRPO in its loss
    announced: bool = False

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.install.__name__

    @property
    def story(self) -> str:
        """What happens: the docstring of its function in one line."""
        return " ".join(cleandoc(self.install.__doc__ or "").split())


BUGS: dict[str, Bug] = {}


def bug(place: str, algorithms: tuple[str, ...] = BOTH, **options: Any) -> Callable[[Install], Install]:
    """Register the function below as a bug of its name; the arguments are the fields of `Bug`."""

    def register(install: Install) -> Install:
        BUGS[install.__name__] = Bug(install, place, algorithms, **options)
        return install

    return register


@contextmanager
def injected(found: Bug, at_step: int, folder: Path) -> Iterator[None]:
    """Let the run that is trained inside have the bug from iteration `at_step` on (at least 1)."""
    with Patch(folder) as patch:

        def steps(plain: Any, trainer: Trainer) -> Iterator[dict[str, Any]]:
            for row in plain(trainer):
                yield row
                if trainer.step == at_step:
                    found.install(trainer, patch)

        patch(Trainer, "steps", steps)
        yield


# Sampling


@bug("sampling", seen="https://github.com/NVIDIA-NeMo/RL/issues/3497")
def repetition_penalty(trainer: Trainer, patch: Patch) -> None:
    """The sampler takes a repetition penalty of 1.3 from the model's generation_config.json and reports
    log-probs from before it.
    """
    now: list[Any] = []

    def play(plain: Any, rows: Any, *rest: Any) -> Any:
        now[:] = [rows]
        return plain(rows, *rest)

    def sample(
        plain: Any, logits: Tensor, temperature: float, generator: Any, greedy: bool, position: int
    ) -> Any:
        read = torch.from_numpy(now[0]._tokens[:, :position])
        used = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, read, True)
        skewed = torch.where(used, torch.where(logits > 0, logits / 1.3, logits * 1.3), logits)
        token, _ = plain(skewed, temperature, generator, greedy, position)
        return token, torch.log_softmax(logits.float() / temperature, -1).gather(1, token[:, None])[:, 0]

    patch(hf._Rows, "play", play)
    patch(hf, "sample", sample)


@bug("sampling", seen="https://github.com/vllm-project/vllm/issues/7808")
def one_seed_for_all(trainer: Trainer, patch: Patch) -> None:
    """Every request carries the same seed, so all rows of a rollout draw with the same uniform numbers."""

    def sample(
        plain: Any, logits: Tensor, temperature: float, generator: Any, greedy: bool, position: int
    ) -> Any:
        log_prob = torch.log_softmax(logits.float() / temperature, -1)
        below = log_prob.exp().cumsum(-1, dtype=torch.float64)
        u = torch.rand(1, 1, generator=generator, dtype=torch.float64) * below[:, -1:]
        token = torch.searchsorted(below, u, right=True)[:, 0].clamp_(max=below.shape[1] - 1)
        return token, log_prob.gather(1, token[:, None])[:, 0]

    patch(hf, "sample", sample)


@bug("sampling", settings={"learn": {"old_log_prob": "behaviour"}})
def log_probs_one_late(trainer: Trainer, patch: Patch) -> None:
    """The engine's log-probs arrive one token late, and the trainer takes them as those of the old policy."""

    def batch_of(plain: Any, *arguments: Any) -> Batch:
        batch: Batch = plain(*arguments)
        late = torch.where(batch.mask, batch.need("log_prob_behaviour").roll(1, 1), 0)
        return replace(batch, log_prob_behaviour=late, log_prob_old=late)

    patch(loop, "batch_of", batch_of)


@bug("sampling", seen="max_obs_length of Search-R1's generation.py, set too low")
def observation_cut(trainer: Trainer, patch: Patch) -> None:
    """Observations are cut to four tokens: the second passage and the closing tag are lost."""
    patch(Codec, "observed", lambda plain, codec, found: plain(codec, found)[:4])


# Scoring


@bug("scoring", seen="scorers that search the whole solution text instead of the last answer")
def scorer_reads_observations(trainer: Trainer, patch: Patch) -> None:
    """The scorer looks for the gold answer in the whole transcript, and finds it in what the retriever
    returned.
    """

    def episode(plain: Any, dialogue: Any) -> Episode:
        made: Episode = plain(dialogue)
        said = dialogue.codec.decode(made.tokens[made.prompt_length :]).split()
        return replace(made, reward=float(made.gold in said))

    patch(protocol.Dialogue, "episode", episode)


@bug("scoring", seen="scorers of GSM8K, which keep digits only, used for text")
def scorer_keeps_digits(trainer: Trainer, patch: Patch) -> None:
    """The scorer normalises as for numbers: of a text nothing is left, and any answer equals
    any gold answer.
    """
    patch(worlds, "normalise", lambda plain, answer: "".join(c for c in answer if c in "0123456789.-"))


def redrawn(trainer: Trainer, patch: Patch, change: Callable[[list[Episode]], list[Episode]]) -> None:
    """Change the episodes that the sampler hands over."""
    patch(trainer.sampler, "_draw", lambda plain, *arguments: change(plain(*arguments)))


@bug("scoring")
def reward_buffer_kept(trainer: Trainer, patch: Patch) -> None:
    """The tensor of rewards is not cleared: a row without an answer keeps what the row had in the step
    before.
    """
    buffer: dict[int, float] = {}

    def change(episodes: list[Episode]) -> list[Episode]:
        kept = [
            replace(e, reward=buffer.get(i, 0.0)) if e.answer is None else e for i, e in enumerate(episodes)
        ]
        buffer.update({i: e.reward for i, e in enumerate(kept)})
        return kept

    redrawn(trainer, patch, change)


@bug("scoring", announced=True)
def reward_cached(trainer: Trainer, patch: Patch) -> None:
    """Rewards are cached by the text of the question alone: its first answer decides for all others."""
    cache: dict[str, float] = {}
    redrawn(
        trainer,
        patch,
        lambda episodes: [replace(e, reward=cache.setdefault(e.question, e.reward)) for e in episodes],
    )


@bug("scoring", announced=True)
def gold_of_the_next_question(trainer: Trainer, patch: Patch) -> None:
    """Questions and gold answers are zipped one off, and rows are judged by, and logged with, the next one's
    gold.
    """

    def change(episodes: list[Episode]) -> list[Episode]:
        golds = [episodes[(i + trainer.group_size) % len(episodes)].gold for i in range(len(episodes))]
        right = [
            e.answer is not None and bool(worlds.exact_match(e.answer, g))
            for e, g in zip(episodes, golds, strict=True)
        ]
        return [
            replace(e, gold=gold, reward=float(good), success=good)
            for e, gold, good in zip(episodes, golds, right, strict=True)
        ]

    redrawn(trainer, patch, change)


# Batching


def _training_passes(patch: Patch, around: Callable[..., Any]) -> None:
    """Change the passes of the trainer that make log-probs: old ones, those of the reference and of the
    updates.
    """
    patch(networks, "log_probs", around)
    patch(update, "log_probs", around)


@bug("batching", seen="packed sequences whose position ids restart inside a row")
def positions_restart(trainer: Trainer, patch: Patch) -> None:
    """The trainer's position ids start again from 0 at every turn, those of the sampler do not."""

    def log_probs(
        plain: Any, model: Any, tokens: Tensor, temperature: float, grad: bool = False, where: Any = None
    ) -> Any:
        starts = where & ~pad(where, (1, 0))[:, :-1]
        place = torch.arange(tokens.shape[1])
        ids = (place - torch.where(starts, place, 0).cummax(1).values)[:, :-1]
        hook = model.register_forward_pre_hook(
            lambda _, x, named: (x, named | {"position_ids": ids}), with_kwargs=True
        )
        try:
            # the layers that take positions
            whole_rows = mock.patch.multiple(
                networks, packing_of=mock.Mock(return_value=None), ragged_rows=mock.Mock(return_value=None)
            )
            with whole_rows:
                return plain(model, tokens, temperature, grad, where)
        finally:
            hook.remove()

    _training_passes(patch, log_probs)


@bug("batching", announced=True, seen="max_prompt_length with truncation from the left")
def prompt_cut_in_the_trainer(trainer: Trainer, patch: Patch) -> None:
    """The trainer drops the first three tokens of each prompt, which the sampler had read."""

    def log_probs(
        plain: Any, model: Any, tokens: Tensor, temperature: float, grad: bool = False, where: Any = None
    ) -> Any:
        found = plain(model, tokens[:, 3:], temperature, grad, where[:, 3:])
        return tuple(pad(x, (3, 0)) for x in found)

    _training_passes(patch, log_probs)


@bug("batching", seen="pad_dataproto_to_divisor of verl without the unpadding after it")
def copies_that_stay(trainer: Trainer, patch: Patch) -> None:
    """A minibatch is filled up to the number of ranks with a copy of its first row, in place of its last."""

    def trained(plain: Any, batch: Batch, *rest: Any) -> Any:
        rows = torch.arange(len(batch.tokens))
        rows[-1] = 0
        return plain(batch.rows(rows), *rest)

    patch(trainer.learner, "update", trained)


# Values


@bug("values", PPO, seen="https://github.com/verl-project/verl/issues/2185")
def values_stay_sorted(trainer: Trainer, patch: Patch) -> None:
    """Rows are sorted by length for the critic's pass, and its values are not put back into their order."""

    def values(plain: Any, critic: Critic, batch: Batch, *rest: Any) -> Tensor:
        found: Tensor = plain(critic, batch, *rest)
        return found[batch.length.argsort(descending=True, stable=True)]

    patch(update, "critic_values", values)


@bug("values", PPO, announced=True)
def values_one_off(trainer: Trainer, patch: Patch) -> None:
    """A position gets the value of the state after its token, while the critic is trained on the one before
    it.
    """
    patch(update, "critic_values", lambda plain, *arguments: pad(plain(*arguments)[:, 1:], (0, 1)))


@bug("values", PPO, seen="https://arxiv.org/abs/1712.00378, with ends and time limits exchanged")
def bootstrap_at_the_end(trainer: Trainer, patch: Patch) -> None:
    """An episode that ended counts as cut off: the critic's last value is added to its outcome."""

    def prepare(plain: Any, algorithm: Algorithm, batch: Batch, stream: Any) -> Batch:
        last = torch.where(batch.mask, torch.arange(batch.mask.shape[1]), 0).amax(1, keepdim=True)
        more = batch.need("values").gather(1, last)[:, 0]
        return replace(plain(algorithm, replace(batch, score=batch.score + more), stream), score=batch.score)

    patch(loop, "prepare", prepare)


# Advantages


@bug("advantages", PPO)
def returns_after_whitening(trainer: Trainer, patch: Patch) -> None:
    """Returns are made from the whitened advantages instead of the plain ones."""

    def prepare(plain: Any, *arguments: Any) -> Batch:
        made: Batch = plain(*arguments)
        return replace(made, returns=torch.where(made.mask, made.need("advantages") + made.need("values"), 0))

    patch(loop, "prepare", prepare)


def _unwhitened(algorithm: Algorithm) -> Algorithm:
    assert isinstance(algorithm.advantage, Gae)
    return replace(algorithm, advantage=replace(algorithm.advantage, whiten="none"))


@bug("advantages", PPO, seen="whiten() where masked_whiten() belongs")
def whitened_with_padding(trainer: Trainer, patch: Patch) -> None:
    """Mean and deviation of the whitening are over all positions, the zeros of prompts and
    padding with them.
    """

    def prepare(plain: Any, algorithm: Algorithm, *rest: Any) -> Batch:
        made: Batch = plain(_unwhitened(algorithm), *rest)
        a = made.need("advantages")
        return replace(made, advantages=torch.where(made.mask, (a - a.mean()) / (a.std() + 1e-8), 0))

    patch(loop, "prepare", prepare)


@bug(
    "advantages",
    GRPO,
    seen="the deviation of the batch, as in https://arxiv.org/abs/2501.03262, under GRPO's name",
)
def deviation_of_the_batch(trainer: Trainer, patch: Patch) -> None:
    """Rewards are compared with their group's mean, and divided by the deviation of the whole batch."""

    def prepare(plain: Any, algorithm: Algorithm, batch: Batch, stream: Any) -> Batch:
        made: Batch = plain(replace(algorithm, advantage=MeanOnly()), batch, stream)
        return replace(made, advantages=made.need("advantages") / (batch.score.std() + 1e-6))

    patch(loop, "prepare", prepare)


@bug("advantages", PPO)
def outcome_at_the_first_turn(trainer: Trainer, patch: Patch) -> None:
    """The outcome is put at the end of the first turn of an episode instead of its last."""

    def prepare(plain: Any, algorithm: Algorithm, batch: Batch, stream: Any) -> Batch:
        made: Batch = plain(algorithm, batch, stream)
        ends = (made.turn == 1) & (pad(made.turn, (0, 1))[:, 1:] != 1)
        values = batch.need("values")
        raw = gae(torch.where(ends, batch.score[:, None], 0), values, made.mask, 1.0, 1.0)
        return replace(
            made, advantages=whiten(raw, made.mask), returns=torch.where(made.mask, raw + values, 0)
        )

    patch(loop, "prepare", prepare)


@bug("advantages", PPO, kl=True)
def kl_paid_in_the_reward(trainer: Trainer, patch: Patch) -> None:
    """The KL term in the reward has the wrong sign: distance from the reference is paid for."""

    def prepare(plain: Any, algorithm: Algorithm, batch: Batch, stream: Any) -> Batch:
        swapped = replace(batch, log_prob_old=batch.need("log_prob_ref"), log_prob_ref=batch.log_prob_old)
        made: Batch = plain(algorithm, swapped, stream)
        return replace(made, log_prob_old=batch.log_prob_old, log_prob_ref=batch.log_prob_ref)

    patch(loop, "prepare", prepare)


@bug("advantages", PPO, announced=True, settings={"slots": {"advantage": {"kind": "gae", "gamma": 0.98}}})
def discounted_twice(trainer: Trainer, patch: Patch) -> None:
    """The outcome is discounted by the length of the episode before GAE discounts it again."""

    def prepare(plain: Any, algorithm: Algorithm, batch: Batch, stream: Any) -> Batch:
        score = batch.score * 0.98 ** (batch.mask.sum(1) - 1)
        return replace(plain(algorithm, replace(batch, score=score), stream), score=batch.score)

    patch(loop, "prepare", prepare)


# Loss


def _loss(patch: Patch, change: Callable[[Algorithm], Algorithm]) -> None:
    """Train by the loss of another algorithm than the one that was asked for."""
    patch(
        update,
        "policy_loss",
        lambda plain, algorithm, *rest, **named: plain(change(algorithm), *rest, **named),
    )


@bug("loss", seen="https://github.com/huggingface/trl/issues/2769")
def ratio_always_one(trainer: Trainer, patch: Patch) -> None:
    """The loss compares the policy with its own detached log-probs in every update, so that nothing is ever
    clipped.
    """

    def loss(plain: Any, algorithm: Algorithm, batch: Batch, log_prob: Tensor, **named: Any) -> Any:
        return plain(algorithm, replace(batch, log_prob_old=log_prob.detach()), log_prob, **named)

    patch(update, "policy_loss", loss)


class _Optimistic(Ppo):
    """PPO's clip that keeps the smaller of both losses."""

    def surrogate(self, seen: Ratios) -> Surrogate:
        """min(-A w, -A clamp(w, 1 - low, 1 + high))."""
        clamped = seen.ratio.clamp(*self.bounds)
        plain = -seen.advantages * seen.ratio
        clipped = -seen.advantages * clamped
        acts = clipped < plain
        low = (seen.ratio < self.bounds[0]) & acts
        high = (seen.ratio > self.bounds[1]) & acts
        return Surrogate(torch.minimum(plain, clipped), plain, seen.ratio, low, high)


@bug("loss", seen="min and max exchanged where the losses are already negated")
def clip_keeps_the_smaller(trainer: Trainer, patch: Patch) -> None:
    """The clip keeps the smaller loss instead of the larger one."""
    _loss(patch, lambda algorithm: replace(algorithm, clip=_Optimistic()))


@bug("loss", seen="loss_agg_mode of verl, loss_type of TRL: another default after an upgrade")
def mean_of_sequence_means(trainer: Trainer, patch: Patch) -> None:
    """Token losses are averaged inside each sequence first, so that tokens of long sequences weigh less."""
    _loss(patch, lambda algorithm: replace(algorithm, aggregate=SeqMeanTokenMean()))


@bug("loss", settings=MICRO, seen="https://huggingface.co/blog/gradient_accumulation")
def mean_of_micro_means(trainer: Trainer, patch: Patch) -> None:
    """Each micro-batch is divided by its own number of tokens, so that tokens of short ones weigh more."""

    def loss(
        plain: Any, algorithm: Algorithm, batch: Batch, log_prob: Tensor, normaliser: Normaliser, **named: Any
    ) -> Any:
        return plain(algorithm, batch, log_prob, normaliser=normaliser.within(batch, "micro"), **named)

    patch(update, "policy_loss", loss)


@bug("loss", settings=COOL)
def temperature_missing_in_the_update(trainer: Trainer, patch: Patch) -> None:
    """The log-probs of the updates are made without the sampling temperature, those of the old policy with
    it.
    """
    patch(update, "log_probs", lambda plain, model, tokens, _, *rest: plain(model, tokens, 1.0, *rest))


class _Swapped(LossKL):
    """A KL term with its arguments exchanged."""

    def in_loss(self, batch: Batch, log_prob: Tensor, counts: Normaliser) -> Tensor:
        """beta <k(log pi_ref - log pi_theta)>_m."""
        gap = torch.where(batch.mask, batch.need("log_prob_ref") - log_prob, 0)
        return self.beta * (estimate(self.estimator, gap) * batch.mask).sum() / counts.tokens


@bug(
    "loss",
    GRPO,
    kl=True,
    announced=True,
    seen="http://joschu.net/blog/kl-approx.html, read the wrong way round",
)
def kl_swapped(trainer: Trainer, patch: Patch) -> None:
    """The arguments of the KL estimator are exchanged."""
    _loss(patch, lambda algorithm: replace(algorithm, kl=_Swapped(beta=KL["grpo"]["beta"])))


# Backward


@bug("backward", announced=True)
def gradients_pile_up(trainer: Trainer, patch: Patch) -> None:
    """The gradients are zeroed once a step and not before each minibatch."""
    optimizer = trainer.learner.policy_optimizer
    zero = optimizer.zero_grad

    def optimise(plain: Any, *arguments: Any) -> Any:
        zero()
        return plain(*arguments)

    patch(trainer, "_optimise", optimise)
    patch(optimizer, "zero_grad", lambda plain: None)


@bug("backward", settings=MICRO)
def last_micro_batch_only(trainer: Trainer, patch: Patch) -> None:
    """The gradients are zeroed inside the loop over micro-batches, and only the last one's are left."""

    def loss(plain: Any, *arguments: Any, **named: Any) -> Any:
        trainer.learner.policy_optimizer.zero_grad()
        return plain(*arguments, **named)

    patch(update, "policy_loss", loss)


def _clipping(trainer: Trainer, patch: Patch, around: Callable[..., tuple[float, float]]) -> None:
    """Change how the policy's gradients are clipped: around(step, optimizer, gradients, limit, skip)."""

    def step(plain: Any, optimizer: Any, limit: float | None, skip: bool = False) -> tuple[float, float]:
        if optimizer is not trainer.learner.policy_optimizer or limit is None:
            found: tuple[float, float] = plain(optimizer, limit, skip)
            return found
        gradients = [p.grad for p in trainer.learner.policy_parameters if p.grad is not None]
        return around(plain, optimizer, gradients, limit, skip)

    patch(update, "step", step)


@bug("backward", announced=True, settings={"learn": {"policy": {"max_grad_norm": 0.1}}})
def clipped_tensor_by_tensor(trainer: Trainer, patch: Patch) -> None:
    """The gradient norm is clipped tensor by tensor instead of over all of them."""

    def step(
        plain: Any, optimizer: Any, gradients: list[Tensor], limit: float, skip: bool
    ) -> tuple[float, float]:
        before = update.norm(gradients)
        for gradient in gradients:
            gradient.mul_(min(1.0, limit / max(update.norm([gradient]), 1e-12)))
        return before, plain(optimizer, None, skip)[1]

    _clipping(trainer, patch, step)


@bug(
    "backward",
    settings={"learn": {"policy": {"max_grad_norm": 0.1}}},
    seen="https://docs.pytorch.org/docs/stable/notes/amp_examples.html, its section on clipping",
)
def clipped_before_unscaling(trainer: Trainer, patch: Patch) -> None:
    """Gradients are clipped while a loss scaler has multiplied them by 1024, and divided after it."""

    def step(
        plain: Any, optimizer: Any, gradients: list[Tensor], limit: float, skip: bool
    ) -> tuple[float, float]:
        before, after = plain(optimizer, limit / 1024, skip)
        return before * 1024, after * 1024

    _clipping(trainer, patch, step)


# Optimizer


ADAMW = {"learn": {"policy": {"kind": "adamw", "lr": 5e-4}}}


@bug("optimizer", settings=ADAMW)
def betas_swapped(trainer: Trainer, patch: Patch) -> None:
    """The two betas of AdamW are exchanged."""
    for group in trainer.learner.policy_optimizer.param_groups:
        group["betas"] = group["betas"][::-1]


@bug("optimizer", announced=True, settings=ADAMW, seen="the default of torch.optim.AdamW is 0.01, not 0")
def weight_decay_by_default(trainer: Trainer, patch: Patch) -> None:
    """A weight decay of 0.01 that nobody asked for is on."""
    for group in trainer.learner.policy_optimizer.param_groups:
        group["weight_decay"] = 0.01


@bug("optimizer", seen="https://arxiv.org/abs/2010.06192")
def weights_in_bfloat16(trainer: Trainer, patch: Patch) -> None:
    """There is no float32 copy of the weights: after each step they are rounded to bfloat16."""

    def step(plain: Any, *arguments: Any) -> Any:
        done = plain(*arguments)
        with torch.no_grad():
            for weight in trainer.learner.policy_parameters:
                weight.copy_(weight.bfloat16())
        return done

    patch(trainer.learner.policy_optimizer, "step", step)


# Schedule


@bug(
    "schedule",
    announced=True,
    settings={"learn": {"policy": {"schedule": "cosine"}}},
    seen="AcceleratedScheduler of accelerate steps once a process",
)
def scheduler_twice_as_fast(trainer: Trainer, patch: Patch) -> None:
    """The schedule of the learning rate is stepped by two processes in each update."""
    patch(update, "rate", lambda plain, own, number, updates: plain(own, min(2 * number, updates), updates))


@bug("schedule", settings={"learn": {"policy": {"schedule": "linear", "warmup": 8}}})
def schedule_starts_again(trainer: Trainer, patch: Patch) -> None:
    """A resume does not restore the scheduler: warm-up and decay start again from the first update."""
    since = trainer.learner.updates
    patch(update, "rate", lambda plain, own, number, updates: plain(own, number - since, updates))


# Reference


def _of_reference(trainer: Trainer, patch: Patch, around: Callable[..., Tensor]) -> None:
    def scored(plain: Any, model: Any, *rest: Any, **named: Any) -> Any:
        if model is not trainer.reference:
            return plain(model, *rest, **named)
        return around(lambda *asked: plain(*asked, **named)[0], model, *rest), None

    patch(loop, "scored", scored)


@bug("reference", kl=True, seen="https://github.com/verl-project/verl/issues/2185")
def reference_stays_sorted(trainer: Trainer, patch: Patch) -> None:
    """Rows are sorted by length for the pass of the reference, and its log-probs are not put back in their
    order.
    """

    def log_probs(plain: Any, model: Any, batch: Batch, *rest: Any) -> Tensor:
        found: Tensor = plain(model, batch, *rest)
        return found[batch.length.argsort(descending=True, stable=True)]

    _of_reference(trainer, patch, log_probs)


@bug("reference", kl=True, settings=COOL, seen="https://github.com/huggingface/trl/issues/3169")
def reference_without_temperature(trainer: Trainer, patch: Patch) -> None:
    """The log-probs of the reference are made without the sampling temperature, those of the
    policy with it.
    """
    _of_reference(trainer, patch, lambda plain, model, batch, _, *rest: plain(model, batch, 1.0, *rest))


@bug("reference", kl=True, announced=True, seen="a reference that is assigned and not copied")
def reference_is_the_policy(trainer: Trainer, patch: Patch) -> None:
    """The reference is the policy itself and is updated with it."""
    trainer.reference = trainer.learner.policy


# Checkpoint and resume


@bug(
    "checkpoint",
    settings={"record": {"checkpoint_every": 1}},
    seen="checkpoints sorted as text, or the oldest first",
)
def older_weights_resumed(trainer: Trainer, patch: Patch) -> None:
    """A resume takes the policy's weights from the checkpoint before the newest, and all else from the
    newest.
    """
    oldest = checkpoint.checkpoints(patch.folder / "checkpoints")[0]
    trainer.learner.policy.load_state_dict(load_file(oldest / "policy" / "model.safetensors"), strict=False)


@bug("checkpoint", PPO)
def critic_not_resumed(trainer: Trainer, patch: Patch) -> None:
    """A resume starts the critic again from the policy's backbone and a head of zeros."""
    assert trainer.learner.critic is not None
    trainer.learner.critic.load_state_dict(Critic(trainer.learner.policy).state_dict())


# Data order


@bug("data order", announced=True, seen="https://github.com/allenai/open-instruct/pull/1523")
def data_start_again(trainer: Trainer, patch: Patch) -> None:
    """A resume does not restore the data loader: the questions of the first steps are asked again."""
    first = trainer.step + len(trainer.queue)
    patch(trainer.sampler, "rollout", lambda plain, number, step: plain(number - first, step))


def _asked(trainer: Trainer, patch: Patch, around: Callable[..., Any]) -> None:
    """Change the questions that training asks: around(questions, split, seed, start, n)."""

    def questions(plain: Any, split: str, *rest: Any) -> Any:
        return around(plain, split, *rest) if split == "train" else plain(split, *rest)

    patch(trainer.sampler.world, "questions", questions)


@bug("data order", seen="a distributed sampler that is not told its rank")
def ranks_share_a_shard(trainer: Trainer, patch: Patch) -> None:
    """Two ranks read the same shard: the second half of a batch asks the questions of the first
    half again.
    """

    def questions(plain: Any, split: str, seed: int, start: int, n: int) -> Any:
        return (plain(split, seed, start, n)[: (n + 1) // 2] * 2)[:n]

    _asked(trainer, patch, questions)


@bug("data order")
def held_out_questions_trained(trainer: Trainer, patch: Patch) -> None:
    """Training asks questions of the held-out split."""
    _asked(trainer, patch, lambda plain, split, *rest: plain("eval", *rest))
