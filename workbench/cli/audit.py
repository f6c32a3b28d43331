"""`sorl audit RUN`: recompute what stored steps say they did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Context, Exit, Option

from sorl.cli.shared import current, one_of, run_folder
from sorl.cli.tables import document, echo, note, print_table
from sorl.spec import InputError, nearest
from sorl.store import batches

if TYPE_CHECKING:
    from sorl.audit import Check

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

    A violated identity is a proof that something is wrong, whatever its cause. Exit code 1 if there is one.
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
    found = checks(ctx.obj, folder, step or (), only or (), unread, progress)
    if form == "json":
        echo(document([check.as_dict() for check in found]), nl=False)
    else:
        _print(folder.name, found)
    if unread or any(check.violated for check in found):
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
    import torch

    from sorl import audit as auditing
    from sorl.learn.run import settings_of

    torch.set_num_threads(1)
    if not (known := batches.steps(folder)):
        batches.file_of(folder, 0)  # says how to store them
    near: Iterable[int] = ()
    if not steps and folder.parent.parent.resolve() == runs.resolve():
        near = [int(row[0]) for row in current(runs).rows(_NEAR, {"run": folder.name}).rows]
    wanted = list(steps) or auditing.chosen(known, near, settings_of(folder).learn.staleness)
    unread = {} if unread is None else unread
    is_filed = folder.parent.parent.resolve() == runs.resolve()
    found = []
    for check in auditing.audit(folder, wanted, only, unread):
        if check.holds_until is not None and is_filed:
            check = replace(check, changed=_changes(runs, folder.name, check))
        found.append(check)
        if progress is not None:
            progress(check)
    if unread:
        _say_unread(unread, wanted)
    return found


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


def _print(run: str, found: Sequence[Check]) -> None:
    from sorl.audit import IDENTITIES

    steps = sorted({check.step for check in found})
    echo(f"{run}: steps {batches.ranges(steps)} audited")
    broken = [check for check in found if check.violated]
    if broken:
        echo("\nViolated: both sides were stored by the trainer, so one of them is wrong")
        columns = ("identity", "step", "update", "logged", "must be", "what")
        print_table(
            columns, [[c.identity, c.step, c.update, c.logged, c.expected, difference(c)] for c in broken]
        )
        for name in dict.fromkeys(check.identity for check in broken):
            one = IDENTITIES[name]
            echo(f"{name}: {one.must[0].lower()}{one.must[1:]}. If not: {one.means}.")
    checked = {check.identity for check in found if not check.missing} - {check.identity for check in broken}
    held = [name for name in IDENTITIES if name in checked]
    echo(f"\n{'No identity is violated. ' if not broken else ''}{len(held)} hold: {', '.join(held)}.")
    lacking: dict[tuple[str, str], list[int]] = defaultdict(list)
    for check in found:
        if check.missing:
            lacking[check.identity, check.missing].append(check.step)
    if lacking:
        echo("\nNot checked")
    for (name, why), at in lacking.items():
        echo(f"{name} at {'step' if len(at) == 1 else 'steps'} {batches.ranges(at)}: {why}")


def difference(check: Check) -> str:
    """Say in words where an identity is violated, and what the difference looks like."""
    parts = []
    if check.trajectories:
        shown = ", ".join(map(str, check.trajectories[:4]))
        more = len(check.trajectories) - 4
        rows = "trajectory" if len(check.trajectories) == 1 else "trajectories"
        parts.append(f"{rows} {shown}" + (f" and {more} more" if more > 0 else ""))
    if check.layers:
        parts.append(", ".join(check.layers))
    return "; ".join([*parts, check.says] if check.says else parts)
