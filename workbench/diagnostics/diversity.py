"""Template collapse: whether what the policy writes still depends on the prompt, and varies for one prompt."""

from __future__ import annotations

from itertools import chain

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.diagnostics.evidence import Rollouts
from workbench.diagnostics.step import StepView
from workbench.spec import Level, Unit

STEP = Level.STEP
RAGEN_2 = "RAGEN-2 arXiv 2604.06268, by a proxy of ours"


@diagnostic(STEP, Unit.FRACTION, "mean over prompt groups of #{distinct rollouts} / #{rollouts}", RAGEN_2)
def distinct_rollout_frac(v: StepView) -> float | None:
    """Variety for one prompt, H(Z | X); NULL when every prompt is sampled once."""
    written = v.evidence.rollouts.written
    shares = [len({tuple(map(tuple, written[i])) for i in part}) / len(part) for part in v.groups]
    return float(np.mean(shares)) if shares else None


@diagnostic(
    STEP, Unit.FRACTION,
    "share of rollouts whose counts of written tokens are nearest (cosine) to those of their own prompt's others",
    RAGEN_2,
)  # fmt: skip
def prompt_retrieval_frac(v: StepView) -> float | None:
    """Whether the prompt can be told from what was written, a stand-in for the mutual information I(X; Z).

    At 1 / prompts every answer could belong to any prompt: a template. NULL with fewer than two prompt groups.
    """
    if len(v.groups) < 2:
        return None
    rows = np.concatenate(v.groups)
    counts = _counts(v.evidence.rollouts, rows)
    label = np.repeat(np.arange(len(v.groups)), [len(part) for part in v.groups])
    totals = np.stack([counts[label == k].sum(0) for k in range(len(v.groups))])
    likeness = _unit(counts) @ _unit(totals).T  # (N, prompts)
    own = _unit(totals[label] - counts)  # without the rollout itself
    likeness[np.arange(len(rows)), label] = (_unit(counts) * own).sum(1)
    best = likeness >= likeness.max(1, keepdims=True) - 1e-9
    return float((best[np.arange(len(rows)), label] / best.sum(1)).mean())


def _counts(rollouts: Rollouts, rows: np.ndarray) -> np.ndarray:
    """How often each token of the step's vocabulary was written, (N, V)."""
    flat = [list(chain.from_iterable(rollouts.written[i])) for i in rows]
    seen, index = np.unique(np.fromiter(chain.from_iterable(flat), np.int64), return_inverse=True)
    row = np.repeat(np.arange(len(rows)), [len(tokens) for tokens in flat])
    cells = np.bincount(row * max(len(seen), 1) + index, minlength=len(rows) * max(len(seen), 1))
    return cells.reshape(len(rows), -1).astype(np.float64)


def _unit(x: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(norm > 0, norm, 1.0))
