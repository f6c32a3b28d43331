"""Lines of JSON: lists of numbers are arrays, and everything else is as json reads it."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sorl.importing.dumps import files
from sorl.importing.dumps.json_numbers import FEWEST_NUMBERS, decoded_arrays

NUMBERS = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))
LONG = st.lists(NUMBERS, min_size=FEWEST_NUMBERS, max_size=2 * FEWEST_NUMBERS)
KEYS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3)
VALUES = st.recursive(
    st.one_of(NUMBERS, st.booleans(), st.none(), st.text(max_size=5), LONG),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)


def as_lists(value: Any) -> Any:
    """The value with lists for its arrays."""
    if isinstance(value, dict):
        return {key: as_lists(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [as_lists(entry) for entry in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_a_line_holds_what_json_reads(value: Any) -> None:
    assert as_lists(decoded_arrays(json.dumps(value).encode())) == value


def test_a_long_list_of_numbers_is_an_array_however_deep_it_lies() -> None:
    numbers = list(range(FEWEST_NUMBERS))
    read = decoded_arrays(json.dumps({"token_ids": [numbers], "short": numbers[:-1]}).encode())
    assert isinstance(read["token_ids"][0], np.ndarray)
    assert read["short"] == numbers[:-1]


@pytest.mark.parametrize("odd", ["text", None, True, [1.0], {}])
def test_a_long_list_with_anything_else_stays_a_list(odd: Any) -> None:
    values = [odd, *range(FEWEST_NUMBERS), odd]
    assert decoded_arrays(json.dumps(values).encode()) == values


@pytest.mark.parametrize("line", [b"[NaN]", b"[1,", b"", b"\xff", b"[" * 3000 + b"]" * 3000])
def test_what_simdjson_does_not_read_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"ERROR|EMPTY"):
        decoded_arrays(line)


def test_a_line_with_nan_and_one_with_a_huge_integer_are_read_all_the_same() -> None:
    (number,) = files.decoded_with_arrays(b"[NaN]")
    assert np.isnan(number)
    assert files.decoded_with_arrays(b"[100000000000000000000]") == [10**20]


def test_a_key_with_a_zero_byte_is_not_cut_off() -> None:
    line = json.dumps({"a": 1, "a\0b": 2}).encode()
    assert files.decoded_with_arrays(line) == {"a": 1, "a\0b": 2}
