"""An episode as text: turn by turn, each trained token tinted by its log-ratio, what was only read kept apart."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from workbench.app.safe import html_text
from workbench.app.spelling import spelled
from workbench.app.theme import Palette
from workbench.app.tint import END, MARKS, gradient, position, tint
from workbench.app.wording import number, word

T = TypeVar("T")

MOST = 6_000  # tokens that are shown: more would make a browser wait
LONGEST = 500  # characters of a token: no vocabulary has longer ones, a broken log may
_TAG = re.compile(r"<(/?)(think|search|answer|information)>")


@dataclass(frozen=True)
class Piece:
    """Neighbouring tokens of one kind: first and one past the last; `written` by the policy, in turn `turn`."""

    kind: str
    written: bool
    turn: int
    first: int
    end: int


def pieces(texts: Sequence[str], trained: Sequence[bool] | None, turn_index: Sequence[int] | None) -> list[Piece]:
    """What each token belongs to: prompt, information (both only read), or think, search, answer, text of a turn.

    Tags count even where a token holds half of one; a part that is opened and not closed goes on to the next tag that
    opens another, or to the end of its turn. `trained` is None where no update trained on the trajectory.
    """
    if trained is None:
        return [Piece("text", False, 0, 0, len(texts))]
    found: list[Piece] = []
    begun = False
    flags = [bool(_of(trained, i)) for i in range(len(texts))]
    for (mine, turn), first, end in _runs([(m, (_of(turn_index, i) or 0) if m else 0) for i, m in enumerate(flags)]):
        if mine:
            begun = True
            parts = _runs(_kinds(texts[first:end]))
            found += [Piece(kind, True, turn, first + start, first + stop) for kind, start, stop in parts]
        else:
            found.append(Piece("information" if begun else "prompt", False, 0, first, end))
    return found


def _runs(values: Sequence[T]) -> list[tuple[T, int, int]]:
    """Runs of equal neighbours: the value, the first place, one past the last."""
    found, at = [], 0
    for value, group in groupby(values):
        size = len(list(group))
        found.append((value, at, at + size))
        at += size
    return found


def _kinds(texts: Sequence[str]) -> list[str]:
    """The part of the protocol that each token of one turn lies in, by where the token begins."""
    whole = "".join(texts)
    marks: list[tuple[int, str]] = [(0, "text")]
    opened = ""
    for tag in _TAG.finditer(whole):
        if not tag[1]:
            opened = tag[2]
            marks.append((tag.start(), opened))
        elif tag[2] == opened:
            opened = ""
            marks.append((tag.end(), "text"))
    kinds, at = [], 0
    for text in texts:
        begins = at + len(text) - len(text.lstrip())
        kinds.append(next(kind for place, kind in reversed(marks) if place <= begins))
        at += len(text)
    return kinds


def transcript(row: Mapping[str, Any], ledger: Sequence[Mapping[str, Any]], palette: Palette) -> str:
    """The episode as HTML: `row` of table `token`, `ledger` its turns in one epoch. Every text is escaped."""
    count = len(row["token_id"] or row["token"] or [])
    texts = spelled((row["token"] or [None] * count)[:MOST])
    found = pieces(texts, row["trained"], row["turn_index"])
    turns = {entry["turn_index"]: entry for entry in ledger}
    heaviest = _heaviest(row)
    parts, heading = [], 0
    for piece in found:
        if piece.turn and piece.turn != heading:
            heading = piece.turn
            parts.append(_heading(heading, turns.get(heading, {})))
        parts.append(_piece(piece, texts, row, palette, heaviest))
    if count > MOST:
        parts.append(f'<p class="sorl-note">The first {MOST:,} of {count:,} tokens.</p>')
    return f'<div class="sorl-transcript" style="{_colours(palette)}">{"".join(parts)}</div>'


def _colours(palette: Palette) -> str:
    return f"--sorl-surface:{palette.surface};--sorl-text:{palette.text}"


def _heading(turn: int, entry: Mapping[str, Any]) -> str:
    said = [f"<b>Turn {turn}</b>"]
    if entry:
        said.append(html_text(word(entry["status"])))
        said.append(f"ratio {html_text(number(entry['ratio_geo']))}")
        said.append(f"sum of log-ratios {html_text(number(entry['log_ratio_sum']))} nats")
        share, epoch = html_text(number(entry["gradient_share"])), html_text(word(entry["epoch"]))
        said.append(f"{share} of its update's gradient in epoch {epoch}")
    return f'<div class="sorl-turn">{" · ".join(said)}</div>'


def _heaviest(row: Mapping[str, Any]) -> int | None:
    """The trained token with the largest |d loss / d log-prob|; NaN is worse than any number."""
    weights = enumerate(row.get("gradient_weight") or [])
    known = [(i, abs(w)) for i, w in weights if w is not None and _at(row, "trained", i)]
    broken = [i for i, w in known if math.isnan(w)]
    return broken[0] if broken else max(known, key=lambda pair: pair[1])[0] if known else None


def _piece(piece: Piece, texts: Sequence[str], row: Mapping[str, Any], palette: Palette, heaviest: int | None) -> str:
    label = piece.kind
    if piece.written:
        kind = "sorl-written"
        label = "information, made up" if piece.kind == "information" else label
        body = "".join(_token(i, texts[i], row, palette, i == heaviest) for i in range(piece.first, piece.end))
    else:
        kind = "sorl-read"
        label = f"{label}<div>not trained on</div>"
        body = html_text("".join(texts[piece.first : piece.end]).strip())
    said = f'<div class="sorl-kind">{label}</div><div class="sorl-said">{body}</div>'
    return f'<div class="sorl-part {kind}">{said}</div>'


def _token(i: int, text: str, row: Mapping[str, Any], palette: Palette, heaviest: bool) -> str:
    lead = text[: len(text) - len(text.lstrip(" "))] if text.strip() else ""
    said = text[len(lead) :]
    shown = html_text(said[:LONGEST].replace("\n", "↵\n") or "∅")
    if len(said) > LONGEST:
        shown += f" … and {len(said) - LONGEST:,} characters"
    log_ratio = _at(row, "log_ratio", i)
    colours = tint(log_ratio, palette)
    style = f' style="background:{colours[0]};color:{colours[1]}"' if colours else ""
    marks = " sorl-clipped" if _at(row, "clipped", i) else ""
    marks += " sorl-heaviest" if heaviest else ""
    marks += " sorl-broken" if log_ratio is not None and not math.isfinite(log_ratio) else ""
    tip = html_text("\n".join(tooltip(i, row)))
    return f'{lead}<span class="sorl-token{marks}"{style} data-tip="{tip}">{shown}</span>'


def tooltip(i: int, row: Mapping[str, Any]) -> Iterator[str]:
    """The numbers of a token, line by line; a dash for what was not measured."""
    log_ratio = _at(row, "log_ratio", i)
    ratio = log_ratio if log_ratio is None or math.isnan(log_ratio) else math.exp(max(-700.0, min(700.0, log_ratio)))
    yield f"log-ratio {number(log_ratio)} nats, ratio {number(ratio)}"
    yield (
        f"log-prob new {number(_at(row, 'log_prob', i))}, old {number(_at(row, 'log_prob_old', i))}, "
        f"behaviour {number(_at(row, 'log_prob_behaviour', i))}"
    )
    yield f"entropy {number(_at(row, 'entropy', i))} nats, advantage {number(_at(row, 'advantage', i))}"
    yield f"value {number(_at(row, 'value', i))}, gradient weight {number(_at(row, 'gradient_weight', i))}"
    yield f"clipped: {word(_at(row, 'clipped', i))}; token {i}, id {word(_at(row, 'token_id', i))}"


def _at(row: Mapping[str, Any], name: str, i: int) -> Any:
    return _of(row.get(name), i)


def _of(values: Sequence[Any] | None, i: int) -> Any:
    """Element `i`; None where the list is not there or too short."""
    return values[i] if values is not None and i < len(values) else None


def legend(palette: Palette) -> str:
    """The colour scale of the log-ratios and the marks on tokens, as HTML."""
    stops = ",".join(gradient(palette))
    ticks = "".join(
        f'<span style="left:{50 + 50 * position(mark):.1f}%">{"≤ " if mark == -END else "≥ " if mark == END else ""}'
        f"{mark:g}</span>"
        for mark in MARKS
    )
    marks = "".join(
        f'<span><span class="{name}">{words}</span></span>'
        for name, words in (
            ("sorl-clipped", "clipped"), ("sorl-heaviest", "largest gradient"), ("sorl-broken", "NaN or Inf")
        )
    )  # fmt: skip
    scale = f'<div class="sorl-scale"><div style="background:linear-gradient(90deg,{stops})"></div>{ticks}</div>'
    words = f"<div><span>tokens in the last epoch: log-ratio (nats)</span>{scale}</div><div>{marks}</div>"
    return f'<div class="sorl-legend" style="{_colours(palette)}">{words}</div>'
