"""Evaluation: held-out questions during training, data sets for a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import beta

from sorl.agent.draws import EVALUATION, draw, generator
from sorl.agent.engines import Engine, engine_for
from sorl.agent.episode import Episode
from sorl.agent.worlds import best, build, f1
from sorl.agent.worlds.dataset import Dataset
from sorl.learn import networks
from sorl.spec import RunSettings


def evaluate(engine: Engine, settings: RunSettings, *, search: bool = True) -> dict[str, Any]:
    """A row of table `evaluation`, always of the same questions and stream; without `search` the retriever is
    empty.
    """
    kind = settings.world.kind
    n = settings.evaluation.episodes
    world = build(settings.world if search else settings.world.model_copy(update={"top_k": 0}))
    stream = generator(settings.seed, EVALUATION)
    greedy = settings.evaluation.greedy
    episodes = engine.rollout(world, world.questions("eval", 0, 0, n), list(range(n)), stream, greedy=greedy)
    return {"data": kind if search else f"{kind}-no-search", **_solved(episodes)}


def _solved(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Success with its 95 % Clopper-Pearson interval, and mean turns."""
    n = len(episodes)
    solved = sum(episode.success for episode in episodes)
    return {
        "episodes": n,
        "success": solved / n,
        "success_low": float(beta.ppf(0.025, solved, n - solved + 1)) if solved else 0.0,
        "success_high": float(beta.ppf(0.975, solved + 1, n - solved)) if solved < n else 1.0,
        "turns": sum(episode.turns for episode in episodes) / n,
    }


def examine(
    settings: RunSettings,
    policy: Path,
    tokenizer: Any,
    world: Dataset,
    *,
    greedy: bool,
    batch: int,
    say: Callable[[int, int], object],
) -> dict[str, Any]:
    """Ask the policy in a folder every question of `world` once; returns columns of table `evaluation`."""
    torch.set_num_threads(settings.threads)
    engine = engine_for(networks.load(policy, settings.compute), tokenizer, settings.engine, settings.wording)
    questions = world.every()
    stream = generator(settings.seed, EVALUATION)
    episodes: list[Episode] = []
    for start in range(0, len(questions), batch):
        part = questions[start : start + batch]
        episodes += engine.rollout(world, part, [q.id for q in part], stream, greedy=greedy)
        say(len(episodes), len(questions))
    return summary(world, episodes)


def summary(world: Dataset, episodes: Sequence[Episode]) -> dict[str, Any]:
    """Success with its Clopper-Pearson interval, mean F1 with its bootstrap interval (not for choices), mean
    turns.
    """
    questions = world.every()
    n = len(episodes)
    row = _solved(episodes) | {"metric": "choice accuracy" if questions[0].choices else "exact match"}
    if questions[0].choices:
        return row
    pairs = zip(episodes, questions, strict=True)
    overlap = np.array([0.0 if e.answer is None else best(f1, e.answer, q.golds) for e, q in pairs])
    random = np.random.default_rng(draw(41, n))  # 41: the key of the bootstrap
    means = [overlap[random.integers(0, n, n)].mean() for _ in range(2000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return row | {"f1": float(overlap.mean()), "f1_low": float(low), "f1_high": float(high)}
