"""The algorithms page of the docs, rendered from the declarations: what the code says is what the page says."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module

from workbench.algorithms import ALGORITHMS, ALIASES, differences
from workbench.objective import FAMILIES, KINDS, Algorithm, Slot

SYMBOLS = (
    "Axes: i sequence, t token, k turn. m is the loss mask, N the number of policy tokens, A the advantage, r the "
    "token ratio, w a pooled ratio, R the outcome reward, C the tokens whose ratio lies outside the clip's range, N "
    "the other policy tokens in an RMS."
)

NOT_YET = "not measured yet"
RULES = (
    "Terms beside the rule itself (a KL to the reference, an entropy bonus) are off in every declaration, so that two "
    "algorithms differ in their rule; `slots.kl` and `learn.entropy_coef` switch them on. Learning rates and clips of "
    "the gradient norm are settings of a run. *Experimental* means that the declaration may not be what its source "
    "does, for the reason given. What we measured is computed from the shipped results of the grid named "
    "(`experiments/results/`, on 2 cores of a shared x86-64 server), for arms that are the algorithm as declared: of a "
    "grid how many runs collapsed, with the 95 % Clopper-Pearson interval; of a region where half of them do, with the "
    "95 % bootstrap interval. A grid may repeat runs of another one as its base; named controls, which change a "
    "setting, are in docs/findings.md. The rest is *not measured yet*."
)


def page(measured: Mapping[str, str]) -> str:
    """The page as Markdown: the named algorithms by family, each with its difference, then every kind of every slot.

    `measured` says of an algorithm what we found.
    """
    blocks = [_algorithm(a, measured.get(a.name, NOT_YET)) for _, members in by_family() for a in members]
    return "\n\n".join([_table(), SYMBOLS, RULES, *blocks, *map(_slot, KINDS)]) + "\n"


def by_family() -> list[tuple[str, list[Algorithm]]]:
    """The title of each family with its algorithms, in the order of the table of contents."""
    named = ALGORITHMS.values()
    return [(title, [a for a in named if a.family == family]) for family, title in FAMILIES.items()]


def _table() -> str:
    rows = ["| algorithm | difference | critic | rollouts a prompt | paper |", "|---|---|---|---|---|"]
    for title, members in by_family():
        rows.append(f"| **{title}** | | | | |")
        for a in members:
            difference = "the base" if a.differs_from is None else f"`{a.differs_from}` with another {_changed(a)}"
            critic = "yes" if a.critic else "no"
            mark = " (experimental)" if a.experimental else ""
            rows.append(f"| `{a.name}`{mark} | {difference} | {critic} | {a.group_size} | <{a.paper}> |")
    aliases = [f"`{alias}` is accepted for `{name}`." for alias, name in ALIASES.items()]
    return "\n".join(rows) + "\n\n" + " ".join(aliases)


def _changed(algorithm: Algorithm) -> str:
    base = ALGORITHMS[algorithm.differs_from or algorithm.name]
    return " and ".join(differences(base, algorithm))


def _algorithm(algorithm: Algorithm, measured: str) -> str:
    lines = [f"## {algorithm.title}", "", summary(algorithm), "", f"$${algorithm.formula}$$", ""]
    lines += ["| slot | choice |", "|---|---|"]
    lines += [f"| {slot} | {_choice(getattr(algorithm, slot))} |" for slot in KINDS]
    lines += ["", f"- Source: <{algorithm.paper}>", f"- Claimed: {algorithm.claim}."]
    lines += [f"- Measured: {measured}."]
    lines += [f"- Experimental: {algorithm.experimental}."] if algorithm.experimental else []
    return "\n".join(lines)


def summary(algorithm: Algorithm) -> str:
    """What an algorithm is, in a sentence: the docstring of its file."""
    module = import_module(f"workbench.algorithms.{algorithm.name.replace('-', '_')}")
    return inspect.getdoc(module) or ""


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
