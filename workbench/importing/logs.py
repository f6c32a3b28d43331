"""Logs of other trainers: where they are in a file or folder, and what they are in tables of ours."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sorl.collapse.events import Event, Rule, RuleWatch, alarms
from sorl.collapse.unsized import UnsizedWatch
from sorl.diagnosis.log import Log
from sorl.importing import names
from sorl.importing.columns import candidates_of, columns_of, converted, has_series, notes_on_the_reward
from sorl.importing.configs import config_near, configs
from sorl.importing.formats import Format, format_of, runs_in
from sorl.importing.loose import LOOSE, SHORTEST, is_log
from sorl.importing.mapping import AS_LOGGED, NameMap
from sorl.importing.numbers import Column
from sorl.importing.rows import Rows
from sorl.importing.trainer import trainer_of
from sorl.importing.unpack import Unpacked, is_packed, unpacked
from sorl.importing.versions import versions_near
from sorl.measures import CATALOGUE, column_types
from sorl.spec import InputError
from sorl.spec.reading import NotFinite, Reading

STEPS = 20_000  # that are judged, in some seconds
KEPT = 200  # metrics that are kept under their own names
# folders below each other, and files and folders, that are looked at for logs
DEEP = 8
ENTRIES = 100_000
LAYERS = 2  # archives inside of each other
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz")
ENDINGS = (
    ".jsonl",
    ".ndjson",
    ".csv",
    ".tsv",
    ".parquet",
    ".wandb",
    ".swanlab",
    ".db",
    ".sqlite",
    ".ipynb",
    *PACKED,
)
# columns that a trainer logs in every step: one that is never a number is broken, not absent
_TRAINED = (
    "reward",
    "success",
    "kl_ref",
    "approx_kl",
    "entropy",
    "clip_frac",
    "grad_norm",
    "policy_loss",
    "value_loss",
    "ratio_mean",
)
# The same of metrics without a column of ours, by a word of their names.
_TRAINED_WORDS = re.compile(r"(?:^|_)(?:adv|advantages?|loss|grad|gradients?|log_?probs?|ratio)(?:_|$)")
_BEGIN = 5  # values of a metric, which are numbers if it is not padded with NaN
_SUMMANDS = 16  # metrics among which parts of the reward are looked for
_ROWS_OF_A_SUM = 8  # rows in which they must add up
_ROUNDED = 1e-4  # of the largest reward, by which a sum of rounded numbers may differ
_NAMED = 8  # metrics that are named of a log without a known one


@dataclass(frozen=True)
class Source:
    """A file or folder with one run, or a database with several.

    `path` is what the user knows, and `file` where it is read: of a compressed one what it unpacks to.
    """

    path: Path
    format: Format
    file: Path
    archive: Path | None = None  # the compressed file that it comes from
    damage: str = ""  # what of that is missing
    mapping: NameMap = AS_LOGGED  # names that the user gives

    @classmethod
    def of(cls, path: Path, log_format: Format) -> Source:
        """Return the source that a path itself is."""
        return cls(path, log_format, path)

    def packed_in(self, archive: Path, inner: Unpacked) -> Source:
        """Return the source as the part of an archive that it is."""
        path = archive / self.path.relative_to(inner.path)
        return replace(self, path=path, archive=archive, damage=self.damage or inner.damage)

    def fingerprint(self) -> str:
        """Return what changes with the files of the source: their names, sizes and times."""
        origin = self.archive or self.path
        own = sorted(islice(origin.rglob("*"), ENTRIES)) if origin.is_dir() else [origin]
        lines = []
        for file in (*own, origin.with_name(f"{origin.name}-wal"), *configs(origin)):
            with suppress(OSError):  # gone since
                state = file.stat()
                lines.append(f"{file} {state.st_size} {state.st_mtime_ns}")
        lines += [f"{column}={metric}" for column, metric in sorted(self.mapping.columns.items())]
        lines.append(f"step={self.mapping.step}")
        return sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()

    def runs(self, refused: list[str] | None = None) -> Iterator[Imported]:
        """Yield the runs in it; `refused` gets a line for each of nothing known. InputError where none can be
        read.
        """
        lines = [] if refused is None else refused
        some = False
        runs = self._runs(lines)
        while True:
            try:
                with names.given(self.mapping.columns, self.mapping.step):
                    run = next(runs, None)
            except InputError as error:
                raise InputError(self._named(error)) from None
            if run is None:
                break
            some = True
            yield run
        if not some:
            raise InputError(lines.pop() if lines else f"'{self.path}' holds no runs")

    def _runs(self, lines: list[str]) -> Iterator[Imported]:
        for rows in runs_in(self.file, self.format):
            try:
                config = config_near(self.path, rows.notes) | config_near(self.file, rows.notes)
                run = imported(rows, config | rows.config, self.path, self.mapping)
            except InputError as error:
                lines.append(self._named(error))
                continue
            if self.damage:
                run.reading = replace(run.reading, warnings=(self.damage, *run.reading.warnings))
            yield run

    def _named(self, error: InputError) -> str:
        """Return a message that names what the user knows in place of where it was unpacked to."""
        return str(error).replace(str(self.file), str(self.path))


@dataclass
class Imported:
    """A run of another trainer in tables of ours: `step`, and `minibatch` with one update a step."""

    name: str
    tables: dict[str, dict[str, Any]]
    settings: dict[str, Any]  # by dotted key, those of workbench/spec/settings.py and names.SETTINGS
    read: dict[str, str]  # table.column -> metric
    kept: dict[str, str]  # column of table `step` -> metric without a column of ours
    left: list[str]  # metrics beyond KEPT
    reading: Reading
    status: str

    @property
    def steps(self) -> np.ndarray:
        """Steps, ascending."""
        return np.asarray(self.tables["step"]["step"])

    def behind(self, earlier: Imported) -> Imported:
        """Return the run with the steps of `earlier` before its own first: of a log that was rotated."""
        first = int(self.steps[0])
        tables: dict[str, dict[str, Any]] = {}
        for table in earlier.tables.keys() | self.tables.keys():
            tables[table] = _stacked(earlier.tables.get(table, {}), self.tables.get(table, {}), first)
        own_columns = earlier.kept | self.kept
        return replace(self, tables=tables, read=earlier.read | self.read, kept=own_columns)

    @property
    def every(self) -> int:
        """Of how many steps one is judged: of a log of more than STEPS not every one is."""
        return max(1, -(-len(self.steps) // STEPS))


def sources(path: Path, refused: list[str] | None = None, mapping: NameMap = AS_LOGGED) -> list[Source]:
    """Return the logs in a file or below a folder; `refused` gets a line for each file that is none.

    Links are not followed. Raises InputError where there is no log.
    """
    with names.given(mapping.columns, mapping.step):
        return [replace(source, mapping=mapping) for source in _sources(path, refused)]


def _sources(path: Path, refused: list[str] | None) -> list[Source]:
    if not path.exists():
        raise InputError(f"there is no file or folder '{path}'")
    search = _Search([] if refused is None else refused)
    if not path.is_dir():
        return search.in_file(path)
    logs = list(search.below(path, DEEP))
    if not logs:
        raise InputError(
            f"'{path}' holds no known log; in a folder only files named *{', *'.join(ENDINGS)} are read, "
            f"and of *{', *'.join(LOOSE)} those with {SHORTEST} steps or more of known metrics"
        )
    return logs


class _Search:
    """Looks for logs in files, folders and archives, within bounds."""

    def __init__(self, refused: list[str]) -> None:
        self._refused = refused
        self._budget = iter(range(ENTRIES))
        self._layers = 0  # of archives inside of archives

    def in_file(self, path: Path) -> list[Source]:
        """Return the logs of a file: several where it is an archive. Raises InputError where it is none."""
        try:
            if is_packed(path):
                return self._in_archive(path)
            log_format = format_of(path)
        except OSError as error:
            raise InputError(f"'{path}' cannot be read: {error.strerror or 'opening it failed'}") from None
        return [Source.of(path, log_format)] if log_format else []

    def _in_archive(self, path: Path) -> list[Source]:
        if self._layers == LAYERS:
            raise InputError(f"'{path}' is an archive inside of {LAYERS} archives: unpack it first")
        inner = unpacked(path)
        self._layers += 1
        try:
            is_folder = inner.path.is_dir()
            logs = list(self.below(inner.path, DEEP)) if is_folder else self.in_file(inner.path)
        except InputError as error:
            raise InputError(str(error).replace(str(inner.path), str(path))) from None
        finally:
            self._layers -= 1
        if not logs:
            raise InputError(f"'{path}' holds no known log")
        return [log.packed_in(path, inner) for log in logs]

    def below(self, folder: Path, deep: int) -> Iterator[Source]:
        """Yield the logs of a folder: it is one, or it holds some."""
        own = format_of(folder)
        if own:
            yield Source.of(folder, own)
        if (own and own.name in ("Aim", "MLflow", "TRL")) or (folder / "segments").is_dir() or not deep:
            return  # a run of ours is none of another trainer
        with os.scandir(folder) as scanned:
            entries = sorted(islice(scanned, ENTRIES), key=lambda entry: entry.name)
        # The folder of a tracker's run has its own debug logs too.
        tracked = [entry for entry in entries if entry.name.endswith((".wandb", ".swanlab"))]
        for entry in tracked or entries:
            if next(self._budget, None) is None:
                return
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    yield from self.below(path, deep - 1)
            elif not own and path.suffix in (*ENDINGS, *LOOSE) and entry.is_file(follow_symlinks=False):
                yield from self._readable(path)

    def _readable(self, path: Path) -> list[Source]:
        try:
            logs = self.in_file(path)
        except InputError as error:
            if path.suffix not in LOOSE:
                self._refused.append(str(error))
            return []
        if path.suffix in LOOSE:
            return [log for log in logs if is_log(log.file, log.format)]
        return logs


def imported(
    rows: Rows, config: Mapping[str, Any], path: Path = Path(), mapping: NameMap = AS_LOGGED
) -> Imported:
    """Return a run's rows in tables of ours. Raises InputError where there is no series of numbers.

    Of a trainer that logs no exact match, the mean reward stands in for success: collapse is judged by it.
    """
    mapping.check(rows.names, rows.name)
    steps, metrics = rows.by_step()
    read = columns_of(metrics)
    if not read and not has_series(metrics):
        raise InputError(_unknown(rows, metrics))
    step, updates = _columns_by_table(steps, metrics, read, rows)
    others = [metric for metric in metrics if metric not in read.values()]
    rows.notes += notes_on_the_reward(read, others)
    summands = parts_that_add_up(metrics, read.get("step.reward"), others)
    if summands:
        rows.notes.append(f"the reward is the sum of {' and '.join(summands)}: they are its parts")
    own_columns = _own_columns(others[:KEPT], summands)
    step |= {name: metrics[metric] for name, metric in own_columns.items()}
    tables = _tables(step, updates)
    choices = names.choices(config)
    reading = replace(
        rows.reading(read.values()),
        not_finite=tuple(
            _all_not_finite(tables, {f"step.{own}": own_columns[own] for own in own_columns} | read)
        ),
        trainer=trainer_of(metrics, config, path),
        reward_metric=read.get("step.reward", ""),
        success_metric=read.get("step.success", ""),
        options={setting: (choice.option, choice.given) for setting, choice in choices.items()},
        candidates=candidates_of(read, others),
        is_numbered=rows.is_numbered,
        remarks=_remarks(read, config),
        configuration=dict(config),
        versions=versions_near(path, config),
    )
    return Imported(
        name=rows.name,
        tables=tables,
        settings={setting: choice.value for setting, choice in choices.items()},
        read=read,
        kept=own_columns,
        left=others[KEPT:],
        reading=reading,
        status=rows.status,
    )


def _columns_by_table(
    steps: np.ndarray, metrics: Mapping[str, Column], read: Mapping[str, str], rows: Rows
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of the tables `step` and `minibatch`; what is converted or assumed is noted."""
    step: dict[str, Any] = {"step": steps}
    updates: dict[str, Any] = {}
    for place, metric in read.items():
        table, name = place.split(".", 1)
        in_our_unit = converted(place, metric, metrics[metric])
        rows.notes += in_our_unit.notes
        (step if table == "step" else updates)[name] = in_our_unit.values
    if "reward" in step and "success" not in step:
        step["success"] = step["reward"]
    return step, updates


