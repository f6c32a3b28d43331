"""A user's mistake, and the word that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable


class InputError(ValueError):
    """A mistake of the user: the message names the thing, what is allowed, what to type. Exit code 2, no traceback."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest allowed name, or an empty string when none is close."""
    from difflib import get_close_matches

    match = get_close_matches(word, list(allowed), n=1)
    return f" (did you mean '{match[0]}'?)" if match else ""
