"""Time the app's queries over 1,000 runs x 10,000 steps: `python bench/series_query.py`.

It makes the tables that Compare and Turns read, with a few measured columns, in a temporary folder (some 700
MB), and runs the SQL files of the app on a connection of its own for each request, as the app does. What
drawing costs comes on top; `sorl bench --only browse` measures that with every column.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import duckdb

from sorl.app.queries import sql
from sorl.store.connect import HARDENED

# SOME: runs of six arms, whose turns a heat map shows
RUNS = 1_000
STEPS = 10_000
TURNS = 8
SOME = 120
COLUMNS = ("success", "grad_norm_max", "ratio_max", "clip_frac", "entropy")
REQUESTS = 30


def make(file: Path) -> None:
    """Fill `step` and `turn_step` run by run, as sync does."""
    values = ", ".join(
        f"CASE WHEN random() < .05 THEN NULL ELSE random() * 3 END AS {name}" for name in COLUMNS
    )
    ids = "'run-' || lpad(r::VARCHAR, 4, '0') AS run_id, s::BIGINT AS step"
    with duckdb.connect(str(file)) as connection:
        connection.execute(
            f"CREATE TABLE step AS SELECT {ids}, {values} FROM range({RUNS}) a(r), range({STEPS}) b(s) ORDER"
            " BY 1, 2"
        )
        connection.execute(
            f"CREATE TABLE turn_step AS SELECT {ids}, k::BIGINT AS turn_index, 64::BIGINT AS n_turns,"
            f" {values} FROM range({SOME}) a(r), range({STEPS}) b(s), range(1, {TURNS + 1}) c(k) ORDER BY 1,"
            " 2, 3"
        )


def main() -> None:
    """Print median and 95th percentile of each kind of request (s), and the CPU time of one."""
    draw = random.Random(0)
    requests = {  # name -> query, runs, share of the steps, buckets
        "overlay, 1,000 runs": ("series", RUNS, 1.0, 60),
        "zoom into 1 to 50 %, 1,000 runs": ("series", RUNS, None, 60),
        "zoom into 1 to 50 %, 120 runs": ("series", SOME, None, 240),
        "heat map, 120 runs": ("heat", SOME, 1.0, 60),
    }
    with tempfile.TemporaryDirectory(prefix="sorl-series-") as place:
        file = Path(place) / "made.duckdb"
        make(file)
        print("| request | median | p95 | CPU |\n|---|---|---|---|")
        for words, (name, runs, share, buckets) in requests.items():
            taken = []
            cpu = time.process_time()
            for _ in range(REQUESTS):
                steps = int(STEPS * (share or draw.uniform(0.01, 0.5)))
                first = draw.randint(0, STEPS - steps)
                asked = {
                    "runs": [f"run-{r:04d}" for r in range(runs)],
                    "origins": [0] * runs,
                    "first": first,
                    "last": first + steps - 1,
                    "width": max(1, -(-steps // buckets)),
                    "column": draw.choice(COLUMNS),
                }
                asked |= (
                    {"table": "step"}
                    if name == "series"
                    else {"arms": [r // 20 for r in range(runs)], "log": False}
                )
                start = time.perf_counter()
                with duckdb.connect(str(file), read_only=True, config=HARDENED) as connection:
                    connection.execute(sql(name)[1], asked).df()
                taken.append(time.perf_counter() - start)
            cpu = (time.process_time() - cpu) / REQUESTS
            print(
                f"| {words} | {median(taken):.2f} | {quantiles(taken, n=20)[-1]:.2f} | {cpu:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
