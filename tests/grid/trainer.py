"""A scripted trainer: the contract of `python -m workbench.learn` without learning anything.

    python trainer.py FOLDER --cache CACHE

It reads the folder's config.toml, counts steps in `progress.txt` (its checkpoint), prints one JSON line a step, writes
rows of table `run`, holds `lock`, and ends with the exit codes of the real one. What goes wrong is scripted by a file
`script.json` beside the experiments: {"arm": {"step_seconds": 0.05, "fail_at": 3, "ignore_sigint": true, ...}};
"wait_at" holds a step until a file `go` lies there too.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.spec import RunSettings, table

TYPES = {"VARCHAR": pa.string(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(), "TIMESTAMP": pa.timestamp("us")}


def main() -> int:
    folder = Path(sys.argv[1])
    config = tomllib.loads((folder / "config.toml").read_text())
    identity = json.loads((folder / "run.json").read_text())
    identity["config"] = RunSettings.model_validate(config).model_dump_json()
    scripts = folder.parent.parent / "script.json"
    script = json.loads(scripts.read_text()).get(identity["arm"], {}) if scripts.exists() else {}
    with (folder / "starts.txt").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("sorl: the run is being trained by another process", file=sys.stderr)
        return 2
    asked = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, (lambda *_: None) if script.get("ignore_sigint") else (lambda n, _: asked.append(n)))

    checkpoint = folder / "progress.txt"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    write(folder, identity, status="running", steps=done)
    for step in range(done + 1, config["iterations"] + 1):
        time.sleep(script.get("step_seconds", 0.01))
        given_up = time.monotonic() + 200  # a test that failed lets nobody go
        while step == script.get("wait_at") and not (scripts.parent / "go").exists() and not asked:
            if time.monotonic() > given_up:
                return 1
            time.sleep(0.02)
        if step == script.get("fail_at"):
            print("RuntimeError: scripted failure", file=sys.stderr)
            if script.get("silent"):
                os.kill(os.getpid(), signal.SIGKILL)
            write(folder, identity, status="failed", steps=step, reason="RuntimeError: scripted failure")
            return 1
        checkpoint.write_text(str(step))
        print(
            json.dumps(
                {
                    "step": step,
                    "steps": config["iterations"],
                    "success": 0.1 * step,
                    "clip_frac": 0.02,
                    "grad_norm": 4.1,
                }
            )
        )
        if asked:
            write(folder, identity, status="interrupted", steps=step, reason="stopped by SIGINT")
            return 3
    updates(folder, identity["run_id"], config["iterations"], script.get("grad_norm", 4.0))
    write(
        folder,
        identity,
        status="finished",
        steps=config["iterations"],
        **{"outcome": "healthy", **script.get("row", {})},
    )
    return 0


def write(folder: Path, identity: dict[str, Any], **changes: object) -> None:
    columns = table("run").columns
    now = datetime.now(UTC).replace(tzinfo=None)
    row = {c.name: None for c in columns} | identity | {"started_at": now, "at": now} | changes
    segment(folder, "run", pa.Table.from_pylist([row], schema=pa.schema([(c.name, TYPES[c.type]) for c in columns])))


def updates(folder: Path, run_id: str, steps: int, grad_norm: float) -> None:
    rows = [{"run_id": run_id, "step": s, "update": 0, "epoch": 0, "rollout_step": s} for s in range(steps)]
    measured = [{"grad_norm": grad_norm, "clip_frac": 0.02} for _ in rows]
    segment(folder, "minibatch", pa.Table.from_pylist([r | m for r, m in zip(rows, measured, strict=True)]))


def segment(folder: Path, name: str, rows: pa.Table) -> None:
    segments = folder / "segments" / name
    segments.mkdir(parents=True, exist_ok=True)
    target = segments / f"{len(list(segments.glob('0*.parquet'))):06d}.parquet"
    pq.write_table(rows, target.with_name(f".{target.name}"))
    target.with_name(f".{target.name}").rename(target)


if __name__ == "__main__":
    sys.exit(main())
