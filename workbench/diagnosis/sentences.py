"""A diagnosis in sentences: what the log is, how the run stands, what each finding says."""

from collections.abc import Sequence
from typing import NamedTuple

from sorl.diagnosis.attribution import Culprit
from sorl.diagnosis.changepoint import FEWEST, SHORTEST, WINDOW
from sorl.diagnosis.finding import Diagnosis, Finding
from sorl.diagnosis.log import Log
from sorl.diagnosis.place import place
from sorl.diagnosis.rank import GRADES, in_order, is_later
from sorl.diagnosis.signals import signals, swung
from sorl.diagnosis.standing import counted, figure, from_onset, standing
from sorl.diagnosis.trainers import option_names
from sorl.spec import NOT_RISEN
from sorl.store.text import visible

SHOWN = 3  # findings that are told in full
FIRST = 5  # signals and culprits that are named
NOTHING = "Nothing found."
# Causes of which a reward that rises is a part.
_DOUBT_THE_REWARD = ("reward_hacking", "length_hacking", "component_dominates")


def opening(d: Diagnosis) -> list[str]:
    """Return the lines that a report begins with: what is missing from the log, and the first line."""
    return [*reading_warnings(d), headline(d)]


def headline(d: Diagnosis) -> str:
    """Return the first line: what the log is, how the run stands, since when and how sure."""
    stands = visible(standing(d.log))
    doubted = any(f.severity == "critical" or f.cause.name in _DOUBT_THE_REWARD for f in d.findings)
    if d.log.run.get("outcome") == "healthy" and doubted:
        stands = stands.replace("Healthy", "Healthy by its reward alone", 1)
    return f"{visible(d.log.name)} ({_subject(d.log)}): {stands}"


def _subject(log: Log) -> str:
    """Return what the log is: the trainer or algorithm, how long, and which column is the reward."""
    status = log.run.get("status")
    running = [str(status)] if status not in (None, "finished") else []
    reading = log.reading
    if reading is None:
        algorithm = log.run.get("algorithm")
        known = [str(algorithm)] if algorithm not in (None, "unknown") else []
        return ", ".join([*known, counted(log.steps), *running])
    span = []
    if log.steps > 1:
        steps = log.logged[0]
        numbered = "numbered" if reading.is_numbered else "steps"
        span = [f"{numbered} {int(steps.min()):,} to {int(steps.max()):,}"]
    score = []
    if reading.success_metric:
        score = [f"success rate: {visible(reading.success_metric)}"]
    elif reading.reward_metric:
        score = [f"reward: {visible(reading.reward_metric)}"]
    trainer = reading.trainer or "trainer not known"
    return ", ".join([trainer, counted(log.steps, "row"), *span, *score, *running])


def is_up(d: Diagnosis) -> bool:
    """Whether nothing bad was seen of the run: no fall, no slump, no critical event."""
    slumps = d.slump is not None and d.log.reading is None  # of a reward nobody knows where its zero is
    fell = d.log.onset is not None or slumps or bool(d.log.critical)
    return not fell and d.log.run.get("outcome") not in ("mild", "diverged")


def none_found(d: Diagnosis) -> str:
    """Return what to say where no cause was found: of a run that is down never that nothing was, nor without
    why.
    """
    if d.log.steps < SHORTEST:
        return f"Most causes need {SHORTEST} rows to be looked for; this log has {d.log.steps}."
    if is_up(d):
        judged = d.log.run.get("outcome")
        return NOTHING if judged is not None and judged not in NOT_RISEN else "No known cause shows."
    bare = not d.log.measured("minibatch", "ratio_max") and not d.log.measured("minibatch", "grad_norm")
    why = "None of the known causes fits"
    if bare and d.log.reading is None:
        why = "Only curves are logged, and causes need the updates and the turn ledger"
    swings = "; ".join(
        f"{m.column.removeprefix('step.')} {figure(m.usual)} -> {figure(m.value)} (step {m.step})"
        for m in swung(d.log)[:FIRST]
    )
    return f"{why}. At the fall: {swings}." if swings else f"{why}."


