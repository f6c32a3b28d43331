"""A curve has departed, or success has slumped, when its own past does not explain it."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.generate.render import ROOT
from sorl.diagnosis.changepoint import FEWEST, WINDOW, Slump, first, past, slumped
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.report import as_dict, markdown, text
from studies.early_warning import corpus
from studies.early_warning.page import CORPUS
from tests.diagnosis.logs import healthy, log


def test_median_and_spread_are_those_of_the_points_before() -> None:
    usual, spread = past(np.array([1.0, 2.0, 3.0, 4.0, 100.0, 5.0]), floor=0.0)
    assert np.isnan(usual[:FEWEST]).all()
    assert usual[4] == 2.5
    assert spread[4] == pytest.approx(1.4826)  # |x - 2.5| = 1.5 .5 .5 1.5, median 1; steps of 1
    assert usual[5] == 3.0  # 1 2 3 4 100


@given(st.lists(st.floats(-1e3, 1e3), min_size=FEWEST + 1, max_size=30))
def test_the_windows_agree_with_a_plain_loop(values: list[float]) -> None:
    usual, spread = past(np.array(values), floor=0.05)
    for i in range(FEWEST, len(values)):
        before = np.array(values[max(0, i - WINDOW) : i])
        middle = np.median(before)
        mad = 1.4826 * np.median(np.abs(before - middle))
        ripple = np.median(np.abs(np.diff(before)))
        assert usual[i] == pytest.approx(middle)
        assert spread[i] == pytest.approx(max(mad, ripple, 0.05 * abs(middle), 1e-12), rel=1e-9)


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 1e3), st.floats(-1e3, 1e3))
def test_a_jump_is_dated_whatever_the_unit(seed: int, scale: float, shift: float) -> None:
    curve = np.random.default_rng(seed).uniform(-1, 1, 30)
    curve[15:] += 40.0
    assert (
        first(pd.Series(scale * curve + shift, range(100, 130)), "above", margin=15.0, floor=0.0).step == 115
    )


SPIKE = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 50.0, 1.0, 1.1, 1.0]


def test_one_point_is_an_event_only_if_one_is_enough() -> None:
    assert first(pd.Series(SPIKE), points=1).step == 6


@pytest.mark.parametrize(
    "values", [SPIKE, np.linspace(0.1, 0.9, 200), [], [1.0] * 3, [np.nan] * 20, [1.0] * 20]
)
def test_one_point_of_two_a_steady_climb_and_short_empty_and_flat_curves_say_nothing(
    values: list[float],
) -> None:
    assert first(pd.Series(values, dtype=float), points=2) is None


def curve(*values: float) -> pd.Series:
    return pd.Series(values, index=np.arange(10, 10 + len(values)), dtype=float)


def test_a_slump_has_its_step_and_its_size() -> None:
    assert slumped(curve(0.5, 0.6, 0.6, 0.6, 0.1, 0.2, 0.1)) == Slump(15, pytest.approx(2 / 3))
    assert slumped(curve(0.5, 0.6, 0.6, 0.6, 0.1, 0.6, 0.5)) is None  # one point is no slump
    assert slumped(curve()) is None


def test_a_run_that_slumps_is_said_to_until_its_collapse_is_called() -> None:
    tables = healthy()
    rows = tables["step"]
    rows.loc[rows["step"] >= 21, "success"] = 0.02
    early = diagnose(log(tables))
    assert "Early warning: by step 22 success has lost" in text(early)
    assert "Early warning" in markdown(early)
    assert as_dict(early)["slump"]["step"] == 22
    for called in (log(tables, collapse_step=20), log(healthy())):
        assert "Early warning" not in text(diagnose(called))


def test_the_shares_of_runs_that_slump_are_the_ones_that_are_named() -> None:
    runs = corpus.distinct(corpus.read(ROOT / CORPUS))
    slumps = [
        run for run in runs if slumped(pd.Series(run.curves["success"][0], index=run.steps)) is not None
    ]
    assert 0.02 <= sum(run.healthy for run in slumps) / sum(run.healthy for run in runs) <= 0.1
    assert 0.15 <= sum(run.lasting for run in slumps) / sum(run.lasting for run in runs) <= 0.25
    assert sum(run.collapsed for run in slumps) >= 0.97 * sum(run.collapsed for run in runs)
