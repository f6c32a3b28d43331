"""Compare: any diagnostics of any arms, side by side on one x-axis, with bands over seeds or seed by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sorl.analysis import differences as apart_data
from sorl.app import data, export
from sorl.app.choices import Arms, choose_arms, differing, settings_of_runs
from sorl.app.figures.common import AXES
from sorl.app.figures.curves import Arrangement, curves, single_out
from sorl.app.page import address, anchor, answer, heading, look, note, run_links, screen, table
from sorl.app.queries import Diagnostics, Store, dictionary
from sorl.app.sentences import compare as sentences
from sorl.app.sentences import differences as difference_sentences
from sorl.app.sentences.collapse import first_warning, headline
from sorl.app.smoothing import KINDS, WIDEST, Smoothing
from sorl.app.text import apart, visible
from sorl.app.theme import DASHES, MARKERS, Style
from sorl.app.url import choices, choose, choose_many, choose_number, choose_range, keep
from sorl.spec import COLLAPSED

_FIRST = ("step.success", "step.grad_norm_max", "step.ess_frac_min", "step.entropy")
_VALUES = 40  # of a setting that a list offers
_AXIS = {
    "step": "step",
    "updates": "updates",
    "tokens": "tokens",
    "seconds": "wall clock",
    "fork": "since the fork",
    "onset": "onset of the fall",
}


class _Choices(NamedTuple):
    """What the controls under More say of the curves."""

    bands: bool
    by_arm: bool
    columns: int | None
    baseline: str  # an arm, or none
    scale: str
    smoothing: Smoothing
    ends: tuple[int, int]


class _Places(NamedTuple):
    """Where the controls stand, from the left."""

    experiment: DeltaGenerator
    arms: DeltaGenerator
    metrics: DeltaGenerator
    axis: DeltaGenerator
    group: DeltaGenerator
    more: DeltaGenerator


class _Names(NamedTuple):
    """Names of arms: what tells each apart, and what all share."""

    short: dict[str, str]  # by arm
    shared: str


class _Request(NamedTuple):
    """What the curves show."""

    metrics: list[str]
    axis: str  # of _AXIS
    unit: str  # what a line counts: seed, or run


@dataclass
class _Grouping:
    """Controls that group the runs by a setting and leave runs out; what they say, and what to say of it."""

    store: Store
    place: DeltaGenerator
    more: DeltaGenerator
    by: str = "arm"
    remarks: list[str] = field(default_factory=list)

    def regroup(self, experiment: str, every: pd.DataFrame) -> pd.DataFrame:
        """Return the chosen runs of an experiment; where they are grouped, the group is their arm."""
        settings = differing(self.store, experiment, every)
        values = {str(key): _sorted(settings[key]) for key in settings if settings[key].nunique() <= _VALUES}
        equal = equal_settings(settings_of_runs(self.store, experiment, every))
        asked = st.query_params.get("group", "")
        if asked in equal:
            self.remarks.append(sentences.same_in_all_sentence(asked, equal[asked], len(every)))
        with self.place:
            self.by = choose("group", "Group by", ["arm", *[key for key in values if key != "seed"]])
        with self.more:
            note(sentences.equal_settings_sentence(equal, len(every)))
            where = _choose_values(values)
            only = _choose_runs(every)
        every = every.assign(own_arm=every["arm"])
        if only:
            every = every[every["run_id"].isin(only)]
        return regrouped(every, settings, self.by, where)


@screen
def compare(store: Store) -> None:
    """Show why one arm collapsed and another did not: the signals of both, aligned."""
    with store.reader.together():
        _compare(store)


def _compare(store: Store) -> None:
    places = _Places(*st.columns([1.1, 2.1, 2.1, 1.1, 1.1, 0.7]))
    with places.more.container(key="more"):
        more = st.popover("More", width="stretch")
    arms, grouping = _choose(store, places, more)
    known = dictionary(store)
    alarms = data.first_alarms(store, arms.runs, known)
    drawn_first = default_metrics(alarms.leads, known.charted, _FIRST)
    with places.metrics:
        labels = {metric: known.label(metric) for metric in known.charted}
        metrics = choose_many("metric", "Diagnostics", labels, drawn_first, most=12)
    if not arms.names or not metrics:
        note("Choose at least one arm and one diagnostic.")
        return
    with places.axis:
        axis = choose("x", "Align on", _axes(store, arms.runs))
    names = _Names(*apart(arms.names))
    arms = _renamed(arms, names.short)
    request = _Request(metrics, axis, unit="seed" if grouping.by == "arm" else "run")
    _show_curves(store, known, arms, alarms, request, names, more)
    for remark in grouping.remarks:
        note(remark)
    run_links(arms.runs, arms.experiment)
    _show_settings(store, arms)
    _show_differences(store, arms, known)


def _show_curves(
    store: Store,
    known: Diagnostics,
    arms: Arms,
    alarms: data.FirstAlarms,
    request: _Request,
    names: _Names,
    more: DeltaGenerator,
) -> None:
    """Say what the curves show, and draw them as the controls in `more` have it."""
    starts = data.origins(arms.runs, request.axis)
    with more:
        looks = _choose_looks(names.short, data.extent(store, arms.runs, starts))
    lines = len(arms.names) if looks.bands else len(arms.runs)
    chosen = data.Chosen(arms.runs, request.axis, starts, data.Window.over(*looks.ends, lines))
    baseline = names.short.get(looks.baseline)
    answer(" ".join(_answers(store, arms.runs, alarms, names.shared, baseline)))
    drawing = data.Drawing(looks.bands, baseline, looks.smoothing)
    panels = [data.panel(store, chosen, known, metric, drawing) for metric in request.metrics]
    _draw(arms, sentences.View(chosen, drawing, panels, request.metrics, request.unit), looks)


def _axes(store: Store, runs: pd.DataFrame) -> dict[str, str]:
    """Return what the curves of these runs can be aligned on."""
    absent = {*data.CLOCKS} - {*data.clocks(store, runs)}
    if not runs.get("forked_at", pd.Series()).notna().any():
        absent.add("fork")
    return {name: words for name, words in _AXIS.items() if name not in absent}


def _choose_looks(short: dict[str, str], extent: tuple[int, int]) -> _Choices:
    """Choose how the curves are drawn; `short` maps arms to what tells them apart."""
    minus = {"none": "none"} | {arm: f"minus {name}" for arm, name in short.items()}
    bands = choose("seeds", "Seeds", ["band", "single"], kind="row") == "band"
    by_arm = choose("layout", "Layout", ["overlay", "by arm"], kind="row") == "by arm"
    columns = choose("columns", "Panels in a row", ["auto", "1", "2", "3"], kind="row")
    baseline = choose("baseline", "Baseline", minus)
    scale = choose("scale", "Scale", ["auto", "linear", "log"], kind="row")
    width = choose_number("smooth", "Smoothing, in steps (1: off)", 1, WIDEST, 1, kind="slider")
    kind = choose("smoothing", "Smoothed by", KINDS, kind="row")
    ends = choose_range("range", "Steps", *extent)
    number = None if columns == "auto" else int(columns)
    return _Choices(bands, by_arm, number, baseline, scale, Smoothing(kind, width), ends)


def _renamed(arms: Arms, short: dict[str, str]) -> Arms:
    """Return the arms by the names that tell them apart."""
    return arms._replace(
        names=list(short.values()),
        runs=arms.runs.assign(arm=arms.runs["arm"].map(short)),
        styles={short[arm]: style for arm, style in arms.styles.items()},
    )


def _answers(
    store: Store, runs: pd.DataFrame, alarms: data.FirstAlarms, shared: str, baseline: str | None
) -> list[str]:
    """Return the sentences above the curves."""
    words = [f"All at {shared}."] if shared else []
    words.append(headline(runs))
    if (runs["collapse_step"].notna() | runs["outcome"].isin(COLLAPSED)).any():
        watched = data.alarmed(store, runs)
        collapsed = int(watched["collapse_step"].notna().sum())
        is_unknown = watched.empty
        warning = "Alarms were not recorded."
        if not is_unknown:
            warning = first_warning(alarms.leads, collapsed, alarms.unwatched)
        words.append(warning)
    if baseline is not None:
        words.append(sentences.against(runs, baseline))
    return words


def _draw(arms: Arms, view: sentences.View, looks: _Choices) -> None:
    """Draw the panels, with what their marks mean."""
    axis = view.chosen.axis
    key = sentences.key_of(view)
    arrangement = Arrangement(
        columns=looks.columns,
        by_arm=looks.by_arm,
        scale="auto" if view.drawing.baseline and looks.scale == "log" else looks.scale,
        is_aligned=axis == "onset",
    )
    onsets = data.onsets(view.chosen)
    figure = curves(view.panels, arms.styles, look(), AXES[axis], onsets=onsets, arrangement=arrangement)
    alone = _keep_alone(arms.names)
    if alone is not None:
        single_out(figure, alone)
    names = ", ".join(panel.name for panel in view.panels)
    export.figure(
        figure,
        "curves",
        lambda: data.drawn(view.panels),
        zooms="" if axis in data.CLOCKS else "range",  # which is in steps
        describe=f"{names} of {', '.join(arms.names)} over {AXES[axis]}.",
        key=key,
    )
    zoomed = "" if axis in data.CLOCKS else " Drag over a part of the curves to zoom."
    note(f"{key} Click an entry of the legend to see it alone.{zoomed}")


def _keep_alone(names: Sequence[str]) -> str | None:
    """Return the arm that is singled out in the legend, which the page writes into the address."""
    arms = {visible(name): name for name in names}
    picked = keep("only", tuple(names), lambda given: [text for text in given if text in arms][:1], list[str])
    return arms[picked[0]] if picked else None


def _show_settings(store: Store, arms: Arms) -> None:
    heading("What differs")
    rows = differences(differing(store, arms.experiment, arms.runs), arms.runs["arm"])
    if len(arms.names) == 1:
        note("Choose a second arm to see in which settings they differ.")
    elif rows.empty:
        note("The recorded settings of these arms are equal.")
    else:
        table(rows.rename_axis("arm").reset_index(), "sorl-differs")


def _show_differences(store: Store, arms: Arms, known: Diagnostics) -> None:
    """Show what sets the runs that fell apart from the others: settings, then what was measured before."""
    heading("What differs between the runs that fell and the others")
    runs = arms.runs
    onsets = data.onset_of(runs).tolist()
    groups = apart_data.split(list(runs["run_id"]), onsets)
    if not groups.are_enough:
        note(difference_sentences.too_few_sentence(groups))
        return
    before = apart_data.steps_before(onsets)
    measured = _measured_before(store, known, dict(zip(runs["run_id"], onsets, strict=True)), before)
    shares = apart_data.setting_shares(differing(store, arms.experiment, runs), groups)
    effects = apart_data.column_effects(measured, groups)
    answer(difference_sentences.differences_sentence(groups, shares, effects))
    rows = difference_sentences.rows_of(groups, shares, effects)
    if rows:
        links = [_link_to_draw(row.column) for row in rows]
        written = pd.DataFrame([row.written() for row in rows]).assign(**{"": links})
        table(written, "sorl-figures sorl-listing")
        note(difference_sentences.about(before, groups, measured))


def _measured_before(
    store: Store, known: Diagnostics, onsets: dict[str, float], before: apart_data.Before
) -> pd.DataFrame:
    """Return what each run measured in the steps `before` its onset; `onsets` by run_id."""
    columns = apart_data.comparable_columns(list(known.rows.values()))
    key = ("before the fall", *((run, str(onset)) for run, onset in onsets.items()))
    return store.computed(key, lambda reader: apart_data.measured_before(reader, onsets, before, columns))


def _link_to_draw(column: str) -> str:
    """Return a link to this screen with the curve of a column; nothing for a setting, which has none."""
    if not column:
        return ""
    return anchor("draw it", address("compare", **choices() | {"metric": [f"step.{column}"]}))


def _choose_values(values: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Choose values of settings that runs must have; `values` are those of each setting."""
    pairs: dict[str, tuple[str, str]] = {}
    for key, of_key in values.items():
        for value in of_key:
            pairs[f"{key} = {value or 'not set'}"] = (key, value)
    return [pairs[text] for text in choose_many("where", "Only runs with", list(pairs), [])]


