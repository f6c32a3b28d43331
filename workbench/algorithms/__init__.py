"""The named algorithms, one declaration a file; this is their table of contents."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from workbench.algorithms.bapo import BAPO
from workbench.algorithms.cispo import CISPO
from workbench.algorithms.dapo import DAPO
from workbench.algorithms.dppo import DPPO
from workbench.algorithms.dr_grpo import DR_GRPO
from workbench.algorithms.gmpo import GMPO
from workbench.algorithms.grpo import GRPO
from workbench.algorithms.grpo_guard import GRPO_GUARD
from workbench.algorithms.grpo_guard_full import GRPO_GUARD_FULL
from workbench.algorithms.gspo import GSPO
from workbench.algorithms.gspo_token import GSPO_TOKEN
from workbench.algorithms.icepop import ICEPOP
from workbench.algorithms.llds import LLDS
from workbench.algorithms.loop import LOOP
from workbench.algorithms.minirl import MINIRL
from workbench.algorithms.mis import MIS
from workbench.algorithms.ppo import PPO
from workbench.algorithms.reinforce import REINFORCE
from workbench.algorithms.reinforce_pp import REINFORCE_PP
from workbench.algorithms.resolution import differences, resolve_in
from workbench.algorithms.rloo import RLOO
from workbench.algorithms.s_ppo import S_PPO
from workbench.algorithms.sapo import SAPO
from workbench.algorithms.sapo_search import SAPO_SEARCH
from workbench.algorithms.seeupo import SEEUPO
from workbench.algorithms.so_grpo import SO_GRPO
from workbench.algorithms.so_ppo_note import SO_PPO_NOTE
from workbench.algorithms.sspo import SSPO
from workbench.algorithms.st_ppo import ST_PPO
from workbench.algorithms.starpo import STARPO
from workbench.algorithms.starpo_s import STARPO_S
from workbench.algorithms.tis import TIS
from workbench.algorithms.turn_ppo import TURN_PPO
from workbench.algorithms.turn_ppo_mdp import TURN_PPO_MDP
from workbench.algorithms.vespo import VESPO
from workbench.objective import FAMILIES, Algorithm

_NAMED: tuple[Algorithm, ...] = (
    PPO,
    TURN_PPO,
    S_PPO,
    ST_PPO,
    GRPO,
    SO_GRPO,
    SO_PPO_NOTE,
    TURN_PPO_MDP,
    STARPO,
    STARPO_S,
    REINFORCE,
    RLOO,
    REINFORCE_PP,
    DR_GRPO,
    DAPO,
    LOOP,
    GSPO,
    GSPO_TOKEN,
    SSPO,
    GMPO,
    SEEUPO,
    CISPO,
    MINIRL,
    DPPO,
    VESPO,
    SAPO,
    BAPO,
    GRPO_GUARD,
    GRPO_GUARD_FULL,
    LLDS,
    SAPO_SEARCH,
    TIS,
    MIS,
    ICEPOP,
)
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({a.name: a for a in _NAMED})
ALIASES: Mapping[str, str] = MappingProxyType({"so-ppo": "st-ppo"})

SYMBOLS = (
    "Axes: i sequence, t token, k turn. m is the loss mask, N the number of policy tokens, A the advantage, r the "
    "token ratio, w a pooled ratio, R the outcome reward, C the tokens whose ratio lies outside the clip's range, N "
    "the other policy tokens in an RMS."
)
"""The notation of the formulas of the algorithms."""
NOT_YET = "not measured yet"

__all__ = [
    "ALGORITHMS", "ALIASES", "NOT_YET", "SYMBOLS", "by_family", "differences", "measured", "resolve", "summary",
]  # fmt: skip


def by_family() -> list[tuple[str, list[Algorithm]]]:
    """Return the title of each family with its algorithms, in the order of the table of contents."""
    return [(title, [a for a in ALGORITHMS.values() if a.family == family]) for family, title in FAMILIES.items()]


def summary(algorithm: Algorithm) -> str:
    """Return the docstring of the algorithm's file: what the algorithm does, in a sentence."""
    module = import_module(f"workbench.algorithms.{algorithm.name.replace('-', '_')}")
    return inspect.getdoc(module) or ""


@cache
def measured() -> Mapping[str, str]:
    """Return what the shipped results say of each algorithm that they tried: runs, seeds, 95 % interval, in a line."""
    return tomllib.loads(Path(__file__).with_name("measured.toml").read_text(encoding="utf-8"))


def resolve(algorithm: str | Mapping[str, object], slots: Mapping[str, object] | None = None) -> Algorithm:
    """The algorithm that a name, or a table {base = name, slot = ...}, and changes to its slots stand for.

    A slot's value is a table of options, with `kind` to change the kind (its options then start from the defaults), or
    a kind alone; for `ratio`, a level alone. Raises InputError naming what is unknown or of the wrong type, what is
    allowed, and the nearest valid name.
    """
    return resolve_in(ALGORITHMS, ALIASES, algorithm, slots or {})
