"""A figure that is handed to the page as it is: plotly would check and copy each of a thousand curves twice."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.view.figures.panes import Trace


class Drawn(go.Figure):  # type: ignore[misc]
    """A figure of traces as plotly reads them from JSON, unchecked (the tests have it check them).

    Arrays of numbers become float64 in plotly's encoding of typed arrays, where NaN is a gap. `data` is empty: what is
    drawn is in `to_dict` and `to_json`, which is all that a page asks for.
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
    return {"dtype": "f8", "bdata": b64encode(value.astype("<f8").tobytes()).decode("ascii"), **shape}
