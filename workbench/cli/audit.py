"""`sorl audit RUN`: recompute what stored steps say they did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Context, Exit, Option

from sorl.cli.shared import current, one_of, run_folder
from sorl.cli.tables import document, echo, note, print_table
from sorl.spec import InputError, nearest
from sorl.store import batches

if TYPE_CHECKING:
    from sorl.audit import Check, Declaration

_STEP = "Audit this stored step. Repeatable; default: six, around the onset and alarms first."
_NAMED = 5  # damaged steps of which each is named
_HAPPENED = (
    "SELECT message FROM event WHERE run_id = $run AND step > $after AND step <= $until"
    " AND kind IN ('resumed', 'retried', 'interrupted', 'killed', 'out_of_memory', 'hang')"
    " ORDER BY step LIMIT 3"
)
_NEAR = (
    "SELECT step FROM (SELECT collapse_step AS step, 0 AS rank FROM run WHERE run_id = $run UNION ALL SELECT"
    " step, 1 FROM event WHERE run_id = $run AND severity <> 'info') WHERE step IS NOT NULL ORDER BY rank,"
    " step LIMIT 3"
)


def audit(
    ctx: Context,
    run: str = Argument(..., metavar="RUN", help="A run id, a unique prefix of one, or the run's folder."),
    step: list[int] | None = Option(None, min=0, help=_STEP),
    only: list[str] | None = Option(None, metavar="IDENTITY", help="Check only this identity. Repeatable."),
    form: str = one_of("--format", "text", "json", default="text"),
) -> None:
    """Recompute what stored steps say they did: rewards, log-probs, advantages, losses, gradients, weights.

    A violated identity is a proof that something is wrong, whatever its cause. Exit code 1 if there is one. A
    run of another trainer is audited by what its stored batches, tables and witnesses hold.
    """
    from sorl.audit import IDENTITIES

    for name in only or ():
        if name not in IDENTITIES:
            raise InputError(
                f"no identity '{name}'{nearest(name, IDENTITIES)}; allowed: {', '.join(IDENTITIES)}"
            )
    folder = run_folder(ctx.obj, run)
    unread: dict[int, str] = {}
    progress = _Progress() if form == "text" else None
    checked = checks(ctx.obj, folder, step or (), only or (), unread, progress)
    if form == "json":
        echo(document([as_document(check) for check in checked]), nl=False)
    else:
        _print(folder.name, checked)
    if unread or any(check.violated for check in checked):
        raise Exit(1)


def checks(
    runs: Path,
    folder: Path,
    steps: Sequence[int] = (),
    only: Sequence[str] = (),
    unread: dict[int, str] | None = None,
    progress: Callable[[Check], None] | None = None,
) -> list[Check]:
    """Return the checks of `steps` of a run; by default of those around its onset and its first alarms, and
    others. `progress` is told of each as soon as it is known.

    Damaged steps cost their own checks: they are counted on stderr, and put into `unread` with the reason.
    Raises InputError where none of the steps can be read.
    """
    from sorl import audit as auditing

    declared = auditing.declaration_of(folder)
    stored = batches.steps(folder)
    is_filed = folder.parent.parent.resolve() == runs.resolve()
    near: Iterable[int] = ()
    if not steps and is_filed:
        near = [int(row[0]) for row in current(runs).rows(_NEAR, {"run": folder.name}).rows]
    wanted = list(steps) or auditing.chosen(stored, near, declared.staleness)
    unread = {} if unread is None else unread
    checked = []
    for check in auditing.audit(folder, wanted, only, unread):
        if check.holds_until is not None and is_filed:
            check = replace(check, changed=_changes(runs, folder.name, check))
        checked.append(check)
        if progress is not None:
            progress(check)
    if unread:
        _say_unread(unread, wanted)
    if not wanted:
        checked = _without_batches(declared, only)
    if not steps:
        checked += auditing.table_checks(folder, only, declared)
        checked += auditing.witness_checks(auditing.witness_tables(folder), only)
    return checked


def _without_batches(declared: Declaration, only: Sequence[str]) -> list[Check]:
    """Return of a run without stored batches what each identity of a step would need."""
    from sorl.audit import Check, asked_of_steps

    missing = f"needs {declared.lacks('batch')}"
    asked = asked_of_steps(is_own=declared.own_settings is not None)
    names = [identity.name for identity in asked if not only or identity.name in only]
    return [Check(identity=name, missing=missing) for name in names]


def as_document(check: Check) -> dict[str, Any]:
    """Return a check as JSON has it; what it means and what to do only of a violated one."""
    from sorl.audit import IDENTITIES

    row = check.as_dict()
    if not check.violated:
        return {name: value for name, value in row.items() if name not in ("means", "change")}
    identity = IDENTITIES[check.identity]
    return row | {"innocent": identity.innocent, "page": identity.page}


def _say_unread(unread: Mapping[int, str], wanted: Sequence[int]) -> None:
    """Count damaged steps on stderr. Raises InputError where none of those that were wanted can be read."""
    steps_read = {*wanted, *unread}  # the second also has steps that others are compared with
    why = "; ".join([*unread.values()][:_NAMED])
    more = f"; and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
    lost = f"{len(unread)} of {len(steps_read)} stored steps could not be read: {why}{more}"
    if {*wanted} <= unread.keys():
        raise InputError(lost)
    note(lost)


def _changes(runs: Path, run: str, broken: Check) -> str:
    """Return what happened to a run between the last step in which an identity holds and the first in which
    it is violated; empty where nothing is recorded.
    """
    between = {"run": run, "after": broken.holds_until, "until": broken.step}
    return "; ".join(str(row[0]) for row in current(runs).rows(_HAPPENED, between).rows)


class _Progress:
    """Prints what is violated as soon as it is known: of a large model the table of all takes minutes."""

    def __init__(self) -> None:
        self._announced: set[tuple[str, int]] = set()

    def __call__(self, check: Check) -> None:
        place = (check.identity, check.step)
        if check.violated and place not in self._announced:
            self._announced.add(place)
            echo(f"step {check.step}: {check.identity} is violated")


def _print(run: str, checks: Sequence[Check]) -> None:
    from sorl.audit import IDENTITIES
    from sorl.audit.registry import TABLES, WITNESS

    of_rows = {name for name, identity in IDENTITIES.items() if identity.reads in (TABLES, WITNESS)}
    steps = sorted({check.step for check in checks if check.identity not in of_rows and check.step >= 0})
    stored = f"steps {batches.ranges(steps)} audited, " if steps else ""
    echo(f"{run}: {stored}rows and witnesses of all steps checked")
    broken = [check for check in checks if check.violated]
    if broken:
        _print_violations(broken)
    checked = {check.identity for check in checks if not check.missing} - {check.identity for check in broken}
    held = [name for name in IDENTITIES if name in checked]
    verdict = "" if broken else "No identity is violated. "
    echo(f"\n{verdict}{len(held)} hold{': ' if held else ''}{', '.join(held)}.")
    _print_missing([check for check in checks if check.missing])


def _print_violations(broken: Sequence[Check]) -> None:
    from sorl.audit import IDENTITIES

    echo("\nViolated: both sides were stored by the trainer, so one of them is wrong")
    columns = ("identity", "step", "update", "logged", "must be", "what")
    located = {(check.identity, check.step): check for check in broken}  # the later one says since when
    print_table(
        columns,
        [[c.identity, c.step, c.update, c.logged, c.expected, difference(c)] for c in located.values()],
    )
    for name in dict.fromkeys(check.identity for check in broken):
        identity = IDENTITIES[name]
        echo(f"{name}: {identity.must[0].lower()}{identity.must[1:]}. If not: {identity.means}.")
        echo(f"  Innocent if: {identity.innocent}")
        echo(f"  Next: {identity.change}")
        echo(f"  More: {identity.page}")


def _print_missing(lacking: Sequence[Check]) -> None:
    """Say what was not checked, once for each reason."""
    if not lacking:
        return
    echo("\nNot checked")
    names: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    at: dict[tuple[str, str], list[int]] = defaultdict(list)
    for check in lacking:
        at[check.identity, check.missing].append(check.step)
    for (name, why), steps in at.items():
        names[why, tuple(steps)].append(name)
    for (why, places), together in names.items():
        known = [step for step in places if step >= 0]
        word = "step" if len(known) == 1 else "steps"
        where = f" at {word} {batches.ranges(known)}" if known else ""
        echo(f"{', '.join(together)}{where}: {why}")


def difference(check: Check) -> str:
    """Say in words where an identity is violated, what the difference looks like, and since when."""
    from sorl.diagnosis.proofs import since

    parts = []
    if check.trajectories:
        first_few = ", ".join(map(str, check.trajectories[:4]))
        more = len(check.trajectories) - 4
        rows = "trajectory" if len(check.trajectories) == 1 else "trajectories"
        parts.append(f"{rows} {first_few}" + (f" and {more} more" if more > 0 else ""))
    if check.layers:
        parts.append(", ".join(check.layers))
    parts += [check.says] if check.says else []
    return f"{'; '.join(parts)}{since(check)}".removeprefix("; ")
