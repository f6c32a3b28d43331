"""The figures of an experiment, from its results alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from workbench.analysis.claims import Verdict, effect, named
from workbench.analysis.evidence import COLLAPSE, NOT_SUPPORTED, SUPPORTED
from workbench.analysis.results import SERIES
from workbench.analysis.survival import curve, observed
from workbench.app import theme
from workbench.app.figures.collapse import survival
from workbench.app.figures.curves import Panel, curves
from workbench.app.figures.forest import FACTOR, SHARE, Effect, forest
from workbench.app.figures.matrix import layout, matrix
from workbench.app.report.write import Figure
from workbench.app.series import AXES, banded

if TYPE_CHECKING:
    import plotly.graph_objects as go

Words = Mapping[str, tuple[str, str]]  # curve -> unit, definition
Draw = Callable[[theme.Palette], "go.Figure"]
ARMS = 6  # of a figure; more are drawn in several
POINTS = 160  # of a line
_WHO = ("arm", "run_id", "seed")
TONES = {SUPPORTED: "healthy", NOT_SUPPORTED: "collapsed"}
BANDS = (
    "Line: interquartile mean over seeds; darker band: its 95 % bootstrap interval over seeds; edges or paler band: "
    "lowest and highest seed; ▼ onset of a collapse; ✕ NaN or Inf."
)


def of_experiment(runs: pd.DataFrame, words: Words, test: str) -> list[Figure]:
    """Outcomes, success, survival and the other curves, each with its n; `test` is the log-rank test in words."""
    key = (
        "A cell is a run: its outcome as colour, its success (0 to 1) as a curve over the longest run, the onset of "
        "its collapse dotted."
    )
    found = [Figure(lambda palette: _matrix(runs, palette), "Outcomes", f"{counted(runs)} {key}")]
    others = [name for name in SERIES if name != "success"]
    for part in groups(runs):
        told, tail = counted(part), _which(part, runs)
        found.append(Figure(_drawn(part, runs, words, ["success"]), f"Success{tail}", f"{told} {BANDS}"))
        if len(observed(part)):
            found.append(Figure(_fallen(part, runs, test), f"How long the arms stay up{tail}", _watched(part)))
        found.append(Figure(_drawn(part, runs, words, others), f"Diagnostics{tail}", f"{told} {BANDS}"))
    return found


def of_claims(found: Sequence[Verdict]) -> list[Figure]:
    """The effects of the hypotheses that were tested; none where there is nothing to draw."""
    effects = [
        Effect(
            f"({verdict.claim.letter}) {named(one)}", SHARE if one.measure == COLLAPSE else FACTOR, one.effect, one.low,
            one.high, f"{effect(one)}; {one.detail}; {one.seeds} seeds; {one.verdict}", TONES.get(one.verdict, ""),
        )
        for verdict in found
        for one in verdict.rows
        if one.effect is not None and one.low is not None and one.high is not None
    ]  # fmt: skip
    if not effects:
        return []
    caption = (
        f"{len(effects)} hypotheses. Shares: Newcombe's 95 % interval of a difference within seeds; factors: 95 % "
        "t-interval of the geometric mean over seeds. Blue is supported, red not supported, grey undecided."
    )
    return [Figure(lambda palette: forest(effects, palette), "Effects behind the claims", caption)]


def counted(runs: pd.DataFrame) -> str:
    """`6 arms, 30 runs, 5 seeds each (0 to 4).`"""
    each = runs.groupby("arm", sort=False)["seed"].nunique()
    seeds = sorted(runs["seed"].dropna().astype(int).unique())
    low, high = each.min(), each.max()
    told = f"{low}" if low == high else f"{low} to {high}"
    whole = seeds == list(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 2
    which = f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))
    arms = f"{len(each)} arms" if len(each) > 1 else "1 arm"
    return f"{arms}, {len(runs)} runs, {told} {'seed' if told == '1' else 'seeds'} each ({which})."


def groups(runs: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The runs of at most ARMS arms at a time, the first arm always among them."""
    arms = list(dict.fromkeys(runs["arm"]))
    if len(arms) <= ARMS:
        yield runs
        return
    others = arms[1:]
    size = math.ceil(len(others) / math.ceil(len(others) / (ARMS - 1)))
    for first in range(0, len(others), size):
        yield runs[runs["arm"].isin([arms[0], *others[first : first + size]])]


