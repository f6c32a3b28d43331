"""One value a step and metric: restarts, equal steps, missing keys, text for numbers."""

import math
from collections import Counter, defaultdict
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sorl.importing.rows import BLOCK, Rows
from sorl.spec import InputError


class Read:
    """What is left of rows."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        collected = Rows("log").extend(rows)
        (self.steps, self.metrics) = collected.by_step()
        reading = collected.reading(["a", "b"])
        self.notes = [*reading.warnings, *reading.notes]


def told(rows: Read) -> dict[int, dict[str, float]]:
    """The values by step and metric."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for name, values in rows.metrics.items():
        for step, value in zip(rows.steps.tolist(), values.tolist(), strict=True):
            found[step] |= {} if value is None else {name: value}
    return dict(found)


def test_of_equal_steps_the_last_value_of_each_metric_counts() -> None:
    rows = Read({"step": 1, "a": 1, "b": 1}, {"step": 1, "a": 2}, {"step": 2, "b": 3}, {"step": 2, "eval": 4})
    assert told(rows) == {1: {"a": 2, "b": 1}, 2: {"b": 3, "eval": 4}}
    assert rows.notes == ["1 row partly replaced by a later row of the same step"]


def test_a_restart_replaces_the_tail_also_of_metrics_that_it_has_not_logged_again() -> None:
    first = [{"step": i, "a": i} | ({"eval": i} if i in (2, 4) else {}) for i in range(1, 6)]
    again = [{"step": i, "a": 10 * i} for i in (3, 4)]
    rows = Read(*first, *again)
    assert told(rows) == {1: {"a": 1}, 2: {"a": 2, "eval": 2}, 3: {"a": 30}, 4: {"a": 40}}
    assert rows.notes == [
        "restarted at step 3: what was logged from there on before was replaced",
        "3 rows of earlier attempts replaced",
    ]


def test_a_producer_behind_another_is_no_restart() -> None:
    rows = Read(
        {"step": 1, "r": 1},
        {"step": 2, "r": 2},
        {"step": 1, "t": 1},
        {"step": 3, "r": 3},
        {"step": 2, "t": 2},
    )
    assert told(rows) == {1: {"r": 1, "t": 1}, 2: {"r": 2, "t": 2}, 3: {"r": 3}}
    assert rows.notes == []


def test_a_clock_that_two_producers_share_is_no_restart_and_does_not_hide_one() -> None:
    first = [
        {"step": i, "time": i} | row
        for i in range(1, 5)
        for row in ({"r": i, "q": i}, {"t": i - 1, "u": i - 1})
    ]
    for row in first[1::2]:
        row["step"] -= 1
    again = [{"step": 2, "time": 9, "r": 20, "q": 20}, {"step": 1, "time": 9, "t": 10, "u": 10}]
    assert {step: row["r"] for step, row in told(Read(*first)).items() if "r" in row} == {
        1: 1,
        2: 2,
        3: 3,
        4: 4,
    }
    rows = Read(*first, *again)
    assert {step: row["r"] for step, row in told(rows).items() if "r" in row} == {1: 1, 2: 20}
    assert {step: row["t"] for step, row in told(rows).items() if "t" in row} == {0: 0, 1: 10}
    assert rows.notes == [
        "restarted at step 2: what was logged from there on before was replaced",
        "6 rows of earlier attempts replaced",
    ]


def test_steps_in_no_order_are_sorted_and_that_is_said() -> None:
    rows = Read(*({"step": i, "a": i} for i in (5, 4, 3, 2, 1)))
    assert told(rows) == {i: {"a": i} for i in range(1, 6)}
    assert rows.notes == ["the rows are not in the order of their steps: sorted"]


def logged_twice(rows: list[dict[str, int]]) -> bool:
    """Whether a metric has two values of one step: else no attempt has logged anything again."""
    logged: Counter[tuple[int, str]] = Counter()
    for row in rows:
        logged.update((row["step"], name) for name in row if name != "step")
    return max(logged.values(), default=0) > 1


