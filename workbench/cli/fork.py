"""`sorl fork RUN`: go back to before a collapse, change one thing, and see whether the run still dies."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import tomli_w
from typer import Argument, Context, Exit, Option, confirm

from sorl.cli.plan import describe, plan_of
from sorl.cli.shared import (
    MOST_DRAWS,
    current,
    experiment_of,
    experiments,
    find,
    number,
    one_of,
    run_folder,
    toml_of,
    workers_option,
)
from sorl.cli.tables import document, echo, note, records, show
from sorl.grid import progress
from sorl.grid import run as grid_run
from sorl.grid.cell import Cell, Estimate, expand, flatten, time_of
from sorl.grid.config import Grid, load, option
from sorl.grid.folder import folder_of, last_row
from sorl.grid.fork import allowed
from sorl.learn.faults import FAULTS
from sorl.learn.run import settings_of
from sorl.spec import InputError, RunSettings, first_paragraph, nearest
from sorl.spec.files import from_json, naming
from sorl.spec.names import LADDER, FolderName
from sorl.spec.settings import DRAW
from sorl.store.segments import held
from sorl.store.text import visible

if TYPE_CHECKING:
    import pandas as pd

    from sorl.diagnosis.finding import Cause, Diagnosis

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
# of a child; where it begins; causes that are tested
STEPS = 16
BEFORE = "onset-8"
LIKELIEST = 4
AFTER = 2  # steps that a child trains after its collapse was detected
_AT = (
    "Step to fork at, or onset-N: N steps before the fall began. The checkpoint before it is taken."
    " Repeatable."
)
_ARM = f"What a child changes: {', '.join(ARMS)}, or KEY=VALUE. Repeatable; default: {', '.join(DEFAULT)}."
_FILE = "A file with arms of your own, each with a name and settings as in a grid file."
_RUN = "A run id or a unique prefix of one; or an experiment, for all its runs that fell."
_FALLEN = """
    SELECT run_id FROM run SEMI JOIN cell USING (run_id) WHERE experiment = ? AND status = 'finished'
    AND coalesce(collapse_step, onset_low) IS NOT NULL ORDER BY arm, seed
