"""Replay: one stored batch through several algorithms, side by side: ratios, clips, and who carries the
gradient.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st

from sorl.algorithms import ALGORITHMS, CORE
from sorl.app import export, page
from sorl.app.choices import choose_experiment, choose_run, first_run, runs, watched
from sorl.app.figures.curves import chart
from sorl.app.page import address, anchor, episode_address, links, look, note, say, screen
from sorl.app.queries import Store, dictionary
from sorl.app.text import number, percent, table_html, tag, times
from sorl.app.url import choose, choose_many, keep_number
from sorl.store import batches

# Column of the answer -> its words, and what the words leave out.
MEASURES = {
    "gradient_share": ("share of the batch's gradient", "share of sum |d loss / d log-prob|"),
    "unit_ratio_mean": (
        "mean ratio",
        "mean of the ratio that entered the surrogate: of a token, turn or sequence",
    ),
    "unit_ratio_max": (
        "largest ratio",
        "largest ratio that entered the surrogate: of a token, turn or sequence",
    ),
    "clip_frac": ("clipped", "share of tokens whose gradient the clip stopped"),
    "out_of_range_frac": (
        "out of bounds",
        "share of tokens whose own ratio is out of bounds, at any advantage",
    ),
    "unit_ratio_mass_frac": (
        "share of the ratios",
        "share of the sum of the ratios that entered the surrogate",
    ),
}
WORDS = MEASURES | {
    "turn_index": ("turn", ""),
    "policy_loss": ("loss", "surrogate, aggregated"),
    "stabiliser_ratio": (
        "stabiliser ratio",
        "largest gradient of clipped over unclipped tokens that it judged",
    ),
    "stabiliser_factor": ("stabiliser factor", "mean factor on the loss"),
    "ess_frac": ("effective samples", "effective sample size of the token ratios, as a share of the tokens"),
    "weight_abs": ("gradient weight", "sum |d loss / d log-prob|: how hard the loss pulls on the log-probs"),
    "advantage": ("advantage", ""),
    "ratio_max": ("largest token ratio", ""),
}
FIGURES = (
    "policy_loss",
    "stabiliser_ratio",
    "stabiliser_factor",
    "unit_ratio_max",
    "ess_frac",
    "clip_frac",
    "out_of_range_frac",
    "weight_abs",
)
CULPRITS = ("trajectory", "turn_index", "gradient_share", "advantage", "ratio_max", "clip_frac")
_PERCENT = ("gradient_share", "clip_frac", "out_of_range_frac", "unit_ratio_mass_frac")
_ALIKE = 1.05  # times: less is called the same
_GAP = 1e-3  # of an advantage; rounding stays far below
Answer = dict[str, Any]  # of `sorl replay --format json`


class _Batch(NamedTuple):
    """A stored step of a run."""

    experiment: str
    run: str
    step: int
    folder: Path  # with the stored steps of the run

    @property
    def place(self) -> dict[str, str]:
        """Experiment, run and step, as an address names them."""
        return {"experiment": self.experiment, "run": self.run, "step": str(self.step)}


@screen
def replay(store: Store) -> None:
    """What would another algorithm have done with this very batch?"""
    left, middle, right = st.columns([2, 4, 1])
    with left:
        experiment = choose_experiment(store)
    each = runs(store, experiment)
    folders = {run: batches.folder_of(store.runs, experiment, run) for run in each["run_id"]}
    stored = {run: batches.steps(folder) if folder else [] for run, folder in folders.items()}
    first = first_run(each)
    with middle:
        about = choose_run(each, next((run for run in (first, *stored) if stored[run]), first))
    run = str(about["run_id"])
    folder = folders[run]
    if folder is None or not stored[run]:
        why = "a run that is trained here keeps some unless record.batches.mb = 0, so train it again:"
        say(f"Run {run} has no stored batch, which this screen needs; {why}", "sorl run FILE.toml --fresh")
        return
    spike = watched(store, dictionary(store), about).spike
    with right:
        step = _choose_step(stored[run], spike)
    _show_batch(_Batch(experiment, run, step, folder))


def _choose_step(stored: Sequence[int], spike: int) -> int:
    """Choose a stored step, by default the one nearest to the spike of the run."""
    nearest = min(stored, key=lambda step: (abs(step - spike), step))
    return int(choose("step", "Step", [str(step) for step in stored], str(nearest)))


def _show_batch(batch: _Batch) -> None:
    """Show what the algorithms do with a stored step."""
    trajectory = keep_number("trajectory", (batch.run, batch.step))
    with st.spinner("Replaying the batch ..."):
        core = replayed(batch.folder, batch.step, list(CORE), trajectory)
        able = [name for name in CORE if name not in core["reasons"]]
        algorithms = choose_many("algorithm", "Algorithms", list(ALGORITHMS), able or list(CORE)) or able
        is_core = set(algorithms) <= set(CORE)  # one answer for every choice of them
        answer = core if is_core else replayed(batch.folder, batch.step, algorithms, trajectory)
    page.answer(headline(answer, algorithms))
    st.html(table_html(*summary(answer, algorithms), "sorl-figures sorl-replay"))
    note(logged(answer))
    for caveat in answer["caveats"]:
        say(caveat)
    without_answer = impossible(core["reasons"] | answer["reasons"])
    if without_answer:
        note(without_answer)
    _warn_of_gap(answer)
    _draw_by_turn(answer, algorithms, batch.step)
    left, right = st.columns(2, gap="medium")
    with left:
        _list_culprits(answer, algorithms, batch)
    with right:
        _tokens(_of(answer["tokens"], answer, algorithms), batch.place)


def _warn_of_gap(answer: Answer) -> None:
    """Say where advantages that are computed again are not those of the training."""
    gap = answer["advantage_gap"]
    if isinstance(gap, float) and gap > _GAP:
        say(
            f"The advantages of {answer['own']}, computed again from the stored rewards, differ by up to"
            f" {gap:.3g} from those that it was trained on."
        )


def _draw_by_turn(answer: Answer, algorithms: Sequence[str], step: int) -> None:
    """Draw one measure by turn, a bar an algorithm."""
    measure = choose("measure", "By turn", {name: words for name, (words, _) in MEASURES.items()}, kind="row")
    words, definition = MEASURES[measure]
    frame = by_turn(answer, measure, algorithms)
    if frame.empty:
        note(f"Of no algorithm a turn of this step has the {words}.")
        return
    named = frame.set_axis(["algorithm", "turn", words], axis=1)
    drawn = chart(named, "turn", words, "algorithm", "bars", {words: ("", definition)}, look())
    describe = f"By turn of step {step}, for each algorithm: {words}, the {definition}."
    export.figure(drawn, "replay", frame, describe=describe)


def _list_culprits(answer: Answer, algorithms: Sequence[str], batch: _Batch) -> None:
    """List the turns with most of the gradient, by algorithm."""
    note("The turns with most of the gradient, by algorithm; each opens the tokens of its trajectory.")
    rows = list[Sequence[object]]()
    for name, mine in groupby(_of(answer["culprits"], answer, algorithms), key=itemgetter("algorithm")):
        rows.append((tag("b", name), *[""] * (len(CULPRITS) - 1)))
        for row in mine:
            trajectory = str(row["trajectory"])
            where = address("replay", **batch.place, algorithm=algorithms, trajectory=trajectory)
            cells = (_shown(row[column], column) for column in CULPRITS[1:])
            rows.append((anchor(f"trajectory {trajectory}", where), *cells))
    st.html(table_html([("", ""), *map(_head, CULPRITS[1:])], rows, "sorl-listing"))


def _head(name: str) -> tuple[str, str]:
    words, definition = WORDS[name]
    return words, " = ".join(filter(None, [name, definition]))


def _tokens(rows: list[Answer], place: dict[str, str]) -> None:
    tokens = pd.DataFrame(rows)
    if tokens.empty:
        note("No token of this trajectory was trained on.")
        return
    tokens = tokens[tokens["update"] == tokens["update"].max()]
    which = str(tokens["trajectory"].iloc[0])
    update = tokens["update"].iloc[0]
    note(
        f"Gradient x 1,000 on each token of trajectory {which} in update {update}; negative:"
        " the update makes the token more likely."
    )
    text = tokens["token"].fillna(tokens["token_id"]).astype(str)
    weight = [
        _token_weight(weight, is_clipped=bool(clipped))
        for clipped, weight in tokens[["clipped", "weight"]].itertuples(index=False, name=None)
    ]
    written = tokens.assign(token=text, weight=weight, log_ratio=tokens["log_ratio"].map(_shown))
    names = list(dict.fromkeys(written["algorithm"]))
    table_of = (
        written.pivot(index="position", columns="algorithm", values="weight")
        .reindex(columns=names)
        .fillna("–")
    )
    first = written[written["algorithm"] == names[0]].set_index("position")[
        ["turn_index", "token", "log_ratio"]
    ]
    st.dataframe(
        first.set_axis(["turn", "token", "log-ratio"], axis=1).join(table_of).sort_index(), hide_index=True
    )
    where = episode_address(**place, trajectory=which)
    links([anchor(f"Trajectory {which} of step {place['step']} in Episode", where)])


def _token_weight(weight: Any, *, is_clipped: bool) -> str:
    """Write the gradient on a token, times 1,000."""
    if is_clipped and weight == 0:
        return "clipped"
    return _shown(1000 * weight if isinstance(weight, float) else weight)


# What the screen says: functions of the answer.


def headline(answer: Answer, algorithms: Sequence[str]) -> str:
    """Say what the algorithm that would have changed the update most does to it, by the figures of all
    updates.
    """
    own = answer["own"]
    rows = {row["algorithm"]: row for row in _replayed(answer, algorithms) if row["weight_abs"] is not None}
    weights = {
        name: row["weight_abs"] for name, row in rows.items() if not isinstance(row["weight_abs"], str)
    }
    broken = [
        f"The gradient of {name} is {row['weight_abs']}." for name, row in rows.items() if name not in weights
    ]
    base = weights.get(own)
    others = {name: weight for name, weight in weights.items() if name != own}
    if not base:
        broken = broken or [f"The update of {own} has no gradient that another could be compared with."]
    elif not others:
        broken = broken or [
            f"Of the chosen algorithms only {own}, which trained on this batch, has an answer."
        ]
    else:
        name = max(others, key=lambda one: abs(math.log(others[one] / base)) if others[one] else math.inf)
        size = _times(others[name] / base, "larger", "smaller") or "of the same size" if others[name] else ""
        parts = [
            _clipping(own, rows[own]["clip_frac"], rows[name]["clip_frac"]),
            f"has gradient weights {size}" if size else "has no gradient at all",
        ]
        moved = _moved(by_turn(answer, "gradient_share", [name]), own, name)
        broken.insert(
            0, f"{name} in place of {own} {' and '.join(filter(None, parts))}{moved and f'; {moved}'}."
        )
    return " ".join(broken)


def _clipping(own: str, mine: Any, its: Any) -> str:
    if isinstance(mine, str | None) or isinstance(its, str | None):
        return ""
    if mine and its:
        many = _times(its / mine, "as much", "as little") or "as much"
        return f"clips {many} ({percent(its)} of the tokens, {own} {percent(mine)})"
    if not mine and not its:
        return "clips no token either"
    return f"clips {percent(its) if its else 'no token'} ({own}: {percent(mine) if mine else 'none'})"


def _times(ratio: float, more: str, less: str) -> str:
    """Write how many times one number is another, `more` or `less`; nothing where they are about the same."""
    factor = max(ratio, 1 / ratio)
    if factor < _ALIKE:
        return ""
    return f"{times(factor)} {more if ratio > 1 else less}"


def _moved(shares: pd.DataFrame, own: str, name: str) -> str:
    most = []
    for algorithm in (own, name):
        mine = shares[shares["algorithm"] == algorithm].sort_values(
            "gradient_share", ascending=False, kind="stable"
        )
        if mine.empty:
            return ""
        most.append((int(mine["turn_index"].iloc[0]), percent(float(mine["gradient_share"].iloc[0]))))
    (before, first), (after, second) = most
    if before == after:
        return f"turn {before} keeps the largest share of the batch's gradient ({first}, then {second})"
    turns = f"from turn {before} ({first}) to turn {after} ({second})"
    return f"the largest share of the batch's gradient moves {turns}"


def impossible(reasons: Mapping[str, str]) -> str:
    """Say in a line which algorithms this batch cannot answer for, and why."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    lines = [f"{', '.join(those)} ({reason.removeprefix('it ')})" for reason, those in names.items()]
    return f"Not possible on this batch: {'; '.join(lines)}." if lines else ""


