"""The named algorithms: a file for each family, a declaration for each algorithm."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from workbench.algorithms import correction, critic, group, guard, normalised, reinforce, unit, weight
from workbench.algorithms.resolution import differences, resolve_in
from workbench.objective import FAMILIES, Algorithm

_FILES = {"critic": critic, "normalised": normalised, "group": group, "reinforce": reinforce, "unit": unit,
          "weight": weight, "guard": guard, "correction": correction}  # fmt: skip
_BY_FAMILY = {
    family: [a for a in vars(file).values() if isinstance(a, Algorithm) and a.family == family]
    for family, file in _FILES.items()
}
CORE = ("ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo")
"""The six algorithms of the core grid."""
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        a.name: a
        for a in sorted(
            (a for family in _BY_FAMILY.values() for a in family),
            key=lambda a: CORE.index(a.name) if a.name in CORE else len(CORE),
        )
    }
)
ALIASES: Mapping[str, str] = MappingProxyType({"so-ppo": "st-ppo"})

SYMBOLS = (
    "Axes: i sequence, t token, k turn. m is the loss mask, N the number of policy tokens, A the advantage, r the "
    "token ratio, w a pooled ratio, R the outcome reward, C the tokens whose ratio lies outside the clip's range, N "
    "the other policy tokens in an RMS."
)
"""The notation of the formulas of the algorithms."""
NOT_YET = "not measured yet"

__all__ = ["ALGORITHMS", "ALIASES", "CORE", "NOT_YET", "SYMBOLS", "by_family", "differences", "measured", "resolve"]


def by_family() -> list[tuple[str, list[Algorithm]]]:
    """Return the title of each family with its algorithms, in the order of their declarations."""
    return [(title, _BY_FAMILY[family]) for family, title in FAMILIES.items()]


@cache
def measured() -> Mapping[str, str]:
    """Return what the shipped results say of each algorithm that they tried: runs, seeds, 95 % interval, in a line."""
    return tomllib.loads(Path(__file__).with_name("measured.toml").read_text(encoding="utf-8"))


def resolve(algorithm: str | Mapping[str, object], slots: Mapping[str, object] | None = None) -> Algorithm:
    """Return the algorithm of a name, or of a table {base = name, slot = ...}, with `slots` changed.

    A slot's value is a table of options, with `kind` to change the kind (its options then start from the defaults), or
    a kind alone; for `ratio`, a level alone. Raises InputError naming what is unknown or of the wrong type, what is
    allowed, and the nearest valid name.
    """
    return resolve_in(ALGORITHMS, ALIASES, algorithm, slots or {})
