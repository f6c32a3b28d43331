"""What a sampler does wrong, one function a kind, with real weights and real passes; and clean samplers.

A sampler makes the rollouts of a step. `Scene` is one dump's course and its drawn strength; `Rolled` is what
it made: episodes with the sampler's log-probs, the ids that the trainer reads, and the versions that are
told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sorl.agent.engines import hf
from sorl.agent.episode import Episode, collate
from sorl.agent.routing import routers
from sorl.agent.tokenizer import build_tokenizer
from sorl.agent.worlds import build
from sorl.batch import Batch
from sorl.learn.faults.kinds import rounded
from sorl.learn.networks import scored
from sorl.spec import EngineSettings
from studies.mismatch.courses import Course

GROUPS = 4  # questions a step
ROLLOUTS = 3  # a question
MOST_TURNS = 3


@dataclass(frozen=True)
class Scene:
    """One dump before it is made: its course, length and what was drawn for it."""

    course: Course
    steps: int
    pool: int  # questions that come again and again; more than the steps ask for: none comes twice
    kind: str
    variant: str
    strength: float
    onset: int  # first step with the fault
    trainer_bits: int | None  # mantissa that the trainer's products read; None: float32
    draw: np.random.Generator = field(repr=False)

    def questions(self, step: int) -> list[Any]:
        """The questions of a step."""
        world = build(self.course.settings.world)
        first = step * GROUPS % self.pool
        return world.questions("train", self.course.settings.seed, first, GROUPS)


@dataclass(frozen=True)
class Rolled:
    """The rollouts of a step."""

    episodes: list[Episode]
    versions: list[int]  # by episode: the step whose weights the sampler says it has
    trained: list[list[int]]  # by episode: the token ids that the trainer reads


Sampler = Callable[[Scene, int], Rolled]


def roll_out(
    scene: Scene,
    step: int,
    model: PreTrainedModel,
    dtype: Literal["float32", "bfloat16"] = "float32",
    temperature: float = 1.0,
    of_groups: Sequence[int] = range(GROUPS),
) -> list[Episode]:
    """Episodes of a step by a model."""
    settings = EngineSettings(dtype=dtype, temperature=temperature)
    world = build(scene.course.settings.world.model_copy(update={"max_turns": MOST_TURNS}))
    engine = hf.HFEngine(model, build_tokenizer(), settings)
    asked = scene.questions(step)
    groups = np.repeat(list(of_groups), ROLLOUTS).tolist()
    questions = [asked[group] for group in groups]
    stream = torch.Generator().manual_seed(int(scene.draw.integers(2**31)))
    return engine.rollout(world, questions, groups, stream)


def as_sampled(episodes: list[Episode], step: int) -> Rolled:
    """Rollouts that say they are of the newest weights, and that are trained on as they are."""
    return Rolled(episodes, [step] * len(episodes), [list(episode.tokens) for episode in episodes])


def honest(scene: Scene, step: int) -> Rolled:
    """The trainer's weights of the step."""
    return as_sampled(roll_out(scene, step, scene.course.sampler(step)), step)


def late(scene: Scene, step: int) -> Rolled:
    """Groups of different age, up to `strength` steps, each with its true version."""
    rolled: list[Episode] = []
    versions: list[int] = []
    oldest = min(step, int(scene.strength))
    ages = scene.draw.integers(0, oldest + 1, GROUPS) if scene.variant == "mixed" else [oldest] * GROUPS
    for age in sorted(set(map(int, ages))):
        groups = [group for group in range(GROUPS) if ages[group] == age]
        rolled += roll_out(scene, step, scene.course.sampler(step - age), of_groups=groups)
        versions += [step - age] * (len(rolled) - len(versions))
    return replace(as_sampled(rolled, step), versions=versions)


def never_synced(scene: Scene, step: int) -> Rolled:
    """The weights of the onset, said to be the newest."""
    return as_sampled(roll_out(scene, step, scene.course.sampler(min(step, scene.onset))), step)


def temperature(scene: Scene, step: int) -> Rolled:
    """Another temperature, in the draws and in the log-probs."""
    model = scene.course.sampler(step)
    used = scene.strength if step >= scene.onset else 1.0
    return as_sampled(roll_out(scene, step, model, temperature=used), step)


