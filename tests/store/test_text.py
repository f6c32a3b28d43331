from __future__ import annotations

import csv
import io
import math

from workbench.store.text import as_csv, as_json


def test_csv_keeps_null_nan_quotes_and_lists() -> None:
    text = as_csv(["a", "b"], [(None, math.nan), ('say "x", y\nz', [1.0, None, math.inf])])
    assert list(csv.reader(io.StringIO(text))) == [
        ["a", "b"], ["", "nan"], ['say "x", y\nz', '[1.0, null, "Infinity"]'],
    ]  # fmt: skip


def test_json_has_a_word_for_what_is_no_number() -> None:
    assert as_json({"x": (math.nan, -math.inf, None, True, 2)}) == {"x": ["NaN", "-Infinity", None, True, 2]}