def summary(answer: Answer, algorithms: Sequence[str]) -> tuple[list[str], list[list[object]]]:
    """Return a table's header, an algorithm a column, and its rows: each of FIGURES over all updates."""
    rows = _replayed(answer, algorithms)
    lines: list[list[object]] = []
    for name in FIGURES:
        words, tip = _head(name)
        title = tag("span", words, title=tip, tabindex="0")
        lines.append([title, *(_shown(row[name], name) for row in rows)])
    return ["", *(row["algorithm"] for row in rows)], lines


def logged(answer: Answer) -> str:
    """Say which of FIGURES the trainer itself logged, each next to what the replay gives for the same
    algorithm.
    """
    rows = _over_all_updates([row for row in answer["summary"] if row["algorithm"] == answer["own"]])
    of = {row["source"]: row for row in rows}
    then = of.get("logged", {})
    now = of.get("replayed", {})
    parts = [
        f"{WORDS[name][0]} {_shown(then[name], name)} (replayed: {_shown(now.get(name), name)})"
        for name in FIGURES
        if then.get(name) is not None
    ]
    return f"The trainer of {answer['own']} logged {', '.join(parts)}." if parts else ""


def by_turn(answer: Answer, measure: str, algorithms: Sequence[str]) -> pd.DataFrame:
    """Return algorithm, turn_index and the measure over all updates; what is NULL, NaN or Inf is left out."""
    names = ["algorithm", "turn_index", measure]
    every = _of(_over_all_updates(answer["turns"]), answer, algorithms)
    rows = [row for row in every if isinstance(row[measure], (int, float))]
    return pd.DataFrame(rows, columns=names)


