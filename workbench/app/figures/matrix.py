"""The grid at a glance: a cell a run, its outcome as colour, its success as a small curve, its collapse as a mark."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from workbench.app.text import html_text, visible
from workbench.app.theme import FONT, Palette, colour

if TYPE_CHECKING:
    import pandas as pd


TALL = 12  # rows of a part of a grid: more than a screen shows
MOST = 300  # cells that are drawn at once
_ACROSS = 20  # cells in a row; an arm with more seeds goes on in the next row
_FEWEST = 5  # columns that a row has room for, so that two seeds are not stretched over a whole screen


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


ROW, TOP, BLOCKS = 64, 30, 24  # pixels: a row, the names of the columns, the names of the blocks above them
_LEFT, _GAP = 18.0, 0.04  # percent of the width for the names of the rows; columns between two cells
_LABEL, _LINE, _LINES = 27, 15, 4  # characters and pixels of a line of a row's name, lines of it
_CURVE = (7.0, 86.0, 86.0, 58.0)  # percent of a cell: left end and width of its curve, success 0, height of 1
_WIDE, _NAMED = 12, 14  # columns up to which a cell has words, and the head of a column the word seed
_WORDS = {"no_learning": "no learning", "": "undecided"}

Address = Callable[[str], str]


def matrix(cells: pd.DataFrame, curves: pd.DataFrame, palette: Palette, address: Address | None = None) -> str:
    """The SVG of cells of `places.layout` and success curves (run_id, x from 0, mean, last = last step of the longest).

    With `address` (run id -> where it is shown) every cell is a link that carries its run as `data-key`.
    """
    across = float(cells["across"].iloc[0])
    rows = int(cells["row"].max()) + 1
    blocks = cells[cells["block"] != ""].groupby("block", sort=False)["column"].agg(["min", "max"])
    top = TOP + (BLOCKS if len(blocks) > 1 else 0)
    drawn = _curves(curves[curves["run_id"].isin(cells["run_id"])])
    lines = [*_heads(cells, blocks, across, rows, top), *_names(cells, top, palette)]
    lines += [_cell(run, drawn, _Place.of(run, across, top), palette, address) for run in cells.to_dict("records")]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{top + rows * ROW}" fill="{palette.text}" '
        f"""font-family='{FONT}' font-size="13" role="group">{"".join(lines)}</svg>"""
    )


class _Place:
    """Where a cell is: left edge and width in percent, upper edge and height in pixels."""

    def __init__(self, left: float, width: float, top: float) -> None:
        self.left, self.width, self.top, self.height = left, width, top, ROW * 0.9

    @classmethod
    def of(cls, run: Mapping[Any, Any], across: float, top: float) -> _Place:
        unit = (100 - _LEFT) / across
        return cls(_x(run["column"] + _GAP / 2, across), unit * (1 - _GAP), top + ROW * (run["row"] + 0.05))


def _x(column: float, across: float) -> float:
    return _LEFT + (100 - _LEFT) * column / across


def _heads(cells: pd.DataFrame, blocks: pd.DataFrame, across: float, rows: int, top: int) -> Iterator[str]:
    """The seed above each column, and the condition above each block of columns."""
    if len(blocks) > 1:
        for name, (first, last) in blocks.iterrows():
            middle = _x((first + last + 1) / 2, across)
            yield f'<text x="{middle:.3f}%" y="16" text-anchor="middle" font-weight="600">{html_text(name)}</text>'
    if rows != cells["label"].nunique():  # an arm goes on in the next row: a column is not one seed
        return
    y = top - 10
    short = across > _NAMED
    if short:
        yield f'<text x="{_LEFT:g}%" dx="-8" y="{y}" text-anchor="end" font-size="12" opacity=".7">seed</text>'
    for column, seed in cells.drop_duplicates("column")[["column", "seed"]].itertuples(index=False):
        words = html_text(seed if short else f"seed {seed}")
        yield (
            f'<text x="{_x(column + 0.5, across):.3f}%" y="{y}" text-anchor="middle" font-size="12" '
            f'opacity=".7">{words}</text>'
        )


def _names(cells: pd.DataFrame, top: float, palette: Palette) -> Iterator[str]:
    """The name of each row beside a mark in the colour of its algorithm."""
    for row in cells.drop_duplicates("label").to_dict("records"):
        told = textwrap.wrap(visible(row["label"]), _LABEL, break_long_words=True, break_on_hyphens=False) or [""]
        lines = [*told[: _LINES - 1], told[_LINES - 1] + " …"] if len(told) > _LINES else told
        middle = top + ROW * (row["row"] + 0.5)
        first = middle - _LINE * (len(lines) - 1) / 2 + 4.5
        spans = "".join(
            f'<tspan x="18" y="{first + _LINE * i:g}">{html_text(line)}</tspan>' for i, line in enumerate(lines)
        )
        yield (
            f"<g><title>{html_text(row['label'])}</title>"
            f'<rect x="2" y="{middle - 5:g}" width="10" height="10" fill="{colour(str(row["algorithm"]), palette)}"/>'
            f"<text>{spans}</text></g>"
        )


def _cell(
    run: Mapping[Any, Any], curves: Mapping[str, tuple[str, int]], at: _Place, palette: Palette, address: Address | None
) -> str:
    tone = palette.outcomes.get(_outcome(run), palette.muted)
    known = str(run["run_id"])
    body = (
        f"<title>{html_text(_about(run))}</title>"
        f'<rect x="{at.left:.3f}%" y="{at.top:.1f}" width="{at.width:.3f}%" height="{at.height:.1f}" rx="2" '
        f'fill="{tone}" fill-opacity=".16" stroke="{tone}" stroke-opacity=".75" stroke-width="1.2"/>'
        f'<text x="{at.left:.3f}%" dx="6" y="{at.top + 15:.1f}" font-size="12">'
        f"{html_text(_state(run, wide=run['across'] <= _WIDE))}</text>"
    )
    if (found := curves.get(known)) is not None:
        path, last = found
        body += (
            f'<svg x="{at.left:.3f}%" y="{at.top:.1f}" width="{at.width:.3f}%" height="{at.height:.1f}" '
            f'viewBox="0 0 100 100" preserveAspectRatio="none" fill="none" stroke-linecap="round">'
            f'{_onset(run, last, palette)}<path d="{path}" stroke="{colour(str(run["algorithm"]), palette)}" '
            'stroke-width="1.8" stroke-linejoin="round" vector-effect="non-scaling-stroke"/></svg>'
        )
    if address is None:
        return f"<g>{body}</g>"
    return f'<a href="{html_text(address(known))}" data-key="{html_text(known)}">{body}</a>'


def _outcome(run: Mapping[Any, Any]) -> str:
    outcome = run.get("outcome")
    return outcome if isinstance(outcome, str) else ""


def _curves(curves: pd.DataFrame) -> dict[str, tuple[str, int]]:
    """The path of each run's success inside its cell, and the last step of the longest run; NaN leaves a gap."""
    left, width, floor, height = _CURVE
    curves = curves.astype({"x": float, "mean": float, "last": float})  # of no runs, too
    last = curves["last"].clip(lower=1)
    x = (left + width * curves["x"] / last).round(1).tolist()
    y = (floor - height * curves["mean"].clip(0, 1)).round(1).tolist()
    paths: dict[str, tuple[list[str], int]] = {}
    before = None  # the run whose line goes on; `curves` goes run by run
    for run, end, a, b in zip(curves["run_id"], last, x, y, strict=True):
        if math.isnan(b):
            before = None
            continue
        path, _ = paths.setdefault(run, ([], int(end)))
        path.append(f"L{a:g} {b:g}" if run == before else f"M{a:g} {b:g}h0")
        before = run
    return {run: ("".join(path), end) for run, (path, end) in paths.items()}


