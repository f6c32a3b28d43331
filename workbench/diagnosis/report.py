"""The report of a diagnosis: its sentences, and the whole as text, Markdown and plain data.

A report answers first: what the log is, what happened, since when and how sure. Then come at most SHOWN
findings, then what could not be looked at and how to log it.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from shlex import quote
from typing import Any, NamedTuple
from urllib.parse import urlencode

from sorl.diagnosis.attribution import Culprit
from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.changepoint import FEWEST, SHORTEST, WINDOW
from sorl.diagnosis.diagnose import GRADES, SLACK, signals, swung
from sorl.diagnosis.finding import LEDGER, Diagnosis, Finding
from sorl.diagnosis.log import Log
from sorl.diagnosis.standing import counted, figure, from_onset, standing
from sorl.diagnosis.trainers import how_to_log, option_names
from sorl.spec import NOT_RISEN
from sorl.store.text import visible

FORMAT = "sorl.diagnose/1"  # of `as_dict`; docs/schemas/diagnose.json
SHOWN = 3  # findings that are told in full
FIRST = 5  # signals and culprits that are named
NOTHING = "Nothing found."
# Causes of which a reward that rises is a part.
_DOUBT_THE_REWARD = ("reward_hacking", "length_hacking", "component_dominates")
_SEVERITIES = ("critical", "warning", "info")
# Columns of the tables `step` and `minibatch` that no other trainer logs.
_OURS = (
    "step.batch_hash",
    "step.token_mismatches",
    "step.retrieval_failed_frac",
    "minibatch.grad_norm_after",
    "minibatch.tokens",
)
_MOST_UNLOGGED = 4  # things that a log lacks, with what would log them
# What a cause needs, in words.
_NEEDS = {
    "KL": "a KL",
    "step.kl_ref": "the KL to the reference",
    "step.entropy": "the entropy",
    "step.staleness": "the age of the data",
    "step.truncated_frac": "the share of truncated answers",
    "clip fraction": "the clip fraction",
    "critic": "the loss of the critic",
    "evaluation": "a held-out evaluation",
    "reward": "the reward",
    "reward parts": "the parts of the reward",
    "answer length": "the length of the answers",
    "sampler mismatch": "the mismatch of sampler and trainer",
    "minibatch.grad_norm": "the gradient norm",
    "minibatch.lr": "the learning rate",
    "minibatch.ratio_max": "the largest token ratio",
    "minibatch.non_finite": "the metrics of the updates",
}
# Of needs that are signals with several columns: the column under which candidates are kept.
_COLUMNS = {
    "KL": "step.kl_ref",
    "clip fraction": "step.clip_frac",
    "answer length": "step.response_tokens",
    "reward": "step.reward",
    "evaluation": "step.heldout_success",
    "sampler mismatch": "minibatch.mismatch",
    "critic": "minibatch.value_loss",
}


# The sentences


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


def opened(
    step: int, ranked: Sequence[int], with_tokens: Collection[int], wanted: int | None = None
) -> dict[str, int]:
    """Choose where a link to a step leads: to the trajectory `wanted`, else to the first, if its tokens were
    kept.

    `ranked` are the step's trajectories, most of the gradient first. Where neither has any tokens the link
    names the step alone; where nothing of the step was recorded there is none: an empty answer.
    """
    if not ranked:
        return {}
    for trajectory in (wanted, ranked[0]):
        if trajectory is not None and trajectory in with_tokens:
            return {"step": step, "trajectory": trajectory}
    return {"step": step}


def place(d: Diagnosis, finding: Finding) -> str:
    """Address of the evidence in the app, relative to its start; empty where the store has nothing to show of
    it.
    """
    run = d.log.run
    clue = finding.clue
    rows = d.log.load("trajectory", clue.shown)
    tokens = d.log.load("token", clue.shown)
    if run.get("run_id") is None or "trajectory" not in rows:
        return ""
    if "gradient_share" in rows:
        rows = rows.sort_values("gradient_share", key=abs, ascending=False, kind="stable")
    with_tokens = tokens["trajectory"].tolist() if "trajectory" in tokens else []
    where = opened(clue.shown, rows["trajectory"].tolist(), with_tokens, clue.trajectory)
    if not where:
        return ""
    return "episode?" + urlencode({"experiment": run.get("experiment"), "run": run["run_id"], **where})


def is_later(d: Diagnosis, finding: Finding) -> bool:
    """Whether a finding shows only after the fall; curves without a ledger date it no closer than SLACK."""
    by = d.log.fallen_by
    if finding.tested is not None and (finding.tested.saves or finding.tested.refuted):
        return finding.tested.refuted
    if by is None or finding.clue.from_the_start:
        return False
    return finding.clue.shown > by + (0 if d.log.ledger else SLACK * d.log.span)


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


def in_order(d: Diagnosis) -> list[Finding]:
    """The findings, those that show only after the fall last; of the log of another trainer the critical ones
    before the warnings.
    """

    def rank(finding: Finding) -> tuple[bool, int]:
        return is_later(d, finding), _SEVERITIES.index(finding.severity) if d.log.reading else 0

    return sorted(d.findings, key=rank)


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


def ranking(name: str, step: int, culprits: Sequence[Culprit], top: int) -> str:
    """Return for a terminal: the turns of a stored batch that its other tokens do not explain."""
    if not culprits:
        return f"{visible(name)}, step {step}: no token of the batch is unusual."
    outstanding = [culprit for culprit in culprits if culprit.stands_out]
    title = "no turn stands out; the first of them"
    if outstanding:
        verb = "stands" if len(outstanding) == 1 else "stand"
        title = f"{len(outstanding)} of its turns {verb} out"
    lines = (f"{i}. {spot(culprit)}" for i, culprit in enumerate((outstanding or culprits)[:top], 1))
    return "\n".join([f"{visible(name)}, step {step}: {title}", *lines])


# The report


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


def _others(d: Diagnosis, finding: Finding) -> list[str]:
    """Names of the findings that would explain the same."""
    return [other.cause.name for other in d.findings if other.cause.name != finding.cause.name]


def text(d: Diagnosis) -> str:
    """Return for a terminal."""
    lines = opening(d)
    ranked = in_order(d)
    lines += [] if ranked else [none_found(d)]
    for rank, finding in enumerate(ranked[:SHOWN], start=1):
        told = finding_text(d, finding)
        lines += ["", f"{rank}. {finding.cause.title}  [{finding.cause.name}: {told.sure}]"]
        lines += [f"   {f'{name}:':9}{visible(words)}" for name, words in told.lines.items()]
    lines += [""] if ranked else []
    lines += filter(None, [others_by_name(ranked), early_warning(d), signals_line(d)])
    return "\n".join([*lines, *not_looked_at(d), *not_checked(d), *reading_notes(d)])


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


def not_looked_at(d: Diagnosis) -> list[str]:
    """Return what could not be looked at, what the log lacks for it, and how its trainer would log that."""
    unlogged = _unlogged(d)
    lines = _what_to_log(d.log, unlogged) if d.log.reading else _cannot_tell(d, unlogged)
    short = too_short(d)
    if d.findings and d.log.steps < SHORTEST:
        lines.append(f"Most causes need {SHORTEST} rows to be looked for; this log has {d.log.steps}.")
    if short and d.log.steps >= SHORTEST:
        lines.append(f"Logged too seldom to look for {', '.join(short)}: {SHORTEST} values are needed.")
    deep = len(d.unanswered) - len(set(chain.from_iterable(unlogged.values())))
    if deep:
        recorder = how_to_log("ledger", d.log)
        says = f"{recorder} records one; docs/causes.md" if recorder else "docs/causes.md"
        needs = "causes need" if deep != 1 else "cause needs"
        lines.append(f"{deep} more {needs} a turn ledger: {says} says which and why.")
    return lines


def not_checked(d: Diagnosis) -> list[str]:
    """Return what failed and why, and which causes an identity of the audit denies."""
    lines = []
    for name, why in d.failed.items():
        lines.append(f"Could not be checked: {name} ({visible(why)}).")
    for cause, identity in d.withdrawn.items():
        lines.append(f"Withdrawn: {cause} fits the curves, but the audit's `{identity}` holds.")
    return lines


def too_short(d: Diagnosis) -> list[str]:
    """Return the causes whose curves are logged, with too few points to look at."""
    short = []
    for cause in CAUSES:
        is_asked = cause.scalar and not d.log.ledger and cause.name not in d.unanswered
        if is_asked and any(d.log.curve(need) is None for need in cause.needs if need != "reward parts"):
            short.append(cause.name)
    return short


def _unlogged(d: Diagnosis) -> dict[str, list[str]]:
    """Return what the log lacks -> the causes that need it, without what only a turn ledger holds."""
    unlogged: dict[str, list[str]] = {}
    for cause, missing in d.unanswered.items():
        columns = [name for name in missing if "." in name]
        ours = any(c in _OURS or c.split(".")[0] not in ("step", "minibatch") for c in columns)
        if (LEDGER in missing or ours) and not d.log.ledger:
            continue  # a log of scalars can never hold it
        for name in missing:
            unlogged.setdefault(name, []).append(cause)
    return unlogged


def _what_to_log(log: Log, unlogged: Mapping[str, Sequence[str]]) -> list[str]:
    """Return lines for the log of another trainer: what it lacks, and how to log that."""
    reading = log.reading
    told = []
    rest = []
    needs = {
        need: causes for need, causes in unlogged.items() if need != "KL" or "step.kl_ref" not in unlogged
    }
    for need, causes in sorted(needs.items(), key=lambda pair: -len(pair[1])):
        name = _NEEDS.get(need, need)
        candidates = reading.candidates.get(_COLUMNS.get(need, need), ()) if reading else ()
        how = how_to_log(need, log)
        if reading and need in reading.never_numbers:
            told.append(f"{name}, which is never a number ({', '.join(causes)})")
        elif candidates:
            told.append(f"{name} ({', '.join(causes)}): {_may_be(need, visible(candidates[0]))}")
        elif how:
            told.append(f"{name} ({', '.join(causes)}): to log it, {how}")
        else:
            rest.append(name)
    rest += [line.partition(" (")[0] for line in told[_MOST_UNLOGGED:]]
    lines = [f"  {line}" for line in told[:_MOST_UNLOGGED]]
    if rest:
        joined = "and " if lines else ""
        lines.append(f"  {joined}{', '.join(rest)}")
    return ["Not looked at, as the log has no column that is known to hold it:", *lines] if lines else []


def _may_be(need: str, metric: str) -> str:
    """Return that a metric may be what a cause needs, with the option that says so."""
    column = _COLUMNS.get(need, need).partition(".")[2]
    return f"the log has {metric}, which may be it: --map {quote(f'{column}={metric}')}"


def _cannot_tell(d: Diagnosis, unlogged: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for a run of ours: which causes the log cannot answer, and what it lacks."""
    causes = dict.fromkeys(chain.from_iterable(unlogged.values()))
    # no setting or sentence
    tables = {name: name.split(".")[0] for name in unlogged if "." in name and " " not in name}
    words = sorted({_lacking(d.log, name, tables) for name in unlogged})
    return [f"Cannot tell: {', '.join(causes)} (not logged: {', '.join(words)})."] if causes else []


