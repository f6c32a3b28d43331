"""The declarations as plain data, for rooms that must start without torch: the glossary of the app reads a copy."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any

from workbench.algorithms import ALGORITHMS, ALIASES, differences
from workbench.objective import FAMILIES, KINDS, Algorithm, Slot

SYMBOLS = (
    "Axes: i sequence, t token, k turn. m is the loss mask, N the number of policy tokens, A the advantage, r the "
    "token ratio, w a pooled ratio, R the outcome reward, C the tokens whose ratio lies outside the clip's range, N "
    "the other policy tokens in an RMS."
)

NOT_YET = "not measured yet"


def by_family() -> list[tuple[str, list[Algorithm]]]:
    """The title of each family with its algorithms, in the order of the table of contents."""
    named = ALGORITHMS.values()
    return [(title, [a for a in named if a.family == family]) for family, title in FAMILIES.items()]


def summary(algorithm: Algorithm) -> str:
    """What an algorithm is, in a sentence: the docstring of its file."""
    module = import_module(f"workbench.algorithms.{algorithm.name.replace('-', '_')}")
    return inspect.getdoc(module) or ""


def dictionary(measured: Mapping[str, str]) -> dict[str, Any]:
    """The symbols, every algorithm with its slots and what was `measured` of it, every kind of every slot."""
    kinds = [_kind(slot, choice) for slot, choices in KINDS.items() for choice in choices.values()]
    return {
        "symbols": SYMBOLS,
        "algorithm": [_algorithm(a, measured.get(a.name, "")) for a in ALGORITHMS.values()],
        "kind": kinds,
    }


def _algorithm(algorithm: Algorithm, measured: str) -> dict[str, Any]:
    base = ALGORITHMS.get(algorithm.differs_from or "")
    return {
        "name": algorithm.name,
        "title": algorithm.title,
        "aliases": [alias for alias, name in ALIASES.items() if name == algorithm.name],
        "description": summary(algorithm),
        "formula": algorithm.formula,
        "paper": algorithm.paper,
        "family": FAMILIES[algorithm.family],
        "claim": algorithm.claim,
        "measured": measured,
        "experimental": algorithm.experimental,
        "differs_from": algorithm.differs_from or "",
        "differs_in": list(differences(base, algorithm)) if base else [],
        "critic": algorithm.critic,
        "group_size": algorithm.group_size,
        "slot": [{"slot": slot, **_choice(getattr(algorithm, slot))} for slot in KINDS],
    }


def _choice(choice: Slot) -> dict[str, str]:
    options = ", ".join(f"{f.name} = {_word(getattr(choice, f.name))}" for f in fields(choice))
    return {"kind": choice.kind, "options": options}


def _kind(slot: str, choice: type[Slot]) -> dict[str, str]:
    options = ", ".join(f"{f.name} = {_word(f.default)}" for f in fields(choice))
    definition = " ".join((inspect.getdoc(choice) or "").split())
    return {"slot": slot, "kind": choice.kind, "options": options, "definition": definition}


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
