"""A figure whose arrays are numbers again, as plotly's objects hold them."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import numpy as np
import plotly.graph_objects as go


def unpacked(figure: go.Figure) -> go.Figure:
    """The figure as the page receives it, checked by plotly, each typed array an array of numpy."""
    return go.Figure(_read(json.loads(figure.to_json())))


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "bdata" not in value:
        return {name: _read(item) for name, item in value.items()}
    found = np.frombuffer(b64decode(value["bdata"]), dtype=value["dtype"])
    shape = value.get("shape")
    return found.reshape([int(n) for n in shape.split(",")]) if shape else found
