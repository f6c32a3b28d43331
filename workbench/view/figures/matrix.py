"""The grid at a glance: a cell a run, its outcome as colour, its success as a small curve, its collapse as a mark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.view.safe import figure_text, visible, wrapped
from workbench.view.theme import Palette, colour, faded, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

ROW, TOP, MARGIN = 64, 34, 10  # pixels
TALL = 12  # rows of a part of a grid: more than a screen shows
MOST = 300  # cells that are drawn at once: a browser takes seconds for a thousand
_ACROSS = 20  # cells in a row; an arm with more seeds goes on in the next row
_FEWEST = 5  # columns that a row has room for, so that two seeds are not stretched over a whole screen
_LABEL = 34  # characters of a line of an arm's name
_WORDS = {"no_learning": "no learning", "": "undecided"}


def layout(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs` (arm, algorithm, seed, in the order of the rows) with `row` and `column` of its cell, of `across` columns.

    Seeds are columns. Where every algorithm was run under every condition (what the arm says besides its algorithm),
    algorithms are rows and each condition is a block of columns named `block`; otherwise every arm is a row.
    """
    cells = runs.assign(condition=[condition(a, b) for a, b in zip(runs["arm"], runs["algorithm"], strict=True)])
    pairs = cells[["algorithm", "condition"]].drop_duplicates()
    algorithms, conditions = cells["algorithm"].unique(), cells["condition"].unique()
    seeds = sorted(cells["seed"].unique())
    width = len(seeds) * len(conditions)
    crossed = len(conditions) > 1 and len(pairs) == len(algorithms) * len(conditions) and width <= _ACROSS
    place = {seed: i for i, seed in enumerate(seeds)}
    if crossed and len(algorithms) > 1:
        block = {c: i for i, c in enumerate(conditions)}
        rows = {name: i for i, name in enumerate(algorithms)}
        return _wide(cells.assign(
            label=cells["algorithm"], block=cells["condition"], row=cells["algorithm"].map(rows),
            column=cells["seed"].map(place) + cells["condition"].map(block) * (len(seeds) + 0.35),
        ))  # fmt: skip
    deep = math.ceil(len(seeds) / _ACROSS)
    rows = {arm: i * deep for i, arm in enumerate(cells["arm"].unique())}
    return _wide(cells.assign(
        label=cells["arm"], block="", row=cells["arm"].map(rows) + cells["seed"].map(place) // _ACROSS,
        column=cells["seed"].map(place) % _ACROSS,
    ))  # fmt: skip


def _wide(cells: pd.DataFrame) -> pd.DataFrame:
    return cells.assign(across=max(float(cells["column"].max()) + 1, _FEWEST))


