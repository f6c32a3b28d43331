"""What every option of the pipeline is: a frozen dataclass with the name of its kind."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from workbench.spec import InputError


@dataclass(frozen=True)
class Slot:
    """One choice for one stage of the pipeline; `kind` is its name in TOML.

    `word`: the option that a bare word which is no kind sets; empty = a bare word is a kind.
    """

    kind: ClassVar[str]
    word: ClassVar[str] = ""

    def options(self) -> list[str]:
        """Return the options as `name = value`, in the words of a grid file."""
        return [f"{f.name} = {in_words(getattr(self, f.name))}" for f in fields(self)]

    def _require(self, holds: bool, option: str, allowed: str) -> None:
        """Raise InputError unless `holds` (a comparison with NaN does not hold)."""
        if not holds:
            value: Any = getattr(self, option)
            raise InputError(f"{option} = {value!r} of kind '{self.kind}' is out of range; use {allowed}")


def in_words(value: object) -> str:
    """Return the value of an option as a grid file spells it: TOML has no null, so None is `none`."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
