"""What reaches the page of a figure's arrays."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from workbench.app.figures.drawn import Drawn


def sent(values: np.ndarray) -> dict[str, Any]:
    """The y of a figure's only trace as it stands in the page's JSON."""
    figure = json.loads(Drawn([{"type": "scatter", "y": values}], {}).to_json())
    return dict(figure["data"][0]["y"])


def read(packed: dict[str, Any]) -> np.ndarray:
    found = np.frombuffer(b64decode(packed["bdata"]), dtype=f"<{packed['dtype']}")
    return found.reshape([int(n) for n in packed.get("shape", str(len(found))).split(", ")])


@given(arrays(np.float64, array_shapes(max_dims=2, max_side=6)))
def test_a_page_gets_every_number_exactly(values: np.ndarray) -> None:
    np.testing.assert_array_equal(read(sent(values)), values)


@given(arrays(np.int64, 5, elements=st.integers(-(2**24), 2**24)))
def test_steps_and_counts_take_half_the_bytes(values: np.ndarray) -> None:
    packed = sent(values)
    assert packed["dtype"] == "f4"
    np.testing.assert_array_equal(read(packed), values)


def test_a_gap_does_not_lengthen_its_line() -> None:
    assert sent(np.array([0.5, np.nan, 2.0]))["dtype"] == "f4"


def test_a_number_too_large_or_too_fine_for_half_the_bytes_keeps_them_all() -> None:
    assert [sent(np.array([v]))["dtype"] for v in (1e300, 0.1, 2.0**24 + 1)] == ["f8", "f8", "f8"]
