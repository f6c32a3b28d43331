"""Healthy configurations, no two alike: what an audit or a diagnosis finds in one of them is false.

`configurations` were seen when the audit was mended after its first count; `drawn` ones are random, for
another count.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sorl.agent.draws import Stream, draw
from sorl.algorithms import ALGORITHMS, resolve
from sorl.grid.cell import merge
from sorl.spec import InputError

Settings = dict[str, Any]
MORE = 32  # runs of PPO and GRPO with terms of their own, after one run of each algorithm

OPTIMIZERS: tuple[Settings, ...] = (
    {"lr": 0.02},
    {"lr": 0.005, "momentum": 0.9},
    {"lr": 0.02, "max_grad_norm": 0.5},
    {"kind": "adamw", "lr": 3e-4},
    {"kind": "adamw", "lr": 3e-4, "weight_decay": 0.1, "beta2": 0.95},
    {"lr": 0.01, "weight_decay": 0.01},
    {"kind": "adamw", "lr": 3e-4, "max_grad_norm": 1.0},
)
SCHEDULES: tuple[Settings, ...] = (
    {},
    {"schedule": "linear", "warmup": 4},
    {"schedule": "cosine"},
    {"warmup": 6},
    {"schedule": "cosine", "warmup": 4},
    {"schedule": "linear"},
)
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
    (
        {},
        {"engine": {"temperature": 0.8}},
        {"engine": {"temperature": 1.2}},
        {"engine": {"dtype": "bfloat16"}},
    ),
    ({}, {}, {"compute": {"dtype": "bfloat16"}}),
    (
        {},
        {"learn": {"micro_batch": 2}},
        {"learn": {"micro_batch": 4}},
        {"compute": {"micro_batch_tokens": 200}},
    ),
    ({}, {"policy": {"family": "qwen3"}}, {"policy": {"tied": True}}, {"policy": {"layers": 2}}),
    (
        {},
        {"world": {"noise": 0.5}},
        {"world": {"hops": [0.5, 0.5, 0.0], "relations": 6, "entities": 12}},
        {"world": {"top_k": 1}},
        {"world": {"reward": "f1"}},
    ),
)
SLOTS: dict[str, tuple[Settings, ...]] = {
    "ppo": (
        {"kl": {"kind": "reward", "beta": 0.05}},
        {"kl": {"kind": "loss", "beta": 0.05}},
        {"clip": {"dual": 3.0}},
        {"advantage": {"gamma": 0.98, "lam": 0.9}},
        {"advantage": {"skip_obs": False, "whiten": "a"}},
        {"correction": "tis"},
        {"correction": "icepop"},
        {"kl": {"kind": "reward", "beta": 0.01}, "correction": "mis"},
    ),
    "grpo": (
        {"kl": {"kind": "loss", "beta": 0.1}},
        {"kl": {"kind": "loss", "beta": 0.05, "estimator": "k2"}},
        {"clip": {"high": 0.28, "dual": 3.0}},
        {"correction": "tis"},
        {"correction": "mis", "clip": {"dual": 3.0}},
        {"kl": {"kind": "loss", "beta": 0.02, "estimator": "k3+"}},
        {"aggregate": "seq_mean_token_mean"},
        {"kl": {"kind": "loss", "beta": 0.05}, "correction": "icepop"},
    ),
}


def configurations() -> list[Settings]:
    """Changes to the tiny run: each algorithm once, then PPO and GRPO by turns with terms and corrections of
    theirs.
    """
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


# Of a random configuration: each slot that the algorithm has is changed with one of these, or not at all.
CHANGES: dict[str, tuple[Any, ...]] = {
    "kl": (
        {"kind": "reward", "beta": 0.03},
        {"kind": "loss", "beta": 0.05},
        {"kind": "loss", "beta": 0.1},
        {"kind": "loss", "beta": 0.05, "estimator": "k2"},
        {"kind": "loss", "beta": 0.02, "estimator": "k3+"},
    ),
    "clip": ({"dual": 3.0}, {"high": 0.28}, {"low": 0.1, "high": 0.4}, {"high": 0.28, "dual": 5.0}),
    "correction": ("tis", "icepop", "mis"),
    "advantage": ({"gamma": 0.98, "lam": 0.95}, {"skip_obs": False}, {"whiten": "a"}, {"whiten": "none"}),
    "aggregate": ("seq_mean_token_mean", "token_mean"),
    "select": ({"kind": "zero_var"},),
}


def drawn(seed: int) -> Settings:
    """Return a random healthy configuration: what is set, and to what, depends on `seed` alone."""
    stream = Stream(28, 2, seed)

    def one(*choices: Any) -> Any:
        return choices[stream.below(len(choices))]

    def between(low: float, high: float) -> float:
        return float(f"{low * (high / low) ** stream.uniform():.3g}")

    def optimizer(sgd: Sequence[float], adamw: Sequence[float]) -> Settings:
        made: Settings = {"kind": one("sgd", "adamw"), "schedule": one("constant", "linear", "cosine")}
        made |= {"warmup": one(0, 0, 2, 4, 7), "weight_decay": one(0.0, 0.0, between(1e-3, 0.1))}
        made |= one({}, {"max_grad_norm": between(0.2, 2.0)}, {"max_grad_norm": "none"})
        own = {"momentum": one(0.0, 0.5, 0.9)} if made["kind"] == "sgd" else {"beta2": one(0.999, 0.99, 0.95)}
        scale = 1 - own.get("momentum", 0.0)  # a step with momentum is 1 / scale as long
        return (
            made | own | {"lr": float(f"{scale * between(*(sgd if made['kind'] == 'sgd' else adamw)):.3g}")}
        )

    name = one("ppo", "grpo", one(*ALGORITHMS), one(*ALGORITHMS))
    made: Settings = {
        "algorithm": name,
        "seed": seed,
        "slots": {},
        "learn": {
            "policy": optimizer((3e-3, 0.03), (1e-4, 6e-4)),
            "staleness": one(0, 1, 2, 3, 4),
            "epochs": one(1, 2, 3),
            "minibatches": one(1, 2, 4),
            "old_log_prob": one("rollout", "update", "behaviour"),
            "old_values": one("update", "rollout"),
            "value_clip": one("none", 0.2, 0.5),
            "entropy_coef": one(0.0, 0.0, between(1e-4, 1e-2)),
            "target_kl": one("none", "none", between(0.01, 0.1)),
            "clip_bias_every": one(0, 1, 4),
            "probe_every": one(0, 0, 3),
        },
        "engine": {
            "temperature": one(1.0, 1.0, between(0.7, 1.3)),
            "dtype": one("float32", "float32", "bfloat16"),
        },
        "compute": {"dtype": one("float32", "float32", "bfloat16")},
        "policy": {"family": one("llama", "qwen3"), "tied": one(False, True), "layers": one(1, 2)},
        "world": {"max_turns": one(2, 3, 4), "noise": one(0.0, 0.2, 0.5), "top_k": one(1, 2)},
    }
    if ALGORITHMS[name].critic:
        made = merge(
            made,
            {"learn": {"critic": one({}, {"schedule": "cosine"}, optimizer((0.01, 0.05), (3e-4, 3e-3)))}},
        )
    if ALGORITHMS[name].group_size > 1:
        made = merge(made, {"learn": {"group_size": one(2, 4, 8)}})
    made = merge(made, one({}, {"learn": {"micro_batch": 2}}, {"compute": {"micro_batch_tokens": 150}}))
    for slot, choices in CHANGES.items():
        changed = {**made["slots"], slot: one(*choices)}
        wanted = stream.below(5) < 2
        with suppress(InputError):
            if wanted and resolve(name, changed):
                made["slots"] = changed
    return made
