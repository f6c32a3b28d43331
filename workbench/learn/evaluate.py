"""Held-out questions: success with its exact interval, with the retriever and without."""

from __future__ import annotations

from typing import Any

from scipy.stats import beta

from workbench.agent.engines import Engine
from workbench.agent.worlds.build import build
from workbench.learn.rollouts import EVALUATION, generator
from workbench.spec import EvaluationSettings, WorldSettings


def evaluate(
    engine: Engine, world: WorldSettings, settings: EvaluationSettings, seed: int, *, search: bool = True
) -> dict[str, Any]:
    """A row of table `evaluation`: always the same held-out questions and sampling stream, so that steps compare.

    With `search = False` the retriever returns nothing: an agent that still succeeds has memorised or guesses.
    """
    asked = build(world if search else world.model_copy(update={"top_k": 0}))
    n = settings.episodes
    episodes = engine.rollout(
        asked, asked.questions("eval", 0, 0, n), list(range(n)), generator(seed, EVALUATION), greedy=settings.greedy
    )
    solved = sum(e.success for e in episodes)
    return {
        "data": world.kind if search else f"{world.kind}-no-search",
        "episodes": n,
        "success": solved / n,
        "success_low": float(beta.ppf(0.025, solved, n - solved + 1)) if solved else 0.0,
        "success_high": float(beta.ppf(0.975, solved + 1, n - solved)) if solved < n else 1.0,
        "turns": sum(e.turns for e in episodes) / n,
    }
