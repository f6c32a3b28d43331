"""The settings of a run beside those of its neighbours: the grid's base, the defaults, and the other arms."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

from workbench.app.experiments import settings_of, words_of
from workbench.spec import RunSettings

UNSET = "–"
_NAMED = 4  # arms that are listed by name


@dataclass(frozen=True)
class Setting:
    """A setting by its dotted key: its value here, in the grid's base, by default, and in arms where it is another."""

    key: str
    here: str
    base: str
    default: str
    others: Mapping[str, list[str]]

    @property
    def tells(self) -> bool:
        """True where it is not what any run would have: changed by the grid, by this arm, or by another arm."""
        changed = bool(self.others) or self.here != self.default or self.here != self.base
        return changed and self.key != "seed"

    @property
    def elsewhere(self) -> str:
        """Values in the other arms, each with its arms: `1: ppo, on-policy`."""
        return "; ".join(f"{value}: {_listed(arms)}" for value, arms in self.others.items())


def settings(config: str | None, toml: str | None, arms: Mapping[str, str | None]) -> list[Setting]:
    """Every setting of a run: `config` is its own (JSON), `toml` its grid file, `arms` the JSON of the other arms.

    A base that the grid does not name is the default; a log of another trainer has neither.
    """
    here = settings_of(config)
    default = words_of(RunSettings().model_dump(mode="json"))
    base = default | _base(toml)
    elsewhere = {arm: settings_of(text) for arm, text in arms.items()}
    keys = dict.fromkeys([*here, *(key for one in elsewhere.values() for key in one)])
    found = []
    for key in keys:
        value = here.get(key, UNSET)
        others: dict[str, list[str]] = {}
        for arm, one in elsewhere.items():
            if key != "seed" and one.get(key, UNSET) != value:
                others.setdefault(one.get(key, UNSET), []).append(arm)
        found.append(Setting(key, value, base.get(key, UNSET), default.get(key, UNSET), others))
    return found


def _base(toml: str | None) -> dict[str, str]:
    try:
        base = tomllib.loads(toml or "").get("base", {})
    except tomllib.TOMLDecodeError:
        return {}
    return words_of(base) if isinstance(base, dict) else {}


def _listed(arms: list[str]) -> str:
    more = f" and {len(arms) - _NAMED} more" if len(arms) > _NAMED else ""
    return ", ".join(arms[:_NAMED]) + more
