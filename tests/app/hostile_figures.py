"""Checks that every figure must pass: plotly accepts it, and hostile text stays text."""

from __future__ import annotations

import json
import re
from typing import Any

import plotly.graph_objects as go

# Tags that our figures write themselves.
_OURS = re.compile(r"</?b>|<br>|<extra></extra>|</span>|<span style='(?:font-size:12px;)?color:#[0-9a-f]{6}'>")


def checked(figure: go.Figure) -> go.Figure:
    """Return the figure after plotly has checked all of it, which drawing leaves out."""
    return go.Figure([trace.to_plotly_json() for trace in figure.data], figure.layout.to_plotly_json())


def assert_literal(figure: Any) -> None:
    """Check that no string of the figure would be read as markup by the drawing library."""
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