def _own_columns(others: Iterable[str], summands: Collection[str]) -> dict[str, str]:
    """Return the columns that metrics without a column of ours are kept in."""
    taken = set(column_types("step"))
    columns: dict[str, str] = {}
    for metric in others:
        name = f"rewards/{metric}" if metric in summands else metric
        columns[names.own_column(name, taken | columns.keys())] = metric
    return columns


def _stacked(earlier: Mapping[str, Any], later: Mapping[str, Any], first: int) -> dict[str, Any]:
    """Return the rows of a table: the earlier ones before step `first`, then the later ones."""
    size = len(later.get("step", ()))
    before = np.asarray(earlier.get("step", np.zeros(0, np.int64))) < first
    stacked: dict[str, Any] = {}
    for name in {**earlier, **later}:
        nothing = np.ma.masked_all(len(before))
        top = earlier.get(name, nothing)[before]
        stacked[name] = np.ma.concatenate([top, later.get(name, np.ma.masked_all(size))])
        if not np.ma.getmaskarray(stacked[name]).any() and name in ("step", "update", "epoch", "non_finite"):
            stacked[name] = np.asarray(stacked[name]).astype(np.int64)
    return stacked


def parts_that_add_up(
    metrics: Mapping[str, Column], reward: str | None, others: Sequence[str]
) -> tuple[str, ...]:
    """Return two or three metrics whose sum is the reward in every row; none where there are no such ones.

    Only metrics that are no part by their name, and not constant, are looked at.
    """
    if reward is None or any(names.part_of(metric) for metric in others):
        return ()
    total = np.ma.filled(metrics[reward].astype(float), np.nan)
    moving = []
    for metric in others:
        values = np.ma.filled(metrics[metric].astype(float), np.nan)
        if np.isfinite(values).all() and np.ptp(values) > 0:
            moving.append((metric, values))
    scale = float(np.nanmax(np.abs(total))) if np.isfinite(total).any() else 0.0
    if len(total) < _ROWS_OF_A_SUM or not scale:
        return ()
    for size in (2, 3):
        for chosen in combinations(moving[:_SUMMANDS], size):
            summed = np.sum([values for _, values in chosen], axis=0)
            if np.allclose(summed, total, rtol=0, atol=_ROUNDED * scale):
                return tuple(metric for metric, _ in chosen)
    return ()