def _onset(run: Mapping[Any, Any], last: int, palette: Palette) -> str:
    """A dotted line where the fall began."""
    step = _began(run)
    if step is None:
        return ""
    left, width, floor, _ = _CURVE
    at = left + width * step / last
    return (
        f'<path d="M{at:.1f} 32V{floor + 6:g}" stroke="{palette.outcomes["collapsed"]}" stroke-width="1.4" '
        'stroke-dasharray="1 3" vector-effect="non-scaling-stroke"/>'
    )


def _began(run: Mapping[Any, Any]) -> float | None:
    """The step at which the fall began that the run ended in or came back from; None without one."""
    for name in ("collapse_step", "onset_low"):
        step = run.get(name)
        if step is not None and not math.isnan(step):
            return float(step)
    return None


def _state(run: Mapping[Any, Any], *, wide: bool) -> str:
    """How the run ended, or that it runs."""

    outcome, status = _outcome(run), str(run.get("status"))
    step = _began(run)
    fell = "" if step is None else f"{step:.0f}"
    if not outcome:
        words = status if status != "finished" else "undecided"
        return words if wide else {"running": "▸", "failed": "!"}.get(status, "")
    if not wide:
        return fell
    return f"{_WORDS.get(outcome, outcome)} at {fell}" if fell else _WORDS.get(outcome, outcome)


def _about(run: Mapping[Any, Any]) -> str:
    """What the pointer is told."""
    import pandas as pd

    lines = [f"{run['arm']}, seed {run['seed']}", str(run["run_id"])]
    for name, words in (("peak_success", "peak success"), ("final_success", "final success"), ("steps", "steps")):
        value = run.get(name)
        if not pd.isna(value):
            lines.append(f"{words} {value:.3g}")
    reason = run.get("reason")
    if isinstance(reason, str) and reason:
        lines += textwrap.wrap(reason, 60)
    return "\n".join(lines)
