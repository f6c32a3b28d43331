"""What screens ask first: which experiment, its runs and arms; of a run the step and the trajectory behind a
spike.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st
from markupsafe import Markup
from streamlit.delta_generator import DeltaGenerator

from sorl.algorithms import resolve
from sorl.analysis import runs as recorded
from sorl.analysis.region import region_file
from sorl.app import theme
from sorl.app.data import Row, fall_of, stands
from sorl.app.figures.runs import Signal
from sorl.app.page import Empty, address, anchor, links, look, note
from sorl.app.queries import Diagnostics, Store
from sorl.app.text import few, number, percent, setting, times, word
from sorl.app.url import asked, choose, choose_many, name_view
from sorl.diagnosis.standing import counted
from sorl.objective import KINDS
from sorl.spec import InputError
from sorl.spec.files import leaves
from sorl.store import notes

_POINT = ("learn.staleness", "learn.policy.lr")  # the settings that place a run in a region
MOST_GROUPS = 12  # values of a setting that are drawn as groups of runs
_IN_BOX = 4  # arms that the box for their names shows for sure
Places = tuple[DeltaGenerator, DeltaGenerator]


def choose_experiment(store: Store, *, collapsed: bool = False) -> str:
    """Return the experiment of the address, by default the newest (with `collapsed`: that has a collapse)."""
    known = store.query("experiments")
    if known.empty:
        raise Empty
    fell = known.loc[known["collapsed"] > 0, "experiment"]
    first = str(fell.iloc[0]) if collapsed and len(fell) else None
    return choose("experiment", "Experiment", list(known["experiment"]), first)


def runs(store: Store, experiment: str) -> pd.DataFrame:
    """Return one row per run of the experiment; arms of one name with different settings are
    different arms.
    """
    return store.computed(("runs", experiment), lambda reader: recorded.outcomes(reader, experiment))


def visible_runs(
    store: Store, experiment: str, run_notes: Mapping[str, notes.Notes] | None = None
) -> pd.DataFrame:
    """Return `runs` without those that somebody has hidden, and say how many these are.

    `run_notes` are the notes of the runs, by run_id, where they have been read already.
    """
    each = runs(store, experiment)
    if run_notes is None:
        run_notes = notes.every(store.runs, experiment)
    hidden = [run for run, of_run in run_notes.items() if of_run.hidden]
    visible = each[~each["run_id"].isin(hidden)]
    count = len(each) - len(visible)
    if not count:
        return visible
    what = f"{count} hidden run{'s are' if count > 1 else ' is'}"
    if visible.empty:
        note(f"{what} shown all the same: no other is left.")
        return each
    note(f"{what} left out of all that is shown and counted here; `sorl compare` counts every run.")
    return visible


def question(store: Store, experiment: str) -> str:
    """Return the question of the experiment, as its author wrote it."""
    text = store.query("experiments").set_index("experiment")["question"].get(experiment)
    return text if isinstance(text, str) else experiment


def is_region(store: Store, experiment: str) -> bool:
    """True for an experiment whose file is of kind region."""
    return store.computed(
        ("region file", experiment), lambda reader: region_file(reader, experiment) is not None
    )


class Arms(NamedTuple):
    """An experiment, all its runs, and the chosen arms in order: their names, their runs and how they are
    drawn.
    """

    experiment: str
    every: pd.DataFrame
    names: list[str]
    runs: pd.DataFrame
    styles: dict[str, theme.Style]


def choose_arms(
    store: Store,
    places: Places | None = None,
    regroup: Callable[[str, pd.DataFrame], pd.DataFrame] | None = None,
) -> Arms:
    """Return experiment and arms of the address; `regroup` may leave runs out and name other groups in column
    arm, of which as many as can be told apart are drawn by default.
    """
    left, right = places or st.columns([1, 3])
    with left:
        experiment = choose_experiment(store, collapsed=True)
        if is_region(store, experiment):
            links([anchor("All points in Region", address("region", experiment=experiment))])
    every = visible_runs(store, experiment)
    every = regroup(experiment, every) if regroup else every
    with right:
        groups = list(every["arm"].unique())
        is_grouped = "own_arm" in every and (every["own_arm"] != every["arm"]).any()
        usual = groups[:MOST_GROUPS] if is_grouped else default_arms(every)
        names = choose_many("arm", "Arms", groups, usual)
        if len(names) > _IN_BOX:
            note(f"{len(names)} are drawn, also those that the box scrolls out of sight.")
    mine = every[every["arm"].isin(names)].sort_values("arm", key=lambda a: a.map(names.index), kind="stable")
    name_view(few(names, 2), seeds_of(mine))
    return Arms(experiment, every, names, mine, styles(every, names))


def seeds_of(runs: pd.DataFrame) -> str:
    """Name the arms of `runs` and say how many seeds each has."""
    counts = runs.groupby("arm", sort=False).size()
    if counts.nunique() == 1:
        return (
            f"{', '.join(counts.index)};"
            f" {counted(counts.iloc[0], 'seed')}{' each' if len(counts) > 1 else ''}"
        )
    return ", ".join(f"{arm} ({counted(count, 'seed')})" for arm, count in counts.items())


def styles(every: pd.DataFrame, arms: list[str]) -> dict[str, theme.Style]:
    """Return how some arms of an experiment are drawn; `every` has all its runs."""
    return theme.styles(every[["arm", "algorithm"]].to_numpy(), look(), drawn=arms)


def default_arms(each: pd.DataFrame, most: int = 8) -> list[str]:
    """Return up to `most` arms, in order, that differ in little.

    Those at one point of a region: where most algorithms were tried, and of these where nearest to half of
    the runs fell. Without such a point: of each algorithm the arm with most falls, then the one with most
    others.
    """
    every = list(each["arm"].unique())
    if len(every) <= most:
        return every
    each = each.assign(fell=each[["collapse_step", "onset_low"]].notna().any(axis=1))
    if "config" in each:
        at_point = _arms_at_best_point(each)
        if at_point:
            return at_point[:most]
    chosen = _arms_of_algorithms(each)
    chosen = [*chosen, *(arm for arm in every if arm not in chosen)][:most]
    return sorted(chosen, key=every.index)


def _arms_at_best_point(each: pd.DataFrame) -> list[str]:
    """Return the arms at the point of a region that compares most algorithms; none without such a point."""
    points = each["config"].map({text: _point_of(text) for text in each["config"].unique()}).rename("point")
    tried = each.groupby(points, sort=False).agg(algorithms=("algorithm", "nunique"), fell=("fell", "mean"))
    most_algorithms = tried["algorithms"].max()
    if len(tried) <= 1 or not most_algorithms > 1:
        return []
    best = tried[tried["algorithms"] == most_algorithms]["fell"].sub(0.5).abs().idxmin()
    return list(each.loc[points == best, "arm"].unique())


def _point_of(config: str) -> str:
    """Return the values of _POINT in the settings of a run, as one text."""
    settings = settings_of(config)
    return str([settings.get(name) for name in _POINT])


def _arms_of_algorithms(each: pd.DataFrame) -> list[str]:
    """Return of each algorithm the arm with most falls, then the one with most runs that stood."""
    rows = each.groupby("arm", sort=False)
    counts = rows.agg(algorithm=("algorithm", "first"), fell=("fell", "sum"), runs=("fell", "size"))
    counts["stood"] = counts["runs"] - counts["fell"]
    chosen: list[str] = []
    for kind in ("fell", "stood"):
        others = counts[(counts[kind] > 0) & ~counts.index.isin(chosen)]
        chosen += [str(mine[kind].idxmax()) for _, mine in others.groupby("algorithm", sort=False)]
    return chosen


def settings_of(config: Mapping[str, Any] | str | None) -> dict[str, str]:
    """Return dotted key -> value, as a word, of tables of settings, or of their JSON; empty for
    what is none.
    """
    tables = config if isinstance(config, Mapping) else recorded.settings_of(config)
    return {key: setting(value) for key, value in leaves(tables) if value != {}}


def choices_of(config: str | None) -> dict[str, str]:
    """Return the settings of a run, with what its algorithm chose in each slot in place of the algorithm's
    name.
    """
    tables = recorded.nested(config)
    settings = recorded.settings_of(config)
    raw = {key: value for key, value in settings.items() if not key.startswith(("algorithm", "slots."))}
    try:
        algorithm = resolve(tables.get("algorithm", ""), tables.get("slots"))
    except (InputError, AttributeError, TypeError):  # of another trainer
        return settings_of(config)
    choices = {}
    for slot in KINDS:
        choice = getattr(algorithm, slot)
        choices[slot] = choice.kind
        choices |= {f"{slot} {field.name}": setting(getattr(choice, field.name)) for field in fields(choice)}
    return {"critic": word(algorithm.critic)} | choices | {key: setting(value) for key, value in raw.items()}


def differing(store: Store, experiment: str, every: pd.DataFrame) -> pd.DataFrame:
    """Return the choices and settings in which runs of an experiment differ, by run_id; empty where one is
    not set.
    """

    def ask(_: object) -> pd.DataFrame:
        known = {}
        for text in every["config"].unique():
            name = settings_of(text).get("algorithm")
            known[text] = ({"algorithm": name} if name else {}) | choices_of(text)
        found = pd.DataFrame([known[text] for text in every["config"]], index=every["run_id"]).fillna("")
        return found.loc[:, found.nunique() > 1]

    return store.computed(("differing", experiment, tuple(every["run_id"])), ask)


def settings_of_runs(store: Store, experiment: str, every: pd.DataFrame) -> pd.DataFrame:
    """Return all settings of the runs of an experiment by dotted key, a row a run, by run_id."""

    def ask(_: object) -> pd.DataFrame:
        known = {text: settings_of(text) for text in every["config"].unique()}
        return pd.DataFrame([known[text] for text in every["config"]], index=every["run_id"])

    return store.computed(("settings", experiment, tuple(every["run_id"])), ask)


# From a run to the step and the trajectory behind its spike.

# the first that a run has is where one begins to look
SIGNALS = ("grad_norm_max", "ratio_max", "ess_frac_min")
RANKS = {"gradient": "gradient_share", "ratio mass": "ratio_mass", "log-ratio": "worst_log_ratio"}
WORST = "worst"  # instead of an epoch: the one in which the trajectory had most of the gradient


class RunChoice(NamedTuple):
    """An experiment, its runs (one row each), and the one that was chosen."""

    experiment: str
    runs: pd.DataFrame
    run: Row


def choose_experiment_and_run(store: Store) -> RunChoice:
    """Choose an experiment and a run of it.

    An address may name an earlier start of a cell, which its guard gave up: then it is among the runs.
    """
    left, right = st.columns([1, 2])
    with left:
        experiment = choose_experiment(store)
    each = _with_earlier_start(store, experiment, runs(store, experiment))
    with right:
        return RunChoice(experiment, each, choose_run(each))


def _with_earlier_start(store: Store, experiment: str, each: pd.DataFrame) -> pd.DataFrame:
    """Return the runs, and the one that the address names if it is an earlier start of one of them."""
    named = asked("run")
    if not named or named in set(each["run_id"]):
        return each
    earlier = store.computed(
        ("earlier start", experiment, named),
        lambda reader: recorded.outcomes(reader, experiment, [named]),
    )
    return pd.concat([each, earlier.assign(is_earlier=True)], ignore_index=True) if len(earlier) else each


def choose_run(each: pd.DataFrame, first: str | None = None) -> Row:
    """Choose one of the runs, by default `first` or the first that collapsed; return its row."""
    rows = {row["run_id"]: row for row in each.to_dict("records")}
    names = {run: _name_of(row) for run, row in rows.items()}
    run = choose("run", "Run", names, first or first_run(each))
    name_view(f"{rows[run]['arm']} s{rows[run]['seed']}", names[run])
    return rows[run]


def _name_of(row: Row) -> str:
    name = f"{row['arm']}, seed {row['seed']}: {stands(row)}"
    return f"{name}, an earlier start" if row.get("is_earlier") is True else name


def first_run(each: pd.DataFrame) -> str:
    """Choose the run to begin with: the first that collapsed, else the first."""
    fell = each.loc[each[["collapse_step", "onset_low"]].notna().any(axis=1), "run_id"]
    return str(fell.iloc[0] if len(fell) else each["run_id"].iloc[0])


def watched(store: Store, known: Diagnostics, run: Row, name: str = "") -> Signal:
    """Return a signal, by default the first of SIGNALS that a run has, in at most 1,000 points: the most
    extreme.
    """
    name = name or known.names("step", SIGNALS)[0]
    run_id = run["run_id"]
    lowest = known.rows[f"step.{name}"]["alarm_when"] == "below"
    steps = int(store.query("extent", runs=[run_id], origins=[0])["last"].fillna(0).iloc[0]) + 1
    events = store.query("events", runs=[run_id], origins=[0])
    return Signal(
        name,
        known.title(f"step.{name}"),
        *known.words(f"step.{name}"),
        store.query("peaks", run=run_id, column=name, first=0, width=math.ceil(steps / 1_000), lowest=lowest),
        events[(events["kind"] == "alarm") & (events["diagnostic"] == name)],
        store.query("kept", run=run_id)["step"].tolist(),
        fall_of(run),
        steps,
        lowest,
    )


def ranked(store: Store, run: str, step: int, by: str = RANKS["gradient"]) -> list[Row]:
    """Rank the trajectories of a step, the largest first by column `by`: NaN before any number, NULL last."""
    return sorted(store.records("ranking", run=run, step=step), key=lambda row: _size(row[by]), reverse=True)


def share_of(row: Row, among: int, which: str = "") -> Markup:
    """Say how much of its step's gradient a trajectory of `among` has; `row` answers query `ranking`."""
    which = which or f"trajectory {row['trajectory']}"
    share = row["gradient_share"]
    if has_no_gradient(row):
        return Markup("this step's gradient is exactly 0, so {} has no share of it").format(which)
    if share is None or not math.isfinite(share):
        words = "was not measured" if share is None else f"is {number(share)}"
        return Markup("the share of {} in this step's gradient {}").format(which, words)
    equal = f", {times(share * among)} an equal share" if among > 1 and share else ""
    return Markup("{} has {} of this step's gradient{}").format(
        which, percent(share) if share else "none", equal
    )


