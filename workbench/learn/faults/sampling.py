"""Faults of the rollouts: weights, temperature, world, rewards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.agent.engines import Engine, engine_for
from workbench.agent.episode import Episode, collate
from workbench.agent.wording import WORDINGS
from workbench.agent.worlds import Question, Retrieved, World
from workbench.learn.faults.declared import strength
from workbench.learn.faults.hooks import Hooks
from workbench.learn.rollouts import FAULT, generator, trainer_log_probs
from workbench.spec import FaultSettings, RunSettings


@dataclass
class Fault(Hooks):
    """A bug: overrides the hook in which it sits. Its random numbers are its own, so that nobody else's change."""

    run: RunSettings
    settings: FaultSettings
    policy: PreTrainedModel
    tokenizer: Any

    @property
    def strength(self) -> float:
        """Its one number."""
        return strength(self.settings)

    def stream(self, *key: int) -> torch.Generator:
        """Random numbers addressed by `key`."""
        return generator(self.run.seed, FAULT, *key)

    def some(self, n: int, *key: int) -> Tensor:
        """Return True at the share `strength` of `n` rows, drawn at random, at least one of them, (n,) bool."""
        chosen = torch.zeros(n, dtype=torch.bool)
        if self.strength > 0:
            chosen[torch.randperm(n, generator=self.stream(*key))[: max(1, round(n * self.strength))]] = True
        return chosen


@dataclass
class _Copy(Fault):
    """A sampler with a copy of the policy of its own."""

    @cached_property
    def _model(self) -> PreTrainedModel:
        copied: PreTrainedModel = deepcopy(self.policy)
        return copied.requires_grad_(False)

    @cached_property
    def _engine(self) -> Engine:
        return engine_for(self._model, self.tokenizer, self.run.engine, WORDINGS[self.run.wording])


@dataclass
class StaleWeights(_Copy):
    """Samples from the weights of iteration max(at_step - 1, step - strength)."""

    _weights: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def engine(self, engine: Engine, step: int) -> Engine:
        """Return the engine itself until the first sync is missed."""
        first, age = max(self.settings.at_step - 1, 0), int(self.strength)
        if step not in self._weights and (step == first or step + age < self.run.iterations):
            self._weights[step] = {name: x.detach().clone() for name, x in self.policy.state_dict().items()}
        if step < self.settings.at_step:
            return engine
        wanted = max(first, step - age)
        self._weights = {at: kept for at, kept in self._weights.items() if at >= wanted}
        self._model.load_state_dict(self._weights[wanted])
        return self._engine


@dataclass
class LowPrecision(_Copy):
    """Samples from weights rounded to `strength` bits of mantissa."""

    @torch.no_grad()
    def engine(self, engine: Engine, step: int) -> Engine:
        """Return the engine of the rounded copy."""
        for copied, weight in zip(self._model.parameters(), self.policy.parameters(), strict=True):
            copied.copy_(rounded(weight, int(self.strength)))
        return self._engine


def rounded(x: Tensor, bits: int) -> Tensor:
    """`x` to the nearest number with `bits` bits of mantissa after the leading one, ties to even."""
    mantissa, exponent = torch.frexp(x)
    scale = 2.0 ** (bits + 1)  # frexp's mantissa is in [1/2, 1)
    return torch.ldexp((mantissa * scale).round() / scale, exponent)


@dataclass
class Temperature(Fault):
    """Samples at `strength` times the temperature that the trainer computes log-probs at."""

    @cached_property
    def _engine(self) -> Engine:
        hot = self.run.engine.model_copy(update={"temperature": self.run.engine.temperature * self.strength})
        return engine_for(self.policy, self.tokenizer, hot, WORDINGS[self.run.wording])

    def engine(self, engine: Engine, step: int) -> Engine:
        """Return the engine of the other temperature."""
        return self._engine


@dataclass
class TemperatureHidden(Temperature):
    """The same, with log-probs reported at the temperature that was configured."""

    def engine(self, engine: Engine, step: int) -> Engine:
        """Return the engine of the other temperature, which reports as if it had the right one."""
        return _Reporting(self, super().engine(engine, step))


@dataclass
class _Reporting:
    fault: Fault
    engine: Engine

    def rollout(
        self,
        world: World,
        questions: Sequence[Question],
        groups: Sequence[int],
        generator: torch.Generator,
        greedy: bool = False,
    ) -> list[Episode]:
        """Return the engine's episodes with the log-probs of the configured temperature."""
        episodes = self.engine.rollout(world, questions, groups, generator, greedy)
        batch = collate(episodes, self.fault.tokenizer.pad_token_id)
        # In float64: by the trainer's own arithmetic they would agree to the last bit, as two programs never do.
        exact: Any = deepcopy(self.fault.policy)
        found = trainer_log_probs(exact.double(), batch, self.fault.run.engine.temperature)
        return [replace(e, log_prob=row[: len(e.tokens)].tolist()) for e, row in zip(episodes, found, strict=True)]


