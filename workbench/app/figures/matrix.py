"""The grid at a glance: a cell a run, its outcome as colour, its success as a small curve, its collapse as a mark."""

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from workbench.app.text import tag, visible
from workbench.app.theme import FONT, Palette, colour

Row = Mapping[Any, Any]

TALL = 12  # rows of a part of a grid: more than a screen shows
MOST = 300  # cells that are drawn at once
ROW, _TOP, _BLOCKS = 64, 30, 24  # pixels: a row, the names of the columns, the names of the blocks above them
_ACROSS = 20  # cells in a row; an arm with more seeds goes on in the next row
_FEWEST = 5  # columns that a row has room for, so that two seeds are not stretched over a whole screen
_LEFT, _GAP = 18.0, 0.04  # percent of the width for the names of the rows; columns between two cells
_LABEL, _LINE, _LINES = 27, 15, 4  # characters and pixels of a line of a row's name, lines of it
_CURVE = (7.0, 86.0, 86.0, 58.0)  # percent of a cell: left end and width of its curve, success 0, height of 1
_WIDE, _NAMED = 12, 14  # columns up to which a cell has words, and the head of a column the word seed


def layout(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `runs` with `label`, `block`, `row`, `column` (of `across`) of each cell: seeds are columns, arms rows."""
    named = zip(runs["arm"], runs["algorithm"], strict=True)  # of `ppo · staleness 8` the condition is `staleness 8`
    cells = runs.assign(condition=[a.removeprefix(b).lstrip(" ·,") if a.startswith(b) else a for a, b in named])
    pairs = cells[["algorithm", "condition"]].drop_duplicates()
    algorithms, conditions = list(cells["algorithm"].unique()), list(cells["condition"].unique())
    seeds = sorted(cells["seed"].unique())
    place = cells["seed"].map(seeds.index)
    # Where every algorithm was run under every condition, algorithms are rows and each condition a block of columns.
    crossed = len(pairs) == len(algorithms) * len(conditions) and len(seeds) * len(conditions) <= _ACROSS
    if crossed and len(conditions) > 1 and len(algorithms) > 1:
        block = cells["condition"].map(conditions.index)
        cells = cells.assign(
            label=cells["algorithm"], block=cells["condition"], row=cells["algorithm"].map(algorithms.index),
            column=place + block * (len(seeds) + 0.35),
        )  # fmt: skip
    else:
        first = cells["arm"].map(list(cells["arm"].unique()).index) * math.ceil(len(seeds) / _ACROSS)
        cells = cells.assign(label=cells["arm"], block="", row=first + place // _ACROSS, column=place % _ACROSS)
    return cells.assign(across=max(float(cells["column"].max()) + 1, _FEWEST))


def parts(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return `layout`'s cells by the rows they hold (`1-12`, ...), rows from 0: TALL rows a part if more than MOST."""
    rows = int(cells["row"].max()) + 1
    if len(cells) <= MOST:
        return {f"1-{rows}": cells}
    return {
        f"{number * TALL + 1}-{min(rows, (number + 1) * TALL)}": part.assign(row=part["row"] % TALL)
        for number, part in cells.groupby(cells["row"] // TALL)
    }


def matrix(
    cells: pd.DataFrame, curves: pd.DataFrame, palette: Palette, address: Callable[[str], str] | None = None
) -> str:
    """Return the SVG of `layout`'s cells and success `curves`; with `address` (run id -> address) each is a link."""
    rows = int(cells["row"].max()) + 1
    blocks = cells[cells["block"] != ""].groupby("block", sort=False)["column"].agg(["min", "max"])
    top = _TOP + (_BLOCKS if len(blocks) > 1 else 0)
    paths = _paths(curves[curves["run_id"].isin(cells["run_id"])])
    drawn = [*_heads(cells, blocks, rows, top), *_names(cells, top, palette)]
    drawn += [_cell(run, paths, top, palette, address) for run in cells.to_dict("records")]
    return tag(
        "svg", *drawn, xmlns="http://www.w3.org/2000/svg", width="100%", height=top + rows * ROW, fill=palette.text,
        font_family=FONT, font_size=13, role="group",
    )  # fmt: skip


def _heads(cells: pd.DataFrame, blocks: pd.DataFrame, rows: int, top: int) -> Iterator[Markup]:
    across = float(cells["across"].iloc[0])
    unit = (100 - _LEFT) / across
    for name, (first, last) in blocks.iterrows() if len(blocks) > 1 else ():
        middle = _LEFT + unit * (first + last + 1) / 2
        yield tag("text", name, x=f"{middle:.3f}%", y=16, text_anchor="middle", font_weight=600)
    if rows != cells["label"].nunique():  # an arm goes on in the next row: a column is not one seed
        return
    look: dict[str, Any] = {"y": top - 10, "font_size": 12, "opacity": 0.7}
    if across > _NAMED:
        yield tag("text", "seed", x=f"{_LEFT:g}%", dx=-8, text_anchor="end", **look)
    for column, seed in cells.drop_duplicates("column")[["column", "seed"]].itertuples(index=False):
        words = seed if across > _NAMED else f"seed {seed}"
        yield tag("text", words, x=f"{_LEFT + unit * (column + 0.5):.3f}%", text_anchor="middle", **look)


def _names(cells: pd.DataFrame, top: float, palette: Palette) -> Iterator[Markup]:
    for row in cells.drop_duplicates("label").to_dict("records"):
        lines = textwrap.wrap(visible(row["label"]), _LABEL, break_on_hyphens=False) or [""]
        lines = [*lines[: _LINES - 1], lines[_LINES - 1] + " …"] if len(lines) > _LINES else lines
        middle = top + ROW * (row["row"] + 0.5)
        first = middle - _LINE * (len(lines) - 1) / 2 + 4.5
        spans = (tag("tspan", line, x=18, y=f"{first + _LINE * i:g}") for i, line in enumerate(lines))
        mark = tag("rect", x=2, y=f"{middle - 5:g}", width=10, height=10, fill=colour(str(row["algorithm"]), palette))
        yield tag("g", tag("title", row["label"]), mark, tag("text", *spans))


def _cell(
    run: Row, paths: Mapping[str, tuple[str, int]], top: float, palette: Palette, address: Callable[[str], str] | None
) -> Markup:
    unit = (100 - _LEFT) / run["across"]
    left, upper = f"{_LEFT + unit * (run['column'] + _GAP / 2):.3f}%", top + ROW * (run["row"] + 0.05)
    box = {"x": left, "y": f"{upper:.1f}", "width": f"{unit * (1 - _GAP):.3f}%", "height": f"{ROW * 0.9:.1f}"}
    run_id, outcome = str(run["run_id"]), run["outcome"] if isinstance(run["outcome"], str) else ""
    known = [run[name] for name in ("collapse_step", "onset_low") if pd.notna(run.get(name))]
    fell = f"{known[0]:.0f}" if known else ""  # the step at which the fall began, also one that it came back from
    state, short = outcome.replace("_", " ") + (f" at {fell}" if fell else ""), fell
    if not outcome:
        state = str(run.get("status")).replace("finished", "undecided")
        short = {"running": "▸", "failed": "!"}.get(state, "")
    tone = palette.outcomes.get(outcome, palette.muted)
    about = [f"{run['arm']}, seed {run['seed']}", run_id]
    for name in ("peak_success", "final_success", "steps"):
        about += [f"{name.replace('_', ' ')} {run[name]:.3g}"] if pd.notna(run.get(name)) else []
    about += textwrap.wrap(reason, 60) if isinstance(reason := run.get("reason"), str) else []
    inside = [
        tag("title", "\n".join(about)),
        tag("rect", **box, rx=2, fill=tone, fill_opacity=0.16, stroke=tone, stroke_opacity=0.75, stroke_width=1.2),
        tag("text", state if run["across"] <= _WIDE else short, x=left, dx=6, y=f"{upper + 15:.1f}", font_size=12),
    ]
    if run_id in paths:
        path, last = paths[run_id]
        start, width, floor, _ = _CURVE
        line = {"stroke_linejoin": "round", "vector_effect": "non-scaling-stroke"}
        lines = [tag("path", d=path, stroke=colour(str(run["algorithm"]), palette), stroke_width=1.8, **line)]
        if known:
            onset = f"M{start + width * float(known[0]) / last:.1f} 32V{floor + 6:g}"
            red = palette.outcomes["collapsed"]
            lines.insert(0, tag("path", d=onset, stroke=red, stroke_width=1.4, stroke_dasharray="1 3", **line))
        view = {"viewBox": "0 0 100 100", "preserveAspectRatio": "none", "fill": "none", "stroke_linecap": "round"}
        inside.append(tag("svg", *lines, **box, **view))
    return tag("g", *inside) if address is None else tag("a", *inside, href=address(run_id), data_key=run_id)


def _paths(curves: pd.DataFrame) -> dict[str, tuple[str, int]]:
    """Return the path of each run's success in its cell, and the last step of the longest run; NaN leaves a gap."""
    left, width, floor, height = _CURVE
    curves = curves.astype({"x": float, "mean": float, "last": float})  # of no runs, too
    last = curves["last"].clip(lower=1)
    x = (left + width * curves["x"] / last).round(1)
    y = (floor - height * curves["mean"].clip(0, 1)).round(1)
    paths: dict[str, tuple[str, int]] = {}
    before = None  # the run whose line goes on; `curves` goes run by run
    for run, end, a, b in zip(curves["run_id"], last, x, y, strict=True):
        if not math.isnan(b):
            path, _ = paths.get(run, ("", 0))
            paths[run] = path + (f"L{a:g} {b:g}" if run == before else f"M{a:g} {b:g}h0"), int(end)
        before = None if math.isnan(b) else run
    return paths
