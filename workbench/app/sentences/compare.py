"""What Compare says beside its curves: every sentence is computed from the data that the panels draw."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from sorl.app.data import CARRIED, CLOCKS, Chosen, Drawing, onset_of, stopped
from sorl.app.figures.curves import Panel
from sorl.app.smoothing import before_and_after
from sorl.app.text import few
from sorl.diagnosis.standing import counted

NAMED = 8  # arms that a sentence names
INTERVAL = 3  # runs from which on a line has an interval
SHARED = 4  # settings that all runs share, named in a sentence
USUAL_AXES = ("learn.policy.lr", "learn.staleness")


class View(NamedTuple):
    """What the curves show: the runs, how they are drawn, and the panels that came of it."""

    chosen: Chosen
    drawing: Drawing
    panels: Sequence[Panel]
    metrics: Sequence[str]  # of the panels
    unit: str  # what a line counts: seed, or run where runs are grouped by a setting


def against(runs: pd.DataFrame, baseline: str) -> str:
    """Say by how much the success at the end differs from that of the baseline, arm by arm."""
    numeric = runs.assign(final_success=pd.to_numeric(runs["final_success"]))
    final = numeric.groupby("arm", sort=False)["final_success"]
    means = final.mean()
    counts = final.count()
    others = [
        f"{arm} {means[arm] - means[baseline]:+z.2f} ({counted(int(counts[arm]), 'run')})"
        for arm in means.index
        if arm != baseline and counts[arm] and counts[baseline]
    ]
    if not others:
        return f"There is nothing to compare with {baseline}: choose another arm that has trained."
    shown = few(others, NAMED, ", ", " arm")
    return f"Mean success over the last ten steps of a run, minus that of {baseline}: {shown}."


def key_of(view: View) -> str:
    """Say what lines, bands and marks mean."""
    parts = [*_lines_sentences(view), *_carried_sentences(view)]
    if view.drawing.baseline:
        parts.append(
            f"All values are differences to the line of {view.drawing.baseline} at the same step; where it"
            " ends, so do they."
        )
    parts += [*_marks_sentences(view), *_smoothing_sentences(view), *_alignment_sentences(view)]
    return " ".join(parts)


def drawn_counts(panel: Panel) -> dict[str, int]:
    """Return how many runs of each arm a panel draws."""
    counts = dict[str, int]()
    parts = [panel.data] if panel.seeds is None else [panel.data, panel.seeds]
    for part in parts:
        if "middle" in part:
            found = part.groupby("arm", sort=False)["n"].max()
        else:
            found = part.dropna(subset=["mean"]).groupby("arm", sort=False)["run"].nunique()
        for arm, count in found.items():
            counts[str(arm)] = max(counts.get(str(arm), 0), int(count))
    return counts


def _lines_sentences(view: View) -> Iterator[str]:
    yield from _count_sentences(view)
    if not view.drawing.bands:
        yield "Each line is one run."
        if view.chosen.window.width > 1:
            yield "Pale: lowest and highest value where several steps share a point."
        return
    numbers: set[int] = set()
    for panel in view.panels:
        numbers |= set(drawn_counts(panel).values())
    plural = f"{view.unit}s"
    if max(numbers, default=0) >= INTERVAL:
        yield (
            f"Line: interquartile mean over {plural}. Darker band: its 95 % bootstrap interval; paler band:"
            f" lowest and highest value of any {view.unit}."
        )
    if numbers == {1}:
        yield "One gives no interval."
    elif min(numbers, default=INTERVAL) < INTERVAL:
        yield f"Thick line: mean; thin lines: its {plural}. Fewer than {INTERVAL} give no interval."
    if any(_has_partial_lines(panel) for panel in view.panels):
        yield (
            f"A thick line stands only where all {plural} of its arm have a value; elsewhere they are thin"
            " lines."
        )


def _count_sentences(view: View) -> Iterator[str]:
    """Say how many runs a line stands for, and in which panels some arms have fewer."""
    every = [drawn_counts(panel) for panel in view.panels]
    most: dict[str, int] = {}
    for counts in every:
        for arm, count in counts.items():
            most[arm] = max(most.get(arm, 0), count)
    order = [arm for arm in view.chosen.runs["arm"].unique() if arm in most]
    yield _count_sentence(view, {arm: most[arm] for arm in order})
    for panel, counts in zip(view.panels, every, strict=True):
        fewer = [f"{arm}: {counts.get(arm, 0)}" for arm in order if counts.get(arm, 0) < most[arm]]
        if fewer:
            yield f"Fewer in {panel.name}: {few(fewer, NAMED, '; ', ' arm')}."


def _count_sentence(view: View, counts: Mapping[str, int]) -> str:
    plural = f"{view.unit}s"
    if not counts:
        return f"No {view.unit} has a value."
    if len(set(counts.values())) > 1:
        each = [f"{arm}: {count}" for arm, count in counts.items()]
        return f"Number of {plural}: {few(each, NAMED, '; ', ' arm')}."
    count = next(iter(counts.values()))
    if view.drawing.bands:
        return f"{count} {view.unit if count == 1 else plural} for each line."
    return f"{counted(sum(counts.values()), 'run')}."


def _has_partial_lines(panel: Panel) -> bool:
    """Whether an arm with a line of its own has stretches where some of its runs stand alone."""
    if panel.seeds is None or panel.seeds.empty:
        return False
    lines = panel.data.groupby("arm")["bucket"].agg(set) if len(panel.data) else pd.Series(dtype=object)
    alone = panel.seeds.groupby("arm")["bucket"].agg(set)
    return any(not buckets <= lines.get(arm, set()) for arm, buckets in alone.items())


def carried_runs(chosen: Chosen) -> pd.Series:
    """Return, by arm, how many stopped runs end before the last drawn step of their arm."""
    runs = chosen.runs
    steps = pd.to_numeric(runs.get("steps", pd.Series(index=runs.index))).to_numpy(float, na_value=0)
    last = pd.Series(np.minimum(steps - 1 - np.array(chosen.origins), chosen.window.last), index=runs.index)
    has_trained = pd.Series(steps > 0, index=runs.index)
    arm_last = last[has_trained].groupby(runs["arm"]).transform("max").reindex(runs.index)
    is_carried = stopped(runs) & has_trained & (last < arm_last)
    return runs[is_carried].groupby("arm", sort=False).size()


def _carried_sentences(view: View) -> Iterator[str]:
    columns = [name for name in CARRIED if f"step.{name}" in view.metrics]
    if not view.drawing.bands or not columns:
        return
    carried = carried_runs(view.chosen)
    if carried.empty:
        return
    steps = pd.to_numeric(view.chosen.runs["steps"]).fillna(0)
    counts = view.chosen.runs[steps > 0].groupby("arm").size()
    each = [f"{arm}: {count} of {counts[str(arm)]}" for arm, count in carried.items()]
    yield (
        f"Runs that were stopped after their collapse ({few(each, NAMED, '; ', ' arm')}) are carried on at"
        f" their last value in {' and '.join(columns)}."
    )


def _marks_sentences(view: View) -> Iterator[str]:
    marks = ["▼ onset of a fall"] if view.chosen.axis not in CLOCKS else []
    if not view.drawing.baseline:
        has_rule = any(panel.marks.thresholds for panel in view.panels)
        if any(panel.marks.alarms is not None for panel in view.panels):
            marks.append("△ an alarm")
        if has_rule:
            marks.append("dotted line: the threshold of an alarm, from where its rule can ring")
    yield f"{'; '.join([*marks, '✕ NaN or Inf'])}. The small marker inside tells the arm."
    fallen = int(onset_of(view.chosen.runs).notna().sum())
    for panel in view.panels:
        if panel.marks.unwatched:
            yield (
                f"{len(panel.marks.unwatched)} of {counted(fallen, 'run')} that fell did so before"
                f" {panel.name} could ring: its rule needs the first {panel.marks.needs} points of a run."
            )


def _smoothing_sentences(view: View) -> Iterator[str]:
    width = view.chosen.window.width
    if width > 1:
        yield (
            f"There are more steps than points to draw: a point is the mean over up to {width} neighbouring"
            " steps and stands in the middle of those that were measured."
        )
    smoothing = view.drawing.smoothing
    if smoothing.steps < 2:
        return
    count = smoothing.points(width)
    if count < 2:
        yield f"Smoothing over {smoothing.steps} steps changes nothing: each point already is such a mean."
        return
    gaps = "What is NaN or Inf is left out, and no average reaches across it. Pale: what was measured."
    if smoothing.kind == "ema":
        yield (
            f"Smoothed: exponential moving average of each run over {smoothing.steps} steps: a point counts"
            f" itself and all before it, each step back {1 - 2 / (smoothing.steps + 1):.3g} times the last."
            f" {gaps}"
        )
        return
    before, after = before_and_after(count)
    span = "steps" if width == 1 else f"points of {width} steps"
    yield (
        f"Smoothed: each point is the mean of itself, the {before} {span} before it and the {after} after it,"
        f" as far as they were measured and are drawn. {gaps}"
    )


def _alignment_sentences(view: View) -> Iterator[str]:
    if view.chosen.axis != "onset":
        return
    onset = onset_of(view.chosen.runs)
    healthy = int(onset.isna().sum())
    if healthy == len(onset):
        yield "None of these runs fell, so x is the training step."
    elif healthy:
        where = f"step {round(onset.median())}, the median onset of the others"
        yield f"{healthy} of {len(onset)} runs did not fall: they are aligned at {where}."


def groups_sentence(drawn: Sequence[str], every: Sequence[str], setting: str) -> str:
    """Say which values of the setting that groups the runs are not drawn; nothing where all are."""
    left = [name for name in every if name not in drawn]
    if not left:
        return ""
    values = [name.removeprefix(f"{setting} = ") for name in left]
    return (
        f"{len(drawn)} of {len(every)} values of {setting} are drawn; left out: {few(values, NAMED)}. Arms"
        " adds them."
    )


def same_in_all_sentence(setting: str, value: str, runs: int) -> str:
    """Say that a setting cannot group these runs, since all have one value of it."""
    return f"{setting} is {value or 'not set'} in all {counted(runs, 'run')}, so it forms no groups."


def equal_settings_sentence(equal: Mapping[str, str], runs: int) -> str:
    """Say which settings all runs share, those that a grid usually varies first."""
    if not equal:
        return ""
    names = sorted(equal, key=lambda name: (name not in USUAL_AXES, not name.startswith("learn."), name))
    each = [f"{name} is {equal[name] or 'not set'}" for name in names]
    return f"The same in all {counted(runs, 'run')}, so not in this list: {few(each, SHARED, ', ')}."


def too_early_sentence(panels: Sequence[Panel]) -> str:
    """Say of the panels of one run which rules could not ring before it fell; nothing where all could."""
    names = [panel.name for panel in panels if panel.marks.unwatched]
    return f" The fall began before these rules could ring: {few(names, NAMED)}." if names else ""
