"""The simulations behind docs/collapse.md and docs/statistics.md draw what they say and fill their tables."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench import healthy_curves, interval_coverage, unsized_curves
from sorl.analysis.stats import Estimate
from sorl.collapse import unsized


def test_the_noise_of_healthy_curves_has_the_stated_size_and_correlation() -> None:
    rng = np.random.default_rng(1)
    for draw in (healthy_curves.draw_normal, healthy_curves.draw_drift):
        assert draw(rng, 100_000).std() == pytest.approx(0.1, rel=0.02)
    drift = healthy_curves.draw_drift(rng, 100_000)
    assert np.corrcoef(drift[:-1], drift[1:])[0, 1] == pytest.approx(0.5, abs=0.02)
    assert healthy_curves.rise(0.2, 0.6, 700)[[0, 19, 699]].tolist() == [0.2, 0.6, 0.6]


def test_a_curve_that_falls_is_counted_from_the_length_on_at_which_it_fell(monkeypatch: Any) -> None:
    monkeypatch.setattr(healthy_curves, "LENGTHS", (20, 60))
    scores = np.r_[np.full(30, 0.5), np.zeros(30)]
    early, late = healthy_curves.judge_healthy(scores, 64)
    assert (early.collapsed, late.collapsed) == (False, True)


def test_an_interval_holds_the_truth_only_where_there_is_one() -> None:
    assert interval_coverage.holds(Estimate(0.5, 0.4, 0.6), 0.6)
    assert not interval_coverage.holds(Estimate(0.5, 0.4, 0.6), 0.7)
    assert not interval_coverage.holds(Estimate(0.5), 0.5)


def test_a_few_draws_fill_every_cell_of_both_tables(monkeypatch: Any) -> None:
    monkeypatch.setattr(healthy_curves, "LENGTHS", (20, 30))
    healthy = healthy_curves.table(runs=2).splitlines()
    assert len(healthy) == 2 + len(healthy_curves.CURVES)
    assert all(line.count("|") == 5 for line in healthy)
    monkeypatch.setattr(interval_coverage, "SEEDS_OF_SUCCESS", (3,))
    monkeypatch.setattr(interval_coverage, "SEEDS_OF_COLLAPSE", (5,))
    success, collapses = interval_coverage.tables(arms=2).split("\n\n")
    assert [len(table.splitlines()) for table in (success, collapses)] == [3, 6]


def test_the_fast_monotone_fit_of_the_study_is_that_of_the_verdict() -> None:
    rng = np.random.default_rng(2)
    for length in (0, 1, 7, 60):
        points = rng.binomial(8, 0.5, length) / 8
        assert unsized_curves.fit_rising(points) == pytest.approx(unsized.fit_rising(points))


def test_a_growing_curve_is_called_fallen_some_steps_after_its_fall_and_never_without() -> None:
    rng = np.random.default_rng(3)
    cell = unsized_curves.falls((64,))[1]
    call = unsized_curves.first_call(cell.draw(rng, 60), since=31, every=1)
    assert call is not None
    assert 31 <= call < 50
    assert unsized_curves.first_call(np.full(60, 0.5), since=12, every=4) is None


def test_the_same_fall_gets_one_word_on_every_scale() -> None:
    cell = unsized_curves.falls((64,))[1]
    assert unsized_curves.words_by_scale(cell.draw(np.random.default_rng(4), 60)) == {"collapsed"}


def test_every_count_of_unsized_curves_is_in_a_table_and_kept_in_a_file(monkeypatch: Any) -> None:
    monkeypatch.setattr(unsized_curves, "LENGTHS", (60,))
    monkeypatch.setattr(unsized_curves, "HEALTHY", unsized_curves.HEALTHY[:2])
    tallies = list(unsized_curves.all_tallies(runs=2, few=1))
    for name, questions in unsized_curves.TABLES.items():
        heading, _, *rows = unsized_curves.table_of(name, tallies).splitlines()
        assert heading.count("60 steps") == len(questions)
        assert rows
    assert unsized_curves.tallies_in(unsized_curves.table_of_tallies(tallies)) == tallies
    assert {tally.curves for tally in tallies if tally.table == "scales"} == {1}


def test_the_page_says_how_many_curves_are_behind_a_cell() -> None:
    tally = unsized_curves.Tally("null", "flat", 60, "falling", 0, 1000)
    others = [replace(tally, steps=200), replace(tally, question="live rule", curves=100)]
    text = unsized_curves.sizes([tally, *others])
    assert text == "1,000 curves a cell: null, falling. 100 curves a cell: null, live rule."
