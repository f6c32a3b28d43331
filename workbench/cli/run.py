"""`sorl run FILE.toml`: train every cell of a grid; the same command resumes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.shared import Arms, Changes, echo, grid_of, runs_of
from workbench.cli.tables import print_table
from workbench.spec import InputError

if TYPE_CHECKING:
    from workbench.grid.config import Grid
    from workbench.grid.guard import Finding
    from workbench.grid.run import Limits, Result
    from workbench.store.reader import Reader

_FAILED, _STOPPED = 1, 130  # exit codes; 130 is what a shell calls "ended by Ctrl-C"
_GIB = 2**30
_LAST_LINES = 5  # of the console log of a cell that ended badly


def run(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Grid file.", show_default=False)],
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at a time; default: one core for each thread of a run.", show_default=False),
    ] = None,
    changes: Changes = None,
    arms: Arms = None,
    executor: Annotated[str, typer.Option(help="Where cells train: local, or on a Ray cluster (ray).")] = "local",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Train every cell from the start, in new folders; nothing is deleted.")
    ] = False,
    retries: Annotated[int, typer.Option(min=0, help="Retries of a failed cell, each from its last checkpoint.")] = 1,
    hang_seconds: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Kill a cell that shows no progress for so long; 0 = never."),
    ] = 600,
    memory: Annotated[
        float | None,
        typer.Option(metavar="GIB", help="Kill a cell whose processes use more memory than this.", show_default=False),
    ] = None,
) -> None:
    """Run a grid. The same command resumes: it skips finished cells and continues the others from their checkpoints."""
    from workbench.grid.run import Limits

    if memory is not None and not 0 < memory < math.inf:
        raise InputError(f"--memory {memory:g} is no size; write GiB, for example --memory 4")
    limits = Limits(retries, hang_seconds, None if memory is None else int(memory * _GIB))
    code = train(
        file, runs_of(ctx), workers=workers, changes=changes or [], arms=arms or [], executor=executor, fresh=fresh,
        limits=limits,
    )  # fmt: skip
    raise typer.Exit(code)


def train(
    file: Path,
    runs: Path,
    *,
    workers: int | None = None,
    changes: Sequence[str] = (),
    arms: Sequence[str] = (),
    executor: str = "local",
    fresh: bool = False,
    limits: Limits | None = None,
) -> int:
    """Return the command without the parsing of its options; return the exit code."""
    import duckdb

    from workbench.cli.results import settle, warn
    from workbench.cli.shared import current
    from workbench.grid import progress
    from workbench.grid.folder import History, now
    from workbench.grid.process import executor_of
    from workbench.grid.run import run_rounds
    from workbench.store.connect import Busy
    from workbench.store.sync import sync

    place = executor_of(executor)
    began: datetime | None = now() if fresh else None  # a fresh search knows only the runs that end from now on
    history = History(runs, since=began)
    warn(grid_of(file, changes, history, arms).cells)

    def begin(grid: Grid) -> None:
        if grid.region is not None:
            echo(grid.region.where(), err=True)

    def sync_quietly() -> None:
        # Training continues whatever is wrong with the index; the sync at the end reports it.
        with suppress(InputError, duckdb.Error, OSError):
            sync(runs, seconds=0.0)

    grid, results = run_rounds(
        lambda: grid_of(file, changes, history, arms), runs, progress.watch, begin,
        workers=workers, executor=place, limits=limits, fresh=fresh, sync=sync_quietly,
    )  # fmt: skip
    with suppress(Busy):  # another grid that ends now syncs the same rows: the table is worth the wait
        sync(runs)
    reader = current(runs)
    mine = [result.cell for result in results if result.status != "elsewhere"]
    _report(grid, reader, results, settle(runs, reader, grid.experiment, mine) if mine else [])
    for line in grid.waiting:
        echo(str(line), err=True)
    stuck = grid.region is not None and grid.region.unjudged > 0
    if any(r.status == "failed" for r in results):
        return _FAILED
    if any(r.status in ("interrupted", "queued", "elsewhere") for r in results):
        return _STOPPED
    return _FAILED if grid.waiting or stuck else 0


def _report(grid: Grid, reader: Reader, results: Sequence[Result], findings: Sequence[Finding]) -> None:
    """Print the table, the answer and the cells that ended badly on stdout; where to look on stderr."""
    from workbench.analysis.compare import answer, readable, summary
    from workbench.cli.compare import report
    from workbench.cli.results import tell
    from workbench.cli.tables import show
    from workbench.store.text import tail

    if grid.region is not None:
        report(grid, reader)
        findings = [finding for finding in findings if finding.flagged]
    else:
        frame = summary(reader, grid.experiment, [result.cell.run_id for result in results])
        order = {arm: i for i, arm in enumerate(grid.arms)}
        frame = frame.sort_values("arm", key=lambda arms: arms.map(order), kind="stable")
        show(readable(frame))
        echo(f"\n{grid.question}\n{answer(frame)}")
    tell(findings)
    if bad := [result for result in results if result.cause]:
        echo("\nEnded badly")
        print_table(("arm", "seed", "cause", "reason"), [(r.cell.arm, r.cell.seed, r.cause, r.reason) for r in bad])
        for result in bad:
            log = result.folder / "console.log"
            echo(f"\nsee {log}, or `sorl show {result.cell.run_id}`; it ends:", err=True)
            for line in tail(log)[-_LAST_LINES:]:
                echo(f"    {line}", err=True)
    if elsewhere := sum(result.status == "elsewhere" for result in results):
        echo(f"{elsewhere} of {len(results)} cells are trained by another process", err=True)
    if left := sum(result.status in ("interrupted", "queued") for result in results):
        echo(f"stopped with {left} of {len(results)} cells left; the same command resumes", err=True)