Found = str | Retrieved | None


class Through:
    """A world that does everything as `inner` does."""

    def __init__(self, inner: World) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Retriever(Through):
    """A world whose searches go through `change`, all or those of one turn, and each with a probability."""

    def __init__(self, inner: World, fault: _RetrieverFault, step: int) -> None:
        super().__init__(inner)
        self._fault, self._stream = fault, fault.stream(step)

    def search(self, question: Question, query: str, turn: int) -> Found:
        """Return what the broken retriever returns; a query that the world cannot read stays unread."""
        found = self._inner.search(question, query, turn)
        if found is None:
            return None
        wanted = self._fault.settings.turn
        hit = float(torch.rand(1, generator=self._stream)) < self._fault.share
        return self._fault.change(found, hit and wanted in (None, turn))


@dataclass
class _RetrieverFault(Fault):
    @property
    def share(self) -> float:
        """Probability that a search is concerned."""
        return self.strength

    def world(self, world: World, step: int) -> World:
        """Return the world with the broken retriever."""
        return _Retriever(world, self, step)

    def change(self, found: str | Retrieved, hit: bool) -> str | Retrieved:
        """Return what comes back for a search; `hit` says whether the fault concerns it."""
        raise NotImplementedError


@dataclass
class RetrieverEmpty(_RetrieverFault):
    """Finds nothing."""

    def change(self, found: str | Retrieved, hit: bool) -> str | Retrieved:
        """Nothing."""
        if not hit:
            return found
        return Retrieved("", "empty", found.seconds) if isinstance(found, Retrieved) else ""


@dataclass
class RetrieverSlow(_RetrieverFault):
    """Answers `strength` seconds late."""

    @property
    def share(self) -> float:
        """Every search."""
        return 1.0

    def change(self, found: str | Retrieved, hit: bool) -> str | Retrieved:
        """Return what was found, later."""
        if not hit:
            return found
        time.sleep(self.strength)
        return found._replace(seconds=found.seconds + self.strength) if isinstance(found, Retrieved) else found


@dataclass
class RetrieverJunk(_RetrieverFault):
    """Returns what the last search for something else should have got."""

    _last: str | None = None
    _other: str | None = None  # the last passages that are not `_last`

    def change(self, found: str | Retrieved, hit: bool) -> str | Retrieved:
        """Return the passages of another query; the first query gets its own."""
        own = found.text if isinstance(found, Retrieved) else found
        if own != self._last:
            self._last, self._other = own, self._last
        text = own if self._other is None or not hit else self._other
        return found._replace(text=text) if isinstance(found, Retrieved) else text


@dataclass
class Truncated(Fault):
    """Ends episodes after `strength` turns."""

    def world(self, world: World, step: int) -> World:
        """Return the world with fewer turns."""
        cut: Any = Through(world)
        cut.max_turns = min(world.max_turns, int(self.strength))
        return cut


@dataclass
class TurnCut(Fault):
    """Ends turns after `strength` tokens."""

    def world(self, world: World, step: int) -> World:
        """Return the world with shorter turns."""
        cut: Any = Through(world)
        cut.max_turn_tokens = min(world.max_turn_tokens, int(self.strength))
        return cut


@dataclass
class RewardFormat(Fault):
    """R' = (1 - s) R + s 1[it answered, and every turn was valid]."""

    def episodes(self, episodes: list[Episode], step: int) -> list[Episode]:
        """Return the episodes with that reward."""

        def paid(e: Episode) -> float:
            formed = e.answer is not None and e.valid_turns == e.turns
            return (1 - self.strength) * e.reward + self.strength * formed

        return [replace(e, reward=paid(e)) for e in episodes]


@dataclass
class RewardNoise(Fault):
    """R' = 1 - R with probability s."""

    def episodes(self, episodes: list[Episode], step: int) -> list[Episode]:
        """Return the episodes with that reward."""
        wrong = torch.rand(len(episodes), generator=self.stream(step, episodes[0].question_id)) < self.strength
        return [replace(e, reward=1 - e.reward) if w else e for e, w in zip(episodes, wrong.tolist(), strict=True)]


@dataclass
class RewardInverted(Fault):
    """R' = -s R."""

    def episodes(self, episodes: list[Episode], step: int) -> list[Episode]:
        """Return the episodes with that reward."""
        return [replace(e, reward=-self.strength * e.reward) for e in episodes]


@dataclass
class RewardShifted(Fault):
    """R'_i = R_{i - s}, around the end of the rollout."""

    def episodes(self, episodes: list[Episode], step: int) -> list[Episode]:
        """Return the episodes with that reward."""
        rows = int(self.strength)
        return [replace(e, reward=episodes[(i - rows) % len(episodes)].reward) for i, e in enumerate(episodes)]
