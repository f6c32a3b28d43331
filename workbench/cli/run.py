"""`sorl run FILE.toml`: train every cell of a grid; the same command goes on where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.cells import grid_of, runs_of
from workbench.spec import InputError

if TYPE_CHECKING:
    from workbench.grid.file import Grid
    from workbench.grid.run import Result
    from workbench.store.reader import Reader

_FAILED, _STOPPED = 1, 130  # exit codes; 130 is what a shell calls "ended by Ctrl-C"
_LOG_LINE = 200


def run(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Grid file.", show_default=False)],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: one a core.", show_default=False)
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change the base, e.g. learn.staleness=0; also seeds=[0].",
            show_default=False,
        ),
    ] = None,
    executor: Annotated[
        str, typer.Option(help="Where the runs go: local processes, or tasks of a Ray cluster (ray).")
    ] = "local",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete what these cells recorded before and start them anew.")
    ] = False,
) -> None:
    """Run a grid; the same command resumes: finished cells are skipped, the others go on from their checkpoints."""
    code = train(file, runs_of(ctx), workers=workers, changes=changes or [], executor=executor, fresh=fresh)
    raise typer.Exit(code)


def train(
    file: Path,
    runs: Path,
    *,
    workers: int | None = None,
    changes: Sequence[str] = (),
    executor: str = "local",
    fresh: bool = False,
) -> int:
    """The command without its options' parsing; returns the exit code."""
    import duckdb

    from workbench.cli.database import current
    from workbench.diagnostics import CATALOGUE
    from workbench.grid import progress
    from workbench.grid import run as grid_run
    from workbench.grid.executor import executor_of
    from workbench.store.sync import sync

    place = executor_of(executor)
    grid = grid_of(file, changes)
    if fresh:
        _forget(grid, runs)

    def sync_quietly() -> None:
        # Whatever is wrong with the index, training goes on; the sync at the end says it aloud.
        with suppress(InputError, duckdb.Error, OSError):
            sync(runs, CATALOGUE, seconds=0.0)

    results = grid_run.run(grid, runs, progress.watch(), workers=workers, executor=place, sync=sync_quietly)
    _report(grid, current(runs), results)
    if any(r.status == "failed" for r in results):
        return _FAILED
    return _STOPPED if any(r.status in ("interrupted", "queued") for r in results) else 0


def _forget(grid: Grid, runs: Path) -> None:
    """Delete the cells' folders; the next sync sees that their files are gone. InputError if one is being trained."""
    from workbench.grid import folder as run_folder

    folders = [f for f in (run_folder.folder_of(runs, cell) for cell in grid.cells) if f.exists()]
    claims = {folder: run_folder.claim(folder) for folder in folders}
    if held := [folder.name for folder, claim in claims.items() if claim is None]:
        raise InputError(f"--fresh cannot delete what another process trains: {', '.join(held)}; stop it first")
    for folder, claim in claims.items():
        run_folder.forget(folder)
        if claim is not None:
            claim.close()


def _report(grid: Grid, reader: Reader, results: Sequence[Result]) -> None:
    """The table and the answer on stdout; what went wrong, and where to look, on stderr."""
    from workbench.cli.tables import show
    from workbench.grid import guard
    from workbench.grid.folder import last_line
    from workbench.verdict.table import answer, readable, summary

    frame = summary(reader, grid.experiment, [cell.run_id for cell in grid.cells])
    order = {arm: i for i, arm in enumerate(grid.arms)}
    frame = frame.sort_values("arm", key=lambda arms: arms.map(order), kind="stable")
    show(readable(frame))
    typer.echo(f"\n{grid.question}\n{answer(frame)}")
    for note in guard.notes({cell.arm: cell.settings for cell in grid.cells}):
        typer.echo(f"Note: {note}.")
    for result in results:
        if result.status == "failed":
            log = result.folder / "console.log"
            typer.echo(f"failed: {result.cell.arm}, seed {result.cell.seed}: {result.reason}", err=True)
            if (line := last_line(log)[:_LOG_LINE]) and line not in result.reason:
                typer.echo(f"  last line of the log: {line}", err=True)
            typer.echo(f"  see {log}", err=True)
        elif result.status == "elsewhere":
            typer.echo(f"{result.cell.arm}, seed {result.cell.seed}: {result.reason}", err=True)
    left = sum(result.status in ("interrupted", "queued") for result in results)
    if left:
        typer.echo(f"stopped with {left} of {len(results)} cells to go; the same command resumes", err=True)
