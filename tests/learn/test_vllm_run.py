from typing import Any

import pytest

from sorl.agent.engines import vllm
from sorl.learn.run import FAILED
from tests.learn.tiny import merged, rows, train
from tests.vllm_here import NEEDS_VLLM

pytestmark = NEEDS_VLLM

VLLM: dict[str, Any] = {
    "policy": {"heads": 1},  # of 32: the smallest that vLLM's attention on a CPU knows
    "engine": {"kind": "vllm", "cache_gib": 1 / 32},
    "iterations": 3,
    "learn": {"staleness": 0},
    "evaluation": {"every": 0},
}


@pytest.mark.parametrize("algorithm", ["ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo"])
def test_every_algorithm_trains_on_what_vllm_samples(algorithm, trained):
    folder = trained(
        **merged(VLLM, {"algorithm": algorithm, "policy": {"tied": algorithm in ("ppo", "grpo")}})
    )
    steps = rows(folder, "step")
    updates = rows(folder, "minibatch")
    assert len(steps) == 3
    assert steps.sync_error.max() < 1e-4
    assert updates.mismatch_max.max() < 1e-4
    assert updates.grad_norm.gt(0).any()
    assert not (folder / "segments" / "event").exists() or "stale_weights" not in set(
        rows(folder, "event").kind
    )


def test_a_sync_that_is_skipped_ends_the_run_within_one_step(new_run, cache, monkeypatch):
    folder = new_run("skipped", **merged(VLLM, {"learn": {"policy": {"lr": 0.5}}}))
    pushed = []
    push = vllm.Weights.push

    def once(self):
        pushed.append(1)
        if len(pushed) <= 3:  # two evaluations and the rollout of step 0
            push(self)

    monkeypatch.setattr(vllm.Weights, "push", once)
    assert train(folder, cache) == FAILED
    event = rows(folder, "event").set_index("kind").loc["stale_weights"]
    assert (event.step, event.severity, event.diagnostic) == (1, "critical", "sync_error")
    assert event.value > event.threshold == 1e-4
    assert "stale in vLLM: model." in event.message
    assert len(rows(folder, "step")) == 1
    last = rows(folder, "run").iloc[-1]
    assert (last.status, last.steps) == ("failed", 1)
    assert "stale in vLLM" in last.reason
