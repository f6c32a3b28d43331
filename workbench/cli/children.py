"""Children of a run: the checkpoint that they start from, what their arms change, their grid."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from typer import Exit

from sorl.cli.shared import current, run_folder, toml_of
from sorl.cli.tables import note, records
from sorl.grid import progress
from sorl.grid import run as grid_run
from sorl.grid.cell import Cell, Estimate, expand, flatten, time_of
from sorl.grid.config import Grid, load
from sorl.grid.folder import folder_of, last_row
from sorl.grid.fork import allowed
from sorl.grid.grid_file import option
from sorl.learn.faults import FAULTS
from sorl.learn.run import settings_of
from sorl.spec import InputError, RunSettings, nearest
from sorl.spec.files import from_json, naming
from sorl.spec.names import LADDER, FolderName
from sorl.spec.settings import DRAW
from sorl.store.segments import held

# Name -> what a child of this arm changes: a value, or a function of the parent's.
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
    "on-policy": {"learn.staleness": 0, "learn.epochs": 1},
    "third-lr": {"learn.policy.lr": lambda lr: lr / 3},
    "no-critic": {"slots.advantage": {"kind": "reinforce_pp"}},
}
DEFAULT = ("turn-ratio", "normalise", "grad-clip")
# What a child spends no time and disk on; its rows are all there.
LIGHT = {"evaluation.every": 0, "evaluation.episodes": 64, "record.ladder": 0, "record.batches.mb": 0}
STEPS = 16  # that a child trains
BEFORE = "onset-8"  # where it begins
AFTER = 2  # steps that a child trains after its collapse was detected


class Children(NamedTuple):
    """What is to be forked: a parent's row of table `run`, its settings, and the step."""

    row: Mapping[str, Any]
    settings: RunSettings
    step: int


def forkable(runs: Path, parent: str, at: str) -> Children:
    """Return a parent and its step; InputError if it still runs, is of another version or has no whole
    checkpoint near.
    """
    from sorl.learn.checkpoint import checkpoint_of, refuse_damaged

    (row,) = records(*current(runs).rows("SELECT * FROM run WHERE run_id = ?", [parent])[:2])
    folder = run_folder(runs, parent)
    if held(folder):
        raise InputError(f"'{parent}' is still being trained: fork it when it has ended")
    trained = _version_of(row)
    ours = version("sorl")
    if trained != ours:
        raise InputError(
            f"'{parent}' was trained by sorl {trained}; this is {ours}: train it again to fork it"
        )
    settings = settings_of(folder)
    step = rung(folder, parent, at, row, settings)
    refuse_damaged(checkpoint_of(folder / LADDER, step))
    return Children(row, settings, step)


def _version_of(row: Mapping[str, Any]) -> str:
    """Return the version of sorl that trained a run, as its row says."""
    try:
        return str(from_json(row["versions"] or "{}")["sorl"])
    except (ValueError, KeyError, TypeError):
        return "of an unknown version"


def rung(folder: Path, parent: str, at: str, row: Mapping[str, Any], settings: RunSettings) -> int:
    """Return the step of the newest checkpoint at or before the wanted step."""
    steps = _checkpoint_steps(folder, parent, settings)
    listed = f"there are {', '.join(map(str, steps))}"
    if (match := re.fullmatch(r"onset(?:-(\d+))?", at)) is not None:
        onset = row["collapse_step"] if row["collapse_step"] is not None else row["onset_low"]
        if onset is None:
            raise InputError(f"'{parent}' did not fall: name a step, --at STEP; {listed}")
        step = max(int(onset) - int(match.group(1) or 0), min(steps))
        if step > onset:
            note(
                f"'{parent}' falls at step {onset}, before its first checkpoint: its children start after the"
                " fall"
            )
    elif at.isdecimal():
        step = int(at)
    else:
        raise InputError(f"--at '{at}' is neither a step nor onset-N, such as onset-8")
    before = [checkpoint for checkpoint in steps if checkpoint <= step]
    if not before or step >= (row["steps"] or 0):
        near = min(steps, key=lambda checkpoint: abs(checkpoint - step))
        none = f"'{parent}' has no checkpoint at or before step {step} of its {row['steps']}"
        raise InputError(f"{none}; {listed}; the nearest is --at {near}")
    return before[-1]


def _what_keeps_some(settings: RunSettings) -> str:
    """Return what to set so that the next training keeps checkpoints to fork from."""
    if settings.record.ladder is None:
        limit = settings.record.batches.weights_mb
        return (
            "without record.ladder one is kept every 4 steps, of weights of at most"
            f" {limit} MB (record.batches.weights_mb); train it again with record.ladder = 4"
        )
    if settings.record.ladder == 0:
        return "record.ladder = 0 keeps none; train it with record.ladder = 4"
    return f"record.ladder = {settings.record.ladder} and it has trained fewer steps; train it longer"


def _checkpoint_steps(folder: Path, parent: str, settings: RunSettings) -> list[int]:
    """Return the steps of the checkpoints that children may start from, ascending.

    A fault that remembers earlier steps is not in the checkpoints: only those before it began can be used.
    """
    from sorl.learn.checkpoint import checkpoints

    steps = [int(checkpoint.name) for checkpoint in checkpoints(folder / LADDER)]
    if not steps:
        raise InputError(f"'{parent}' has no checkpoints to fork from: {_what_keeps_some(settings)}")
    if settings.fault is None or not FAULTS[settings.fault.kind].remembers:
        return steps
    begins = settings.fault.at_step - FAULTS[settings.fault.kind].lead
    before_fault = [step for step in steps if step <= begins]
    if not before_fault:
        lost = f"none holds what its fault '{settings.fault.kind}' remembers"
        raise InputError(f"'{parent}' has no checkpoint at or before step {begins}, and {lost}")
    return before_fault