def _lacking(log: Log, name: str, tables: Mapping[str, str]) -> str:
    """Return what to call something that a cause needs and the log does not hold."""
    return f"table {tables[name]}" if name in tables and log.table(tables[name]).empty else name


def markdown(d: Diagnosis) -> str:
    """Return for an issue or a report."""
    lines = [f"**{_escaped(warning)}**\n" for warning in reading_warnings(d)]
    lines += [f"### {_escaped(visible(d.log.name))}", "", _escaped(headline(d)), ""]
    ranked = in_order(d)
    lines += [] if ranked else [none_found(d)]
    for rank, finding in enumerate(ranked[:SHOWN], start=1):
        told = finding_text(d, finding)
        sentences = [f"{_escaped(told.seen)}.", told.change]
        sentences += [f"Options {_escaped(told.options)}."] if told.options else []
        sentences += [f"Carried {_escaped(told.carried)}."] if told.carried else []
        test = f"`{told.test}`" if told.test.startswith("sorl ") else told.test
        sentences += [f"Test: {test}"] if test else []
        title = f"{rank}. **{finding.cause.title}** (`{finding.cause.name}`, {told.sure})."
        lines.append(f"{title} {' '.join(sentences)}")
    for paragraph in filter(None, [others_by_name(ranked), early_warning(d), _escaped(signals_line(d))]):
        lines += ["", paragraph]
    unlogged = not_looked_at(d)
    lines += ["", *(f"- {_escaped(line.strip())}" if line[0] == " " else _escaped(line) for line in unlogged)]
    for paragraph in map(_escaped, [*not_checked(d), *reading_notes(d)]):
        lines += ["", paragraph]
    return "\n".join(lines)


