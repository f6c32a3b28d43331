"""Glossary: every diagnostic and every algorithm, with unit, formula, source, alarm and what differs."""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from markupsafe import Markup

from sorl.algorithms import ALGORITHMS, ALIASES, SYMBOLS, differences
from sorl.app import export
from sorl.app.figures import common
from sorl.app.page import address, anchor, answer, look, note, screen
from sorl.app.queries import LEVELS, Diagnostics, Store, dictionary
from sorl.app.text import html_text, percent, table_html, tag
from sorl.app.theme import Palette
from sorl.app.url import choose, search_box
from sorl.collapse.describe import describe_rule
from sorl.collapse.rule import Drop, judge
from sorl.measures.declare import SYMBOLS as NOTATION
from sorl.objective import KINDS, Algorithm, Slot
from sorl.spec import CollapseSettings

T = TypeVar("T")

_PARTS = {
    "diagnostics": "Diagnostics",
    "algorithms": "Algorithms",
    "slots": "Slots",
    "collapse": "Collapse rule",
}
_ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")


class _Option(NamedTuple):
    """What an algorithm may choose for a slot."""

    slot: str
    kind: Slot  # with its defaults

    @property
    def text(self) -> str:
        """Everything that a search looks at besides the name."""
        return f"{self.slot} {self.kind.options()} {_meaning(self.kind)}"


def _every_option() -> list[_Option]:
    options = []
    for slot, kinds in KINDS.items():
        options += [_Option(slot, kind()) for kind in kinds.values()]
    return options


@screen
def glossary(store: Store) -> None:
    """What a word, a column or an algorithm means, and where that comes from."""
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    with left:
        asked = search_box("find", "Search", "grad_norm, KL, arXiv 2511.20718, nats, ...")
    matches: dict[str, list[Any]] = {
        "diagnostics": search(entries(dictionary(store)), asked, lambda rows: rows[0]["name"], entry_text),
        "algorithms": search(ALGORITHMS.values(), asked, lambda a: a.name, algorithm_text),
        "slots": search(_every_option(), asked, lambda option: option.kind.kind, lambda option: option.text),
    }
    counts = {part: f" {len(rows)}" if asked else "" for part, rows in matches.items()}
    with right:
        names = {part: words + counts.get(part, "") for part, words in _PARTS.items()}
        part = choose("part", "Part", names, kind="row")
    if part == "collapse":
        _rule()
    elif not matches[part]:
        note(f"Nothing here matches '{asked}'.")
    elif part == "diagnostics":
        _diagnostics(matches[part])
    elif part == "algorithms":
        for algorithm in matches[part]:
            _algorithm(algorithm)
        note(SYMBOLS)
    else:
        _slots(matches[part])


def _diagnostics(matches: Iterable[Sequence[Mapping[str, Any]]]) -> None:
    """Show diagnostics, with the notation of their formulas next to them."""
    wide, narrow = st.columns([5, 3], gap="large")
    with wide:
        note("Each diagnostic with its unit and the tables that hold it as a column of its name.")
        st.html(Markup("").join(map(_diagnostic, matches)))
    with narrow, st.container(key="notation"):
        letters = ((tag("span", formula_html(a), css="sorl-formula"), formula_html(b)) for a, b in NOTATION)
        st.html(tag("p", tag("b", "Notation"), css="sorl-term"))
        cells = (tag("span", cell) for cell in chain.from_iterable(letters))
        st.html(tag("div", *cells, css="sorl-symbols"))
        note("A column that was not measured is NULL, never 0; NaN and Inf are stored as themselves.")


def _slots(options: Iterable[_Option]) -> None:
    """Show a table a slot, a row a kind."""
    note(
        "An algorithm is a choice for each slot. Any slot can be set in a grid file: "
        'algorithm = { base = "ppo", ratio = { level = "turn" } }.'
    )
    rows: dict[str, list[Sequence[object]]] = defaultdict(list)
    for slot, kind in options:
        defaults = ", ".join(kind.options()) or "no options"
        rows[slot].append((tag("code", kind.kind), defaults, _definition(kind)))
    for slot, kinds in rows.items():
        st.html(tag("p", tag("b", slot), css="sorl-term"))
        st.html(table_html(["kind", "options and defaults", "definition"], kinds, "sorl-kinds"))


