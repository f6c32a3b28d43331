"""The address of a view: typed choices out of URL parameters, and what was ignored in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from workbench.app.safe import visible

_SHOWN = 60  # characters of an ignored value


def one(name: str, given: Sequence[str], allowed: Collection[str], default: str) -> tuple[str, list[str]]:
    """The first value of parameter `name` that is allowed, else `default`; and a note for each value ignored."""
    fits = [value for value in given if value in allowed]
    ignored = [value for value in given if value not in allowed] + fits[1:]
    return (fits[0] if fits else default), _notes(name, ignored)


def many(
    name: str, given: Sequence[str], allowed: Collection[str], default: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The allowed values of parameter `name`, each once, in the order given; `default` where none was given or fits."""
    fits = [value for value in dict.fromkeys(given) if value in allowed]
    return (fits or list(default)), _notes(name, [value for value in given if value not in allowed])


def between(name: str, given: Sequence[str], low: int, high: int) -> tuple[tuple[int, int], list[str]]:
    """A range written `7..30`, cut to [low, high]; all of [low, high] where none was given or it is none."""
    ignored = []
    for value in given:
        first, dash, last = value.partition("..")
        try:
            ends = int(first), int(last)
        except ValueError:
            ignored.append(value)
            continue
        if dash and ends[0] <= ends[1] and ends[0] <= high and ends[1] >= low:
            return (max(low, ends[0]), min(high, ends[1])), _notes(name, ignored)
        ignored.append(value)
    return (low, high), _notes(name, ignored)


def written(first: int, last: int) -> str:
    """A range as `between` reads it."""
    return f"{first}..{last}"


def _notes(name: str, ignored: Sequence[str]) -> list[str]:
    shown = [f"{name} = {_short(value)}" for value in ignored[:3]]
    return [*shown, f"{len(ignored) - 3} more values of {name}"] if len(ignored) > 3 else shown


def _short(value: str) -> str:
    text = visible(value)
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
