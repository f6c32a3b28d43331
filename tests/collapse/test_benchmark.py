"""The benchmark of the collapse rule: its baseline, its noise, its planted falls, and one small table."""

import math

import numpy as np
import pytest

from bench import collapse_rule
from bench.collapse_rule import (
    Called,
    by_counts,
    by_medians,
    down,
    planted,
    share,
    stationary,
    synthetic,
    table,
)

TOY = np.array([0.10, 0.20, 0.40, 0.50, 0.52, 0.50, 0.30, 0.10, 0.05, 0.05])
HELD = (0.38, 256)


def test_running_medians_and_counts_call_what_was_worked_by_hand():
    # 0.423077, 0.807692, 0.903846, 0.903846 at points 6 to 9, two in a row
    for severe, detected in ((0.42, 7), (0.43, 8), (0.5, 8), (0.80, 8), (0.81, 9), (0.9, 9), (0.91, None)):
        called = by_medians((TOY, None), episodes=None, window=1, baseline=1, points=2, severe=severe)
        assert called.detection == detected
        assert severe != 0.5 or called == Called("collapsed", detection=8, onset=5)
    # five dead batches, too few for medians; two do for counts
    run = np.r_[np.full(31, 0.53125), np.zeros(5)], HELD
    assert by_medians(run).outcome == "healthy"
    assert by_counts(run, 1, dated=True) == Called("collapsed", detection=32, onset=30, interval=(30, 30))
    assert Called("collapsed", 37).delay(36) == 2, "a delay counts both ends"
    assert Called("collapsed", 35).delay(36) == Called("healthy").delay(36) == math.inf, (
        "before the fall is none"
    )
    assert share([True, *[False] * 9]) == "1/10 = 10 % [0.25, 44.5]"


def test_the_noise_and_the_falls_of_the_table_are_what_they_say():
    rng = np.random.default_rng(1)
    noise = rng.binomial(64, 0.6, 60) / 64
    assert [stationary(noise), stationary(noise + np.linspace(-0.1, 0.1, 60))] == [True, False]
    # var = p (1 - p) / 64 (1 + (g - 1) rho), rho = .5
    varies = [np.var(synthetic(0.6, 20000, group, rng)[0]) / (0.6 * 0.4 / 64) for group in (1, 8)]
    assert varies == pytest.approx([1, 4.5], rel=0.05)
    scores, held = planted((np.full(4000, 0.5), HELD), 2000, np.full(2000, 0.5), rng)
    assert (held, (scores[:2000] == 0.5).all()) == (HELD, True)
    assert scores[2000:].mean() == pytest.approx(0.25, rel=0.02), "its share of the rest"


def test_three_dead_batches_after_a_half_are_192_log_2_nats_for_being_down():
    scores = np.r_[np.full(20, 0.5), np.zeros(3)]  # 133.1 nats; log 1000 is 6.91
    assert [down(scores, 64, phi=phi) for phi in (1.0, 19.0, 20.0)] == [True, True, False]
    assert not down(np.full(20, 0.5), 64, phi=1.0)


def test_a_few_draws_fill_every_cell_of_the_table(monkeypatch):
    for name, value in {"LENGTHS": {36: 2}, "FLAT": {36: 2}, "PLANTED": 2, "DATED": 1}.items():
        monkeypatch.setattr(collapse_rule, name, value)
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table(seed=1).splitlines())
    assert head[2:] == ["PPO-like: counts", "PPO-like: medians", "GRPO-like: counts", "GRPO-like: medians"]
    assert all(len(row) == 6 and all(row) for row in rows)
    found = {(row[0], row[1]): row[2:] for row in rows}
    # two steps never turn a median
    assert found["recorded", "to 0 at step 36: called within 2"][1].startswith("0/2")
    assert {noise for noise, _ in found} == {"recorded", "synthetic"}