def _choose_runs(every: pd.DataFrame) -> list[str]:
    """Choose single runs, by their run_id."""
    named = every["arm"] + ", seed " + every["seed"].astype(str)
    return choose_many("runs", "Only these runs", dict(zip(every["run_id"], named, strict=True)), [])


def _choose(store: Store, places: _Places, more: DeltaGenerator) -> tuple[Arms, _Grouping]:
    """Choose arms, or groups of runs that share the value of a setting; return them, and what they are
    grouped by.
    """
    grouping = _Grouping(store, places.group, more)
    arms = choose_arms(store, (places.experiment, places.arms), grouping.regroup)
    if grouping.by == "arm":
        return arms, grouping
    groups = list(arms.every["arm"].unique())
    left_out = sentences.groups_sentence(arms.names, groups, grouping.by)
    grouping.remarks += [left_out] if left_out else []
    if grouping.by == "algorithm":
        return arms, grouping
    looks = _looks_of_groups(groups)
    return arms._replace(styles={name: looks[name] for name in arms.names}), grouping


def _looks_of_groups(groups: Sequence[str]) -> dict[str, Style]:
    """Return how groups of runs are drawn that are no arms: in turn, since no algorithm stands for them."""
    colours = [*look().algorithms.values(), *look().others]
    return {
        name: Style(colours[i % len(colours)], DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)])
        for i, name in enumerate(groups)
    }


