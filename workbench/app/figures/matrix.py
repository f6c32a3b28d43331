"""The grid at a glance: a cell a run, its outcome as colour, its success as a small curve, its collapse as a
mark.
"""

import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from sorl.app.data import Row, ended, fall_of, fell, stands
from sorl.app.text import tag, visible
from sorl.app.theme import FONT, Palette, Style, Styles, colour, styles

Address = Callable[[str], str]  # of a run, by its id
TALL = 12  # rows of a part of a grid: more than a screen shows
MOST = 300  # cells that are drawn at once
# pixels: a row, the names of the columns, the names of the blocks above them
ROW = 84
_TOP = 30
_BLOCKS = 24
_ACROSS = 20  # cells in a row; an arm with more seeds goes on in the next row
_FEWEST = 2  # columns that a row has room for, so that one seed is not stretched over a whole screen
_GAP = 0.04  # columns between two cells
# characters and pixels of a line of a row's name, lines of it
_LABEL = 27
_LINE = 15
_LINES = 4
_LETTER = 7.2  # pixels of a character of a row's name, at most on the average
_CURVE = (7.0, 86.0, 78.0, 38.0)  # percent of a cell: left end and width of its curve, success 0, height of 1
# columns up to which a cell has words, and the head of a column the word seed
_WIDE = 8
_NAMED = 14
# pixels that a cell with words needs, or one with a number
_WORDS = 112
_MARK = 36
# pixels of lines and gaps
_DASHES = {
    "dash": "6 3",
    "dot": "2 2.5",
    "dashdot": "6 2.5 2 2.5",
    "longdash": "10 3",
    "longdashdot": "10 3 2 3",
}
_SHORT = {"running": "▸", "failed": "!"}  # a status in a cell without room for words


