"""Episode: from a spike to its culprit. The tokens of a trajectory, or of two; its step, the signal of its
run.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st
from markupsafe import Markup

from sorl.app import experiments, export, theme
from sorl.app.curve_data import Row
from sorl.app.experiments import RANKS, WORST, choose_experiment, choose_run, ranked, runs, share_of
from sorl.app.figures.runs import peaks, ranking
from sorl.app.page import (
    address,
    anchor,
    episode_address,
    links,
    look,
    not_recorded,
    note,
    run_links,
    screen,
)
from sorl.app.store import Diagnostics, Store, dictionary, notation
from sorl.app.text import html_text, number, percent, table_html, tag, times, visible, word
from sorl.app.theme import Palette
from sorl.app.url import choose, choose_number, follow, keep_number
from sorl.store import batches


@screen
def episode(store: Store) -> None:
    """Which trajectory, which turn, which token did it?"""
    left, right = st.columns([1, 2])
    with left:
        experiment = choose_experiment(store)
    all_runs = runs(store, experiment)
    with right:
        about = choose_run(all_runs)
    run = str(about["run_id"])
    known = dictionary(store)
    palette = look()
    places = st.container(horizontal=True, gap="small", vertical_alignment="bottom")
    said = st.container()
    drawn = st.container()
    with drawn, st.container(horizontal=True, gap="large", vertical_alignment="top"):
        names = {name: known.title(f"step.{name}") for name in known.names("step", experiments.SIGNALS)}
        signal = experiments.watched(store, known, about, choose("signal", "Signal", names))
        by = choose("rank", "Rank trajectories by", list(RANKS), kind="row")
    with places:
        step = choose_number("step", "Step", 0, max(0, signal.steps - 1), signal.spike)
    rows = ranked(store, run, step, RANKS[by])
    with said:
        if not rows:
            tables = {one["table_name"] for one in store.records("recorded", run=run)}
            which = (
                f"No trajectory of step {step}"
                if tables & {"turn", "trajectory"}
                else "No trajectory of this run"
            )
            not_recorded(which, "tables trajectory, turn and token")
        chosen = keep_number("trajectory", (run, step), [row["trajectory"] for row in rows])
    with drawn:
        curve, bars = st.columns(2, gap="medium")
    with curve:
        line = peaks(signal, theme.colour(str(about["algorithm"]), palette), palette, step)
        words = f"{signal.title} over training; step {step} is chosen."
        clicked = export.figure(line, "peaks", signal.points, select=True, describe=words)
        if signs := notation(signal.definition):
            note(signs)
        if clicked and int(clicked[0]) != step:
            follow("step", [str(clicked[0])])
    mine = next(
        ({**row, "step": step, "name": f"step {step}"} for row in rows if row["trajectory"] == chosen), None
    )
    if mine is not None:
        _compared(store, known, (places, said), experiment, about, mine, rows)
        with bars:
            two = ranking(shown(rows, mine, most=8), 1 / len(rows), palette, step, chosen)
            words = f"The trajectories of step {step}, ranked by {by}; {chosen} is chosen."
            clicked = export.figure(two, "ranking", lambda: pd.DataFrame(rows), select=True, describe=words)
            if clicked and int(clicked[0]) != chosen:
                follow("trajectory", [str(clicked[0])])
        folder = batches.folder_of(store.runs, experiment, run)
        if folder is not None and step in batches.steps(folder):
            where = address("replay", experiment=experiment, run=run, step=str(step), trajectory=str(chosen))
            links([anchor("Replay this batch with other algorithms", where)])
    run_links(all_runs[all_runs["run_id"] == run], experiment)


def shown(rows: Sequence[Row], chosen: Row, most: int) -> list[Row]:
    """Return the first `most` rows; the chosen one takes the last place where it is not among them."""
    first = list(rows[:most])
    return (
        first
        if chosen["trajectory"] in [row["trajectory"] for row in first]
        else [*first[: most - 1], chosen]
    )


def _credit(row: Row) -> str:
    """Reward and advantage of a rollout, where they are known."""
    known = [f"{name} {number(row[name])}" for name in ("reward", "advantage") if row[name] is not None]
    return "".join(f", {words}" for words in known)


def _compared(
    store: Store,
    known: Diagnostics,
    at: Sequence[Any],
    experiment: str,
    about: Row,
    mine: Row,
    rows: Sequence[Row],
) -> None:
    """Show an episode, alone or with another that has the same question, at the places of its choices and its
    words.
    """
    others = {
        f"{row['run_id']}/{row['step']}/{row['trajectory']}": row
        for row in experiments.alike(store, experiment, about, mine)
    }
    options = {"none": "no other" if others else "none recorded"} | {
        key: f"{row['place']}: {answered(row)}{_credit(row)}{'' if row['kept'] else ', no tokens'}"
        for key, row in others.items()
    }
    with at[0]:
        second = others.get(choose("next", "Next to it, the same question", options))
    with at[1]:
        sentences = st.container()
        text, table = (st.container(), st.container()) if second else st.columns([11, 9], gap="medium")
    run = str(about["run_id"])
    epoch = None
    one = side_of(store, run, mine)
    with table:
        if one.epochs:
            epochs = {WORST: f"largest gradient ({one.epoch})"} | {
                str(each): str(each) for each in one.epochs
            }
            picked = choose("epoch", "Show epoch", epochs, kind="row")
            epoch = None if picked == WORST else int(picked)
            one = side_of(store, run, mine, epoch)
            st.html(turn_table(one.turns, known))
            note(
                "Bold: the turn with the largest share of its update's gradient. Point at a name for its"
                " definition."
            )
        else:
            note("No turn of this trajectory is recorded.")
    with sentences:
        did = verdict(mine, len(rows), one.turns, one.tokens)
        said = tag("p", did[0].upper() + did[1:], *ending(mine), css="sorl-answer")
        st.html(tag("p", word(mine["question"]), css="sorl-question") + said)
    with text:
        here = {"experiment": experiment, "run": run, "step": str(mine["step"])}
        if one.tokens is None:
            these = sorted(row["trajectory"] for row in rows if row["kept"])
            named = [anchor(str(t), episode_address(**here, trajectory=str(t))) for t in these]
            links(
                ["Of this step the run kept the tokens of trajectory ", Markup(", ").join(named), "."]
                if named
                else ["The run kept no tokens of this step."]
            )
        sides = [one] if second is None else [one, side_of(store, second["run_id"], second, epoch)]
        for side in sides:
            if side.missing:
                note(f"At {side.row['name']}: {side.missing}")
        if second is not None:
            st.html(tag("p", difference(*sides), css="sorl-answer"))
            if second["kept"]:
                there = {
                    "run": second["run_id"],
                    "step": str(second["step"]),
                    "trajectory": str(second["trajectory"]),
                }
                words = f"Open trajectory {second['trajectory']} of {second['name']}"
                links([anchor(words, episode_address(**here | there))])
        if any(side.tokens for side in sides):
            colours = f"--sorl-surface:{look().surface};--sorl-text:{look().text}"
            st.html(tag("div", legend(look(), one.epoch), transcript(sides, look()), style=colours))
            st.html(_KEYS, unsafe_allow_javascript=True)


class Side(NamedTuple):
    """An episode in one epoch: its row (name, step, answer, success), its turns, its tokens if they were
    kept.
    """

    row: Row
    turns: Sequence[Row]
    tokens: Row | None
    missing: str = ""  # says for which epochs alone its tokens have figures
    epoch: int | None = None
    epochs: Sequence[int] = ()  # of all its turns

    @property
    def written(self) -> dict[int, str]:
        """What the policy wrote in each turn; nothing where the tokens were not kept."""
        if self.tokens is None or self.tokens["trained"] is None:
            return {}
        texts = texts_of(self.tokens)
        parts = pieces(texts, self.tokens["trained"], self.tokens["turn_index"])
        said = [(part.turn, "".join(texts[part.first : part.end])) for part in parts if part.written]
        return {
            turn: "".join(text for _, text in same) for turn, same in groupby(said, key=lambda one: one[0])
        }


def side_of(store: Store, run: str, row: Row, epoch: int | None = None) -> Side:
    """Return an episode of a run in `epoch`, by default in that in which it had most of the gradient."""
    place = {"run": run, "step": row["step"], "trajectory": row["trajectory"]}
    turns = store.records("ledger", **place)
    tokens = next(iter(store.records("tokens", **place)), None)
    epochs = sorted({turn["epoch"] for turn in turns})
    epoch = experiments.worst_epoch(turns, tokens) if epoch is None else epoch
    now = [turn for turn in turns if turn["epoch"] == epoch]
    figures, missing = in_epoch(tokens, epoch, max(epochs, default=None)) if tokens else (None, "")
    return Side(row, now, figures, missing, epoch, epochs)


# What a trajectory did, in sentences.

STANDS_OUT = 2.0  # a turn or a token stands out that has at least twice the gradient of the next
_QUOTED = 40  # characters of a token or an answer in a sentence


def quoted(text: object) -> str:
    """Quote a text of a log, cut where it is long."""
    said = visible(text).replace("\n", "↵")
    return f"“{said if len(said) <= _QUOTED else said[:_QUOTED] + '…'}”"


def answered(row: Row) -> str:
    """Say what an episode answered, and whether that is right."""
    right = {True: " (right)", False: " (wrong)", None: ""}[row["success"]]
    return f"answered {quoted(row['answer'])}{right}" if row["answer"] is not None else "gave no answer"


def ending(row: Row) -> Iterator[object]:
    """Yield a sentence on what an episode answered, should have, and what ended it, so far as that was
    recorded.
    """
    if row["answer"] is None and row["ended"] is None:
        yield " What it answered was not recorded."
        return
    yield f" It {answered(row)}"
    if row["gold"] is not None:
        yield from (", expected ", tag("b", row["gold"]))
    yield "." if row["ended"] is None else f"; ended by {word(row['ended'])}."


class Top(NamedTuple):
    """The largest of some weights by size: its key, its weight (NaN is the largest), and its size over the
    next's.
    """

    key: int
    weight: float
    times: float  # infinite where nothing else has a weight

    @property
    def stands_out(self) -> bool:
        """Whether it is worth naming alone."""
        return not math.isfinite(self.weight) or float(f"{self.times:.2g}") >= STANDS_OUT  # as it is written


def largest(weights: Mapping[int, float | None]) -> Top | None:
    """Return the largest of weights by size; None where none was measured or all are 0."""
    sizes = {key: abs(weight) for key, weight in weights.items() if weight is not None}
    order = sorted(sizes, key=lambda key: math.inf if math.isnan(sizes[key]) else sizes[key], reverse=True)
    if not order or sizes[order[0]] == 0:
        return None
    top = sizes[order[0]]
    following = sizes[order[1]] if len(order) > 1 else 0.0
    return Top(order[0], top, top / following if following else math.inf)


def heaviest(row: Row) -> Top | None:
    """Return the trained token with the largest gradient weight of the epoch that `row` of table `token` is
    in.
    """
    weights = enumerate(row.get("gradient_weight") or [])
    return largest({i: weight for i, weight in weights if _of(row.get("trained"), i)})


def verdict(
    row: Row,
    among: int,
    turns: Sequence[Row],
    tokens: Row | None,
    link: Callable[..., Markup] = lambda words, turn=None: html_text(words),
) -> Markup:
    """Say how much of its step's gradient a trajectory has, and in which turn and token of one epoch.

    `row` answers query `ranking`, of `among` trajectories; `turns` are those of the epoch, `tokens` of
    `in_epoch`. `link` makes a link of words: to a turn if it is given one, else to the episode.
    """
    whole = share_of(row, among, link(f"trajectory {row['trajectory']}"))
    parts = list[Markup]()
    turn = largest({one["turn_index"]: one["gradient_share"] for one in turns})
    token = heaviest(tokens) if tokens else None
    if turn:
        parts.append(_turn(turn, turns, link))
    if token and tokens:
        parts.append(_heaviest(token, tokens, turn, link))
    if row["gradient_share"] == 0:
        return whole + "."
    if not parts:
        parts.append(Markup("no gradient of its turns or tokens was recorded"))
    elif turns:
        parts[0] = Markup("in epoch {}, {}").format(turns[0]["epoch"], parts[0])
    return Markup("; ").join([whole, *parts, *(["its tokens were not kept"] if tokens is None else [])]) + "."


def _turn(top: Top, turns: Sequence[Row], link: Callable[..., Markup]) -> Markup:
    name = f"turn {top.key}"
    if not math.isfinite(top.weight):
        return Markup("the gradient of {} is {}").format(link(name, top.key), number(top.weight))
    row = next(one for one in turns if one["turn_index"] == top.key)
    share = percent(top.weight / sum(one["gradient_share"] or 0.0 for one in turns))
    if not top.stands_out:
        return Markup("no turn stands out ({} has the most, {})").format(name, share)
    ratio = (
        f", where the largest token ratio is {number(row['ratio_max'])}"
        if row.get("ratio_max") is not None
        else ""
    )
    much, only = ("all", ", its only one") if len(turns) == 1 else (share, "")
    return Markup("{} of its gradient is in {}{}{}").format(much, link(name, top.key), only, ratio)


def _heaviest(top: Top, row: Row, turn: Top | None, link: Callable[..., Markup]) -> Markup:
    where = _of(row.get("turn_index"), top.key)
    place = "" if where is None or (turn and turn.stands_out and where == turn.key) else f" of turn {where}"
    text = _of(texts_of(row), top.key) or "◊"
    words = quoted(text.strip() or text)
    if not top.stands_out:
        if top.times < 1.05:
            return Markup("no token stands out (the largest weights are about equal)")
        most = Markup("no token stands out ({}, token {}{}, has {} the weight of the next)")
        return most.format(words, top.key, place, times(top.times))
    head = "the token is "
    tail = f", with {times(top.times)} the weight of the next"
    if not math.isfinite(top.weight):
        head = "the gradient weight of "
        tail = f" is {number(top.weight)}"
    elif math.isinf(top.times):
        head = "the only token with a gradient is "
        tail = ""
    return Markup("{}{} (token {}{}){}").format(head, link(words), top.key, place, tail)


# Two episodes with the same question.


def difference(one: Side, other: Side) -> str:
    """Say in what two episodes with the same question differ: answers, turns, and the first turn that is not
    alike.
    """
    sides = (one, other)
    names = [side.row["name"] for side in sides]
    gave = [answered(side.row) for side in sides]
    said = (
        f"Both {gave[0]}."
        if gave[0] == gave[1]
        else f"At {names[0]} it {gave[0]}; at {names[1]} it {gave[1]}."
    )
    texts = [side.written for side in sides]
    did = [{turn["turn_index"]: word(turn.get("status")) for turn in side.turns} for side in sides]
    found = [kinds or text for kinds, text in zip(did, texts, strict=True)]
    if not all(found):
        return f"{said} The turns of {names[found.index({})]} were not recorded."
    counts = "{} turns against {}".format(*map(len, found))
    if len(found[0]) == len(found[1]):
        counts = f"Both took {len(found[0])} turn{'s' * (len(found[0]) != 1)}"
    read = texts if all(texts) else found
    turn = next(
        (turn for turn in sorted({*read[0], *read[1]}) if read[0].get(turn) != read[1].get(turn)), None
    )
    if turn is None:
        untold = "the same kind of turns, but not all tokens were kept: what they wrote may differ"
        return f"{said} {counts}; {'they wrote the same' if all(texts) else untold}."
    kinds = [of.get(turn) for of in did]
    how = f": {kinds[0]} against {kinds[1]}" if kinds[0] != kinds[1] and None not in kinds else ""
    if alone := [name for name, of in zip(names, read, strict=True) if turn not in of]:
        how = f", which {alone[0]} does not have"
    return f"{said} {counts}; the first that differs is turn {turn}{how}."


# One token takes the focus of the Tab key, the arrow keys pass it on: a thousand stops would be none.
_KEYS = """
<script>
  if (!window.sorlTokens) document.addEventListener('keydown', event => {
    const token = event.target.closest?.('.sorl-token');
    if (!token || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === 'Escape') token.blur();
    const all = [...token.closest('.sorl-transcript').querySelectorAll('.sorl-token')];
    const at = all.indexOf(token);
    const places = { ArrowLeft: all[at - 1], ArrowRight: all[at + 1], Home: all[0], End: all.at(-1) };
    const next = places[event.key];
    if (!next) return;
    event.preventDefault();
    token.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  window.sorlTokens = true;
</script>
"""

# The figures of tokens in one epoch.

# recorded for the last epoch, and as worst_* for the worst
_FIGURES = ("log_ratio", "clipped", "gradient_weight")
_LAST = ("log_prob", "entropy")  # recorded for the last epoch alone


def in_epoch(row: Row, epoch: int | None, last: int | None) -> tuple[Row, str]:
    """Return a row of table `token` with the figures of one epoch (None: not recorded), and a sentence where
    none are.

    `last` is the last epoch of the ledger. Without one (None) the figures are of the worst epoch, else of the
    last.
    """
    heavy = row.get("worst_epoch")
    if heavy is not None and epoch == heavy:
        figures = {name: row[f"worst_{name}"] for name in _FIGURES}
        return {**row, **figures} | ({} if epoch == last else dict.fromkeys(_LAST)), ""
    if epoch == last:
        return row, ""
    also = "" if heavy in (None, last) else f"{heavy} (largest gradient) and "
    missing = (
        f"No token is tinted or boxed: their figures were recorded in epoch {also}{last} (last), not in"
        f" {epoch}."
    )
    return {**row, **dict.fromkeys((*_FIGURES, *_LAST))}, missing


# The turns of an episode as a table: a column a turn, a row a measured column of the turn ledger.

# Its columns in the order in which they are read; others follow.
_ROWS = (
    "status",
    "n_tokens",
    "gradient_share",
    "ratio_max",
    "ratio_min",
    "ratio_geo",
    "ratio_arith",
    "ratio_prod",
    "log_ratio_sum",
    "clip_frac",
    "out_of_range_frac",
    "advantage",
    "advantage_std",
    "value",
    "value_error",
    "approx_kl",
    "kl_k3",
    "entropy",
    "mismatch",
    "ratio_mass_frac",
    "retrieval_seconds",
)


def turn_table(turns: Sequence[Row], known: Diagnostics) -> Markup:
    """Build the table of the turns of one epoch, with what any of them has; bold is the turn with most
    gradient.
    """
    declared = {one["name"]: one for one in known.rows.values() if one["table_name"] == "turn"}
    measured = [name for name in declared if any(turn.get(name) is not None for turn in turns)]
    shares = largest({i: turn.get("gradient_share") for i, turn in enumerate(turns)})
    top = turns[shares.key] if shares else None
    lines = []
    for name in sorted(measured, key=lambda name: _ROWS.index(name) if name in _ROWS else len(_ROWS)):
        row = declared[name]
        cells = list[object]()
        for turn in turns:
            value = turn.get(name)
            text = html_text(shown_value(turn.get(name), row["unit"]))
            text = (
                tag("span", text, css="sorl-broken")
                if isinstance(value, float) and value - value != 0
                else text
            )
            cells.append(tag("b", text) if turn is top else text)
        unit = (
            tag("span", f" {row['unit']}", css="sorl-unit") if row["unit"] in ("nats", "s", "reward") else ""
        )
        tip = f"{name}: {row['formula']} — {row['description']}"
        lines.append([tag("span", known.title(f"turn.{name}"), unit, title=tip, tabindex="0"), *cells])
    head = [f"turn {turn['turn_index']}" if turn is top else f"{turn['turn_index']}" for turn in turns]
    return table_html(["", *head], lines, "sorl-turns")


def shown_value(value: Any, unit: str) -> str:
    """Write a figure of a turn: a fraction in percent, NULL as a dash, NaN and Inf as themselves."""
    if isinstance(value, (str, bool)):
        return word(value)
    return (
        percent(value) if unit == "fraction" and value is not None and math.isfinite(value) else number(value)
    )


# The texts of tokens, put back from a tokenizer's vocabulary into what a person reads.

# bytes that stand for themselves
_BYTES = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in set(_BYTES)]
# Byte-level vocabularies (GPT-2, Llama 3, Qwen) write every byte as one printable character: a space is Ġ.
BYTE_OF = {chr(byte): byte for byte in _BYTES} | {chr(256 + i): byte for i, byte in enumerate(_OTHERS)}
_SPACE = "\u0120"
_NEWLINE = "\u010a"
_PIECE = "\u2581"


def texts_of(row: Row, most: int | None = None) -> list[str]:
    """Return one text a token of a row of table `token`, of the first `most`: its id where a run has none."""
    return spelled((row["token"] or [f"{one} " for one in row["token_id"] or ()])[:most])


def spelled(tokens: Sequence[str | None]) -> list[str]:
    """Return one text a token (None: a lozenge), which joined are the text of all."""
    # In byte-level vocabularies, in SentencePiece, and in whole words, which want a space between them.
    texts = ["\u25ca" if token is None else token for token in tokens]
    whole = "".join(texts)
    # an added token has characters of its own: it is spelled as it is
    if _SPACE in whole or _NEWLINE in whole:
        known = BYTE_OF.keys()
        return [
            bytes(map(BYTE_OF.__getitem__, t)).decode("utf-8", "replace") if known >= set(t) else t
            for t in texts
        ]
    if any(text.startswith(_PIECE) for text in texts):
        byte = re.compile("<0x([0-9A-Fa-f]{2})>")
        parts = [(byte.fullmatch(text), text.replace(_PIECE, " ")) for text in texts]
        return [
            bytes.fromhex(found[1]).decode("utf-8", "replace") if found else text for found, text in parts
        ]
    if any(map(str.isspace, whole)):
        return texts
    return [*texts[:1], *(f" {text}" for text in texts[1:])]


# The transcript: turn by turn, each trained token tinted by its log-ratio, what was only read kept apart.

MOST = 6_000  # tokens that are shown: more would make a browser wait
LONGEST = 500  # characters of a token: no vocabulary has longer ones, a broken log may
_TOLD = ("log_prob", "log_prob_old", "log_prob_behaviour", "entropy", "advantage", "value", "gradient_weight")
_READ = "information"  # what a tool gave back, between its tags
_TAG = re.compile(r"<(/?)(think|search|answer|information)>")


class Piece(NamedTuple):
    """Neighbouring tokens of one kind: first and one past the last; `written` by the policy, in
    turn `turn`.
    """

    kind: str
    written: bool
    turn: int
    first: int
    end: int


def pieces(
    texts: Sequence[str], trained: Sequence[bool] | None, turn_index: Sequence[int] | None
) -> list[Piece]:
    """Split tokens into prompt and information (both only read), and think, search, answer, text of each
    turn.
    """
    if trained is None:
        return [Piece("text", False, 0, 0, len(texts))]
    turns = [(_of(turn_index, i) or 0) if _of(trained, i) else None for i in range(len(texts))]
    found = list[Piece]()
    end = 0
    for turn, same in groupby(turns):  # None: only read
        first = end
        end = end + len(list(same))
        if turn is None:
            kind = _READ if any(piece.written for piece in found) else "prompt"
            found.append(Piece(kind, False, 0, first, end))
            continue
        for kind, part in groupby(_kinds(texts[first:end])):
            found.append(Piece(kind, True, turn, first, first + len(list(part))))
            first = found[-1].end
    return found


def _kinds(texts: Sequence[str]) -> list[str]:
    """Return the kind of each token. A tag counts even where a token holds half of it; without its end it
    goes on.
    """
    marks = [(0, "text")]
    opened = ""
    for found in _TAG.finditer("".join(texts)):
        if not found[1] or found[2] == opened:
            opened = "" if found[1] else found[2]
            marks.append((found.end(), "text") if found[1] else (found.start(), opened))
    begins = [end - len(text.lstrip()) for end, text in zip(accumulate(map(len, texts)), texts, strict=True)]
    return [next(kind for place, kind in reversed(marks) if place <= begin) for begin in begins]


def transcript(sides: Sequence[Side], palette: Palette) -> Markup:
    """Build one episode as HTML, or two, turn by turn; of one without tokens only what its turns did."""
    names = ["Turn"] if len(sides) == 1 else [f"{side.row['name']}, turn" for side in sides]
    columns = [blocks(side, palette, name) for side, name in zip(sides, names, strict=True)]
    turns = sorted({turn for column in columns for turn in column})
    cells = [tag("div", *column.get(turn, ())) for turn in turns for column in columns]
    return tag("div", *cells, css="sorl-transcript" + " sorl-pair" * (len(sides) > 1))


def blocks(side: Side, palette: Palette, name: str) -> dict[int, list[Markup]]:
    """Build each turn as HTML, the prompt as turn 0; without tokens only the heading of each turn."""
    row = side.tokens
    known = {turn["turn_index"]: turn for turn in side.turns}
    parts: dict[int, list[Markup]] = defaultdict(list)
    if row is None:
        parts[0].append(tag("p", f"The tokens of {side.row['name']} were not kept.", css="sorl-note"))
        return parts | {turn: [_heading(name, turn, known)] for turn in known}
    count = len(row["token_id"] or row["token"] or [])
    texts = texts_of(row, MOST)
    top = heaviest(row)
    first = (
        top.key if top and top.key < MOST else next((i for i in range(MOST) if _of(row["trained"], i)), None)
    )
    boxed = top.key if top and top.stands_out else None
    heading = 0
    for piece in pieces(texts, row["trained"], row["turn_index"]):
        if piece.turn and piece.turn != heading:
            heading = piece.turn
            parts[heading].append(_heading(name, heading, known))
        kind = "tool result" if piece.kind == _READ else piece.kind
        if piece.written:
            about = [kind + ", made up" * (piece.kind == _READ)]
            body = [
                _token(i, texts[i], row, palette, i == boxed, i == first)
                for i in range(piece.first, piece.end)
            ]
        else:
            about = [kind, tag("div", "no gradient")]
            body = [html_text("".join(texts[piece.first : piece.end]).strip())]
        inside = tag("div", *about, css="sorl-kind"), tag("div", *body, css="sorl-said")
        parts[heading].append(
            tag("div", *inside, css=f"sorl-part sorl-{'written' if piece.written else 'read'}")
        )
    if count > MOST:
        parts[heading].append(tag("p", f"The first {MOST:,} of {count:,} tokens.", css="sorl-note"))
    return parts


def _heading(name: str, turn: int, known: Mapping[int, Row]) -> Markup:
    said = ""
    if entry := known.get(turn):
        said = (
            f" · {word(entry['status'])} · ratio {number(entry['ratio_geo'])} · sum of log-ratios"
            f" {number(entry['log_ratio_sum'])} nats · {shown_value(entry['gradient_share'], 'fraction')} of"
            f" that update's gradient (epoch {entry['epoch']})"
        )
    return tag("div", tag("b", f"{name} {turn}"), said, css="sorl-turn")


def _token(i: int, text: str, row: Row, palette: Palette, heaviest: bool, first: bool) -> Markup:
    said = text.lstrip(" ") if text.strip() else text
    more = f" … and {len(said) - LONGEST:,} characters" if len(said) > LONGEST else ""
    shown = (said[:LONGEST].replace("\n", "↵\n") or "∅") + more
    log_ratio = _of(row.get("log_ratio"), i)
    colours = theme.tint(log_ratio, palette)
    broken = log_ratio is not None and not math.isfinite(log_ratio)
    marks = (("clipped", _of(row.get("clipped"), i)), ("heaviest", heaviest), ("broken", broken))
    return html_text(text[: len(text) - len(said)]) + tag(
        "span",
        shown,
        css=" ".join(["sorl-token", *(f"sorl-{name}" for name, is_on in marks if is_on)]),
        role="note",
        tabindex="0" if first else "-1",
        aria_label=f"{quoted(shown)}\n{tooltip(i, row)}",
        style=f"background:{colours[0]};color:{colours[1]}" if colours else "",
    )


def tooltip(i: int, row: Row) -> str:
    """Write the numbers of a token in lines; a dash for what was not measured."""
    log_ratio = _of(row.get("log_ratio"), i)
    ratio = (
        log_ratio
        if log_ratio is None or math.isnan(log_ratio)
        else math.exp(max(-700.0, min(700.0, log_ratio)))
    )
    told = {name: number(_of(row.get(name), i)) for name in _TOLD}
    return "\n".join(
        (
            f"log-ratio {number(log_ratio)} nats, ratio {number(ratio)}",
            (
                f"log-prob new {told['log_prob']}, old {told['log_prob_old']}, behaviour"
                f" {told['log_prob_behaviour']}"
            ),
            f"entropy {told['entropy']} nats, advantage {told['advantage']}",
            f"value {told['value']}, gradient weight {told['gradient_weight']}",
            f"clipped: {word(_of(row.get('clipped'), i))}; token {i}, id {word(_of(row.get('token_id'), i))}",
        )
    )


def _of(values: Sequence[Any] | None, i: int) -> Any:
    return values[i] if values is not None and i < len(values) else None


def legend(palette: Palette, epoch: int | None) -> Markup:
    """Build the colour scale of the log-ratios in an epoch (None: the last) and the marks on
    tokens, as HTML.
    """
    ends = {-theme.END: "≤ ", theme.END: "≥ "}
    ticks = [
        tag("span", f"{ends.get(mark, '')}{mark:g}", style=f"left:{50 + 50 * theme.position(mark):.1f}%")
        for mark in theme.MARKS
    ]
    ground = tag("div", style=f"background:linear-gradient(90deg,{','.join(palette.diverging)})")
    scale = tag("div", ground, *ticks, css="sorl-scale")
    named = {"clipped": "clipped", "heaviest": "largest gradient", "broken": "NaN or Inf"}
    marks = [tag("span", tag("span", words, css=f"sorl-{name}")) for name, words in named.items()]
    title = tag(
        "span", f"tokens in {'the last epoch' if epoch is None else f'epoch {epoch}'}: log-ratio (nats)"
    )
    return tag("div", tag("div", title, scale), tag("div", *marks), css="sorl-legend")
