"""`sorl bench`: speed, each figure beside its baseline, both measured in the same run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.cells import runs_of
from workbench.cli.text import echo
from workbench.spec import InputError, nearest

CLONE = Path(__file__).parents[2]
PARTS = ("rollout", "update", "logging", "ingest", "packing", "vocabulary", "retrieval", "replay", "shares", "live",
         "browse", "trl")  # fmt: skip
ON_REQUEST = ("live", "browse")  # left out where no part is named: minutes, a browser, tens of gigabytes
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
    _clone()
    if what is None:
        from bench.main import main

        main(runs_of(ctx), only, rounds, output, threads, size, data)
        return
    if what not in SCORES:
        known = ", ".join(SCORES)
        raise InputError(f"sorl bench '{what}' is unknown{nearest(what, SCORES)}; there is: {known}, and --only")
    if experiments and what in ("diagnose", "attribution"):
        raise InputError(f"sorl bench {what} takes no experiment, and got '{experiments[0]}'")
    if what == "attribution" and len(shipped or []) > 1:
        raise InputError("sorl bench attribution counts the cases of one --from")
    echo(_score(what, runs_of(ctx), experiments or [], shipped or [], output))


def _score(what: str, runs: Path, experiments: list[str], files: list[Path], output: Path | None) -> str:
    """Return the page of one study."""
    if what == "diagnose":
        from studies import diagnosis

        return diagnosis.main(runs, files, output)
    if what == "attribution":
        from studies import attribution

        return attribution.main(files[0] if files else None, output)
    if what == "warning":
        from studies.early_warning import page

        return page.main(runs, experiments, files, output)
    from studies import search

    return search.main(runs, experiments, files)


def _clone() -> None:
    """Make the folders bench/ and studies/ importable. Raises InputError where sorl was installed without them."""
    if not (CLONE / "bench" / "main.py").is_file():
        raise InputError("benchmarks and studies are not installed: run `sorl bench` from a clone of the repository")
    if str(CLONE) not in sys.path:
        sys.path.insert(0, str(CLONE))