def early_warning(d: Diagnosis) -> str:
    """Whether success slumps as it hardly ever does in a healthy run, where no collapse has been called
    (yet). Only of known counts: of a reward nobody knows where its zero is.
    """
    if d.slump is None or d.log.onset is not None or d.log.reading is not None:
        return ""
    return (
        f"Early warning: by step {d.slump.step} success has lost {100 * d.slump.lost:.0f} % of its best."
        " About one healthy run in twenty ever does, and one in five of all runs that did not collapse,"
        " learned or not."
    )


def first_signals(d: Diagnosis) -> str:
    """Return which diagnostics left their usual range first."""
    onset = d.log.onset
    if not any(d.log.measured("step", column) for column, _ in signals(d.log)):
        return "No diagnostic besides success is logged."
    if not d.moved and onset is not None and onset < FEWEST:
        return "Too few steps before the onset to know what was usual."
    if not d.moved:
        return "No diagnostic left its usual range" + ("." if onset is None else " before the onset.")
    parts = []
    for m in d.moved[:FIRST]:
        ahead = f", {from_onset(m.step, onset)}" if onset is not None and onset > m.step else ""
        name = m.column.removeprefix("step.")
        parts.append(f"{name} at step {m.step} ({figure(m.usual)} -> {figure(m.value)}{ahead})")
    parts += [f"{len(d.moved) - FIRST} more later"] if len(d.moved) > FIRST else []
    return f"Moved first: {'; '.join(parts)}.{_warm_up(d.log, d.moved[0].step)}"


def _warm_up(log: Log, step: int) -> str:
    """Say that the learning rate rose in the steps that one is judged by, if it did."""
    rate = log.series("minibatch", "lr", "max")
    near = rate.loc[rate.index <= step].iloc[-WINDOW - 1 :]
    rises = near[near.diff() > 0]
    if rises.empty:
        return ""
    return f" The learning rate rose until step {rises.index[-1]}, which moves signals by itself."


def signals_line(d: Diagnosis) -> str:
    """Return `first_signals` where a fall makes the first mover worth a line; else nothing. That none moved
    before the fall is no news next to a finding that began before it.
    """
    fell = d.log.onset is not None or (d.log.reading is None and not is_up(d))
    began_before = any(not is_later(d, finding) for finding in d.findings)
    return first_signals(d) if fell and (d.moved or not began_before) else ""


def likely(d: Diagnosis, finding: Finding) -> str:
    """On which side of the fall a finding lies, and what a test says of it: what shows only later is none of
    its causes. Empty of a run that did not fall.
    """
    tested = finding.tested
    if tested is not None:
        decided = "not decided by a test"
        if tested.saves:
            decided = "the cause"
        elif tested.refuted:
            decided = "not what it died of"
        still = "" if tested.dies else "; unchanged, most children no longer fall"
        return f"{decided} ({tested}{still})"
    if is_later(d, finding):
        proof = finding.clue.grade == "proof"
        return "later than the fall, not its cause" if proof else "a consequence, not the cause"
    if d.log.fallen_by is None:
        return ""
    return "likely cause" if in_order(d)[0].cause == finding.cause else "possible cause"


def spot(culprit: Culprit) -> str:
    """Turn, tokens and size of one culprit, and how rare the like is by chance."""
    tokens = (
        f"token {culprit.first}"
        if culprit.first == culprit.last
        else f"tokens {culprit.first}-{culprit.last}"
    )
    words = f' "{visible(culprit.text)}"' if culprit.text.strip() else ""
    most = (
        f"{culprit.quantity} up to {culprit.value:+.2g} nats; by chance {culprit.expected:.1g} such stretches"
        " a batch"
    )
    return f"turn {culprit.turn} of trajectory {culprit.trajectory}, {tokens}{words}: {most}"


