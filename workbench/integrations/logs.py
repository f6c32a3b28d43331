"""Logs of other trainers: where they are in a file or folder, and what they are in tables of ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from workbench.diagnosis.log import Log
from workbench.diagnostics import CATALOGUE
from workbench.diagnostics.collapse import Watch
from workbench.diagnostics.rules import Event, RuleWatch, alarms
from workbench.integrations import names
from workbench.integrations.formats import Format, format_of, runs_in
from workbench.integrations.rows import Column, Rows
from workbench.integrations.trackers import config_near, configs
from workbench.record.segments import schema_of
from workbench.spec import InputError

STEPS = 50_000  # that are judged, in some seconds
KEPT = 200  # metrics that are kept under their own names
DEEP, ENTRIES = 8, 100_000  # folders below each other, and files and folders, that are looked at for logs
ENDINGS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".wandb", ".swanlab", ".db", ".sqlite", ".log")
_TRACKED = (".wandb", ".swanlab")
_BEGIN = 5  # values of a metric, which are numbers if it is not padded with NaN
_NAMED = 8  # metrics that are named of a log without a known one
Judge = Callable[[list[float | None], list[int]], dict[str, Any]]


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
        """Yield the runs in it; `refused` gets a line for each that holds nothing that is known.

        Raises InputError for a source that cannot be read, or without a run that can.
        """
        refused = [] if refused is None else refused
        some = False
        for rows in runs_in(self.path, self.format):
            try:
                run = imported(rows, config_near(self.path, rows.notes) | rows.config)
            except InputError as error:
                refused.append(str(error))
                continue
            some = True
            yield run
        if not some:
            raise InputError(refused.pop() if refused else f"'{self.path}' holds no runs")


@dataclass
class Imported:
    """A run of another trainer in tables of ours: `step`, and `minibatch` with one update a step."""

    name: str
    tables: dict[str, dict[str, Any]]
    settings: dict[str, Any]  # by dotted key, those of workbench/spec/settings.py and names.SETTINGS
    read: dict[str, str]  # table.column -> metric
    kept: dict[str, str]  # column of table `step` -> metric without a column of ours
    left: list[str]  # metrics beyond KEPT
    notes: list[str] = field(default_factory=list)
    status: str = "finished"

    @property
    def steps(self) -> np.ndarray:
        """Steps, ascending."""
        return np.asarray(self.tables["step"]["step"])


def sources(path: Path) -> list[Source]:
    """Return the logs in a file or below a folder. Raises InputError where there is none; links are not followed."""
    if not path.exists():
        raise InputError(f"there is no file or folder '{path}'")
    if not path.is_dir():
        found = format_of(path)
        return [Source(path, found)] if found else []
    budget = iter(range(ENTRIES))
    if not (logs := list(_below(path, DEEP, budget))):
        raise InputError(f"'{path}' holds no log that is known; files are told by content among *{', *'.join(ENDINGS)}")
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
    entries = [entry for entry in entries if entry.name.endswith(_TRACKED)] or entries
    for entry in entries:
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
    (steps, metrics), notes = rows.by_step(), rows.notes
    read = {place: metric for place, metric in names.chosen(metrics).items() if _declared(*place.split(".", 1))}
    if not read:
        some = ", ".join([*metrics][:_NAMED]) or "none"
        raise InputError(
            f"'{rows.name}' has no metric that is known here (it has: {some}, ...); docs/importing.md lists the "
            "names of verl, TRL and others; our own are known too, as step.entropy or minibatch.grad_norm"
        )
    others = [metric for metric in metrics if metric not in read.values()]
    taken, kept = set(schema_of("step").names), dict[str, str]()
    for metric in others[:KEPT]:
        kept[names.own_column(metric, taken | kept.keys())] = metric
    tables: dict[str, dict[str, Any]] = {"step": {"step": steps}, "minibatch": {"step": steps}}
    for place, metric in read.items():
        table, name = place.split(".")
        tables[table][name] = metrics[metric]
    if "reward" in tables["step"] and "success" not in tables["step"]:
        tables["step"]["success"] = tables["step"]["reward"]
        notes.append(f"success: the log has none, the reward ({read['step.reward']}) stands in")
    tables["step"] |= {name: metrics[metric] for name, metric in kept.items()}
    updates = [np.ma.getmaskarray(values) for name, values in tables["minibatch"].items() if name != "step"]
    broken = _non_finite([*tables["step"].values(), *tables["minibatch"].values()], len(steps))
    if updates or broken.any():
        known = (broken > 0) | ~np.logical_and.reduce(updates or [np.ones(len(steps), bool)])
        first = np.zeros(known.sum(), np.int64)
        tables["minibatch"] = {name: values[known] for name, values in tables["minibatch"].items()}
        tables["minibatch"] |= {"update": first, "epoch": first, "non_finite": broken[known]}
    else:
        del tables["minibatch"]
    return Imported(rows.name, tables, names.settings(config), read, kept, others[KEPT:], notes, rows.status)


def _non_finite(metrics: Iterable[Column], steps: int) -> np.ndarray:
    """Return how many metrics are NaN or Inf in each step, (steps,); one that began so is padded, as tables are."""
    count = np.zeros(steps, np.int64)
    for values in metrics:
        logged = ~np.ma.getmaskarray(values)
        broken = logged & ~np.isfinite(np.ma.getdata(values))
        if broken.any() and not broken[np.flatnonzero(logged)[:_BEGIN]].any():
            count += broken
    return count


def _declared(table: str, name: str) -> bool:
    return name in schema_of(table).names and schema_of(table).field(name).type == pa.float64()


def every(run: Imported) -> int:
    """Return of how many steps one is judged: of a log of more than STEPS not every one is."""
    return max(1, -(-len(run.steps) // STEPS))


def events(run: Imported) -> tuple[dict[str, Any], list[Event]]:
    """Return the verdict, as columns of table `run`, and the events of collapse, hard events and alarms."""
    watch, rules, found = Watch(), RuleWatch(alarms(CATALOGUE)), list[Event]()
    columns = {name: values[:: every(run)].tolist() for name, values in run.tables["step"].items()
               if name == "step" or name not in run.kept}  # fmt: skip
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        step = row.pop("step")
        seen = {name: value for name, value in row.items() if value is not None}
        found += [*watch.step(step, seen), *rules.step(step, seen)]
    return watch.verdict.columns(), found


def logs(path: Path, judge: Judge) -> Iterator[Log]:
    """Yield a log for the diagnosis of every run in a file or folder; one run that cannot be read is an error."""
    for source in sources(path):
        yield from (log_of(run, source.path, judge) for run in source.runs())


def read(path: Path, judge: Judge) -> Log:
    """Return the first log in a file or folder. `judge` says of scores and steps what table `run` would.

    Raises InputError for a source that cannot be read or holds nothing that is known.
    """
    return next(logs(path, judge))


def log_of(run: Imported, path: Path, judge: Judge) -> Log:
    """Return a run as the diagnosis reads it; of more than STEPS steps only every so many-th is in it."""
    thin = every(run)
    tables = {table: _frame({name: values[::thin] for name, values in columns.items()})
              for table, columns in run.tables.items()}  # fmt: skip
    row: dict[str, Any] = {"status": None, "outcome": None, "collapse_step": None, "detection_step": None}
    step = tables["step"]
    if "success" in step:
        scored = step.dropna(subset="success")
        row |= judge(scored["success"].tolist(), scored["step"].tolist())
    tables["event"] = pd.DataFrame(events(run)[1])
    name = path.name if run.name in (path.stem, path.parent.name) else f"{path.name}: {run.name}"
    name += f" (one in {thin} of its {len(run.steps):,} steps)" if thin > 1 else ""
    return Log(name, lambda table, step: tables.get(table, pd.DataFrame()), run.settings, row)


def _frame(columns: Mapping[str, Column]) -> pd.DataFrame:
    return pd.DataFrame({name: np.ma.filled(values, np.nan) if np.ma.isMaskedArray(values) else values
                         for name, values in columns.items()})  # fmt: skip