def sequential(rows: list[dict[str, int]]) -> dict[int, dict[str, float]]:
    """The same rule, a row at a time: find the attempts, then keep what no later one has replaced."""
    attempts = dict[str, int]()
    latest = dict[str, int]()
    begun: dict[int, tuple[int, int]] = {}
    values: list[tuple[int, int, str, float, int]] = []
    for at, row in enumerate(rows):
        step = row["step"]
        names = [name for name in row if name != "step"]
        back = [name for name in names if step < latest.get(name, step)]
        if 2 * len(back) > len(names):
            attempts |= {name: attempts.get(name, 0) + 1 for name in back}
            now = int(median(attempts[name] for name in back))
            begun[now] = (at, max(step, begun.get(now, (0, 0))[1]))
        latest |= dict.fromkeys(names, step)
        values += [(at, step, name, row[name], attempts.get(name, 0)) for name in names]
    found: dict[int, dict[str, float]] = defaultdict(dict)
    if not logged_twice(rows):
        begun.clear()
    for at, step, name, value, own in values:
        if not any(at < row and step >= first and own < attempt for attempt, (row, first) in begun.items()):
            found[step][name] = value
    return dict(found)


ROWS = st.lists(
    st.fixed_dictionaries({"step": st.integers(0, 6)}, optional={name: st.integers(0, 99) for name in "abc"}),
    min_size=1,
)


@given(ROWS)
@example([{"step": 1, "a": 0}, {"step": 5, "b": 0}, {"step": 0, "a": 1}])
def test_rows_in_blocks_tell_the_same_as_a_row_at_a_time(rows: list[dict[str, int]]) -> None:
    try:
        found = Read(*rows)
    except InputError:
        assert not any(len(row) > 1 for row in rows)
        return
    if "steps are in no order: of equal steps the last value counts" not in found.notes:
        assert told(found) == sequential(rows)
    else:
        last = {(row["step"], name): value for row in rows for name, value in row.items() if name != "step"}
        assert {(step, name): v for step, row in told(found).items() for name, v in row.items()} == last


def test_nothing_logged_is_null_and_nan_is_a_value() -> None:
    rows = Read(
        {"step": 1, "a": None, "b": "nan", "c": "Infinity", "d": True, "e": "1.5", "f": 10**400},
        {"step": 2, "a": float("nan"), "b": [1], "c": "-inf", "d": "text", "e": {}, "f": 1e200, "g": "text"},
    )
    values = {name: [str(v) for v in column.tolist()] for name, column in rows.metrics.items()}
    assert values == {
        "a": ["None", "nan"],
        "b": ["nan", "None"],
        "c": ["inf", "-inf"],
        "d": ["1.0", "None"],
        "e": ["1.5", "None"],
        "f": ["inf", "inf"],
    }


def test_a_log_without_steps_is_numbered_and_rows_without_one_are_left_out_and_both_are_said() -> None:
    assert told(Read({"a": 1}, {"a": 2})) == {0: {"a": 1}, 1: {"a": 2}}
    rows = Read(
        {"step": 3, "a": 1}, {"a": 2}, {"step": "x", "a": 3}, {"step": math.inf, "a": 4}, {"step": -1, "a": 5}
    )
    assert told(rows) == {3: {"a": 1}}
    assert rows.notes == [
        "4 of 5 rows are missing from this verdict",
        "3 of 5 rows left out: 'step' is no number ('x'), first in row 2",
        "1 of 5 rows left out: the step is negative, first in row 5",
    ]


def test_the_step_of_a_training_loop_goes_before_the_count_of_the_tracker() -> None:
    rows = Read({"_step": 0, "train/global_step": 10, "a": 1}, {"_step": 1, "eval/global_step": 10, "b": 2})
    assert told(rows) == {10: {"a": 1, "b": 2}}


@pytest.mark.parametrize("count", [BLOCK - 1, BLOCK, BLOCK + 1])
def test_a_metric_that_begins_late_is_null_before(count: int) -> None:
    rows = Read(*({"step": i, "a": i} for i in range(count)), {"step": count, "b": 1})
    assert np.ma.getmaskarray(rows.metrics["b"]).sum() == count
    assert rows.metrics["a"][: count // 2].tolist() == [*range(count // 2)]
