"""Lines of JSON whose long lists of numbers are arrays: a dump of tokens is hardly anything else.

simdjson copies such a list into an array without a Python number an entry, in a third of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import simdjson

FEWEST_NUMBERS = 64  # of a list that becomes an array; a shorter one stays a list


def decoded_arrays(line: bytes) -> Any:
    """The value of a line of JSON, its long lists of numbers as float64 arrays.

    Raises ValueError for what is no JSON, NaN and Infinity included, and for a key with a zero byte;
    ModuleNotFoundError where simdjson is not installed.
    """
    import simdjson

    try:
        return _converted(simdjson.Parser().parse(line))
    except RuntimeError as error:  # too deep, or a whole number beyond 64 bits
        raise ValueError(str(error)) from None


def _converted(value: Any) -> Any:
    import simdjson

    if isinstance(value, simdjson.Object):
        # Entries are taken by their keys and places: iteration would make Python lists of them.
        keys = list(value.keys())
        if any("\0" in key for key in keys):
            raise ValueError("a key with a zero byte, at which simdjson would cut it off")
        return {key: _converted(value[key]) for key in keys}
    if not isinstance(value, simdjson.Array):
        return value
    if len(value) < FEWEST_NUMBERS:
        return [_converted(value[place]) for place in range(len(value))]
    numbers = _numbers(value)
    return value.as_list() if numbers is None else numbers


def _numbers(values: simdjson.Array) -> np.ndarray | None:
    """The numbers of a list, float64; None where it holds anything else."""
    import simdjson

    # simdjson flattens lists within the list.
    if isinstance(values[0], simdjson.Array):
        return None
    try:
        numbers = np.frombuffer(values.as_buffer(of_type="d"), dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return numbers if len(numbers) == len(values) else None
