"""The generated parts of docs/early_warning.md, and what `sorl bench warning` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from studies import Share
from studies.early_warning.corpus import Run
from studies.early_warning.detectors import DETECTORS, SIGNALS
from studies.early_warning.evaluate import (
    FIRST_STEPS,
    TARGET,
    Bench,
    Make,
    Verdict,
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
from studies.early_warning.scores import EVERY, TOGETHER, Watched
from workbench.spec import InputError

CORPUS, PEER = "experiments/results/early_warning/corpus.parquet", "rldoctor.parquet"
FEWEST = 20  # runs of either kind
SPLITS = ("condition", "seed")
RATES = (0.02, 0.05, 0.10, 0.20, 0.50)
PLAIN = f"`{TOGETHER[0].signal}`, `{TOGETHER[0].detector}`"
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
    ahead = max(single, key=lambda name: _share(single[name].before))
    critical, warning = (rates(peer, bench.runs, level, "whole") for level in ("CRITICAL", "WARNING"))
    return (
        f"In short: the {TOGETHER[0].detector} of `{TOGETHER[0].signal}` alone finds {plain.recall} of the collapses "
        f"by the step at which the collapse rule says so, a median of {_lead(plain.ahead)} steps sooner, and alarms "
        f"{plain.false_alarms} of the healthy runs, but {plain.all_false_alarms} of all runs that did not collapse "
        f"(mild, never learned): {plain.precision} of its alarms are right. Three signals together find {ours.recall}, "
        f"alarm {ours.false_alarms} and {ours.all_false_alarms}, and are right in {ours.precision}. "
        f"{_since(bench)}That is early confirmation, not foresight: {plain.before} and {ours.before} were "
        "alarmed before success began to fall; "
        f"of the single signals `{ahead}` has the most, {single[ahead].before}, with {single[ahead].false_alarms} of "
        f"healthy runs alarmed. The gradient norm finds {single['grad_norm_max'].recall}. rldoctor, given whole logs, "
        f"has critical findings in {critical[1]} of the collapses and {critical[0]} of the healthy runs, warnings in "
        f"{warning[1]} and {warning[0]}."
    )


def _since(bench: Bench) -> str:
    """How often healthy runs are alarmed that were trained after the alarm was chosen, against the target."""
    if not (found := since(bench)):
        return ""
    times = _share(found.false_alarms) / TARGET
    return (
        f"Healthy runs trained since the three were chosen alarm {found.false_alarms}, {times:.1f} times the target of "
        f"{100 * TARGET:.0f} %. "
    )


def corpus(bench: Bench) -> str:
    """What the corpus is made of."""
    runs = bench.runs
    kinds = ("collapsed", "healthy", "falling", "mild", "never learned")
    groups = Counter(((r.experiment, r.optimizer, r.staleness), _kind(r)) for r in runs)
    lines = [_line("experiment", "optimizer", "staleness", *kinds), _line(*["---"] * (3 + len(kinds)))]
    lines += [_line(*key, *(groups[key, kind] for kind in kinds)) for key in sorted({key for key, _ in groups})]
    total = Counter(_kind(run) for run in runs)
    lines.append(_line("all", "", "", *(total[kind] for kind in kinds)))
    early = sum(r.collapsed and r.onset is not None and r.onset < FIRST_STEPS for r in runs)
    lines += [
        "",
        f"{len(runs)} runs, {len({r.condition for r in runs})} conditions (algorithm, optimizer, staleness, learning "
        f"rate, gradient clipping). {early} of the {total['collapsed']} collapses begin before step {FIRST_STEPS}: the "
        "first updates destroy the policy, and nothing can warn of that from a healthy beginning.",
    ]
    if bench.copies:
        lines += [
            "",
            f"{bench.copies} more runs are bit-identical copies of these (same settings and seed, trained again). They "
            "count nowhere, and a run with a copy among those that the alarm was chosen on is not *trained since*.",
        ]
    return "\n".join(lines)


def _kind(run: Run) -> str:
    if run.collapsed:
        return "collapsed"
    return {"no_learning": "never learned"}.get(run.outcome, run.outcome)


def signals(bench: Bench) -> str:
    """One row a signal: its detector of the largest area on one half, at the threshold of that half, on the other."""
    half = halves(bench.runs, SPLITS[0])
    rows = [("**together**", "", held_out(bench.together(), bench.runs, half), _area(bench, bench.together(), half))]
    for name in SIGNALS:
        among = [w for w in EVERY if w.signal == name and bench.tried(w)]
        if among:
            chosen = dict.fromkeys(_short(bench.chosen(among, half == side)) for side in (0, 1))
            found = held_out(bench.best(among), bench.runs, half)
            rows.append((f"`{name}`", "; ".join(chosen), found, _area(bench, bench.best(among), half)))
    head, body = rows[0], sorted(rows[1:], key=lambda row: -_share(row[2].recall))
    lines = [
        _line("signal", "detector", "healthy alarmed", "not collapsed, alarmed", "found by detection", "alarms right",
              f"of onsets from step {FIRST_STEPS}", "before the onset", "onset - alarm, steps", "area under ROC"),
        _line(*["---"] * 10),
    ]  # fmt: skip
    for name, detector, found, roc in (head, *body):
        lines.append(
            _line(name, detector, found.false_alarms, found.all_false_alarms, found.recall, found.precision,
                  found.recall_late, found.before, _lead(found.leads), roc)
        )  # fmt: skip
    silent = [name for name in SIGNALS if not any(w.signal == name and bench.tried(w) for w in EVERY)]
    weak = [name.strip("`*") for name, _, found, _ in body if _share(found.recall) < USELESS]
    lines += [
        "",
        f"Of no use here (fewer than {100 * USELESS:.0f} % of the collapses at such a threshold): {_named(weak)}. "
        f"Not tried, because fewer than ten runs of either kind logged them: {_named(silent)}.",
    ]
    return "\n".join(lines)


def families(bench: Bench) -> str:
    """Constant thresholds beside self-baselined ones: each detector over all signals that enough runs logged."""
    half = halves(bench.runs, SPLITS[0])
    lines = [_line("detector", "signals", "median healthy alarmed", "median found", "best signal", "found"),
             _line(*["---"] * 6)]  # fmt: skip
    for name in DETECTORS:
        found = [
            (w, held_out(bench.single(w), bench.runs, half)) for w in EVERY if w.detector == name and bench.tried(w)
        ]
        if not found:
            continue
        best, verdict = max(found, key=lambda pair: _share(pair[1].recall) - _share(pair[1].false_alarms))
        alarmed = np.median([_share(v.false_alarms) for _, v in found])
        recall = np.median([_share(v.recall) for _, v in found])
        lines.append(
            _line(f"`{name}`", len(found), f"{100 * alarmed:.0f} %", f"{100 * recall:.0f} %",
                  f"`{best.signal}` {best.side}", f"{verdict.recall}; healthy {verdict.false_alarms}")
        )  # fmt: skip
    return "\n".join(lines)


def splits(bench: Bench) -> str:
    """The combined alarm on every way to hold runs out, and on runs that came after it was chosen."""
    lines = [_line("thresholds from", "judged on", "healthy alarmed", "not collapsed, alarmed", "found by detection",
                   "alarms right", "before the onset", "onset - alarm, steps", "detection - alarm"),
             _line(*["---"] * 9)]  # fmt: skip
    for by in SPLITS:
        found = held_out(bench.together(), bench.runs, halves(bench.runs, by))
        lines.append(_together(f"half of the {by}s", "the other half, and the other way round", found))
    if new := since(bench):
        lines.append(_together("runs that the alarm was chosen on", "those trained since", new))
    for name in sorted({run.optimizer for run in bench.runs}):
        other = np.array([run.optimizer != name for run in bench.runs])
        if (bench.healthy & other).sum() >= 10 and (bench.healthy & ~other).any():
            scores = bench.together()(other)
            at = threshold(scores.top[other & bench.healthy], TARGET)
            lines.append(_together("the other optimizer", name, judged(scores, at, ~other)))
    return "\n".join(lines)


def since(bench: Bench) -> Verdict | None:
    """The combined alarm on runs trained after it was chosen, at the threshold of those before; None without either."""
    fresh = np.array([run.fresh for run in bench.runs])
    if not (fresh.any() and (bench.healthy & ~fresh).any()):
        return None
    scores = bench.together()(~fresh)
    return judged(scores, threshold(scores.top[~fresh & bench.healthy], TARGET), fresh)


def _together(source: str, on: str, found: Verdict) -> str:
    return _line(source, on, found.false_alarms, found.all_false_alarms, found.recall, found.precision, found.before,
                 _lead(found.leads), _lead(found.ahead))  # fmt: skip


def endings(bench: Bench) -> str:
    """Who is alarmed, by how the run ended: the combined alarm and its plainest part at held-out thresholds."""
    half = halves(bench.runs, SPLITS[0])
    makes = (bench.together(), bench.single(TOGETHER[0]))
    lines = [_line("the run", "together", PLAIN), _line(*["---"] * 3)]
    found = [_alarmed(bench, make, half) for make in makes]
    for kind in ("collapsed", "healthy", "mild", "never learned", "falling"):
        here = [i for i, run in enumerate(bench.runs) if _kind(run) == kind]
        mine = [[alarm for i in here if (alarm := alarms[i]) is not None] for alarms in found]
        lines.append(_line(kind, *(Share(sum(alarms), len(alarms)) for alarms in mine)))
    return "\n".join(lines)


def _alarmed(bench: Bench, make: Make, half: np.ndarray) -> list[bool | None]:
    """Whether each run was alarmed at the threshold of the other half; None where the detector was not tried."""
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
    lines = [_line("healthy alarmed", *(f"{100 * rate:.0f} %" for rate in RATES)), _line(*["---"] * (1 + len(RATES)))]
    rows: list[tuple[str, Make]] = [("together", bench.together())]
    rows += [(f"`{w.signal}` {w.side}, `{w.detector}`", bench.single(w)) for w in TOGETHER]
    for name, make in rows:
        points = recall_at(crossed(make, bench.runs, half), bench.runs, RATES)
        lines.append(_line(name, *(_point(point) for point in points)))
    return "\n".join(lines)


def conditions(bench: Bench) -> str:
    """The combined alarm by algorithm, optimizer and staleness, at held-out thresholds."""
    half = halves(bench.runs, SPLITS[0])
    parts = []
    for side in (0, 1):
        scores = bench.together()(half != side)
        parts.append((scores, threshold(scores.top[(half != side) & bench.healthy], TARGET), half == side))
    lines = [_line("condition", "healthy alarmed", "not collapsed, alarmed", "found by detection", "alarms right",
                   "before the onset", "onset - alarm, steps"), _line(*["---"] * 7)]  # fmt: skip
    for title, key in (
        ("", lambda r: r.algorithm), ("", lambda r: r.optimizer), ("staleness ", lambda r: r.staleness),
    ):  # fmt: skip
        for value in sorted({key(run) for run in bench.runs}):
            here = np.array([key(run) == value for run in bench.runs])
            found = [judged(scores, at, among & here) for scores, at, among in parts]
            both = _added(found)
            lines.append(_line(f"{title}{value}", both.false_alarms, both.all_false_alarms, both.recall,
                               both.precision, both.before, _lead(both.leads)))  # fmt: skip
    return "\n".join(lines)


def peers(bench: Bench, peer: Peer) -> str:
    """rldoctor on the same runs; the combined alarm and its plainest part at exactly its share of healthy runs."""
    half = halves(bench.runs, SPLITS[0])
    known = [run for run in bench.runs if run.run_id in peer.told]
    ours = [crossed(make, bench.runs, half) for make in (bench.together(), bench.single(TOGETHER[0]))]
    lines = [_line(f"rldoctor {peer.version}", "healthy alarmed", "not collapsed, alarmed", "found by detection",
                   "together, at as many healthy", f"{PLAIN}, at as many healthy"), _line(*["---"] * 6)]  # fmt: skip
    for level in ("CRITICAL", "WARNING"):
        for how, words in (
            ("whole", "the whole log"), ("until_detection", "the log up to the detection"),
            ("along", "asked after every step"),
        ):  # fmt: skip
            wrong, right, lasting = rates(peer, known, level, how)
            points = [recall_at(scores, bench.runs, (_share(wrong),))[0] for scores in ours]
            lines.append(
                _line(f"{level.lower()}, {words}", wrong, lasting, right, *(_point(point) for point in points))
            )
    missing = len(bench.runs) - len(known)
    if missing:
        lines += ["", f"Not recorded for {missing} of the runs."]
    return "\n".join(lines)


def _point(point: tuple[float, float, float]) -> str:
    return f"{100 * point[0]:.0f} % [{100 * point[1]:.0f}, {100 * point[2]:.0f}]"


def everything(bench: Bench, peer: Peer | None) -> str:
    """All of it, for the terminal."""
    parts = [
        corpus(bench),
        splits(bench),
        endings(bench),
        roc(bench),
        signals(bench),
        families(bench),
        conditions(bench),
    ]
    return "\n\n".join(parts + ([peers(bench, peer)] if peer is not None else []))


def _added(found: Iterable[Verdict]) -> Verdict:
    from studies.early_warning.evaluate import added

    return added(found)


def _area(bench: Bench, make: Make, half: np.ndarray) -> str:
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


def _share(found: Share) -> float:
    return found.k / found.n if found.n else 0.0


def _short(watched: Watched) -> str:
    return f"{watched.side}, `{watched.detector}`"


def _named(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main(runs: Path, experiments: Sequence[str], files: Sequence[Path], output: Path | None = None) -> str:
    """Return how well the detectors warn on the finished runs of experiments and files; write them as a corpus."""
    from studies.early_warning import corpus as corpora
    from workbench.cli.report import gather

    parts = [corpora.read(file) for file in files]
    parts += [corpora.of_results(one) for one in gather(runs, experiments)]
    found = corpora.unique([run for part in parts for run in part])
    counts = {kind: sum(getattr(run, kind) for run in found) for kind in ("collapsed", "healthy")}
    if min(counts.values()) < FEWEST:
        raise InputError(
            f"an evaluation takes at least {FEWEST} collapsed and {FEWEST} healthy runs, not {counts['collapsed']} and "
            f"{counts['healthy']}; name experiments, or --from {CORPUS}"
        )
    beside = [file.with_name(PEER) for file in files if file.with_name(PEER).is_file() and file.name != PEER]
    if output is not None:
        corpora.write(found, output)
    return everything(Bench(found), read_peer(beside[0]) if beside else None)
