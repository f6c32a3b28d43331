"""`sorl audit RUN`: recompute what stored steps say they did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Context, Exit, Option

from sorl.cli.shared import current, one_of, run_folder
from sorl.cli.tables import document, echo, note, print_table
from sorl.spec import InputError, nearest
from sorl.store import batches

if TYPE_CHECKING:
    from sorl.audit import Check

_STEP = "Audit this stored step. Repeatable; default: six, around the onset and alarms first."
_NAMED = 5  # damaged steps of which each is named
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

    The witnesses of all steps are checked too, also where no step is stored. A violated identity is a proof
    that something is wrong, whatever its cause. Exit code 1 if there is one.
    """
    from sorl.audit import IDENTITIES, WITNESSES

    declared = [*IDENTITIES, *WITNESSES]
    for name in only or ():
        if name not in declared:
            raise InputError(f"no identity '{name}'{nearest(name, declared)}; allowed: {', '.join(declared)}")
    folder = run_folder(ctx.obj, run)
    unread: dict[int, str] = {}
    found = checks_over_time(folder, only or ())
    if not found or step or _stores_steps(folder, only or ()):
        found += checks(ctx.obj, folder, step or (), only or (), unread)
    if form == "json":
        echo(document([as_dict(check) for check in found]), nl=False)
    else:
        _print(folder.name, found)
    if unread or any(check.violated for check in found):
        raise Exit(1)


def checks_over_time(folder: Path, only: Sequence[str] = ()) -> list[Check]:
    """Return the checks of a run's witnesses; none where it has none, or where others are asked for."""
    from sorl.audit import WITNESSES, witness_checks, witness_tables

    names = [name for name in only if name in WITNESSES]
    if only and not names:
        return []
    return list(witness_checks(witness_tables(folder), names))


def _stores_steps(folder: Path, only: Sequence[str]) -> bool:
    """Whether the run stores steps, and an identity of stored steps is asked for."""
    from sorl.audit import IDENTITIES

    is_wanted = not only or any(name in IDENTITIES for name in only)
    return is_wanted and bool(batches.steps(folder)) and (folder / "config.toml").is_file()


def checks(
    runs: Path,
    folder: Path,
    steps: Sequence[int] = (),
    only: Sequence[str] = (),
    unread: dict[int, str] | None = None,
) -> list[Check]:
    """Return the checks of `steps` of a run; by default of those around its onset and its first alarms, and
    others.

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
    found = list(auditing.audit(folder, wanted, only, unread))
    if unread:
        steps_read = {*wanted, *unread}  # the second also has steps that others are compared with
        why = "; ".join([*unread.values()][:_NAMED])
        more = f"; and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
        lost = f"{len(unread)} of {len(steps_read)} stored steps could not be read: {why}{more}"
        if {*wanted} <= unread.keys():
            raise InputError(lost)
        note(lost)
    return found


def as_dict(check: Check) -> dict[str, Any]:
    """Return a check as JSON has it."""
    found: dict[str, Any] = {name: getattr(check, name) for name in ("identity", "step", "update")}
    found["state"] = "missing" if check.missing else "violated" if check.violated else "holds"
    names = () if check.missing else ("gap", "tolerance", "logged", "expected")
    said = (name for name in ("says", "trajectories", "layers", "missing") if getattr(check, name))
    return found | {name: getattr(check, name) for name in (*names, *said)}


def _print(run: str, found: Sequence[Check]) -> None:
    from sorl.audit import IDENTITIES, WITNESSES

    declared: dict[str, Any] = {**IDENTITIES, **WITNESSES}
    echo(f"{run}: {_what_was_audited(found)} audited")
    broken = [check for check in found if check.violated]
    if broken:
        echo("\nViolated: both sides were stored by the trainer, so one of them is wrong")
        columns = ("identity", "step", "update", "logged", "must be", "what")
        print_table(
            columns, [[c.identity, c.step, c.update, c.logged, c.expected, difference(c)] for c in broken]
        )
        for name in dict.fromkeys(check.identity for check in broken):
            one = declared[name]
            echo(f"{name}: {one.must[0].lower()}{one.must[1:]}. If not: {one.means}.")
    checked = {check.identity for check in found if not check.missing} - {check.identity for check in broken}
    held = [name for name in declared if name in checked]
    echo(f"\n{'No identity is violated. ' if not broken else ''}{len(held)} hold: {', '.join(held)}.")
    lacking: dict[tuple[str, str], list[int]] = defaultdict(list)
    for check in found:
        if check.missing:
            lacking[check.identity, check.missing].append(check.step)
    if lacking:
        echo("\nNot checked")
    for (name, why), at in lacking.items():
        echo(f"{name} at {'step' if len(at) == 1 else 'steps'} {batches.ranges(at)}: {why}")


def _what_was_audited(found: Sequence[Check]) -> str:
    """Say which stored steps were recomputed, and whether witnesses were checked."""
    from sorl.audit import WITNESSES

    stored = sorted({check.step for check in found if check.identity not in WITNESSES})
    parts = [f"steps {batches.ranges(stored)}"] if stored else []
    if any(check.identity in WITNESSES for check in found):
        parts.append("the witnesses of all steps")
    return " and ".join(parts)


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