def arms_of(
    names: Sequence[str], file: Path | None, settings: RunSettings, left_out: list[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return what each arm changes: the arms of a file, then those with these names.

    What the parent's state does not allow is an InputError, or one more line of `left_out`.
    """
    from sorl.analysis.forks import UNCHANGED

    arms = {} if file is None else _arms_in_file(file)
    default = DEFAULT if file is None else ()
    parent_settings = flatten(settings.model_dump(mode="json"))
    for name in names or default:
        arms |= _named_arm(name, parent_settings)
    if renamed := arms.get(UNCHANGED):
        sets = ", ".join(renamed)
        raise InputError(f"the arm '{UNCHANGED}' changes nothing: give the one that sets {sets} another name")
    for name, changes in list(arms.items()):
        try:
            allowed(name, changes, settings)
        except InputError as error:
            if left_out is None or len(arms) == 1:
                raise
            left_out.append(str(error))
            del arms[name]
    return arms


def _arms_in_file(file: Path) -> dict[str, dict[str, Any]]:
    """Return the arms of a file as dotted settings. Raises InputError where one has no name."""
    tables: Any = toml_of("--arms", file).get("arms")
    is_named = isinstance(tables, list) and all(
        isinstance(table, dict) and "name" in table for table in tables
    )
    if not is_named:
        raise InputError(f"'{file}' has no [[arms]] with a name each")
    return {str(table.pop("name")): flatten(expand(table, f"{file}")) for table in tables}


def _named_arm(name: str, parent_settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the arm that --arm names: one of ARMS, or KEY=VALUE."""
    if "=" in name:
        return {name: dict([option(name, example="learn.epochs=1", name="--arm")])}
    if name in ARMS:
        return {name: applied(ARMS[name], parent_settings)}
    raise InputError(f"no arm '{name}'{nearest(name, ARMS)}; there is: {', '.join(ARMS)}, or KEY=VALUE")


def applied(changes: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new values of changes, some of which are functions of the old value."""
    return {key: new(old[key]) if callable(new) else new for key, new in changes.items()}


def grid_of(
    runs: Path, children: Children, arms: Mapping[str, Mapping[str, Any]], draws: int, steps: int
) -> Grid:
    """Return the grid of these arms and of unchanged children, and keep its file.

    Raises InputError for an unknown setting; its file is gone then.
    """
    parent = children.row["run_id"]
    seed = children.settings.seed
    base, fault = _base_of(children, steps)
    grid_file = {
        "question": f"Which change after step {children.step} saves {parent}?",
        # Not the parent's own seed: that child left unchanged falls for certain, as the parent was chosen for
        # its fall.
        "seeds": [seed + DRAW * draw for draw in range(1, draws + 1)],
        "base": expand(base, "the parent"),
        "arms": _arm_tables(arms, fault),
    }
    name = FolderName(f"fork-{parent}-at-{children.step}", "the experiment of these forks")
    path = runs / ".cache" / "forks" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        path.write_text(tomli_w.dumps(grid_file), encoding="utf-8")
    try:
        return load(path)
    except InputError:
        path.unlink()
        raise


class _Base(NamedTuple):
    """What all children of a parent share, by dotted key; a fault is left to the arms."""

    settings: dict[str, Any]
    fault: dict[str, Any]


def _base_of(children: Children, steps: int) -> _Base:
    """Return the settings of the parent as its children train with them."""
    given = children.settings.model_dump(
        mode="json", exclude_none=True, exclude={"seed", "iterations", "fork"}
    )
    fault = flatten({"fault": given.pop("fault", {})})
    settings = flatten(given) | LIGHT
    settings |= {"iterations": children.step + steps, "stop.after_collapse": AFTER}
    settings |= {
        "fork.experiment": children.row["experiment"],
        "fork.run": children.row["run_id"],
        "fork.at_step": children.step,
        "fork.seed": children.settings.seed,
    }
    return _Base(settings, fault)


def _arm_tables(arms: Mapping[str, Mapping[str, Any]], fault: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tables [[arms]] of a grid file, the unchanged children first."""
    from sorl.analysis.forks import UNCHANGED

    tables = []
    for name, changes in {UNCHANGED: {}, **arms}.items():
        # A fault goes on in every child but that of an arm without it.
        with_fault = changes if "fault" in changes else {**fault, **changes}
        settings = {key: value for key, value in with_fault.items() if value not in (None, {})}
        tables.append({"name": name} | expand(settings, f"arm '{name}'"))
    return tables


def train(runs: Path, grid: Grid, workers: int | None) -> None:
    """Train the children of a parent that are not finished. Raises Exit where one failed or was stopped."""
    results = grid_run.run(grid, runs, progress.Display(), workers=workers)
    unfinished = [result for result in results if result.status != "finished"]
    for result in unfinished:
        note(f"{result.status}: {result.cell.run_id} {result.reason}; `sorl show {result.cell.run_id}`")
    if unfinished:
        note("The same command resumes.")
        raise Exit(1)


def time_left(cells: Sequence[Cell], runs: Path, workers: int | None) -> Estimate:
    """Return how long these children take, those that are finished left out."""
    left = [cell for cell in cells if (last_row(folder_of(runs, cell)) or {}).get("status") != "finished"]
    return time_of(left, runs, workers)
