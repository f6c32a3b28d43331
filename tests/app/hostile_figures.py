"""What every figure must hold against hostile text: no string in it that the drawing library would read as markup."""

from __future__ import annotations

import json
import re
from typing import Any

# Tags that our figures write themselves.
_OURS = re.compile(r"</?b>|<br>|<extra></extra>|</span>|<span style='(?:font-size:12px;)?color:#[0-9a-f]{6}'>")


def assert_literal(figure: Any) -> None:
    for found in _strings(json.loads(figure.to_json())):
        bare = _OURS.sub("", found)
        assert "<" not in bare, found
        assert "$" not in bare, found


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [s for v in value.values() for s in _strings(v)]
    if isinstance(value, list):
        return [s for v in value for s in _strings(v)]
    return [value] if isinstance(value, str) else []