"""


def fork(
    ctx: Context,
    run: str = Argument(..., metavar="RUN|EXPERIMENT", help=_RUN),
    at: list[str] = Option([BEFORE], "--at", metavar="STEP|onset-N", help=_AT),
    arms: list[str] | None = Option(None, "--arm", metavar="NAME", help=_ARM),
    file: Path | None = Option(None, "--arms", metavar="FILE.toml", help=_FILE),
    draws: int = number(
        4,
        "--draws",
        least=1,
        most=MOST_DRAWS,
        why="every draw is a child of each arm that has to be trained",
        what="Children of each arm, each with a new seed.",
    ),
    steps: int = number(
        STEPS,
        "--steps",
        least=1,
        most=1_000_000,
        why="every child trains them",
        what="Steps that a child trains.",
    ),
    plan: bool = Option(
        False, "--plan", help="Print the children, the time and the power, and train nothing."
    ),
    workers: int | None = workers_option("Children at a time; default: one core for each thread of a run."),
    form: str = one_of("--format", "table", "json", default="table"),
) -> None:
    """Fork a run before its collapse, with one thing changed in each arm, and compare with children left
    unchanged.

    Children share the weights, the optimizers, the queue and the history of the parent up to the fork, and
    are runs of the experiment fork-RUN-at-STEP. The same command resumes. Forks of several parents are
    compared within each.
    """
    from sorl.analysis import forks

    reader = current(ctx.obj)
    whole = experiment_of(run) in experiments(reader)
    parents = (
        [row[0] for row in reader.rows(_FALLEN, [experiment_of(run)]).rows] if whole else [find(reader, run)]
    )
    if not parents:
        raise InputError(f"no run of '{run}' fell; name a run and a step: sorl fork RUN --at STEP")
    grids: dict[str, list[Grid]] = {}
    left_out: list[str] = []
    for place, parent in product(at, parents):
        try:
            wanted = forkable(ctx.obj, parent, place)
            changes = arms_of(arms or (), file, wanted.settings, left_out if whole else None)
            grids.setdefault(place, []).append(grid_of(ctx.obj, wanted, changes, draws, steps))
        except InputError as error:
            if not whole:
                raise
            left_out.append(f"{place}: {error}")
    for reason in dict.fromkeys(left_out):
        note(f"left out, {reason}")
    cells = _cells_of(chain.from_iterable(grids.values()))
    if not cells:
        raise InputError(f"no run of '{run}' can be forked there")
    if plan:
        most = max(len(found) for found in grids.values())
        power = forks.power(draws, len({cell.arm for cell in cells}) - 1, most)
        _show_plan(ctx.obj, grids, workers, form, power)
        return
    for grid in chain.from_iterable(grids.values()):
        train(ctx.obj, grid, workers)
    children = forks.children(current(ctx.obj))
    by_place = {place: _of_grids(children, of_place) for place, of_place in grids.items()}
    if form == "json":
        echo(document(_effects_by_place(by_place)), nl=False)
        return
    for place, of_place in grids.items():
        whose = parents[0] if len(of_place) == 1 else f"{len(of_place)} runs"
        _show_effects(by_place[place], f"{whose} at {place}")
    note(forks.ABOUT)
    fork_of = cells[0].settings.fork
    assert fork_of is not None
    where = urlencode({"experiment": fork_of.experiment, "run": parents[0]})
    echo(f"The tree of {parents[0]}: sorl app, then /run?{where}")


def _cells_of(grids: Iterable[Grid]) -> list[Cell]:
    return list(chain.from_iterable(grid.cells for grid in grids))


def _of_grids(children: pd.DataFrame, grids: Iterable[Grid]) -> pd.DataFrame:
    """The children that these grids train."""
    return children[children["run_id"].isin([cell.run_id for cell in _cells_of(grids)])]


def _effects_by_place(by_place: Mapping[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """The effects of the arms for JSON, with the place of the fork in each row."""
    from sorl.analysis import forks

    rows = list[dict[Any, Any]]()
    for place, children in by_place.items():
        rows += [{"at": place} | row for row in forks.table(children).to_dict("records")]
    return rows


def _show_effects(children: pd.DataFrame, title: str) -> None:
    from sorl.analysis import forks

    from_steps = ", ".join(map(str, sorted(children["forked_at"].unique())))
    echo(f"\nForks of {title}, from step {from_steps} on")
    show(forks.table(children))
    echo(f"\n{forks.sentence(children)}\n")


def _show_plan(
    runs: Path, grids: Mapping[str, Sequence[Grid]], workers: int | None, form: str, power: str
) -> None:
    """Print what would be trained: one grid as `sorl plan` does, of several how many and how long."""
    every = list(chain.from_iterable(grids.values()))
    cells = list(chain.from_iterable(grid.cells for grid in every))
    if form == "json":
        each = [plan_of(grid, runs, workers) for grid in every]
        whole = {"grids": each, "estimate": time_left(cells, runs, workers).as_dict(), "power": power}
        echo(document(whole), nl=False)
        return
    if len(every) == 1:
        describe(every[0], runs, workers)
    else:
        echo(f"{len(cells)} children: {time_left(cells, runs, workers)}")
    echo(f"\n{power}")


class Children(NamedTuple):
    """What is to be forked: a parent's row of table `run`, its settings, and the step."""

    row: Mapping[str, Any]
    settings: RunSettings
    step: int


def train(runs: Path, grid: Grid, workers: int | None) -> None:
    """Train the children of a parent that are not finished. Raises Exit where one failed or was stopped."""
    results = grid_run.run(grid, runs, progress.Display(), workers=workers)
    bad = [result for result in results if result.status != "finished"]
    for result in bad:
        note(f"{result.status}: {result.cell.run_id} {result.reason}; `sorl show {result.cell.run_id}`")
    if bad:
        note("The same command resumes.")
        raise Exit(1)


def time_left(cells: Sequence[Cell], runs: Path, workers: int | None) -> Estimate:
    """Return how long these children take, those that are finished left out."""
    left = [cell for cell in cells if (last_row(folder_of(runs, cell)) or {}).get("status") != "finished"]
    return time_of(left, runs, workers)