class FindingText(NamedTuple):
    """What a report says of a finding; a text is empty where there is nothing to say."""

    sure: str  # severity, grade and side of the fall
    seen: str
    change: str
    options: str  # that the trainer of the log has for it
    carried: str
    test: str
    open: str

    @property
    def lines(self) -> dict[str, str]:
        """The texts that are not empty, by what stands before them."""
        texts = {
            "seen": self.seen,
            "change": self.change,
            "options": self.options,
            "carried": self.carried,
            "test": self.test,
            "open": self.open and f"sorl app, then /{self.open}",
        }
        return {name: words for name, words in texts.items() if words}


def finding_text(d: Diagnosis, finding: Finding) -> FindingText:
    """Return what a report says of a finding."""
    cause, clue, _ = finding
    name = visible(d.log.name)
    step = str(clue.shown)
    change = cause.change.replace("{run}", name).replace("{step}", step)
    test = _test(d.log, cause.test.replace("{run}", name).replace("{step}", step))
    options = ", ".join(option_names(cause.options, d.log))
    if options and d.log.trainer:
        options = f"in {d.log.trainer}: {options}"
    sure = ", ".join(filter(None, [finding.severity, GRADES[clue.grade], likely(d, finding)]))
    return FindingText(sure, clue.says, change, options, _carried(d, finding), test, place(d, finding))


def _test(log: Log, test: str) -> str:
    """Return the test of a cause as a command for a run of ours, else in words; empty where there is none."""
    experiment = log.run.get("experiment")
    theirs = log.run.get("algorithm") == "unknown" or '"trainer"' in str(log.run.get("versions"))
    if test.startswith("--set") and experiment is not None and not theirs:
        return f"sorl run {visible(str(experiment))}.toml {test}"
    if test.startswith("--set"):  # no command of ours trains it
        return _in_their_words(log, test)
    return "" if test.startswith("sorl ") and experiment is None else test


def _in_their_words(log: Log, test: str) -> str:
    """Return `--set learn.epochs=1 --set ...` with the options of the log's trainer; settings without a name
    there are left out.
    """
    changes = []
    for change in test.replace("--set ", "").split():
        setting, _, value = change.partition("=")
        names = option_names([setting], log)
        if names:
            changes.append(f"{names[0]} at {value}")
    return f"train again with {' and '.join(changes)}" if changes else ""


def _carried(d: Diagnosis, finding: Finding) -> str:
    """Return which turns of the step of a finding stand out of its batch."""
    carriers = d.carriers.get(finding.clue.shown, ())
    if not carriers:
        return ""
    n = len(carriers) - 1
    more = ""
    if n:
        more = f"; {counted(n, 'more turn')} {'stand' if n > 1 else 'stands'} out"
    return f"in step {finding.clue.shown} by {spot(carriers[0])}{more}"


def others_by_name(ranked: Sequence[Finding]) -> str:
    """Return the findings that are not told in full, by name."""
    rest = [f"{finding.cause.name} ({finding.severity})" for finding in ranked[SHOWN:]]
    return f"Also: {', '.join(rest)}." if rest else ""


def reading_warnings(d: Diagnosis) -> list[str]:
    """Return what stands before the verdict: how much of the log is missing from it."""
    reading = d.log.reading
    return [f"Warning: {visible(warning)}." for warning in reading.warnings] if reading else []


def reading_notes(d: Diagnosis) -> list[str]:
    """Return what else is to say of how the log was read: what was left out, replaced or assumed."""
    reading = d.log.reading
    if reading is None:
        return []
    shown: set[str] = set()
    for finding in d.findings:
        shown |= {evidence.column for evidence in finding.clue.evidence}
    remarks = [words for column, words in reading.remarks.items() if column in shown]
    return [f"Note: {visible(note)}." for note in (*reading.notes, *remarks)]
