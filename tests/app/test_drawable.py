from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from workbench.app.drawable import complete, drawable, first_choice, fitting_marks, numbers


def test_decimals_are_numbers_truth_values_are_texts_and_lists_are_left_out() -> None:
    table = pa.table(
        {"n": [Decimal(3), None], "ok": [True, None], "l": [[1], [2]], "none": pa.nulls(2), "t": ["a", "b"]}
    )
    frame = drawable(table)
    assert list(frame.columns) == ["n", "ok", "t"]
    assert numbers(frame) == ["n"]
    assert frame["ok"].tolist() == ["true", None]


@pytest.mark.parametrize(
    ("columns", "choice"),
    [
        ({"arm": ["a", "b"], "turn_index": [1, 2], "ratio_geo": [0.1, 0.2], "clip_frac": [0.1, 0.2]},
         ("turn_index", "ratio_geo", "arm")),
        ({"arm": ["a", "b"], "turn_index": [1, 2], "step": [1, 2], "kl": [1.0, 2.0]}, ("step", "kl", "arm")),
        ({"arm": ["a", "b"], "seconds": [1.0, 2.0]}, ("arm", "seconds", "")),
        ({"step": [1, 2], "kl": [1.0, 2.0]}, ("step", "kl", "")),
        ({"step": [1, 2], "arm": ["a", "b"]}, ("arm", "step", "")),
        ({"a": [1, 2], "b": [3, 4]}, ("a", "b", "")),
        ({"text": ["x", "y"]}, ("text", "", "")),
        ({"n": [1, 2]}, ("n", "", "")),
        ({}, ("", "", "")),
    ],
)  # fmt: skip
def test_the_first_choice_of_axes_is_what_the_answer_is_about(
    columns: dict[str, list[Any]], choice: tuple[str, str, str]
) -> None:
    assert first_choice(pd.DataFrame(columns)) == choice


def test_many_different_texts_are_no_groups() -> None:
    frame = pd.DataFrame({"question": [f"q{i}" for i in range(40)], "step": range(40), "reward": [0.5] * 40})
    assert first_choice(frame) == ("step", "reward", "")


def test_rows_that_share_an_x_are_drawn_as_points_only() -> None:
    frame = pd.DataFrame({"step": [1, 1, 2, 2], "arm": ["a", "b", "a", "b"], "kl": [1.0, 2.0, 3.0, 4.0]})
    assert fitting_marks(frame, "step", "arm") == ["line", "points", "bars"]
    assert fitting_marks(frame, "step", "") == ["points"]
    assert fitting_marks(frame, "arm", "") == ["points"]
    assert fitting_marks(frame.head(2), "arm", "arm") == ["bars", "points"]


def test_a_row_is_drawn_only_where_every_chosen_column_has_a_finite_value() -> None:
    frame = pd.DataFrame({"x": [1, 2, 3, 4], "y": [1.0, math.nan, math.inf, 2.0], "arm": ["a", "a", "a", None]})
    assert complete(frame, ["x", "y", "arm"])["x"].tolist() == [1]
    assert complete(frame, ["x", "y"])["x"].tolist() == [1, 4]
