"""`sorl diagnose RUN|FOLDER|FILE`: find the cause of a collapse, its first step, its evidence
and a remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Context, Exit, Option

from sorl.cli.shared import MAP, STANDARD_INPUT, current, experiment_of, experiments, find, one_of, run_folder
from sorl.cli.tables import document, echo, note_refused
from sorl.spec import InputError
from sorl.spec.settings import LADDER
from sorl.store import batches
from sorl.store.text import visible

if TYPE_CHECKING:
    from sorl.audit import Check
    from sorl.diagnosis.finding import Diagnosis
    from sorl.diagnosis.log import Log
    from sorl.importing.mapping import NameMap
from sorl.cli.audit import as_dict, checks, difference

_AUDIT = (
    "Recompute stored steps (ten seconds a run), or leave that out; default: for a single run, if torch is"
    " installed."
)
_TEST = "Fork the run before its fall without each cause that was found: who survives? (docs/forks.md)"
LEVELS = ("info", "warning", "critical")
TOP = 10  # turns of a step that are listed
_LOG = "a log of another trainer, a folder with some, or - for a pasted one (docs/importing.md)"
_WHAT = f"A run id or a unique prefix, an experiment or its folder, or {_LOG}. Default: all runs that fell."
_FELL = (
    "SELECT run_id FROM run SEMI JOIN cell USING (run_id) WHERE coalesce(collapse_step, onset_low) IS NOT"
    " NULL ORDER BY experiment, arm, seed"
)


def diagnose(
    ctx: Context,
    what: str | None = Argument(None, metavar="RUN|FOLDER|FILE", help=_WHAT),
    step: int | None = Option(
        None, min=0, help="For one run: rank the turns and tokens that dominate this step."
    ),
    form: str = one_of("--format", "text", "md", "json", default="text"),
    fail_on: str | None = one_of(
        "--fail-on", *LEVELS, more=": exit with code 1 on a finding this severe or worse"
    ),
    audit: bool | None = Option(None, "--audit/--quick", help=_AUDIT),
    test: bool = Option(False, "--test", help=_TEST),
    draws: int = Option(8, min=2, max=1000, help="With --test: children of each arm."),
    yes: bool = Option(False, "--yes", "-y", help="With --test: train without asking."),
    name_map: list[str] | None = MAP,
) -> None:
    """Find the cause of a collapse, its first signal and its trajectory, with evidence. Works on live runs
    too.

    The stored steps of a single run are audited too (`sorl audit`): a violated identity proves the cause that
    it defines. A cause whose removal saves forks of the run ranks highest (--test).
    """
    from sorl.diagnosis import report
    from sorl.diagnosis.attribution import attribute
    from sorl.diagnosis.diagnose import diagnose as diagnose_log

    if step is not None:
        if what is None:
            raise InputError("--step ranks the turns of one run: name the run too")
        folder = run_folder(ctx.obj, what)
        culprits = attribute(batches.read(folder, step))
        if form == "json":
            echo(document([report.culprit_as_dict(one) for one in culprits[:TOP]]), nl=False)
        else:
            echo(report.ranking(folder.name, step, culprits, TOP))
        return
    found = [diagnose_log(log) for log in logs(ctx.obj, what, name_map)]
    if test:
        from sorl.cli.fork import arms_file, intervene
        from sorl.diagnosis.log import of_run

        if len(found) != 1:
            raise InputError(f"--test forks one run, and these are {len(found)}: name one")
        log = found[0].log
        if log.folder is None or not (log.folder / "config.toml").is_file():
            echo(arms_file(found[0], draws), nl=False)
            return
        if not intervene(ctx.obj, found[0], draws, yes=yes):
            return
        found = [diagnose_log(of_run(current(ctx.obj), log.name, ctx.obj))]
    wanted = len(found) == 1 if audit is None else audit
    told = form == "text" and len(found) == 1
    if told and wanted:
        echo(report.headline(found[0]))  # the audit takes seconds, and this does not wait for it
    checked = [audited(ctx.obj, one.log, strict=audit is True) if wanted else None for one in found]
    judged = []
    for one, own_checks in zip(found, checked, strict=True):
        judged.append(diagnose_log(one.log, checks=own_checks) if own_checks else one)
    if form == "json":
        echo(document(list(map(_as_document, judged, checked))), nl=False)
    else:
        parts = [_in_full(one, own, form) for one, own in zip(judged, checked, strict=True)]
        whole = "\n\n".join(parts)
        echo(whole.removeprefix(f"{report.headline(found[0])}\n") if told and wanted else whole)
    severities = [finding.severity for one in judged for finding in one.findings]
    if fail_on is not None and any(LEVELS.index(s) >= LEVELS.index(fail_on) for s in severities):
        raise Exit(1)


def _as_document(diagnosis: Diagnosis, checks: Sequence[Check] | None) -> dict[str, Any]:
    """Return a diagnosis as JSON has it, with the checks of its audit if there was one."""
    from sorl.diagnosis import report

    audit = {} if checks is None else {"audit": [as_dict(check) for check in checks]}
    return report.as_dict(diagnosis) | audit


def _in_full(diagnosis: Diagnosis, checks: Sequence[Check] | None, form: str) -> str:
    """Return a diagnosis as text or Markdown, and what its audit found."""
    from sorl.diagnosis import report

    render = report.text if form == "text" else report.markdown
    is_broken = any(check.violated for check in checks or ())
    return "\n\n".join([render(diagnosis, is_broken), *in_words(diagnosis, checks)])


def audited(runs: Path, log: Log, strict: bool) -> list[Check] | None:
    """Return the checks of a run's stored steps; None where there are none, or torch is not installed."""
    if log.folder is None or not batches.steps(log.folder):
        return None
    if not strict and find_spec("torch") is None:
        return None
    return checks(runs, log.folder)