def arms_of(
    names: Sequence[str], file: Path | None, settings: RunSettings, left_out: list[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return what each arm changes. What the parent's state does not allow is an InputError, or one more
    `left_out`.
    """
    from sorl.analysis.forks import UNCHANGED

    given: dict[str, dict[str, Any]] = {}
    if file:
        tables = toml_of("--arms", file).get("arms")
        if not isinstance(tables, list) or not all(isinstance(one, dict) and "name" in one for one in tables):
            raise InputError(f"'{file}' has no [[arms]] with a name each")
        given = {str(one.pop("name")): flatten(expand(one, f"{file}")) for one in tables}
    old = flatten(settings.model_dump(mode="json"))
    for name in names or (() if file else DEFAULT):
        if "=" in name:
            given[name] = dict([option(name, example="learn.epochs=1", name="--arm")])
        elif name in ARMS:
            given[name] = _applied(ARMS[name], old)
        else:
            raise InputError(
                f"no arm '{name}'{nearest(name, ARMS)}; there is: {', '.join(ARMS)}, or KEY=VALUE"
            )
    if renamed := given.get(UNCHANGED):
        sets = ", ".join(renamed)
        raise InputError(f"the arm '{UNCHANGED}' changes nothing: give the one that sets {sets} another name")
    for name, changes in list(given.items()):
        try:
            allowed(name, changes, settings)
        except InputError as error:
            if left_out is None or len(given) == 1:
                raise
            left_out.append(str(error))
            del given[name]
    return given


def forkable(runs: Path, parent: str, at: str) -> Children:
    """Return a parent and its step; InputError if it still runs, is of another version or has no whole
    checkpoint near.
    """
    from sorl.learn.checkpoint import checkpoint_of, refuse_damaged

    (row,) = records(*current(runs).rows("SELECT * FROM run WHERE run_id = ?", [parent])[:2])
    if held(folder := run_folder(runs, parent)):
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


def grid_of(
    runs: Path, children: Children, arms: Mapping[str, Mapping[str, Any]], draws: int, steps: int
) -> Grid:
    """Return the grid of these arms and of unchanged children, and keep its file; InputError for an unknown
    setting.
    """
    from sorl.analysis.forks import UNCHANGED

    row, settings, step = children
    parent = row["run_id"]
    given = settings.model_dump(mode="json", exclude_none=True, exclude={"seed", "iterations", "fork"})
    fault = flatten({"fault": given.pop("fault", {})})
    base = flatten(given) | LIGHT | {"iterations": step + steps, "stop.after_collapse": AFTER}
    base |= {
        "fork.experiment": row["experiment"],
        "fork.run": parent,
        "fork.at_step": step,
        "fork.seed": settings.seed,
    }
    tables = []
    for name, changes in {UNCHANGED: {}, **arms}.items():
        # A fault goes on in every child but that of an arm without it.
        own = changes if "fault" in changes else {**fault, **changes}
        kept = {key: value for key, value in own.items() if value not in (None, {})}
        tables.append({"name": name} | expand(kept, f"arm '{name}'"))
    made = {
        "question": f"Which change after step {step} saves {parent}?",
        # Not the parent's own seed: that child left unchanged falls for certain, as the parent was chosen for
        # its fall.
        "seeds": [settings.seed + DRAW * draw for draw in range(1, draws + 1)],
        "base": expand(base, "the parent"),
        "arms": tables,
    }
    name = FolderName(f"fork-{parent}-at-{step}", "the experiment of these forks")
    path = runs / ".cache" / "forks" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        path.write_text(tomli_w.dumps(made), encoding="utf-8")
    try:
        return load(path)
    except InputError:
        path.unlink()
        raise


def removal(cause: Cause, settings: RunSettings) -> dict[str, Any]:
    """Return what a child changes to go on without a cause or a fault; empty where no setting removes it."""
    if settings.fault is not None and settings.fault.kind == cause.name:
        return {"fault": None}
    old = flatten(settings.model_dump(mode="json"))
    return {key: value for key, value in _applied(cause.without, old).items() if value != old[key]}


def _applied(changes: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    return {key: new(old[key]) if callable(new) else new for key, new in changes.items()}


def intervene(
    runs: Path,
    found: Diagnosis,
    draws: int,
    *,
    yes: bool,
    steps: int = STEPS,
    causes: Sequence[Cause] | None = None,
    workers: int | None = None,
) -> bool:
    """Fork a run without each of these causes (its likeliest), once the time was agreed to; return whether it
    was.
    """
    from sorl.analysis.forks import WITHOUT, power
    from sorl.diagnosis.rank import in_order

    name = found.log.name
    if found.log.onset is None:
        raise InputError(f"'{name}' did not fall: there is nothing to save it from")
    children = forkable(runs, name, BEFORE)
    arms = dict[str, dict[str, Any]]()
    for cause in causes or [finding.cause for finding in in_order(found)][:LIKELIEST]:
        changes = removal(cause, children.settings)
        arm = WITHOUT + cause.name
        try:
            allowed(arm, changes, children.settings)
        except InputError as error:
            changes = {}
            note(str(error))
        if changes:
            arms[arm] = changes
        else:
            note(f"not tested, as no setting removes it: {cause.name}. {cause.change}")
    if not arms:
        raise InputError(
            f"nothing that was found in '{name}' is removed by a setting; see `sorl diagnose {name}`"
        )
    grid = grid_of(runs, children, arms, draws, steps)
    time = time_left(grid.cells, runs, workers)
    note(f"{len(grid.cells)} children from step {children.step} on, {steps} steps each: {time}")
    for arm, changes in arms.items():
        said = ", ".join(f"{key} = {value}" for key, value in changes.items() if value is not None)
        note(f"  {arm}: {said or 'as the trainer is without the fault'}")
    note(power(draws, len(arms)))
    if not yes and not (sys.stdin.isatty() and confirm("Train them?", err=True)):
        note("Nothing was trained. Add --yes to train them.")
        return False
    train(runs, grid, workers)
    return True


def arms_file(found: Diagnosis, draws: int) -> str:
    """Return the arms to continue a run of another trainer with, as a TOML file with its reasons."""
    from sorl.diagnosis.rank import in_order
    from sorl.importing.names import SETTINGS

    step = (
        found.log.onset
        if found.log.onset is not None
        else min((f.clue.step for f in found.findings), default=0)
    )
    lines = [
        (
            f"# Continue {visible(found.log.name)} from its last checkpoint before step {step}, {draws} times"
            " each arm,"
        ),
        (
            "# each time with another seed. A cause is shown if children without it stay up and those left"
            " unchanged fall."
        ),
        "# Below are our settings, and what other trainers call them.",
        "",
        "[[arms]]",
        'name = "unchanged"',
    ]
    for cause in [finding.cause for finding in in_order(found)][:LIKELIEST]:
        lines += ["", f"# {cause.title}. {cause.change}"]
        lines += ["[[arms]]", f'name = "without {cause.name}"'] if cause.without else []
        for key, new in cause.without.items():
            old = found.log.settings.get(key)
            if callable(new) and not isinstance(old, int | float):
                lines.append(f'# "{key}": {first_paragraph(new).removeprefix("Return ")}')
                continue
            value = json.dumps(_applied({key: new}, {key: old})[key])
            lines.append(
                f'"{key}" = {value}  # was {visible(str(old))}; {", ".join(SETTINGS.get(key, ())[:3])}'
            )
    return "\n".join(lines) + "\n"


def rung(folder: Path, parent: str, at: str, row: Mapping[str, Any], settings: RunSettings) -> int:
    """Return the step of the newest checkpoint at or before the wanted step."""
    from sorl.learn.checkpoint import checkpoints

    steps = [int(one.name) for one in checkpoints(folder / LADDER)]
    if not steps:
        raise InputError(
            f"'{parent}' has no checkpoints to fork from: train it with record.ladder = 4 (the default)"
        )
    if (fault := settings.fault) is not None and (kind := FAULTS[fault.kind]).remembers:
        begins = fault.at_step - kind.lead
        if not (steps := [step for step in steps if step <= begins]):
            lost = f"none holds what its fault '{fault.kind}' remembers"
            raise InputError(f"'{parent}' has no checkpoint at or before step {begins}, and {lost}")
    there = f"there are {', '.join(map(str, steps))}"
    if (match := re.fullmatch(r"onset(?:-(\d+))?", at)) is not None:
        onset = row["collapse_step"] if row["collapse_step"] is not None else row["onset_low"]
        if onset is None:
            raise InputError(f"'{parent}' did not fall: name a step, --at STEP; {there}")
        wanted = max(int(onset) - int(match.group(1) or 0), min(steps))
        if wanted > onset:
            note(
                f"'{parent}' falls at step {onset}, before its first checkpoint: its children start after the"
                " fall"
            )
    elif at.isdecimal():
        wanted = int(at)
    else:
        raise InputError(f"--at '{at}' is neither a step nor onset-N, such as onset-8")
    before = [step for step in steps if step <= wanted]
    if not before or wanted >= (row["steps"] or 0):
        none = f"'{parent}' has no checkpoint at or before step {wanted} of its {row['steps']}"
        raise InputError(f"{none}; {there}; the nearest is --at {min(steps, key=lambda s: abs(s - wanted))}")
    return before[-1]
