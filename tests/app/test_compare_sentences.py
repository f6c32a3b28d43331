"""What Compare says agrees with what its panels draw, over 300 random runs that are counted a second time.

The runs have NaN, gaps, early ends, different lengths and falls at random steps. Nothing below asks the
functions that make the sentences; numbers are read out of the words and compared with the generated runs and
with the points of the panels.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sorl.app.data import Chosen, Drawing, Window, first_alarms, onsets, origins, panel
from sorl.app.figures.common import AXES
from sorl.app.figures.curves import Panel, curves
from sorl.app.queries import Diagnostics, sql
from sorl.app.sentences.collapse import first_warning, headline
from sorl.app.sentences.compare import View, against, key_of
from sorl.app.smoothing import Smoothing
from sorl.app.theme import LIGHT, styles
from tests.store.processes import ROOT

RUNS = 10  # of an example
EXAMPLES = 30
ARMS = ("ppo", "st-ppo", "grpo")
POINTS = 10  # of the rule on a run's own first points
FACTOR = 3.0
BELOW = 0.3  # of the rule on a fixed value


def declared(name: str, value: float | None, points: int | None, when: str) -> dict[str, Any]:
    own = {"name": name, "table_name": "step", "unit": "norm", "formula": name, "description": name}
    return own | {"alarm_value": value, "alarm_baseline_points": points, "alarm_when": when}


KNOWN = Diagnostics(
    {
        "step.success": declared("success", None, None, ""),
        "step.grad": declared("grad", FACTOR, POINTS, "above"),
        "step.ess": declared("ess", BELOW, None, "below"),
    }
)


@dataclass(frozen=True)
class Recorded:
    """A run as its trainer knows it: a value a step of each column, None where none was measured."""

    arm: str
    success: list[float | None]
    grad: list[float | None]
    ess: list[float | None]
    onset: int | None
    outcome: str | None
    planned: int

    @property
    def steps(self) -> int:
        return len(self.success)

    @property
    def ready(self) -> int | None:
        """The first step that the rule on the first points judges; None where there is none."""
        finite = 0
        for step, value in enumerate(self.grad):
            if value is None or math.isnan(value):
                continue
            if finite >= POINTS:
                return step
            finite += 1
        return None

    def alarms(self) -> list[tuple[int, str, float]]:
        """When the two rules ring, by a second reading of what they say."""
        first = [v for v in self.grad if v is not None and not math.isnan(v)][:POINTS]
        rang = [(s, "ess", v) for s, v in enumerate(self.ess) if v is not None and v < BELOW]
        for step, value in enumerate(self.grad):
            late = self.ready is not None and step >= self.ready
            if late and value is not None and value > FACTOR * median(first):
                rang.append((step, "grad", value))
        return rang


numbers = st.floats(0.05, 1.0).map(lambda value: round(value, 3))
measured = st.one_of(numbers, numbers, numbers, numbers, st.sampled_from([None, math.nan, 9.0]))


@st.composite
def recorded(draw: st.DrawFn) -> Recorded:
    length = draw(st.integers(1, 40))

    def column(values: st.SearchStrategy[Any]) -> list[float | None]:
        return draw(st.lists(values, min_size=length, max_size=length))

    onset = draw(st.none() | st.integers(0, length - 1))
    outcome = "collapsed" if onset is not None else draw(st.sampled_from(["healthy", "mild", None]))
    planned = length + draw(st.sampled_from([0, 5]))
    return Recorded(
        draw(st.sampled_from(ARMS)),
        column(numbers),
        column(measured),
        column(st.one_of(numbers, st.just(None))),
        onset,
        outcome,
        planned,
    )


class Memory:
    """The named queries on a database in memory: what Store does without files."""

    def __init__(self, runs: list[Recorded]) -> None:
        self.db = duckdb.connect()
        self.reader = self
        self.db.execute(
            "CREATE TABLE step (run_id VARCHAR, step BIGINT, success DOUBLE, grad DOUBLE, ess DOUBLE);"
            "CREATE TABLE event (run_id VARCHAR, step BIGINT, kind VARCHAR, severity VARCHAR,"
            " diagnostic VARCHAR, value DOUBLE, threshold DOUBLE, message VARCHAR);"
            "CREATE TABLE run (run_id VARCHAR, experiment VARCHAR, algorithm VARCHAR, arm VARCHAR,"
            " seed BIGINT, outcome VARCHAR, collapse_step BIGINT, detection_step BIGINT);"
            "CREATE TABLE segment (run_id VARCHAR, table_name VARCHAR)"
        )
        view = (ROOT / "workbench" / "store" / "views" / "lead_time.sql").read_text(encoding="utf-8")
        self.db.execute(f"CREATE VIEW lead_time AS {view}")
        for number, run in enumerate(runs):
            name = f"r{number}"
            rows = zip([name] * run.steps, range(run.steps), run.success, run.grad, run.ess, strict=True)
            self.db.executemany("INSERT INTO step VALUES (?, ?, ?, ?, ?)", list(rows))
            row = [name, "e", run.arm, run.arm, number, run.outcome, run.onset, None]
            self.db.execute("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            self.db.execute("INSERT INTO segment VALUES (?, 'event')", [name])
            for step, diagnostic, value in run.alarms():
                event = [name, step, "alarm", "warning", diagnostic, value, 0.0, "it rang"]
                self.db.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?)", event)

    @contextmanager
    def together(self) -> Iterator[None]:
        yield

    def query(self, name: str, **parameters: Any) -> pd.DataFrame:
        return self.db.execute(sql(name)[1], parameters).df()


def table_of(runs: list[Recorded]) -> pd.DataFrame:
    rows = [
        {
            "run_id": f"r{number}",
            "arm": run.arm,
            "algorithm": run.arm,
            "seed": number,
            "outcome": run.outcome,
            "collapse_step": run.onset,
            "onset_low": run.onset,
            "onset_high": run.onset,
            "detected": None,
            "steps": float(run.steps),
            "planned": run.planned,
            "status": "finished",
            "final_success": run.success[-1],
        }
        for number, run in enumerate(runs)
    ]
    found = pd.DataFrame(rows).sort_values("arm", kind="stable", ignore_index=True)
    return found.astype({"collapse_step": "Int64", "onset_low": "Int64", "onset_high": "Int64"})


class Screen(NamedTuple):
    """A drawn screen: the runs behind it, by id, the view, and what is said above and below the curves."""

    runs: dict[str, Recorded]
    table: pd.DataFrame
    view: View
    above: str
    below: str


def look_at(runs: list[Recorded], axis: str, drawing: Drawing) -> Screen:
    store: Any = Memory(runs)
    table = table_of(runs)
    starts = origins(table, axis)
    extent = store.query("extent", runs=list(table["run_id"]), origins=starts)
    ends = int(extent["first"].iloc[0]), int(extent["last"].iloc[0])
    chosen = Chosen(table, axis, starts, Window.over(*ends, len(table)))
    panels = [panel(store, chosen, KNOWN, metric, drawing) for metric in KNOWN.rows]
    view = View(chosen, drawing, panels, list(KNOWN.rows), "seed")
    first = first_alarms(store, table, KNOWN)
    collapsed = int(table["collapse_step"].notna().sum())
    above = f"{headline(table)} {first_warning(first.leads, collapsed, first.unwatched)}"
    by_id = {f"r{number}": run for number, run in enumerate(runs)}
    return Screen(by_id, table, view, above, key_of(view))


axes = st.sampled_from(["step", "onset"])
kinds = st.builds(Smoothing, st.sampled_from(["mean", "ema"]), st.sampled_from([1, 2, 5]))
drawings = st.builds(Drawing, st.booleans(), st.none(), kinds)
screens = st.builds(look_at, st.lists(recorded(), min_size=RUNS, max_size=RUNS), axes, drawings)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(screens)
def test_every_sentence_of_compare_agrees_with_what_its_panels_draw(screen: Screen) -> None:
    check_headline(screen)
    check_first_warning(screen)
    check_counts(screen)
    check_thresholds(screen)
    check_no_point_is_beyond_its_run(screen)
    check_smoothing(screen)
    check_alignment_and_carried_runs(screen)
    check_points_beyond_the_axis(screen)


def check_headline(screen: Screen) -> None:
    marked = onsets(screen.view.chosen)
    if marked.empty:
        assert "None of these runs collapsed." in screen.above
        return
    counted = re.search(r"(\d+) of (\d+) runs collapsed", screen.above)
    assert counted is not None
    assert [int(n) for n in counted.groups()] == [len(marked), RUNS]
    for arm, count in marked.groupby("arm").size().items():
        size = sum(run.arm == arm for run in screen.runs.values())
        assert f"{arm} in {count} of {size} (" in screen.above


def alarm_marks(screen: Screen) -> dict[str, set[str]]:
    """Diagnostic -> the runs with a mark of its alarm left of their onset, as the panels draw them."""
    chosen = screen.view.chosen
    starts = dict(zip(chosen.ids, chosen.origins, strict=True))
    warned = {}
    for part in screen.view.panels:
        marks = part.marks.alarms
        rows = [] if marks is None else marks.to_dict("records")
        early = set()
        for row in rows:
            onset = screen.runs[row["run_id"]].onset
            if onset is not None and row["x"] < onset - starts[row["run_id"]]:
                early.add(row["run_id"])
        warned[part.name] = early
    return warned


def check_first_warning(screen: Screen) -> None:
    warned = {name: runs for name, runs in alarm_marks(screen).items() if runs}
    fallen = {name for name, run in screen.runs.items() if run.onset is not None}
    if "No alarm went off before an onset" in screen.above:
        assert not warned
    else:
        told = re.search(
            r"(\w+),? (?:went|told them apart: it went) off before the onset in (\d+) of (\d+)", screen.above
        )
        assert told is not None, screen.above
        assert len(warned[told[1]]) == int(told[2])
        assert len(fallen) == int(told[3])
    too_early = {name for name in fallen if is_unwatched(screen.runs[name])}
    said = re.search(r"The fall began before .* ring: grad in (\d+) of (\d+)", screen.above)
    if said is not None:
        assert [int(n) for n in said.groups()] == [len(too_early), len(fallen)]
    below = re.search(r"(\d+) of (\d+) runs? that fell did so before grad could ring", screen.below)
    assert (int(below[1]) if below else 0) == len(too_early)
    if below:
        assert int(below[2]) == len(fallen)


def is_unwatched(run: Recorded) -> bool:
    """Whether the rule on first points could not warn of the fall of a run that measured the column."""
    has_value = any(value is not None and not math.isnan(value) for value in run.grad)
    return has_value and (run.ready is None or run.ready >= (run.onset or 0))


def numbers_of(run: Recorded, column: str) -> int:
    values = getattr(run, column)
    return sum(value is not None and math.isfinite(value) for value in values)


def size_of(screen: Screen, arm: str) -> int:
    return sum(run.arm == arm for run in screen.runs.values())


def check_counts(screen: Screen) -> None:
    for column in ("success", "grad", "ess"):
        counts = dict.fromkeys(ARMS, 0)
        for run in screen.runs.values():
            counts[run.arm] += numbers_of(run, column) > 0
        fewer = re.search(rf"Fewer in {column}: ([^.]*)\.", screen.below)
        wanted = {arm: counts[arm] for arm in ARMS if counts[arm] < size_of(screen, arm)}
        told = dict(part.split(": ") for part in fewer[1].split("; ")) if fewer else {}
        assert {arm: int(count) for arm, count in told.items()} == wanted
    sizes = {size_of(screen, arm) for arm in ARMS} - {0}
    if len(sizes) > 1:
        for arm in {run.arm for run in screen.runs.values()}:
            size = size_of(screen, arm)
            assert re.search(rf"Number of seeds:[^.]*\b{arm}: {size}\b", screen.below)


def check_thresholds(screen: Screen) -> None:
    chosen = screen.view.chosen
    starts = dict(zip(chosen.ids, chosen.origins, strict=True))
    figure = drawn(screen.view)
    lines = [t for t in figure.data if t.line.dash == "2px,3px" and " for " in (t.hovertemplate or "")]
    for line in lines:
        arm = line.legendgroup
        for name, run in screen.runs.items():
            if run.arm == arm and run.ready is not None and any(v and v > 0 for v in run.grad):
                assert min(line.x) >= run.ready - starts[name], "drawn where it cannot ring"
    if lines:
        assert "from where its rule can ring" in screen.below


def check_no_point_is_beyond_its_run(screen: Screen) -> None:
    chosen = screen.view.chosen
    starts = dict(zip(chosen.ids, chosen.origins, strict=True))
    for part in screen.view.panels:
        for frame in part.parts:
            for row in frame.to_dict("records") if "run_id" in frame else ():
                start = starts[row["run_id"]]
                assert -start <= row["x"] <= screen.runs[row["run_id"]].steps - 1 - start
            for row in frame.to_dict("records") if "middle" in frame else ():
                last = max(run.steps - 1 for run in screen.runs.values() if run.arm == row["arm"])
                assert row["x"] <= last


def check_smoothing(screen: Screen) -> None:
    smoothing = screen.view.drawing.smoothing
    assert ("Smoothed:" in screen.below) == (smoothing.steps > 1)
    told = re.search(r"the (\d+) steps before it and the (\d+) after it", screen.below)
    if told is None or screen.view.drawing.bands:
        return
    before, after = (int(n) for n in told.groups())
    for part in screen.view.panels:
        assert part.unsmoothed is not None
        raw = part.unsmoothed.set_index(["run_id", "x"])["mean"]
        for row in part.data.to_dict("records"):
            assert row["mean"] == pytest.approx(
                mean_around(raw[row["run_id"]], row["x"], before, after), nan_ok=True
            )


def mean_around(values: pd.Series, x: float, before: int, after: int) -> float:
    """The mean of the points around one, cut at the nearest NaN on either side."""
    if math.isnan(values[x]):
        return math.nan
    broken = np.array([at for at, value in values.items() if math.isnan(value)], dtype=float)
    low = max([x - before, *(broken[broken < x] + 1)])
    high = min([x + after, *(broken[broken > x] - 1)])
    return float(values[(values.index >= low) & (values.index <= high)].mean())


def check_alignment_and_carried_runs(screen: Screen) -> None:
    chosen = screen.view.chosen
    standing = sum(run.onset is None for run in screen.runs.values())
    told = re.search(r"(\d+) of (\d+) runs did not fall", screen.below)
    if told is not None:
        assert [int(n) for n in told.groups()] == [standing, RUNS]
    starts = dict(zip(chosen.ids, chosen.origins, strict=True))
    ends = {name: run.steps - 1 - starts[name] for name, run in screen.runs.items()}
    carried = dict.fromkeys(ARMS, 0)
    for name, run in screen.runs.items():
        last = max(ends[other] for other, one in screen.runs.items() if one.arm == run.arm)
        is_stopped = run.onset is not None and run.steps < run.planned
        carried[run.arm] += is_stopped and ends[name] < last
    words = re.search(r"stopped after their collapse \(([^)]*)\)", screen.below)
    counts = dict(part.split(": ") for part in words[1].split("; ")) if words else {}
    found = {arm: int(count.split(" of ")[0]) for arm, count in counts.items()}
    assert found == ({arm: n for arm, n in carried.items() if n} if screen.view.drawing.bands else {})


def drawn(view: View) -> Any:
    names = list(dict.fromkeys(view.chosen.runs["arm"]))
    looks = styles([(arm, arm) for arm in names], LIGHT)
    return curves(view.panels, looks, LIGHT, AXES["step"], onsets=onsets(view.chosen))


def outside(part: Panel, low: float, high: float) -> pd.DataFrame:
    """The measured extremes of a panel that its axis does not reach: arm, x, value."""
    rows = []
    for frame in part.parts:
        for row in frame.to_dict("records"):
            rows += [(row["arm"], row["x"], row["low"])] if row["low"] < low else []
            rows += [(row["arm"], row["x"], row["high"])] if row["high"] > high else []
    return pd.DataFrame(rows, columns=["arm", "x", "value"]).drop_duplicates()


def check_points_beyond_the_axis(screen: Screen) -> None:
    figure = drawn(screen.view)
    told = [a.text for a in figure.layout.annotations if a.text.startswith("beyond the axis")]
    wanted = []
    shown = [axis for axis in figure.select_yaxes() if axis.visible is not False]
    for part, axis in zip(screen.view.panels, shown, strict=True):
        if axis.range is None or axis.type == "log":
            continue
        lost = outside(part, *axis.range)
        wanted += [f"{arm} {len(rows)} point" for arm, rows in lost.groupby("arm")] if len(lost) else []
    for words in wanted[:2] if len(told) == 1 else ():
        assert words in " ".join(told) or " more arms" in " ".join(told)
    assert bool(told) == bool(wanted)


@given(st.lists(st.tuples(st.sampled_from(ARMS), st.floats(0, 1)), min_size=1, max_size=8))
def test_the_difference_to_a_baseline_is_the_difference_of_the_means(ends: list[tuple[str, float]]) -> None:
    runs = pd.DataFrame(ends, columns=["arm", "final_success"])
    words = against(runs, ends[0][0])
    own = [value for arm, value in ends if arm == ends[0][0]]
    for arm in {arm for arm, _ in ends} - {ends[0][0]}:
        values = [value for other, value in ends if other == arm]
        told = re.search(rf"(?<!-){arm} ([+-][\d.]+) \((\d+) runs?\)", words)
        assert told is not None
        assert float(told[1]) == pytest.approx(np.mean(values) - np.mean(own), abs=0.0051)
        assert int(told[2]) == len(values)
