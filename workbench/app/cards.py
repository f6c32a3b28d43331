"""Entries of the glossary as HTML; every text of the database is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from workbench.app.entries import LEVELS, Entry
from workbench.app.formula import formula_html
from workbench.app.safe import html_text

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


def algorithm(one: Mapping[str, Any], bases: Mapping[str, Mapping[str, Any]]) -> str:
    """An algorithm's slots, those that differ from its base first and marked, with the base's own choice."""
    changed = set(one["differs_in"])
    base = {s["slot"]: s for s in bases[one["differs_from"]]["slot"]} if one["differs_from"] else {}
    rows = sorted(one["slot"], key=lambda slot: slot["slot"] not in changed)
    body = "".join(
        f"<tr{mark}><td>{html_text(slot['slot'])}</td><td>{_choice(slot)}</td><td>{other}</td></tr>"
        for slot in rows
        for mark, other in [_against(slot, base, changed)]
    )
    head = f"<th>in {html_text(one['differs_from'])}</th>" if base else "<th></th>"
    return f'<table class="sorl-table sorl-slots"><tr><th>slot</th><th>choice</th>{head}</tr>{body}</table>'


def about(one: Mapping[str, Any]) -> str:
    """What an algorithm is, in words: its title, names, difference, needs and paper."""
    names = ", ".join([one["name"], *one["aliases"]])
    where = f"Differs from {one['differs_from']} in {' and '.join(one['differs_in'])}." if one["differs_from"] else ""
    critic = "with a critic" if one["critic"] else "no critic"
    size = one["group_size"]
    rollouts = f"{size} rollouts a prompt" if size > 1 else "one rollout a prompt"
    paper = _outside(one["paper"], one["paper"])
    return (
        f'<div class="sorl-entry"><p class="sorl-term"><a href="{html_text(address(one["name"], "algorithms"))}">'
        f"{html_text(one['title'])}</a><span>{html_text(names)}</span><span>{critic}</span><span>{rollouts}</span></p>"
        f'<p>{html_text(one["description"])} {html_text(where)}</p><p class="sorl-note">{paper}</p></div>'
    )


def kinds(slot: str, choices: Sequence[Mapping[str, Any]]) -> str:
    """The kinds of a slot: what each is called in TOML, its options with their defaults, its definition."""
    body = "".join(
        f"<tr><td><code>{html_text(c['kind'])}</code></td><td>{html_text(c['options'] or 'no options')}</td>"
        f"<td>{_with_code(c['definition'])}</td></tr>"
        for c in choices
    )
    return (
        f'<p class="sorl-term"><b>{html_text(slot)}</b></p><div class="sorl-scroll">'
        '<table class="sorl-table sorl-kinds">'
        f"<tr><th>kind</th><th>options and defaults</th><th>definition</th></tr>{body}</table></div>"
    )


def notation(symbols: Sequence[Mapping[str, str]]) -> str:
    """What the letters of the formulas stand for."""
    rows = "".join(
        f'<span class="sorl-formula">{formula_html(s["symbol"])}</span><span>{formula_html(s["meaning"])}</span>'
        for s in symbols
    )
    return f'<div class="sorl-symbols">{rows}</div>'


def _against(slot: Mapping[str, str], base: Mapping[str, Mapping[str, str]], changed: set[str]) -> tuple[str, str]:
    if slot["slot"] not in changed:
        return "", ""
    return ' class="sorl-changed"', _choice(base[slot["slot"]])


def _choice(slot: Mapping[str, str]) -> str:
    link = html_text(address(slot["kind"], "slots"))
    return f'<a href="{link}"><code>{html_text(slot["kind"])}</code></a> {html_text(slot["options"])}'


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
