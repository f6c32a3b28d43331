"""`sorl bench`: start the benchmarks (bench/) and studies (studies/) of a clone; they are not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.shared import echo, runs_of
from workbench.spec import InputError, nearest

CLONE = Path(__file__).parents[2]
STUDIES = ("diagnose", "attribution", "warning", "search")
PARTS = ("rollout", "update", "logging", "ingest", "packing", "vocabulary", "retrieval", "replay", "shares", "live",
         "browse", "trl")  # fmt: skip
ON_REQUEST = ("live", "browse")  # run only if named: minutes, a browser, tens of gigabytes


def bench(
    ctx: typer.Context,
    study: Annotated[
        str | None, typer.Argument(metavar="[diagnose|attribution|warning|search]", help="A study.", show_default=False)
    ] = None,
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EXPERIMENT]...", help="warning, search: experiments to evaluate.", show_default=False),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="PART,PART", help=f"Some of: {', '.join(PARTS)}.", show_default=False)
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions of each side, in turn.")] = 7,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write every sample here: JSON, Parquet for a study.", show_default=False
        ),
    ] = None,
    shipped: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE.parquet",
            help="Read what a study counts from this file: scored cases (diagnose, attribution), results of `sorl "
            "report --export` (warning, search) or a corpus (warning). Repeat for more than one, but for attribution.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Torch threads of both sides.")] = 1,
    size: Annotated[
        str, typer.Option(metavar="RUNSxSTEPSxTURNS", help="browse: size of the synthetic database.")
    ] = "1000x10000x8",
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="browse: keep the synthetic database here.", show_default=False),
    ] = None,
) -> None:
    """Measure speed, each part against its baseline, or rerun a study. Needs a clone of the repository.

    diagnose: how often `sorl diagnose` names the injected fault, on the finished runs of fault_lab and
    fault_lab_healthy. attribution: how often it names the turn and the tokens of a planted fault. warning: how soon,
    how often and how wrongly detectors warn of a collapse; --output keeps the runs as a corpus. search: how many runs
    of a full grid the search of a region needs, and how far its boundaries are off.

    The parts live and browse, which hold the app to its latency bars, run only if named with --only.
    """
    if not (CLONE / "bench" / "main.py").is_file():
        raise InputError("benchmarks and studies are not installed: run `sorl bench` from a clone of the repository")
    if str(CLONE) not in sys.path:
        sys.path.insert(0, str(CLONE))
    if study is None:
        from bench.main import main

        main(runs_of(ctx), only, rounds, output, threads, size, data)
        return
    if study not in STUDIES:
        known = ", ".join(STUDIES)
        raise InputError(f"sorl bench '{study}' is unknown{nearest(study, STUDIES)}; there is: {known}, and --only")
    if experiments and study in ("diagnose", "attribution"):
        raise InputError(f"sorl bench {study} takes no experiment, and got '{experiments[0]}'")
    if study == "attribution" and len(shipped or []) > 1:
        raise InputError("sorl bench attribution counts the cases of one --from")
    echo(_page(study, runs_of(ctx), experiments or [], shipped or [], output))


def _page(study: str, runs: Path, experiments: list[str], files: list[Path], output: Path | None) -> str:
    if study == "diagnose":
        from studies import diagnosis

        return diagnosis.main(runs, files, output)
    if study == "attribution":
        from studies import attribution

        return attribution.main(files[0] if files else None, output)
    if study == "warning":
        from studies.early_warning import page

        return page.main(runs, experiments, files, output)
    from studies import search

    return search.main(runs, experiments, files)
