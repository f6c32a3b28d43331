"""Replay: all six algorithms on a large stored batch, beside as many bare PPO losses on the same tensors."""

from __future__ import annotations

import numpy as np
import torch

from workbench.algorithms import resolve
from workbench.cli.benchmarks.pairs import Comparison, Side, Target, Work, alternate, timed
from workbench.cli.benchmarks.scene import Scene
from workbench.cli.variants import CORE
from workbench.store.stored import StoredBatch, StoredUpdate

TRAJECTORIES, TURNS, TOKENS, UPDATES = 512, 8, 4000, 4


def stored(trajectories: int = TRAJECTORIES, turns: int = TURNS, tokens: int = TOKENS) -> StoredBatch:
    """A made-up batch: prompt groups of 8, every token trained on but the first of each turn, ratios about 1."""
    random = np.random.default_rng(0)
    shape = (trajectories, tokens)
    mask = np.broadcast_to(np.arange(tokens) % (tokens // turns) > 0, shape).copy()
    old = -random.random(shape, dtype=np.float32) * mask
    new = old + np.float32(0.1) * random.standard_normal(shape, dtype=np.float32) * mask
    row = np.arange(trajectories, dtype=np.int32)
    parts = np.split(random.permutation(row), UPDATES)
    updates = [StoredUpdate(i, 0, 0, r, new[r], None, None, None, (len(r),), {}) for i, r in enumerate(parts)]
    return StoredBatch(
        step=0, tokens=random.integers(0, 71, shape).astype(np.int32), response=np.ones(shape, bool), mask=mask,
        mask_sampled=mask, length=np.full(trajectories, tokens, np.int32), group=row // 8, trajectory=row,
        score=random.integers(0, 2, trajectories).astype(np.float32), log_prob_behaviour=old, log_prob_old=old,
        log_prob_ref=None, values=random.standard_normal(shape, dtype=np.float32) * mask,
        advantages=random.standard_normal(shape, dtype=np.float32) * mask, returns=None, sentence=None, placebo=None,
        updates=tuple(updates), meta={},
    )  # fmt: skip


def ours(batch: StoredBatch) -> Work:
    """All six, with every table but that of tokens."""
    from workbench.replay import play, tables

    def work() -> float:
        done = play(batch, {name: resolve(name) for name in CORE}, CORE[0])
        for table in (tables.summary(done), tables.turns(done), tables.culprits(done, 3)):
            assert table.rows
        return 1.0

    return work


def bare(batch: StoredBatch) -> Work:
    """One clipped surrogate and its gradient for each algorithm: no advantages, no turns, no statistics."""

    def work() -> float:
        mask, old, a = (torch.from_numpy(x) for x in (batch.mask, batch.log_prob_old, batch.advantages))
        for _ in CORE:
            for update in batch.updates:
                rows = torch.from_numpy(update.rows).long()
                leaf = torch.from_numpy(update.log_prob).requires_grad_()
                ratio = (leaf - old[rows]).exp()
                loss = torch.maximum(-a[rows] * ratio, -a[rows] * ratio.clamp(0.8, 1.2))
                torch.autograd.grad((loss * mask[rows]).sum() / mask[rows].sum(), leaf)
        return 1.0

    return work


def measure(scene: Scene, rounds: int) -> list[Comparison]:
    """Replays/s of a batch of TRAJECTORIES x TOKENS; by the clock the aim is 2 s a replay on a machine of its own."""
    batch = stored()
    a, b = alternate(timed(lambda: ours(batch)), timed(lambda: bare(batch)), rounds)
    return [
        Comparison(
            name="replay",
            unit="replays/s",
            ours=Side("six algorithms, advantages and tables included", a),
            baseline=Side("six bare PPO losses with gradient", b),
            target=Target("rate", 0.5),
            note=f"{TRAJECTORIES} trajectories x {TURNS} turns x {TOKENS:,} tokens, one epoch of {UPDATES} minibatches",
            facts={"cpu_seconds": [s.cpu_seconds for s in a], "trained_tokens": int(batch.mask.sum())},
        )
    ]