def equal_settings(settings: pd.DataFrame) -> dict[str, str]:
    """Return the settings that all runs share, with their value: `settings` has a row a run."""
    texts = settings.fillna("")
    return {str(key): str(texts[key].iloc[0]) for key in texts if texts[key].nunique() == 1}


def regrouped(
    every: pd.DataFrame, settings: pd.DataFrame, by: str, where: Sequence[tuple[str, str]] = ()
) -> pd.DataFrame:
    """Return the runs with, of each setting in `where`, one of its values there; `by` a setting, that is
    their arm.
    """
    mine = settings.loc[every["run_id"]]
    is_chosen = pd.Series(data=True, index=mine.index)
    for key in {key for key, _ in where}:
        is_chosen &= mine[key].isin([value for other, value in where if other == key])
    chosen = every[is_chosen.to_numpy()]
    if by == "arm":
        return chosen
    values = mine.loc[is_chosen, by]
    names = {value: _group_name(by, value) for value in _sorted(values)}
    chosen = chosen.assign(arm=values.map(names).to_numpy())
    return chosen.sort_values("arm", key=lambda arm: arm.map(list(names.values()).index), kind="stable")


def _group_name(by: str, value: str) -> str:
    if not value:
        return f"{by} not set"
    return value if by == "algorithm" else f"{by} = {value}"


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
    ranked = alarms
    if not alarms.empty:
        ranked = alarms[alarms["before"] > 0].sort_values(["before", "first"], ascending=False)
    warned = [  # before a larger share of collapses than the share of other runs in which it goes off
        f"step.{row['alarm']}"
        for row in ranked.to_dict("records")
        if not row["steady"] or row["before"] / row["collapsed"] > row["false_alarms"] / row["steady"]
    ]
    return [metric for metric in dict.fromkeys([usual[0], *warned, *usual]) if metric in charted][:most]


def differences(settings: pd.DataFrame, arms: pd.Series) -> pd.DataFrame:
    """Return a row an arm and a column a setting that differs; an option that not every arm has needs two
    values.
    """
    compared = settings.drop(columns=["seed", "algorithm"], errors="ignore").replace("", "–")
    each = {}
    for arm, mine in compared.groupby(arms.to_numpy(), sort=False):
        each[arm] = {key: ", ".join(mine[key].unique()) for key in mine}
    rows = pd.DataFrame(each.values(), index=list(each), columns=compared.columns)
    return rows[[key for key in rows if len({*rows[key]} - ({"–"} if " " in str(key) else set())) > 1]]
