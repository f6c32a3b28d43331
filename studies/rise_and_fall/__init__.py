"""Search for a regime in which runs learn and then die, by successive halving over settings and seeds.

`python -m studies.rise_and_fall [--runs DIR] [--output FILE.parquet]` goes through the rungs of
settings.toml, each a grid of the settings that are left; the same command resumes, and settings that are
added later start at the first rung. Every finished run is a row of the table, which is written again whenever
a run ends.

`python -m studies.rise_and_fall --from FILE.parquet` counts which exported runs rose and fell
(`rise_and_fall.toml`).
"""

from __future__ import annotations

import json
import math
import tomllib
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

from sorl.analysis.runs import newest
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.log import of_run
from sorl.grid import config, progress
from sorl.grid import run as grid
from sorl.spec import NOT_RISEN, InputError
from sorl.spec.markdown import markdown_table
from sorl.store.reader import Reader
from sorl.store.sync import sync
from studies import Share, stored

HERE = Path(__file__).parent
NAME = "rise_and_fall"  # of the experiments, with the number of the rung
# steps that the warm start is the mean of, and those of the peak and of the end
ENDS = 5
WIDE = 10
EXPORTED = ("arm", "status", "config", "success", "outcome", "collapse_step")
# success above the warm start, and the iterations in a row whose mean shows it
GAIN = 0.15
HELD = 30


def curve(success: Sequence[float]) -> dict[str, float]:
    """Warm start (mean of the first steps), peak (best mean of WIDE steps in a row), gain and
    end of a run.
    """
    values = pd.Series(success, dtype=float)
    start = float(values[:ENDS].mean())
    means = values.rolling(min(WIDE, len(values))).mean()
    peak = float(means.max())
    return {"start": start, "peak": peak, "gain": peak - start, "end": float(means.iloc[-1])}


def arms(runs: pd.DataFrame) -> pd.DataFrame:
    """Count per arm the finished runs that rose and fell: rows of `sorl report --export`, one an arm, in
    their order.

    `warm_start` is the mean success of the first iteration over all runs of a model, which start from the
    same weights; `held` is the arm's median of max_t mean(success[t:t+30]), `rose` counts held >= warm_start
    + .15, and `end` is the median of the last ten iterations.
    """
    runs = runs[runs["status"] == "finished"].copy()
    runs["model"] = runs["config"].map(lambda text: str(json.loads(text)["policy"]))
    runs["warm_start"] = runs["success"].str[0].groupby(runs["model"]).transform("mean")
    runs["held"] = runs["success"].map(lambda values: pd.Series(values).rolling(HELD).mean().max())
    runs["end"] = runs["success"].map(lambda values: pd.Series(values[-WIDE:]).mean())
    runs["rose"] = runs["held"] >= runs["warm_start"] + GAIN
    runs["collapsed"] = runs["outcome"] == "collapsed"
    runs["recovered"] = runs["outcome"] == "recovered"
    runs["never_learned"] = runs["outcome"].isin(NOT_RISEN)
    runs["onset"] = runs["collapse_step"].astype(float)
    runs["both"] = runs["rose"] & runs["collapsed"]
    return (
        runs.groupby("arm", sort=False)
        .agg(
            runs=("arm", "size"),
            warm_start=("warm_start", "first"),
            held=("held", "median"),
            end=("end", "median"),
            rose=("rose", "sum"),
            collapsed=("collapsed", "sum"),
            rose_and_collapsed=("both", "sum"),
            onset=("onset", "median"),
            recovered=("recovered", "sum"),
            never_learned=("never_learned", "sum"),
        )
        .reset_index()
    )


def page(runs: pd.DataFrame) -> str:
    """Return the counts of `arms` as a Markdown table."""
    rows = []
    for arm in arms(runs).round(2).to_dict("records"):
        fell = Share(arm["collapsed"], arm["runs"])
        success = [f"{arm[name]:.2f}" for name in ("warm_start", "held", "end")]
        counts = [arm["rose"], fell, arm["recovered"], arm["never_learned"]]
        onset = f"{arm['onset']:g}" if arm["collapsed"] else "-"
        rows.append((arm["arm"], *success, *counts, onset))
    header = (
        "arm",
        "start",
        "best 30",
        "last 10",
        "rose",
        "collapsed",
        "came back",
        "never learned",
        "onset",
    )
    return markdown_table(header, rows)


def promise(rows: pd.DataFrame) -> float:
    """How far a setting is on the way up and down: the mean over its runs of min(gain, .15) (peak - end) /
    peak.
    """
    lost = ((rows["peak"] - rows["end"]) / rows["peak"].clip(lower=1e-9)).clip(lower=0.0)
    return float((rows["gain"].clip(0.0, 0.15) * lost).mean())


