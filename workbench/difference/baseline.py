"""A baseline: what is normal for a recipe, from one good run or several. It can be saved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pandas as pd

from sorl.collapse.band import Band
from sorl.diagnosis.finding import Diagnosis
from sorl.diagnosis.log import Log
from sorl.diagnosis.signals import signals
from sorl.difference.defaults import PACKAGES
from sorl.difference.settings import Configuration
from sorl.spec import InputError
from sorl.spec.baselines import FOLDER, LARGEST, baseline_file
from sorl.spec.files import from_json, read_text
from sorl.spec.names import FolderName

FORMAT = "sorl.baseline/1"
COUNTERS = ("tokens_trained", "episodes_sampled", "updates")
# What speaks for a cause in a good run, so that it says nothing against a bad one.
FIRM_GRADES = ("intervention", "proof", "sign")


@dataclass(frozen=True)
class GoodRun:
    """One run that worked: its settings, versions, outcome, the causes that it shows all the same, and of its
    data the fingerprint of the questions by step.
    """

    name: str
    configuration: Configuration
    versions: Mapping[str, str]  # package -> version
    outcome: str  # empty where it was not judged
    fell: bool
    causes: tuple[str, ...]
    questions: Mapping[int, int]
    seed: int | None


@dataclass(frozen=True)
class Baseline:
    """Good runs of one recipe, and the band of each column over them."""

    runs: tuple[GoodRun, ...]
    bands: Mapping[str, Band]
    name: str = ""  # under which it was saved

    @classmethod
    def of(cls, diagnoses: Sequence[Diagnosis]) -> Self:
        """Return the baseline of some diagnosed runs. Raises InputError for none."""
        if not diagnoses:
            raise InputError("a baseline needs a run that worked")
        runs = tuple(_good_run(diagnosis) for diagnosis in diagnoses)
        return cls(runs, dict(_bands([diagnosis.log for diagnosis in diagnoses])))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as it is saved."""
        runs = []
        for run in self.runs:
            settings, trainer, version = run.configuration
            runs.append(
                {
                    "name": run.name,
                    "settings": dict(settings),
                    "trainer": trainer,
                    "trainer_version": version,
                    "versions": dict(run.versions),
                    "outcome": run.outcome,
                    "fell": run.fell,
                    "causes": list(run.causes),
                    "questions": {str(step): mark for step, mark in run.questions.items()},
                    "seed": run.seed,
                }
            )
        return {"format": FORMAT, "runs": runs, "bands": [band.as_dict() for band in self.bands.values()]}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any], name: str) -> Self:
        """Return the baseline of `as_dict`. Raises InputError for other data."""
        try:
            if told["format"] != FORMAT:
                raise ValueError(f"its format is {told['format']}, and this version reads {FORMAT}")
            runs = tuple(map(_run_from, told["runs"]))
            bands = [Band.from_dict(band) for band in told["bands"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"baseline '{name}' cannot be read: {error}; save it again") from None
        return cls(runs, {band.column: band for band in bands}, name)


def comparable(log: Log) -> Iterator[str]:
    """Yield the columns of table `step` that a band is made of: no clocks, and no counters."""
    yield "success"
    for column, _ in signals(log):
        if column not in COUNTERS:
            yield column


def with_version(log: Log, version: str) -> Log:
    """Return the log of another trainer with the version of its package that a user gives."""
    package = PACKAGES.get(log.trainer)
    if not version:
        return log
    if log.reading is None or package is None:
        known = ", ".join(PACKAGES)
        raise InputError(f"'{log.name}' is no log of {known}: the defaults of other trainers are not known")
    reading = replace(log.reading, versions={**log.reading.versions, package: version})
    return replace(log, reading=reading)


def version_of(log: Log) -> str:
    """Return the version of the package whose trainer made a log; empty where it is not known."""
    return versions_of(log).get(PACKAGES.get(log.trainer, ""), "")


def versions_of(log: Log) -> dict[str, str]:
    """Return the versions of the packages that a run was made with, as far as they are known."""
    if log.reading is not None:
        return dict(log.reading.versions)
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        told = json.loads(log.run["versions"])
        return {str(package): str(version) for package, version in told.items() if package != "machine"}
    return {}


def configuration_of(log: Log) -> Configuration:
    """Return the settings of a run: of another trainer's log all of its own options, if it holds them."""
    if log.reading is not None and log.reading.configuration:
        return Configuration(log.reading.configuration, log.trainer, version_of(log))
    return Configuration(dict(log.settings), log.trainer, version_of(log))


def seed_of(log: Log) -> int | None:
    """Return the seed of a run; None where it is not known."""
    seed = log.run.get("seed", log.settings.get("seed"))
    return seed if isinstance(seed, int) else None


def questions_of(log: Log) -> dict[int, int]:
    """Return the fingerprint of the questions of each step, where it was recorded."""
    frame = log.table("step")
    if "questions_hash" not in frame:
        return {}
    known = frame[["step", "questions_hash"]].dropna()
    return dict(zip(known["step"].astype(int), known["questions_hash"].astype("int64"), strict=True))


def save(runs: Path, name: FolderName, baseline: Baseline) -> Path:
    """Write a baseline; one of the same name is replaced. Raises OSError where the disk refuses."""
    folder = runs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.json"
    unfinished = target.with_name(f".{target.name}")
    unfinished.write_text(json.dumps(baseline.as_dict()), encoding="utf-8")
    unfinished.rename(target)
    return target


def saved_at(runs: Path, name: str) -> int:
    """Return when a baseline was saved, in nanoseconds since 1970; 0 for one that is not there."""
    try:
        return (runs / FOLDER / f"{name}.json").stat().st_mtime_ns
    except OSError:
        return 0


def load(runs: Path, name: str) -> Baseline:
    """Return a saved baseline. Raises InputError for one that is not there, or damaged."""
    file = baseline_file(runs, name)
    try:
        told = from_json(read_text(file, LARGEST))
    except (OSError, ValueError) as error:
        raise InputError(f"baseline '{name}' cannot be read: {error}; save it again") from None
    return Baseline.from_dict(told if isinstance(told, dict) else {}, name)


def _good_run(diagnosis: Diagnosis) -> GoodRun:
    log = diagnosis.log
    causes = tuple(f.cause.name for f in diagnosis.findings if f.clue.grade in FIRM_GRADES)
    return GoodRun(
        log.name,
        configuration_of(log),
        versions_of(log),
        str(log.run.get("outcome") or ""),
        log.onset is not None,
        causes,
        questions_of(log),
        seed_of(log),
    )


def _run_from(told: Mapping[str, Any]) -> GoodRun:
    configuration = Configuration(dict(told["settings"]), str(told["trainer"]), str(told["trainer_version"]))
    versions = {str(package): str(version) for package, version in told["versions"].items()}
    questions = {int(step): int(mark) for step, mark in told["questions"].items()}
    causes = tuple(map(str, told["causes"]))
    return GoodRun(
        str(told["name"]),
        configuration,
        versions,
        str(told["outcome"]),
        bool(told["fell"]),
        causes,
        questions,
        None if told["seed"] is None else int(told["seed"]),
    )


def _bands(logs: Sequence[Log]) -> Iterator[tuple[str, Band]]:
    """Yield the bands of the columns that all logs have."""
    columns = [dict.fromkeys(comparable(log)) for log in logs]
    for column in columns[0]:
        if not all(column in own for own in columns):
            continue
        curves: list[pd.Series] = [log.series("step", column) for log in logs]
        band = Band.of(column, curves)
        if band is not None:
            yield column, band
