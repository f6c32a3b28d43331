"""`sorl diagnose RUN|FOLDER|FILE`: what went wrong, since when, how sure, and what to try."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.shared import echo

if TYPE_CHECKING:
    from workbench.diagnosis.finding import Diagnosis
    from workbench.diagnosis.log import Log

FORMATS = ("text", "md", "json")
LEVELS = ("info", "warning", "critical")
TOP = 10  # turns of a step that are listed


def diagnose(
    ctx: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FOLDER|FILE",
            help="A run's id or the beginning of one, an experiment or its folder, or the log of another trainer "
            "(.jsonl, .csv, .parquet, trainer_state.json).",
            show_default=False,
        ),
    ],
    step: Annotated[
        int | None,
        typer.Option(
            min=0, help="Of one run: who carries this step, turn by turn and with its tokens.", show_default=False
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="text, md or json.")] = "text",
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="Exit code 1 on a finding of this level (info, warning, critical) or worse."
        ),
    ] = None,
) -> None:
    """Name the cause, the first signal and the culprit of what went wrong, with the evidence; of live runs as well."""
    from workbench.diagnosis.diagnose import diagnose as judged
    from workbench.spec import InputError, nearest

    if form not in FORMATS:
        raise InputError(f"--format '{form}' is unknown{nearest(form, FORMATS)}; allowed: {', '.join(FORMATS)}")
    if fail_on is not None and fail_on not in LEVELS:
        raise InputError(f"--fail-on '{fail_on}' is unknown{nearest(fail_on, LEVELS)}; allowed: {', '.join(LEVELS)}")
    if step is not None:
        echo(carriers(str(ctx.obj), what, step, form))
        return
    found = [judged(log) for log in logs(Path(ctx.obj), what)]
    echo(rendered(found, form))
    severities = [f.cause.severity for d in found for f in d.findings]
    if fail_on is not None and any(LEVELS.index(s) >= LEVELS.index(fail_on) for s in severities):
        raise typer.Exit(1)


def carriers(runs: str, run: str, step: int, form: str) -> str:
    """The turns of a stored step that its other tokens do not explain, as text (md the same) or JSON."""
    from workbench.cli.replay import run_folder
    from workbench.diagnosis.attribution import attribute
    from workbench.diagnosis.diagnose import culprit_as_dict, ranking
    from workbench.store import batches

    folder = run_folder(runs, run)
    found = attribute(batches.read(folder, step))
    if form == "json":
        return json.dumps([culprit_as_dict(one) for one in found[:TOP]], indent=2)
    return ranking(folder.name, step, found, TOP)


def logs(runs: Path, what: str) -> Iterator[Log]:
    """The logs that the word names: a file, the runs of an experiment or folder, or one run."""
    from workbench.analysis.runs import runs as runs_in
    from workbench.cli.shared import current
    from workbench.cli.show import find
    from workbench.diagnosis import foreign
    from workbench.diagnosis.log import of_run
    from workbench.spec import InputError

    path = Path(what)
    if path.is_file() and path.suffix != ".toml":
        yield foreign.read(path, judge)
        return
    if path.suffix in foreign.FORMATS:
        raise InputError(f"there is no file '{what}'")
    if path.is_dir():
        what = _named(path.resolve(), runs.resolve())
    reader = current(runs)
    experiments = [row[0] for row in reader.rows("SELECT DISTINCT experiment FROM run").rows]
    name = Path(what).stem if what.endswith(".toml") else what
    if name in experiments:
        for run_id in runs_in(reader, name)["run_id"]:
            with reader.together():  # the questions of one diagnosis
                yield of_run(reader, str(run_id), runs)
        return
    with reader.together():
        yield of_run(reader, find(reader, what), runs)


def _named(folder: Path, runs: Path) -> str:
    """The experiment or run whose folder this is; InputError for one that lies in another runs folder, or is none."""
    from workbench.spec import InputError

    if runs in (folder.parent, folder.parent.parent):
        return folder.name
    kept = any((child / "segments").is_dir() for child in folder.iterdir())
    if not kept and not (folder / "segments").is_dir():
        raise InputError(f"'{folder}' holds no run; a run's folder has segments/ in it")
    home = folder.parent if kept else folder.parent.parent
    raise InputError(f"'{folder}' lies in another runs folder; type: sorl --runs {home} diagnose {folder.name}")


def judge(scores: Sequence[float | None], steps: Sequence[int]) -> dict[str, Any]:
    """What the collapse rule says of a foreign log's scores, as columns of table `run`."""
    from workbench.diagnostics.collapse import judge as rule

    return rule(scores, steps=steps).columns()


def rendered(found: Sequence[Diagnosis], form: str) -> str:
    """The diagnoses in one of FORMATS."""
    from workbench.diagnosis.diagnose import as_dict, markdown, text

    if form == "json":
        return json.dumps([as_dict(one) for one in found], indent=2)
    write = text if form == "text" else markdown
    return "\n\n".join(write(one) for one in found)
