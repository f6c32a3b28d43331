"""The algorithms page of the docs, rendered from the declarations: what the code says is what the page says."""

from __future__ import annotations

import inspect
from dataclasses import fields

from workbench.algorithms import ALGORITHMS, ALIASES, differences
from workbench.objective import KINDS, Algorithm, Slot

SYMBOLS = (
    "Axes: i sequence, t token, k turn. m is the loss mask, N the number of policy tokens, A the advantage, r the "
    "token ratio, w a pooled ratio, R the outcome reward, C the tokens whose ratio lies outside the clip's range, N "
    "the other policy tokens in an RMS."
)


def page() -> str:
    """The page as Markdown: the named algorithms, each with its difference, then every kind of every slot."""
    return "\n\n".join([_table(), SYMBOLS, *map(_algorithm, ALGORITHMS.values()), *map(_slot, KINDS)]) + "\n"


def _table() -> str:
    rows = ["| algorithm | difference | critic | rollouts a prompt | paper |", "|---|---|---|---|---|"]
    for a in ALGORITHMS.values():
        difference = "the base" if a.differs_from is None else f"`{a.differs_from}` with another {_changed(a)}"
        critic = "yes" if a.critic else "no"
        rows.append(f"| `{a.name}` | {difference} | {critic} | {a.group_size} | <{a.paper}> |")
    aliases = [f"`{alias}` is accepted for `{name}`." for alias, name in ALIASES.items()]
    return "\n".join(rows) + "\n\n" + " ".join(aliases)


def _changed(algorithm: Algorithm) -> str:
    base = ALGORITHMS[algorithm.differs_from or algorithm.name]
    return " and ".join(differences(base, algorithm))


def _algorithm(algorithm: Algorithm) -> str:
    lines = [f"## {algorithm.title}", "", f"$${algorithm.formula}$$", "", "| slot | choice |", "|---|---|"]
    lines += [f"| {slot} | {_choice(getattr(algorithm, slot))} |" for slot in KINDS]
    return "\n".join(lines)


def _choice(choice: Slot) -> str:
    options = ", ".join(f"{f.name} = {_toml(getattr(choice, f.name))}" for f in fields(choice))
    return f"`{choice.kind}`" + (f" {options}" if options else "")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def _slot(slot: str) -> str:
    rows = [f"## Slot `{slot}`", "", "| kind | options and defaults | definition |", "|---|---|---|"]
    for kind, choice in KINDS[slot].items():
        defaults = "; ".join(f"{f.name} = {_toml(f.default)}" for f in fields(choice)) or "none"
        definition = " ".join((inspect.getdoc(choice) or "").split()).replace("|", "\\|")
        rows.append(f"| `{kind}` | {defaults} | {definition} |")
    return "\n".join(rows)