def parts(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """`layout`'s cells by the rows they hold (`1-12`, `13-24`, ...), with rows from 0 and all of one width.

    One part of at most MOST cells; more are parts of TALL rows.
    """
    rows = int(cells["row"].max()) + 1
    if len(cells) <= MOST:
        return {f"1-{rows}": cells}
    return {
        f"{number * TALL + 1}-{min(rows, (number + 1) * TALL)}": part.assign(row=part["row"] % TALL)
        for number, part in cells.groupby(cells["row"] // TALL)
    }


def condition(arm: str, algorithm: str) -> str:
    """What an arm says besides its algorithm: `ppo · staleness 8` is `staleness 8`; empty for the algorithm alone."""
    return arm.removeprefix(algorithm).lstrip(" ·,") if arm.startswith(algorithm) else arm


def matrix(cells: pd.DataFrame, curves: pd.DataFrame, palette: Palette) -> go.Figure:
    """The figure from cells of `layout` and success curves (run_id, x from 0, mean, last = last step of the longest).

    A point per run carries its run_id, so that a click can open it.
    """
    import plotly.graph_objects as go

    across = float(cells["across"].iloc[0])
    rows = int(cells["row"].max()) + 1
    figure = go.Figure()
    for name, part in cells.groupby(cells["outcome"].fillna(""), sort=False):
        figure.add_trace(_tiles(part, palette.outcomes.get(str(name), palette.muted)))
    for algorithm, part in cells.groupby("algorithm", sort=False):
        if (line := _sparks(part, curves, colour(str(algorithm), palette))) is not None:
            figure.add_trace(line)
    if (marks := _onsets(cells, curves, palette)) is not None:
        figure.add_trace(marks)
    figure.add_trace(_words(cells, palette, wide=across <= 12))
    figure.add_trace(_targets(cells))
    labels = cells.drop_duplicates("label")
    figure.update_layout(
        template=template(palette), height=TOP + rows * ROW + MARGIN, showlegend=False, hovermode="closest",
        dragmode=False, margin={"l": 8, "r": 8, "t": TOP, "b": MARGIN},
    )  # fmt: skip
    figure.update_yaxes(
        range=[rows - 0.46, -0.54], tickmode="array", tickvals=labels["row"], showgrid=False, fixedrange=True,
        ticktext=[_label(row["label"], row["algorithm"], palette) for row in labels.to_dict("records")],
        tickfont={"color": palette.text, "size": 13},
    )  # fmt: skip
    heads = cells.drop_duplicates(["column"]) if rows == cells["label"].nunique() else cells.head(0)
    figure.update_xaxes(
        range=[-0.52, across - 0.48], side="top", tickmode="array", tickvals=heads["column"], showgrid=False,
        ticktext=[f"seed {seed}" for seed in heads["seed"]], fixedrange=True,
    )  # fmt: skip
    _blocks(figure, cells)
    return figure


def _label(label: str, algorithm: str, palette: Palette) -> str:
    return f"<span style='color:{colour(algorithm, palette)}'>■</span> {_balanced(label)}"


def _balanced(label: str) -> str:
    """A long name in lines of about one length."""
    lines = math.ceil(len(label) / _LABEL)
    return wrapped(label, math.ceil(len(label) / lines) + 3 if lines > 1 else _LABEL)


def _blocks(figure: go.Figure, cells: pd.DataFrame) -> None:
    """The name of each condition above its block of columns."""
    blocks = cells[cells["block"] != ""].groupby("block", sort=False)["column"].agg(["min", "max"])
    if cells["block"].nunique() < 2:
        return
    for name, (first, last) in blocks.iterrows():
        figure.add_annotation(
            x=(first + last) / 2, y=1, yref="paper", yanchor="bottom", yshift=22, showarrow=False,
            text=f"<b>{figure_text(name)}</b>",
        )  # fmt: skip
    figure.update_layout(margin={"t": TOP + 22}, height=figure.layout.height + 22)


def _tiles(part: pd.DataFrame, fill: str) -> go.Scatter:
    """The tiles of one outcome as one closed path, a gap between two."""
    import plotly.graph_objects as go

    x, y = [], []
    for column, row in zip(part["column"], part["row"], strict=True):
        left, right, top, bottom = column - 0.48, column + 0.48, row - 0.45, row + 0.45
        x += [left, right, right, left, left, None]
        y += [top, top, bottom, bottom, top, None]
    return go.Scatter(
        x=x, y=y, mode="lines", fill="toself", fillcolor=faded(fill, 0.16), hoverinfo="skip",
        line={"color": faded(fill, 0.75), "width": 1.2},
    )  # fmt: skip


def _sparks(part: pd.DataFrame, curves: pd.DataFrame, line: str) -> go.Scatter | None:
    """Success of each run inside its tile: the whole width is the longest run, the whole height is 1.

    `curves` goes run by run.
    """
    import numpy as np
    import plotly.graph_objects as go

    known = curves[curves["run_id"].isin(part["run_id"])]
    if known.empty:
        return None
    where = known.merge(part[["run_id", "row", "column"]], on="run_id")
    run = where["run_id"].to_numpy()
    gaps = np.flatnonzero(run[1:] != run[:-1]) + 1  # no line from the last point of a run to the first of the next
    x = np.insert((where["column"] - 0.43 + 0.86 * where["x"] / where["last"].clip(lower=1)).to_numpy(), gaps, np.nan)
    y = np.insert((where["row"] + 0.38 - 0.58 * where["mean"]).to_numpy(dtype=float), gaps, np.nan)
    return go.Scatter(x=x, y=y, mode="lines", line={"color": line, "width": 1.8}, hoverinfo="skip")


def _onsets(cells: pd.DataFrame, curves: pd.DataFrame, palette: Palette) -> go.Scatter | None:
    import plotly.graph_objects as go

    fell = cells.dropna(subset=["collapse_step"]).merge(
        curves.drop_duplicates("run_id")[["run_id", "last"]], on="run_id"
    )
    if fell.empty:
        return None
    x, y = [], []
    for column, row, step, last in zip(fell["column"], fell["row"], fell["collapse_step"], fell["last"], strict=True):
        at = column - 0.43 + 0.86 * step / max(last, 1)
        x += [at, at, None]
        y += [row - 0.14, row + 0.42, None]
    return go.Scatter(
        x=x, y=y, mode="lines", line={"color": palette.outcomes["collapsed"], "width": 1.4, "dash": "2px,2px"},
        hoverinfo="skip",
    )  # fmt: skip


def _words(cells: pd.DataFrame, palette: Palette, *, wide: bool) -> go.Scatter:
    """How the run ended (or that it runs) in the upper left corner of its tile."""
    import plotly.graph_objects as go

    texts = [_state(run, wide=wide) for run in cells.to_dict("records")]
    return go.Scatter(
        x=cells["column"] - 0.44, y=cells["row"] - 0.29, mode="text", text=texts, textposition="middle right",
        textfont={"size": 12, "color": palette.text}, hoverinfo="skip", cliponaxis=False,
    )  # fmt: skip


def _state(run: Mapping[Any, Any], *, wide: bool) -> str:
    import pandas as pd

    outcome, status = run.get("outcome"), str(run.get("status"))
    step = run.get("collapse_step")
    fell = "" if pd.isna(step) else f"{step:.0f}"
    if not isinstance(outcome, str) or not outcome:
        words = status if status != "finished" else "undecided"
        return words if wide else {"running": "▸", "failed": "!"}.get(status, "")
    if not wide:
        return fell
    return f"{_WORDS.get(outcome, outcome)} at {fell}" if fell else _WORDS.get(outcome, outcome)


def _targets(cells: pd.DataFrame) -> go.Scatter:
    """What the pointer meets: an unseen mark over each tile."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=cells["column"], y=cells["row"], mode="markers", showlegend=False,
        marker={"symbol": "square", "size": ROW - 8, "opacity": 0}, customdata=[[visible(r)] for r in cells["run_id"]],
        text=[_about(run) for run in cells.to_dict("records")], hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _about(run: Mapping[Any, Any]) -> str:
    import pandas as pd

    lines = [f"<b>{figure_text(run['arm'])}</b>, seed {run['seed']}", figure_text(run["run_id"])]
    for name, words in (("peak_success", "peak success"), ("final_success", "final success"), ("steps", "steps")):
        value = run.get(name)
        if not pd.isna(value):
            lines.append(f"{words} {value:.3g}")
    reason = run.get("reason")
    return "<br>".join([*lines, wrapped(str(reason), 60)] if isinstance(reason, str) and reason else lines)
