"""Episode: from a spike to its culprit. A run's signal, the trajectories of a step, the tokens of one of them."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st
from markupsafe import Markup

from workbench.app import export, theme
from workbench.app.experiments import choose_experiment, runs
from workbench.app.figures.runs import peaks, ranking
from workbench.app.page import address, anchor, curves_only, episode_address, links, look, note, run_links, screen
from workbench.app.store import Diagnostics, Store, dictionary
from workbench.app.text import html_text, number, percent, table_html, tag, word
from workbench.app.theme import Palette
from workbench.app.trajectories import RANKS, WORST, Row, choose_run, kept, ranked, signals, watched, worst
from workbench.app.url import choose, choose_number, follow, keep_number
from workbench.store import batches

_BARS = 8  # trajectories that the ranking draws


@screen
def episode(store: Store) -> None:
    """Which trajectory, which turn, which token did it?"""
    left, middle, right = st.columns([2, 4, 2])
    with left:
        experiment = choose_experiment(store)
    all_runs = runs(store, experiment)
    with middle:
        about = choose_run(all_runs)
    run, known = str(about["run_id"]), dictionary(store)
    with right:
        signal = watched(store, known, about, choose("signal", "Signal", signals(known)))
    with st.container(horizontal=True, gap="large", vertical_alignment="top"):
        step = choose_number("step", "Step", 0, max(0, signal.steps - 1), signal.spike)
        by = choose("rank", "Rank trajectories by", list(RANKS), kind="row")
    rows = ranked(store, run, step, RANKS[by])
    chosen = keep_number("trajectory", (run, step), [row["trajectory"] for row in rows])
    mine = next((row for row in rows if row["trajectory"] == chosen), None)
    where = {"experiment": experiment, "run": run, "step": str(step)}
    if mine is None:
        curves_only(f"No trajectory of step {step} is recorded for this run.")
    else:
        _transcript(store, known, where, rows, mine)
    palette = look()
    curve, bars = st.columns(2, gap="medium")
    with curve:
        clicked = export.figure(
            peaks(signal, theme.colour(str(about["algorithm"]), palette), palette, step), "peaks", signal.points,
            select=True, describe=f"{signal.name} of {run} over training; step {step} is chosen.",
        )  # fmt: skip
        if clicked and int(clicked[0]) != step:
            follow("step", [str(clicked[0])])
    if mine is None:
        return
    with bars:
        clicked = export.figure(
            ranking(shown(rows, mine, _BARS), 1 / len(rows), palette, step, mine["trajectory"]), "ranking",
            lambda: pd.DataFrame(rows), select=True,
            describe=f"The trajectories of step {step}, ranked by {by}; {chosen} is chosen.",
        )  # fmt: skip
        if clicked and int(clicked[0]) != chosen:
            follow("trajectory", [str(clicked[0])])
    folder = batches.folder_of(store.runs, experiment, run)
    if folder is not None and step in batches.steps(folder):
        links([anchor("Replay this batch with other algorithms", address("replay", **where, trajectory=str(chosen)))])
    run_links(all_runs[all_runs["run_id"] == run], experiment)


def shown(rows: Sequence[Row], chosen: Row, most: int) -> list[Row]:
    """Return the first `most` rows; the chosen one takes the last place where it is not among them."""
    return list(rows[:most]) if chosen in rows[:most] else [*rows[: most - 1], chosen]


def _transcript(store: Store, known: Diagnostics, where: dict[str, str], rows: Sequence[Row], mine: Row) -> None:
    run, step, trajectory = where["run"], int(where["step"]), mine["trajectory"]
    turns = store.records("ledger", run=run, step=step, trajectory=trajectory)
    token = next(iter(store.records("tokens", run=run, step=step, trajectory=trajectory)), None)
    answer, gold = tag("b", word(mine["answer"])), tag("b", word(mine["gold"]))
    asked = tag("p", word(mine["question"]), css="sorl-question")
    ended = tag("p", "It answered ", answer, ", expected ", gold, f"; ended by {word(mine['ended'])}.", css="sorl-note")
    headline = st.container()
    text, table = st.columns([11, 9], gap="medium")
    epochs = sorted({turn["epoch"] for turn in turns})
    epoch = heaviest = heaviest_epoch(token, turns)
    with table:
        if heaviest is not None:
            options = {WORST: f"largest gradient ({heaviest})"} | {str(one): str(one) for one in epochs}
            chosen = choose("epoch", "Show epoch", options, kind="row")
            epoch = heaviest if chosen == WORST else int(chosen)
            st.html(turn_table([turn for turn in turns if turn["epoch"] == epoch], known))
            note("Bold: the turn with the largest share of its update's gradient. Point at a name for its definition.")
        else:
            note("No turn of this trajectory is recorded.")
    of_epoch = [turn for turn in turns if turn["epoch"] == epoch]
    view = None if token is None else at_epoch(token, epoch, epochs[-1] if epochs else None)
    with headline:
        st.html(asked + ended + tag("p", sentence(rows, mine, of_epoch, view), css="sorl-answer"))
    with text:
        if view is None:
            others = kept(store, run).get(step, [])
            named = [anchor(str(one), episode_address(**where, trajectory=str(one))) for one in others]
            instead = ("of this step it kept ", Markup(", ").join(named)) if named else ("nor any of this step",)
            links([f"The run did not keep the tokens of trajectory {trajectory}; ", *instead, "."])
            return
        _next_to(store, where, mine, view, of_epoch)


def _next_to(store: Store, where: dict[str, str], mine: Row, view: Row, turns: Sequence[Row]) -> None:
    """Show the transcript, next to one of the same question by another run or at another step if one is chosen."""
    asked = store.records("same_question", experiment=where["experiment"], question=mine["question"])
    others = {
        f"{row['run_id']}/{row['step']}/{row['trajectory']}": row for row in asked
        if (row["run_id"], str(row["step"]), row["trajectory"]) != (where["run"], where["step"], mine["trajectory"])
    }  # fmt: skip
    palette = look()
    colours = f"--sorl-surface:{palette.surface};--sorl-text:{palette.text}"
    parts = [tag("div", legend(palette, view["figures"]), transcript(view, turns, palette))]
    if others:
        options = {"": "no other"} | {key: episode_words(row) for key, row in others.items()}
        other = others.get(choose("next", "Same question, next to it", options))
        if other is not None:
            place = {name: other[name] for name in ("step", "trajectory")} | {"run": other["run_id"]}
            ledger = store.records("ledger", **place)
            token = store.records("tokens", **place)[0]
            epoch = heaviest_epoch(token, ledger)
            its = at_epoch(token, epoch, max((turn["epoch"] for turn in ledger), default=None))
            mine_of = [turn for turn in ledger if turn["epoch"] == epoch]
            st.html(tag("p", differs(mine, view, other, its), css="sorl-answer"))
            parts.append(tag("div", tag("p", episode_words(other), css="sorl-note"), transcript(its, mine_of, palette)))
    st.html(tag("div", *parts, css="sorl-next" if len(parts) > 1 else "", style=colours))


def episode_words(row: Row) -> str:
    """Name an episode in a list: `st-ppo, seed 0, step 12: solved`."""
    outcome = "solved" if row["success"] else "not solved"
    return f"{row['arm']}, seed {row['seed']}, step {row['step']:,}: {outcome}, answered {word(row['answer'])}"


def differs(mine: Row, view: Row, other: Row, its: Row) -> str:
    """Say in what two episodes of one question differ: the answers, and the first turn that differs."""

    def turns_of(row: Row) -> list[list[str | None]]:
        marks = zip(row["trained"] or [], row["turn_index"] or [], row["token"] or [], strict=False)
        by_turn: dict[int, list[str | None]] = {}
        for trained, turn, text in marks:
            if trained:
                by_turn.setdefault(turn, []).append(text)
        return [by_turn[turn] for turn in sorted(by_turn)]

    one, two = turns_of(view), turns_of(its)
    first = next((i for i, (a, b) in enumerate(zip(one, two, strict=False), 1) if a != b), None)
    answers = f"Answers: {word(mine['answer'])} here, {word(other['answer'])} there; expected {word(mine['gold'])}."
    if first is None and len(one) == len(two):
        return f"Both wrote the same {len(one)} turns. {answers}"
    first = first or min(len(one), len(two)) + 1
    return f"The first turn that differs is turn {first} ({len(one)} turns here, {len(two)} there). {answers}"


# Which epoch, which token, in words.

STANDS = 2.0  # times the next largest weight: below it no single token is named


def heaviest_epoch(token: Row | None, turns: Sequence[Row]) -> int | None:
    """Return the epoch in which the trajectory had the largest gradient; without its tokens, by shares of updates."""
    if token is not None and token.get("worst_epoch") is not None:
        return int(token["worst_epoch"])
    top = worst(turns)
    return top["epoch"] if top else max((turn["epoch"] for turn in turns), default=None)


def at_epoch(token: Row, epoch: int | None, last: int | None) -> dict[str, Any]:
    """Return a row of table `token` with the figures of an epoch: of the worst, of the last, or with none (None).

    `figures` says in words which they are.
    """
    row = dict(token)
    if epoch is not None and token.get("worst_epoch") == epoch:
        ratios, before = token.get("worst_log_ratio"), token.get("log_prob_old")
        row |= {"log_ratio": ratios, "clipped": token.get("worst_clipped"),
                "gradient_weight": token.get("worst_gradient_weight")}  # fmt: skip
        row["log_prob"] = [
            None if r is None or b is None else b + r for r, b in zip(ratios or [], before or [], strict=False)
        ]
        return row | {"figures": f"tokens in epoch {epoch}: log-ratio (nats)"}
    if epoch is None or last is None or epoch == last:
        return row | {"figures": "tokens in the last epoch: log-ratio (nats)"}
    row |= dict.fromkeys(("log_ratio", "clipped", "gradient_weight", "log_prob"))
    return row | {"figures": f"no figures of tokens were kept for epoch {epoch}"}


def heaviest_token(row: Row) -> tuple[int | None, float]:
    """Return the trained token with the largest |gradient weight|, and by what factor it exceeds the next; NaN wins."""
    weights = [(i, abs(w)) for i, w in enumerate(row.get("gradient_weight") or []) if w is not None]
    weights = [(i, math.inf if math.isnan(w) else w) for i, w in weights if _of(row.get("trained"), i)]
    ordered = sorted(weights, key=lambda pair: -pair[1])
    if not ordered or not ordered[0][1]:
        return None, 0.0
    second = ordered[1][1] if len(ordered) > 1 else 0.0
    return ordered[0][0], math.inf if not second else 1.0 if second == math.inf else ordered[0][1] / second


def sentence(rows: Sequence[Row], mine: Row, turns: Sequence[Row], token: Row | None) -> str:
    """Say who carries the gradient: the trajectory in its step, the turn in the trajectory, the token in the epoch.

    `rows` are the trajectories of the step, `turns` those of the chosen one in the epoch whose figures `token` has.
    """
    share, said = mine.get("gradient_share"), f"Trajectory {mine['trajectory']}: its share of the gradient is unknown."
    if share is not None and math.isfinite(share):
        equal = f"{number(share * len(rows))} x an equal share" if len(rows) > 1 else "the only one"
        said = f"Trajectory {mine['trajectory']} has {percent(share)} of this step's gradient, {equal}."
    elif share is not None:
        said = f"Trajectory {mine['trajectory']} has a gradient of NaN or Inf."
    top, shares = worst(turns), [turn["gradient_share"] for turn in turns if turn["gradient_share"] is not None]
    if top is not None and math.isfinite(total := math.fsum(shares)) and total > 0:
        ratio = top.get("ratio_max")
        largest = "" if ratio is None else f", where the largest token ratio is {number(ratio)}"
        part = percent(top["gradient_share"] / total)
        said += f" In epoch {top['epoch']}, {part} of its gradient is in turn {top['turn_index']}{largest}."
    elif top is not None:
        said += f" Turn {top['turn_index']} of epoch {top['epoch']} has no finite share."
    if token is None or not token.get("gradient_weight"):
        return said
    place, factor = heaviest_token(token)
    if place is None:
        return f"{said} No token has any weight there: the clip stopped them all."
    if factor < STANDS:
        return f"{said} No single token stands out: the largest weight is {factor:.1f} x the next."
    text = spelled([_of(token.get("token"), place)])[0].strip()[:40]
    times = "" if math.isinf(factor) else f", {number(factor)} x the next"
    return f"{said} The token with the largest weight is {text!r} in turn {_of(token.get('turn_index'), place)}{times}."


# The turns of an episode as a table: a column a turn, a row a measured column of the turn ledger.

_FIRST = ("status", "n_tokens", "ratio_geo", "ratio_arith", "ratio_prod", "log_ratio_sum", "ratio_max", "ratio_min",
          "clip_frac", "out_of_range_frac", "approx_kl", "entropy", "advantage", "value", "value_error",
          "ratio_mass_frac", "gradient_share")  # fmt: skip


def turn_table(rows: Sequence[Row], known: Diagnostics) -> Markup:
    """Build the table as HTML; `rows` are the turns of one epoch. Bold is the one with most of the gradient."""
    declared = [row for row in known.rows.values() if row["table_name"] == "turn"]
    declared.sort(key=lambda row: _FIRST.index(row["name"]) if row["name"] in _FIRST else len(_FIRST))
    top = worst(rows)

    def cell(turn: Row, value: Any) -> object:
        text: object = word(value) if isinstance(value, (str, bool)) else number(value)
        if isinstance(value, float) and not math.isfinite(value):
            text = tag("span", text, css="sorl-broken")
        return tag("b", text) if turn is top else text

    lines = []
    for row in declared:
        if all(turn.get(row["name"]) is None for turn in rows):
            continue
        unit = tag("span", f" {row['unit']}", css="sorl-unit") if row["unit"] else ""
        name = tag("span", row["name"], unit, title=f"{row['formula']} — {row['description']}")
        lines.append([name, *(cell(turn, turn.get(row["name"])) for turn in rows)])
    head = [f"turn {turn['turn_index']}" if turn is top else f"{turn['turn_index']}" for turn in rows]
    return table_html(["", *head], lines, "sorl-turns")


# The texts of tokens, put back from a tokenizer's vocabulary into what a person reads.

_BYTES = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # bytes that stand for themselves
_OTHERS = [byte for byte in range(256) if byte not in set(_BYTES)]
# Byte-level vocabularies (GPT-2, Llama 3, Qwen) write every byte as one printable character: a space is Ġ.
BYTE_OF = {chr(byte): byte for byte in _BYTES} | {chr(256 + i): byte for i, byte in enumerate(_OTHERS)}
_SPACE, _NEWLINE, _PIECE = "\u0120", "\u010a", "\u2581"


def spelled(tokens: Sequence[str | None]) -> list[str]:
    """Return one text a token (None: a lozenge), which joined are the text of all."""
    # In byte-level vocabularies, in SentencePiece, and in whole words, which want a space between them.
    texts = ["\u25ca" if token is None else token for token in tokens]
    if any(_SPACE in text or _NEWLINE in text for text in texts):
        # An added token has characters of its own: it is spelled as it is.
        return [
            bytes(BYTE_OF[c] for c in text).decode("utf-8", "replace") if BYTE_OF.keys() >= set(text) else text
            for text in texts
        ]
    if any(text.startswith(_PIECE) for text in texts):
        bytes_of = [re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text) for text in texts]
        return [
            bytes([int(byte[1], 16)]).decode("utf-8", "replace") if byte else text.replace(_PIECE, " ")
            for text, byte in zip(texts, bytes_of, strict=True)
        ]
    if any(character.isspace() for text in texts for character in text):
        return texts
    return [text if place == 0 else f" {text}" for place, text in enumerate(texts)]


# The transcript: turn by turn, each trained token tinted by its log-ratio, what was only read kept apart.

MOST = 6_000  # tokens that are shown: more would make a browser wait
LONGEST = 500  # characters of a token: no vocabulary has longer ones, a broken log may
_TAG = re.compile(r"<(/?)(think|search|answer|information)>")


class Piece(NamedTuple):
    """Neighbouring tokens of one kind: first and one past the last; `written` by the policy, in turn `turn`."""

    kind: str
    written: bool
    turn: int
    first: int
    end: int


def pieces(texts: Sequence[str], trained: Sequence[bool] | None, turn_index: Sequence[int] | None) -> list[Piece]:
    """Split tokens into prompt and information (both only read), and think, search, answer, text of each turn."""
    # Tags count even where a token holds half of one; a part that is not closed goes on to the next tag that opens one.
    if trained is None:
        return [Piece("text", False, 0, 0, len(texts))]
    turns = [(_of(turn_index, i) or 0) if _of(trained, i) else None for i in range(len(texts))]
    found: list[Piece] = []
    end = 0
    for turn, same in groupby(turns):  # None: only read
        first, end = end, end + len(list(same))
        if turn is None:
            begun = any(piece.written for piece in found)
            found.append(Piece("information" if begun else "prompt", False, 0, first, end))
            continue
        stop = first
        for kind, part in groupby(_kinds(texts[first:end])):
            start, stop = stop, stop + len(list(part))
            found.append(Piece(kind, True, turn, start, stop))
    return found


def _kinds(texts: Sequence[str]) -> list[str]:
    marks: list[tuple[int, str]] = [(0, "text")]
    opened = ""
    for found in _TAG.finditer("".join(texts)):
        if not found[1]:
            opened = found[2]
            marks.append((found.start(), opened))
        elif found[2] == opened:
            opened = ""
            marks.append((found.end(), "text"))
    ends = accumulate(map(len, texts))
    begins = [end - len(text.lstrip()) for end, text in zip(ends, texts, strict=True)]
    return [next(kind for place, kind in reversed(marks) if place <= begin) for begin in begins]


def transcript(row: Row, turns: Sequence[Row], palette: Palette) -> Markup:
    """Build the episode as HTML: `row` of table `token`, `turns` of the turn ledger in one epoch."""
    count = len(row["token_id"] or row["token"] or [])
    texts = spelled((row["token"] or [None] * count)[:MOST])
    known = {turn["turn_index"]: turn for turn in turns}
    place, factor = heaviest_token(row)
    heaviest = place if factor >= STANDS else None
    parts, heading = [], 0
    for piece in pieces(texts, row["trained"], row["turn_index"]):
        if piece.turn and piece.turn != heading:
            heading, said = piece.turn, ""
            if entry := known.get(heading):
                share = entry["gradient_share"]
                gradient = number(share) if share is None or not math.isfinite(share) else percent(share)
                said = (
                    f" · {word(entry['status'])} · ratio {number(entry['ratio_geo'])} · sum of log-ratios "
                    f"{number(entry['log_ratio_sum'])} nats · {gradient} of its update's gradient "
                    f"(epoch {entry['epoch']})"
                )
            parts.append(tag("div", tag("b", f"Turn {heading}"), said, css="sorl-turn"))
        if piece.written:
            kind: list[object] = ["information, made up" if piece.kind == "information" else piece.kind]
            body = [_token(i, texts[i], row, palette, i == heaviest) for i in range(piece.first, piece.end)]
        else:
            kind = [piece.kind, tag("div", "not trained on")]
            body = [html_text("".join(texts[piece.first : piece.end]).strip())]
        inside = tag("div", *kind, css="sorl-kind"), tag("div", *body, css="sorl-said")
        parts.append(tag("div", *inside, css="sorl-part sorl-written" if piece.written else "sorl-part sorl-read"))
    if count > MOST:
        parts.append(tag("p", f"The first {MOST:,} of {count:,} tokens.", css="sorl-note"))
    return tag("div", *parts, css="sorl-transcript")


def _token(i: int, text: str, row: Row, palette: Palette, heaviest: bool) -> Markup:
    lead = text[: len(text) - len(text.lstrip(" "))] if text.strip() else ""
    said = text.removeprefix(lead)
    more = f" … and {len(said) - LONGEST:,} characters" if len(said) > LONGEST else ""
    shown = (said[:LONGEST].replace("\n", "↵\n") or "∅") + more
    log_ratio = _of(row.get("log_ratio"), i)
    colours = theme.tint(log_ratio, palette)
    broken = log_ratio is not None and not math.isfinite(log_ratio)
    marks = (("clipped", _of(row.get("clipped"), i)), ("heaviest", heaviest), ("broken", broken))
    return html_text(lead) + tag(
        "span", shown, css=" ".join(["sorl-token", *(f"sorl-{name}" for name, is_on in marks if is_on)]),
        data_tip="\n".join(tooltip(i, row)), tabindex="0",
        style=f"background:{colours[0]};color:{colours[1]}" if colours else "",
    )  # fmt: skip


def tooltip(i: int, row: Row) -> Iterator[str]:
    """Write the numbers of a token, line by line; a dash for what was not measured."""

    def told(name: str) -> str:
        return number(_of(row.get(name), i))

    log_ratio = _of(row.get("log_ratio"), i)
    ratio = log_ratio if log_ratio is None or math.isnan(log_ratio) else math.exp(max(-700.0, min(700.0, log_ratio)))
    yield f"log-ratio {number(log_ratio)} nats, ratio {number(ratio)}"
    yield f"log-prob new {told('log_prob')}, old {told('log_prob_old')}, behaviour {told('log_prob_behaviour')}"
    yield f"entropy {told('entropy')} nats, advantage {told('advantage')}"
    yield f"value {told('value')}, gradient weight {told('gradient_weight')}"
    yield f"clipped: {word(_of(row.get('clipped'), i))}; token {i}, id {word(_of(row.get('token_id'), i))}"


def _of(values: Sequence[Any] | None, i: int) -> Any:
    return values[i] if values is not None and i < len(values) else None


def legend(palette: Palette, title: str) -> Markup:
    """Build the colour scale of the log-ratios and the marks on tokens, as HTML; `title` says of which epoch."""
    ends = {-theme.END: "≤ ", theme.END: "≥ "}
    ticks = [
        tag("span", f"{ends.get(mark, '')}{mark:g}", style=f"left:{50 + 50 * theme.position(mark):.1f}%")
        for mark in theme.MARKS
    ]
    ground = tag("div", style=f"background:linear-gradient(90deg,{','.join(theme.gradient(palette))})")
    scale = tag("div", ground, *ticks, css="sorl-scale")
    named = {"clipped": "clipped", "heaviest": "largest gradient", "broken": "NaN or Inf"}
    marks = [tag("span", tag("span", words, css=f"sorl-{name}")) for name, words in named.items()]
    return tag("div", tag("div", tag("span", title), scale), tag("div", *marks), css="sorl-legend")
