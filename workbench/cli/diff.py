"""`sorl diff GOOD ... BAD`: what differs between runs that worked and one that did not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Context, Option

from sorl.cli.diagnose import audited, logs
from sorl.cli.shared import MAP, one_of
from sorl.cli.tables import document, echo, note, print_table
from sorl.spec import InputError
from sorl.store.text import visible

if TYPE_CHECKING:
    from sorl.diagnosis.finding import Diagnosis
    from sorl.difference.baseline import Baseline

_WHICH = (
    "One run that worked or several, then the one that did not: run ids, experiments, logs of other"
    " trainers, or the name of a saved baseline as the good one."
)
_AUDIT = "Recompute stored steps of the bad run (ten seconds), or leave that out."
SHOWN = 8  # rows of a table
VERSION = "Version of the {side} run's trainer, where its log does not say it, e.g. 0.18.2."


def diff(
    ctx: Context,
    which: list[str] = Argument(..., metavar="GOOD ... BAD", help=_WHICH),
    form: str = one_of("--format", "text", "json", default="text"),
    audit: bool = Option(True, "--audit/--quick", help=_AUDIT),
    good_version: str = Option("", "--good-version", metavar="VERSION", help=VERSION.format(side="good")),
    bad_version: str = Option("", "--bad-version", metavar="VERSION", help=VERSION.format(side="bad")),
    name_map: list[str] | None = MAP,
) -> None:
    """Say what differs between runs that worked and one that did not: settings, defaults of other versions,
    data, causes, and where the curves part.
    """
    from sorl.difference import report
    from sorl.difference.difference import compare

    *good, bad = which
    if not good:
        raise InputError(
            "sorl diff compares two runs or more: name those that worked first, then the one that did not"
        )
    normal = baseline_of(ctx.obj, good, good_version, name_map)
    judged = _diagnosed(ctx.obj, bad, bad_version, name_map)
    if len(judged) != 1:
        raise InputError(
            f"'{bad}' is {len(judged)} runs, and the last name is the one that did not work: name one"
        )
    difference = compare(normal, _audited(ctx.obj, judged[0]) if audit else judged[0])
    if form == "json":
        echo(document(report.as_dict(difference)), nl=False)
        return
    echo("\n".join(report.sentences(difference)))
    for table in report.tables(difference):
        echo(f"\n{table.title}\n")
        print_table(table.head, table.rows[:SHOWN])
        if len(table.rows) > SHOWN:
            echo(f"and {len(table.rows) - SHOWN} more; --format json has all of them")


def baseline_of(runs: Path, which: Sequence[str], version: str, name_map: Sequence[str] | None) -> Baseline:
    """Return the baseline of what was named: a saved one, or some runs."""
    from sorl.difference.baseline import Baseline, load
    from sorl.spec.baselines import baseline_names

    if len(which) == 1 and which[0] in baseline_names(runs):
        return load(runs, which[0])
    diagnoses: list[Diagnosis] = []
    for what in which:
        diagnoses += _diagnosed(runs, what, version, name_map)
    return Baseline.of(diagnoses)


def _diagnosed(runs: Path, what: str, version: str, name_map: Sequence[str] | None) -> list[Diagnosis]:
    """Return the diagnoses of the runs that one name stands for. Raises InputError for one that has none."""
    from sorl.diagnosis.diagnose import diagnose
    from sorl.difference.baseline import with_version

    failures: dict[str, str] = {}
    diagnoses = [diagnose(with_version(log, version)) for log in logs(runs, what, failures, name_map)]
    if not diagnoses:
        why = "; ".join(failures.values()) or "it holds no run"
        raise InputError(f"'{what}' cannot be compared: {why}")
    for name, why in failures.items():
        note(f"{visible(name)} is left out, because it cannot be read: {visible(why)}")
    return diagnoses


def _audited(runs: Path, diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis with what an audit of the stored steps proves; without one where nothing is
    stored.
    """
    from sorl.diagnosis.diagnose import diagnose, noting

    failed: dict[str, str] = {}
    checks = None
    with noting(failed, "audit"):
        checks = audited(runs, diagnosis.log, strict=False)
    for why in failed.values():
        note(f"the bad run was not audited: {why}")
    return diagnose(diagnosis.log, checks=checks) if checks else diagnosis
