"""A figure that is handed to the page as it is: plotly would check and copy each of a thousand curves twice."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.app.figures.panes import Trace


class Drawn(go.Figure):  # type: ignore[misc]
    """A figure of traces as plotly reads them from JSON, unchecked (the tests have it check them).

    Arrays of numbers become plotly's typed arrays, where NaN is a gap: float32 where it holds every value exactly, as
    it does steps, seeds and counts, else float64. `data` is empty: what is drawn is in `to_dict` and `to_json`, which
    is all that a page asks for.
    """

    def __init__(self, traces: Iterable[Trace], layout: Mapping[str, Any]) -> None:
        super().__init__(layout=dict(layout), _validate=False)
        self._traces = [_packed(trace) for trace in traces]

    def to_dict(self) -> dict[str, Any]:
        """Traces and layout."""
        return super().to_dict() | {"data": [dict(trace) for trace in self._traces]}


def _packed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _packed(part) for name, part in value.items()}
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu" or not value.size:
        return value
    shape = {"shape": ", ".join(map(str, value.shape))} if value.ndim > 1 else {}
    exact = _exact(value.astype("<f8"))
    return {"dtype": exact.dtype.str[1:], "bdata": b64encode(exact.tobytes()).decode("ascii"), **shape}


def _exact(value: np.ndarray) -> np.ndarray:
    """Half the bytes where nothing is lost by it."""
    with np.errstate(over="ignore"):  # a large value becomes Inf, which is not the same
        short = value.astype("<f4")
    return short if ((short == value) | np.isnan(value)).all() else value
