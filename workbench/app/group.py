"""The rollouts of a prompt side by side: what all begin with once, then each from where they part."""

from collections.abc import Sequence

from markupsafe import Markup

from sorl.app.data import Row
from sorl.app.episode_data import Piece, text_pieces
from sorl.app.page import anchor, episode_address
from sorl.app.sentences.episode import answered
from sorl.app.text import html_text, number, tag
from sorl.app.transcript import part_html
from sorl.diagnosis.standing import counted

MOST = 8  # rollouts side by side
_CHARACTERS = 12_000  # of one rollout that are shown


def choose_rows(rows: Sequence[Row], chosen: int) -> list[Row]:
    """Return up to MOST rollouts with text: the chosen one first, then those with most of the gradient."""

    def order(row: Row) -> tuple[bool, float]:
        return row["trajectory"] != chosen, -abs(row["gradient_share"] or 0.0)

    return sorted((row for row in rows if row["text"]), key=order)[:MOST]


def common_length(texts: Sequence[str]) -> int:
    """Return how many characters all texts begin with, cut behind a whole word; all where all are alike."""
    first = min(texts)
    last = max(texts)  # in the order of words, these two have least in common
    if first == last:
        return len(first)
    pairs = enumerate(zip(first, last, strict=False))
    length = next((place for place, (one, other) in pairs if one != other), min(len(first), len(last)))
    return max((place + 1 for place, sign in enumerate(first[:length]) if sign.isspace()), default=0)


def describe_group(rows: Sequence[Row], columns: Sequence[Row]) -> str:
    """Say how many rollouts of the prompt there are, what they were rewarded with, and where those in
    `columns` part.
    """
    said = [f"{counted(len(rows), 'rollout')} of this prompt{_rewards(rows)}"]
    if len(columns) < len(rows):
        without = sum(not row["text"] for row in rows)
        more = f"; the text of {without} was not kept" if without else ""
        said.append(f"{len(columns)} are shown: the chosen one and those with most of the gradient{more}")
    if len(columns) > 1:
        said.append(_parting(columns))
    return f"{'. '.join(said)}."


def _rewards(rows: Sequence[Row]) -> str:
    """Say what the rollouts were rewarded with, as far as it is known."""
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    if not rewards:
        return ""
    low = min(rewards)
    high = max(rewards)
    if low < high:
        return f", with reward {number(low)} to {number(high)}"
    no_signal = ": all alike, so a group-relative advantage is 0" if len(rewards) > 1 else ""
    return f", with reward {number(low)}{no_signal}"


def _parting(shown: Sequence[Row]) -> str:
    """Say in which turn the rollouts that are shown first differ."""
    length = common_length([row["text"] for row in shown])
    if all(len(row["text"]) == length for row in shown):
        return "All wrote the same"
    turns = {_turn_at(row, length) for row in shown} - {0}
    if not turns:
        return "They differ before the policy wrote anything"
    return f"They first differ in turn {min(turns)}"


def _turn_at(row: Row, place: int) -> int:
    """Return the turn in which the policy wrote the character at `place`, or the next; 0 of none."""
    later = (piece.turn for piece in text_pieces(row) if piece.written and piece.end > place)
    return next(later, 0)


def group_html(rollouts: Sequence[Row], chosen: int, place: dict[str, str]) -> Markup:
    """Build the rollouts as HTML: what they share, then a column each; `place` names their run and step."""
    shared = common_length([row["text"] for row in rollouts]) if len(rollouts) > 1 else 0
    first = rollouts[0]
    common = _parts(first, 0, shared)
    columns = [
        tag(
            "div",
            _head(row, row["trajectory"] == chosen, place),
            *_parts(row, shared, _CHARACTERS + shared),
            css="sorl-column",
        )
        for row in rollouts
    ]
    beginning = tag("div", tag("div", tag("b", "All begin with"), css="sorl-turn"), *common) if common else ""
    wide = tag("div", *columns, css="sorl-columns-wide", tabindex="0")
    # the words that say that they scroll stand between the beginning and the columns
    return tag("div", beginning, tag("div", wide, css="sorl-sideways"), css="sorl-transcript")


def _head(row: Row, is_chosen: bool, place: dict[str, str]) -> Markup:
    name = f"trajectory {row['trajectory']}"
    title = (
        tag("b", name)
        if is_chosen
        else anchor(name, episode_address(**place, trajectory=str(row["trajectory"])))
    )
    told = [f"{words} {number(row[words])}" for words in ("reward", "advantage") if row[words] is not None]
    share = row["gradient_share"]
    told += [] if share is None else [f"{100 * share:.0f} % of the step's gradient"]
    facts = [tag("div", words) for words in (*told, answered(row))]
    return tag("div", title, *facts, css="sorl-head")


def _parts(row: Row, first: int, end: int) -> list[Markup]:
    """Build the parts of a rollout between two characters; a heading where a turn begins."""
    found: list[Markup] = []
    turn = 0
    for piece in text_pieces(row):
        start = max(piece.first, first)
        stop = min(piece.end, end)
        said = row["text"][start:stop].strip()
        if start >= stop or not said:
            continue
        if piece.turn and piece.turn != turn:
            turn = piece.turn
            found.append(tag("div", tag("b", f"turn {turn}"), css="sorl-turn"))
        found.append(part_html(Piece(piece.kind, piece.written, piece.turn, start, stop), [html_text(said)]))
    if len(row["text"]) > end > _CHARACTERS:
        found.append(tag("p", f"The first {end:,} of {len(row['text']):,} characters.", css="sorl-note"))
    return found
