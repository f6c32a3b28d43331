"""Replay: one stored batch through several algorithms, side by side: ratios, clips, and who carries the gradient."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

import workbench
from workbench.algorithms import ALGORITHMS, CORE
from workbench.app import export
from workbench.app.experiments import choose_experiment, runs
from workbench.app.figures.curves import chart
from workbench.app.page import address, anchor, episode_address, linked_table, links, look, note, say, screen, table
from workbench.app.store import Store
from workbench.app.text import number
from workbench.app.trajectories import choose_run, first_run
from workbench.app.url import choose, choose_many, keep_number
from workbench.spec import InputError
from workbench.store import batches
from workbench.store.text import plain

MEASURES = {
    "gradient_share": "share of sum |d loss / d log-prob|",
    "unit_ratio_mean": "mean of the ratio that entered the surrogate",
    "unit_ratio_max": "its largest",
    "clip_frac": "share of tokens whose gradient the clip stopped",
    "out_of_range_frac": "share of tokens whose own ratio is out of bounds",
    "unit_ratio_mass_frac": "share of the sum of the ratios",
}
FIGURES = ("policy_loss", "stabiliser_ratio", "stabiliser_factor", "unit_ratio_max", "ess_frac", "clip_frac",
           "out_of_range_frac", "weight_abs")  # fmt: skip
CULPRITS = ("algorithm", "rank", "trajectory", "turn_index", "gradient_share", "advantage", "ratio_max", "clip_frac")
_GAP = 1e-3  # of an advantage; rounding stays far below
Answer = dict[str, Any]  # of `sorl replay --format json`


@screen
def replay(store: Store) -> None:
    """What would another algorithm have done with this very batch?"""
    left, middle, right = st.columns([2, 4, 1])
    with left:
        experiment = choose_experiment(store)
    each = runs(store, experiment)
    folders = {run: batches.folder_of(store.runs, experiment, run) for run in each["run_id"]}
    stored = {run: batches.steps(folder) if folder else [] for run, folder in folders.items()}
    first = first_run(each)
    with middle:
        about = choose_run(each, next((run for run in (first, *stored) if stored[run]), first))
    run, onset = str(about["run_id"]), about["collapse_step"]
    folder, there = folders[run], stored[run]
    if folder is None or not there:
        why = "Runs keep some unless record.batches.mb = 0; train it again to have them:"
        say(f"Run {run} has no stored batch. {why}", "sorl run FILE.toml --fresh")
        return
    before = [step for step in there if pd.isna(onset) or step <= onset] or there
    with right:
        step = int(choose("step", "Step", [str(s) for s in there], str(before[-1])))
    algorithms = choose_many("algorithm", "Algorithms", list(ALGORITHMS), list(CORE))
    trajectory = keep_number("trajectory", (run, step))
    with st.spinner("Replaying the batch ..."):
        answer = replayed(folder, step, algorithms or list(CORE), trajectory)
    table(["algorithm", *FIGURES], summary(answer))
    for name, reason in answer["reasons"].items():
        note(f"{name}: not possible, {reason}.")
    gap = answer["advantage_gap"]
    if isinstance(gap, float) and gap > _GAP:
        say(
            f"The advantages of {answer['own']}, computed again from the stored rewards, differ by up to {gap:.3g} "
            "from those that it was trained on."
        )
    measure = choose("measure", "By turn", list(MEASURES), kind="row")
    frame = by_turn(answer, measure)
    if frame.empty:
        note(f"No algorithm has a {measure} in this step.")
    else:
        drawn = chart(frame, "turn_index", measure, "algorithm", "bars", {measure: ("", MEASURES[measure])}, look())
        export.figure(drawn, "replay", frame, describe=f"{measure} by turn of step {step}, for each algorithm.")
    here = {"experiment": experiment, "run": run, "step": str(step)}
    left, right = st.columns(2, gap="medium")
    with left:
        note("The turns that carry most of the gradient; each opens the tokens of its trajectory.")
        rows = []
        for row in answer["culprits"]:
            where = address("replay", **here, algorithm=algorithms, trajectory=str(row["trajectory"]))
            rows.append((where, [row["algorithm"], *(_shown(row[name]) for name in CULPRITS[1:])]))
        linked_table([(name, "") for name in CULPRITS], rows)
    with right:
        _tokens(answer, here)


def _tokens(answer: Answer, here: dict[str, str]) -> None:
    found = pd.DataFrame(answer["tokens"])
    if found.empty:
        note("No token of this trajectory was trained on.")
        return
    found = found[found["update"] == found["update"].max()]
    which = str(found["trajectory"].iloc[0])
    note(
        f"Gradient on each token of trajectory {which} x 1,000 in update {found['update'].iloc[0]}; negative: the "
        "update makes the token more likely."
    )
    text = found["token"].fillna(found["token_id"]).astype(str)
    clipped = found["clipped"].map(lambda on: " clipped" if on else "")
    weight = found["weight"].map(lambda w: _shown(1000 * w if isinstance(w, float) else w)) + clipped
    shown = found.assign(token=text, weight=weight, log_ratio=found["log_ratio"].map(_shown))
    names = list(dict.fromkeys(shown["algorithm"]))
    table_of = shown.pivot(index="position", columns="algorithm", values="weight").reindex(columns=names).fillna("–")
    first = shown[shown["algorithm"] == names[0]].set_index("position")[["turn_index", "token", "log_ratio"]]
    st.dataframe(first.set_axis(["turn", "token", "log-ratio"], axis=1).join(table_of).sort_index(), hide_index=True)
    where = episode_address(**here, trajectory=which)
    links([anchor(f"Trajectory {which} of step {here['step']} in Episode", where)])


def summary(answer: Answer) -> list[list[str]]:
    """List name and FIGURES of each algorithm over all updates, and what the trainer logged for its own."""
    return [
        [row["algorithm"] + (" (as logged)" if row["source"] == "logged" else ""), *(_shown(row[n]) for n in FIGURES)]
        for row in _over_all_updates([row for row in answer["summary"] if not row["reason"]])
    ]


def by_turn(answer: Answer, measure: str) -> pd.DataFrame:
    """Return algorithm, turn_index and the measure over all updates; what is NULL, NaN or Inf is left out."""
    names = ["algorithm", "turn_index", measure]
    rows = [row for row in _over_all_updates(answer["turns"]) if isinstance(row[measure], (int, float))]
    return pd.DataFrame([[row[n] for n in names] for row in rows], columns=names)


def _over_all_updates(rows: list[Answer]) -> list[Answer]:
    return [row for row in rows if row["update"] is None] or rows


def _shown(value: Any) -> str:
    """A figure of the answer: JSON has no word for NaN and Inf, so these come as texts."""
    return value if isinstance(value, str) else number(value)


# The answers of `sorl replay`, by a process of its own, because the app has no torch. Kept in the run's folder.

SECONDS = 120.0  # that an answer may take; torch alone takes some to be imported
KEPT = 64  # answers of a run; the oldest go
_COMMAND = (sys.executable, "-c", "from workbench.cli.main import main; main()")


def replayed(folder: Path, step: int, algorithms: Sequence[str], trajectory: int | None = None) -> Answer:
    """Return what `sorl replay --format json` says of a stored step, once for each state of its file; or InputError."""
    words = ["replay", str(folder), "--step", str(step), "--format", "json", "--tokens"]
    words += [word for name in algorithms for word in ("--algorithm", name)]
    words += [] if trajectory is None else ["--trajectory", str(trajectory)]
    stat = batches.file_of(folder, step).stat()
    key = json.dumps([words, stat.st_mtime_ns, stat.st_size, version("sorl")])
    file = folder / "batches" / ".replay" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError):
        return json.loads(file.read_text(encoding="utf-8"))
    text = _ask(words)
    answer: Answer = json.loads(text)
    with suppress(OSError):  # a folder that may not be written costs time, not the answer
        file.parent.mkdir(exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(file)
        for old in sorted(file.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
    return answer


def _ask(words: Sequence[str]) -> str:
    paths = [str(Path(workbench.__path__[0]).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    typed = f"type it on a terminal: sorl replay {words[1]} --step {words[3]}"
    try:
        done = subprocess.run(
            [*_COMMAND, *words], capture_output=True, timeout=SECONDS, check=False, env=environment,
            stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(f"the replay took more than {SECONDS:.0f} s; {typed}") from None
    except OSError as error:
        raise InputError(f"the replay could not be started ({error.strerror}); {typed}") from None
    if done.returncode:
        said = plain(done.stderr).strip().removeprefix("sorl: ")
        raise InputError(" ".join(said[-600:].split()) or f"the replay ended with code {done.returncode}")
    return done.stdout