def _definition(kind: Slot) -> Markup:
    """The docstring of a kind, whose names stand between backticks."""
    words = enumerate(_meaning(kind).split("`"))
    return tag("span", *(tag("code", word) if place % 2 else word for place, word in words))


# Success of 64 rollouts a step: it learns, holds, and falls.
_EXAMPLE = (
    0.30,
    0.34,
    0.42,
    0.41,
    0.50,
    0.53,
    0.58,
    0.55,
    0.61,
    0.59,
    0.62,
    0.58,
    0.61,
    0.60,
    0.63,
    0.59,
    0.62,
    0.60,
    0.58,
    0.61,
    0.62,
    0.60,
    0.44,
    0.36,
    0.22,
    0.16,
    0.12,
    0.14,
    0.09,
    0.11,
    0.12,
    0.10,
)


def _rule() -> None:
    (fall,) = judge(_EXAMPLE, episodes=64).drops
    first, last = fall.best_steps or (0, 0)
    wide, narrow = st.columns([3, 2], gap="large")
    with wide:
        rows = pd.DataFrame({"step": range(len(_EXAMPLE)), "success": _EXAMPLE})
        words = (
            "A run that the rule calls collapsed: its success, its best window, the onset and the detection."
        )
        export.figure(rule_picture(fall, look()), "rule", rows, describe=words)
    with narrow:
        answer(
            f"Best: the window whose mean is surely high, here steps {first} to {last} with {fall.best:.2f}."
            " One lucky step is no best."
        )
        answer(
            f"Detection ✖, here step {fall.detection}: the first step at which chance no longer explains the"
            f" loss, and the mean since the fall ({fall.level:.2f}) is at most half of the best. One bad step"
            " is no collapse."
        )
        answer(
            f"Onset ▼, here step {fall.onset}: the last step before the fall, found afterwards from both"
            f" sides of it, with its 95 % interval ({fall.onset_low} to {fall.onset_high})."
        )
        answer(
            "A run that came back is recovered; one whose fall is too late to be called is falling at the"
            " end."
        )
    with st.expander("The whole rule, its settings and their reasons"):
        st.markdown(describe_rule(), width=1000)


def rule_picture(fall: Drop, palette: Palette) -> go.Figure:
    """Draw the example of the rule with what the rule says of it."""
    red = palette.outcomes["collapsed"]
    blue = palette.outcomes["healthy"]
    steps = list(range(len(_EXAMPLE)))
    first, last = fall.best_steps or (0, 0)
    half = CollapseSettings().severe
    interval = common.whiskers([fall.onset_high - fall.onset], [fall.onset - fall.onset_low], red)
    lines = [
        common.line(
            steps, _EXAMPLE, palette.text, 2, "step %{x}: %{y:.2f}", mode="lines+markers", name="success"
        ),
        common.line(
            [first, last],
            [fall.best] * 2,
            blue,
            6,
            f"best window: mean {fall.best:.2f}",
            name="best window",
            opacity=0.6,
        ),
        common.line(
            [first, steps[-1]],
            [(1 - half) * fall.best] * 2,
            blue,
            1.5,
            dash="dash",
            name=f"{percent(1 - half)} of the best",
        ),
        common.marks(
            [fall.onset],
            [0.72],
            "triangle-down",
            11,
            red,
            f"onset: step {fall.onset}",
            error_x=interval,
            name="onset, 95 % interval",
        ),
        common.marks(
            [fall.detection], [0.72], "x", 11, red, f"detection: step {fall.detection}", name="detection"
        ),
    ]
    return common.figure(
        lines,
        palette,
        inner=240,
        top=60,
        bottom=48,
        yaxis=common.axis("success", range=[0, 0.8]),
        xaxis=common.axis(common.AXES["step"]),
        **common.legend_on_top(),
    )


