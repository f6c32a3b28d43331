"""A figure on a screen, with what can be taken from it: PNG and SVG of the figure, CSV of its data."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import streamlit as st

from workbench.view import download

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

CONFIG: dict[str, Any] = {"displayModeBar": False, "displaylogo": False, "scrollZoom": False, "responsive": True}
# The drawing library of the page makes the images: nothing is sent anywhere, and no second browser is needed. An image
# cannot load the app's font, so it is laid out anew in one that every machine has.
_BUTTONS = """
<div class="sorl-export" data-figure="{key}">
  <button type="button" data-format="png">PNG</button><button type="button" data-format="svg">SVG</button>
</div>
<script>
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
</script>
"""


def figure(
    drawn: go.Figure, name: str, data: pd.DataFrame | Callable[[], pd.DataFrame], *, describe: str, select: bool = False
) -> list[dict[str, Any]]:
    """Show a figure under `name` (letters, digits, dashes) with its exports; the points clicked, where asked for.

    `data` is what the CSV holds; `describe` says in a sentence what is drawn, for people who cannot see it.
    """
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise ValueError(f"figure name '{name}' must be lower-case letters, digits and dashes")
    event: Any = st.plotly_chart(
        drawn, theme=None, key=name, config=CONFIG, alt=describe, on_select="rerun" if select else "ignore",
        selection_mode="points",
    )  # fmt: skip
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small"):
        st.html(_BUTTONS.format(key=name), unsafe_allow_javascript=True, width="content")
        download.button("CSV", lambda: _csv(data), f"sorl-{name}.csv", "text/csv", key=f"{name}-csv")
    return list(event["selection"]["points"]) if select else []


def _csv(data: pd.DataFrame | Callable[[], pd.DataFrame]) -> bytes:
    """The table as it is drawn, one row a point, in the order of the figure."""
    frame = data() if callable(data) else data
    return frame.to_csv(index=False).encode()
