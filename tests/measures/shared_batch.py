"""The worked batch of two sequences (garbage wherever the mask is 0), and random evidence of any shape."""

from dataclasses import fields, replace

import numpy as np
import torch

from sorl.batch import turn_ids
from sorl.measures.evidence import Evidence, Rollouts
from tests.objective.batches import DELTA, MASK, OLD, A


def evidence_of(mask, old, delta, advantage, **changes):
    """One update (U = 1) by token PPO with bounds 0.8 and 1.2."""
    ratio = delta.clamp(-20, 20).exp()
    low = ratio < 0.8
    high = ratio > 1.2
    rows = {
        "trajectory": torch.arange(len(mask)),
        "mask": mask,
        "turn": turn_ids(mask),
        "log_prob": old + delta,
        "log_prob_old": old,
        "log_prob_behaviour": old,
        "ratio": ratio,
        "active_low": low & (advantage < 0),
        "active_high": high & (advantage > 0),
        "out_of_range": low | high,
        "dual": torch.zeros_like(mask),
        "factor": torch.ones_like(old),
        "advantages": advantage,
        "entropy": torch.full_like(old, 0.7),
        "gradient_weight": -(ratio * advantage),
        "score": torch.zeros(len(mask)),
        "group": torch.zeros(len(mask)),
    }
    made = {"epoch": torch.tensor([0]), "rollout_step": torch.tensor([0])} | {
        k: x[None] for k, x in rows.items()
    }
    return Evidence(**(made | changes))


def worked(delta=DELTA, advantage=A, **changes):
    return evidence_of(MASK, OLD, delta, advantage, **changes)


def random_evidence(seed, sequences, turns, scale=0.3, critic=True):
    """`sequences` trajectories of up to `turns` turns of 1 to 4 tokens, as the rows of one update."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(sequences):
        row = [False] * int(draw.integers(1, 3))
        for _ in range(int(draw.integers(1, turns + 1))):
            row += [True] * int(draw.integers(1, 5)) + [False] * int(draw.integers(1, 3))
        rows.append(row)
    width = max(map(len, rows))
    mask = torch.tensor([row + [False] * (width - len(row)) for row in rows])

    def normal(factor=1.0):
        return torch.tensor(draw.normal(size=mask.shape) * factor)

    old = -normal().abs()
    made = evidence_of(mask, old, normal(scale), normal(), entropy=normal().abs()[None])
    made = replace(made, span=torch.tensor(draw.integers(0, 4, size=mask.shape))[None])
    if not critic:
        return made
    return replace(
        made, values=normal()[None], values_old=normal()[None], returns=normal()[None], value_clip=0.5
    )


def tensors_of(evidence):
    return {
        f.name: getattr(evidence, f.name)
        for f in fields(evidence)
        if torch.is_tensor(getattr(evidence, f.name))
    }


def rollouts_of(rewards, group=None, status=None, written=None):
    """N finished episodes with these rewards, two turns each."""
    n = len(rewards)
    turns = written or [[[1, 2, 3], [4, 5]]] * n
    return Rollouts(
        success=np.array([r == 1 for r in rewards]),
        reward=np.array(rewards, dtype=float),
        group=np.arange(n) if group is None else np.array(group),
        rollout_step=np.zeros(n, dtype=np.int64),
        turns=np.full(n, 2),
        searches=np.ones(n, dtype=np.int64),
        valid_turns=np.full(n, 2),
        response_tokens=np.array([sum(map(len, t)) for t in turns]),
        observation_tokens=np.full(n, 5),
        truncated=np.zeros(n, dtype=bool),
        answered=np.ones(n, dtype=bool),
        tokens=[[0] * 8] * n,
        written=turns,
        turn_status=status or [["search", "answer"]] * n,
        question=["q"] * n,
        gold=["g"] * n,
        answer=["a"] * n,
        ended=["answer"] * n,
    )