def survivors(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the better half of the settings (rounded up) by their promise, in the order of the table."""
    scores = {name: promise(rows[rows["setting"] == name]) for name in names}
    ranked = sorted(names, key=lambda name: -scores[name] if math.isfinite(scores[name]) else math.inf)
    return [name for name in names if name in ranked[: math.ceil(len(names) / 2)]]


def trials(reader: Reader, rung: int) -> pd.DataFrame:
    """One row a finished run of a rung: what its success did, the verdict, what moved first, seconds."""
    found = newest(reader.query("SELECT * FROM run WHERE status = 'finished' ORDER BY run_id"))
    rows = []
    for run in found[found["experiment"] == f"{NAME}_{rung}"].to_dict("records"):
        success = reader.query(
            "SELECT success FROM step WHERE run_id = $run AND success IS NOT NULL ORDER BY step",
            {"run": run["run_id"]},
        )["success"]
        if success.empty:
            continue
        moved = diagnose(of_run(reader, str(run["run_id"]))).moved
        rows.append(
            {
                "rung": rung,
                "setting": run["arm"],
                "seed": int(run["seed"]),
                "algorithm": run["algorithm"],
                "iterations": int(run["steps"]),
                **curve(success.tolist()),
                "verdict": run["outcome"],
                "onset": run["collapse_step"],
                "moved_first": [f"{m.column} {m.step}" for m in moved[:3]],
                "seconds": run["seconds"],
                "config": run["config"],
            }
        )
    return pd.DataFrame(rows)


def rung_file(
    folder: Path, number: int, rung: dict[str, Any], base: dict[str, Any], left: dict[str, Any]
) -> Path:
    """Write the grid of a rung and return its path."""
    arms = [{"name": name, **changes} for name, changes in left.items()]
    question = f"Which of these settings rises and falls? Rung {number} of the search."
    grid_file = {"question": question, "seeds": rung["seeds"], "arms": arms}
    grid_file["base"] = {**base, "iterations": rung["iterations"]}
    path = folder / f"{NAME}_{number}.toml"
    path.write_text(tomli_w.dumps(grid_file))
    return path


def search(runs: Path, output: Path, table: Path = HERE / "settings.toml", workers: int = 1) -> pd.DataFrame:
    """Go through the rungs; returns the table. Raises InputError where a rung was interrupted or a run
    failed.
    """
    asked = tomllib.loads(table.read_text(encoding="utf-8"))
    left = dict(asked["settings"])
    kept = [pd.read_parquet(output)] if output.is_file() else []
    runs.mkdir(parents=True, exist_ok=True)

    def keep(number: int) -> pd.DataFrame:
        sync(runs)
        mine = trials(Reader(runs), number)
        if mine.empty:
            return mine
        others = [rows[rows["rung"] != number] for rows in kept]
        kept[:] = [pd.concat([*others, mine], ignore_index=True)]
        unfinished = output.with_suffix(".writing")
        kept[0].to_parquet(unfinished, index=False)
        unfinished.replace(output)
        return mine

    for number, rung in enumerate(asked["rungs"]):
        plan = config.load(rung_file(runs, number, rung, asked["base"], left))
        seen: list[int] = []

        def harvest(number: int = number, seen: list[int] = seen) -> None:
            ended = len(list((runs / f"{NAME}_{number}").glob("*/checkpoints/*/progress.json")))
            if seen[-1:] != [ended]:  # a checkpoint more: perhaps a run that ended
                seen.append(ended)
                with suppress(InputError, OSError):
                    keep(number)

        results = grid.run(plan, runs, progress.Display(), workers=workers, sync=harvest)
        mine = keep(number)
        if stopped := [r.cell.run_id for r in results if r.status != "finished"]:
            raise InputError(f"rung {number}: {len(stopped)} runs are not finished; the same command resumes")
        left = {name: left[name] for name in survivors(mine, list(left))}
    return kept[0]


def main() -> None:
    """Run the search from the command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument(
        "--output", type=Path, default=Path("experiments/results/rise_and_fall/search.parquet")
    )
    parser.add_argument("--table", type=Path, default=HERE / "settings.toml")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--from", dest="exported", type=Path, metavar="FILE.parquet", help="count its runs instead"
    )
    told = parser.parse_args()
    if told.exported:
        try:
            found = pd.DataFrame(stored(told.exported, EXPORTED, "exported results"))
        except InputError as error:
            parser.error(str(error))
        print(arms(found).round(2).to_string(index=False))
        return
    found = search(told.runs, told.output, told.table, told.workers)
    columns = ["rung", "setting", "seed", "start", "peak", "end", "verdict", "seconds"]
    print(found.sort_values(["rung", "setting", "seed"])[columns].to_string(index=False))


if __name__ == "__main__":
    main()
