"""The share of conversations that fit a search, over training."""

import pandas as pd
import plotly.graph_objects as go

from sorl.app.figures.common import AXES, axis, figure, line
from sorl.app.theme import Palette

_HEIGHT = 110  # pixels
_BOTTOM = 48


def share_of_hits(by_step: pd.DataFrame, colour: str, palette: Palette) -> go.Figure:
    """Draw `share` over `step`; a mark a step, a line between neighbours."""
    hover = "step %{x}: %{customdata[0]:,} of %{customdata[1]:,} conversations"
    drawn = line(
        by_step["step"],
        by_step["share"],
        colour,
        hover=hover,
        mode="lines+markers",
        marker={"size": 4, "color": colour},
        customdata=by_step[["found", "conversations"]].to_numpy(),
    )
    return figure(
        [drawn],
        palette,
        inner=_HEIGHT,
        top=8,
        bottom=_BOTTOM,
        xaxis=axis(AXES["step"], nticks=min(10, len(by_step)), tickformat=",d"),
        yaxis=axis("share that fits", tickformat=".0%", rangemode="tozero", nticks=4),
    )
