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

STATES = {"no_learning": "did not rise", "falling": "falling", "mild": "mild fall"}  # outcomes in words of a cell

TALL = 12  # rows of a part of a grid: more than a screen shows
MOST = 300  # cells that are drawn at once
ROW, _TOP, _BLOCKS = 72, 30, 24  # pixels: a row, the names of the columns, the names of the blocks above them
_ACROSS = 20  # cells in a row; an arm with more seeds goes on in the next row
_FEWEST = 2  # columns that a row has room for, so that one seed is not stretched over a whole screen
_GAP = 0.04  # columns between two cells
_LABEL, _LINE, _LINES = 27, 15, 4  # characters and pixels of a line of a row's name, lines of it
_LETTER = 7.2  # pixels of a character of a row's name, at most on the average
_CURVE = (7.0, 86.0, 74.0, 46.0)  # percent of a cell: left end and width of its curve, success 0, height of 1
_WIDE, _NAMED = 8, 14  # columns up to which a cell has words, and the head of a column the word seed
_WORDS, _MARK = 112, 36  # pixels that a cell with words needs, or one with a number
_DASHED = ("falling",)  # outcomes whose border is dashed: told from a collapse without a colour


def layout(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `runs` with `label`, `block`, `row`, `column` (of `across`) of each cell: seeds are columns, arms rows.

    names: percent of the width for the names of the rows; least: the width in pixels below which a text would not fit.
    """
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
    across = max(float(cells["column"].max()) + 1, _FEWEST)
    names = 24 + _LETTER * max(len(line) for label in cells["label"].unique() for line in _lines(label))
    least = names + across * (_WORDS if across <= _WIDE else _MARK)
    return cells.assign(across=across, names=100 * names / least, least=least)


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
        font_family=FONT, font_size=13, role="group", style=f"min-width:{cells['least'].iloc[0]:.0f}px",
    )  # fmt: skip


def _heads(cells: pd.DataFrame, blocks: pd.DataFrame, rows: int, top: int) -> Iterator[Markup]:
    across = float(cells["across"].iloc[0])
    left = float(cells["names"].iloc[0])
    unit = (100 - left) / across
    for name, (first, last) in blocks.iterrows() if len(blocks) > 1 else ():
        middle = left + unit * (first + last + 1) / 2
        yield tag("text", name, x=f"{middle:.3f}%", y=16, text_anchor="middle", font_weight=600)
    if rows != cells["label"].nunique():  # an arm goes on in the next row: a column is not one seed
        return
    look: dict[str, Any] = {"y": top - 10, "font_size": 12, "opacity": 0.7}
    if across > _NAMED:
        yield tag("text", "seed", x=f"{left:.3f}%", dx=-8, text_anchor="end", **look)
    for column, seed in cells.drop_duplicates("column")[["column", "seed"]].itertuples(index=False):
        words = seed if across > _NAMED else f"seed {seed}"
        yield tag("text", words, x=f"{left + unit * (column + 0.5):.3f}%", text_anchor="middle", **look)


def _names(cells: pd.DataFrame, top: float, palette: Palette) -> Iterator[Markup]:
    for row in cells.drop_duplicates("label").to_dict("records"):
        lines = _lines(row["label"])
        middle = top + ROW * (row["row"] + 0.5)
        first = middle - _LINE * (len(lines) - 1) / 2 + 4.5
        spans = (tag("tspan", line, x=18, y=f"{first + _LINE * i:g}") for i, line in enumerate(lines))
        mark = tag("rect", x=2, y=f"{middle - 5:g}", width=10, height=10, fill=colour(str(row["algorithm"]), palette))
        yield tag("g", tag("title", row["label"]), mark, tag("text", *spans))


def _lines(label: object) -> list[str]:
    lines = textwrap.wrap(visible(label), _LABEL, break_on_hyphens=False) or [""]
    return [*lines[: _LINES - 1], lines[_LINES - 1] + " …"] if len(lines) > _LINES else lines


def state(run: Row) -> str:
    """Say in a few words how a run stands, and since which step it is down."""
    outcome = run["outcome"] if isinstance(run["outcome"], str) else ""
    known = [run[name] for name in ("collapse_step", "onset_low") if pd.notna(run.get(name))]
    since = f" at {known[0]:.0f}" if known else ""  # the step at which the fall began, also one that it came back from
    if outcome:
        return STATES.get(outcome, outcome) + since
    slump = run.get("slump")
    live = f"falling since {slump:.0f}" if pd.notna(slump) else run.get("status")
    return str(live).replace("finished", "undecided")


def _cell(
    run: Row, paths: Mapping[str, tuple[str, int]], top: float, palette: Palette, address: Callable[[str], str] | None
) -> Markup:
    unit = (100 - run["names"]) / run["across"]
    left, upper = f"{run['names'] + unit * (run['column'] + _GAP / 2):.3f}%", top + ROW * (run["row"] + 0.04)
    right = f"{run['names'] + unit * (run['column'] + 1 - _GAP / 2):.3f}%"
    box = {"x": left, "y": f"{upper:.1f}", "width": f"{unit * (1 - _GAP):.3f}%", "height": f"{ROW * 0.92:.1f}"}
    run_id, outcome = str(run["run_id"]), run["outcome"] if isinstance(run["outcome"], str) else ""
    known = [run[name] for name in ("collapse_step", "onset_low") if pd.notna(run.get(name))]
    words, wide, notes = state(run), run["across"] <= _WIDE, run.get("notes")
    short = f"{known[0]:.0f}" if known else "" if outcome else {"running": "▸", "failed": "!"}.get(words, "")
    outcome = outcome or ("falling" if pd.notna(run.get("slump")) else "")
    tone = palette.outcomes.get(outcome, palette.muted)
    about = [f"{run['arm']}, seed {run['seed']}: {words}", run_id]
    for name in ("peak_success", "final_success", "steps"):
        about += [f"{name.replace('_', ' ')} {run[name]:.3g}"] if pd.notna(run.get(name)) else []
    about += textwrap.wrap(reason, 60) if isinstance(reason := run.get("reason"), str) else []
    about += [f"tags: {', '.join(notes.tags)}"] if notes and notes.tags else []
    about += textwrap.wrap(notes.note, 60) if notes else []
    about += ["Click, or Enter, opens this run."] if address else []
    ends = [f"{run[name]:.2f}" if pd.notna(run.get(name)) else "" for name in ("max_success", "last_success")]
    numbers = ", ".join(f"{word} {value}" for word, value in zip(("max", "last"), ends, strict=True) if value)
    marked = "✎" * bool(notes and (notes.note or notes.tags))
    inside = [
        tag("title", "\n".join(about)),
        tag("rect", **box, rx=2, fill=tone, fill_opacity=0.16, stroke=tone, stroke_opacity=0.9, stroke_width=1.4,
            stroke_dasharray="5 3" if outcome in _DASHED else ""),
        tag("text", words if wide else short, x=left, dx=6, y=f"{upper + 15:.1f}", font_size=12),
        tag("text", numbers if wide else "", x=left, dx=6, y=f"{upper + ROW * 0.92 - 5:.1f}", font_size=11),
        tag("text", marked, x=right, dx=-6, y=f"{upper + 15:.1f}", font_size=12, text_anchor="end"),
    ]  # fmt: skip
    if run_id in paths:
        path, last = paths[run_id]
        start, width, floor, _ = _CURVE
        line = {"stroke_linejoin": "round", "vector_effect": "non-scaling-stroke"}
        lines = [tag("path", d=path, stroke=colour(str(run["algorithm"]), palette), stroke_width=1.8, **line)]
        if known:
            onset = f"M{start + width * float(known[0]) / last:.1f} 28V{floor + 2:g}"
            red = palette.outcomes["collapsed"]
            lines.insert(0, tag("path", d=onset, stroke=red, stroke_width=1.4, stroke_dasharray="1 3", **line))
        view = {"viewBox": "0 0 100 100", "preserveAspectRatio": "none", "fill": "none", "stroke_linecap": "round"}
        inside.append(tag("svg", *lines, **box, **view))
    label = " · ".join(about)
    return (
        tag("g", *inside)
        if address is None
        else tag("a", *inside, href=address(run_id), data_key=run_id, aria_label=label)
    )


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