def _which(part: pd.DataFrame, runs: pd.DataFrame) -> str:
    arms = list(dict.fromkeys(part["arm"]))
    return "" if part["arm"].nunique() == runs["arm"].nunique() else f": {'; '.join(map(str, arms))}"


def _styles(part: pd.DataFrame, runs: pd.DataFrame, palette: theme.Palette) -> dict[str, theme.Style]:
    pairs = list(runs[["arm", "algorithm"]].drop_duplicates("arm").itertuples(index=False, name=None))
    names = list(dict.fromkeys(part["arm"]))
    found = theme.styles(pairs, palette, drawn=names)
    return {arm: found[arm] for arm in names}


def points(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """A curve of every run, a row a bucket of steps: run, arm, run_id, seed, bucket, x, mean, low, high, non_finite."""
    rows = [
        pd.DataFrame({"run": place, "step": run["step"], "value": values} | {name: run[name] for name in _WHO})
        for place, run in enumerate(runs.to_dict("records"))
        if isinstance(values := run[f"{name}_curve"], np.ndarray)
    ]
    columns = ["run", *_WHO, "bucket", "x", "mean", "low", "high"]
    if not rows:
        return pd.DataFrame(columns=columns)
    every = pd.concat(rows, ignore_index=True).astype({"value": float}).dropna(subset=["value"])
    width = max(1, math.ceil((runs["steps"].max() or 1) / POINTS))
    every = every.assign(bucket=every["step"] // width)
    found = every.groupby(["run", *_WHO, "bucket"], sort=True)["value"].agg(["mean", "min", "max"])
    found = found.reset_index().rename(columns={"min": "low", "max": "high"})
    return found.assign(x=found["bucket"] * width + (width - 1) / 2)[columns]


def _drawn(part: pd.DataFrame, runs: pd.DataFrame, words: Words, names: Sequence[str]) -> Draw:
    @cache
    def panels() -> list[Panel]:
        drawn = []
        for name in names:
            unit, definition = words.get(name, ("", ""))
            found = points(part, name)
            finite = found["mean"].abs() < math.inf
            drawn.append(Panel(name, unit, definition, banded(found[finite]), broken=found[~finite]))
        return drawn

    def draw(palette: theme.Palette) -> go.Figure:
        fell = part.dropna(subset=["collapse_step"])
        onsets = fell.assign(x=fell["collapse_step"])[["arm", "run_id", "x"]]
        return curves(panels(), _styles(part, runs, palette), palette, AXES["step"], onsets=onsets)

    return draw


def _fallen(part: pd.DataFrame, runs: pd.DataFrame, test: str) -> Draw:
    rows = observed(part)
    steps = curve(rows)

    def draw(palette: theme.Palette) -> go.Figure:
        return survival(steps, rows, _styles(part, runs, palette), palette, test)

    return draw


def _watched(part: pd.DataFrame) -> str:
    rows = observed(part)
    return (
        f"{counted(part)} {len(rows)} runs watched, {int(rows['event'].sum())} collapsed. Kaplan-Meier: a step down is "
        "the onset of a collapse, a tick a run that was still up when it ended. 95 % intervals of each arm stand in "
        "the table of times to collapse and are drawn up to three arms. Runs at risk below; equal curves a hair apart."
    )


def _matrix(runs: pd.DataFrame, palette: theme.Palette) -> str:
    found = points(runs, "success")
    last = runs["steps"].max()
    return matrix(layout(runs), found.assign(last=max(1, int(last) - 1 if last == last else 1)), palette)
