"""`sorl fork RUN`: go back to before a collapse, change one thing, and see whether the run still dies."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from typer import Context, Exit, Option

from workbench.cli.shared import RUN, current, find, one_of, run_folder
from workbench.cli.tables import document, echo, note, print_table
from workbench.spec import InputError, RunSettings, nearest
from workbench.spec.files import MIB, from_toml, read_text
from workbench.spec.settings import DRAW, LADDER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNCHANGED = "unchanged"
# Name -> what a child of this arm changes. An algorithm is one too: its ratio, clip and stabiliser.
ARMS: Mapping[str, dict[str, Any]] = {
    "turn-ratio": {"slots.ratio": "turn"},
    "sequence-ratio": {"slots.ratio": "sequence"},
    "placebo-turns": {"slots.ratio": "placebo"},
    "normalise": {"slots.stabilise": {"kind": "rms_batch"}},
    "turn-ratio-normalise": {"slots.ratio": "turn", "slots.stabilise": {"kind": "rms_batch"}},
    "grad-clip": {"learn.policy.max_grad_norm": 0.5},
    "dual-clip": {"slots.clip.dual": 3.0},
    "fresh": {"learn.staleness": 0},
    "one-epoch": {"learn.epochs": 1},
    "third-lr": {},  # of the parent's learning rate
}
DEFAULT = ("turn-ratio", "normalise", "grad-clip")
# What the state of a parent fixes.
FIXED = ("model", "policy", "world", "warmstart", "seed", "iterations", "fork", "learn.episodes", "learn.group_size",
         "learn.policy.kind", "learn.critic.kind")  # fmt: skip
_AT = "Step to fork at, or onset-N (N steps before the fall began). The nearest checkpoint before it is taken."
_ARM = f"What a child changes: {', '.join(ARMS)}, or KEY=VALUE. Repeatable; default: {', '.join(DEFAULT)}."
_FILE = "Arms of your own: [[arms]] tables with a name and settings, as in a grid file."


def fork(
    ctx: Context,
    run: str = RUN,
    at: str = Option("onset-8", "--at", metavar="STEP|onset-N", help=_AT),
    arms: list[str] | None = Option(None, "--arm", metavar="NAME", help=_ARM),
    file: Path | None = Option(None, "--arms", metavar="FILE.toml", help=_FILE),
    draws: int = Option(4, min=1, help="Children of each arm. Draw 0 has the parent's seed, the others new ones."),
    steps: int = Option(24, min=1, help="Steps that a child trains."),
    plan: bool = Option(False, "--plan", help="Print the children, the time and the power, and train nothing."),
    workers: int | None = Option(None, min=1, help="Children at a time; default: one core for each thread of a run."),
    form: str = one_of("--format", "table", "json", default="table"),
) -> None:
    """Fork a run before its collapse, with one thing changed in each arm, and compare with children left unchanged.

    Children share the weights, the optimizers, the queue and the history of the parent up to the fork, and are runs of
    the experiment fork-RUN. The same command resumes. Forks of several parents of one experiment are compared together.
    """
    from workbench.analysis import forks
    from workbench.cli.plan import describe
    from workbench.cli.run import run as train
    from workbench.grid.config import load

    parent = find(current(ctx.obj), run)
    path, text = grid_file(ctx.obj, parent, at, arms or (), file, draws, steps)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if plan:
        describe(load(path), ctx.obj, workers)
        echo(f"\n{forks.power(draws)}")
        return
    try:
        train(ctx, path, workers, None, None, "local", False, 1, 600.0, None, None)
    except Exit as ended:
        if ended.exit_code:
            raise
    found = forks.children(current(ctx.obj), parent)
    columns, rows = forks.table(found, UNCHANGED)
    if form == "json":
        echo(document([dict(zip(columns, row, strict=True)) for row in rows]), nl=False)
        return
    echo(f"\nForks of {parent} at step {found['forked_at'].min()}")
    print_table(columns, rows)
    note(forks.ABOUT)
    echo(f"\n{forks.sentence(found, UNCHANGED)}")


def grid_file(
    runs: Path, parent: str, at: str, names: Sequence[str], file: Path | None, draws: int, steps: int
) -> tuple[Path, str]:
    """Return the grid file of the children, and its text.

    Raises InputError for a parent that still runs, was trained by another version of the settings or has no checkpoint
    near, and for a change that its state does not allow.
    """
    from workbench.grid.cell import expand, flatten
    from workbench.learn.run import settings_of

    reader, folder = current(runs), run_folder(runs, parent)
    found = reader.rows("SELECT * FROM run WHERE run_id = $run", {"run": parent})
    row = dict(zip(found.columns, found.rows[0], strict=True))
    if row["status"] in ("running", "queued"):
        raise InputError(f"'{parent}' is still {row['status']}: fork it when it has ended")
    trained = json.loads(row["versions"] or "{}").get("sorl")
    if trained != version("sorl"):
        raise InputError(
            f"'{parent}' was trained by sorl {trained}; this is {version('sorl')}: train it again to fork it"
        )
    settings = settings_of(folder)
    if settings.fault is not None:
        raise InputError(f"'{parent}' has a fault injected, whose memory is in no checkpoint; it cannot be forked")
    step = rung(folder, parent, at, row)
    given: dict[str, dict[str, Any]] = {UNCHANGED: {}} | (own_arms(file) if file else {})
    for name in names or (() if file else DEFAULT):
        given |= arm(name, settings)
    base = flatten(settings.model_dump(mode="json", exclude_none=True, exclude={"seed", "iterations", "fork"}))
    base |= {"iterations": step + steps}
    base |= {"fork.experiment": row["experiment"], "fork.run": parent, "fork.at_step": step, "fork.seed": settings.seed}
    for name, changes in given.items():
        allowed(name, changes, settings)
    made = {
        "question": f"Which change after step {step} saves {parent}?",
        "seeds": [settings.seed + DRAW * draw for draw in range(draws)],
        "base": expand(base, "the parent"),
        "arms": [{"name": name} | expand(changes, f"arm '{name}'") for name, changes in given.items()],
    }
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"fork-{parent}-at-{step}")
    return runs / ".cache" / "forks" / f"{name}.toml", tomli_w.dumps(made)


def rung(folder: Path, parent: str, at: str, row: Mapping[str, Any]) -> int:
    """Return the step of the newest checkpoint at or before the wanted step."""
    from workbench.learn.checkpoint import checkpoints

    steps = [int(one.name) for one in checkpoints(folder / LADDER)]
    if not steps:
        raise InputError(f"'{parent}' has no checkpoints to fork from: train it with record.ladder = 4 (the default)")
    if (match := re.fullmatch(r"onset(?:-(\d+))?", at)) is not None:
        onset = row["collapse_step"] if row["collapse_step"] is not None else row["onset_low"]
        if onset is None:
            raise InputError(f"'{parent}' did not fall: name a step, --at STEP; there are {', '.join(map(str, steps))}")
        wanted = max(int(onset) - int(match.group(1) or 0), min(steps))
    elif at.isdecimal():
        wanted = int(at)
    else:
        raise InputError(f"--at '{at}' is neither a step nor onset-N, such as onset-8")
    before = [step for step in steps if step <= wanted]
    if not before or wanted >= (row["steps"] or 0):
        raise InputError(
            f"'{parent}' has no checkpoint at or before step {wanted} of its {row['steps']}; "
            f"there are {', '.join(map(str, steps))}; the nearest is --at {min(steps, key=lambda s: abs(s - wanted))}"
        )
    return before[-1]


def arm(name: str, settings: RunSettings) -> dict[str, dict[str, Any]]:
    """Return an arm by its name, or by what it changes: `learn.epochs=1`."""
    from workbench.grid.config import option

    if "=" in name:
        key, value = option(name, example="learn.epochs=1")
        return {name: {key: value}}
    if name == "third-lr":
        return {name: {"learn.policy.lr": settings.learn.policy.lr / 3}}
    if name not in ARMS:
        raise InputError(f"no arm '{name}'{nearest(name, ARMS)}; there is: {', '.join(ARMS)}, or KEY=VALUE")
    return {name: dict(ARMS[name])}


def own_arms(file: Path) -> dict[str, dict[str, Any]]:
    """Return the arms of a file: [[arms]] tables with a name and settings."""
    from workbench.grid.cell import expand, flatten

    try:
        tables = from_toml(read_text(file, MIB)).get("arms")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read --arms '{file}': {getattr(error, 'strerror', error)}") from None
    if not isinstance(tables, list) or not all(isinstance(one, dict) and "name" in one for one in tables):
        raise InputError(f"'{file}' has no [[arms]] with a name each")
    return {str(one.pop("name")): flatten(expand(one, f"{file}")) for one in tables}


def allowed(name: str, changes: Mapping[str, Any], settings: RunSettings) -> None:
    """Raise InputError for a change that the parent's state does not fit."""
    from workbench.algorithms import resolve
    from workbench.grid.cell import expand

    for key in changes:
        if any(key == fixed or key.startswith(f"{fixed}.") for fixed in FIXED):
            raise InputError(f"arm '{name}' changes {key}, which cannot change in the middle of a run")
    slots = {k.removeprefix("slots."): v for k, v in changes.items() if k.startswith("slots.")}
    parent = resolve(settings.algorithm, settings.slots)
    child = resolve(changes.get("algorithm", settings.algorithm), {**settings.slots, **expand(slots, "the arm")})
    for what, one, other in (("critic", parent.critic, child.critic), ("groups", parent.group_size, child.group_size)):
        if one != other:
            raise InputError(f"arm '{name}': '{child.name}' has other {what} than the parent; its state does not fit")
