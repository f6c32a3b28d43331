"""An episode as data: its row, its turns and tokens in one epoch, its text in pieces, and what stands out."""

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from sorl.app.choices import worst_epoch
from sorl.app.data import Row
from sorl.app.queries import Store
from sorl.spec.spelling import spelled

STANDS_OUT = 2.0  # a turn or a token stands out that has at least twice the gradient of the next
# Of tokens: recorded for the last epoch, and as worst_* for the one with the largest gradient.
_FIGURES = ("log_ratio", "clipped", "gradient_weight")
READ = "information"  # what a tool gave back, between its tags
_TAG = re.compile(r"<(/?)(think|search|answer|information)>")


class Piece(NamedTuple):
    """Neighbouring text of one kind: `written` by the policy in turn `turn`, or only read (turn 0).

    `first` and `end` count tokens where the tokens are known, else characters.
    """

    kind: str
    written: bool
    turn: int
    first: int
    end: int


class Side(NamedTuple):
    """An episode in one epoch: its row (name, step, answer, success), its turns, its tokens if they were
    kept, its text if that was kept.
    """

    row: Row
    turns: Sequence[Row]
    tokens: Row | None
    missing: str = ""  # says for which epochs alone its tokens have figures
    epoch: int | None = None
    epochs: Sequence[int] = ()  # of all its turns
    text: Row | None = None
    noted: Mapping[int, str] = MappingProxyType({})  # token -> what people wrote about it

    @property
    def written(self) -> dict[int, str]:
        """What the policy wrote in each turn; nothing where neither tokens nor text were kept."""
        turns: dict[int, str] = defaultdict(str)
        if self.tokens is not None and self.tokens["trained"] is not None:
            texts = texts_of(self.tokens)
            for piece in pieces(texts, self.tokens["trained"], self.tokens["turn_index"]):
                if piece.written:
                    turns[piece.turn] += "".join(texts[piece.first : piece.end])
        elif self.text is not None:
            for piece in text_pieces(self.text):
                if piece.written:
                    turns[piece.turn] += self.text["text"][piece.first : piece.end]
        return dict(turns)


def side_of(store: Store, run: str, row: Row, epoch: int | None = None) -> Side:
    """Return an episode of a run in `epoch`, by default in that in which it had most of the gradient."""
    place = {"run": run, "step": row["step"], "trajectory": row["trajectory"]}
    turns = store.records("ledger", **place)
    tokens = next(iter(store.records("tokens", **place)), None)
    text = next(iter(store.records("transcript", **place)), None)
    epochs = sorted({turn["epoch"] for turn in turns})
    epoch = worst_epoch(turns, tokens) if epoch is None else epoch
    now = [turn for turn in turns if turn["epoch"] == epoch]
    figures, missing = in_epoch(tokens, epoch, max(epochs, default=None)) if tokens else (None, "")
    return Side(row, now, figures, missing, epoch, epochs, text)


def in_epoch(row: Row, epoch: int | None, last: int | None) -> tuple[Row, str]:
    """Return a row of table `token` with the figures of one epoch (None: not recorded), and a sentence where
    none are.

    `last` is the last epoch of the ledger. Without one (None) the figures are of the worst epoch, else of the
    last. Log-probs of the new policy and entropies are always of the last epoch, the only one that has them:
    `last_epoch` says which that is where another is shown.
    """
    if epoch == last:
        return row, ""
    heavy = row.get("worst_epoch")
    other = {"last_epoch": "last epoch" if last is None else f"epoch {last}"}
    if heavy is not None and epoch == heavy:
        return {**row, **{name: row[f"worst_{name}"] for name in _FIGURES}, **other}, ""
    also = "" if heavy in (None, last) else f"{heavy} (largest gradient) and "
    missing = (
        f"Ratio, clip and gradient weight of the tokens were recorded in epoch {also}{last} (last), not in"
        f" {epoch}."
    )
    return {**row, **dict.fromkeys(_FIGURES), **other}, missing


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
    return largest({i: weight for i, weight in weights if entry(row.get("trained"), i)})


def entry(values: Sequence[Any] | None, i: int) -> Any:
    """Return entry `i` of a list that may be missing or too short; None where it has none."""
    return values[i] if values is not None and i < len(values) else None


# Texts in pieces.


def texts_of(row: Row, most: int | None = None) -> list[str]:
    """Return one text a token of a row of table `token`, of the first `most`: its id where a run has none."""
    return spelled((row["token"] or [f"{one} " for one in row["token_id"] or ()])[:most])


def pieces(
    texts: Sequence[str], trained: Sequence[bool] | None, turn_index: Sequence[int] | None
) -> list[Piece]:
    """Split tokens into prompt and information (both only read), and think, search, answer, text of each
    turn.
    """
    if trained is None:
        return [Piece("text", False, 0, 0, len(texts))]
    turns = [(entry(turn_index, i) or 0) if entry(trained, i) else None for i in range(len(texts))]
    found = list[Piece]()
    end = 0
    for turn, same in groupby(turns):  # None: only read
        first = end
        end = end + len(list(same))
        if turn is None:
            kind = READ if any(piece.written for piece in found) else "prompt"
            found.append(Piece(kind, False, 0, first, end))
            continue
        for kind, part in groupby(_kinds(texts[first:end])):
            found.append(Piece(kind, True, turn, first, first + len(list(part))))
            first = found[-1].end
    return found


def text_pieces(row: Row) -> list[Piece]:
    """Split a row of table `transcript` as `pieces` splits tokens; `first` and `end` count characters."""
    text = row["text"] or ""
    starts = [start for start in row["part_start"] or () if 0 <= start <= len(text)]
    if not starts:
        return [Piece("text", False, 0, 0, len(text))]
    found = list[Piece]()
    for (first, end), turn in zip(pairwise([*starts, len(text)]), row["part_turn"] or (), strict=False):
        if turn:
            found += [Piece(kind, True, turn, first + a, first + b) for kind, a, b in _spans(text[first:end])]
            continue
        kind = READ if any(piece.written for piece in found) else "prompt"
        found.append(Piece(kind, False, 0, first, end))
    return found


def _kinds(texts: Sequence[str]) -> list[str]:
    """Return the kind of each token. A tag counts even where a token holds half of it."""
    marks = _marks("".join(texts))
    begins = [end - len(text.lstrip()) for end, text in zip(accumulate(map(len, texts)), texts, strict=True)]
    places = [place for place, _ in marks]
    return [marks[bisect_right(places, begin) - 1][1] for begin in begins]


def _spans(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield kind, first character and one past the last of each part of what the policy wrote in a turn."""
    marks = _marks(text)
    for (first, kind), (end, _) in pairwise([*marks, (len(text), "")]):
        if text[first:end].strip():
            yield kind, first, end


def _marks(text: str) -> list[tuple[int, str]]:
    """Return where each kind of text begins. A tag without its end goes on to the next tag."""
    marks = [(0, "text")]
    opened = ""
    for found in _TAG.finditer(text):
        if not found[1] or found[2] == opened:
            opened = "" if found[1] else found[2]
            marks.append((found.end(), "text") if found[1] else (found.start(), opened))
    return marks
