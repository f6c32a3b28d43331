"""From names and tables, as a TOML file holds them, to an algorithm; and what distinguishes two algorithms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from workbench.objective import KINDS, Algorithm, Slot
from workbench.spec import InputError, nearest


def resolve_in(
    known: Mapping[str, Algorithm],
    aliases: Mapping[str, str],
    algorithm: str | Mapping[str, object],
    slots: Mapping[str, object],
) -> Algorithm:
    """The algorithm of that name or table among `known`, with `slots` changed; InputError for anything unknown."""
    changes: dict[str, object] = {}
    name: object = algorithm
    if isinstance(algorithm, Mapping):
        changes = dict(algorithm)
        if "base" not in changes:
            raise InputError("an algorithm given as a table needs a base, such as { base = 'ppo' }")
        name = changes.pop("base")
    names = [*known, *aliases]
    if not isinstance(name, str) or aliases.get(name, name) not in known:
        raise InputError(f"unknown algorithm {name!r}{_near(name, names)}; use one of: {', '.join(names)}")
    resolved = known[aliases.get(name, name)]
    for slot, value in [*changes.items(), *slots.items()]:
        if slot not in KINDS:
            raise InputError(
                f"unknown slot '{slot}' of an algorithm{_near(slot, KINDS)}; use one of: {', '.join(KINDS)}"
            )
        changed: Any = {slot: change(slot, getattr(resolved, slot), value)}
        resolved = replace(resolved, **changed)
    return resolved


def change(slot: str, current: Slot, value: object) -> Slot:
    """The slot's choice after `value`: a table of options, a kind, or a word for the slot's main option (a level)."""
    kinds = KINDS[slot]
    if isinstance(value, str):
        value = {current.word: value} if current.word and value not in kinds else {"kind": value}
    if not isinstance(value, Mapping):
        raise InputError(f"{slot} = {value!r} is neither a table nor a kind; kinds: {', '.join(kinds)}")
    options = dict(value)
    kind = options.pop("kind", current.kind)
    if not isinstance(kind, str) or kind not in kinds:
        raise InputError(f"unknown kind {kind!r} of {slot}{_near(kind, kinds)}; use one of: {', '.join(kinds)}")
    choice = kinds[kind]
    types = get_type_hints(choice)
    allowed = [f.name for f in fields(choice)]
    for option, given in options.items():
        if option not in allowed:
            offer = f"use one of: {', '.join(allowed)}" if allowed else "it has none"
            raise InputError(f"unknown option '{option}' of {slot} kind '{kind}'{_near(option, allowed)}; {offer}")
        options[option] = _typed(f"{slot}.{option}", given, types[option])
    made: Any = options
    try:
        return replace(current, **made) if choice is type(current) else choice(**made)
    except InputError as error:
        raise InputError(f"{slot}: {error}") from error


def _near(word: object, allowed: Iterable[str]) -> str:
    return nearest(word, allowed) if isinstance(word, str) else ""


_WORDS = {bool: "true or false", int: "a whole number", float: "a number"}


def _typed(name: str, value: object, hint: Any) -> object:
    """`value` as the type of its option; TOML has no null, so 'none' stands for it."""
    if get_origin(hint) in (UnionType, Union):
        if value is None or value == "none":
            return None
        (hint,) = (part for part in get_args(hint) if part is not type(None))
        return _typed(name, value, hint)
    if get_origin(hint) is Literal:
        allowed = get_args(hint)
        if not isinstance(value, str) or value not in allowed:
            raise InputError(f"{name} = {value!r} is unknown{_near(value, allowed)}; use one of: {', '.join(allowed)}")
        return value
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise InputError(f"{name} = {value!r} has the wrong type; use {_WORDS[hint]}")


def differences(a: Algorithm, b: Algorithm) -> dict[str, tuple[Slot, Slot]]:
    """Return the slots in which two algorithms differ, each with the choice of `a` and of `b`."""
    pairs = {slot: (getattr(a, slot), getattr(b, slot)) for slot in KINDS}
    return {slot: pair for slot, pair in pairs.items() if pair[0] != pair[1]}
