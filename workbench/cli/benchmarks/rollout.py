"""Sampling: the lock-step engine beside the public `generate()` of transformers, called once a turn."""

from __future__ import annotations

from workbench.agent.engines.generate import GenerateEngine
from workbench.agent.engines.hf import HFEngine
from workbench.agent.worlds.facts import Facts
from workbench.cli.benchmarks.pairs import Comparison, Side, Target, Work, alternate, timed
from workbench.cli.benchmarks.scene import Scene
from workbench.learn import policy
from workbench.learn.rollouts import ROLLOUT, generator


def measure(scene: Scene, rounds: int) -> list[Comparison]:
    """Episodes/s of both engines on the same questions; each samples its own episodes from the same distribution."""
    settings, model = scene.settings, policy.load(scene.start)
    world, n = Facts(settings.world), settings.learn.episodes
    ours = HFEngine(model, scene.tokenizer, settings.engine)
    baseline = GenerateEngine(model, scene.tokenizer, settings.engine)
    turns: list[float] = []

    def playing(engine: HFEngine | GenerateEngine) -> Work:
        round_number = len(turns) // 2
        questions = world.questions("train", settings.seed, round_number * n, n)
        stream = generator(settings.seed, ROLLOUT, round_number)

        def play() -> float:
            episodes = engine.rollout(world, questions, list(range(n)), stream)
            turns.append(sum(e.turns for e in episodes) / n)
            return n

        return play

    a, b = alternate(timed(lambda: playing(ours)), timed(lambda: playing(baseline)), rounds)
    return [
        Comparison(
            name="rollout",
            unit="episodes/s",
            ours=Side("engine", a),
            baseline=Side("generate() a turn", b),
            target=Target("ratio", 1.3),
            note="world, parsing and retrieval included on both sides",
            facts={"episodes": n, "mean_turns": sum(turns) / len(turns)},
        )
    ]
