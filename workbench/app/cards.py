"""Entries of the glossary as HTML; every text of the database is escaped."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlencode

from workbench.algorithms import ALGORITHMS, ALIASES, differences
from workbench.app.entries import LEVELS, Entry
from workbench.app.formula import formula_html
from workbench.app.safe import html_text
from workbench.objective import KINDS, Algorithm, Slot

_ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")


def address(entry: str, part: str = "diagnostics") -> str:
    """The address of an entry, relative to the app."""
    return "glossary?" + urlencode({"part": part, "find": entry})


def diagnostic(entry: Entry) -> str:
    """A diagnostic: name, unit, where it is recorded, what it tells, formula, source, alarm and why."""
    formulas = entry.by_formula
    alone = len(formulas) == 1
    tables = "".join(f'<span title="one row per {LEVELS.get(t, t)}">{html_text(t)}</span>' for t in entry.formulas)
    lines = [
        f'<p class="sorl-term"><a href="{html_text(address(entry.name))}">{html_text(entry.name)}</a>'
        f"<i>{html_text(entry.unit or 'no unit')}</i>{tables}</p>",
        f"<p>{html_text(entry.description)}</p>",
    ]
    for where, formula in formulas:
        label = "" if alone else f"<span>{html_text(', '.join(where))}</span>"
        lines.append(f'<p class="sorl-formula">{label}{formula_html(formula)}</p>')
    lines += [
        f'<p class="sorl-alarm"><b>Alarm</b> on {html_text(table)}: {html_text(words)}</p>'
        for table, words in entry.alarms
    ]
    return f'<div class="sorl-entry">{"".join(lines)}<p class="sorl-note">Source: {_source(entry.source)}</p></div>'


def algorithm(one: Algorithm) -> str:
    """An algorithm's slots, those that differ from its base first and marked, with the base's own choice."""
    base = ALGORITHMS.get(one.differs_from or "")
    changed = differences(base, one) if base else {}
    body = "".join(
        f'<tr class="sorl-changed"><td>{slot}</td><td>{_choice(ours)}</td><td>{_choice(theirs)}</td></tr>'
        for slot, (theirs, ours) in changed.items()
    ) + "".join(
        f"<tr><td>{slot}</td><td>{_choice(getattr(one, slot))}</td><td></td></tr>"
        for slot in KINDS
        if slot not in changed
    )
    head = f"<th>in {html_text(base.name)}</th>" if base else "<th></th>"
    return f'<table class="sorl-table sorl-slots"><tr><th>slot</th><th>choice</th>{head}</tr>{body}</table>'


def about(one: Algorithm) -> str:
    """What an algorithm is, in words: its title, names, difference, needs and paper."""
    names = ", ".join([one.name, *(alias for alias, name in ALIASES.items() if name == one.name)])
    base = ALGORITHMS.get(one.differs_from or "")
    where = f"Differs from {base.name} in {' and '.join(differences(base, one))}." if base else ""
    critic = "with a critic" if one.critic else "no critic"
    rollouts = f"{one.group_size} rollouts a prompt" if one.group_size > 1 else "one rollout a prompt"
    paper = _outside(one.paper, one.paper)
    return (
        f'<div class="sorl-entry"><p class="sorl-term"><a href="{html_text(address(one.name, "algorithms"))}">'
        f"{html_text(one.title)}</a><span>{html_text(names)}</span><span>{critic}</span><span>{rollouts}</span></p>"
        f'<p>{html_text(one.summary)} {html_text(where)}</p><p class="sorl-note">{paper}</p></div>'
    )


def definition(choice: Slot) -> str:
    """The docstring of a kind, in one line."""
    return " ".join((inspect.getdoc(choice) or "").split())


def kinds(slot: str, choices: Sequence[Slot]) -> str:
    """The kinds of a slot: what each is called in TOML, its options with their defaults, its definition."""
    body = "".join(
        f"<tr><td><code>{html_text(c.kind)}</code></td><td>{html_text(', '.join(c.options()) or 'no options')}</td>"
        f"<td>{_with_code(definition(c))}</td></tr>"
        for c in choices
    )
    return (
        f'<p class="sorl-term"><b>{html_text(slot)}</b></p><div class="sorl-scroll">'
        '<table class="sorl-table sorl-kinds">'
        f"<tr><th>kind</th><th>options and defaults</th><th>definition</th></tr>{body}</table></div>"
    )


def notation(symbols: Iterable[tuple[str, str]]) -> str:
    """What the letters of the formulas stand for."""
    rows = "".join(
        f'<span class="sorl-formula">{formula_html(symbol)}</span><span>{formula_html(meaning)}</span>'
        for symbol, meaning in symbols
    )
    return f'<div class="sorl-symbols">{rows}</div>'


def _choice(choice: Slot) -> str:
    link = html_text(address(choice.kind, "slots"))
    return f'<a href="{link}"><code>{html_text(choice.kind)}</code></a> {html_text(", ".join(choice.options()))}'


def _with_code(text: str) -> str:
    """A text of a docstring, whose names stand between backticks."""
    parts = text.split("`")
    return "".join(f"<code>{html_text(p)}</code>" if i % 2 else html_text(p) for i, p in enumerate(parts))


def _source(source: str) -> str:
    """A source, with a link where it names a paper on arXiv."""
    parts = _ARXIV.split(source)
    return "".join(
        _outside(f"https://arxiv.org/abs/{part}", f"arXiv {part}") if i % 2 else html_text(part)
        for i, part in enumerate(parts)
    )


def _outside(address: str, words: str) -> str:
    """A link that leaves the app, in a window of its own."""
    return f'<a href="{html_text(address)}" rel="noopener noreferrer" target="_blank">{html_text(words)}</a>'
