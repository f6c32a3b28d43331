"""`sorl diagnose RUN|FOLDER|FILE`: find the cause of a collapse, its first step, its evidence
and a remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typer import Argument, Context, Exit, Option

from sorl.cli.audit import as_document, checks
from sorl.cli.shared import MAP, STANDARD_INPUT, current, experiment_of, experiments, find, one_of, run_folder
from sorl.cli.tables import document, echo, note_refused
from sorl.spec import InputError
from sorl.spec.names import LADDER
from sorl.store import batches
from sorl.store.reader import Reader
from sorl.store.text import visible

if TYPE_CHECKING:
    from sorl.audit import Check
    from sorl.diagnosis.finding import Diagnosis
    from sorl.diagnosis.log import Log
    from sorl.importing.mapping import NameMap

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

    A single run is audited too (`sorl audit`): a violated identity leads, or proves the cause that explains
    it. A cause whose removal saves forks of the run ranks next (--test).
    """
    if step is not None:
        _rank_turns(ctx.obj, what, step, form)
        return
    failures: dict[str, str] = {}
    diagnoses = list(_diagnoses(logs(ctx.obj, what, failures, name_map), failures))
    if test:
        tested = _tested(ctx.obj, diagnoses, draws, yes=yes)
        if tested is None:
            return
        diagnoses = [tested]
    answers = _show_answers(ctx.obj, diagnoses, failures, form, audit)
    if _is_alarming(answers, fail_on) or (failures and not answers):
        raise Exit(1)


def _is_alarming(answers: Iterable[_Answer], fail_on: str | None) -> bool:
    """Whether a finding is as severe as `fail_on`, or worse."""
    if fail_on is None:
        return False
    findings = chain.from_iterable(answer.diagnosis.findings for answer in answers)
    return any(LEVELS.index(finding.severity) >= LEVELS.index(fail_on) for finding in findings)


def _show_answers(
    runs: Path, diagnoses: Sequence[Diagnosis], failures: Mapping[str, str], form: str, audit: bool | None
) -> list[_Answer]:
    """Audit what is to be audited, and print the diagnoses; a terminal gets its first lines before the
    audit.
    """
    from sorl.diagnosis.sentences import opening

    is_single = len(diagnoses) == 1 and not failures
    is_audited = is_single if audit is None else audit
    beginning = ""
    if is_single and is_audited and form == "text" and _can_be_audited(diagnoses[0].log):
        beginning = "\n".join(opening(diagnoses[0]))
        echo(beginning)  # the audit takes seconds, and this does not wait for it
    answers = [_answer(runs, diagnosis, is_audited, strict=audit is True) for diagnosis in diagnoses]
    if form == "json":
        echo(document([*map(_as_document, answers), *_failed_documents(failures)]), nl=False)
        return answers
    paragraphs = [_in_full(answer, form) for answer in answers]
    paragraphs += [
        f"{visible(name)} could not be diagnosed: {visible(why)}" for name, why in failures.items()
    ]
    text = "\n\n".join(paragraphs)
    if beginning and not text.startswith(f"{beginning}\n"):
        text = f"After the audit: {text}"
    echo(text.removeprefix(f"{beginning}\n") if beginning else text)
    return answers


def _rank_turns(runs: Path, what: str | None, step: int, form: str) -> None:
    """Print the turns and tokens that dominate a stored step of one run."""
    from sorl.diagnosis import report
    from sorl.diagnosis.attribution import attribute

    if what is None:
        raise InputError("--step ranks the turns of one run: name the run too")
    folder = run_folder(runs, what)
    culprits = attribute(batches.read(folder, step))
    if form == "json":
        echo(document([report.culprit_as_dict(culprit) for culprit in culprits[:TOP]]), nl=False)
    else:
        echo(report.ranking(folder.name, step, culprits, TOP))


