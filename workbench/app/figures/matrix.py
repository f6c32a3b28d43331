"""The grid at a glance: a cell a run, its outcome as colour, its success as a small curve, its collapse as a
mark.
"""

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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


class _CurveBox(NamedTuple):
    """Where the curve of a cell lies, in percent of the cell."""

    left: float
    width: float
    floor: float  # of success 0
    height: float  # of success 1


_CURVE = _CurveBox(left=7.0, width=86.0, floor=78.0, height=38.0)


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
    names = 24 + _LETTER * max(_longest_line(label) for label in cells["label"].unique())
    least = names + across * (_WORDS if across <= _WIDE else _MARK)
    return cells.assign(across=across, names=100 * names / least, least=least)


def _longest_line(label: object) -> int:
    return max(len(line) for line in _lines(label))


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


class _Grid(NamedTuple):
    """Where the columns and rows of a matrix lie: percent across, pixels down."""

    left: float  # where the first column begins
    unit: float  # width of a column
    top: int  # where the first row begins

    def text(self, words: object, column: float, **more: Any) -> Markup:
        """A text above the rows, in the middle of `column` unless `more` says otherwise."""
        x = f"{self.left + self.unit * column:.3f}%"
        return tag("text", words, x=x, **{"text_anchor": "middle"} | more)

    def place(self, run: Row) -> "_Place":
        """The place of a run's cell."""
        return _Place(
            self.left + self.unit * (run["column"] + _GAP / 2),
            self.top + ROW * (run["row"] + 0.04),
            self.unit * (1 - _GAP),
        )


