"""What recording costs a large run: seconds of the trainer, bytes, rows and seconds of the recorder an
iteration.

    PYTHONPATH=. .venv/bin/python bench/recorder_cost.py --trajectories 512 --turns 8 --updates 16

The tensors are random; what they are does not change the cost. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pyarrow.parquet as pq
import torch

from sorl.recording import Clip, Ledger


def main(argv: list[str] | None = None) -> None:
    """Record some iterations, and say what each cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=512)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256, help="of a turn; as many are observed after it")
    parser.add_argument("--updates", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--sampled", type=int, default=None, help="the knob `trajectories` of the ledger")
    options = parser.parse_args(argv)
    n = options.trajectories
    width = 2 * options.turns * options.tokens
    mask = (torch.arange(width) // options.tokens % 2 == 0).expand(n, width)
    each = n * options.epochs // options.updates
    spent: list[float] = []
    with TemporaryDirectory() as folder:
        ledger = Ledger(
            folder,
            experiment="cost",
            algorithm="grpo",
            clip=Clip(),
            memory_mb=8192,
            trajectories=options.sampled,
        )
        process = psutil.Process(ledger._process.pid if ledger._process else os.getpid())
        peak = 0
        sent = 0
        made: dict[str, Any] = {
            name: -torch.rand(n, width) for name in ("log_prob", "log_prob_old", "entropy")
        }
        ids = torch.randint(0, 150_000, (n, width), dtype=torch.int32)
        began = time.perf_counter()
        for step in range(options.steps):
            ledger.rollouts(step, torch.rand(n), group=torch.arange(n) // 8, responses=list(ids))
            for update in range(options.updates):
                rows = torch.randperm(n)[:each]
                told = {name: x[rows] for name, x in made.items()}
                ledger.update(
                    step,
                    epoch=update * options.epochs // options.updates,
                    mask=mask[rows],
                    trajectory=rows,
                    advantages=torch.randn(each),
                    grad_norm=1.0,
                    **told,
                )
            sent = ledger._backlog.step_bytes
            spent.append(ledger.seconds)
            ledger.end(step)
        done = Path(ledger.folder) / "segments" / "step"
        while (
            len(list(done.glob("*.parquet"))) == 0 or sum(map(_rows, done.glob("*.parquet"))) < options.steps
        ):
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.2)
        seconds = time.perf_counter() - began
        ledger.close()
        files = list((Path(ledger.folder) / "segments").glob("*/[0-9]*.parquet"))
        rows_ = {f.parent.name: 0 for f in files}
        for file in files:
            rows_[file.parent.name] += _rows(file)
        detail = sum(count for name, count in rows_.items() if name not in ("diagnostic", "run"))
        boxed = sum(f.stat().st_size for f in (Path(ledger.folder) / "batches").glob("*"))
        print(
            json.dumps(
                {
                    "trainer_seconds_an_iteration": [round(s, 3) for s in spent],
                    "sent_mb_an_iteration": sent / 1e6,
                    "recorder_seconds_an_iteration": seconds / options.steps,
                    "recorder_peak_gb": peak / 1e9,
                    "rows_an_iteration": detail / options.steps,
                    "rows_a_second": detail / seconds,
                    "segments_mb_an_iteration": sum(f.stat().st_size for f in files) / options.steps / 1e6,
                    "black_box_mb": boxed / 1e6,
                    "rows": rows_,
                }
            )
        )


def _rows(file: Path) -> int:
    return int(pq.read_metadata(file).num_rows)


if __name__ == "__main__":
    main()
