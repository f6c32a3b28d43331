"""What a diagnosis could not look at, in sentences: what the log lacks, and how its trainer would log it."""

from collections.abc import Mapping, Sequence
from itertools import chain
from shlex import quote

from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.changepoint import SHORTEST
from sorl.diagnosis.finding import LEDGER, Diagnosis
from sorl.diagnosis.log import Log
from sorl.diagnosis.trainers import how_to_log
from sorl.store.text import visible

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
