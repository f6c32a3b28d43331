"""Early warning: detectors, corpus, thresholds, held-out verdicts, the page made of them, and `sorl bench
warning`.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from docs.generate.render import ROOT
from sorl.analysis.results import CURVES as KEPT
from sorl.spec import InputError
from studies.early_warning import corpus as corpora
from studies.early_warning import evaluate, page, peers
from studies.early_warning.detectors import BASELINE, DETECTORS, SIGNALS, WORST, Side, score
from studies.early_warning.evaluate import Bench
from studies.early_warning.scores import TOGETHER, Watched, joined, scored
from tests.cli.command import done, refused
from tests.studies.runs import ONSET, STEPS, corpus, run

CURVES = arrays(float, st.integers(1, 40), elements=st.floats(-50, 50).map(lambda x: round(x, 3)))
SHARES = arrays(float, st.integers(1, 40), elements=st.floats(0, 1).map(lambda x: round(x, 3)))
SIDES = st.sampled_from(("above", "below"))
AFFINE = ("baseline", "cusum", "departure")
SCALED = ("start", "peak", "slump")


@pytest.mark.parametrize("name", DETECTORS)
@given(CURVES, SIDES, st.data())
@settings(max_examples=40)
def test_a_score_depends_on_no_later_step(name: str, curve: np.ndarray, side: Side, data: Any) -> None:
    cut = data.draw(st.integers(0, len(curve)))
    known = np.array(data.draw(st.lists(st.booleans(), min_size=len(curve), max_size=len(curve))), bool)
    other = curve.copy()
    other[cut:] = data.draw(
        arrays(float, len(curve) - cut, elements=st.sampled_from((0.0, 1e9, np.nan, -np.inf)))
    )
    changed = known.copy()
    changed[cut:] = ~known[cut:]
    whole = score(name, curve, side, known)
    short = score(name, curve[:cut], side, known[:cut])
    assert np.array_equal(whole[:cut], short, equal_nan=True)
    assert np.array_equal(whole[:cut], score(name, other, side, changed)[:cut], equal_nan=True)


@pytest.mark.parametrize("name", [*AFFINE, *SCALED])
@given(st.data(), SIDES, st.sampled_from((0.25, 2.0, 64.0)), st.sampled_from((-8.0, 0.0, 16.0)))
@settings(max_examples=40)
def test_no_score_depends_on_the_unit_and_some_not_on_the_origin(name, data, side, a, b):
    curve = data.draw(CURVES if name in AFFINE else SHARES)
    same = score(name, curve, side)
    moved = score(name, a * curve + (b if name in AFFINE else 0), side)
    big = np.abs(same) > 1e4  # a spread of rounding alone
    assert np.allclose(same[~big], moved[~big], rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", DETECTORS)
@given(CURVES, SIDES)
@settings(max_examples=20)
def test_what_was_not_measured_has_no_score_and_changes_none(
    name: str, curve: np.ndarray, side: Side
) -> None:
    never = score(name, curve, side, np.zeros(len(curve), bool))
    assert np.isnan(never).all()
    gaps = np.repeat(curve, 2)
    known = np.tile([True, False], len(curve))
    gaps[~known] = np.nan
    found = score(name, gaps, side, known)
    assert np.isnan(found[~known]).all()
    assert np.array_equal(found[known], score(name, curve, side), equal_nan=True)


@pytest.mark.parametrize("name", DETECTORS)
def test_a_measured_value_that_is_no_number_is_the_worst_there_is(name: str) -> None:
    for broken, side in product((np.nan, np.inf, -np.inf), ("above", "below")):
        assert score(name, np.array([1.0] * 7 + [broken] + [1.0] * 4), side)[7] == WORST


def test_scores_by_hand_of_signals_that_are_kept_with_results() -> None:
    assert set(SIGNALS) <= set(KEPT)
    curve = np.array([1.0, 2.0, 1.0, 2.0, 1.0, 1.0, 4.0])  # median 1, median step 1
    assert score("baseline", curve, "above")[BASELINE:].tolist() == [0.0, 3.0]
    assert score("cusum", curve, "above")[BASELINE:].tolist() == [0.0, 2.0]
    assert score("start", curve, "above")[1:].tolist() == curve[1:].tolist()
    assert score("peak", np.array([0.2, 0.8, 0.4]), "below").tolist() == [0.0, 0.0, 0.5]
    assert score("slump", np.array([0.2, 0.8, 0.4, 0.0, 0.0]), "below").tolist() == pytest.approx(
        [0, 0, 0.2, 0.2, 1.0]
    )
    assert score("level", curve, "below").tolist() == (-curve).tolist()


ENTROPY = Watched("entropy", "above", "start")


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(corpus())


def share(found) -> tuple[int, int]:
    return found.k, found.n


def test_a_signal_that_leads_is_found_with_its_lead_and_one_that_is_noise_is_not(bench: Bench) -> None:
    half = evaluate.halves(bench.runs, "seed")
    seen = []
    found = evaluate.held_out(lambda tuning: seen.append(tuning) or bench.scores[ENTROPY], bench.runs, half)
    assert [set(half[tuning].tolist()) for tuning in seen] == [{0}, {1}], "no half sets its own threshold"
    assert (share(found.recall), found.before.k, set(found.ahead)) == ((20, 20), 20, {10})
    # a threshold that lets none of ten through lets some of the next ten
    assert 1 <= found.false_alarms.k <= 3
    assert evaluate.median_interval(found.leads) == (2.0, 2.0, 2.0)
    assert (
        evaluate.held_out(
            bench.single(Watched("grad_norm_max", "above", "baseline")), bench.runs, half
        ).recall.k
        < 8
    )
    noise = bench.scores[Watched("grad_norm_max", "above", "peak")]
    # grows with the false alarms allowed
    points = evaluate.recall_at(noise, bench.runs, (0.0, 0.2, 0.5, 1.0))
    assert [recall for recall, _, _ in points] == sorted(recall for recall, _, _ in points)
    assert points[-1][0] == 1.0
    assert all(low <= recall <= high for recall, low, high in points)


@pytest.mark.parametrize("by", ["seed", "condition"])
def test_halves_share_no_seed_or_condition_and_a_run_trained_again_lies_with_its_copy(
    bench: Bench, by: str
) -> None:
    half = evaluate.halves(bench.runs, by)
    sides = [{getattr(r, by) for r, h in zip(bench.runs, half, strict=True) if h == side} for side in (0, 1)]
    assert all(sides)
    assert not sides[0] & sides[1]
    copies = [replace(r, run_id=f"again-{r.run_id}", experiment="other") for r in corpus()]
    assert np.array_equal(*np.split(evaluate.halves([*corpus(), *copies], by), 2))


def test_a_run_trained_again_counts_once_and_is_not_new() -> None:
    old = [
        replace(r, outcome="no_learning", onset=None, curves={"success": r.curves["success"]})
        for r in corpus(3)
    ]
    new = [replace(r, run_id=f"again-{r.run_id}", experiment="a control", fresh=True) for r in corpus(4)]
    bench = Bench([*old, *new])
    assert (len(bench.runs), bench.copies) == (8, 6)
    assert [r.run_id for r in bench.runs if r.fresh] == ["again-run-falls-3", "again-run-stays-3"]
    assert {r.outcome for r in bench.runs} == {"healthy", "collapsed"}  # judged by the newest rule
    assert all("entropy" in r.curves for r in bench.runs)
    assert "6 more runs are bit-identical copies" in page.corpus(bench)
    changed = replace(new[0], run_id="other", curves=new[0].curves | {"entropy": new[1].curves["entropy"]})
    assert len(corpora.distinct([new[0], changed])) == 2


def test_false_alarms_count_every_run_that_did_not_collapse() -> None:
    up = {"onset": None, "detection": None}
    never = [replace(run(s, True), run_id=f"never-{s}", outcome="no_learning", **up) for s in range(20, 26)]
    falling = replace(run(30, True), run_id="falling", outcome="falling", **up)
    assert (falling.healthy, falling.collapsed) == (False, False), "undecided"
    bench = Bench([*corpus(), *never, replace(never[0], run_id="mild", outcome="mild", seed=40), falling])
    found = evaluate.judged(bench.scores[ENTROPY], 2.0, np.ones(len(bench.runs), bool))
    shares = [share(s) for s in (found.false_alarms, found.all_false_alarms, found.precision)]
    assert shares == [(0, 20), (7, 27), (20, 27)]
    everything = page.everything(bench, None)
    assert "| never learned | 6/6 = 100 %" in everything
    assert "| falling | 1/1 = 100 %" in everything
    assert "of all runs that did not collapse" in page.findings(bench, peers.Peer("0.0", {}))


def test_an_alarm_after_the_detection_finds_nothing_and_a_run_without_the_signal_counts_on_neither_side() -> (
    None
):
    late = run(0, True)
    late.curves["entropy"][0][:] = np.where(np.arange(STEPS) > ONSET + 9, 0.9, 0.2)
    assert share(evaluate.judged(scored([late], ENTROPY), 2.0, np.array([True])).recall) == (0, 1)
    runs = [replace(r, curves={"success": r.curves["success"]}) for r in corpus(3)]
    found = evaluate.judged(scored(runs, ENTROPY), 0.0, np.ones(len(runs), bool))
    assert (found.recall.n, found.false_alarms.n) == (0, 0)


def test_units_of_the_combined_alarm_come_from_the_runs_that_may_be_learned_from(bench: Bench) -> None:
    tuning = evaluate.halves(bench.runs, "seed") == 0
    parts = [bench.scores[watched] for watched in TOGETHER]
    spoiled = [
        (
            replace(
                r, curves=r.curves | {"entropy": (9 * r.curves["entropy"][0] ** 3, r.curves["entropy"][1])}
            )
            if not tuning[i] and r.healthy
            else r
        )
        for i, r in enumerate(bench.runs)
    ]
    again = [scored(spoiled, watched) for watched in TOGETHER]
    kept = tuning | bench.collapsed
    assert np.array_equal(joined(parts, tuning).top[kept], joined(again, tuning).top[kept])


def test_thresholds_and_areas_by_hand() -> None:
    scores = np.array([1.0, 2.0, 3.0, 4.0, np.nan])
    assert [int((scores >= evaluate.threshold(scores, rate)).sum()) for rate in (0.0, 0.25, 0.5, 1.0)] == [
        0,
        1,
        2,
        4,
    ]
    assert evaluate.threshold(np.array([np.nan]), 0.5) == np.inf
    one = (np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    other = (np.array([9.0, 7.0]), np.array([8.0]))
    assert evaluate.area(*one) == 0.875
    found, low, high = evaluate.areas([one, other])
    assert found == pytest.approx((4 * 0.875 + 2 * 0.5) / 6)
    assert low <= found <= high
    assert evaluate.areas([]) == (0.5, 0.0, 1.0)
    assert evaluate.area(np.array([np.nan]), np.array([1.0])) == 0.5
    assert evaluate.median_interval([]) is None


def test_a_corpus_is_read_as_it_was_written_and_null_stays_null(tmp_path: Path) -> None:
    runs = corpus(2)
    values, known = runs[0].curves["entropy"]
    values[3] = np.nan
    values[4] = np.nan
    known[4] = False
    corpora.write(runs, file := tmp_path / "corpus.parquet")
    again = corpora.read(file)
    assert [r.run_id for r in again] == [r.run_id for r in runs]
    kept, seen = again[0].curves["entropy"]
    assert np.isnan(kept[3])
    assert seen.tolist() == known.tolist()
    assert "reward" not in again[0].curves
    assert (again[0].onset, again[-1].onset, again[0].condition) == (ONSET, None, runs[0].condition)
    assert corpora.unique([*again, *runs]) == again


def test_a_peer_is_counted_on_the_same_runs(bench: Bench, tmp_path: Path) -> None:
    rows = [
        {
            "run_id": r.run_id,
            "whole": "CRITICAL" if r.collapsed else "OK",
            "until_detection": "WARNING",
            "detectors": [],
            "first_warning": 8,
            "first_critical": ONSET + 9 if r.collapsed else None,
        }
        for r in bench.runs
    ]
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"rldoctor": "0.0"})
    pq.write_table(table, file := tmp_path / "peer.parquet")
    peer = peers.read(file)
    assert [share(s) for s in peers.rates(peer, bench.runs, "CRITICAL", "whole")] == [
        (0, 20),
        (20, 20),
        (0, 20),
    ]
    # after the detection
    assert [s.k for s in peers.rates(peer, bench.runs, "CRITICAL", "along")] == [0, 0, 0]
    assert [s.k for s in peers.rates(peer, bench.runs, "WARNING", "along")] == [20, 20, 20]
    assert "rldoctor 0.0" in page.peers(bench, peer)
    assert "20/20 = 100 %" in page.findings(bench, peer)


def test_the_page_says_what_is_useless_what_was_not_tried_and_judges_later_runs_apart(bench: Bench) -> None:
    signals = page.signals(bench)
    assert "`grad_norm_max`" in signals.split("Of no use here")[1]
    assert "`reward`" in signals.split("Not tried")[1]
    assert "20/20" in page.splits(bench)
    assert "**together**" in page.everything(bench, None)
    later = page.splits(Bench([replace(r, fresh=r.seed > 12) for r in corpus()]))
    assert "7/7 = 100 %" in next(line for line in later.splitlines() if "trained since" in line)


def test_the_verb_evaluates_a_corpus_can_keep_it_and_refuses_other_files_by_name(tmp_path: Path) -> None:
    corpora.write(corpus(), file := tmp_path / "corpus.parquet")
    verb = ("bench", "warning", "--from")
    assert (
        "| half of the seeds |"
        in done(*verb, file, "--from", file, "--output", tmp_path / "again.parquet").stdout
    )
    assert len(corpora.read(tmp_path / "again.parquet")) == 40
    corpora.write(corpus(3), tmp_path / "few")
    pq.write_table(pa.table({"x": [1]}), other := tmp_path / "other")
    (tmp_path / "text").write_text("no")
    for name, says in (
        ("few", "at least 20 collapsed and 20 healthy runs, not 3 and 3"),
        ("none", "no file"),
        ("other", "neither a corpus"),
        ("text", "no Parquet"),
    ):
        refused(says, *verb, tmp_path / name)
    with pytest.raises(InputError, match="no record of rldoctor"):
        peers.read(other)


def test_the_shipped_runs_are_small_and_the_peer_was_asked_about_each_of_them() -> None:
    file = ROOT / page.CORPUS
    assert file.stat().st_size < 4 * 2**20
    assert {run.run_id for run in corpora.read(file)} == set(peers.read(file.with_name(page.PEER)).records)