def search(every: Iterable[T], asked: str, name: Callable[[T], str], text: Callable[[T], str]) -> list[T]:
    """Return what holds every word of `asked`: the name itself first, then names like it, then texts that
    hold them.
    """
    words = asked.lower().split()
    whole = " ".join(words)

    def rank(thing: T) -> int:
        title = name(thing).lower()
        everything = f"{name(thing)} {text(thing)}".lower()
        in_title = _has_words(title, words)
        in_text = _has_words(everything, words)
        return (title == whole or not words, title.startswith(whole), in_title, in_text, True).index(True)

    ranked = sorted(((rank(thing), thing) for thing in every), key=lambda pair: pair[0])
    return [thing for place, thing in ranked if place < 4]


def entries(known: Diagnostics) -> list[list[Mapping[str, Any]]]:
    """Return the rows of the dictionary by name, those of one name, unit, description and source together."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in sorted(known.by_level(), key=lambda row: str(row["name"])):
        groups[tuple(row[name] for name in ("name", "unit", "description", "source"))].append(row)
    return list(groups.values())


def entry_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return everything that a search looks at besides the name."""
    columns = ("unit", "description", "source", "table_name", "formula", "alarm")
    cells = chain.from_iterable(map(row.__getitem__, columns) for row in rows)
    return " ".join(str(cell) for cell in cells if cell)


def _diagnostic(rows: Sequence[Mapping[str, Any]]) -> Markup:
    tables = (
        tag(
            "span", row["table_name"], title=f"one row per {LEVELS.get(row['table_name'], row['table_name'])}"
        )
        for row in rows
    )
    name = anchor(rows[0]["name"], address("glossary", part="diagnostics", find=rows[0]["name"]))
    lines = [tag("p", name, tag("i", rows[0]["unit"] or ""), *tables, css="sorl-term")]
    lines.append(tag("p", rows[0]["description"] or ""))
    formulas: dict[str, list[str]] = defaultdict(list)  # formula -> the tables that share it
    for row in rows:
        formulas[row["formula"] or ""].append(row["table_name"])
    for formula, where in formulas.items():
        label = tag("span", ", ".join(where)) if len(formulas) > 1 else ""
        lines.append(tag("p", label, formula_html(formula), css="sorl-formula"))
    lines += [
        tag("p", tag("b", "Alarm"), f" on {row['table_name']}: {row['alarm']}", css="sorl-alarm")
        for row in rows
        if row["alarm"]
    ]
    parts: list[object] = list(_ARXIV.split(rows[0]["source"] or ""))
    parts[1::2] = [_outside(f"https://arxiv.org/abs/{part}", f"arXiv {part}") for part in parts[1::2]]
    return tag("div", *lines, tag("p", "Source: ", *parts, css="sorl-note"), css="sorl-entry")


def _outside(where: str, words: str) -> Markup:
    return tag("a", words, href=where, rel="noopener noreferrer", target="_blank")


def _names(algorithm: Algorithm) -> list[str]:
    return [algorithm.name, *(alias for alias, name in ALIASES.items() if name == algorithm.name)]


def algorithm_text(algorithm: Algorithm) -> str:
    """Return everything that a search looks at besides the name."""
    slots = []
    for slot in KINDS:
        choice = getattr(algorithm, slot)
        slots.append(" ".join([slot, choice.kind, *choice.options()]))
    return " ".join([algorithm.title, algorithm.summary, *_names(algorithm), algorithm.paper, *slots])


def _algorithm(algorithm: Algorithm) -> None:
    """Show an algorithm, its formula, and its choice for each slot."""
    base = ALGORITHMS.get(algorithm.differs_from or "")
    changed = differences(base, algorithm) if base else {}
    where = f"Differs from {base.name} in {' and '.join(changed)}." if base else ""
    paper = tag("p", _outside(algorithm.paper, algorithm.paper), css="sorl-note")
    rows = [(tag("b", slot), _choice(ours), _choice(theirs)) for slot, (theirs, ours) in changed.items()]
    rows += [
        (html_text(slot), _choice(getattr(algorithm, slot)), Markup(""))
        for slot in KINDS
        if slot not in changed
    ]
    left, right = st.columns([6, 5], gap="large")
    with left:
        summary = tag("p", f"{algorithm.summary} {where}")
        st.html(tag("div", _algorithm_title(algorithm), summary, paper, css="sorl-entry"))
        st.latex(algorithm.formula)
    with right:
        st.html(table_html(["slot", "choice", f"in {base.name}" if base else ""], rows, "sorl-slots"))


