"""`sorl bench`: speed, each figure beside its baseline, both measured in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.benchmarks import ON_REQUEST, PARTS
from workbench.cli.cells import runs_of
from workbench.cli.text import echo
from workbench.spec import InputError, nearest

if TYPE_CHECKING:
    from workbench.cli.benchmarks.crowd import Size

SCORES = ("diagnose", "attribution", "warning", "search")


def bench(
    ctx: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[diagnose|attribution|warning|search]",
            help="How often `sorl diagnose` is right: about the runs of the fault lab, and about who carries a spike; "
            "how well a collapse is foreseen; what a search needs of a full grid.",
            show_default=False,
        ),
    ] = None,
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EXPERIMENT]...",
            help="warning, search: the runs to evaluate, beside those of --from.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="PART,PART", help=f"Some of: {', '.join(PARTS)}.", show_default=False)
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions of each side, in turn.")] = 7,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write every sample here (JSON; of scores Parquet).", show_default=False
        ),
    ] = None,
    shipped: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE.parquet",
            help="diagnose, attribution: count the cases of it. warning, search: runs of "
            "`sorl report --export` (warning: or of a corpus). Again for more, not of attribution.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Torch threads, both sides.")] = 1,
    size: Annotated[
        str, typer.Option(metavar="RUNSxSTEPSxTURNS", help="browse: rows that are made for it.")
    ] = "1000x10000x8",
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="browse: make the rows there and keep them.", show_default=False),
    ] = None,
) -> None:
    """Measure rollout, update, a whole iteration, logging and ingest, each beside its baseline.

    `sorl bench diagnose` scores the diagnosis instead: on the finished runs of fault_lab and fault_lab_healthy, or
    --from a file of such scores. `sorl bench attribution` plants faults in batches of its own and counts how often
    the turn and the tokens are named that carry them. `sorl bench warning` evaluates the detectors of early warning on
    finished runs; --output keeps the runs as a corpus. `sorl bench search` holds the search of a region against a full
    grid: how many of its runs it would have asked for, and how far apart the boundaries are.

    Parts live and browse run when they are named: they hold the app to its bars.
    """
    if what is not None:
        if what not in SCORES:
            known = ", ".join(SCORES)
            raise InputError(f"sorl bench '{what}' is unknown{nearest(what, SCORES)}; there is: {known}, and --only")
        from workbench.cli import scored

        if what == "warning":
            scored.warned(runs_of(ctx), experiments or [], shipped or [], output)
            return
        if what == "search":
            from workbench.cli.searched import searched

            searched(runs_of(ctx), experiments or [], shipped or [])
            return
        if experiments:
            raise InputError(f"sorl bench {what} takes no experiment, and got '{experiments[0]}'")
        if what == "diagnose":
            scored.scored(runs_of(ctx), shipped or [], output)
            return
        if len(shipped or []) > 1:
            raise InputError("sorl bench attribution counts the cases of one --from")
        scored.attributed(shipped[0] if shipped else None, output)
        return
    parts = chosen(only)
    if output is not None and not output.parent.is_dir():
        raise InputError(f"no folder '{output.parent}' for --output {output}; make it first")
    from workbench.cli.benchmarks.crowd import Size

    measured(runs_of(ctx), parts, rounds, output, threads, size=Size.read(size), data=data)


def chosen(only: str | None) -> list[str]:
    """The parts to measure: those named, in the suite's order; without names all that this machine can run."""
    if only is None:
        from workbench.cli.benchmarks import trl

        reason = trl.missing()
        if reason:
            echo(f"without trl: {reason}", err=True)
        return [part for part in PARTS if part not in ON_REQUEST and (part != "trl" or not reason)]
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in PARTS:
            raise InputError(f"--only '{name}' is no part{nearest(name, PARTS)}; there is: {', '.join(PARTS)}")
    if not names:
        raise InputError(f"--only names no part; there is: {', '.join(PARTS)}")
    return [part for part in PARTS if part in names]


def measured(
    runs: Path, parts: list[str], rounds: int, output: Path | None = None, threads: int = 1, *,
    size: Size | None = None, data: Path | None = None,
) -> None:  # fmt: skip
    """Run the benchmark, print the tables, write the JSON."""
    import json

    from workbench.cli.benchmarks import report, suite
    from workbench.cli.benchmarks.browse import Browse
    from workbench.cli.benchmarks.crowd import Size
    from workbench.cli.benchmarks.scene import defaults

    crowd = Browse(size or Size(), data)
    results = suite.run(defaults(threads), runs / ".cache", parts, rounds, lambda line: echo(line, err=True), crowd)
    if output is not None:
        output.write_text(json.dumps(report.as_json(results), indent=2) + "\n")
    report.show(results)
