"""Sentences about an episode: its answer, its part of the gradient, in what it differs from another."""

import math
from collections.abc import Callable, Iterator, Sequence

from markupsafe import Markup

from sorl.app.choices import has_no_gradient, share_of
from sorl.app.data import Row
from sorl.app.episode_data import Side, Top, entry, heaviest, largest, texts_of
from sorl.app.page import anchor, episode_address
from sorl.app.text import html_text, number, percent, tag, times, visible, word
from sorl.diagnosis.standing import counted

_QUOTED = 40  # characters of a token or an answer in a sentence


def quoted(text: object) -> str:
    """Quote a text of a log, cut where it is long."""
    said = visible(text).replace("\n", "↵")
    return f"“{said if len(said) <= _QUOTED else said[:_QUOTED] + '…'}”"


def answered(row: Row) -> str:
    """Say what an episode answered, and whether that is right."""
    right = {True: " (right)", False: " (wrong)", None: ""}[row["success"]]
    return f"answered {quoted(row['answer'])}{right}" if row["answer"] is not None else "gave no answer"


def credit(row: Row) -> str:
    """Say reward and advantage of a rollout, where they are known."""
    known = [f"{name} {number(row[name])}" for name in ("reward", "advantage") if row[name] is not None]
    return "".join(f", {words}" for words in known)


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
    if row["gradient_share"] == 0 or has_no_gradient(row):
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
    where = entry(row.get("turn_index"), top.key)
    place = "" if where is None or (turn and turn.stands_out and where == turn.key) else f" of turn {where}"
    text = entry(texts_of(row), top.key) or "◊"
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


def difference(first: Side, second: Side) -> str:
    """Say in what two episodes with the same question differ: answers, turns, and the first turn that is not
    alike.
    """
    sides = (first, second)
    names = [side.row["name"] for side in sides]
    answers = _answers(names, [answered(side.row) for side in sides])
    texts = [side.written for side in sides]
    kinds = [_kinds_of_turns(side) for side in sides]
    known = [of_turns or text for of_turns, text in zip(kinds, texts, strict=True)]
    if not all(known):
        return f"{answers} The turns of {names[known.index({})]} were not recorded."
    counts = _counts(*map(len, known))
    read = texts if all(texts) else known
    turn = _first_difference(*read)
    if turn is None:
        alike = "the same kind of turns, but not all tokens were kept: what they wrote may differ"
        return f"{answers} {counts}; {'they wrote the same' if all(texts) else alike}."
    how = ""
    did = [of_turns.get(turn) for of_turns in kinds]
    if did[0] != did[1] and None not in did:
        how = f": {did[0]} against {did[1]}"
    alone = [name for name, turns in zip(names, read, strict=True) if turn not in turns]
    if alone:
        how = f", which {alone[0]} does not have"
    return f"{answers} {counts}; the first that differs is turn {turn}{how}."


def _answers(names: Sequence[str], gave: Sequence[str]) -> str:
    if gave[0] == gave[1]:
        return f"Both {gave[0]}."
    return f"At {names[0]} it {gave[0]}; at {names[1]} it {gave[1]}."


def _kinds_of_turns(side: Side) -> dict[int, str]:
    return {turn["turn_index"]: word(turn.get("status")) for turn in side.turns}


def _counts(first: int, second: int) -> str:
    return f"Both took {counted(first, 'turn')}" if first == second else f"{first} turns against {second}"


def _first_difference(first: dict[int, str], second: dict[int, str]) -> int | None:
    turns = sorted({*first, *second})
    return next((turn for turn in turns if first.get(turn) != second.get(turn)), None)


# What of an episode was kept.


def text_kept(
    place: dict[str, str], has_text: bool, with_tokens: Sequence[int], nearest: int | None
) -> list[object]:
    """Say what is there of an episode without tokens, with links: those of its step that have tokens, else
    the nearest step that has text.

    `place` names experiment, run and step.
    """
    named = [anchor(str(one), episode_address(**place, trajectory=str(one))) for one in with_tokens]
    said: list[object] = ["Its tokens were not kept" + (", only their text. " if has_text else ". ")]
    if named:
        said += ["Of this step those of trajectory ", Markup(", ").join(named), " were."]
    elif not has_text and nearest is not None:
        words = f"step {nearest}"
        said += [
            "The nearest step with text is ",
            anchor(words, episode_address(**place | {"step": str(nearest)})),
            ".",
        ]
    elif not has_text:
        said.append("No text of this run was.")
    return said
