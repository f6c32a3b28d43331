"""A choice for a slot of the pipeline: a frozen dataclass with the name of its kind and checked options."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Annotated, Any, ClassVar, dataclass_transform, get_type_hints

from sorl.spec import InputError

_hints = cache(partial(get_type_hints, include_extras=True))  # of a choice, its options with what is allowed


@dataclass(frozen=True)
class Allowed:
    """The values an option may have, in words and as a test (a comparison with NaN does not hold)."""

    words: str
    holds: Callable[[Any], bool]


Fraction = Annotated[float, Allowed("a number in [0, 1]", lambda x: 0 <= x <= 1)]
Share = Annotated[float, Allowed("a number in (0, 1]", lambda x: 0 < x <= 1)]
Positive = Annotated[float, Allowed("a finite number above 0", lambda x: 0 < x < math.inf)]
NonNegative = Annotated[float, Allowed("a finite number of at least 0", lambda x: 0 <= x < math.inf)]
AtLeastOne = Annotated[float, Allowed("a finite number of at least 1", lambda x: 1 <= x < math.inf)]
Finite = Annotated[float, Allowed("a finite number", math.isfinite)]
Cap = Annotated[
    float | None, Allowed("none or a finite number above 0", lambda x: x is None or 0 < x < math.inf)
]
DualBound = Annotated[
    float | None, Allowed("none or a finite number above 1", lambda x: x is None or 1 < x < math.inf)
]
Horizon = Annotated[float | None, Allowed("none or a number above 0", lambda x: x is None or x > 0)]
Tries = Annotated[int, Allowed("a whole number of at least 1", lambda x: x >= 1)]


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Slot:
    """One choice for one stage of the pipeline; every subclass is a frozen dataclass.

    `kind`: its name in TOML, given as `class Gae(Advantage, kind="gae")`. `kinds`: all choices of its slot by
    name. `word`: the option that a bare word sets which is no kind; empty = a bare word is a kind.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type["Slot"]]]
    word: ClassVar[str] = ""
    inputs: ClassVar[tuple[str, ...]] = ()  # tensors of a batch that only some rules need, such as `void`

    def __init_subclass__(cls, kind: str = "") -> None:
        dataclass(frozen=True)(cls)
        if Slot in cls.__bases__:
            cls.kinds = {}
        if kind:
            cls.kind = kind
            cls.kinds[kind] = cls

    def __post_init__(self) -> None:
        choice: Any = type(self)
        for option, hint in _hints(choice).items():
            for allowed in getattr(hint, "__metadata__", ()):
                self._require(allowed.holds(getattr(self, option)), option, allowed.words)

    @property
    def micro_statistic(self) -> str:
        """What it takes of one micro-batch alone, in words; empty where the split does not matter."""
        return ""

    def options(self) -> list[str]:
        """Return the options as `name = value`, in the words of a grid file."""
        return [f"{f.name} = {in_words(getattr(self, f.name))}" for f in fields(self)]

    def _require(self, holds: bool, option: str, allowed: str) -> None:
        if not holds:
            value: Any = getattr(self, option)
            raise InputError(f"{option} = {value!r} of kind '{self.kind}' is out of range; use {allowed}")


def in_words(value: object) -> str:
    """Return the value of an option as a grid file spells it: TOML has no null, so None is `none`."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