def in_words(said: Diagnosis, checks: Sequence[Check] | None) -> list[str]:
    """Say what the audit of a run's stored steps found, and what would tell the cause where nothing has named
    one.
    """
    tell = []
    if (
        not said.findings
        and said.log.onset is not None
        and said.log.folder
        and (said.log.folder / LADDER).is_dir()
    ):
        tell = [
            f"What would tell: sorl fork {visible(said.log.name)} (which change saves it, from before its"
            " fall)."
        ]
    if checks is None:
        return tell
    from sorl.audit import IDENTITIES

    steps = batches.ranges(sorted({check.step for check in checks if check.step >= 0}))
    broken = [check for check in checks if check.violated]
    if not broken:
        known = {check.identity for check in checks if not check.missing}
        lacking = [name for name in IDENTITIES if name in {c.identity for c in checks} - known]
        unchecked = f"; not checked: {', '.join(lacking)}" if lacking else ""
        return [
            (
                f"Audit of steps {steps}: all {len(known)} identities that could be checked hold{unchecked}"
                " (`sorl audit` lists them)."
            ),
            *tell,
        ]
    lines = [f"Audit of steps {steps}: the record contradicts itself."]
    first: dict[str, Check] = {}
    for check in broken:
        first.setdefault(check.identity, check)
    for check in first.values():
        at = "" if check.update is None else f", update {check.update}"
        words = f" ({difference(check)})" if difference(check) else ""
        lines.append(
            f"  {check.identity}, step {check.step}{at}: logged {check.logged:.4g}, must be"
            f" {check.expected:.4g}{words}. {IDENTITIES[check.identity].means.capitalize()}."
        )
    return ["\n".join(lines), *tell]


def logs(runs: Path, what: str | None, name_map: Sequence[str] | None = None) -> Iterator[Log]:
    """Yield the logs that an argument names: a file, the runs of an experiment or folder, one run, or all
    that fell.
    """
    from sorl.analysis.runs import runs as runs_in
    from sorl.diagnosis.log import of_run
    from sorl.importing.mapping import NameMap

    mapping = NameMap.of(name_map)
    if what is not None and _is_foreign(what):
        yield from _logs_of_others(what, mapping)
        return
    if mapping:
        raise InputError("--map names the metrics of a log of another trainer: give its file or folder too")
    path = Path(what or "")
    if what is not None and path.is_dir():
        what = _name_of(path.resolve(), runs.resolve())
    reader = current(runs)
    if what is None:
        named = [row[0] for row in reader.rows(_FELL).rows]
        if not named:
            raise InputError(
                "no run has fallen; name a run, an experiment or a log (`sorl ls` lists the runs)"
            )
    elif (name := experiment_of(what)) in experiments(reader):
        named = list(runs_in(reader, name)["run_id"])
    else:
        named = [find(reader, what)]
    for run_id in named:
        with reader.together():  # the queries of one diagnosis
            yield of_run(reader, str(run_id), runs)


def _is_foreign(what: str) -> bool:
    """Whether an argument names a log of another trainer. Raises InputError for a file that is not there."""
    from sorl.importing.logs import ENDINGS
    from sorl.importing.loose import LOOSE

    path = Path(what)
    if what == STANDARD_INPUT:
        return True
    if path.suffix == ".toml":
        return False
    if path.is_dir():
        # in a folder with runs
        ours = ("segments", "*/segments", "config.toml", "experiment.toml")
        return not any(next(path.glob(form), None) for form in ours)
    if path.suffix in (*ENDINGS, *LOOSE) and not path.is_file():
        raise InputError(f"there is no file '{what}'")
    return path.is_file()


def _logs_of_others(what: str, mapping: NameMap) -> Iterator[Log]:
    """Yield the logs in a file or folder of another trainer, or on standard input."""
    from sorl.importing.logs import logs as logs_in
    from sorl.importing.standard_input import spooled

    if what == STANDARD_INPUT:
        with spooled() as pasted:
            yield from logs_in(pasted, mapping=mapping)
        return
    refused: list[str] = []
    yield from logs_in(Path(what), refused, mapping)
    note_refused(refused)


def _name_of(folder: Path, runs: Path) -> str:
    if runs in (folder.parent, folder.parent.parent):
        return folder.name
    kept = any((child / "segments").is_dir() for child in folder.iterdir())
    if not kept and not (folder / "segments").is_dir():
        raise InputError(f"'{folder}' holds no run; a run's folder has segments/ in it")
    home = folder.parent if kept else folder.parent.parent
    raise InputError(
        f"'{folder}' lies in another runs folder; type: sorl --runs {home} diagnose {folder.name}"
    )
