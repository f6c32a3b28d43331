"""The adaptive search on landscapes whose boundary is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.analysis.region import boundary
from sorl.grid.search import Rule, Trial, bracket, search, usual


@st.composite
def landscapes(draw) -> tuple[int, list[int | None], Rule, dict[Trial, bool]]:
    """Any outcomes at all, monotone or not, for up to two arms and four columns."""
    arms = draw(st.integers(1, 2))
    columns = draw(st.integers(1, 4))
    rule = Rule(draw(st.integers(3, 9)), draw(st.integers(1, 5)), draw(st.integers(1, 3)))
    neighbours = [None, *(draw(st.sampled_from([None, i])) for i in range(columns - 1))]
    trials = [
        Trial(a, c, p, s)
        for a in range(arms)
        for c in range(columns)
        for p in range(rule.points)
        for s in range(rule.seeds)
    ]
    slope = draw(st.sampled_from([0.0, 1.0, 50.0]))
    stream = np.random.default_rng(draw(st.integers(0, 2**31)))
    edge = stream.uniform(-1, rule.points, (arms, columns))
    chance = [1 / (1 + math.exp(min(50, slope * (edge[t.arm, t.column] - t.point)))) for t in trials]
    return arms, neighbours, rule, {t: bool(stream.random() < p) for t, p in zip(trials, chance, strict=True)}


@given(landscapes(), st.integers(0, 2**31))
def test_a_search_that_is_cut_off_anywhere_goes_on_to_the_same_runs(drawn, seed):
    arms, neighbours, rule, truth = drawn
    whole = search(arms, neighbours, rule, truth.get)
    stream = np.random.default_rng(seed)
    known = {}
    while True:
        found = search(arms, neighbours, rule, known.get)
        assert found.done == whole.done[: len(found.done)], "what is over is a beginning of the whole search"
        if not found.now:
            break
        left = [t for t in found.now if t not in known]
        known |= {t: truth[t] for t in left if stream.random() < 0.6 or t == left[0]}
    assert found == whole
    assert set(known) == set(whole.done), "nothing was run that an uninterrupted search would not have run"


@given(landscapes(), st.integers(1, 40))
def test_it_ends_with_every_seed_on_both_sides_of_every_boundary_and_asks_for_nothing_twice(drawn, runs):
    arms, neighbours, rule, truth = drawn
    found = search(arms, neighbours, rule, truth.get)
    assert set(found.done) <= set(truth)
    assert len(set(found.done)) == len(found.done)
    assert len(search(arms, neighbours, replace(rule, runs=runs), truth.get).done) <= runs, "its budget"
    columns: dict[tuple[int, int], dict[int, dict[int, bool]]] = {}
    for t in found.done:
        columns.setdefault((t.arm, t.column), {}).setdefault(t.point, {})[t.seed] = truth[t]
    assert len(columns) == arms * len(neighbours)
    for column in columns.values():
        low, high = bracket(column, rule.points)
        assert high - low == 1
        assert all(len(column[p]) == rule.seeds for p in (low, high) if 0 <= p < rule.points)


@pytest.mark.parametrize("width", [0.15, 0.5])
def test_a_third_of_the_runs_gives_the_boundary_as_well_as_the_full_grid(width):
    """Logistic collapse probability in 4 columns of 11 values x 5 seeds; `width` is its scale in steps of the
    grid.
    """
    points = 11
    seeds = 5
    columns = 4
    rule = Rule(11, 5)
    ours = []
    full = []
    spent = 0
    for seed in range(40):
        stream = np.random.default_rng(seed)
        edge = np.clip(
            stream.uniform(1.5, 8.5) + np.cumsum(stream.normal(-0.7, 0.7, columns)), 0.5, points - 1.5
        )
        drawn = stream.random((columns, points, seeds))
        fell = drawn < 1 / (1 + np.exp(-(np.arange(points)[None, :, None] - edge[:, None, None]) / width))
        found = search(1, [None, 0, 1, 2], rule, lambda t, fell=fell: bool(fell[t.column, t.point, t.seed]))
        spent += len(found.done)
        for number in range(columns):
            done = [t for t in found.done if t.column == number]
            ours.append(_edge([(t.point, fell[number, t.point, t.seed]) for t in done]) - edge[number])
            every = [(p, fell[number, p, s]) for p in range(points) for s in range(seeds)]
            full.append(_edge(every) - edge[number])
    assert spent <= 40 * columns * points * seeds / 3
    assert np.sqrt(np.mean(np.square(ours))) <= 1.1 * np.sqrt(np.mean(np.square(full)))


def _edge(runs: list[tuple[int, bool]]) -> float:
    counts = {p: (sum(bool(f) for q, f in runs if q == p), sum(q == p for q, _ in runs)) for p, _ in runs}
    return boundary(counts).at


def test_one_odd_run_does_not_overrule_its_neighbours_and_where_seeds_disagree_all_are_run():
    column = {
        2: dict.fromkeys(range(5), False),
        3: {0: True},
        4: dict.fromkeys(range(5), False),
        6: {0: True, 1: True},
    }
    assert bracket(column, 9) == (4, 6)
    known = {Trial(0, 0, 4, 0): True, Trial(0, 0, 4, 1): False}
    assert search(1, [None], Rule(9, 5), known.get).now == tuple(Trial(0, 0, 4, s) for s in (2, 3, 4))
    found = search(1, [None, 0], Rule(11, 5), lambda t: t.point >= 8)
    second = [t.point for t in found.done if t.column == 1]
    assert (second[:4], len(second)) == (
        [7, 7, 8, 8],
        10,
    ), "a column begins where its neighbour's boundary is"


def test_budgets_of_time_bound_a_search_and_a_full_one_asks_for_everything_at_once():
    found = search(1, [None], Rule(9, 5, seconds=55.0), lambda t: t.point >= 3, lambda _: 10.0)
    assert (len(found.done), found.exhausted) == (5, True)
    assert not search(1, [None], Rule(9, 5, seconds=1e6), lambda t: t.point >= 3, lambda _: 10.0).exhausted
    assert 20 < usual([None, 0], Rule(9, 5)) < 2 * 9 * 5 / 3
    full = Rule(3, seeds=2, full=True)
    first = search(1, [None, None], full, lambda _: None)
    assert set(first.now) == {Trial(0, c, p, s) for c in (0, 1) for p in range(3) for s in range(2)}
    assert search(1, [None, None], full, lambda t: t.point > 0).done == first.now
