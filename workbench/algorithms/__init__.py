"""The named algorithms, one declaration a file; this is their table of contents."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from workbench.algorithms.grpo import GRPO
from workbench.algorithms.ppo import PPO
from workbench.algorithms.resolution import differences, resolve_in
from workbench.algorithms.s_ppo import S_PPO
from workbench.algorithms.so_grpo import SO_GRPO
from workbench.algorithms.st_ppo import ST_PPO
from workbench.algorithms.turn_ppo import TURN_PPO
from workbench.objective import Algorithm

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {a.name: a for a in (PPO, TURN_PPO, S_PPO, ST_PPO, GRPO, SO_GRPO)}
)
ALIASES: Mapping[str, str] = MappingProxyType({"so-ppo": "st-ppo"})

__all__ = ["ALGORITHMS", "ALIASES", "differences", "resolve"]


def resolve(algorithm: str | Mapping[str, object], slots: Mapping[str, object] | None = None) -> Algorithm:
    """The algorithm that a name, or a table {base = name, slot = ...}, and changes to its slots stand for.

    A slot's value is a table of options, with `kind` to change the kind (its options then start from the defaults), or
    a kind alone; for `ratio`, a level alone. Raises InputError naming what is unknown or of the wrong type, what is
    allowed, and the nearest valid name.
    """
    return resolve_in(ALGORITHMS, ALIASES, algorithm, slots or {})