def _diagnoses(logs_to_read: Iterable[Log], failures: dict[str, str]) -> Iterator[Diagnosis]:
    """Yield the diagnosis of each log; of one that raises the reason is put into `failures`."""
    from sorl.diagnosis.diagnose import diagnose as diagnose_log
    from sorl.diagnosis.diagnose import noting

    for log in logs_to_read:
        diagnosis = None
        with noting(failures, log.name, InputError):
            diagnosis = diagnose_log(log)
        if diagnosis is not None:
            yield diagnosis


def _tested(runs: Path, diagnoses: Sequence[Diagnosis], draws: int, *, yes: bool) -> Diagnosis | None:
    """Return the diagnosis of a run after forks without its causes; None where none were trained."""
    from sorl.cli.interventions import arms_file, intervene
    from sorl.diagnosis.diagnose import diagnose as diagnose_log
    from sorl.diagnosis.log import of_run

    if len(diagnoses) != 1:
        raise InputError(f"--test forks one run, and these are {len(diagnoses)}: name one")
    log = diagnoses[0].log
    if log.folder is None or not (log.folder / "config.toml").is_file():
        echo(arms_file(diagnoses[0], draws), nl=False)
        return None
    if not intervene(runs, diagnoses[0], draws, yes=yes):
        return None
    return diagnose_log(of_run(current(runs), log.name, runs))


class _Answer(NamedTuple):
    """A diagnosis and the checks of its audit; None without one."""

    diagnosis: Diagnosis
    checks: Sequence[Check] | None
    unaudited: str = ""  # why there are none, where the audit failed


def _answer(runs: Path, diagnosis: Diagnosis, is_audited: bool, *, strict: bool) -> _Answer:
    """Return a diagnosis that knows what the audit of its run has found.

    An audit that fails costs itself, and its reason is told; with `strict` (it was asked for) InputErrors are
    raised.
    """
    from sorl.diagnosis.diagnose import diagnose as diagnose_log
    from sorl.diagnosis.diagnose import noting

    if not is_audited:
        return _Answer(diagnosis, None)
    raised = (InputError,) if strict else ()
    failed: dict[str, str] = {}
    checks = None
    with noting(failed, "audit", *raised):
        checks = audited(runs, diagnosis.log, strict=strict)
    judged = diagnose_log(diagnosis.log, checks=checks) if checks else diagnosis
    return _Answer(judged, checks, failed.get("audit", ""))