def _escaped(words: str) -> str:
    return visible(words).replace("<", "&lt;").replace("|", "\\|").replace("`", "'")


def as_dict(d: Diagnosis) -> dict[str, Any]:
    """Plain data; a number that is NaN or Inf is a string, as JSON has none."""
    return {
        "schema": FORMAT,
        "log": d.log.name,
        "headline": headline(d),
        "reading": d.log.reading and d.log.reading.as_dict(),
        "outcome": d.log.run.get("outcome"),
        "onset": d.log.onset,
        "critical_events": [{"step": step, "kind": kind} for step, kind in d.log.critical],
        "steps": d.log.steps,
        "slump": d.slump and d.slump._asdict(),
        "findings": [_finding(d, finding) for finding in in_order(d)],
        "moved": [_data(m) for m in d.moved],
        "unanswered": d.unanswered,
        "too_short": too_short(d),
        "failed": dict(d.failed),
        "withdrawn": dict(d.withdrawn),
        "not_looked_at": not_looked_at(d),
    }


def _finding(d: Diagnosis, finding: Finding) -> dict[str, Any]:
    cause, clue, _ = finding
    told = finding_text(d, finding)
    return {
        "cause": cause.name,
        "title": cause.title,
        "severity": finding.severity,
        "grade": clue.grade,
        "confidence": clue.confidence,
        "step": clue.step,
        "trajectory": clue.trajectory,
        "turn": clue.turn,
        "says": clue.says,
        "evidence": [_data(e) for e in clue.evidence],
        "change": told.change,
        "options": option_names(cause.options, d.log),
        "test": told.test or None,
        "open": told.open or None,
        "carried_by": [culprit_as_dict(c) for c in d.carriers.get(clue.shown, ())[:FIRST]],
        "alternatives": _others(d, finding),
        "tested": (
            None if finding.tested is None else finding.tested._asdict() | {"saves": finding.tested.saves}
        ),
    }


def culprit_as_dict(culprit: Culprit) -> dict[str, Any]:
    """Plain data of a culprit."""
    return {**_data(culprit), "stands_out": culprit.stands_out}


def _data(one: Any) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(one).items()}
