"""Logs of other trainers: where they are in a file or folder, and what they are in tables of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from sorl.diagnosis.log import Log
from sorl.diagnostics import CATALOGUE
from sorl.diagnostics.collapse import Watch, judge
from sorl.diagnostics.rules import Event, RuleWatch, alarms
from sorl.integrations import names
from sorl.integrations.formats import Format, format_of, runs_in
from sorl.integrations.rows import Rows
from sorl.integrations.trackers import config_near, configs
from sorl.recording.segments import schema_of
from sorl.spec import InputError

STEPS = 50_000  # that are judged, in some seconds
KEPT = 200  # metrics that are kept under their own names
# folders below each other, and files and folders, that are looked at for logs
DEEP = 8
ENTRIES = 100_000
ENDINGS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".wandb", ".swanlab", ".db", ".sqlite", ".log")
_BEGIN = 5  # values of a metric, which are numbers if it is not padded with NaN
_NAMED = 8  # metrics that are named of a log without a known one


class Source(NamedTuple):
    """A file or folder with one run, or a database with several."""

    path: Path
    format: Format

    def fingerprint(self) -> str:
        """Return what changes with the files of the source: their names, sizes and times."""
        own = sorted(islice(self.path.rglob("*"), ENTRIES)) if self.path.is_dir() else [self.path]
        seen = []
        for file in (*own, self.path.with_name(f"{self.path.name}-wal"), *configs(self.path)):
            with suppress(OSError):  # gone since
                state = file.stat()
                seen.append(f"{file} {state.st_size} {state.st_mtime_ns}")
        return sha256("\n".join(seen).encode(errors="surrogateescape")).hexdigest()

    def runs(self, refused: list[str] | None = None) -> Iterator[Imported]:
        """Yield the runs in it; `refused` gets a line for each of nothing known. InputError where none can be
        read.
        """
        lines = [] if refused is None else refused
        some = False
        for rows in runs_in(self.path, self.format):
            try:
                run = imported(rows, config_near(self.path, rows.notes) | rows.config)
            except InputError as error:
                lines.append(str(error))
            else:
                some = True
                yield run
        if not some:
            raise InputError(lines.pop() if lines else f"'{self.path}' holds no runs")


@dataclass
class Imported:
    """A run of another trainer in tables of ours: `step`, and `minibatch` with one update a step."""

    name: str
    tables: dict[str, dict[str, Any]]
    settings: dict[str, Any]  # by dotted key, those of workbench/spec/settings.py and names.SETTINGS
    read: dict[str, str]  # table.column -> metric
    kept: dict[str, str]  # column of table `step` -> metric without a column of ours
    left: list[str]  # metrics beyond KEPT
    notes: list[str]
    status: str

    @property
    def steps(self) -> np.ndarray:
        """Steps, ascending."""
        return np.asarray(self.tables["step"]["step"])

    @property
    def every(self) -> int:
        """Of how many steps one is judged: of a log of more than STEPS not every one is."""
        return max(1, -(-len(self.steps) // STEPS))


def sources(path: Path) -> list[Source]:
    """Return the logs in a file or below a folder. Raises InputError where there is none; links are not
    followed.
    """
    if not path.exists():
        raise InputError(f"there is no file or folder '{path}'")
    if not path.is_dir():
        found = format_of(path)
        return [Source(path, found)] if found else []
    if not (logs := list(_below(path, DEEP, iter(range(ENTRIES))))):
        raise InputError(
            f"'{path}' holds no known log; in a folder only files named *{', *'.join(ENDINGS)} are read"
        )
    return logs


def _below(folder: Path, deep: int, budget: Iterator[int]) -> Iterator[Source]:
    """Yield the logs of a folder: it is one, or it holds some."""
    own = format_of(folder)
    if own:
        yield Source(folder, own)
    if (own and own.name in ("Aim", "MLflow", "TRL")) or (folder / "segments").is_dir() or not deep:
        return  # a run of ours is none of another trainer
    entries = sorted(islice(os.scandir(folder), ENTRIES), key=lambda entry: entry.name)
    # The folder of a tracker's run has its own debug logs too.
    for entry in [entry for entry in entries if entry.name.endswith((".wandb", ".swanlab"))] or entries:
        if next(budget, None) is None:
            return
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            with suppress(PermissionError):
                yield from _below(path, deep - 1, budget)
        elif not own and path.suffix in ENDINGS and entry.is_file(follow_symlinks=False):
            with suppress(InputError, OSError):
                if found := format_of(path):
                    yield Source(path, found)


def imported(rows: Rows, config: Mapping[str, Any]) -> Imported:
    """Return a run's rows in tables of ours. Raises InputError where no metric has a column of ours.

    Of a trainer that logs no exact match, the mean reward stands in for success: collapse is judged by it.
    """
    steps, metrics = rows.by_step()
    notes = rows.notes
    read = dict[str, str]()
    step = {"step": steps}
    updates = dict[str, Any]()
    for place, metric in names.chosen(metrics).items():
        table, name = place.split(".", 1)
        if name in (schema := schema_of(table)).names and schema.field(name).type == pa.float64():
            read[place] = metric
            (step if table == "step" else updates)[name] = metrics[metric]
    if not read:
        some = ", ".join([*metrics][:_NAMED]) or "none"
        theirs = (
            "the names of verl, TRL and others; our own are known too, as step.entropy or minibatch.grad_norm"
        )
        has = f"no metric that is known here (it has: {some}, ...)"
        raise InputError(f"'{rows.name}' has {has}; docs/results/metric-names.md lists {theirs}")
    if "reward" in step and "success" not in step:
        step["success"] = step["reward"]
        notes.append(f"success: the log has none; the reward ({read['step.reward']}) is used instead")
    off = (
        str(value).lower() == "false"
        for key, value in config.items()
        if key.endswith("use_bias_correction_kl")
    )
    kl = read.get("step.kl_ref", "")
    if "step.zero_advantage_frac" in read and kl.rpartition("/")[2] == "kl" and not any(off):
        notes.append(f"{kl}: recent TRL weights it by the ratio unless use_bias_correction_kl is off")
    others = [metric for metric in metrics if metric not in read.values()]
    taken = set(schema_of("step").names)
    kept = dict[str, str]()
    for metric in others[:KEPT]:
        kept[names.own_column(metric, taken | kept.keys())] = metric
    step |= {name: metrics[metric] for name, metric in kept.items()}
    broken = np.zeros(len(steps), np.int64)  # metrics that are NaN or Inf
    for values in [*step.values(), *updates.values()][1:]:
        logged = ~np.ma.getmaskarray(values)
        wrong = logged & ~np.isfinite(np.ma.getdata(values))
        if not wrong[np.flatnonzero(logged)[:_BEGIN]].any():  # one that began so is padded, as tables are
            broken += wrong
    tables = {"step": step}
    known = broken > 0
    if updates:
        known |= ~np.logical_and.reduce([np.ma.getmaskarray(values) for values in updates.values()])
    if known.any():
        first = np.zeros(known.sum(), np.int64)
        tables["minibatch"] = {
            "step": steps[known],
            **{name: values[known] for name, values in updates.items()},
        }
        tables["minibatch"] |= {"update": first, "epoch": first, "non_finite": broken[known]}
    return Imported(rows.name, tables, names.settings(config), read, kept, others[KEPT:], notes, rows.status)


def events(run: Imported) -> tuple[dict[str, Any], list[Event]]:
    """Return the verdict, as columns of table `run`, and the events of collapse, hard events and alarms."""
    watch = Watch()
    rules = RuleWatch(alarms(CATALOGUE))
    found = list[Event]()
    known = [name for name in run.tables["step"] if name not in run.kept]
    for values in zip(*(run.tables["step"][name][:: run.every].tolist() for name in known), strict=True):
        seen = {name: value for name, value in zip(known, values, strict=True) if value is not None}
        step = seen.pop("step")
        found += [*watch.step(step, seen), *rules.step(step, seen)]
    return watch.verdict.columns(), found


def logs(path: Path) -> Iterator[Log]:
    """Yield a log for the diagnosis of every run in a file or folder; one run that cannot be read is an
    error.
    """
    for source in sources(path):
        yield from (log_of(run, source.path) for run in source.runs())


def read(path: Path) -> Log:
    """Return the first log in a file or folder. Raises InputError for a source that cannot be read or
    understood.
    """
    return next(logs(path))


def log_of(run: Imported, path: Path) -> Log:
    """Return a run as the diagnosis reads it; of more than STEPS steps only every so many-th is in it."""
    thin = run.every
    tables = dict[str, pd.DataFrame]()
    for table, columns in run.tables.items():
        shown = {name: values[::thin] for name, values in columns.items()}
        tables[table] = pd.DataFrame(
            {n: np.ma.filled(x, np.nan) if np.ma.isMA(x) else x for n, x in shown.items()}
        )
    row: dict[str, Any] = {"status": None, "outcome": None, "collapse_step": None, "detection_step": None}
    if "success" in tables["step"]:
        scored = tables["step"].dropna(subset="success")
        row |= judge(scored["success"].tolist(), steps=scored["step"].tolist()).columns()
    tables["event"] = pd.DataFrame(events(run)[1])
    name = path.name if run.name in (path.stem, path.parent.name) else f"{path.name}: {run.name}"
    name += f" (one in {thin} of its {len(run.steps):,} steps)" if thin > 1 else ""
    return Log(name, lambda table, step: tables.get(table, pd.DataFrame()), run.settings, row)
