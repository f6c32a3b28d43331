import math
import re
from itertools import pairwise, product
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sorl.app.deviation import Band, Deviation, find_deviations
from sorl.app.figures.maps import FEW
from sorl.app.sentences.turns import Broken, RunDeviation, describe_deviations, told_cells
from sorl.app.text import number
from tests.app.conftest import Open

STEPS = 20
RUNS = ("a", "b", "c")


def cells(*odd: tuple[str, int, int, float, int], runs: tuple[str, ...] = RUNS) -> pd.DataFrame:
    """Cells near 1 of runs with two turns, but for those given: run, step, turn, value, turns."""
    given = {(run, step, turn): (value, turns) for run, step, turn, value, turns in odd}
    usual = {run: 1 - 0.001 * place for place, run in enumerate(runs)}
    places = product(runs, range(STEPS), (1, 2))
    rows = [(*at, *given.get(at, (usual[at[0]] - 0.001 * (at[1] % 3), 64))) for at in places]
    return pd.DataFrame(rows, columns=["run_id", "step", "turn_index", "value", "turns"])


def named(deviations: dict[str, Deviation], falls: dict[str, int]) -> list[RunDeviation]:
    return [
        RunDeviation(run, f"after step {falls[run]}" if run in falls else "", falls.get(run), deviations[run])
        for run in deviations
    ]


def sentences(falls: dict[str, int], *odd: tuple[str, int, int, float, int], **more: Any) -> str:
    found = find_deviations(cells(*odd, **more), falls, is_ratio=True)
    return describe_deviations("geometric turn ratio", named(found, falls), None)


def test_the_first_turn_that_leaves_the_band_of_the_runs_that_stood_is_named_and_the_farthest() -> None:
    odd = [("a", 12, 2, 0.8, 64), ("a", 13, 2, 0.7, 64), ("a", 15, 1, 1e-6, 64), ("a", 16, 1, 1e-5, 64)]
    assert sentences({"a": 14}, *odd) == (
        "Geometric turn ratio. a: turn 2 first leaves its usual band at step 12, 2 steps before the onset,"
        " with 0.8 (usual: 0.996 to 1, in 2 runs that did not fall and in its own before step 4); farthest"
        " 1e-06 in turn 1, step 15. The fall began after step 14."
        " Of 2 runs that did not fall none leaves the band of the others."
    )


def test_one_odd_cell_is_no_first_deviation_but_is_counted() -> None:
    text = sentences({"a": 14}, ("a", 7, 1, 0.5, 64))
    assert "a: no turn leaves its usual band for two steps (1 single cell did)" in text


def test_what_else_is_shown_changes_nothing(open_screen: Open) -> None:
    whole = open_screen("turns", arm=["ppo", "grpo", "st-ppo"]).source
    alone = open_screen("turns", arm=["ppo"], seed="0", range="3..20", x="onset", cells="extreme").source
    of_run = re.compile(r"ppo seed 0: [^.]*\..*?The fall began[^.]*\.")
    assert of_run.search(alone)[0] == of_run.search(whole)[0]


def test_a_run_that_stood_is_measured_by_the_others_and_may_leave_their_band() -> None:
    text = sentences({}, *[("b", step, 1, 3.0, 64) for step in range(8, 12)])
    assert "none fell, and" in text
    assert "first b in turn 1 at step 8, with 3" in text


def test_without_a_run_that_stood_the_band_is_of_its_own_first_steps() -> None:
    odd = [("a", step, 1, 0.2, 64) for step in range(9, 20)]
    text = sentences({"a": 12}, *odd, runs=("a",))
    assert "a: turn 1 first leaves its usual band at step 9, 3 steps before the onset, with 0.2" in text
    assert "twice as wide as its own before step 4)" in text


def test_cells_of_few_turns_are_not_judged() -> None:
    odd = [("a", step, 1, 0.2, FEW - 1) for step in range(9, 20)]
    assert "first leaves its usual band at step 9" not in sentences({"a": 12}, *odd)
    found = find_deviations(cells().assign(turns=3), {"a": 12}, is_ratio=True)
    text = describe_deviations("ratio", named(found, {"a": 12}), None)
    assert f"a: nothing to compare with, cells need {FEW} turns; the fall began after step 12." in text


def test_numbers_that_are_none_are_counted_by_themselves() -> None:
    found = find_deviations(cells(("a", 3, 1, math.nan, 64)), {}, is_ratio=True)
    text = describe_deviations("ratio", named(found, {}), Broken(2, "a", 1, 3))
    assert text.endswith("NaN or Inf in 2 cells, first in a, turn 1, step 3.")


odd_cells = st.tuples(
    st.sampled_from(RUNS),
    st.integers(0, STEPS - 1),
    st.integers(1, 2),
    st.floats(1e-6, 1e6) | st.sampled_from([math.nan, math.inf]),
    st.sampled_from([1, 7, 8, 64]),
)


Values = dict[tuple[str, int, int], float]


def judged_values(drawn: pd.DataFrame, is_ratio: bool) -> Values:
    """The cells that can be compared, by run, step and turn."""
    return {
        (row.run_id, row.step, row.turn_index): row.value
        for row in drawn.itertuples()
        if row.turns >= FEW and math.isfinite(row.value) and (row.value > 0 or not is_ratio)
    }


def first_lasting_step(values: Values, run: str, turn: int, band: Band) -> int:
    """The first step from `band.before` on that is out, and whose next one is out as well or not there."""
    mine = {step: value for (name, step, index), value in values.items() if (name, index) == (run, turn)}
    steps = sorted(step for step in mine if step >= band.before)
    is_out = {step: not band.low <= mine[step] <= band.high for step in steps}
    following = dict(pairwise(steps))
    return next(step for step in steps if is_out[step] and is_out.get(following.get(step), True))


@settings(max_examples=300)
@given(
    st.dictionaries(st.sampled_from(RUNS), st.integers(0, STEPS - 1)),
    st.lists(odd_cells, max_size=40),
    st.booleans(),
)
def test_every_cell_that_a_sentence_names_is_the_one_that_the_map_shows(
    falls: dict[str, int], odd: list[tuple[str, int, int, float, int]], is_ratio: bool
) -> None:
    drawn = cells(*odd)
    found = find_deviations(drawn, falls, is_ratio=is_ratio)
    runs = named(found, falls)
    text = describe_deviations("measure", runs, None)
    values = judged_values(drawn, is_ratio)
    for name, cell in told_cells(runs):
        assert values[name, cell.step, cell.turn] == cell.value
        assert not cell.band.low <= cell.value <= cell.band.high
    for run in runs:
        first = run.deviation.first
        if first is None:
            continue
        assert first.step == first_lasting_step(values, run.name, first.turn, first.band)
        if run.fall:
            assert f"{run.name}: turn {first.turn} first leaves its usual band at step {first.step}" in text
            assert f"with {number(first.value)} (" in text


def test_the_band_of_others_does_not_depend_on_what_the_run_does_later() -> None:
    odd = [("a", step, 1, 50.0, 64) for step in range(8, STEPS)]
    first = find_deviations(cells(*odd), {}, is_ratio=True)["a"].first
    assert first is not None
    assert (first.step, first.turn) == (8, 1)
    assert first.band.high == pytest.approx(1)
