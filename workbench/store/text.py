"""Values and rows of answers as text of files: CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """RFC 4180 text: NULL is an empty field, NaN and infinities are nan, inf and -inf, lists are JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([json.dumps(as_json(v), ensure_ascii=False) if isinstance(v, list | dict) else v for v in row])
    return out.getvalue()


def as_json(value: Any) -> Any:
    """A value that JSON can hold: it has no word for NaN, and null already means "not measured"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | tuple):
        return [as_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): as_json(v) for k, v in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