class _Place(NamedTuple):
    """Where a cell lies."""

    left: float  # percent
    upper: float  # pixels
    width: float  # percent

    @property
    def box(self) -> dict[str, str]:
        """Its corner and size, as a tag names them."""
        return {
            "x": f"{self.left:.3f}%",
            "y": f"{self.upper:.1f}",
            "width": f"{self.width:.3f}%",
            "height": f"{ROW * 0.92:.1f}",
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
    blocks = cells[cells["block"] != ""].groupby("block", sort=False)["column"].agg(["min", "max"])
    grid = _Grid(left, (100 - left) / across, _TOP + (_BLOCKS if len(blocks) > 1 else 0))
    drawn = [*_block_names(blocks, grid), *_seed_names(cells, grid), *_row_names(cells, grid, looks, palette)]
    paths = _paths(curves[curves["run_id"].isin(cells["run_id"])])
    for run in cells.to_dict("records"):
        look = _Look(palette, looks[str(run["arm"])])
        drawn.append(_cell(run, grid.place(run), paths, look, address))
    return tag(
        "svg",
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        width="100%",
        height=grid.top + rows * ROW,
        fill=palette.text,
        font_family=FONT,
        font_size=13,
        role="group",
        style=f"min-width:{least:.0f}px",
    )


def _block_names(blocks: pd.DataFrame, grid: _Grid) -> Iterator[Markup]:
    """Yield the condition of each block of columns, where there are several."""
    if len(blocks) > 1:
        for name, ends in blocks.iterrows():
            yield grid.text(name, (ends.sum() + 1) / 2, y=16, font_weight=600)


def _seed_names(cells: pd.DataFrame, grid: _Grid) -> Iterator[Markup]:
    """Yield the seed of each column; none where an arm goes on in the next row, as a column is not one seed
    then.
    """
    rows = int(cells["row"].max()) + 1
    if rows != cells["label"].nunique():
        return
    is_crowded = cells["across"].iloc[0] > _NAMED
    look: dict[str, Any] = {"y": grid.top - 10, "font_size": 12, "opacity": 0.7}
    if is_crowded:
        yield grid.text("seed", 0, dx=-8, **look | {"text_anchor": "end"})
    for column, seed in cells.drop_duplicates("column")[["column", "seed"]].itertuples(index=False):
        yield grid.text(seed if is_crowded else f"seed {seed}", column + 0.5, **look)


def _row_names(cells: pd.DataFrame, grid: _Grid, looks: Styles, palette: Palette) -> Iterator[Markup]:
    """Yield the name of each row behind a square of its colour."""
    for row in cells.drop_duplicates("label").to_dict("records"):
        lines = _lines(row["label"])
        middle = grid.top + ROW * (row["row"] + 0.5)
        first = middle - _LINE * (len(lines) - 1) / 2 + 4.5
        spans = (tag("tspan", line, x=18, y=f"{first + _LINE * i:g}") for i, line in enumerate(lines))
        is_arm = row["label"] == row["arm"]  # else the row of an algorithm, with an arm a block
        shade = looks[str(row["arm"])].colour if is_arm else colour(str(row["algorithm"]), palette)
        mark = tag("rect", x=2, y=f"{middle - 5:g}", width=10, height=10, fill=shade)
        yield tag("g", tag("title", row["label"]), mark, tag("text", *spans))


def _lines(label: object) -> list[str]:
    lines = textwrap.wrap(visible(label), _LABEL, break_on_hyphens=False) or [""]
    return [*lines[: _LINES - 1], lines[_LINES - 1] + " …"] if len(lines) > _LINES else lines


class _Look(NamedTuple):
    """The colours of the page, and the style of an arm."""

    palette: Palette
    style: Style


def _cell(
    run: Row, place: _Place, paths: Mapping[str, "_Path"], look: _Look, address: Address | None
) -> Markup:
    """One run: its frame in the colour of its outcome, a few words, and its curve."""
    run_id = str(run["run_id"])
    about = _about_run(run, is_link=address is not None)
    inside = [tag("title", "\n".join(about)), _cell_frame(run, place, look.palette)]
    for words, size, y in zip(_cell_words(run), (12, 11, 11), (15, 28, ROW * 0.92 - 5), strict=True):
        inside.append(
            tag("text", words, x=f"{place.left:.3f}%", dx=6, y=f"{place.upper + y:.1f}", font_size=size)
        )
    notes = run.get("notes")
    if notes and (notes.note or notes.tags):
        inside.append(_pencil(place))
    if run_id in paths:
        inside.append(_cell_curve(run, place, paths[run_id], look))
    if address is None:
        return tag("g", *inside)
    return tag("a", *inside, href=address(run_id), data_key=run_id, aria_label=" · ".join(about))


def _onset(run: Row) -> float | None:
    """The step after which a run fell."""
    fall = fall_of(run)
    return None if fall is None else fall.step


def _outcome(run: Row) -> str:
    """The outcome; falling also where no verdict says so yet, else nothing."""
    if isinstance(run["outcome"], str):
        return run["outcome"]
    return "falling" if ended(run) == "falling" else ""


def _about_run(run: Row, *, is_link: bool) -> list[str]:
    """What the pointer says of a run, line by line."""
    about = [f"{run['arm']}, seed {run['seed']}: {stands(run)}", str(run["run_id"])]
    known = (name for name in ("peak_success", "final_success", "steps") if pd.notna(run.get(name)))
    about += [f"{name.replace('_', ' ')} {run[name]:.3g}" for name in known]
    reason = run.get("reason")
    if isinstance(reason, str):
        about += textwrap.wrap(reason, 60)
    notes = run.get("notes")
    if notes and notes.tags:
        about.append(f"tags: {', '.join(notes.tags)}")
    if notes:
        about += textwrap.wrap(notes.note, 60)
    if is_link:
        about.append("Click, or Enter, opens this run.")
    return about


def _cell_frame(run: Row, place: _Place, palette: Palette) -> Markup:
    outcome = _outcome(run)
    tone = palette.outcomes.get(outcome, palette.muted)
    return tag(
        "rect",
        **place.box,
        rx=2,
        fill=tone,
        fill_opacity=0.16,
        stroke=tone,
        stroke_opacity=0.9,
        stroke_width=1.4,
        stroke_dasharray="5 3" if outcome == "falling" else "",  # told from a collapse without a colour
    )


def _cell_words(run: Row) -> Sequence[str]:
    """Three lines of a cell: its state, its fall, peak and last success; in a narrow one a short word."""
    state = ended(run)
    if run["across"] > _WIDE:
        onset = _onset(run)
        return (f"{onset:.0f}" if onset is not None else _SHORT.get(state, ""), "", "")
    ends = [
        f"{word} {run[name]:.2f}"
        for word, name in (("peak", "peak_success"), ("last", "last_success"))
        if pd.notna(run.get(name))
    ]
    return (state, fell(run), ", ".join(ends))


def _pencil(place: _Place) -> Markup:
    """The mark of a run with notes or tags."""
    mark: dict[str, Any] = {
        "x": f"{place.left + place.width:.3f}%",
        "dx": -6,
        "y": f"{place.upper + 15:.1f}",
        "text_anchor": "end",
    }
    return tag("text", "✎", **mark, font_size=12)


_STROKE = {"stroke_linejoin": "round", "vector_effect": "non-scaling-stroke"}


def _onset_line(onset: float, last: int, palette: Palette) -> Markup:
    """A dotted line at a step of a curve that ends at step `last` where it is longest."""
    x = _CURVE.left + _CURVE.width * onset / last
    red = palette.outcomes["collapsed"]
    drawing = f"M{x:.1f} 38V{_CURVE.floor + 2:g}"
    return tag("path", d=drawing, stroke=red, stroke_width=1.4, stroke_dasharray="1 3", **_STROKE)


def _cell_curve(run: Row, place: _Place, path: "_Path", look: _Look) -> Markup:
    """The curve of success, over a dotted line at the onset of a fall."""
    lines = []
    onset = _onset(run)
    if onset is not None:
        lines.append(_onset_line(onset, path.last, look.palette))
    dash = _DASHES.get(look.style.dash, "")
    curve: dict[str, Any] = {"stroke": look.style.colour, "stroke_width": 1.8, "stroke_dasharray": dash}
    lines.append(tag("path", d=path.drawing, **curve, **_STROKE))
    view = {
        "viewBox": "0 0 100 100",
        "preserveAspectRatio": "none",
        "fill": "none",
        "stroke_linecap": "round",
    }
    return tag("svg", *lines, **place.box, **view)


class _Path(NamedTuple):
    """The curve of a run in its cell, and the last step of the longest run."""

    drawing: str
    last: int


def _paths(curves: pd.DataFrame) -> dict[str, _Path]:
    """Return the path of each run's success in its cell, and the last step of the longest run; NaN leaves a
    gap.
    """
    box = _CURVE
    curves = curves.astype({"x": float, "mean": float, "last": float})  # of no runs, too
    last = curves["last"].clip(lower=1)
    x = (box.left + box.width * curves["x"] / last).round(1)
    y = (box.floor - box.height * curves["mean"].clip(0, 1)).round(1)
    paths: dict[str, _Path] = {}
    before = None  # the run whose line goes on; `curves` goes run by run
    for run, end, a, b in zip(curves["run_id"], last, x, y, strict=True):
        if not math.isnan(b):
            begun = paths[run].drawing if run in paths else ""
            paths[run] = _Path(begun + (f"L{a:g} {b:g}" if run == before else f"M{a:g} {b:g}h0"), int(end))
        before = None if math.isnan(b) else run
    return paths
