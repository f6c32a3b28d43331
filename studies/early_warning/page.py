"""The tables of docs/results/early-warning.md, and what `sorl bench warning` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sorl.spec import NOT_RISEN, InputError
from sorl.spec.markdown import markdown_table
from studies import Share
from studies.early_warning.corpus import Run
from studies.early_warning.detectors import DETECTORS, SIGNALS
from studies.early_warning.evaluate import (
    FIRST_STEPS,
    TARGET,
    Bench,
    Make,
    Verdict,
    added,
    areas,
    crossed,
    halves,
    held_out,
    judged,
    median_interval,
    recall_at,
    threshold,
)
from studies.early_warning.peers import Peer, rates
from studies.early_warning.peers import read as read_peer
from studies.early_warning.scores import EVERY, TOGETHER

CORPUS = "experiments/results/early_warning/corpus.parquet"
PEER = "rldoctor.parquet"
FEWEST = 20  # runs of either kind
SPLITS = ("condition", "seed")
RATES = (0.02, 0.05, 0.10, 0.20, 0.50)
PLAIN = f"`{TOGETHER[0].signal}`, `{TOGETHER[0].detector}`"
# of Verdict.cells
CELLS = ("healthy alarmed", "not collapsed, alarmed", "found by detection", "alarms right")
USELESS = 0.3  # recall at TARGET, below which a signal is listed as of no use here


def findings(bench: Bench, peer: Peer) -> str:
    """What the tables say, in sentences whose figures are computed."""
    half = halves(bench.runs, SPLITS[0])
    ours = held_out(bench.together(), bench.runs, half)
    plain = held_out(bench.single(TOGETHER[0]), bench.runs, half)
    single = {
        name: held_out(bench.best(among), bench.runs, half)
        for name in SIGNALS
        if (among := [w for w in EVERY if w.signal == name and bench.tried(w)])
    }
    ahead = max(single, key=lambda name: single[name].before.value)
    critical, warning = (rates(peer, bench.runs, level, "whole") for level in ("CRITICAL", "WARNING"))
    return (
        f"In short: the {TOGETHER[0].detector} of `{TOGETHER[0].signal}` alone finds {plain.recall} of the"
        f" collapses by the step at which the collapse rule says so, a median of {_lead(plain.ahead)} steps"
        f" sooner, and alarms {plain.false_alarms} of the healthy runs, but {plain.all_false_alarms} of all"
        f" runs that did not collapse (mild, never learned): {plain.precision} of its alarms are right. Three"
        f" signals together find {ours.recall}, alarm {ours.false_alarms} and {ours.all_false_alarms}, and"
        f" are right in {ours.precision}. {_since(bench)}That is early confirmation, not foresight:"
        f" {plain.before} and {ours.before} were alarmed before success began to fall; of the single signals"
        f" `{ahead}` has the most, {single[ahead].before}, with {single[ahead].false_alarms} of healthy runs"
        f" alarmed. The gradient norm finds {single['grad_norm_max'].recall}. rldoctor, given whole logs, has"
        f" critical findings in {critical[1]} of the collapses and {critical[0]} of the healthy runs,"
        f" warnings in {warning[1]} and {warning[0]}."
    )


def _since(bench: Bench) -> str:
    """How often healthy runs are alarmed that were trained after the alarm was chosen, against the target."""
    if not (found := since(bench)):
        return ""
    times = found.false_alarms.value / TARGET
    return (
        f"Healthy runs trained since the three were chosen alarm {found.false_alarms}, {times:.1f} times the"
        f" target of {100 * TARGET:.0f} %. "
    )


def corpus(bench: Bench) -> str:
    """What the corpus is made of."""
    runs = bench.runs
    kinds = ("collapsed", "healthy", "falling", "mild", "never learned")
    groups = Counter(((r.experiment, r.optimizer, r.staleness), _kind(r)) for r in runs)
    total = Counter(map(_kind, runs))
    rows = [(*key, *(groups[key, kind] for kind in kinds)) for key in sorted({key for key, _ in groups})]
    rows.append(("all", "", "", *(total[kind] for kind in kinds)))
    early = sum(r.collapsed and r.onset is not None and r.onset < FIRST_STEPS for r in runs)
    parts = [
        markdown_table(("experiment", "optimizer", "staleness", *kinds), rows),
        (
            f"{len(runs)} runs, {len({r.condition for r in runs})} conditions (algorithm, optimizer,"
            f" staleness, learning rate, gradient clipping). {early} of the {total['collapsed']} collapses"
            f" begin before step {FIRST_STEPS}: the first updates destroy the policy, and nothing can warn of"
            " that from a healthy beginning."
        ),
    ]
    if bench.copies:
        parts.append(
            f"{bench.copies} more runs are bit-identical copies of these (same settings and seed, trained"
            " again). They count nowhere, and a run with a copy among those that the alarm was chosen on is"
            " not *trained since*."
        )
    return "\n\n".join(parts)


def _kind(run: Run) -> str:
    if run.collapsed:
        return "collapsed"
    return "never learned" if run.outcome in NOT_RISEN else run.outcome


def signals(bench: Bench) -> str:
    """One row a signal: its detector of the largest area on one half, at the threshold of that half, on the
    other.
    """
    half = halves(bench.runs, SPLITS[0])
    tried = {name: [w for w in EVERY if w.signal == name and bench.tried(w)] for name in SIGNALS}
    found = []
    for name, among in [("**together**", []), *tried.items()]:
        if among or name not in tried:
            make = bench.best(among) if among else bench.together()
            best = [bench.chosen(among, half == side) for side in (0, 1)] if among else []
            detector = "; ".join(dict.fromkeys(f"{w.side}, `{w.detector}`" for w in best))
            found.append((name, detector, held_out(make, bench.runs, half), _area(make, bench, half)))
    head = found[0]
    body = sorted(found[1:], key=lambda row: -row[2].recall.value)
    rows = [
        (
            f"`{name}`" if name in tried else name,
            detector,
            *one.cells,
            one.recall_late,
            one.before,
            _lead(one.leads),
            roc,
        )
        for name, detector, one, roc in (head, *body)
    ]
    header = (
        "signal",
        "detector",
        *CELLS,
        f"of onsets from step {FIRST_STEPS}",
        "before the onset",
        "onset - alarm, steps",
        "area under ROC",
    )
    weak = [name for name, _, one, _ in body if one.recall.value < USELESS]
    table = markdown_table(header, rows)
    return (
        f"{table}\n\nOf no use here (fewer than {100 * USELESS:.0f} % of the collapses at"
        f" such a threshold): {_named(weak)}. Not tried, because fewer than ten runs of either kind logged"
        f" them: {_named([name for name, among in tried.items() if not among])}."
    )


def detectors() -> str:
    """What each detector scores a step by: the first sentence of its definition."""
    rows = []
    for name, detector in DETECTORS.items():
        definition = " ".join((detector.__doc__ or "").split())
        rows.append((f"`{name}`", definition.split(". ")[0].removesuffix(".")))
    return markdown_table(("detector", "score of step t"), rows)


def families(bench: Bench) -> str:
    """Constant thresholds against self-baselined ones: each detector over all signals that enough runs
    logged.
    """
    half = halves(bench.runs, SPLITS[0])
    rows = []
    for name in DETECTORS:
        among = [w for w in EVERY if w.detector == name and bench.tried(w)]
        found = [(w, held_out(bench.single(w), bench.runs, half)) for w in among]
        if found:
            best, verdict = max(found, key=lambda pair: pair[1].recall.value - pair[1].false_alarms.value)
            medians = (
                np.median([getattr(v, of).value for _, v in found]) for of in ("false_alarms", "recall")
            )
            shares = (f"{100 * median:.0f} %" for median in medians)
            outcome = f"{verdict.recall}; healthy {verdict.false_alarms}"
            rows.append((f"`{name}`", len(found), *shares, f"`{best.signal}` {best.side}", outcome))
    return markdown_table(
        ("detector", "signals", "median healthy alarmed", "median found", "best signal", "found"), rows
    )


def splits(bench: Bench) -> str:
    """The combined alarm on every way to hold runs out, and on runs that came after it was chosen."""
    found = [
        (
            f"half of the {by}s",
            "the other half, and the other way round",
            held_out(bench.together(), bench.runs, halves(bench.runs, by)),
        )
        for by in SPLITS
    ]
    if new := since(bench):
        found.append(("runs that the alarm was chosen on", "those trained since", new))
    for name in sorted({run.optimizer for run in bench.runs}):
        other = np.array([run.optimizer != name for run in bench.runs])
        if (bench.healthy & other).sum() >= 10 and (bench.healthy & ~other).any():
            found.append(("the other optimizer", name, _across(bench, other, ~other)))
    rows = [(*names, *one.cells, one.before, _lead(one.leads), _lead(one.ahead)) for *names, one in found]
    header = (
        "thresholds from",
        "judged on",
        *CELLS,
        "before the onset",
        "onset - alarm, steps",
        "detection - alarm",
    )
    return markdown_table(header, rows)


def _across(bench: Bench, tuning: np.ndarray, among: np.ndarray) -> Verdict:
    """The combined alarm on the runs `among`, at the threshold of the runs `tuning`."""
    scores = bench.together()(tuning)
    return judged(scores, threshold(scores.top[tuning & bench.healthy], TARGET), among)


def since(bench: Bench) -> Verdict | None:
    """The combined alarm on runs trained after it was chosen, at the threshold of those before; None without
    either.
    """
    fresh = np.array([run.fresh for run in bench.runs])
    return _across(bench, ~fresh, fresh) if fresh.any() and (bench.healthy & ~fresh).any() else None


def endings(bench: Bench) -> str:
    """Who is alarmed, by how the run ended: the combined alarm and its plainest part at held-
    out thresholds.
    """
    half = halves(bench.runs, SPLITS[0])
    found = [_alarmed(bench, make, half) for make in (bench.together(), bench.single(TOGETHER[0]))]
    rows = []
    for kind in ("collapsed", "healthy", "mild", "never learned", "falling"):
        here = [i for i, run in enumerate(bench.runs) if _kind(run) == kind]
        mine = [[alarm for i in here if (alarm := alarms[i]) is not None] for alarms in found]
        rows.append((kind, *(Share(sum(alarms), len(alarms)) for alarms in mine)))
    return markdown_table(("the run", "together", PLAIN), rows)


def _alarmed(bench: Bench, make: Make, half: np.ndarray) -> list[bool | None]:
    """Whether each run was alarmed at the threshold of the other half; None where the detector
    was not tried.
    """
    found: list[bool | None] = [None] * len(bench.runs)
    for side in (0, 1):
        scores = make(half != side)
        at = threshold(scores.top[(half != side) & bench.healthy], TARGET)
        for i in np.flatnonzero((half == side) & ~np.isnan(scores.top)):
            found[i] = bool(scores.top[i] >= at)
    return found


def roc(bench: Bench) -> str:
    """Recall at given shares of healthy runs alarmed, with intervals, of the combined alarm and its parts."""
    half = halves(bench.runs, SPLITS[0])
    makes = {"together": bench.together()}
    makes |= {f"`{w.signal}` {w.side}, `{w.detector}`": bench.single(w) for w in TOGETHER}
    rows = [
        (name, *map(_point, recall_at(crossed(make, bench.runs, half), bench.runs, RATES)))
        for name, make in makes.items()
    ]
    return markdown_table(("healthy alarmed", *(f"{100 * rate:.0f} %" for rate in RATES)), rows)


def conditions(bench: Bench) -> str:
    """The combined alarm by algorithm, optimizer and staleness, at held-out thresholds."""
    half = halves(bench.runs, SPLITS[0])
    parts = []
    for side in (0, 1):
        scores = bench.together()(half != side)
        parts.append((scores, threshold(scores.top[(half != side) & bench.healthy], TARGET), half == side))
    rows = []
    for title, key in (("", "algorithm"), ("", "optimizer"), ("staleness ", "staleness")):
        for value in sorted({getattr(run, key) for run in bench.runs}):
            here = np.array([getattr(run, key) == value for run in bench.runs])
            both = added(judged(scores, at, among & here) for scores, at, among in parts)
            rows.append((f"{title}{value}", *both.cells, both.before, _lead(both.leads)))
    return markdown_table(("condition", *CELLS, "before the onset", "onset - alarm, steps"), rows)


def peers(bench: Bench, peer: Peer) -> str:
    """rldoctor on the same runs; the combined alarm and its plainest part at exactly its share of healthy
    runs.
    """
    half = halves(bench.runs, SPLITS[0])
    known = [run for run in bench.runs if run.run_id in peer.records]
    ours = [crossed(make, bench.runs, half) for make in (bench.together(), bench.single(TOGETHER[0]))]
    looks = {
        "whole": "the whole log",
        "until_detection": "the log up to the detection",
        "along": "asked after every step",
    }
    rows = []
    for level in ("CRITICAL", "WARNING"):
        for how, words in looks.items():
            wrong, right, lasting = rates(peer, known, level, how)
            points = (_point(recall_at(scores, bench.runs, (wrong.value,))[0]) for scores in ours)
            rows.append((f"{level.lower()}, {words}", wrong, lasting, right, *points))
    header = (
        f"rldoctor {peer.version}",
        *CELLS[:3],
        "together, at as many healthy",
        f"{PLAIN}, at as many healthy",
    )
    missing = len(bench.runs) - len(known)
    return markdown_table(header, rows) + (f"\n\nNot recorded for {missing} of the runs." if missing else "")


def _point(point: tuple[float, float, float]) -> str:
    return f"{100 * point[0]:.0f} % [{100 * point[1]:.0f}, {100 * point[2]:.0f}]"


def everything(bench: Bench, peer: Peer | None) -> str:
    """All of it, for the terminal."""
    parts = [part(bench) for part in (corpus, splits, endings, roc, signals, families, conditions)]
    return "\n\n".join(parts + ([peers(bench, peer)] if peer is not None else []))


def _area(make: Make, bench: Bench, half: np.ndarray) -> str:
    """The area in each half, of scores whose detector (and units) came from the other."""
    parts = []
    for side in (0, 1):
        top = make(half != side).top
        parts.append((top[bench.collapsed & (half == side)], top[bench.healthy & (half == side)]))
    found, low, high = areas(parts)
    return f"{found:.2f} [{low:.2f}, {high:.2f}]"


def _lead(values: Sequence[int]) -> str:
    found = median_interval(values)
    return "-" if found is None else f"{found[0]:.0f} [{found[1]:.0f}, {found[2]:.0f}]"


def _named(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def main(runs: Path, experiments: Sequence[str], files: Sequence[Path], output: Path | None = None) -> str:
    """Return how well the detectors warn on the finished runs of experiments and files; write them as a
    corpus.
    """
    from sorl.cli.report import gather
    from studies.early_warning import corpus as corpora

    parts = [corpora.read(file) for file in files]
    parts += [corpora.of_results(one) for one in gather(runs, experiments)]
    found = corpora.unique([run for part in parts for run in part])
    counts = {kind: sum(getattr(run, kind) for run in found) for kind in ("collapsed", "healthy")}
    if min(counts.values()) < FEWEST:
        raise InputError(
            f"an evaluation takes at least {FEWEST} collapsed and {FEWEST} healthy runs, not"
            f" {counts['collapsed']} and {counts['healthy']}; name experiments, or --from {CORPUS}"
        )
    records = [file.with_name(PEER) for file in files if file.with_name(PEER).is_file() and file.name != PEER]
    if output is not None:
        corpora.write(found, output)
    return everything(Bench(found), read_peer(records[0]) if records else None)