def has_no_gradient(row: Row) -> bool:
    """Whether the step of a trajectory had a gradient of exactly 0, which nobody has a share of."""
    return row["gradient_share"] is None and row.get("step_gradient") == 0


def _size(value: float | None) -> float:
    """The size by which trajectories are ranked: NULL below any number, NaN above."""
    if value is None:
        return -1.0
    return math.inf if math.isnan(value) else abs(value)


def alike(store: Store, experiment: str, run: Row, mine: Row, most: int = 50) -> list[Row]:
    """List other episodes with the question of `mine`, with `name`, `side` of the fall, and `place` in
    words: those of its own step first, which are its group, then of this run, then of others.

    `mine` needs its step, trajectory and question.
    """
    asked = {"experiment": experiment, "run": run["run_id"], "question": mine["question"]}
    own_side = _side_of_fall(run, mine["step"])

    def order(row: Row) -> list[int]:
        is_of_run = row["run_id"] == run["run_id"]
        return [
            not (is_of_run and row["step"] == mine["step"]),
            not row["kept"],
            not is_of_run,
            row["side"] == own_side,
            abs(row["step"] - mine["step"]),
        ]

    itself = [run["run_id"], mine["step"], mine["trajectory"]]
    others: list[Row] = [
        {**row, **_place_of(row, run, mine)}
        for row in store.records("same_question", **asked)
        if [row["run_id"], row["step"], row["trajectory"]] != itself
    ]
    return sorted(others, key=order)[:most]


