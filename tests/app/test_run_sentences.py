"""What Run says of a run's sharpest step and of its events is true of the curve beside it."""

import math
import re

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sorl.app.data import Fall
from sorl.app.figures.runs import Signal
from sorl.app.sentences.run import event_sentence, moment_sentence

ROWS = [{"trajectory": 4, "gradient_share": None}]
_STEP = re.compile(r"step (\d+)")
_HIGHEST = re.compile(r"\(its (highest|lowest) is (\S+), at step (\d+)\)")


def signal_of(values: list[float], fall: Fall | None = None, lowest: bool = False) -> Signal:
    points = pd.DataFrame({"step": range(len(values)), "value": values, "broken_step": [None] * len(values)})
    words = ("grad_norm_max", "largest gradient norm", "norm", "")
    return Signal(*words, points, pd.DataFrame(), fall=fall, steps=len(values), lowest=lowest)


@st.composite
def signals(draw: st.DrawFn) -> Signal:
    values = draw(st.lists(st.integers(0, 60).map(float), min_size=2, max_size=30))
    fell = draw(st.booleans())
    low = draw(st.integers(0, len(values) - 1))
    step = draw(st.integers(low, len(values) - 1))
    high = draw(st.integers(step, len(values) - 1))
    return signal_of(values, Fall(low, high, step) if fell else None, draw(st.booleans()))


@given(signals())
@settings(max_examples=300, deadline=None)
def test_the_sharpest_step_and_whatever_goes_farther_are_those_of_the_curve(signal: Signal) -> None:
    values = signal.points["value"]
    extreme = values.min() if signal.lowest else values.max()
    sentence = str(moment_sentence(signal, ROWS))
    farther = _HIGHEST.search(sentence)
    if signal.fall is None:
        step = int(_STEP.findall(sentence)[0])
        assert values[step] == extreme, sentence
        assert farther is None
        return
    about = values[signal.fall.low : signal.fall.high + 1]
    step = int(re.findall(r": step (\d+)", sentence)[0])
    assert signal.fall.low <= step <= signal.fall.high
    assert values[step] == (about.min() if signal.lowest else about.max())
    if farther is None:
        assert values[step] == extreme, sentence
    else:
        assert float(farther[2]) == extreme == values[int(farther[3])]
        assert farther[1] == ("lowest" if signal.lowest else "highest")


def test_a_run_that_stood_has_a_sharpest_moment_only_where_a_step_stands_out() -> None:
    spiky = signal_of([1.0, 1.0, 90.0, *[1.0] * 5])
    assert moment_sentence(spiky, ROWS) == ("The sharpest moment: step 2, with largest gradient norm 90.")
    assert str(moment_sentence(signal_of([1.0] * 8), ROWS)).startswith("No step stands out by its largest")


def test_the_trajectory_with_most_of_the_gradient_of_the_sharpest_step_is_named() -> None:
    fell = signal_of([1.0, 1.0, 90.0, *[1.0] * 5], Fall(2, 2, 2))
    said = moment_sentence(fell, [ROWS[0] | {"gradient_share": math.nan}])
    assert said.endswith("; the share of trajectory 4 in this step's gradient is NaN.")
    said = moment_sentence(fell, [ROWS[0] | {"gradient_share": 0.5}] * 4)
    assert said == (
        "The sharpest step at the fall (after step 2): step 2, at the onset, with largest gradient norm 90;"
        " trajectory 4 has 50 % of this step's gradient, 2 x an equal share, the most of 4."
    )


FELL = "success fell from 0.491 (steps 2 to 6) to 0.031; the fall began after step 12"


@pytest.mark.parametrize(
    ("message", "onset", "expected"),
    [
        (FELL, 12, FELL),
        (FELL, 11, f"{FELL}, as it looked at step 14; by all steps of the run it began after step 11"),
        (FELL, None, f"{FELL}, as it looked at step 14: no such fall lasted"),
        ("clip_frac is 0.4", 11, "clip_frac is 0.4"),
    ],
)
def test_an_event_that_dates_a_fall_otherwise_than_the_whole_run_says_so(
    message: str, onset: int | None, expected: str
) -> None:
    assert event_sentence(message, 14, onset) == expected
