"""Engines that sample episodes: hf in the trainer's process, vllm from a synced copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Generator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sorl.agent.episode import Episode
    from sorl.agent.worlds import Question, World
    from sorl.spec import EngineSettings

# how far a rollout is: tokens written, episodes ended, the turn of the row that is furthest behind
Report = Callable[[int, int, int], None]


class NonFinite(ArithmeticError):
    """Logits that must be finite are NaN or Inf; the message says in how many rows and at which token."""

    def __init__(self, broken: int, rows: int, position: int) -> None:
        where = f"logits are not finite in {broken} of {rows} rows at token {position}"
        super().__init__(
            f"{where}: the policy has diverged (its weights hold NaN or Inf, or its activations overflow)"
        )


class StaleWeights(RuntimeError):
    """A sampler in another engine does not compute with the trainer's weights; the message says which are
    stale.
    """

    def __init__(self, message: str, error: float, tolerance: float) -> None:
        super().__init__(message)
        # nats, over the probes
        self.error = error
        self.tolerance = tolerance


class Engine(Protocol):
    """The one call that learning makes of a sampler."""

    def rollout(
        self,
        world: World,
        questions: list[Question],
        groups: list[int],
        generator: Generator,
        greedy: bool = False,
    ) -> list[Episode]:
        """Return one episode for each question, in order; `groups` are their prompt groups."""


def unheard(tokens: int, ended: int, turn: int) -> None:
    """The report of an engine that nobody listens to."""


def listen(engine: Engine, report: Report) -> None:
    """Have `engine` report how far each rollout is; one without an attribute `report` tells nothing."""
    if hasattr(engine, "report"):
        reporting: Any = engine
        reporting.report = report


def engine_for(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: EngineSettings,
    wording: str = "plain",
) -> Engine:
    """Sampler of `model` as it is at the time of each call. Raises InputError when vLLM is asked for and not
    there.
    """
    if settings.kind == "hf":
        from sorl.agent.engines.hf import HFEngine

        return HFEngine(model, tokenizer, settings, wording)
    from sorl.agent.engines.vllm import VLLMEngine  # heavy, and an extra of its own

    return VLLMEngine(model, tokenizer, settings, wording)
