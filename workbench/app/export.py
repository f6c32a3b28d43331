"""A figure on a screen, with what can be taken from it: PNG and SVG of the figure, CSV of its data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import streamlit as st

from workbench.app import download

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    Data = pd.DataFrame | Callable[[], pd.DataFrame]
    Ends = tuple[float, float] | None
    Modes = Literal["points", "box"] | tuple[Literal["points"], Literal["box"]]

CONFIG: dict[str, Any] = {"displayModeBar": False, "displaylogo": False, "scrollZoom": False, "responsive": True}
# The drawing library of the page makes the images: nothing is sent anywhere, and no second browser is needed. An image
# cannot load the app's font, so it is laid out anew in one that every machine has.
_BUTTONS = """
<div class="sorl-export" data-figure="{key}">
  <button type="button" data-format="png">PNG</button><button type="button" data-format="svg">SVG</button>
</div>
"""
_SAVE = """
  for (const button of document.querySelectorAll('.sorl-export[data-figure="{key}"] button')) {{
    button.onclick = () => {{
      const drawn = document.querySelector('.st-key-{key} .js-plotly-plot');
      const font = {{ ...drawn.layout.font, family: 'Helvetica, Arial, sans-serif' }};
      window.Plotly.downloadImage(
        {{ data: drawn.data, layout: {{ ...drawn.layout, font }} }},
        {{ format: button.dataset.format, filename: 'sorl-{key}', scale: 2,
           width: drawn.clientWidth, height: drawn.clientHeight }},
      );
    }};
  }}
"""
# Where dragging selects a part, Streamlit passes no click on: it is told of it as of a selection of what is pointed at.
_CELLS = "cells"
_CLICKS = f"""
  if (!window.sorlClicks) document.addEventListener('click', event => {{
    const drawn = event.target.closest?.('.js-plotly-plot');
    if (drawn?.layout?.meta !== '{_CELLS}' || !drawn._hoverdata?.length) return;
    const points = drawn._hoverdata.map(({{ curveNumber, pointNumber, pointIndex, x, y, customdata }}) =>
      ({{ curveNumber, pointNumber, pointIndex, x, y, customdata }}));
    drawn.emit('plotly_selected', {{ points }});
  }});
  window.sorlClicks = true;
"""


def figure(drawn: go.Figure, name: str, data: Data, *, describe: str, select: bool = False) -> list[dict[str, Any]]:
    """Show a figure under `name` (letters, digits, dashes) with its exports; the points clicked, where asked for.

    `data` is what the CSV holds; `describe` says in a sentence what is drawn, for people who cannot see it.
    """
    event = _show(drawn, name, name, data, describe, "points" if select else None)
    return [_told(point) for point in event["selection"]["points"]] if select else []


def _told(point: Mapping[str, Any]) -> dict[str, Any]:
    """A point that was clicked; what it carries as a list: of numbers the browser sends {"0": 7, "1": 12} instead."""
    carried = point.get("customdata")
    if isinstance(carried, Mapping):
        carried = [carried[place] for place in sorted(carried, key=int)]
    return {**point, "customdata": carried}


def zoomable(drawn: go.Figure, name: str, data: Data, *, describe: str) -> Ends:
    """Show a figure as `figure` does; the ends of the part of the x-axis that was just dragged over, if any."""
    return _dragged(drawn, name, data, describe, "box")[1]


def zoomable_cells(drawn: go.Figure, name: str, data: Data, *, describe: str) -> tuple[list[dict[str, Any]], Ends]:
    """Show a figure as `figure` does; the points clicked, and the part that was dragged over as `zoomable` tells it."""
    drawn.update_layout(meta=_CELLS, clickmode="event")
    return _dragged(drawn, name, data, describe, ("points", "box"))


def _dragged(drawn: go.Figure, name: str, data: Data, describe: str, modes: Modes) -> tuple[list[dict[str, Any]], Ends]:
    drawn.update_layout(
        dragmode="select", selectdirection="h",
        newselection={"line": {"width": 1, "dash": "solid", "color": drawn.layout.template.layout.font.color}},
    )  # fmt: skip
    seen = f"{name} zoomed"
    key = f"{name}-{st.session_state.get(seen, 0)}"
    with st.container(key=name):
        event = _show(drawn, key, name, data, describe, modes)
    boxes = event["selection"]["box"]
    if not boxes:
        return [_told(point) for point in event["selection"]["points"]], None
    st.session_state[seen] = st.session_state.get(seen, 0) + 1  # the next figure is another one, with nothing selected
    first, last = sorted(float(end) for end in boxes[0]["x"])
    return [], (first, last)  # the points inside were not clicked


def _show(drawn: go.Figure, key: str, name: str, data: Data, describe: str, modes: Modes | None) -> Any:
    event: Any = st.plotly_chart(
        drawn, theme=None, key=key, config=CONFIG, alt=describe, on_select="rerun" if modes else "ignore",
        selection_mode=modes or "points",
    )  # fmt: skip
    row(name, data, f"<script>{_SAVE.format(key=name)}{_CLICKS}</script>")
    return event


def row(name: str, data: Data, script: str = "") -> None:
    """The buttons below a figure; `script` makes those for images work. Raises ValueError for a name that is no id."""
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise ValueError(f"figure name '{name}' must be lower-case letters, digits and dashes")
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small"):
        buttons = _BUTTONS.format(key=name) + script
        st.html(buttons, unsafe_allow_javascript=bool(script), width="content")
        download.button("CSV", lambda: _csv(data), f"sorl-{name}.csv", "text/csv", key=f"{name}-csv")


def _csv(data: Data) -> bytes:
    """The table as it is drawn, one row a point, in the order of the figure."""
    frame = data() if callable(data) else data
    return frame.to_csv(index=False).encode()
