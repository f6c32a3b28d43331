"""What differs between a baseline and a run that did not work, and the one thing that it most likely is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from sorl.diagnosis.finding import Diagnosis, Finding
from sorl.diagnosis.trainers import trainers
from sorl.difference.baseline import (
    FIRM_GRADES,
    Baseline,
    comparable,
    configuration_of,
    questions_of,
    seed_of,
    versions_of,
)
from sorl.difference.curves import Parting, parting
from sorl.difference.defaults import ABSENT, defaults_of
from sorl.difference.settings import SettingDifference, setting_differences

# setting: it was set to another value. default: nobody set it, and versions of the trainer disagree. data:
# the same seed read other questions. cause: the bad run shows a cause that the good ones do not. version:
# packages differ. outcome: only the bad run fell. curve: a column leaves the band. nothing: none of these.
# unknown: nothing was found, but the settings are not known.
Kind = Literal["setting", "default", "data", "cause", "version", "outcome", "curve", "nothing", "unknown"]

# Of the trainer and what it computes with; another version of anything else hardly trains otherwise.
PACKAGES = (
    "sorl",
    "torch",
    "transformers",
    "trl",
    "verl",
    "vllm",
    "numpy",
    "accelerate",
    "peft",
    "flash-attn",
)


class VersionDifference(NamedTuple):
    """A package that has another version in the bad run than in any of the good ones."""

    package: str
    good: str
    bad: str


class UnreadVersion(NamedTuple):
    """A version of a trainer that came after the newest whose defaults are known."""

    package: str
    version: str
    newest_known: str


class DataDifference(NamedTuple):
    """The first step at which two runs of the same seed read other questions."""

    step: int
    run: str  # the good one


@dataclass(frozen=True)
class Difference:
    """A run compared with a baseline."""

    baseline: Baseline
    diagnosis: Diagnosis  # of the bad run
    settings: tuple[SettingDifference, ...]  # those that train first
    versions: tuple[VersionDifference, ...]
    data: DataDifference | None
    new_causes: tuple[Finding, ...]  # of the bad run alone, the surest first
    partings: tuple[Parting, ...]  # the earliest first

    @cached_property
    def training(self) -> tuple[SettingDifference, ...]:
        """The settings that differ and change what is trained, the likeliest first."""
        advised = set[str]()
        for finding in self.new_causes:
            advised.update(_settings_of(finding))
        training = [one for one in self.settings if one.kind == "training"]
        log = self.diagnosis.log
        options = log.reading.options if log.reading else {}
        names = {option: setting for setting, (option, _) in options.items()}
        trainer = trainers().get(log.trainer)
        with_advice = set(trainer.options.values()) if trainer else set[str]()

        def is_unlikely(one: SettingDifference) -> bool:
            return ABSENT in (one.good, one.bad) or one.name not in with_advice

        # Each sorting keeps the order of the one before among equals.
        training.sort(key=is_unlikely)
        training.sort(key=lambda one: names.get(one.name, one.name) not in advised)
        training.sort(key=lambda one: one.is_of_versions)
        return tuple(training)

    @property
    def only_bad_fell(self) -> bool:
        """Whether the run fell, and no good one did."""
        return self.diagnosis.log.onset is not None and not any(run.fell for run in self.baseline.runs)

    @property
    def settings_are_known(self) -> bool:
        """Whether both sides say their settings."""
        is_bad_known = configuration_of(self.diagnosis.log).is_known
        return is_bad_known and any(run.configuration.is_known for run in self.baseline.runs)

    @property
    def unread_versions(self) -> tuple[UnreadVersion, ...]:
        """The versions whose defaults are taken to be those of the newest known version; none where all runs
        have one version, and with it the same defaults.
        """
        configurations = [run.configuration for run in self.baseline.runs]
        configurations.append(configuration_of(self.diagnosis.log))
        if len({version for _, _, version in configurations}) == 1:
            return ()
        unread = []
        for _, trainer, version in configurations:
            defaults = defaults_of(trainer)
            if defaults is not None and defaults.is_newer_than_read(version):
                unread.append(UnreadVersion(defaults.package, version, defaults.versions[-1]))
        return tuple(dict.fromkeys(unread))

    @property
    def kind(self) -> Kind:
        """What the difference most likely is: what was set before the run, before what came of it."""
        if self.training:
            return "default" if self.training[0].is_of_versions else "setting"
        if self.data is not None:
            return "data"
        if self.new_causes:
            return "cause"
        if self.versions:
            return "version"
        if self.only_bad_fell:
            return "outcome"
        if self.partings:
            return "curve"
        return "nothing" if self.settings_are_known else "unknown"

    @property
    def name(self) -> str:
        """The one thing that most likely is the difference; empty where nothing is."""
        match self.kind:
            case "setting" | "default":
                return self.training[0].name
            case "cause":
                return self.new_causes[0].cause.name
            case "version":
                return self.versions[0].package
            case "data":
                return "questions"
            case "curve":
                return self.partings[0].column
            case "outcome":
                return "outcome"
        return ""


def compare(baseline: Baseline, diagnosis: Diagnosis) -> Difference:
    """Compare a diagnosed run with a baseline."""
    log = diagnosis.log
    good = [run.configuration for run in baseline.runs]
    seen_in_good = set[str]()
    for run in baseline.runs:
        seen_in_good.update(run.causes)
    new_causes = [
        finding
        for finding in diagnosis.findings
        if finding.clue.grade in FIRM_GRADES
        and finding.severity != "info"
        and finding.cause.name not in seen_in_good
        and not finding.cause.residual
    ]
    return Difference(
        baseline,
        diagnosis,
        tuple(setting_differences(good, configuration_of(log))),
        tuple(_version_differences([run.versions for run in baseline.runs], versions_of(log))),
        _data_difference(baseline, diagnosis),
        tuple(new_causes),
        tuple(sorted(_partings(baseline, diagnosis), key=lambda one: (one.step, -one.units))),
    )


def _partings(baseline: Baseline, diagnosis: Diagnosis) -> list[Parting]:
    log = diagnosis.log
    partings = []
    for column in dict.fromkeys(comparable(log)):
        band = baseline.bands.get(column)
        left = parting(band, log.series("step", column)) if band is not None else None
        if left is not None:
            partings.append(left)
    return partings


def _version_differences(
    good: Sequence[Mapping[str, str]], bad: Mapping[str, str]
) -> list[VersionDifference]:
    """Return the packages whose versions are known on both sides and differ."""
    differences = []
    for package in PACKAGES:
        known = [versions[package] for versions in good if package in versions]
        if known and package in bad and bad[package] not in known:
            differences.append(VersionDifference(package, known[0], bad[package]))
    return differences


def _data_difference(baseline: Baseline, diagnosis: Diagnosis) -> DataDifference | None:
    """Return where the questions of a good run of the same seed part from those of the bad one; None where a
    good run has the same, or no such run is known.
    """
    questions = questions_of(diagnosis.log)
    seed = seed_of(diagnosis.log)
    alike = [run for run in baseline.runs if seed is not None and run.seed == seed and run.questions]
    firsts = []
    for run in alike:
        shared = sorted(questions.keys() & run.questions.keys())
        different = [step for step in shared if questions[step] != run.questions[step]]
        if not different:
            return None
        firsts.append(DataDifference(different[0], run.name))
    return max(firsts, key=lambda one: one.step, default=None)


def _settings_of(finding: Finding) -> tuple[str, ...]:
    """Return the settings that a cause is about."""
    return (*finding.cause.options, *finding.cause.without, *finding.cause.needs_settings)