def top_p(scene: Scene, step: int) -> Rolled:
    """The most likely tokens with `strength` of the mass, and their log-probs among themselves."""
    whole = hf.sample

    def truncated(logits: Tensor, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
        ordered, order = torch.log_softmax(logits.float(), -1).sort(descending=True)
        above = ordered.exp().cumsum(-1) - ordered.exp()
        kept = torch.where(above < scene.strength, ordered, -torch.inf)
        back = torch.full_like(kept, -torch.inf).scatter(-1, order, kept)
        # `sample` refuses a row of infinite logits only where no log-prob is finite
        return whole(back, *arguments, **named)

    if step < scene.onset:
        return honest(scene, step)
    with patch.object(hf, "sample", truncated):
        return as_sampled(roll_out(scene, step, scene.course.sampler(step)), step)


def precision(scene: Scene, step: int) -> Rolled:
    """A pass in bfloat16, or on weights of fewer bits."""
    model = scene.course.sampler(step)
    if scene.variant == "bfloat16":
        return as_sampled(roll_out(scene, step, model, dtype="bfloat16"), step)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if scene.variant == "weights" or "embed" not in name:
                weight.copy_(rounded(weight, int(scene.strength)))
    return as_sampled(roll_out(scene, step, model), step)


def other_tokens(scene: Scene, step: int) -> Rolled:
    """The trainer reads other ids than were sampled, from some token on."""
    rolled = honest(scene, step)
    if step < scene.onset:
        return rolled
    change = {"shift": _shifted, "word": _replaced, "template": _other_template}[scene.variant]
    trained = []
    for episode in rolled.episodes:
        hit = scene.variant == "template" or scene.draw.random() < scene.strength
        trained.append(change(scene, episode) if hit else list(episode.tokens))
    return replace(rolled, trained=trained)


def _place(scene: Scene, episode: Episode) -> int:
    """A written token of the first two thirds."""
    written = np.flatnonzero(episode.written)
    return int(scene.draw.choice(written[: max(1, 2 * len(written) // 3)]))


def _shifted(scene: Scene, episode: Episode) -> list[int]:
    """Two tokens became one, and all that follows stands a place earlier."""
    at = _place(scene, episode)
    return [*episode.tokens[:at], *episode.tokens[at + 1 :], 0]


def _replaced(scene: Scene, episode: Episode) -> list[int]:
    at = _place(scene, episode)
    tokens = list(episode.tokens)
    tokens[at] = int(scene.draw.integers(3, scene.course.vocabulary))
    return tokens


def _other_template(scene: Scene, episode: Episode) -> list[int]:
    """The tags around observations are other words to the trainer."""
    tokens = np.array(episode.tokens)
    world_wrote = ~np.array(episode.written)
    world_wrote[: episode.prompt_length] = False
    edges = world_wrote & ~np.roll(world_wrote, 1)
    tokens[edges] = int(scene.strength)
    return [int(token) for token in tokens]


def routing(scene: Scene, step: int) -> Rolled:
    """Routers with noise of `strength` standard deviations, the same in every step."""
    model = scene.course.sampler(step)
    if step >= scene.onset:
        stream = torch.Generator().manual_seed(scene.course.settings.seed)
        with torch.no_grad():
            for router in routers(model):
                noise = torch.randn(router.weight.shape, generator=stream)
                router.weight.add_(scene.strength * router.weight.std() * noise)
    return as_sampled(roll_out(scene, step, model), step)


def part(scene: Scene, step: int) -> Rolled:
    """A part of the weights that is not synced from the onset on, or a layer that is computed otherwise."""
    model = scene.course.sampler(step)
    if scene.variant.startswith("stale "):
        name = scene.variant.removeprefix("stale ")
        old = scene.course.weights[min(step, scene.onset)]
        state = model.state_dict()
        state |= {key: old[key] for key in state if name in key}
        model.load_state_dict(state)
        return as_sampled(roll_out(scene, step, model), step)
    if step >= scene.onset:
        _compute_otherwise(model, scene.variant, scene.strength)
    return as_sampled(roll_out(scene, step, model), step)


def _compute_otherwise(model: Any, variant: str, strength: float) -> None:
    """Change what one layer computes, in its weights so that every decoder does."""
    layer = model.model.layers[1]
    weight = {
        "attention scale": layer.self_attn.q_proj.weight,
        "gain of a norm": layer.post_attention_layernorm.weight,
        "output of a layer": layer.self_attn.o_proj.weight,
    }[variant]
    with torch.no_grad():
        weight.mul_(strength)


def trainer_log_probs(scene: Scene, step: int, rolled: Rolled) -> Tensor:
    """Log-probs (B, T) by the trainer, of the tokens that it reads."""
    episodes = [
        replace(episode, tokens=tokens, routes=None)
        for episode, tokens in zip(rolled.episodes, rolled.trained, strict=True)
    ]
    batch: Batch = collate(episodes, 0)
    model = scene.course.trainer(step)
    with _products_of(model, scene.trainer_bits):
        return scored(model, batch, 1.0)[0]


@contextmanager
def _products_of(model: nn.Module, bits: int | None) -> Iterator[None]:
    """Let matrix products read numbers of fewer bits, as TF32 kernels do."""
    with ExitStack() as hooks:
        for module in model.modules():
            if bits is not None and isinstance(module, nn.Linear):
                handle = module.register_forward_pre_hook(lambda _, args: (rounded(args[0], bits),))
                hooks.callback(handle.remove)
        yield


KINDS: dict[str, Sampler] = {
    "version_lag": late,
    "sync_never_lands": never_synced,
    "temperature": temperature,
    "top_p": top_p,
    "low_precision": precision,
    "other_tokens": other_tokens,
    "routing": routing,
    "part": part,
    "clean": honest,
    "clean lag": late,
}
