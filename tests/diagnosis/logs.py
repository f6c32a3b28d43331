"""Logs made by hand: a healthy run, and what a defect would change in it."""

from typing import Any

import numpy as np
import pandas as pd

from sorl.diagnosis.log import Log

# the defect begins at step AT; ROWS trajectories a step
STEPS = 24
AT = 12
ROWS = 48


def healthy(seed: int = 0) -> dict[str, pd.DataFrame]:
    """Tables of a run that learns: two updates and ROWS trajectories a step, two rollouts a question."""
    draw = np.random.default_rng(seed)
    steps = np.arange(STEPS)
    success = np.clip(0.3 + 0.02 * steps + draw.normal(0, 0.03, STEPS), 0, 1)
    step = pd.DataFrame(
        {
            "step": steps,
            "success": success,
            "reward": success,
            "entropy": 0.2 * np.exp(-steps / 60),
            "explained_variance": draw.uniform(-0.1, 0.3, STEPS),
            "kl_k3": draw.uniform(0.001, 0.003, STEPS),
            "kl_ref": 0.001 * steps,
            "staleness": np.zeros(STEPS),
            "batch_hash": np.arange(STEPS) + 1000,
            "seconds_retrieval": draw.uniform(0.09, 0.11, STEPS),
            "retrieval_failed_frac": np.zeros(STEPS),
            "seconds_rollout": draw.uniform(0.3, 0.4, STEPS),
            "seconds_update": draw.uniform(0.9, 1.1, STEPS),
        }
    )
    n = 2 * STEPS
    epoch = np.tile([0, 1], STEPS)
    minibatch = pd.DataFrame(
        {
            "step": np.repeat(steps, 2),
            "update": epoch,
            "epoch": epoch,
            "lr": 0.1,
            "tokens": 400,
            "mismatch": draw.uniform(5e-8, 1e-7, n),
            "mismatch_max": draw.uniform(2e-6, 5e-6, n),
            "grad_norm": draw.uniform(0.2, 0.5, n),
            "grad_norm_after": draw.uniform(0.2, 0.5, n),
            "value_loss": draw.uniform(0.08, 0.12, n),
            "ratio_max": draw.uniform(1.2, 2.0, n),
            "non_finite": 0.0,
        }
    )
    rows = pd.DataFrame({"step": np.repeat(steps, ROWS), "trajectory": np.tile(np.arange(ROWS), STEPS)})
    rows["prompt_group"] = rows["trajectory"] // 2
    rows["question"] = "q" + rows["step"].astype(str) + "-" + rows["prompt_group"].astype(str)
    rows["success"] = draw.uniform(size=len(rows)) < np.repeat(success, ROWS)
    rows["reward"] = rows["success"].astype(float)
    rows["answer"] = np.where(draw.uniform(size=len(rows)) < 0.95, "x", None)
    mean = rows.groupby(["step", "prompt_group"])["reward"].transform("mean")
    rows["advantage"] = rows["reward"] - mean
    rows["ended"] = np.where(rows["answer"].isna(), "max_turns", "answer")
    rows["n_turns"] = draw.integers(1, 7, len(rows))
    rows["n_tokens"] = 9 * rows["n_turns"]
    rows["n_searches"] = rows["n_turns"] - 1
    rows["n_observation_tokens"] = 14 * rows["n_searches"]
    tables = {"step": step, "minibatch": minibatch, "trajectory": rows}
    transcripts(tables, seed + 100)
    return tables


def log(tables: dict[str, pd.DataFrame], settings: dict[str, Any] | None = None, **run: Any) -> Log:
    """These tables as a log."""

    def load(name: str, step: int | None) -> pd.DataFrame:
        frame = tables.get(name, pd.DataFrame())
        return frame if step is None or frame.empty else frame[frame["step"] == step]

    given = {"learn.policy.lr": 0.1, "learn.policy.max_grad_norm": 1.0, "learn.staleness": 0}
    return Log("made-s0", load, given | (settings or {}), run)


def transcripts(tables: dict[str, pd.DataFrame], seed: int = 1) -> None:
    """Add table `token`: four transcripts a step, two turns that search and one that answers, as they should
    be.
    """
    draw = np.random.default_rng(seed)
    names = [f"n{i}" for i in range(40)]
    rows = []
    for step, trajectory in np.ndindex(STEPS, 4):
        a, b, c = draw.choice(names, 3, replace=False)
        parts = [
            (False, f"who is the rival of {a}"),
            (True, f"<search> {a} rival </search>"),
            (False, f"<information> {a} rival {b} . </information>"),
            (True, f"<search> {b} rival </search>"),
            (False, f"<information> {b} rival {c} . </information>"),
            (True, f"<think> got {c} </think> <answer> {c} </answer>"),
        ]
        trained, token = zip(*((by, word) for by, text in parts for word in text.split()), strict=True)
        entropy = draw.uniform(0.05, 0.3, len(token))
        behaviour = -entropy * draw.gamma(1.0, 1.0, len(token))  # -log p is the entropy on average
        rows.append(
            {
                "step": step,
                "trajectory": trajectory,
                "token": list(token),
                "trained": list(trained),
                "entropy": list(entropy),
                "log_prob_behaviour": list(behaviour),
                "log_prob_old": list(behaviour),
            }
        )
    tables["token"] = pd.DataFrame(rows)
    tables["step"]["token_mismatches"] = 0
    tables["step"]["valid_action_frac"] = draw.uniform(0.93, 0.97, STEPS)
    written = tables["trajectory"].groupby("step")["n_tokens"].sum().to_numpy()
    tables["minibatch"]["tokens"] = np.repeat(written, 2)  # an epoch is one update here


def tokens(tables: dict[str, pd.DataFrame], behaviour: Any) -> None:
    """Add table `token`: two trajectories a step whose log-probs under the sampler are behaviour(step, old,
    draw).
    """
    draw = np.random.default_rng(1)
    rows = []
    gaps = []
    for step, trajectory in np.ndindex(STEPS, 2):
        old = np.log(draw.beta(4, 0.6, 40).clip(1e-3, 1 - 1e-6))
        sampled = behaviour(step, old, draw)
        shared = {
            "step": step,
            "trajectory": trajectory,
            "trained": [True] * 40,
            "token": None,
            "entropy": None,
        }
        rows.append(shared | {"log_prob_old": list(old), "log_prob_behaviour": list(sampled)})
        gaps.append(np.abs(sampled - old))
    tables["token"] = pd.DataFrame(rows)
    tables["minibatch"]["mismatch"] = np.repeat(np.mean(gaps[::2], axis=1), 2) + 1e-7
    tables["minibatch"]["mismatch_max"] = np.repeat(np.max(gaps[::2], axis=1), 2)
