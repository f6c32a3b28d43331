"""`sorl diagnose RUN|FOLDER|FILE`: find the cause of a collapse, its first step, its evidence and a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Context, Exit, Option

from workbench.cli.shared import current, experiment_of, experiments, find, one_of, run_folder
from workbench.cli.tables import document, echo
from workbench.spec import InputError
from workbench.store import batches

if TYPE_CHECKING:
    from workbench.diagnosis.log import Log

LEVELS = ("info", "warning", "critical")
TOP = 10  # turns of a step that are listed
_LOG = "a log of another trainer, or a folder with some (docs/importing.md)"
_WHAT = f"A run id or a unique prefix, an experiment or its folder, or {_LOG}. Default: all runs that fell."
_FELL = (
    "SELECT run_id FROM run SEMI JOIN cell USING (run_id) WHERE coalesce(collapse_step, onset_low) IS NOT NULL "
    "ORDER BY experiment, arm, seed"
)


def diagnose(
    ctx: Context,
    what: str | None = Argument(None, metavar="RUN|FOLDER|FILE", help=_WHAT),
    step: int | None = Option(None, min=0, help="For one run: rank the turns and tokens that dominate this step."),
    form: str = one_of("--format", "text", "md", "json", default="text"),
    fail_on: str | None = one_of("--fail-on", *LEVELS, more=": exit with code 1 on a finding this severe or worse"),
) -> None:
    """Find the cause of a collapse, its first signal and its trajectory, with evidence. Works on live runs too."""
    from workbench.diagnosis import diagnose as judge_log
    from workbench.diagnosis.attribution import attribute

    if step is not None:
        if what is None:
            raise InputError("--step ranks the turns of one run: name the run too")
        folder = run_folder(ctx.obj, what)
        culprits = attribute(batches.read(folder, step))
        if form == "json":
            echo(document([judge_log.culprit_as_dict(one) for one in culprits[:TOP]]), nl=False)
        else:
            echo(judge_log.ranking(folder.name, step, culprits, TOP))
        return
    found = [judge_log.diagnose(log) for log in logs(ctx.obj, what)]
    if form == "json":
        echo(document([judge_log.as_dict(one) for one in found]), nl=False)
    else:
        echo("\n\n".join(map(judge_log.text if form == "text" else judge_log.markdown, found)))
    severities = [f.cause.severity for d in found for f in d.findings]
    if fail_on is not None and any(LEVELS.index(s) >= LEVELS.index(fail_on) for s in severities):
        raise Exit(1)


def logs(runs: Path, what: str | None) -> Iterator[Log]:
    """Yield the logs that an argument names: a file, the runs of an experiment or folder, one run, or all that fell."""
    from workbench.analysis.runs import runs as runs_in
    from workbench.diagnosis.log import of_run
    from workbench.diagnostics.collapse import judge
    from workbench.integrations import logs as other_trainers

    path = Path(what or "")
    if what is not None and path.suffix != ".toml" and (path.is_file() or (path.is_dir() and not _is_ours(path))):
        yield from other_trainers.logs(path, lambda scores, steps: judge(scores, steps=steps).columns())
        return
    if path.suffix in other_trainers.ENDINGS:
        raise InputError(f"there is no file '{what}'")
    if what is not None and path.is_dir():
        what = _name_of(path.resolve(), runs.resolve())
    reader = current(runs)
    if what is None:
        named = [row[0] for row in reader.rows(_FELL).rows]
        if not named:
            raise InputError("no run has fallen; name a run, an experiment or a log (`sorl ls` lists the runs)")
    elif (name := experiment_of(what)) in experiments(reader):
        named = list(runs_in(reader, name)["run_id"])
    else:
        named = [find(reader, what)]
    for run_id in named:
        with reader.together():  # the queries of one diagnosis
            yield of_run(reader, str(run_id), runs)


def _is_ours(folder: Path) -> bool:
    """Return whether a folder is that of a run or holds folders of runs, be they empty."""
    return any(next(folder.glob(form), None) for form in ("segments", "*/segments", "config.toml", "experiment.toml"))


def _name_of(folder: Path, runs: Path) -> str:
    if runs in (folder.parent, folder.parent.parent):
        return folder.name
    kept = any((child / "segments").is_dir() for child in folder.iterdir())
    if not kept and not (folder / "segments").is_dir():
        raise InputError(f"'{folder}' holds no run; a run's folder has segments/ in it")
    home = folder.parent if kept else folder.parent.parent
    raise InputError(f"'{folder}' lies in another runs folder; type: sorl --runs {home} diagnose {folder.name}")
