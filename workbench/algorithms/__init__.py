"""The named algorithms: a file for each family, a declaration for each algorithm; and how a grid file names
one.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sorl.algorithms import (
    correction,
    critic,
    group,
    guard,
    normalised,
    proximal,
    reinforce,
    trust,
    turn,
    unit,
    weight,
)
from sorl.objective import FAMILIES, KINDS, Algorithm, Slot
from sorl.spec import InputError, nearest

# a file imports from those before it
_FILES = (critic, group, normalised, reinforce, unit, weight, trust, guard, proximal, correction, turn)
_BY_FAMILY: dict[str, list[Algorithm]] = {family: [] for family in FAMILIES}
for _file in _FILES:
    _imported = list(chain.from_iterable(_BY_FAMILY.values()))
    _family = _file.__name__.rpartition(".")[2]
    _BY_FAMILY[_family] = [a for a in vars(_file).values() if isinstance(a, Algorithm) and a not in _imported]
CORE = ("ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo")
"""The six algorithms of the core grid."""
_BY_NAME = {a.name: a for a in chain.from_iterable(_BY_FAMILY.values())}
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({name: _BY_NAME[name] for name in [*CORE, *_BY_NAME]})
ALIASES: Mapping[str, str] = MappingProxyType({"so-ppo": "st-ppo"})

SYMBOLS = (
    "Axes: i sequence, t token, k turn. m is the loss mask, N the number of policy tokens, A the advantage, r"
    " the token ratio, w a pooled ratio, R the outcome reward, C the tokens whose ratio lies outside the"
    " clip's range, N the other policy tokens in an RMS."
)
"""The notation of the formulas of the algorithms."""
NOT_YET = "not measured yet"

__all__ = [
    "ALGORITHMS",
    "ALIASES",
    "CORE",
    "NOT_YET",
    "SYMBOLS",
    "by_family",
    "differences",
    "measured",
    "resolve",
]


def by_family() -> list[tuple[str, list[Algorithm]]]:
    """Return the title of each family with its algorithms, in the order of their declarations."""
    return [(title, _BY_FAMILY[family]) for family, title in FAMILIES.items()]


@cache
def measured() -> Mapping[str, str]:
    """Return what the shipped results say of each algorithm that they tried: runs, seeds, 95 % interval, in a
    line.
    """
    return tomllib.loads(Path(__file__).with_name("measured.toml").read_text(encoding="utf-8"))


def resolve(
    algorithm: str | Mapping[str, object],
    slots: Mapping[str, object] | None = None,
    known: Mapping[str, Algorithm] = ALGORITHMS,
) -> Algorithm:
    """Return the algorithm of a name, or of a table {base = name, slot = ...}, with `slots` changed.

    A slot's value is a table of options, with `kind` to change the kind (its options then start from the
    defaults), or a kind alone; for `ratio`, a level alone. Raises InputError naming what is unknown or of the
    wrong type, what is allowed, and the nearest valid name.
    """
    changes: dict[str, object] = dict(algorithm) if isinstance(algorithm, Mapping) else {"base": algorithm}
    if "base" not in changes:
        raise InputError("an algorithm given as a table needs a base, such as { base = 'ppo' }")
    name = changes.pop("base")
    if not isinstance(name, str) or ALIASES.get(name, name) not in known:
        raise _unknown("algorithm", name, [*known, *ALIASES])
    resolved = known[ALIASES.get(name, name)]
    for slot, value in [*changes.items(), *(slots or {}).items()]:
        if slot not in KINDS:
            raise _unknown("slot", slot, KINDS, " of an algorithm")
        changed: Any = {slot: _changed(slot, getattr(resolved, slot), value)}
        resolved = replace(resolved, **changed)
    if resolved.conflict:
        raise InputError(f"algorithm '{resolved.name}': {resolved.conflict}")
    return resolved


def _changed(slot: str, current: Slot, value: object) -> Slot:
    kinds = KINDS[slot]
    if isinstance(value, str):
        value = {current.word: value} if current.word and value not in kinds else {"kind": value}
    if not isinstance(value, Mapping):
        raise InputError(f"{slot} = {value!r} is neither a table nor a kind; kinds: {', '.join(kinds)}")
    options = dict(value)
    kind = options.pop("kind", current.kind)
    if not isinstance(kind, str) or kind not in kinds:
        raise _unknown("kind", kind, kinds, f" of {slot}")
    choice: Any = kinds[kind]
    types = get_type_hints(choice)
    allowed = [f.name for f in fields(choice)]
    for option, given in options.items():
        if option not in allowed:
            raise _unknown("option", option, allowed, f" of {slot} kind '{kind}'")
        options[option] = _typed(f"{slot}.{option}", given, types[option])
    try:
        made: Slot = replace(current, **options) if choice is type(current) else choice(**options)
    except InputError as error:
        raise InputError(f"{slot}: {error}") from error
    return made


def _unknown(what: str, word: object, allowed: Iterable[str], of: str = "") -> InputError:
    offer = f"use one of: {', '.join(allowed)}" if list(allowed) else "it has none"
    return InputError(f"unknown {what} {word!r}{of}{nearest(str(word), allowed)}; {offer}")


def _typed(name: str, value: object, hint: Any) -> object:
    """`value` as the type of its option; TOML has no null, so 'none' stands for it."""
    if get_origin(hint) in (UnionType, Union):
        hint, _ = get_args(hint)  # float | None
        return None if value is None or value == "none" else _typed(name, value, hint)
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        near = nearest(str(value), get_args(hint))
        raise InputError(f"{name} = {value!r} is unknown{near}; use one of: {', '.join(get_args(hint))}")
    if isinstance(value, bool) == (hint is bool) and isinstance(
        value, int | float if hint is float else hint
    ):
        return float(value) if hint is float else value
    words = {bool: "true or false", int: "a whole number", float: "a number"}[hint]
    raise InputError(f"{name} = {value!r} has the wrong type; use {words}")


def differences(a: Algorithm, b: Algorithm) -> dict[str, tuple[Slot, Slot]]:
    """Return the slots in which two algorithms differ, each with the choice of `a` and of `b`."""
    pairs = {slot: (getattr(a, slot), getattr(b, slot)) for slot in KINDS}
    return {slot: pair for slot, pair in pairs.items() if pair[0] != pair[1]}
