"""Compare: any diagnostics of any arms, side by side on one x-axis, with bands over seeds or seed by seed."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sorl.app import curve_data as data
from sorl.app import export
from sorl.app.experiments import Arms, choose_arms, differing
from sorl.app.figures.common import AXES
from sorl.app.figures.curves import curves
from sorl.app.page import answer, heading, look, note, run_links, screen, table
from sorl.app.screens.collapse import headline
from sorl.app.store import Store, dictionary
from sorl.app.text import apart, few
from sorl.app.theme import DASHES, MARKERS, Style
from sorl.app.url import choose, choose_many, choose_range
from sorl.spec import COLLAPSED

_FIRST = ("step.success", "step.grad_norm_max", "step.ess_frac_min", "step.entropy")
_NAMED = 8  # arms that a sentence names
_VALUES = 40  # of a setting that a list offers
_SMOOTHING = {
    "1": "off",
    "2": "2 steps",
    "5": "5 steps",
    "10": "10 steps",
    "20": "20 steps",
    "50": "50 steps",
}
_AXIS = {
    "step": "step",
    "updates": "updates",
    "tokens": "tokens",
    "seconds": "wall clock",
    "fork": "since the fork",
    "onset": "onset of the fall",
}


@screen
def compare(store: Store) -> None:
    """Show why one arm collapsed and another did not: the signals of both, aligned."""
    with store.reader.together():
        _compare(store)


def _compare(store: Store) -> None:
    *two, third, fourth, last = st.columns([1.1, 2.2, 2.2, 1.1, 0.7])
    with last.container(key="more"):
        more = st.popover("More", width="stretch")
    arms, group = _choose(store, (two[0], two[1]), more)
    known = dictionary(store)
    alarms, _ = data.first_alarms(store, arms.runs, known)
    first = default_metrics(alarms, known.charted, _FIRST)
    with third:
        metrics = choose_many(
            "metric", "Diagnostics", {m: known.label(m) for m in known.charted}, first, most=12
        )
    if not arms.names or not metrics:
        note("Choose at least one arm and one diagnostic.")
        return
    absent = {*data.CLOCKS} - {*data.clocks(store, arms.runs)}
    absent |= set() if arms.runs.get("forked_at", pd.Series()).notna().any() else {"fork"}
    with fourth:
        axis = choose("x", "Align on", {name: words for name, words in _AXIS.items() if name not in absent})
    starts = data.origins(arms.runs, axis)
    short, shared = apart(arms.names)
    with more:
        bands = choose("seeds", "Seeds", ["band", "single"], kind="row") == "band"
        by_arm = choose("layout", "Layout", ["overlay", "by arm"], kind="row") == "by arm"
        base = choose(
            "baseline", "Baseline", {"none": "none"} | {arm: f"minus {short[arm]}" for arm in arms.names}
        )
        scale = choose("scale", "Scale", ["auto", "linear", "log"], kind="row")
        smooth = choose("smooth", "Smoothing", _SMOOTHING)
        ends = choose_range("range", "Steps", *data.extent(store, arms.runs, starts))
    baseline = short.get(base)
    arms = arms._replace(
        names=list(short.values()),
        runs=arms.runs.assign(arm=arms.runs["arm"].map(short)),
        styles={short[arm]: style for arm, style in arms.styles.items()},
    )
    lines = len(arms.names) if bands else len(arms.runs)
    chosen = data.Chosen(arms.runs, axis, starts, data.Window.over(*ends, lines, int(smooth)))
    said = [f"All at {shared}."] * bool(shared) + [headline(arms.runs)]
    if (arms.runs["collapse_step"].notna() | arms.runs["outcome"].isin(COLLAPSED)).any():
        unknown = data.alarmed(store, arms.runs).empty
        said.append("Alarms were not recorded." if unknown else data.first_warning(alarms))
    said += [against(arms.runs, baseline)] if baseline is not None else []
    answer(" ".join(said))
    key = " ".join(_notes(chosen, metrics, bands, baseline, "seed" if group == "arm" else "run"))
    panels = [data.panel(store, chosen, known, metric, bands=bands, baseline=baseline) for metric in metrics]
    export.figure(
        curves(
            panels,
            arms.styles,
            look(),
            AXES[axis],
            onsets=data.onsets(chosen),
            by_arm=by_arm,
            scale="auto" if baseline and scale == "log" else scale,
            aligned=axis == "onset",
        ),
        # which is in steps
        "curves",
        lambda: data.drawn(panels),
        zooms="" if axis in data.CLOCKS else "range",
        describe=f"{', '.join(p.name for p in panels)} of {', '.join(arms.names)} over {AXES[axis]}.",
        key=key,
    )
    zoomed = "" if axis in data.CLOCKS else " Drag over a part of the curves to zoom."
    note(f"{key} Click an entry of the legend to see it alone.{zoomed}")
    run_links(arms.runs, arms.experiment)
    heading("What differs")
    rows = differences(differing(store, arms.experiment, arms.runs), arms.runs["arm"])
    if len(arms.names) == 1:
        note("Choose a second arm to see in which settings they differ.")
    elif rows.empty:
        note("The recorded settings of these arms are equal.")
    else:
        table(rows.rename_axis("arm").reset_index(), "sorl-differs")


def _choose(
    store: Store, places: tuple[DeltaGenerator, DeltaGenerator], more: DeltaGenerator
) -> tuple[Arms, str]:
    """Choose arms, or groups of runs that share the value of a setting; return them, and what they are
    grouped by.
    """
    by = "arm"

    def regroup(experiment: str, every: pd.DataFrame) -> pd.DataFrame:
        nonlocal by
        settings = differing(store, experiment, every)
        keys = [str(key) for key in settings if settings[key].nunique() <= _VALUES]
        pairs = {
            f"{key} = {value or 'not set'}": (key, value) for key in keys for value in _sorted(settings[key])
        }
        with more:
            by = choose("group", "Group by", ["arm", *[key for key in keys if key != "seed"]])
            where = choose_many("where", "Only runs with", list(pairs), [])
            named = every["arm"] + ", seed " + every["seed"].astype(str)
            only = choose_many("runs", "Only these runs", dict(zip(every["run_id"], named, strict=True)), [])
        every = every[every["run_id"].isin(only)] if only else every
        return regrouped(every, settings, by, [pairs[text] for text in where])

    arms = choose_arms(store, places, regroup)
    if by in ("arm", "algorithm"):
        return arms, by
    colours = [*look().algorithms.values(), *look().others]
    looks = {
        name: Style(colours[i % len(colours)], DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)])
        for i, name in enumerate(arms.every["arm"].unique())
    }
    return arms._replace(styles={name: looks[name] for name in arms.names}), by


def regrouped(
    every: pd.DataFrame, settings: pd.DataFrame, by: str, where: Sequence[tuple[str, str]] = ()
) -> pd.DataFrame:
    """Return the runs with, of each setting in `where`, one of its values there; `by` a setting, that is
    their arm.
    """
    mine = settings.loc[every["run_id"]]
    kept = pd.Series(data=True, index=mine.index)
    for key in {key for key, _ in where}:
        kept &= mine[key].isin([value for other, value in where if other == key])
    found = every[kept.to_numpy()]
    if by == "arm":
        return found
    values = mine.loc[kept, by]
    names = {
        v: (v if by == "algorithm" else f"{by} = {v}") if v else f"{by} not set" for v in _sorted(values)
    }
    found = found.assign(arm=values.map(names).to_numpy())
    return found.sort_values("arm", key=lambda arm: arm.map(list(names.values()).index), kind="stable")


def _sorted(values: pd.Series) -> list[str]:
    """Return the different values: numbers by their size, then words."""
    each = pd.Series(values.unique(), dtype=str)
    return list(each.iloc[np.lexsort([each, pd.to_numeric(each, errors="coerce")])])


def default_metrics(
    alarms: pd.DataFrame, charted: Sequence[str], usual: Sequence[str], most: int = 4
) -> list[str]:
    """Return success, the diagnostics whose alarm told most collapses apart, and what fits of the `usual`
    ones.
    """
    ranked = (
        alarms
        if alarms.empty
        else alarms[alarms["before"] > 0].sort_values(["before", "first"], ascending=False)
    )
    warned = [  # before a larger share of collapses than the share of other runs in which it goes off
        f"step.{one['alarm']}"
        for one in ranked.to_dict("records")
        if not one["steady"] or one["before"] / one["collapsed"] > one["false_alarms"] / one["steady"]
    ]
    return [metric for metric in dict.fromkeys([usual[0], *warned, *usual]) if metric in charted][:most]


def against(runs: pd.DataFrame, baseline: str) -> str:
    """Say by how much the success at the end differs from that of the baseline, arm by arm."""
    numeric = runs.assign(final_success=pd.to_numeric(runs["final_success"]))
    final = numeric.groupby("arm", sort=False)["final_success"]
    means = final.mean()
    counts = final.count()
    others = [
        f"{arm} {means[arm] - means[baseline]:+z.2f} ({counts[arm]} run{'' if counts[arm] == 1 else 's'})"
        for arm in means.index
        if arm != baseline and counts[arm] and counts[baseline]
    ]
    if not others:
        return f"There is nothing to compare with {baseline}: choose another arm that has trained."
    shown = few(others, _NAMED, ", ", " arms")
    return f"Mean success over the last ten steps of a run, minus that of {baseline}: {shown}."


def _notes(
    chosen: data.Chosen, metrics: Sequence[str], bands: bool, baseline: str | None, one: str
) -> Iterator[str]:
    runs = chosen.runs
    drawn = f"{one}s"
    trained = runs[pd.to_numeric(runs["steps"]).fillna(0) > 0]
    n = trained.groupby("arm", sort=False).size()
    if n.nunique() == 1:
        yield (
            f"{n.iloc[0]} {one if n.iloc[0] == 1 else drawn} for each line." if bands else f"{n.sum()} runs."
        )
    else:
        yield (
            f"Number of {drawn}:"
            f" {few([f'{arm}: {count}' for arm, count in n.items()], _NAMED, '; ', ' arms')}."
        )
    if not bands:
        yield "Each line is one run; pale: lowest and highest value where several steps share a point."
    if bands and (n >= 3).any():
        yield (
            f"Line: interquartile mean over {drawn}. Darker band: its 95 % bootstrap interval; paler band:"
            f" lowest and highest value of any {one}."
        )
    if bands and (n == 1).all():
        yield "One gives no interval."
    elif bands and (n < 3).any():
        yield f"Thick line: mean; thin lines: its {drawn}. Fewer than 3 give no interval."
    if bands and (chosen.axis == "onset" or trained.groupby("arm")["steps"].nunique().gt(1).any()):
        yield (
            f"A thick line stands only where all {drawn} of its arm have a value; beyond, they are thin"
            " lines."
        )
        ended = trained[data.stopped(trained)].groupby("arm", sort=False).size()
        if len(ended) and (shown := [name for name in data.CARRIED if f"step.{name}" in metrics]):
            which = few(
                [f"{arm}: {count} of {n[str(arm)]}" for arm, count in ended.items()], _NAMED, "; ", " arms"
            )
            yield (
                f"Runs that were stopped after their collapse ({which}) are carried on at their last value in"
                f" {' and '.join(shown)}."
            )
    if baseline:
        yield (
            f"All values are differences to the line of {baseline} at the same step; where it ends, so do"
            " they."
        )
    alarm = "" if baseline else ", △ an alarm (dotted line: its threshold)"
    yield f"▼ onset of a fall{alarm}, ✕ NaN or Inf; the small marker inside tells the arm."
    if chosen.window.width > 1:
        yield f"A point is the mean of {chosen.window.width} steps."
    onset = data.onset_of(runs)
    healthy = int(onset.isna().sum())
    if chosen.axis == "onset" and healthy == len(onset):
        yield "None of these runs fell, so x is the training step."
    elif chosen.axis == "onset" and healthy:
        where = f"step {round(onset.median())}, the median onset of the others"
        yield f"{healthy} of {len(onset)} runs did not fall: they are aligned at {where}."


def differences(settings: pd.DataFrame, arms: pd.Series) -> pd.DataFrame:
    """Return a row an arm and a column a setting that differs; an option that not every arm has needs two
    values.
    """
    kept = settings.drop(columns=["seed", "algorithm"], errors="ignore").replace("", "–")
    each = {
        arm: {key: ", ".join(mine[key].unique()) for key in mine}
        for arm, mine in kept.groupby(arms.to_numpy(), sort=False)
    }
    rows = pd.DataFrame(each.values(), index=list(each), columns=kept.columns)
    return rows[[key for key in rows if len({*rows[key]} - ({"–"} if " " in str(key) else set())) > 1]]
