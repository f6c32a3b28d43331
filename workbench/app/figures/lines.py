"""The traces of one panel of curves: bands or single seeds, thresholds, alarms, and marks on its edges.

Traces are dicts: made one by one as objects of plotly's, those of fifty arms took most of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.app.figures.panes import Trace
from workbench.app.safe import figure_text, wrapped
from workbench.app.theme import Palette, Style, faded

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Columns = Mapping[str, np.ndarray]  # of the points of one arm

_WEBGL = 15_000  # points of a panel above which the graphics processor draws it
_FILLED = 3  # arms up to which the band of the extremes is filled
_MARKED = 60  # points of a line up to which each is marked
_NUMBERS = ("run", "seed", "x", "mean", "middle", "lower", "upper", "low", "high", "n")  # columns of the points


@dataclass(frozen=True)
class Panel:
    """One diagnostic: its words from the dictionary, its values, its thresholds and its alarms.

    `data` has a row per point: arm, x, and either the columns of `series.banded` or those of `series.placed`.
    `thresholds` are (arm or None for all, value); `alarms` has arm, x, value, message; `broken` has arm, run_id, x of
    every point with NaN or Inf.
    """

    name: str
    unit: str
    definition: str
    data: pd.DataFrame
    thresholds: Sequence[tuple[str | None, float]] = field(default=())
    alarms: pd.DataFrame | None = None
    broken: pd.DataFrame | None = None


def in_legend(arm: str, style: Style) -> Trace:
    """The entry of an arm: it has no points, and switches the traces of the arm in all panels."""
    return {
        "type": "scatter", "x": [None], "y": [None], "name": figure_text(arm), "legendgroup": figure_text(arm),
        "mode": "lines+markers", "line": {"color": style.colour, "dash": style.dash, "width": 2.2},
        "marker": {"symbol": style.marker, "size": 6, "color": style.colour},
    }  # fmt: skip


def of_panel(panel: Panel, styles: Mapping[str, Style], palette: Palette) -> list[Trace]:
    """The traces of a panel but those on its edges: wide and pale first, lines last, so that no band covers a line."""
    rows = {str(arm): where for arm, where in panel.data.groupby("arm", sort=False).indices.items()}
    values = {name: panel.data[name].to_numpy(dtype=float) for name in _NUMBERS if name in panel.data}
    parts = [
        (arm, style, {name: column[rows[arm]] for name, column in values.items()})
        for arm, style in styles.items()
        if arm in rows
    ]
    if "middle" in panel.data:
        few = len(styles) <= _FILLED
        traces = [_area(part, "low", "high", style, arm, 0.09 if few else 0, few) for arm, style, part in parts]
        traces += [_area(part, "lower", "upper", style, arm, 0.2 if few else 0.11) for arm, style, part in parts]
        traces += [_middle(part, style, arm) for arm, style, part in parts]
    else:
        kind = "scattergl" if len(panel.data) > _WEBGL else "scatter"
        runs = [(arm, style, _gapped(part)) for arm, style, part in parts]
        traces = [_extremes(part, style, arm, kind) for arm, style, part in runs]
        traces += [_seeds(part, style, arm, kind) for arm, style, part in runs]
    traces += [*_thresholds(panel, styles, palette), _alarms(panel, styles)]
    return [trace for trace in traces if trace is not None]


def _area(
    part: Columns, low: str, high: str, style: Style, arm: str, opacity: float, filled: bool = True
) -> Trace | None:
    """A band; where many arms would hide each other, only its two edges."""
    import numpy as np

    known = ~(np.isnan(part[low]) | np.isnan(part[high]))
    x, below, above = part["x"][known], part[low][known], part[high][known]
    if (below == above).all():
        return None
    return {
        "type": "scatter", "x": np.append(x, x[::-1]), "y": np.append(above, below[::-1]), "fill": "toself",
        "mode": "lines", "line": {"width": 0 if filled else 0.8, "color": faded(style.colour, 0.35)},
        "fillcolor": faded(style.colour, opacity), "legendgroup": figure_text(arm), "showlegend": False,
        "hoverinfo": "skip",
    }  # fmt: skip


def _middle(part: Columns, style: Style, arm: str) -> Trace:
    import numpy as np

    return {
        "type": "scatter", "x": part["x"], "y": part["middle"], "legendgroup": figure_text(arm), "showlegend": False,
        **_drawn(style, len(part["x"]), 2.2),
        "customdata": np.column_stack([part[name] for name in ("lower", "upper", "low", "high", "n")]),
        "hovertemplate": f"<b>{figure_text(arm)}</b><br>at %{{x:,.6~g}}: %{{y:.4~g}}"
        "<br>95 % interval %{customdata[0]:.4~g} to %{customdata[1]:.4~g}"
        "<br>extremes %{customdata[2]:.4~g} to %{customdata[3]:.4~g}<br>seeds %{customdata[4]}<extra></extra>",
    }  # fmt: skip


def _seeds(part: Columns, style: Style, arm: str, kind: str) -> Trace:
    """All seeds of an arm in one trace, with a gap between two runs."""
    import numpy as np

    look = _drawn(style, int(np.diff(np.flatnonzero(np.isnan(part["run"])), prepend=-1).max()) - 1, 1.4)
    if kind == "scattergl":  # the graphics processor thins out no markers
        look = {"mode": "lines", "line": look["line"]}
    return {
        "type": kind, "x": part["x"], "y": part["mean"], "customdata": part["seed"], "legendgroup": figure_text(arm),
        "showlegend": False, "connectgaps": False, **look,
        "hovertemplate": f"<b>{figure_text(arm)}</b><br>seed %{{customdata}}<br>at %{{x:,.6~g}}: %{{y:.4~g}}"
        "<extra></extra>",
    }  # fmt: skip


def _extremes(part: Columns, style: Style, arm: str, kind: str) -> Trace | None:
    """Lowest and highest value of every bucket: a mean may smooth, it must not hide a spike."""
    import numpy as np

    if not (part["low"] < part["high"]).any():
        return None
    return {
        "type": kind, "x": np.repeat(part["x"], 2), "y": np.column_stack([part["low"], part["high"]]).ravel(),
        "mode": "lines", "connectgaps": False, "line": {"color": faded(style.colour, 0.3), "width": 1},
        "legendgroup": figure_text(arm), "showlegend": False, "hoverinfo": "skip",
    }  # fmt: skip


def _gapped(part: Columns) -> Columns:
    """The points of an arm, which go run by run, with a point of NaN behind the last one of each run."""
    import numpy as np

    run = part["run"]
    ends = np.append(np.flatnonzero(run[1:] != run[:-1]) + 1, len(run))
    order = np.insert(np.arange(len(run)), ends, -1)  # the last place, where the NaN stands
    return {name: np.append(column, np.nan)[order] for name, column in part.items()}


def _drawn(style: Style, points: int, width: float) -> dict[str, Any]:
    marked = style.marker != "circle" or points <= _MARKED
    return {
        "mode": "lines+markers" if marked else "lines",
        "line": {"color": style.colour, "dash": style.dash, "width": width},
        "marker": {"symbol": style.marker, "size": 3.5 if style.marker == "circle" else 6, "color": style.colour,
                   "maxdisplayed": 30},
    }  # fmt: skip


def _thresholds(panel: Panel, styles: Mapping[str, Style], palette: Palette) -> list[Trace]:
    """The alarm's threshold over the whole panel; each arm's own where it is a multiple of its baseline."""
    if panel.data.empty:
        return []
    ends = [float(panel.data["x"].min()), float(panel.data["x"].max())]
    return [
        {
            "type": "scatter", "x": ends, "y": [value, value], "mode": "lines", "showlegend": False,
            "legendgroup": figure_text(arm) if arm else None,
            "line": {"color": styles[arm].colour if arm else palette.muted, "dash": "2px,3px", "width": 1},
            "hovertemplate": figure_text(f"alarm at {value:.4g}" + (f" for {arm}" if arm else "")) + "<extra></extra>",
        }
        for arm, value in panel.thresholds
    ]  # fmt: skip


def _alarms(panel: Panel, styles: Mapping[str, Style]) -> Trace | None:
    if panel.alarms is None or panel.alarms.empty:
        return None
    rows = panel.alarms
    words = zip(rows["arm"], rows["message"], strict=True)
    return {
        "type": "scatter", "mode": "markers", "showlegend": False,
        "x": rows["x"].to_list(), "y": rows["value"].to_list(),
        "marker": {"symbol": "triangle-up-open", "size": 10, "color": [styles[arm].colour for arm in rows["arm"]]},
        "customdata": [f"<b>{figure_text(arm)}</b><br>{wrapped(message, 60)}" for arm, message in words],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def on_edges(panel: Panel, onsets: pd.DataFrame | None, styles: Mapping[str, Style]) -> Iterator[Trace]:
    """On the upper edge of a panel the onset of each collapse, on the lower edge what is no number."""
    marks = (
        (onsets, 0.97, "triangle-down", 9, "onset of the collapse"),
        (panel.broken, 0.03, "x", 7, "NaN or Inf"),
    )
    for rows, height, symbol, size, words in marks:
        if rows is None or rows.empty:
            continue
        for arm, part in rows.groupby("arm", sort=False):
            yield _edge(part, str(arm), styles[str(arm)], height, symbol, size, words)


def _edge(part: pd.DataFrame, arm: str, style: Style, height: float, symbol: str, size: int, words: str) -> Trace:
    return {
        "type": "scatter", "x": part["x"].to_list(), "y": [height] * len(part), "mode": "markers", "showlegend": False,
        "legendgroup": figure_text(arm), "marker": {"symbol": symbol, "size": size, "color": style.colour},
        "customdata": [figure_text(run) for run in part["run_id"]],
        "hovertemplate": f"{words}<br>%{{customdata}}<br>at %{{x:,.6~g}}<extra></extra>",
    }  # fmt: skip