def _of(rows: list[Answer], answer: Answer, algorithms: Sequence[str]) -> list[Answer]:
    # The one that ran stands first in every answer; the others are asked together and chosen afterwards.
    return [row for row in rows if row["algorithm"] in (answer["own"], *algorithms)]


def _replayed(answer: Answer, algorithms: Sequence[str]) -> list[Answer]:
    rows = [row for row in answer["summary"] if row["source"] == "replayed" and not row["reason"]]
    return _of(_over_all_updates(rows), answer, algorithms)


def _over_all_updates(rows: list[Answer]) -> list[Answer]:
    return [row for row in rows if row["update"] is None] or rows


def _shown(value: Any, name: str = "") -> str:
    """Write a figure of the answer: JSON has no word for NaN and Inf, so these come as texts."""
    if isinstance(value, str):
        return value
    return percent(value) if name in _PERCENT and value is not None else number(value)


SECONDS = 120.0  # that an answer may take; torch alone takes some to be imported


def replayed(folder: Path, step: int, algorithms: Sequence[str], trajectory: int | None = None) -> Answer:
    """Return what `sorl replay --format json` says of a stored step, once for each state of its file; or
    InputError.
    """
    words = ["replay", str(folder), "--step", str(step), "--format", "json", "--tokens"]
    for name in algorithms:
        words += ["--algorithm", name]
    words += [] if trajectory is None else ["--trajectory", str(trajectory)]
    stat = batches.file_of(folder, step).stat()
    typed = f"sorl replay {folder} --step {step}"
    answer: Answer = page.answered(words, typed, SECONDS, (stat.st_mtime_ns, stat.st_size))
    return answer
