"""`sorl bench`: start the benchmarks (bench/) and studies (studies/) of a clone; they are not installed."""

import sys
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType

from typer import Argument, Context, Option

from sorl.cli.shared import number
from sorl.cli.tables import echo
from sorl.spec import InputError, nearest

CLONE = Path(__file__).parents[2]
STUDIES = {
    "diagnose": "studies.diagnosis",
    "attribution": "studies.attribution",
    "warning": "studies.early_warning.page",
    "search": "studies.search",
    "scalars": "studies.scalar_logs.bench",
    "logs": "studies.logs.bench",
    "audit": "studies.unknown_bugs.count",
    "forks": "studies.interventions",
}
PARTS = (
    "rollout",
    "update",
    "mixture",
    "logging",
    "ingest",
    "packing",
    "vocabulary",
    "retrieval",
    "replay",
    "shares",
    "live",
    "browse",
    "trl",
    "llm",
)
ON_REQUEST = ("live", "browse", "llm")  # run only if named: minutes, a browser, a model from `make llm`
_FROM = (
    "Data of a study: scored cases (diagnose, attribution, scalars, logs, audit, forks), results of"
    " `sorl report --export` (warning, search) or a corpus (warning). Repeatable, except for attribution."
)


def bench(
    ctx: Context,
    study: str | None = Argument(None, metavar=f"[{'|'.join(STUDIES)}]", help="A study."),
    experiments: list[str] | None = Argument(None, metavar="[EXPERIMENT]...", help="For warning and search."),
    only: str | None = Option(None, metavar="PART,PART", help=f"Some of: {', '.join(PARTS)}."),
    rounds: int = number(
        7,
        "--rounds",
        least=1,
        most=10_000,
        why="each measures every part once more, on both sides",
        what="Repetitions of each side, alternating.",
    ),
    output: Path | None = Option(
        None, metavar="FILE", help="Also write the samples here: JSON; Parquet for a study."
    ),
    files: list[Path] | None = Option(None, "--from", metavar="FILE.parquet", help=_FROM),
    threads: int = number(
        1, "--threads", least=1, most=1024, why="no machine has so many", what="Torch threads of both sides."
    ),
    size: str = Option(
        "1000x10000x8", metavar="RUNSxSTEPSxTURNS", help="browse: size of the synthetic database."
    ),
    data: Path | None = Option(None, metavar="FOLDER", help="browse: keep the synthetic database here."),
) -> None:
    """Measure speed against baselines, or rerun a study. Needs a clone of the repository.

    diagnose: how often `sorl diagnose` names the injected fault, on the finished runs of fault_lab and
    fault_lab_healthy. attribution: how often it names the turn and the tokens of a planted fault. warning:
    how early and how often detectors warn of a collapse, and how often wrongly; --output keeps the runs as a
    corpus. search: how many runs of a full grid the search of a region needs, and how far its boundaries are
    off. scalars: how often the scalar log of another trainer gets the right cause, and how often a healthy
    one a false alarm. logs: how often logs of real runs, and generated ones in every format and naming, are
    read and judged rightly, next to rldoctor and a plain rule. audit: how often audit and diagnosis find bugs
    that nobody listed, on runs that it trains into unknown_bugs (half an hour). forks: how often forks
    survive once the fault is removed, and once something harmless is; it trains the runs (hours).

    The parts live and browse, which check the latency of the app, run only if named with --only.
    """
    if study is not None and study not in STUDIES:
        known = ", ".join(STUDIES)
        raise InputError(
            f"sorl bench '{study}' is unknown{nearest(study, STUDIES)}; there is: {known}, and --only"
        )
    if (module := from_clone(STUDIES[study] if study else "bench.main")) is None:
        raise InputError(
            "benchmarks and studies are not installed: run `sorl bench` from a clone of the repository"
        )
    if study is None:
        module.main(ctx.obj, only, rounds, output, threads, size, data)
        return
    given = {"runs": ctx.obj, "experiments": experiments or [], "files": files or [], "output": output}
    taken = signature(module.main).parameters
    if experiments and "experiments" not in taken:
        raise InputError(f"sorl bench {study} takes no experiment, and got '{experiments[0]}'")
    echo(module.main(**{name: given[name] for name in taken}))


def from_clone(name: str) -> ModuleType | None:
    """Import a module of bench/ or studies/; None without a clone of the repository, as they are not
    installed.
    """
    if not (CLONE / f"{name.replace('.', '/')}.py").is_file():
        return None
    sys.path[:] = dict.fromkeys([str(CLONE), *sys.path])
    return import_module(name)
