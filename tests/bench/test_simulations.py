"""The simulations behind docs/collapse.md and docs/statistics.md draw what they say and fill their tables."""

from typing import Any

import numpy as np
import pytest

from bench import healthy_curves, interval_coverage
from sorl.analysis.stats import Estimate


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
