"""Healthy configurations, no two alike: what an audit or a diagnosis finds in one of them is false."""

from __future__ import annotations

from typing import Any

from workbench.agent.draws import draw
from workbench.algorithms import ALGORITHMS
from workbench.grid.cell import merge

Settings = dict[str, Any]
MORE = 32  # runs of PPO and GRPO with terms of their own, after one run of each algorithm

OPTIMIZERS: tuple[Settings, ...] = (
    {"lr": 0.02}, {"lr": 0.005, "momentum": 0.9}, {"lr": 0.02, "max_grad_norm": 0.5}, {"kind": "adamw", "lr": 3e-4},
    {"kind": "adamw", "lr": 3e-4, "weight_decay": 0.1, "beta2": 0.95}, {"lr": 0.01, "weight_decay": 0.01},
    {"kind": "adamw", "lr": 3e-4, "max_grad_norm": 1.0},
)  # fmt: skip
SCHEDULES: tuple[Settings, ...] = (
    {}, {"schedule": "linear", "warmup": 4}, {"schedule": "cosine"}, {"warmup": 6},
    {"schedule": "cosine", "warmup": 4}, {"schedule": "linear"},
)  # fmt: skip
LEARN: tuple[tuple[Settings, ...], ...] = (
    ({"staleness": 0}, {"staleness": 1}, {"staleness": 2}, {"staleness": 4}),
    ({"epochs": 1}, {"epochs": 2}, {"epochs": 3}),
    ({"minibatches": 1}, {"minibatches": 2}, {"minibatches": 4}),
    ({"old_log_prob": "rollout"}, {"old_log_prob": "update"}, {"old_log_prob": "behaviour"}),
    ({}, {"old_values": "rollout"}, {"value_clip": "none"}),
    ({}, {"entropy_coef": 0.001}, {"target_kl": 0.05}, {"probe_every": 2}, {"clip_bias_every": 1}),
    ({}, {"critic": {"schedule": "linear"}}, {"critic": {"kind": "sgd", "lr": 0.05, "momentum": 0.9}}),
)
ELSEWHERE: tuple[tuple[Settings, ...], ...] = (
    ({}, {"engine": {"temperature": 0.8}}, {"engine": {"temperature": 1.2}}, {"engine": {"dtype": "bfloat16"}}),
    ({}, {}, {"compute": {"dtype": "bfloat16"}}),
    ({}, {"learn": {"micro_batch": 2}}, {"learn": {"micro_batch": 4}}, {"compute": {"micro_batch_tokens": 200}}),
    ({}, {"policy": {"family": "qwen3"}}, {"policy": {"tied": True}}, {"policy": {"layers": 2}}),
    ({}, {"world": {"noise": 0.5}}, {"world": {"hops": [0.5, 0.5, 0.0], "relations": 6, "entities": 12}},
     {"world": {"top_k": 1}}, {"world": {"reward": "f1"}}),
)  # fmt: skip
SLOTS: dict[str, tuple[Settings, ...]] = {
    "ppo": (
        {"kl": {"kind": "reward", "beta": 0.05}}, {"kl": {"kind": "loss", "beta": 0.05}}, {"clip": {"dual": 3.0}},
        {"advantage": {"gamma": 0.98, "lam": 0.9}}, {"advantage": {"skip_obs": False, "whiten": "a"}},
        {"correction": "tis"}, {"correction": "icepop"}, {"kl": {"kind": "reward", "beta": 0.01}, "correction": "mis"},
    ),
    "grpo": (
        {"kl": {"kind": "loss", "beta": 0.1}}, {"kl": {"kind": "loss", "beta": 0.05, "estimator": "k2"}},
        {"clip": {"high": 0.28, "dual": 3.0}}, {"correction": "tis"}, {"correction": "mis", "clip": {"dual": 3.0}},
        {"kl": {"kind": "loss", "beta": 0.02, "estimator": "k3+"}}, {"aggregate": "seq_mean_token_mean"},
        {"kl": {"kind": "loss", "beta": 0.05}, "correction": "icepop"},
    ),
}  # fmt: skip


def configurations() -> list[Settings]:
    """Changes to the tiny run: each algorithm once, then PPO and GRPO by turns with terms and corrections of theirs."""
    return [_configuration(i, name, {}) for i, name in enumerate(ALGORITHMS)] + [
        _configuration(len(ALGORITHMS) + i, name, {"slots": SLOTS[name][i // 2 % len(SLOTS[name])]})
        for i, name in enumerate(("ppo", "grpo") * (MORE // 2))
    ]


def _configuration(number: int, algorithm: str, slots: Settings) -> Settings:
    made: Settings = {"algorithm": algorithm, "seed": 500 + number, **slots}
    policy = merge(_one(OPTIMIZERS, number, 0), _one(SCHEDULES, number, 1))
    made = merge(made, {"learn": {"policy": policy}})
    for axis, choices in enumerate(LEARN, 2):
        made = merge(made, {"learn": _one(choices, number, axis)})
    for axis, choices in enumerate(ELSEWHERE, 20):
        made = merge(made, _one(choices, number, axis))
    if ALGORITHMS[algorithm].group_size > 1:
        made = merge(made, {"learn": {"group_size": 4}})
    return made


def _one(choices: tuple[Settings, ...], number: int, axis: int) -> Settings:
    return choices[draw(28, number, axis) % len(choices)]
