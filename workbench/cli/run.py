"""`sorl run FILE.toml`: train every cell of a grid; the same command resumes."""

import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from shutil import which

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
from sorl.spec import InputError
from sorl.store.connect import Busy, Full
from sorl.store.reader import Reader
from sorl.store.segments import now
from sorl.store.sync import sync
from sorl.store.text import tail

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
    import duckdb

    if find_spec("torch") is None:  # the cells import it, in processes of their own
        raise ModuleNotFoundError(name="torch")
    bell = None
    if notify:
        from sorl.diagnosis.alerts import Bell

        bell = Bell(notify, note)  # a wrong address is refused before anything starts
    if memory is not None and not 0 < memory < math.inf:
        raise InputError(f"--memory {memory:g} is no size; write GiB, for example --memory 4")
    runs = ctx.obj
    place = EXECUTORS[executor]()
    # a fresh search knows only the runs that end from now on
    history = History(runs, since=now() if fresh else None)

    load = partial(config.load, file, changes or [], history, arms or [])

    def sync_quietly() -> None:
        # Training continues whatever is wrong with the index; the sync at the end reports it.
        with suppress(InputError, duckdb.Error, OSError):
            sync(runs, seconds=0.0)
            if bell:
                bell.look(Reader(runs, wait=0.0))

    first = load()
    findings = fairness.planned(first.cells)
    if bell:
        bell.experiment = first.experiment
    if bell and runs.is_dir():
        sync(runs)
        bell.know(Reader(runs))
    tell([finding for finding in findings if finding.flagged], err=True)
    grid, results = run_rounds(
        load,
        runs,
        progress.Display,
        workers=workers,
        executor=place,
        fresh=fresh,
        sync=sync_quietly,
        limits=Limits(retries, hang_seconds, None if memory is None else int(memory * 2**30)),
    )
    try:
        sync(runs)
    except Busy as busy:
        note(f"waiting: {busy}")
        with suppress(Busy):  # another grid that ends now syncs the same rows: the table is worth the wait
            sync(runs, seconds=30.0)
    if bell:
        with suppress(InputError, duckdb.Error):
            bell.look(Reader(runs))
        bell.close()
    try:
        _report(ctx, grid, results)
    except (Busy, Full) as error:  # the cells have ended all the same
        note(f"the comparison is not shown: {error}; `sorl compare {grid.experiment}` shows it then")
        print_table(
            ("arm", "seed", "status", "reason"),
            [(r.cell.arm, r.cell.seed, r.status, r.reason) for r in results],
        )
    ended = {result.status for result in results}
    if "failed" in ended:
        raise Exit(_FAILED)
    if ended & {"interrupted", "queued", "elsewhere"}:
        raise Exit(_STOPPED)
    raise Exit(_FAILED if grid.waiting or (grid.region is not None and grid.region.unjudged > 0) else 0)


def _report(ctx: Context, grid: Grid, results: Sequence[Result]) -> None:
    """Print the table, the answer and the cells that ended badly on stdout; where to look on stderr."""
    from sorl.analysis.compare import ABOUT, answer, readable, summarise
    from sorl.analysis.runs import runs as runs_in

    reader = current(ctx.obj)
    cells = [result.cell for result in results]
    mine = [result.cell for result in results if result.status != "elsewhere"]
    # In the order of the grid file, not of the starts: what is said must read the same the next time.
    place = {cell.run_id: position for position, cell in enumerate(cells)}
    frame = runs_in(reader, grid.experiment, list(place)).sort_values(
        "run_id", key=lambda ids: ids.map(place)
    )
    findings = unfair(reader, frame[frame["run_id"].isin([cell.run_id for cell in mine])])
    if fairness.write_events(ctx.obj, mine, findings):
        current(ctx.obj)
    if grid.region is not None:
        try:
            show_region(reader, grid.experiment)
        except InputError as error:  # no run can be judged yet
            note(str(error))
        echo(f"\n{state(grid.region)}")
        findings = [finding for finding in findings if finding.flagged]
    else:
        arms = summarise(frame.sort_values("seed", kind="stable"))
        show(readable(arms))
        note(ABOUT)
        echo(f"\n{grid.question}\n{answer(arms)}")
    tell(findings)
    if bad := [result for result in results if result.cause]:
        echo("\nEnded badly")
        print_table(
            ("arm", "seed", "cause", "reason"), [(r.cell.arm, r.cell.seed, r.cause, r.reason) for r in bad]
        )
        for result in bad:
            log = result.folder / "console.log"
            note(f"\nsee {log}, or `sorl show {result.cell.run_id}`; it ends:")
            for line in tail(log)[-5:]:
                note(f"    {line}")
    if elsewhere := len(results) - len(mine):
        note(f"{elsewhere} of {len(results)} cells are trained by another process")
    if left := sum(result.status in ("interrupted", "queued") for result in results):
        note(f"stopped with {left} of {len(results)} cells left; the same command resumes")
    for waiting in grid.waiting:
        note(waiting)
    if any(result.status == "finished" for result in results):
        sorl = "sorl" if which("sorl") else sys.argv[0]  # a virtual environment need not be activated
        sorl += "" if ctx.obj == Path("runs") else f" --runs {quote(str(ctx.obj))}"
        note(
            f"\nLook closer:\n    {sorl} diagnose {grid.experiment}    # what went wrong, and since which"
            " step"
        )
        note(f"    {sorl} app    # the runs next to each other, down to the turn and the token")
