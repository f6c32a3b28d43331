"""What differs, in words: one sentence first, then the tables behind it, then what would decide."""

from __future__ import annotations

from typing import Any, NamedTuple

from sorl.collapse.band import SPREAD_KNOWN, WINDOW
from sorl.diagnosis.finding import Finding
from sorl.diagnosis.rank import GRADES
from sorl.diagnosis.sentences import finding_text
from sorl.diagnosis.standing import counted, figure
from sorl.difference.baseline import configuration_of
from sorl.difference.difference import Difference
from sorl.difference.settings import SettingDifference, in_words
from sorl.spec.names import LADDER
from sorl.store.text import visible

FORMAT = "sorl.diff/1"  # of `as_dict`; docs/schemas/diff.json
SHOWN = 8  # settings that a sentence names
FORKED = 3  # settings that one fork tries


def answer(difference: Difference) -> str:
    """Return the one sentence: what most likely is the difference."""
    match difference.kind:
        case "setting":
            return _of_settings(difference)
        case "default":
            return _of_default(difference)
        case "data":
            return _of_data(difference)
        case "cause":
            return _of_cause(difference)
        case "version":
            return _of_version(difference)
        case "outcome":
            return _of_outcome(difference)
        case "curve":
            return _of_curve(difference)
        case "nothing":
            return (
                f"Nothing differs beyond chance: {_same(difference)}, and no curve leaves"
                f" {_band(difference)}.{_both_fell(difference)}"
            )
    return (
        f"No curve leaves {_band(difference)}, and no cause was found in the one run alone; the settings of"
        f" {_unknown_side(difference)} are not known, so a difference there cannot be"
        f" seen.{_both_fell(difference)}"
    )


def what_would_decide(difference: Difference) -> str:
    """Return the cheapest experiment that would show whether it is that."""
    log = difference.diagnosis.log
    match difference.kind:
        case "setting" | "default":
            return _try_settings(difference)
        case "cause":
            finding = difference.new_causes[0]
            return finding_text(difference.diagnosis, finding).test
        case "data":
            return "Run the bad one again on the questions of the good one, in their order."
        case "version":
            first = difference.versions[0]
            return f"Run the bad one again with {first.package}=={first.good} and nothing else changed."
        case "outcome" | "curve":
            return (
                "Two more seeds of each: where the good recipe falls as well it is chance, and where it"
                " never does"
                " it is something that no log holds (data on disk, the machine, the reward's code)."
            )
    if log.onset is None and len(difference.baseline.runs) < SPREAD_KNOWN:
        return f"The band is narrower with {SPREAD_KNOWN} good runs: sorl diff GOOD GOOD GOOD BAD."
    return ""


def sentences(difference: Difference) -> list[str]:
    """Return what was compared with what, the answer, and what would decide: a line each."""
    log = difference.diagnosis.log
    good = difference.baseline.runs
    if difference.baseline.name:
        lines = [f"good: baseline {visible(difference.baseline.name)}, {counted(len(good), 'run')}"]
    else:
        lines = [f"good: {visible(run.name)}, {run.outcome or 'not judged'}" for run in good]
    lines += [f"bad:  {visible(log.name)}, {log.run.get('outcome') or 'not judged'}", "", answer(difference)]
    decides = what_would_decide(difference)
    if decides:
        lines.append(f"What would decide: {decides}")
    return lines + caveats(difference)


def caveats(difference: Difference) -> list[str]:
    """Return what the answer rests on and could not be looked up: a sentence each."""
    return [
        f"Note: the defaults of {one.package} {visible(one.version)} are not known here; those of"
        f" {one.newest_known} stand for them."
        for one in difference.unread_versions
    ]


