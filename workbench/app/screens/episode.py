"""Episode: from a spike to its culprit. The conversation of a trajectory, of two, or of its whole group."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sorl.app import export, theme
from sorl.app.choices import (
    RANKS,
    SIGNALS,
    WORST,
    alike,
    choose_experiment_and_run,
    ranked,
    watched,
)
from sorl.app.data import Row
from sorl.app.episode_data import Side, side_of
from sorl.app.figures.runs import Signal, peaks, ranking
from sorl.app.group import choose_rows, describe_group, group_html
from sorl.app.overlay import known_overlays, scale_of
from sorl.app.page import (
    address,
    anchor,
    answer,
    episode_address,
    links,
    look,
    not_recorded,
    note,
    run_links,
    screen,
)
from sorl.app.part_notes import notes_of, show_notes, token_notes, write_note
from sorl.app.queries import Diagnostics, Store, dictionary, notation
from sorl.app.sentences.episode import answered, credit, difference, ending, text_kept, verdict
from sorl.app.text import tag, word
from sorl.app.transcript import KEYS, legend, transcript, turn_strip, turn_table
from sorl.app.url import choose, choose_number, follow, keep_number
from sorl.store import batches
from sorl.store.part_notes import PartNote


class Chosen(NamedTuple):
    """A trajectory of a step, and what it is chosen from."""

    experiment: str
    run: Row
    step: int
    rows: Sequence[Row]  # the trajectories of the step, ranked
    mine: Row

    @classmethod
    def of(cls, experiment: str, run: Row, step: int, rows: Sequence[Row], number: int | None) -> Self | None:
        """Return trajectory `number` of a step; None where the step has no such trajectory."""
        for row in rows:
            if row["trajectory"] == number:
                return cls(experiment, run, step, rows, {**row, "step": step, "name": f"step {step}"})
        return None

    @property
    def trajectory(self) -> int:
        """Number of the trajectory in its step."""
        return int(self.mine["trajectory"])

    @property
    def place(self) -> dict[str, str]:
        """Experiment, run and step, as an address names them."""
        return {
            "experiment": self.experiment,
            "run": str(self.run["run_id"]),
            "step": str(self.step),
        }


class Places(NamedTuple):
    """Where the parts of the screen stand: choices, sentences, curve, bars."""

    choices: DeltaGenerator
    sentences: DeltaGenerator
    curve: DeltaGenerator
    bars: DeltaGenerator


@screen
def episode(store: Store) -> None:
    """Which trajectory, which turn, which token did it?"""
    experiment, all_runs, about = choose_experiment_and_run(store)
    run = str(about["run_id"])
    known = dictionary(store)
    choices = st.container(horizontal=True, gap="small", vertical_alignment="bottom")
    sentences = st.container()
    drawn = st.container()
    with drawn, st.container(horizontal=True, gap="large", vertical_alignment="top"):
        watch = _choose_watch(store, known, about)
    with choices:
        step = choose_number("step", "Step", 0, max(0, watch.signal.steps - 1), watch.signal.spike)
    with drawn:
        at = Places(choices, sentences, *st.columns(2, gap="medium"))
    rows = ranked(store, run, step, RANKS[watch.rank])
    with sentences:
        if not rows:
            _say_nothing_recorded(store, run, step)
        number = keep_number("trajectory", (run, step), [row["trajectory"] for row in rows])
    _draw_signal(at, watch.signal, about, step)
    chosen = Chosen.of(experiment, about, step, rows, number)
    if chosen is not None:
        _show_trajectory(store, known, at, chosen, watch.rank)
    run_links(all_runs[all_runs["run_id"] == run], experiment)


class _Watch(NamedTuple):
    """What leads to a trajectory: the signal over steps, and what ranks the trajectories of a step."""

    signal: Signal
    rank: str  # of RANKS


def _choose_watch(store: Store, known: Diagnostics, about: Row) -> _Watch:
    names = {name: known.title(f"step.{name}") for name in known.names("step", SIGNALS)}
    signal = watched(store, known, about, choose("signal", "Signal", names))
    return _Watch(signal, choose("rank", "Rank trajectories by", list(RANKS), kind="row"))


def _show_trajectory(store: Store, known: Diagnostics, at: Places, chosen: Chosen, rank: str) -> None:
    """Show the conversation of a trajectory, its place among those of its step, and a way to its batch."""
    _show_conversation(store, known, at, chosen)
    _draw_ranking(at, chosen, rank)
    _link_replay(store, chosen)


def _say_nothing_recorded(store: Store, run: str, step: int) -> None:
    tables = {row["table_name"] for row in store.records("recorded", run=run)}
    has_some = tables & {"turn", "trajectory"}
    which = f"No trajectory of step {step}" if has_some else "No trajectory of this run"
    not_recorded(which, "tables trajectory, turn and token")


def _draw_signal(at: Places, signal: Signal, about: Row, step: int) -> None:
    palette = look()
    with at.curve:
        line = peaks(signal, theme.colour(str(about["algorithm"]), palette), palette, step)
        words = f"{signal.title} over training; step {step} is chosen."
        clicked = export.figure(line, "peaks", signal.points, select=True, describe=words)
        if signs := notation(signal.definition):
            note(signs)
        if clicked and int(clicked[0]) != step:
            follow("step", [str(clicked[0])])


def _draw_ranking(at: Places, chosen: Chosen, by: str) -> None:
    rows = chosen.rows
    with at.bars:
        bars = ranking(
            rows_with_chosen(rows, chosen.mine, most=8), 1 / len(rows), look(), chosen.step, chosen.trajectory
        )
        words = f"The trajectories of step {chosen.step}, ranked by {by}; {chosen.trajectory} is chosen."
        clicked = export.figure(bars, "ranking", lambda: pd.DataFrame(rows), select=True, describe=words)
        if clicked and int(clicked[0]) != chosen.trajectory:
            follow("trajectory", [str(clicked[0])])


def _link_replay(store: Store, chosen: Chosen) -> None:
    folder = batches.folder_of(store.runs, chosen.experiment, str(chosen.run["run_id"]))
    if folder is not None and chosen.step in batches.steps(folder):
        where = address("replay", **chosen.place, trajectory=str(chosen.trajectory))
        links([anchor("Replay this batch with other algorithms", where)])


def rows_with_chosen(rows: Sequence[Row], chosen: Row, most: int) -> list[Row]:
    """Return the first `most` rows; the chosen one takes the last place where it is not among them."""
    first = list(rows[:most])
    if chosen["trajectory"] in [row["trajectory"] for row in first]:
        return first
    return [*first[: most - 1], chosen]


def _show_conversation(store: Store, known: Diagnostics, at: Places, chosen: Chosen) -> None:
    """Show the conversation of an episode, alone, next to another with the same question, or in its group."""
    with at.choices:
        view = choose("view", "Show", {"rollout": "this rollout", "group": "its group"}, kind="row")
    if view == "group":
        with at.sentences:
            _show_group(store, chosen)
        return
    with at.choices:
        second = _choose_second(store, chosen)
    with at.sentences:
        sentences = st.container()
        text, table = (st.container(), st.container()) if second else st.columns([11, 9], gap="medium")
    with table:
        one, epoch = _choose_epoch(store, known, chosen)
    with sentences:
        did = verdict(chosen.mine, len(chosen.rows), one.turns, one.tokens)
        said = tag("p", did[0].upper() + did[1:], *ending(chosen.mine), css="sorl-answer")
        st.html(tag("h2", word(chosen.mine["question"]), css="sorl-question") + said)
    with text:
        notes = notes_of(store, str(chosen.run["run_id"]))
        one = one._replace(noted=token_notes(notes, chosen.step, chosen.trajectory))
        sides = [one] if second is None else [one, side_of(store, second["run_id"], second, epoch)]
        _say_what_is_kept(store, chosen, one)
        if second is not None:
            st.html(tag("p", difference(*sides), css="sorl-answer"))
            if second["has_text"]:
                _link_second(chosen, second)
        _draw_transcript(sides)
    _show_notes(store, chosen, one, notes)


def _show_notes(store: Store, chosen: Chosen, one: Side, notes: Sequence[Row]) -> None:
    """Show the notes on the step and the trajectory, and a form for one more, on tokens as well."""
    run_id = str(chosen.run["run_id"])
    own = [row for row in notes if row["step"] == chosen.step]
    own = [row for row in own if row["trajectory"] in (None, chosen.trajectory)]
    title = f"Notes on this step and rollout ({len(own)})" if own else "Write a note on this rollout"
    with st.expander(title, expanded=bool(own)):
        show_notes(store, chosen.experiment, run_id, own)
        place = PartNote("", step=chosen.step, trajectory=chosen.trajectory)
        places = {
            f"trajectory {chosen.trajectory}": place,
            f"step {chosen.step}": PartNote("", step=chosen.step),
        }
        tokens = _choose_tokens(one)
        if tokens is not None:
            first, last = tokens
            on_tokens = replace(place, first_token=first, last_token=last)
            places = {f"tokens {first} to {last}": on_tokens, **places}
        write_note(store, chosen.experiment, run_id, places)


def _choose_tokens(one: Side) -> tuple[int, int] | None:
    """Choose the first and the last token of a note; None where tokens were not kept, or none is chosen."""
    count = len(one.tokens["token"] or one.tokens["token_id"] or []) if one.tokens is not None else 0
    if not count:
        return None
    left, right = st.columns(2)
    with left:
        first = st.number_input("First token of the note", 0, count - 1, None, placeholder="-")
    with right:
        last = st.number_input("Last token of the note", 0, count - 1, None, placeholder="-")
    if first is None:
        return None
    return int(first), max(int(first), int(first if last is None else last))


def _choose_second(store: Store, chosen: Chosen) -> Row | None:
    """Choose another episode with the same question; None for none."""
    others = {
        f"{row['run_id']}/{row['step']}/{row['trajectory']}": row
        for row in alike(store, chosen.experiment, chosen.run, chosen.mine)
    }
    options = {"none": "no other" if others else "none recorded"} | {
        key: f"{row['place']}: {answered(row)}{credit(row)}{'' if row['has_text'] else ', no text'}"
        for key, row in others.items()
    }
    return others.get(choose("next", "Next to it, the same question", options))


def _choose_epoch(store: Store, known: Diagnostics, chosen: Chosen) -> tuple[Side, int | None]:
    """Choose the epoch whose figures are shown (None: with the largest gradient), and show its turns."""
    run = str(chosen.run["run_id"])
    one = side_of(store, run, chosen.mine)
    if not one.epochs:
        note("No turn of this trajectory is recorded.")
        return one, None
    epochs = {WORST: f"largest gradient ({one.epoch})"} | {str(each): str(each) for each in one.epochs}
    picked = choose("epoch", "Show epoch", epochs, kind="row")
    epoch = None if picked == WORST else int(picked)
    one = side_of(store, run, chosen.mine, epoch)
    st.html(turn_table(one.turns, known))
    note(
        "Bold: the turn with the largest share of its update's gradient. Point at a name for its definition."
    )
    return one, epoch


def _say_what_is_kept(store: Store, chosen: Chosen, one: Side) -> None:
    """Say what of the tokens and the text was kept, and lead to the nearest that was."""
    if one.missing:
        note(f"At {one.row['name']}: {one.missing}")
    if one.tokens is not None:
        return
    with_tokens = sorted(row["trajectory"] for row in chosen.rows if row["kept"])
    steps = [row["step"] for row in store.records("steps_with_text", run=str(chosen.run["run_id"]))]
    nearest = min(steps, key=lambda step: (abs(step - chosen.step), step), default=None)
    links(text_kept(chosen.place, one.text is not None, with_tokens, nearest))


def _link_second(chosen: Chosen, second: Row) -> None:
    there = {
        "run": second["run_id"],
        "step": str(second["step"]),
        "trajectory": str(second["trajectory"]),
    }
    words = f"Open trajectory {second['trajectory']} of {second['name']}"
    links([anchor(words, episode_address(**chosen.place | there))])


def _draw_transcript(sides: Sequence[Side]) -> None:
    """Draw the conversations, their tokens tinted by the figure that is chosen."""
    palette = look()
    with_tokens = [side.tokens for side in sides if side.tokens is not None]
    if not with_tokens and not any(side.text for side in sides):
        return
    name = choose("tint", "Tint tokens by", known_overlays(with_tokens)) if with_tokens else "log-ratio"
    scale = scale_of(name, with_tokens, palette)
    parts: list[Any] = [turn_strip(sides[0].turns, palette)]
    if with_tokens:
        parts.append(legend(scale, sides[0].epoch))
    colours = f"--sorl-surface:{palette.surface};--sorl-text:{palette.text}"
    st.html(tag("div", *parts, transcript(sides, scale), style=colours))
    st.html(KEYS, unsafe_allow_javascript=True)


def _show_group(store: Store, chosen: Chosen) -> None:
    """Show the rollouts of the prompt side by side, from where they first differ."""
    place = {"run": str(chosen.run["run_id"]), "step": chosen.step, "trajectory": chosen.trajectory}
    rows = store.records("group", **place)
    st.html(tag("h2", word(chosen.mine["question"]), css="sorl-question"))
    side_by_side = choose_rows(rows, chosen.trajectory)
    answer(describe_group(rows, side_by_side))
    if side_by_side:
        st.html(group_html(side_by_side, chosen.trajectory, chosen.place))
