"""`sorl run FILE.toml`: train every cell of a grid; the same command resumes."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from shutil import which
from typing import TYPE_CHECKING, Any

from typer import Context, Exit, Option

from sorl.cli.compare import show_region, tell, unfair
from sorl.cli.plan import state
from sorl.cli.shared import (
    ARMS,
    CHANGES,
    GRID_FILE,
    NOTIFY,
    current,
    number,
    one_of,
    workers_option,
)
from sorl.cli.tables import echo, note, print_table, show
from sorl.grid import config, fairness, progress
from sorl.grid.config import Grid
from sorl.grid.folder import History
from sorl.grid.process import EXECUTORS
from sorl.grid.result import Limits, Result
from sorl.grid.run import run_rounds
from sorl.grid.search import Region
from sorl.spec import InputError
from sorl.store.connect import Busy, Full
from sorl.store.reader import Reader
from sorl.store.segments import now
from sorl.store.sync import sync
from sorl.store.text import tail

if TYPE_CHECKING:
    import pandas as pd

    from sorl.diagnosis.alerts import Bell

# exit codes; 130 is what a shell calls "ended by Ctrl-C"
_FAILED = 1
_STOPPED = 130


def run(
    ctx: Context,
    file: Path = GRID_FILE,
    workers: int | None = workers_option(),
    changes: list[str] | None = CHANGES,
    arms: list[str] | None = ARMS,
    executor: str = one_of(
        "--executor", *EXECUTORS, default="local", more=": where cells train, ray is a Ray cluster"
    ),
    fresh: bool = Option(
        False, "--fresh", help="Train every cell from the start, in new folders; nothing is deleted."
    ),
    retries: int = number(
        1,
        "--retries",
        least=0,
        most=1000,
        why="every cell that cannot work is trained so often",
        what="Retries of a failed cell, each from its last checkpoint.",
    ),
    hang_seconds: float = number(
        600,
        "--hang-seconds",
        least=0,
        most=10**7,
        why="that is a third of a year; 0 = never",
        what="Kill a cell that is stuck this long; 0 = never.",
        unit="SECONDS",
    ),
    memory: float | None = Option(
        None, metavar="GIB", help="Kill a cell whose processes use more memory than this."
    ),
    notify: str | None = NOTIFY,
) -> None:
    """Run a grid. The same command resumes: it skips finished cells and continues the others from their
    checkpoints.
    """
    if find_spec("torch") is None:  # the cells import it, in processes of their own
        raise ModuleNotFoundError(name="torch")
    index = _Index(ctx.obj, notify)
    # a fresh search knows only the runs that end from now on
    history = History(ctx.obj, since=now() if fresh else None)
    load = partial(config.load, file, changes or [], history, arms or [])
    options = {
        "limits": _limits(retries, hang_seconds, memory),
        "workers": workers,
        "executor": EXECUTORS[executor](),
        "fresh": fresh,
    }
    raise Exit(_train(ctx.obj, load, index, options))


def _limits(retries: int, hang_seconds: float, memory: float | None) -> Limits:
    """Return the limits of a cell. Raises InputError for a memory, in GiB, that is no size."""
    if memory is not None and not 0 < memory < math.inf:
        raise InputError(f"--memory {memory:g} is no size; write GiB, for example --memory 4")
    return Limits(retries, hang_seconds, None if memory is None else int(memory * 2**30))


def _train(runs: Path, load: Callable[[], Grid], index: "_Index", options: Mapping[str, Any]) -> int:
    """Train the rounds of a grid with the `options` of `grid.run.run`, and report; return the exit code."""
    first = load()
    config.refuse_waiting(first)
    findings = fairness.planned(first.cells)
    index.begin(first.experiment)
    tell([finding for finding in findings if finding.flagged], err=True)
    grid, results = run_rounds(load, runs, progress.Display, sync=index.sync_quietly, **options)
    index.finish()
    try:
        _report(runs, grid, results)
    except (Busy, Full) as error:  # the cells have ended all the same
        note(f"the comparison is not shown: {error}; `sorl compare {grid.experiment}` shows it then")
        print_table(
            ("arm", "seed", "status", "reason"),
            [(r.cell.arm, r.cell.seed, r.status, r.reason) for r in results],
        )
    return _exit_code(grid, results)


class _Index:
    """The database of the runs while a grid trains, and the bell that rings at alerts in it."""

    def __init__(self, runs: Path, notify: str | None) -> None:
        self.runs = runs
        self.bell = _bell(notify) if notify else None

    def begin(self, experiment: str) -> None:
        """Let the bell know what was recorded before, which it does not ring at."""
        if self.bell is None:
            return
        self.bell.experiment = experiment
        if self.runs.is_dir():
            sync(self.runs)
            self.bell.know(Reader(self.runs))

    def sync_quietly(self) -> None:
        """Sync, and ring; training continues whatever is wrong with the index: the last sync reports it."""
        import duckdb

        with suppress(InputError, duckdb.Error, OSError):
            sync(self.runs, seconds=0.0)
            if self.bell:
                self.bell.look(Reader(self.runs, wait=0.0))

    def finish(self) -> None:
        """Sync once more, and ring for what came last."""
        import duckdb

        try:
            sync(self.runs)
        except Busy as busy:
            note(f"waiting: {busy}")
            # another grid that ends now syncs the same rows: the table is worth the wait
            with suppress(Busy):
                sync(self.runs, seconds=30.0)
        if self.bell:
            with suppress(InputError, duckdb.Error):
                self.bell.look(Reader(self.runs))
            self.bell.close()


def _bell(address: str) -> "Bell":
    """The bell that rings at an address; a wrong one is refused before anything starts."""
    from sorl.diagnosis.alerts import Bell

    return Bell(address, note)


def _exit_code(grid: Grid, results: Sequence[Result]) -> int:
    ended = {result.status for result in results}
    if "failed" in ended:
        return _FAILED
    if ended & {"interrupted", "queued", "elsewhere"}:
        return _STOPPED
    return _FAILED if grid.waiting or (grid.region is not None and grid.region.unjudged > 0) else 0


def _report(runs: Path, grid: Grid, results: Sequence[Result]) -> None:
    """Print the table, the answer and the cells that ended badly on stdout; where to look on stderr."""
    from sorl.analysis.runs import runs as runs_in

    reader = current(runs)
    mine = [result.cell for result in results if result.status != "elsewhere"]
    # In the order of the grid file, not of the starts: what is said must read the same the next time.
    place = {result.cell.run_id: position for position, result in enumerate(results)}
    frame = runs_in(reader, grid.experiment, list(place)).sort_values(
        "run_id", key=lambda ids: ids.map(place)
    )
    findings = unfair(reader, frame[frame["run_id"].isin([cell.run_id for cell in mine])])
    if fairness.write_events(runs, mine, findings):
        current(runs)
    if grid.region is not None:
        _show_search(reader, grid.experiment, grid.region)
        findings = [finding for finding in findings if finding.flagged]
    else:
        _show_arms(frame, grid.question)
    tell(findings)
    _show_bad_ends(results)
    if elsewhere := len(results) - len(mine):
        note(f"{elsewhere} of {len(results)} cells are trained by another process")
    if left := sum(result.status in ("interrupted", "queued") for result in results):
        note(f"stopped with {left} of {len(results)} cells left; the same command resumes")
    for waiting in grid.waiting:
        note(waiting)
    if any(result.status == "finished" for result in results):
        _say_where_to_look(runs, grid.experiment)


def _show_search(reader: Reader, experiment: str, region: Region) -> None:
    try:
        show_region(reader, experiment)
    except InputError as error:  # no run can be judged yet
        note(str(error))
    echo(f"\n{state(region)}")


def _show_arms(frame: "pd.DataFrame", question: str) -> None:
    from sorl.analysis.compare import ABOUT, answer, readable, summarise

    arms = summarise(frame.sort_values("seed", kind="stable"))
    show(readable(arms))
    note(ABOUT)
    echo(f"\n{question}\n{answer(arms)}")


def _show_bad_ends(results: Sequence[Result]) -> None:
    """The cells that ended badly, and the last lines of their logs."""
    bad = [result for result in results if result.cause]
    if not bad:
        return
    echo("\nEnded badly")
    print_table(
        ("arm", "seed", "cause", "reason"), [(r.cell.arm, r.cell.seed, r.cause, r.reason) for r in bad]
    )
    for result in bad:
        log = result.folder / "console.log"
        note(f"\nsee {log}, or `sorl show {result.cell.run_id}`; it ends:")
        for line in tail(log)[-5:]:
            note(f"    {line}")


def _say_where_to_look(runs: Path, experiment: str) -> None:
    sorl = "sorl" if which("sorl") else sys.argv[0]  # a virtual environment need not be activated
    sorl += "" if runs == Path("runs") else f" --runs {quote(str(runs))}"
    note(f"\nLook closer:\n    {sorl} diagnose {experiment}    # what went wrong, and since which step")
    note(f"    {sorl} app    # the runs next to each other, down to the turn and the token")