class Table(NamedTuple):
    """A table of what differs; of many rows the first are shown."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tables(difference: Difference) -> list[Table]:
    """Return the tables behind the answer, those without a row left out."""
    good = f"good {_runs(difference)}"
    found = (
        Table("Settings that differ", ("setting", good, "bad run", "what for"), _setting_rows(difference)),
        Table("Versions that differ", ("package", good, "bad run"), _version_rows(difference)),
        Table(
            "Causes that only the bad run shows",
            ("cause", "evidence", "since step", "what"),
            _cause_rows(difference),
        ),
        Table(
            f"Where it leaves {_band(difference)} (median of {WINDOW} steps)",
            ("column", "step", "bad run", "normal"),
            _curve_rows(difference),
        ),
    )
    return [table for table in found if table.rows]


def as_dict(difference: Difference) -> dict[str, Any]:
    """Return the whole as plain data (docs/agents.md)."""
    log = difference.diagnosis.log
    return {
        "schema": FORMAT,
        "good": [{"run": run.name, "outcome": run.outcome or None} for run in difference.baseline.runs],
        "baseline": difference.baseline.name or None,
        "bad": {"run": log.name, "outcome": log.run.get("outcome")},
        "kind": difference.kind,
        "name": difference.name,
        "answer": answer(difference),
        "what_would_decide": what_would_decide(difference),
        "settings_are_known": difference.settings_are_known,
        "caveats": caveats(difference),
        "settings": [_setting_as_dict(one) for one in _ranked_settings(difference)],
        "versions": [one._asdict() for one in difference.versions],
        "data": None if difference.data is None else difference.data._asdict(),
        "causes": [_cause_as_dict(finding) for finding in difference.new_causes],
        "curves": [one._asdict() for one in difference.partings],
    }


def _ranked_settings(difference: Difference) -> list[SettingDifference]:
    others = [one for one in difference.settings if one.kind != "training"]
    return [*difference.training, *others]


def _setting_as_dict(one: SettingDifference) -> dict[str, Any]:
    return {
        "setting": one.name,
        "good": in_words(one.good),
        "bad": in_words(one.bad),
        "kind": one.kind,
        "default_good": one.default_good or None,
        "default_bad": one.default_bad or None,
    }


def _cause_as_dict(finding: Finding) -> dict[str, Any]:
    clue = finding.clue
    return {
        "cause": finding.cause.name,
        "title": finding.cause.title,
        "grade": clue.grade,
        "confidence": clue.confidence,
        "step": clue.step,
        "says": clue.says,
    }


# The sentences


def _of_settings(difference: Difference) -> str:
    first, *others = difference.training
    said = (
        f"{visible(first.name)} is {visible(in_words(first.bad))} in the bad run and"
        f" {visible(in_words(first.good))} in the good {_runs(difference)}{_as_default(first)}"
    )
    if not others:
        return f"{said}; no other setting that trains differs."
    names = ", ".join(visible(one.name) for one in others[:SHOWN])
    more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
    return f"{counted(len(others) + 1, 'setting')} that train differ: {said}; then {names}{more}."


def _as_default(one: SettingDifference) -> str:
    side = [version for version in (one.default_bad, one.default_good) if version]
    return f" (the default of {side[0]})" if side else ""


def _of_default(difference: Difference) -> str:
    first, *others = difference.training
    more = f"; {len(others)} more defaults differ" if others else ""
    if not difference.settings_are_known:
        return (
            f"The settings of {_unknown_side(difference)} are not known. Unless it was set,"
            f" {visible(first.name)} is {visible(in_words(first.good))} in {visible(first.default_good)} and"
            f" {visible(in_words(first.bad))} in {visible(first.default_bad)}{more}."
        )
    return (
        f"No setting differs, but a default does: nobody set {visible(first.name)}, which is"
        f" {visible(in_words(first.good))} in {visible(first.default_good)} and"
        f" {visible(in_words(first.bad))} in"
        f" {visible(first.default_bad)}{more}."
    )


def _of_data(difference: Difference) -> str:
    assert difference.data is not None
    return (
        "The settings and the seed are the same, but the questions are not: from step"
        f" {difference.data.step} on the"
        f" bad run reads others than {visible(difference.data.run)}."
    )


def _of_cause(difference: Difference) -> str:
    finding = difference.new_causes[0]
    grade = GRADES[finding.clue.grade]
    return (
        f"{_no_setting(difference)}, but the bad run alone shows {visible(_lowered(finding.cause.title))}"
        f" ({grade},"
        f" since step {finding.clue.step}): {visible(finding.clue.says)}."
    )


def _of_version(difference: Difference) -> str:
    listed = ", ".join(f"{one.package} {one.good} and {one.bad}" for one in difference.versions)
    fell = f" The bad run fell at step {difference.diagnosis.log.onset}." if difference.only_bad_fell else ""
    return f"{_no_setting(difference)} and no cause was found, but versions do: {visible(listed)}.{fell}"


def _of_outcome(difference: Difference) -> str:
    return (
        f"{_no_setting(difference)}, yet the bad run fell at step {difference.diagnosis.log.onset} and the"
        " good"
        f" {_runs(difference)} did not; no cause was found that the good {_runs(difference)} lacks, so this"
        " may be"
        " chance."
    )


def _of_curve(difference: Difference) -> str:
    first = difference.partings[0]
    return (
        f"{_no_setting(difference)} and no cause was found, but {first.column} leaves {_band(difference)}"
        " at step"
        f" {first.step}: {figure(first.value)} where {figure(first.usual)} is usual."
    )


def _both_fell(difference: Difference) -> str:
    """Return the sentence that a run which is down was compared with one that is."""
    onset = difference.diagnosis.log.onset
    if onset is None:
        return ""
    fell = sum(run.fell for run in difference.baseline.runs)
    runs = len(difference.baseline.runs)
    return f" The bad run fell at step {onset}, and so did {fell} of the {runs} it is compared with."


def _no_setting(difference: Difference) -> str:
    if difference.settings_are_known:
        return "No setting that trains differs"
    return f"The settings of {_unknown_side(difference)} are not known"


def _same(difference: Difference) -> str:
    several = len(difference.baseline.runs) > 1
    return (
        "the settings that train are those of a good run"
        if several
        else "the settings that train are the same"
    )


def _unknown_side(difference: Difference) -> str:
    is_good_known = any(run.configuration.is_known for run in difference.baseline.runs)
    if is_good_known:
        return "the bad run"
    is_bad_known = configuration_of(difference.diagnosis.log).is_known
    return f"the good {_runs(difference)}" if is_bad_known else "both sides"


def _runs(difference: Difference) -> str:
    return "run" if len(difference.baseline.runs) == 1 else "runs"


def _band(difference: Difference) -> str:
    runs = len(difference.baseline.runs)
    return "the band of the good run" if runs == 1 else f"the band of the {runs} good runs"


def _lowered(title: str) -> str:
    """Return a title inside of a sentence; one that begins with an abbreviation stays."""
    return title if title[:2].isupper() else title[:1].lower() + title[1:]


def _try_settings(difference: Difference) -> str:
    log = difference.diagnosis.log
    tried = difference.training[:FORKED]
    back = [f"{one.name}={in_words(one.good)}" for one in tried]
    has_ladder = log.folder is not None and (log.folder / LADDER).is_dir()
    if has_ladder and log.onset is not None:
        arms = " ".join(f'--arm "{visible(change)}"' for change in back)
        return f"sorl fork {visible(log.name)} {arms}"
    each = " (each alone)" if len(back) > 1 else ""
    return f"Run the bad one again with {visible(', '.join(back))}{each} and nothing else changed."


# The rows of the tables


def _setting_rows(difference: Difference) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in _ranked_settings(difference):
        good = in_words(one.good) + _noted(one.default_good)
        bad = in_words(one.bad) + _noted(one.default_bad)
        rows.append((one.name, good, bad, one.kind))
    return rows


def _version_rows(difference: Difference) -> list[tuple[str, ...]]:
    return [(one.package, one.good, one.bad) for one in difference.versions]


def _cause_rows(difference: Difference) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for finding in difference.new_causes:
        grade = GRADES[finding.clue.grade]
        rows.append((finding.cause.name, grade, str(finding.clue.step), finding.cause.title))
    return rows


def _curve_rows(difference: Difference) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in difference.partings:
        normal = f"{figure(one.low)} to {figure(one.high)}"
        rows.append((one.column, str(one.step), figure(one.value), normal))
    return rows


def _noted(version: str) -> str:
    return f" (default of {version})" if version else ""