def layout(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `runs` with `label`, `block`, `row`, `column` (of `across`) of each cell: seeds are columns,
    arms rows.

    names: percent of the width for the names of the rows; least: the width in pixels below which a text would
    not fit.
    """
    # of `ppo · staleness 8` the condition is `staleness 8`
    named = zip(runs["arm"], runs["algorithm"], strict=True)
    cells = runs.assign(
        condition=[a.removeprefix(b).lstrip(" ·,") if a.startswith(b) else a for a, b in named]
    )
    pairs = cells[["algorithm", "condition"]].drop_duplicates()
    algorithms = list(cells["algorithm"].unique())
    conditions = list(cells["condition"].unique())
    seeds = sorted(cells["seed"].unique())
    place = cells["seed"].map(seeds.index)
    # Where every algorithm was run under every condition, algorithms are rows and each condition a block of
    # columns.
    crossed = len(pairs) == len(algorithms) * len(conditions) and len(seeds) * len(conditions) <= _ACROSS
    if crossed and len(conditions) > 1 and len(algorithms) > 1:
        cells = cells.assign(
            label=cells["algorithm"],
            block=cells["condition"],
            row=cells["algorithm"].map(algorithms.index),
            column=place + cells["condition"].map(conditions.index) * (len(seeds) + 0.35),
        )
    else:
        first = cells["arm"].map(list(cells["arm"].unique()).index) * math.ceil(len(seeds) / _ACROSS)
        cells = cells.assign(
            label=cells["arm"], block="", row=first + place // _ACROSS, column=place % _ACROSS
        )
    across = max(float(cells["column"].max()) + 1, _FEWEST)
    names = 24 + _LETTER * max(len(line) for label in cells["label"].unique() for line in _lines(label))
    least = names + across * (_WORDS if across <= _WIDE else _MARK)
    return cells.assign(across=across, names=100 * names / least, least=least)


def parts(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return `layout`'s cells by the rows they hold (`1-12`, ...), rows from 0: TALL rows a part if more than
    MOST.
    """
    rows = int(cells["row"].max()) + 1
    if len(cells) <= MOST:
        return {f"1-{rows}": cells}
    return {
        f"{number * TALL + 1}-{min(rows, (number + 1) * TALL)}": part.assign(row=part["row"] % TALL)
        for number, part in cells.groupby(cells["row"] // TALL)
    }


def matrix(
    cells: pd.DataFrame,
    curves: pd.DataFrame,
    palette: Palette,
    address: Address | None = None,
    looks: Styles | None = None,
) -> str:
    """Return the SVG of `layout`'s cells and success `curves`; with `address` (run id -> address) each is a
    link. `looks`: of all arms, where `cells` has only some of them.
    """
    looks = looks or styles(cells[["arm", "algorithm"]].to_numpy(), palette)
    rows = int(cells["row"].max()) + 1
    across, left, least = cells[["across", "names", "least"]].iloc[0]
    unit = (100 - left) / across
    blocks = cells[cells["block"] != ""].groupby("block", sort=False)["column"].agg(["min", "max"])
    top = _TOP + _BLOCKS * (len(blocks) > 1)
    drawn = []

    def write(words: object, column: float, **more: Any) -> None:
        drawn.append(tag("text", words, x=f"{left + unit * column:.3f}%", **{"text_anchor": "middle"} | more))

    for name, ends in blocks.iterrows() if len(blocks) > 1 else ():
        write(name, (ends.sum() + 1) / 2, y=16, font_weight=600)
    if rows == cells["label"].nunique():  # else an arm goes on in the next row: a column is not one seed
        look: dict[str, Any] = {"y": top - 10, "font_size": 12, "opacity": 0.7}
        if across > _NAMED:
            write("seed", 0, dx=-8, **look | {"text_anchor": "end"})
        for column, seed in cells.drop_duplicates("column")[["column", "seed"]].itertuples(index=False):
            write(seed if across > _NAMED else f"seed {seed}", column + 0.5, **look)
    for row in cells.drop_duplicates("label").to_dict("records"):
        lines = _lines(row["label"])
        middle = top + ROW * (row["row"] + 0.5)
        first = middle - _LINE * (len(lines) - 1) / 2 + 4.5
        spans = (tag("tspan", line, x=18, y=f"{first + _LINE * i:g}") for i, line in enumerate(lines))
        is_arm = row["label"] == row["arm"]  # else the row of an algorithm, with an arm a block
        shade = looks[str(row["arm"])].colour if is_arm else colour(str(row["algorithm"]), palette)
        mark = tag("rect", x=2, y=f"{middle - 5:g}", width=10, height=10, fill=shade)
        drawn.append(tag("g", tag("title", row["label"]), mark, tag("text", *spans)))
    paths = _paths(curves[curves["run_id"].isin(cells["run_id"])])
    for run in cells.to_dict("records"):
        place = left + unit * (run["column"] + _GAP / 2), top + ROW * (run["row"] + 0.04), unit * (1 - _GAP)
        drawn.append(_cell(run, place, paths, (palette, looks[str(run["arm"])]), address))
    return tag(
        "svg",
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        width="100%",
        height=top + rows * ROW,
        fill=palette.text,
        font_family=FONT,
        font_size=13,
        role="group",
        style=f"min-width:{least:.0f}px",
    )


def _lines(label: object) -> list[str]:
    lines = textwrap.wrap(visible(label), _LABEL, break_on_hyphens=False) or [""]
    return [*lines[: _LINES - 1], lines[_LINES - 1] + " …"] if len(lines) > _LINES else lines


def _cell(
    run: Row,
    place: tuple[float, float, float],
    paths: Mapping[str, Any],
    look: tuple[Palette, Style],
    address: Address | None,
) -> Markup:
    palette, style = look
    left, upper, width = place  # percent, pixels, percent
    run_id = str(run["run_id"])
    state = ended(run)
    notes = run.get("notes")
    outcome = run["outcome"] if isinstance(run["outcome"], str) else "falling" if state == "falling" else ""
    tone = palette.outcomes.get(outcome, palette.muted)
    fall = fall_of(run)
    onset = None if fall is None else fall.step
    about = [f"{run['arm']}, seed {run['seed']}: {stands(run)}", run_id]
    for name in ("peak_success", "final_success", "steps"):
        about += [f"{name.replace('_', ' ')} {run[name]:.3g}"] if pd.notna(run.get(name)) else []
    about += textwrap.wrap(reason, 60) if isinstance(reason := run.get("reason"), str) else []
    if notes:
        about += [f"tags: {', '.join(notes.tags)}"] * bool(notes.tags) + textwrap.wrap(notes.note, 60)
    about += ["Click, or Enter, opens this run."] if address else []
    ends = [
        f"{word} {run[name]:.2f}"
        for word, name in (("peak", "peak_success"), ("last", "last_success"))
        if pd.notna(run.get(name))
    ]
    short = f"{onset:.0f}" if onset is not None else _SHORT.get(state, "")
    told = (state, fell(run), ", ".join(ends)) if run["across"] <= _WIDE else (short, "", "")
    box = {"x": f"{left:.3f}%", "y": f"{upper:.1f}", "width": f"{width:.3f}%", "height": f"{ROW * 0.92:.1f}"}
    inside = [
        tag("title", "\n".join(about)),
        tag(
            "rect",
            **box,
            rx=2,
            fill=tone,
            fill_opacity=0.16,
            stroke=tone,
            stroke_opacity=0.9,
            stroke_width=1.4,
            stroke_dasharray="5 3" if outcome == "falling" else "",
        ),  # told from a collapse without a colour
    ]
    for words, size, y in zip(told, (12, 11, 11), (15, 28, ROW * 0.92 - 5), strict=True):
        inside.append(tag("text", words, x=f"{left:.3f}%", dx=6, y=f"{upper + y:.1f}", font_size=size))
    if notes and (notes.note or notes.tags):
        mark: dict[str, Any] = {
            "x": f"{left + width:.3f}%",
            "dx": -6,
            "y": f"{upper + 15:.1f}",
            "text_anchor": "end",
        }
        inside.append(tag("text", "✎", **mark, font_size=12))
    if run_id in paths:
        path, last = paths[run_id]
        start, wide, floor, _ = _CURVE
        line = {"stroke_linejoin": "round", "vector_effect": "non-scaling-stroke"}
        dash = _DASHES.get(style.dash, "")
        curve: dict[str, Any] = {"stroke": style.colour, "stroke_width": 1.8, "stroke_dasharray": dash}
        lines = [tag("path", d=path, **curve, **line)]
        if onset is not None:
            at = f"M{start + wide * onset / last:.1f} 38V{floor + 2:g}"
            red = palette.outcomes["collapsed"]
            lines.insert(0, tag("path", d=at, stroke=red, stroke_width=1.4, stroke_dasharray="1 3", **line))
        view = {
            "viewBox": "0 0 100 100",
            "preserveAspectRatio": "none",
            "fill": "none",
            "stroke_linecap": "round",
        }
        inside.append(tag("svg", *lines, **box, **view))
    if address is None:
        return tag("g", *inside)
    return tag("a", *inside, href=address(run_id), data_key=run_id, aria_label=" · ".join(about))


def _paths(curves: pd.DataFrame) -> dict[str, tuple[str, int]]:
    """Return the path of each run's success in its cell, and the last step of the longest run; NaN leaves a
    gap.
    """
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
