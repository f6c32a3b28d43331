"""The diagnosis of one log: run every cause, rank the findings, write the report."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np

from sorl.diagnosis.attribution import Culprit, attribute
from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.changepoint import FEWEST, MARGIN, Evidence, first, slumped, spread
from sorl.diagnosis.finding import LEDGER, LONG, Cause, Clue, Diagnosis, Finding
from sorl.diagnosis.log import Log
from sorl.diagnosis.standing import counted, figure, from_onset, standing
from sorl.spec.evidence import Check, Removal
from sorl.store.text import visible

# In the order of their rank, with the words of a report.
GRADES = {
    "intervention": "shown by intervention",
    "proof": "the record shows it",
    "sign": "clear sign",
    "pattern": "fits the pattern",
    "refuted": "refuted by intervention",
}
FIRST = 5  # signals and culprits that are named
RISING = 1.05  # x the first learning rate, from which on a warm-up moves signals
_KEYS = ("run_id", "step", "written_at", "success")
# No signals of training: clocks, fingerprints, counters.
_NO_SIGNAL = (
    "seconds_",
    "tokens_per_second",
    "memory_",
    "questions_hash",
    "batch_hash",
    "heldout_episodes",
    "updates",
    "first_log_ratio_abs_max",
)
# Columns of the tables `step` and `minibatch` that no other trainer logs.
_OURS = (
    "step.batch_hash",
    "step.token_mismatches",
    "step.retrieval_failed_frac",
    "minibatch.grad_norm_after",
    "minibatch.tokens",
)
SLACK = 0.1  # of the run: two drifts whose beginnings lie so close began together
PROVED = 0.95  # confidence of a cause that an audit proves
CONSEQUENCE = 0.6  # of the confidence of a finding that another one explains
_LEAST = 0.01  # spread of a fraction: of 64 trajectories one is 0.016


def diagnose(log: Log, causes: Sequence[Cause] = CAUSES, checks: Sequence[Check] = ()) -> Diagnosis:
    """Look for every cause in the log; rank by grade (of `GRADES`), then by confidence, then by step.

    `checks` of an audit of the run prove the causes that are the violation of an identity by definition.
    """
    asked = [cause for cause in causes if not (cause.scalar and log.ledger and log.steps < LONG)]
    proofs = {cause.name: proof for cause in asked if (proof := _proof(cause, checks))}
    unanswered = {c.name: missing for c in asked if c.name not in proofs and (missing := c.missing(log))}
    looks = (
        (cause, _proved(None if cause.missing(log) else cause.clue(log), proofs.get(cause.name)))
        for cause in asked
        if cause.name not in unanswered
    )
    seen = [_weighed(Finding(cause, clue), log) for cause, clue in looks if clue is not None]
    found = [
        _tested(_settled(finding, seen, SLACK * log.span), log.tests.get(finding.cause.name))
        for finding in seen
    ]
    found.sort(key=lambda f: (list(GRADES).index(f.clue.grade), -f.clue.confidence, f.clue.step))
    batches = ((step, log.batch(step)) for step in sorted({finding.clue.shown for finding in found}))
    culprits = (
        (step, tuple(c for c in attribute(b) if c.stands_out)) for step, b in batches if b is not None
    )
    carriers = {step: here for step, here in culprits if here}
    return Diagnosis(
        log, tuple(found), moved(log), unanswered, slumped(log.series("step", "success")), carriers
    )


def _weighed(finding: Finding, log: Log) -> Finding:
    """Weigh a scalar finding by the harm that follows: a remark where the run learned and its reward has not
    fallen since, a warning where no reward is known. Curves of another trainer have no ledger that could tell
    more.
    """
    if log.ledger or not finding.cause.scalar or finding.cause.rewarded:
        return finding
    score = log.outcome(finding.clue.step)
    if score is None and finding.severity == "critical":
        return finding._replace(clue=replace(finding.clue, severity="warning"))
    if log.run.get("outcome") == "healthy" and (score is None or score.change >= 0):
        return finding._replace(clue=replace(finding.clue, severity="info"))
    return finding


def _proof(cause: Cause, checks: Sequence[Check]) -> "Check | None":
    known = [check for check in checks if not check.missing]
    held = {check.step for check in known if check.identity == cause.holds and not check.violated}
    broken = [check for check in known if check.identity == cause.breaks and check.violated]
    return next((check for check in broken if not cause.holds or check.step in held), None)


def _proved(clue: Clue | None, proof: "Check | None") -> Clue | None:
    """Add to what the log shows that a recomputed step proves it."""
    if proof is None:
        return clue
    reading = f" ({proof.says})" if proof.says else ""
    says = f"step {proof.step} recomputed: `{proof.identity}` is violated{reading}"
    shown = Evidence(f"audit.{proof.identity}", proof.step, proof.logged, proof.expected)
    if clue is None:
        return Clue("proof", PROVED, proof.step, says, (shown,), *proof.trajectories[:1])
    both = (*clue.evidence, shown)
    return replace(clue, grade="proof", confidence=PROVED, says=f"{clue.says}; {says}", evidence=both)


def _settled(finding: Finding, found: Sequence[Finding], slack: float) -> Finding:
    """Mark down what another finding explains that began no later: it fits as a consequence, and ranks behind
    it.
    """
    effect, trace, _ = finding

    def led(cause: Cause, clue: Clue) -> bool:
        if effect.residual:
            return not cause.residual
        if effect.name not in cause.explains or clue.step > trace.step + slack:
            return False
        # Of two that began together and may each have led to the other, the surer one did.
        mutual = cause.name in effect.explains and trace.step <= clue.step + slack
        return not mutual or clue.confidence > trace.confidence

    reasons = [0.9 * clue.confidence for cause, clue, _ in found if led(cause, clue)]
    known = min([CONSEQUENCE * trace.confidence, *reasons])
    return Finding(effect, replace(trace, grade="pattern", confidence=known)) if reasons else finding


def _tested(finding: Finding, tested: Removal | None) -> Finding:
    """Grade a finding by what forks without its cause do; a proof that is no reason of the fall stays one."""
    cause, clue, _ = finding
    if tested is not None and tested.saves:
        clue = replace(clue, grade="intervention")
    elif tested is not None and tested.refuted and clue.grade != "proof":
        clue = replace(clue, grade="refuted")
    return Finding(cause, clue, tested)


def _signals(log: Log) -> Iterator[tuple[str, float]]:
    """Yield each step diagnostic that may say something, and the least spread that it can have."""
    for column in (c for c in log.table("step").columns if c not in _KEYS and not c.startswith(_NO_SIGNAL)):
        yield column, _LEAST if column.endswith("_frac") else 0.0


def moved(log: Log) -> tuple[Evidence, ...]:
    """The step diagnostics that left their own past, earliest first; those after a collapse say nothing about
    it.
    """
    looks = (first(log.series("step", column), points=2, least=least) for column, least in _signals(log))
    found = (left for left in looks if left is not None and (log.onset is None or left.step <= log.onset))
    return tuple(sorted(found, key=lambda m: (m.step, m.column)))


def swung(log: Log) -> tuple[Evidence, ...]:
    """What the steps from the onset to the detection (the end) show that none before did, the farthest from
    it first.

    As `moved`, but by all of the past, however short: a fall in the first steps has no other.
    """
    found = []
    certain = log.first_known("detection_step")
    for column, least in _signals(log) if log.onset is not None else ():
        series = log.series("step", column)
        steps = series.index.to_numpy()
        values = series.to_numpy()
        past = values[(steps < log.onset) & np.isfinite(values)]
        at = np.flatnonzero((steps >= log.onset) & (steps <= (np.inf if certain is None else certain)))
        if len(past) < 2 or not len(at):
            continue
        usual, wide = spread(past, 0.05, least)
        i = int(at[np.argmax(np.abs(values[at] - usual))])
        away = abs(values[i] - usual) / wide
        if away > MARGIN and not past.min() <= values[i] <= past.max():
            found.append((-away, Evidence(f"step.{column}", int(steps[i]), float(values[i]), usual)))
    return tuple(one for _, one in sorted(found, key=lambda pair: (pair[0], pair[1].column)))


# The sentences


def headline(d: Diagnosis) -> str:
    """Return what was diagnosed, in a line."""
    status = f", {d.log.run['status']}" if d.log.run.get("status") not in (None, "finished") else ""
    return f"{visible(d.log.name)}: {d.log.run.get('outcome') or 'undecided'}; {counted(d.log.steps)}{status}"


def none_found(d: Diagnosis, proved: bool = False) -> str:
    """Return what to say where no cause was found: of a run that is down never that nothing was, nor without
    why.

    `proved`: an audit has found that the record contradicts itself.
    """
    if proved:
        return "None of the known causes fits, yet the record contradicts itself (audit)."
    up = d.log.onset is None and d.slump is None and not d.log.critical
    if up and d.log.run.get("outcome") not in ("mild", "diverged"):
        return "Nothing found."
    bare = not d.log.measured("minibatch", "ratio_max") and not d.log.measured("minibatch", "grad_norm")
    said = "Only curves are logged, and causes need the updates and the turn ledger"
    said = said if bare else "None of the known causes fits"
    seen = "; ".join(
        f"{m.column.removeprefix('step.')} {figure(m.usual)} -> {figure(m.value)} (step {m.step})"
        for m in swung(d.log)[:FIRST]
    )
    return f"{said}. At the fall: {seen}." if seen else f"{said}."


def early_warning(d: Diagnosis) -> str:
    """Whether success slumps as it hardly ever does in a healthy run, where no collapse has been called
    (yet).
    """
    if d.slump is None or d.log.onset is not None:
        return ""
    lost = (
        f"by step {d.slump.step} success has lost {100 * d.slump.lost:.0f} % of its best. About one healthy"
        " run in "
    )
    return (
        f"Early warning: {lost}twenty ever does, and one in five of all runs that did not collapse, learned"
        " or not."
    )


def first_signals(d: Diagnosis) -> str:
    """Return which diagnostics left their usual range first."""
    onset = d.log.onset
    if not any(d.log.measured("step", column) for column, _ in _signals(d.log)):
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
    rate = d.log.series("minibatch", "lr", "max").loc[lambda series: series.index <= d.moved[0].step]
    rising = len(rate) > 1 and rate.iloc[-1] > RISING * rate.iloc[0]
    tail = " The learning rate was still rising, which moves signals by itself." if rising else ""
    return f"Moved first: {'; '.join(parts)}.{tail}"


def opened(
    step: int, ranked: Sequence[int], kept: Collection[int], wanted: int | None = None
) -> dict[str, int]:
    """Choose where a link to a step leads: to the trajectory `wanted`, else to the first, if its tokens were
    kept.

    `ranked` are the step's trajectories, most of the gradient first, `kept` those with tokens. Where neither
    has any the link names the step alone; where nothing of the step was recorded there is none: an empty
    answer.
    """
    shown = next((one for one in (wanted, *ranked[:1]) if one in kept), None)
    return {} if not ranked else {"step": step} if shown is None else {"step": step, "trajectory": shown}


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
    kept = tokens["trajectory"].tolist() if "trajectory" in tokens else []
    shown = opened(clue.shown, rows["trajectory"].tolist(), kept, clue.trajectory)
    return (
        "episode?" + urlencode({"experiment": run.get("experiment"), "run": run["run_id"], **shown})
        if shown
        else ""
    )


def _later(d: Diagnosis, finding: Finding) -> bool:
    """Whether a finding shows only after the fall; curves without a ledger date it no closer than SLACK."""
    by = d.log.fallen_by
    if finding.tested is not None and (finding.tested.saves or finding.tested.refuted):
        return finding.tested.refuted
    return by is not None and finding.clue.shown > by + (0 if d.log.ledger else SLACK * d.log.span)


def likely(d: Diagnosis, finding: Finding) -> str:
    """How sure a finding is, and on which side of the fall it lies: what shows only later is none of its
    causes.
    """
    share = f"{100 * finding.clue.confidence:.0f} %"
    tested = finding.tested
    if tested is not None:
        said = (
            "the cause"
            if tested.saves
            else "not what it died of"
            if tested.refuted
            else "not decided by a test"
        )
        still = "" if tested.dies else "; unchanged, most children no longer fall"
        return f"{said} ({tested}{still})"
    said = "likely" if d.log.fallen_by is None else "likely cause"
    if _later(d, finding):
        proof = finding.clue.grade == "proof"
        said = "later than the fall, not its cause" if proof else "a consequence, not the cause"
    return f"{said} ({share})"


def in_order(d: Diagnosis) -> list[Finding]:
    """The findings, those that show only after the fall last."""
    return sorted(d.findings, key=lambda finding: _later(d, finding))


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


def ranking(name: str, step: int, found: Sequence[Culprit], top: int) -> str:
    """Return for a terminal: the turns of a stored batch that its other tokens do not explain."""
    if not found:
        return f"{visible(name)}, step {step}: no token of the batch is unusual."
    here = [one for one in found if one.stands_out]
    title = "no turn stands out; the first of them"
    title = f"{len(here)} of its turns stand{'s' * (len(here) == 1)} out" if here else title
    lines = (f"{i}. {spot(culprit)}" for i, culprit in enumerate((here or found)[:top], 1))
    return "\n".join([f"{visible(name)}, step {step}: {title}", *lines])


# The report


def _said(d: Diagnosis, finding: Finding) -> dict[str, str]:
    """What a report says of a finding; a text is empty where there is nothing to say."""
    cause, clue, _ = finding
    run = d.log.run
    experiment = run.get("experiment")
    # imported, or recorded there
    theirs = run.get("algorithm") == "unknown" or '"trainer"' in str(run.get("versions"))
    name = visible(d.log.name)
    step = str(clue.shown)
    change, test = (
        told.replace("{run}", name).replace("{step}", step) for told in (cause.change, cause.test)
    )
    if test.startswith("--set") and experiment is not None and not theirs:
        test = f"sorl run {visible(str(experiment))}.toml {test}"
    elif test.startswith("--set"):  # of another trainer: no command of ours trains it
        test = "train again with " + test.replace("--set ", "")
    elif test.startswith("sorl ") and experiment is None:
        test = ""
    here = d.carriers.get(clue.shown, ())
    carried = ""
    if here:  # the turns of its step that stand out of its batch
        n = len(here) - 1
        more = f"; {n} more turn{'s stand' if n > 1 else ' stands'} out" if n else ""
        carried = f"in step {clue.shown} by {spot(here[0])}{more}"
    sure = f"{finding.severity}, {GRADES[clue.grade]}, {likely(d, finding)}"
    return {"change": change, "test": test, "carried": carried, "sure": sure, "open": place(d, finding)}


def _others(d: Diagnosis, finding: Finding) -> list[str]:
    """Names of the findings that would explain the same."""
    return [other.cause.name for other in d.findings if other.cause.name != finding.cause.name]


def text(d: Diagnosis, proved: bool = False) -> str:
    """Return for a terminal; `proved` as in `none_found`."""
    lines = [*reading_warnings(d), headline(d), visible(standing(d.log))]
    lines += [] if d.findings else [none_found(d, proved)]
    for rank, finding in enumerate(in_order(d), start=1):
        said = _said(d, finding)
        lines += ["", f"{rank}. {finding.cause.title}  [{finding.cause.name}: {said['sure']}]"]
        told = {
            "seen": visible(finding.clue.says),
            "change": said["change"],
            "carried": said["carried"],
            "test": said["test"],
            "open": said["open"] and f"sorl app, then /{said['open']}",
            "or": ", ".join(_others(d, finding)[:3]),
        }
        lines += [f"   {f'{name}:':8} {words}" for name, words in told.items() if words]
    lines += ["", *filter(None, [early_warning(d)]), first_signals(d)]
    return "\n".join([*lines, *cannot_tell(d), *reading_notes(d)])


def reading_warnings(d: Diagnosis) -> list[str]:
    """Return what stands before the verdict: how much of the log is missing from it."""
    reading = d.log.reading
    return [f"Warning: {visible(warning)}." for warning in reading.warnings] if reading else []


def reading_notes(d: Diagnosis) -> list[str]:
    """Return what else is to say of how the log was read: what was left out, replaced or assumed."""
    reading = d.log.reading
    return [f"Note: {visible(note)}." for note in reading.notes] if reading else []


def cannot_tell(d: Diagnosis) -> list[str]:
    """Return which causes the log cannot answer and what it lacks; those that need a ledger are counted."""
    names = {}
    deep = 0
    for cause, missing in d.unanswered.items():
        columns = [name for name in missing if "." in name]
        ours = any(c in _OURS or c.split(".")[0] not in ("step", "minibatch") for c in columns)
        if (LEDGER in missing or ours) and not d.log.ledger:
            deep += 1  # a log of scalars can never hold it
        else:
            names[cause] = missing
    lacking = {name for missing in names.values() for name in missing}
    # no setting or sentence
    tables = {name: name.split(".")[0] for name in lacking if "." in name and " " not in name}
    words = sorted({_lacking(d.log, name, tables) for name in lacking})
    lines = [f"Cannot tell: {', '.join(names)} (not logged: {', '.join(words)})."] if names else []
    verb = "causes need" if deep != 1 else "cause needs"
    return lines + ([f"{deep} more {verb} a turn ledger: docs/causes.md says which and why."] if deep else [])


def _lacking(log: Log, name: str, tables: dict[str, str]) -> str:
    """Return what to call something that a cause needs and the log does not hold."""
    if log.reading is not None and name in log.reading.never_numbers:
        return f"{name}, which is never a number"
    if name in tables and log.table(tables[name]).empty:
        return f"table {tables[name]}"
    return name


def markdown(d: Diagnosis, proved: bool = False) -> str:
    """Return for an issue or a report; `proved` as in `none_found`."""
    lines = [f"**{_escaped(warning)}**\n" for warning in reading_warnings(d)]
    lines += [f"### {_escaped(headline(d))}", "", _escaped(standing(d.log)), ""]
    lines += [] if d.findings else [none_found(d, proved)]
    for rank, finding in enumerate(in_order(d), start=1):
        cause = finding.cause
        said = _said(d, finding)
        says = _escaped(finding.clue.says)
        test = said["test"]
        lines.append(
            f"{rank}. **{cause.title}** (`{cause.name}`, {said['sure']}). {says}. {said['change']}"
            + (f" Carried {_escaped(said['carried'])}." if said["carried"] else "")
            + (f" Test: {f'`{test}`' if test.startswith('sorl ') else test}" if test else "")
        )
    lines += ["", *filter(None, [early_warning(d)]), _escaped(first_signals(d))]
    for paragraph in [*cannot_tell(d), *map(_escaped, reading_notes(d))]:
        lines += ["", paragraph]
    return "\n".join(lines)


def _escaped(words: str) -> str:
    return visible(words).replace("<", "&lt;").replace("|", "\\|").replace("`", "'")


def as_dict(d: Diagnosis) -> dict[str, Any]:
    """Plain data; a number that is NaN or Inf is a string, as JSON has none."""
    return {
        "log": d.log.name,
        "reading": d.log.reading and d.log.reading.as_dict(),
        "outcome": d.log.run.get("outcome"),
        "onset": d.log.onset,
        "critical_events": [{"step": step, "kind": kind} for step, kind in d.log.critical],
        "steps": d.log.steps,
        "slump": d.slump and d.slump._asdict(),
        "findings": [_finding(d, finding) for finding in d.findings],
        "moved": [_data(m) for m in d.moved],
        "unanswered": d.unanswered,
    }


def _finding(d: Diagnosis, finding: Finding) -> dict[str, Any]:
    cause, clue, _ = finding
    said = _said(d, finding)
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
        "change": said["change"],
        "test": said["test"] or None,
        "open": said["open"] or None,
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