def _place_of(row: Row, run: Row, mine: Row) -> Row:
    """Say where an episode with the same question stands: its `name`, `side` of the fall, and `place`."""
    step = f"step {row['step']}"
    which = f"trajectory {row['trajectory']}"
    if row["run_id"] != run["run_id"]:
        name = f"{row['arm']}, seed {row['seed']}, {step}"
        return {"name": name, "side": "", "place": f"{name}, {which}"}
    if row["step"] == mine["step"]:
        name = f"{step}, {which}"
        return {"name": name, "side": "", "place": f"{name}, same group"}
    side = _side_of_fall(run, row["step"])
    return {"name": step, "side": side, "place": f"{step}{side}, {which}"}


def _side_of_fall(run: Row, step: int) -> str:
    """Say whether a step is before or after the fall of its run; nothing of a run without one."""
    fall = fall_of(run)
    if fall is None:
        return ""
    return " (after the fall)" if step > fall.high else " (before the fall)"


def worst_epoch(turns: Sequence[Row], tokens: Row | None) -> int | None:
    """Return the epoch with most of a trajectory's gradient (NaN is the most), by its tokens first; else the
    last.
    """
    known = tokens.get("worst_epoch") if tokens else None
    if known is not None and (not turns or known in {turn["epoch"] for turn in turns}):
        return int(known)
    measured = [turn for turn in turns if turn["gradient_share"] is not None]
    by = (lambda turn: _size(turn["gradient_share"])) if measured else (lambda turn: turn["epoch"])
    return int(max(measured or turns, key=by)["epoch"]) if turns else None