def _failed_documents(failures: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the logs that could not be diagnosed as JSON has them."""
    return [{"log": name, "failed": {"diagnosis": why}} for name, why in failures.items()]


def _as_document(answer: _Answer) -> dict[str, Any]:
    """Return a diagnosis as JSON has it, with the checks of its audit if there was one."""
    from sorl.diagnosis import report

    fields = report.as_dict(answer.diagnosis)
    if answer.unaudited:
        fields["failed"] = {**fields["failed"], "audit": answer.unaudited}
    if answer.checks is not None:
        fields["audit"] = list(map(as_document, answer.checks))
    return fields


def _in_full(answer: _Answer, form: str) -> str:
    """Return a diagnosis as text or Markdown, and what its audit found."""
    from sorl.diagnosis import report

    render = report.text if form == "text" else report.markdown
    paragraphs = [render(answer.diagnosis)]
    if answer.unaudited:
        paragraphs.append(f"Could not be checked: the audit ({visible(answer.unaudited)}).")
    return "\n\n".join([*paragraphs, *in_words(answer.diagnosis, answer.checks)])


def _can_be_audited(log: Log) -> bool:
    """Whether a run has something that an audit can look at: stored steps, or witnesses of its weights."""
    if log.folder is None:
        return False
    return bool(batches.steps(log.folder)) or (log.folder / "segments" / "witness").is_dir()


def audited(runs: Path, log: Log, strict: bool) -> list[Check] | None:
    """Return the checks of a run; None where there is nothing to audit, or torch is not installed."""
    if log.folder is None or not _can_be_audited(log):
        return None
    if not strict and find_spec("torch") is None:
        return None
    return checks(runs, log.folder)


def in_words(diagnosis: Diagnosis, checks: Sequence[Check] | None) -> list[str]:
    """Say what the audit of a run's stored steps found, and what would tell the cause where nothing has named
    one.
    """
    sentences = [] if checks is None else [_audit_sentence(checks)]
    log = diagnosis.log
    is_unexplained = not diagnosis.findings and log.onset is not None
    if is_unexplained and log.folder and (log.folder / LADDER).is_dir():
        sentences.append(
            f"What would tell: sorl fork {visible(log.name)} (which change saves it, from before its fall)."
        )
    return sentences


def _audit_sentence(checks: Sequence[Check]) -> str:
    """Say whether the record of a run contradicts itself."""
    from sorl.audit import IDENTITIES
    from sorl.audit.registry import RECORDED, STEP

    recomputed = {check.step for check in checks if IDENTITIES[check.identity].reads in (STEP, RECORDED)}
    steps = batches.ranges(sorted(recomputed - {-1}))
    subject = f"steps {steps}" if steps else "the rows and witnesses"
    broken = dict.fromkeys(check.identity for check in checks if check.violated)
    if broken:
        names = ", ".join(broken)
        return f"Audit of {subject}: the record contradicts itself ({names}); `sorl audit` shows where."
    checked = {check.identity for check in checks if not check.missing}
    unchecked = {check.identity for check in checks} - checked
    listed = ", ".join(name for name in IDENTITIES if name in unchecked)
    except_for = f"; not checked: {listed}" if listed else ""
    return (
        f"Audit of {subject}: all {len(checked)} identities that could be checked hold{except_for}"
        " (`sorl audit` lists them)."
    )


def logs(
    runs: Path,
    what: str | None,
    failures: dict[str, str],
    name_map: Sequence[str] | None = None,
) -> Iterator[Log]:
    """Yield the logs that an argument names: a file, the runs of an experiment or folder, one run, or all
    that fell. Of a run that raises the reason is put into `failures`.
    """
    from sorl.diagnosis.diagnose import noting
    from sorl.diagnosis.log import of_run
    from sorl.importing.mapping import NameMap

    mapping = NameMap.of(name_map)
    if what is not None and _is_foreign(what):
        yield from _logs_of_others(what, mapping)
        return
    if mapping:
        raise InputError("--map names the metrics of a log of another trainer: give its file or folder too")
    if what is not None and Path(what).is_dir():
        what = _name_of(Path(what).resolve(), runs.resolve())
    reader = current(runs)
    for run_id in _named_runs(reader, what):
        with reader.together():  # the queries of one diagnosis
            log = None
            with noting(failures, run_id, InputError):
                log = of_run(reader, run_id, runs)
            if log is not None:
                yield log


def _named_runs(reader: Reader, what: str | None) -> list[str]:
    """Return the runs of an experiment, the one run, or (None) all that fell."""
    from sorl.analysis.runs import runs as runs_in

    if what is None:
        fallen = [str(row[0]) for row in reader.rows(_FELL).rows]
        if not fallen:
            raise InputError(
                "no run has fallen; name a run, an experiment or a log (`sorl ls` lists the runs)"
            )
        return fallen
    experiment = experiment_of(what)
    if experiment in experiments(reader):
        return [str(run_id) for run_id in runs_in(reader, experiment)["run_id"]]
    return [find(reader, what)]


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
    is_experiment = any((child / "segments").is_dir() for child in folder.iterdir())
    if not is_experiment and not (folder / "segments").is_dir():
        raise InputError(f"'{folder}' holds no run; a run's folder has segments/ in it")
    home = folder.parent if is_experiment else folder.parent.parent
    raise InputError(
        f"'{folder}' lies in another runs folder; type: sorl --runs {home} diagnose {folder.name}"
    )
