"""From segments to the database: `sorl sync` beside DuckDB's own copy of the same files into one bare table."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from workbench.cli.benchmarks.pairs import Comparison, Side, Target, Work, alternate, timed
from workbench.cli.benchmarks.scene import Scene
from workbench.cli.benchmarks.update import sampled
from workbench.diagnostics import CATALOGUE, measure_turns
from workbench.diagnostics.evidence import Evidence
from workbench.learn.update import Learner
from workbench.record.recorder import Recorder
from workbench.store.sync import sync

RUNS = 6
STEPS_A_SEGMENT = 2  # what a second of training writes at the default sizes


def turn_rows(scene: Scene) -> dict[str, Any]:
    """The turn columns of one real step: every measured column at its real precision."""
    step = sampled(scene, "ppo")
    learner = Learner(step.algorithm, step.settings.learn, step.policy, step.critic)
    updates = [learner.update(step.batch.rows(rows).trimmed(), epoch, 0) for epoch, rows in step.rows]
    return measure_turns(Evidence.stack(updates), [e.turn_status for e in step.rollout.episodes])


def write(folder: Path, scene: Scene, rows: int) -> int:
    """Run folders with at least `rows` turn rows in segments of a real run's size; returns how many there are."""
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


def measure(scene: Scene, rounds: int, rows: int = 200_000) -> list[Comparison]:
    """Turn rows/s of a sync into a database with schema and no rows, opening and closing it included."""
    import duckdb

    written = scene.folder / "ingest"
    total = write(written, scene, rows)
    files = [str(path) for path in sorted(written.glob("bench/*/segments/turn/*.parquet"))]
    number = count()

    def syncing() -> Work:
        runs = scene.folder / f"sync-{next(number)}"
        runs.mkdir()
        sync(runs, CATALOGUE)
        (runs / "bench").symlink_to(written / "bench")

        def work() -> float:
            report = sync(runs, CATALOGUE)
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
            facts={"rows": total, "segments": len(files), "bytes": sum(Path(f).stat().st_size for f in files)},
        )
    ]