def _unknown(rows: Rows, metrics: Mapping[str, Any]) -> str:
    """Return the message for a log without a metric that is known here."""
    some = ", ".join([*metrics][:_NAMED]) or "none"
    theirs = (
        "the names of verl, TRL and others; our own are known too, as step.entropy or minibatch.grad_norm"
    )
    has = f"no metric that is known here (it has: {some}, ...)"
    unread = "".join(f"; {warning}" for warning in rows.reading(()).warnings)
    return f"'{rows.name}' has {has}{unread}; docs/results/metric-names.md lists {theirs}"


def _remarks(read: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, str]:
    """Return that the KL of a recent TRL is weighted by the ratio, unless its configuration says that it is
    not.
    """
    switches = [value for key, value in config.items() if key.endswith("use_bias_correction_kl")]
    is_off = any(str(value).lower() == "false" for value in switches)
    kl = read.get("step.kl_ref", "")
    if "step.zero_advantage_frac" in read and kl.rpartition("/")[2] == "kl" and not is_off:
        weighted = "recent TRL weights each token of it by the ratio, unless use_bias_correction_kl=False"
        return {"step.kl_ref": f"{kl}: {weighted}"}
    return {}


def _tables(step: dict[str, Any], updates: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables `step` and `minibatch`, which has a row where anything of an update was logged or a
    metric is NaN or infinite.
    """
    steps = step["step"]
    broken = np.zeros(len(steps), np.int64)  # metrics that are NaN or Inf
    for name, values in [*step.items(), *updates.items()][1:]:
        broken += _not_finite(name, values)
    known = broken > 0
    if updates:
        known |= ~np.logical_and.reduce([np.ma.getmaskarray(values) for values in updates.values()])
    if not known.any():
        return {"step": step}
    first = np.zeros(known.sum(), np.int64)
    minibatch = {"step": steps[known]}
    minibatch |= {name: values[known] for name, values in updates.items()}
    minibatch |= {"update": first, "epoch": first, "non_finite": broken[known]}
    return {"step": step, "minibatch": minibatch}


def _not_finite(name: str, values: Column) -> np.ndarray:
    """Return where a metric was logged as NaN or infinite; nowhere for one that a table was padded with.

    Tables are padded from their first rows on, so a metric that begins with NaN and becomes a number is one
    that was not logged before; one that never is a number again is broken, unless it is an evaluation.
    """
    logged = ~np.ma.getmaskarray(values)
    wrong = logged & ~np.isfinite(np.ma.getdata(values))
    begins_so = bool(wrong[np.flatnonzero(logged)[:_BEGIN]].any())
    is_trained = name in _TRAINED or _TRAINED_WORDS.search(name) is not None
    if begins_so and not (is_trained and wrong[logged][int(wrong[logged].argmax()) :].all()):
        return np.zeros(len(values), bool)
    return wrong


def _all_not_finite(tables: Mapping[str, Mapping[str, Any]], run_names: Mapping[str, str]) -> list[NotFinite]:
    """Return the metrics with values that are NaN or infinite, the first to be so first."""
    broken = []
    for table, columns in tables.items():
        for name, values in columns.items():
            column = f"{table}.{name}"
            if not np.ma.isMA(values) or column not in run_names:
                continue
            wrong = _not_finite(name, values)
            if wrong.any():
                logged = int(np.ma.count(values))
                first = int(np.asarray(columns["step"])[wrong][0])
                broken.append(NotFinite(column, run_names[column], int(wrong.sum()), logged, first))
    return sorted(broken, key=lambda part: part.first_step)


def events(run: Imported, band_rules: Iterable[Rule] = ()) -> tuple[dict[str, Any], list[Event]]:
    """Return the verdict, as columns of table `run`, and the events of collapse, hard events and alarms, and
    those of a baseline.
    """
    watch = UnsizedWatch()
    known = [name for name in run.tables["step"] if name not in run.kept]
    alarm_rules = alarms([diagnostic for diagnostic in CATALOGUE if diagnostic.name in known])
    rules = RuleWatch([*alarm_rules, *band_rules])
    occurred = list[Event]()
    for values in zip(*(run.tables["step"][name][:: run.every].tolist() for name in known), strict=True):
        logged = {name: value for name, value in zip(known, values, strict=True) if value is not None}
        step = logged.pop("step")
        occurred += [*watch.step(step, logged), *rules.step(step, logged)]
    occurred += watch.falls()
    return watch.verdict.columns(), sorted(occurred, key=lambda event: event.step)


def logs(path: Path, refused: list[str] | None = None, mapping: NameMap = AS_LOGGED) -> Iterator[Log]:
    """Yield a log for the diagnosis of every run in a file or folder.

    `refused` gets a line for each part that cannot be read. Raises InputError where that is all of it.
    """
    lines = [] if refused is None else refused
    any_read = False
    for source in sources(path, lines, mapping):
        try:
            for run in source.runs(lines):
                any_read = True
                yield log_of(run, source.path)
        except InputError as error:
            lines.append(str(error))
    if not any_read:
        raise InputError(lines.pop(0) if len(lines) == 1 else _none_readable(path, lines))


def _none_readable(path: Path, lines: list[str]) -> str:
    count = len(lines)
    first = lines.pop(0) if lines else "it is empty"
    lines.clear()
    return f"none of the {count:,} logs in '{path}' can be read; the first: {first}"


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
        tables[table] = pd.DataFrame({name: _filled(values[::thin]) for name, values in columns.items()})
    verdict, occurred = events(run)
    tables["event"] = pd.DataFrame(occurred)
    named = path.name.startswith(run.name) or run.name == path.parent.name
    name = path.name if named else f"{path.name}: {run.name}"
    name += f" (one in {thin} of its {len(run.steps):,} steps)" if thin > 1 else ""
    row = {"status": None} | verdict
    return Log(
        name, lambda table, step: tables.get(table, pd.DataFrame()), run.settings, row, reading=run.reading
    )


def _filled(values: Any) -> Any:
    """Return values with NaN for what is missing."""
    return np.ma.filled(values, np.nan) if np.ma.isMA(values) else values
