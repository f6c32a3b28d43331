"""A conversation as HTML: turn by turn, each trained token tinted, what was only read kept apart."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from markupsafe import Markup

from sorl.app import theme
from sorl.app.data import Row
from sorl.app.episode_data import READ, Piece, Side, entry, heaviest, largest, pieces, text_pieces, texts_of
from sorl.app.overlay import Scale
from sorl.app.queries import Diagnostics
from sorl.app.sentences.episode import quoted
from sorl.app.text import html_text, number, percent, table_html, tag, word
from sorl.app.theme import Palette

MOST = 6_000  # tokens that are shown: more would make a browser wait
MOST_CHARACTERS = 60_000  # of a text without tokens
LONGEST = 500  # characters of a token: no vocabulary has longer ones, a broken log may
_TOLD = ("log_prob", "log_prob_old", "log_prob_behaviour", "entropy", "advantage", "value", "gradient_weight")

# One token takes the focus of the Tab key, the arrow keys pass it on: a thousand stops would be none.
KEYS = """
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


# The turns of an episode as a table: a column a turn, a row a measured column of the turn ledger.

# Its columns in the order in which they are read; others follow.
_TURN_ROWS = (
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
    declared = {row["name"]: row for row in known.rows.values() if row["table_name"] == "turn"}
    shares = largest({i: turn.get("gradient_share") for i, turn in enumerate(turns)})
    top = turns[shares.key] if shares else None
    lines = []
    for name in sorted(declared, key=_place_in_table):
        values = [turn.get(name) for turn in turns]
        if any(value is not None for value in values):
            row = declared[name]
            cells = [_turn_cell(value, row["unit"]) for value in values]
            bold = [tag("b", cell) if turn is top else cell for cell, turn in zip(cells, turns, strict=True)]
            lines.append([_row_name(known.title(f"turn.{name}"), row), *bold])
    head = [f"turn {turn['turn_index']}" if turn is top else f"{turn['turn_index']}" for turn in turns]
    return table_html(["", *head], lines, "sorl-turns")


def _place_in_table(name: str) -> int:
    return _TURN_ROWS.index(name) if name in _TURN_ROWS else len(_TURN_ROWS)


def _turn_cell(value: Any, unit: str) -> Markup:
    text = html_text(shown_value(value, unit))
    is_broken = isinstance(value, float) and not math.isfinite(value)
    return tag("span", text, css="sorl-broken") if is_broken else text


def _row_name(title: str, row: Row) -> Markup:
    """Name a row of the table, with its unit and, as a tip, its definition."""
    has_unit = row["unit"] in ("nats", "s", "reward")
    unit = tag("span", f" {row['unit']}", css="sorl-unit") if has_unit else ""
    tip = f"{row['name']}: {row['formula']} — {row['description']}"
    return tag("span", title, unit, title=tip, tabindex="0")


def shown_value(value: Any, unit: str) -> str:
    """Write a figure of a turn: a fraction in percent, NULL as a dash, NaN and Inf as themselves."""
    if isinstance(value, (str, bool)):
        return word(value)
    return (
        percent(value) if unit == "fraction" and value is not None and math.isfinite(value) else number(value)
    )


def turn_strip(turns: Sequence[Row], palette: Palette) -> Markup:
    """Build a strip of the turns of one epoch, which lead to them: tinted by their geometric ratio."""
    chips = []
    for turn in turns:
        ratio = turn.get("ratio_geo")
        colours = theme.tint(math.log(ratio), palette) if ratio is not None and ratio > 0 else None
        style = f"background:{colours[0]};color:{colours[1]}" if colours else ""
        name = tag("b", f"turn {turn['turn_index']}")
        figures = [tag("span", words) for words in _figures_of(turn)]
        chips.append(tag("a", name, *figures, href=f"#turn-{turn['turn_index']}", style=style))
    return tag("div", *chips, css="sorl-strip") if chips else Markup()


def _figures_of(turn: Row) -> list[str]:
    """Write what a turn did, its ratio, share of clipped tokens and advantage, as far as they are known."""
    told = [word(turn["status"])] if turn.get("status") is not None else []
    for column, words in (("ratio_geo", "ratio"), ("clip_frac", "clipped"), ("advantage", "advantage")):
        value = turn.get(column)
        if value is not None:
            told.append(f"{words} {shown_value(value, 'fraction' if column == 'clip_frac' else '')}")
    return told


# The transcript: one episode, or two side by side.


def transcript(sides: Sequence[Side], scale: Scale) -> Markup:
    """Build one episode as HTML, or two, turn by turn; of one without text only what its turns did."""
    names = ["Turn"] if len(sides) == 1 else [f"{side.row['name']}, turn" for side in sides]
    columns = [blocks(side, scale, name) for side, name in zip(sides, names, strict=True)]
    cells = []
    for turn in sorted(set().union(*columns)):
        for column in columns:
            place = f"turn-{turn}" if column is columns[0] else ""
            cells.append(tag("div", *column.get(turn, ()), id=place))
    return tag("div", *cells, css="sorl-transcript sorl-pair" if len(sides) > 1 else "sorl-transcript")


def blocks(side: Side, scale: Scale, name: str) -> dict[int, list[Markup]]:
    """Build each turn as HTML, the prompt as turn 0; without tokens from its text, else only headings."""
    known = {turn["turn_index"]: turn for turn in side.turns}
    if side.tokens is not None:
        return _token_blocks(side, side.tokens, scale, name, known)
    if side.text is not None:
        return _text_blocks(side.text, name, known)
    note = tag("p", f"The text of {side.row['name']} was not kept.", css="sorl-note")
    return {0: [note]} | {turn: [heading(name, turn, known)] for turn in known}


def _token_blocks(
    side: Side, row: Row, scale: Scale, name: str, known: Mapping[int, Row]
) -> dict[int, list[Markup]]:
    texts = texts_of(row, MOST)
    draw = _TokenWriter.of(row, texts, scale, side.noted)
    parts: dict[int, list[Markup]] = defaultdict(list)
    turn = 0
    for piece in pieces(texts, row["trained"], row["turn_index"]):
        if piece.turn and piece.turn != turn:
            turn = piece.turn
            parts[turn].append(heading(name, turn, known))
        if piece.written:
            body = [draw.token(i) for i in range(piece.first, piece.end)]
        else:
            body = [html_text("".join(texts[piece.first : piece.end]).strip())]
        parts[turn].append(part_html(piece, body))
    count = len(row["token_id"] or row["token"] or [])
    if count > MOST:
        parts[turn].append(tag("p", f"The first {MOST:,} of {count:,} tokens.", css="sorl-note"))
    return parts


class _TokenWriter(NamedTuple):
    """Writes the tokens of a row as HTML."""

    row: Row
    texts: Sequence[str]
    values: Sequence[float | None]  # by which they are tinted
    scale: Scale
    boxed: int | None  # the token that stands out by its gradient
    first: int | None  # the one that the Tab key leads to
    noted: Mapping[int, str]  # token -> what people wrote about it

    @classmethod
    def of(cls, row: Row, texts: Sequence[str], scale: Scale, noted: Mapping[int, str]) -> Self:
        """Return the writer of the first tokens of a row."""
        top = heaviest(row)
        written = (i for i in range(len(texts)) if entry(row["trained"], i))
        is_among = top is not None and top.key < len(texts)
        first = top.key if top is not None and is_among else next(written, None)
        boxed = top.key if top is not None and top.stands_out else None
        return cls(row, texts, scale.overlay.values(row), scale, boxed, first, noted)

    def token(self, i: int) -> Markup:
        """Build token `i`."""
        colours = self.scale.tint(entry(self.values, i))
        remark = self.noted.get(i, "")
        return _token(i, self.texts[i], self.row, colours, i == self.boxed, i == self.first, remark)


def _text_blocks(row: Row, name: str, known: Mapping[int, Row]) -> dict[int, list[Markup]]:
    text = row["text"]
    parts: dict[int, list[Markup]] = defaultdict(list)
    turn = 0
    for piece in text_pieces(row):
        if piece.first >= MOST_CHARACTERS:
            words = f"The first {MOST_CHARACTERS:,} of {len(text):,} characters."
            parts[turn].append(tag("p", words, css="sorl-note"))
            break
        if piece.turn and piece.turn != turn:
            turn = piece.turn
            parts[turn].append(heading(name, turn, known))
        shown = text[piece.first : min(piece.end, MOST_CHARACTERS)].strip()
        parts[turn].append(part_html(piece, [html_text(shown)]))
    return parts


def part_html(piece: Piece, body: Sequence[Markup]) -> Markup:
    """Build a part of a conversation: who speaks and how, and what is said."""
    kind = "tool result" if piece.kind == READ else piece.kind
    if piece.written and piece.kind == READ:
        kind = f"{kind}, made up"
    about: list[object] = [kind] if piece.written else [kind, tag("div", "no gradient")]
    inside = tag("div", *about, css="sorl-kind"), tag("div", *body, css="sorl-said")
    return tag("div", *inside, css=f"sorl-part sorl-{'written' if piece.written else 'read'}")


def heading(name: str, turn: int, known: Mapping[int, Row]) -> Markup:
    """Build the heading of a turn: what it did, its ratio, clip and advantage, its share of the gradient."""
    row = known.get(turn)
    said = ""
    if row is not None:
        figures = _figures_of(row)
        share = row["gradient_share"]
        figures.append(
            f"epoch {row['epoch']}"
            if share is None
            else f"{shown_value(share, 'fraction')} of that update's gradient (epoch {row['epoch']})"
        )
        said = "".join(f" · {figure}" for figure in figures)
    return tag("div", tag("b", f"{name} {turn}"), said, css="sorl-turn")


def _token(
    i: int, text: str, row: Row, colours: tuple[str, str] | None, heaviest: bool, first: bool, remark: str
) -> Markup:
    said = text.lstrip(" ") if text.strip() else text
    more = f" … and {len(said) - LONGEST:,} characters" if len(said) > LONGEST else ""
    shown = (said[:LONGEST].replace("\n", "↵\n") or "∅") + more
    log_ratio = entry(row.get("log_ratio"), i)
    broken = log_ratio is not None and not math.isfinite(log_ratio)
    marks = (
        ("clipped", entry(row.get("clipped"), i)),
        ("heaviest", heaviest),
        ("broken", broken),
        ("noted", bool(remark)),
    )
    lines = [quoted(shown), tooltip(i, row), *([f"note: {remark}"] if remark else [])]
    return html_text(text[: len(text) - len(said)]) + tag(
        "span",
        shown,
        css=" ".join(["sorl-token", *(f"sorl-{name}" for name, is_on in marks if is_on)]),
        role="note",
        tabindex="0" if first else "-1",
        aria_label="\n".join(lines),
        style=f"background:{colours[0]};color:{colours[1]}" if colours else "",
    )


def tooltip(i: int, row: Row) -> str:
    """Write the numbers of a token in lines; a dash for what was not measured."""
    log_ratio = entry(row.get("log_ratio"), i)
    ratio = (
        log_ratio
        if log_ratio is None or math.isnan(log_ratio)
        else math.exp(max(-700.0, min(700.0, log_ratio)))
    )
    told = {name: number(entry(row.get(name), i)) for name in _TOLD}
    identity = word(entry(row.get("token_id"), i))
    last = row.get("last_epoch")
    when = "" if last is None else f" ({last})"
    return "\n".join(
        (
            f"log-ratio {number(log_ratio)} nats, ratio {number(ratio)}",
            (
                f"log-prob new {told['log_prob']}{when}, old {told['log_prob_old']}, behaviour"
                f" {told['log_prob_behaviour']}"
            ),
            f"entropy {told['entropy']} nats{when}, advantage {told['advantage']}",
            f"value {told['value']}, gradient weight {told['gradient_weight']}",
            f"clipped: {word(entry(row.get('clipped'), i))}; token {i}, id {identity}",
        )
    )


def legend(scale: Scale, epoch: int | None) -> Markup:
    """Build the colour scale of the tokens in an epoch (None: the last) and the marks on them, as HTML."""
    named = {
        "clipped": "clipped",
        "heaviest": "largest gradient",
        "broken": "NaN or Inf",
        "noted": "has a note",
    }
    marks = [tag("span", tag("span", words, css=f"sorl-{name}")) for name, words in named.items()]
    title = tag("span", f"tokens: {scale.overlay.title(epoch)}")
    return tag("div", tag("div", title, scale.html()), tag("div", *marks), css="sorl-legend")