def _algorithm_title(algorithm: Algorithm) -> Markup:
    """The title of an algorithm with its names, and what it needs."""
    critic = "with a critic" if algorithm.critic else "no critic"
    size = algorithm.group_size
    rollouts = f"{size} rollouts a prompt" if size > 1 else "one rollout a prompt"
    title = anchor(algorithm.title, address("glossary", part="algorithms", find=algorithm.name))
    words = (", ".join(_names(algorithm)), critic, rollouts)
    return tag("p", title, *(tag("span", word) for word in words), css="sorl-term")


def _choice(kind: Slot) -> Markup:
    """The kind of a slot, which opens its definition, with its options."""
    link = tag("code", anchor(kind.kind, address("glossary", part="slots", find=kind.kind)))
    return tag("span", link, f" {', '.join(kind.options())}")


def _meaning(kind: Slot) -> str:
    return " ".join((inspect.getdoc(kind) or "").split())


# Formulas of the dictionary, plain text, set as mathematics.

_GREEK = {
    "delta": "δ",
    "eps": "ε",
    "rho": "ρ",
    "beta": "β",
    "gamma": "γ",
    "lambda": "λ",
    "sigma": "σ",
    "tau": "τ",
}
_SIGNS = {
    "+-": "±",
    "<=": "≤",
    ">=": "≥",
    "!=": "≠",
    "||": "∥",
    "<": "⟨",
    ">": "⟩",
    "-": "−",
    "grad log pi": "∇ log π",
}
# In order: what has a sign of its own, the brackets of a mean (tight, and closed by a subscript: a comparison
# has spaces around it), a number, a name with its subscripts, an exponent, a subscript behind a bracket, a
# minus, the rest.
_FORMULA = re.compile(
    r"(?P<sign>\+-|<=|>=|!=|\|\||grad log pi)|(?P<open><(?=\S)(?=.*>_))|(?P<close>>(?=_))"
    r"|(?P<number>\d[\d.]*(?:e-?\d+)?)|(?P<name>[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*)"
    r"|\^(?P<exponent>[A-Za-z0-9]+)|(?<=[>|)])_(?P<under>[A-Za-z0-9]+)|(?P<minus>(?<=[ <(])-)|(?P<other>.)",
    re.DOTALL,
)


def formula_html(formula: str) -> Markup:
    """Set a formula as HTML with i, sub and sup elements and no other; text that is no formula stays as it
    is.
    """

    def piece(part: re.Match[str]) -> str:
        text = part.group()
        match part.lastgroup:
            case "sign" | "open" | "close" | "minus":
                return html_text(_SIGNS[text])
            case "exponent":
                return tag("sup", _letter(part["exponent"]))
            case "under":
                return tag("sub", _letter(part["under"]))
            # a letter with one subscript is set so; a longer name with underscores is a column and stays
            case "name":
                base, *under = text.split("_")
                after = formula[part.start() - 1 : part.start()]
                # the article, the critic's
                a_word = (text == "a" and after == " ") or (text == "s" and after == "'")
                if not a_word and len(under) < 2 and (len(base) == 1 or base in _GREEK):
                    return _letter(base) + Markup("").join(tag("sub", _letter(word)) for word in under)
        return html_text(text)

    return Markup(_FORMULA.sub(piece, formula))


def _letter(word: str) -> Markup:
    word = _GREEK.get(word, word)
    # a variable is in italics
    return tag("i", word) if len(word) == 1 and word.isalpha() else html_text(word)


def _has_words(text: str, words: Sequence[str]) -> bool:
    return all(word in text for word in words)
