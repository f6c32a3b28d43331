"""`sorl fork RUN`: go back to before a collapse, change one thing, and see whether the run still dies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from typer import Argument, Context, Option

from sorl.cli.children import ARMS, BEFORE, DEFAULT, STEPS, arms_of, forkable, grid_of, time_left, train
from sorl.cli.plan import describe, plan_of
from sorl.cli.shared import (
    MOST_DRAWS,
    current,
    experiment_of,
    experiments,
    find,
    number,
    one_of,
    workers_option,
)
from sorl.cli.tables import document, echo, note, show
from sorl.grid.cell import Cell
from sorl.grid.config import Grid
from sorl.spec import InputError
from sorl.store.reader import Reader

if TYPE_CHECKING:
    import pandas as pd

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
    request = _Request(run, at, arms or (), file, draws, steps)
    planned = _plan_forks(ctx.obj, request)
    if plan:
        _show_plan(ctx.obj, planned, draws, workers, form)
        return
    for grid in planned.grids:
        train(ctx.obj, grid, workers)
    _show_outcome(ctx.obj, planned, form)


class _Request(NamedTuple):
    """What is to be forked, where, and into which children."""

    subject: str  # a run, or an experiment for all its runs that fell
    places: Sequence[str]  # a step or onset-N each
    arms: Sequence[str]
    arms_file: Path | None
    draws: int  # children of each arm
    steps: int  # that a child trains


class _PlannedForks(NamedTuple):
    """The parents that a request names, and the grids of their children by place."""

    parents: Sequence[str]
    by_place: Mapping[str, Sequence[Grid]]

    @property
    def grids(self) -> list[Grid]:
        """The grids of all places."""
        return list(chain.from_iterable(self.by_place.values()))

    @property
    def cells(self) -> list[Cell]:
        """The children of all places."""
        return _cells_of(self.grids)


def _plan_forks(runs: Path, request: _Request) -> _PlannedForks:
    """Return the grids of a request, and note the parents and arms that are left out.

    Of a single run nothing is left out: what cannot be forked is an InputError.
    """
    reader = current(runs)
    is_experiment = experiment_of(request.subject) in experiments(reader)
    parents = _fallen_runs(reader, request.subject) if is_experiment else [find(reader, request.subject)]
    by_place: dict[str, list[Grid]] = {}
    left_out: list[str] = []
    for place, parent in product(request.places, parents):
        try:
            children = forkable(runs, parent, place)
            arms = arms_of(
                request.arms, request.arms_file, children.settings, left_out if is_experiment else None
            )
            grid = grid_of(runs, children, arms, request.draws, request.steps)
        except InputError as error:
            if not is_experiment:
                raise
            left_out.append(f"{place}: {error}")
            continue
        by_place.setdefault(place, []).append(grid)
    for reason in dict.fromkeys(left_out):
        note(f"left out, {reason}")
    planned = _PlannedForks(parents, by_place)
    if not planned.cells:
        raise InputError(f"no run of '{request.subject}' can be forked there")
    return planned


def _fallen_runs(reader: Reader, experiment: str) -> list[str]:
    """Return the runs of an experiment that fell. Raises InputError where none did."""
    fallen = [row[0] for row in reader.rows(_FALLEN, [experiment_of(experiment)]).rows]
    if not fallen:
        raise InputError(f"no run of '{experiment}' fell; name a run and a step: sorl fork RUN --at STEP")
    return fallen


def _cells_of(grids: Iterable[Grid]) -> list[Cell]:
    return list(chain.from_iterable(grid.cells for grid in grids))


def _show_plan(runs: Path, planned: _PlannedForks, draws: int, workers: int | None, form: str) -> None:
    """Print what would be trained: one grid as `sorl plan` does, of several how many and how long."""
    from sorl.analysis import forks

    grids = planned.grids
    comparisons = len({cell.arm for cell in planned.cells}) - 1
    most_parents = max(len(of_place) for of_place in planned.by_place.values())
    power = forks.power(draws, comparisons, most_parents)
    if form == "json":
        plans = [plan_of(grid, runs, workers) for grid in grids]
        estimate = time_left(planned.cells, runs, workers).as_dict()
        echo(document({"grids": plans, "estimate": estimate, "power": power}), nl=False)
        return
    if len(grids) == 1:
        describe(grids[0], runs, workers)
    else:
        echo(f"{len(planned.cells)} children: {time_left(planned.cells, runs, workers)}")
    echo(f"\n{power}")


def _show_outcome(runs: Path, planned: _PlannedForks, form: str) -> None:
    """Print what the changes did to the trained children, and where the app shows them."""
    from sorl.analysis import forks

    children = forks.children(current(runs))
    by_place = {place: _of_grids(children, grids) for place, grids in planned.by_place.items()}
    if form == "json":
        echo(document(_effects_by_place(by_place)), nl=False)
        return
    parent = planned.parents[0]
    for place, grids in planned.by_place.items():
        subject = parent if len(grids) == 1 else f"{len(grids)} runs"
        _show_effects(by_place[place], f"{subject} at {place}")
    note(forks.ABOUT)
    fork_of = planned.cells[0].settings.fork
    assert fork_of is not None
    address = urlencode({"experiment": fork_of.experiment, "run": parent})
    echo(f"The tree of {parent}: sorl app, then /run?{address}")


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
