"""`sorl run FILE.toml`: train every cell of a grid; the same command goes on where it stopped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.cells import Arms, Changes, grid_of, runs_of
from workbench.cli.text import echo
from workbench.spec import InputError

if TYPE_CHECKING:
    from workbench.grid.file import Grid
    from workbench.grid.guard import Finding
    from workbench.grid.run import Limits, Result
    from workbench.store.reader import Reader

_FAILED, _STOPPED = 1, 130  # exit codes; 130 is what a shell calls "ended by Ctrl-C"
_GIB = 2**30


def run(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Grid file.", show_default=False)],
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at a time; default: a core for each thread of each run.", show_default=False),
    ] = None,
    changes: Changes = None,
    arms: Arms = None,
    executor: Annotated[
        str, typer.Option(help="Where the runs go: local processes, or actors of a Ray cluster (ray).")
    ] = "local",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start every cell from nothing, in new folders; nothing is deleted.")
    ] = False,
    retries: Annotated[
        int, typer.Option(min=0, help="More attempts for a cell that fails, each from its last checkpoint.")
    ] = 1,
    hang_seconds: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Kill a cell after so long without a sign of life; 0 = never."),
    ] = 600,
    memory: Annotated[
        float | None,
        typer.Option(metavar="GIB", help="Kill a cell whose processes hold more memory than this.", show_default=False),
    ] = None,
) -> None:
    """Run a grid; the same command resumes: finished cells are skipped, the others go on from their checkpoints."""
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
    """The command without its options' parsing; returns the exit code."""
    import duckdb

    from workbench.cli import fairness
    from workbench.cli.database import current
    from workbench.grid import progress
    from workbench.grid.history import History
    from workbench.grid.process import executor_of
    from workbench.grid.region import where
    from workbench.grid.run import run_rounds
    from workbench.store.connect import Busy
    from workbench.store.sync import sync

    place = executor_of(executor)
    history = History(runs)
    if fresh:
        history.forget()
    fairness.warn(grid_of(file, changes, history, arms).cells)

    def tell(grid: Grid) -> None:
        if grid.region is not None:
            echo(where(grid.region), err=True)

    def sync_quietly() -> None:
        # Whatever is wrong with the index, training goes on; the sync at the end says it aloud.
        with suppress(InputError, duckdb.Error, OSError):
            sync(runs, seconds=0.0)

    grid, results = run_rounds(
        lambda: grid_of(file, changes, history, arms), runs, progress.watch, history, tell,
        workers=workers, executor=place, limits=limits, fresh=fresh, sync=sync_quietly,
    )  # fmt: skip
    with suppress(Busy):  # another grid that ends now syncs the same rows: the table is worth the wait
        sync(runs)
    reader = current(runs)
    mine = [result.cell for result in results if result.status != "elsewhere"]
    _report(grid, reader, results, fairness.settle(runs, reader, grid.experiment, mine) if mine else [])
    for line in grid.waiting:
        echo(str(line), err=True)
    stuck = grid.region is not None and grid.region.unjudged > 0
    if any(r.status == "failed" for r in results):
        return _FAILED
    if any(r.status in ("interrupted", "queued", "elsewhere") for r in results):
        return _STOPPED
    return _FAILED if grid.waiting or stuck else 0


def _report(grid: Grid, reader: Reader, results: Sequence[Result], findings: Sequence[Finding]) -> None:
    """The table, the answer and the cells that ended badly on stdout; where to look on stderr."""
    from workbench.analysis.compare import answer, readable, summary
    from workbench.cli import fairness
    from workbench.cli.region import report
    from workbench.cli.tables import show
    from workbench.cli.text import print_table

    if grid.region is not None:
        report(grid, reader)
        findings = [finding for finding in findings if finding.flagged]
    else:
        frame = summary(reader, grid.experiment, [result.cell.run_id for result in results])
        order = {arm: i for i, arm in enumerate(grid.arms)}
        frame = frame.sort_values("arm", key=lambda arms: arms.map(order), kind="stable")
        show(readable(frame))
        echo(f"\n{grid.question}\n{answer(frame)}")
    fairness.tell(findings)
    if bad := [result for result in results if result.cause]:
        echo("\nEnded badly")
        print_table(("arm", "seed", "cause", "reason"), [(r.cell.arm, r.cell.seed, r.cause, r.reason) for r in bad])
        for result in bad:
            echo(f"see {result.folder / 'console.log'}, or `sorl show {result.cell.run_id}`", err=True)
    if elsewhere := sum(result.status == "elsewhere" for result in results):
        echo(f"{elsewhere} of {len(results)} cells are trained by another process", err=True)
    if left := sum(result.status in ("interrupted", "queued") for result in results):
        echo(f"stopped with {left} of {len(results)} cells to go; the same command resumes", err=True)
