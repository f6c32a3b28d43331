"""What screens ask first: which experiment, and its runs with their arms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.analysis.runs import outcomes, with_updates
from workbench.app.page import Empty
from workbench.app.url import choose
from workbench.spec.files import leaves

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.store import Store


def choose_experiment(store: Store, *, collapsed: bool = False) -> str:
    """The experiment of the address, by default the one begun last; with `collapsed`, of those with a collapse.

    Raises Empty where there is none.
    """
    known = store.query("experiments")
    if known.empty:
        raise Empty("no run is recorded here yet: `sorl run experiments/quickstart.toml`")
    fell = known.loc[known["collapsed"] > 0, "experiment"]
    first = str(fell.iloc[0]) if collapsed and len(fell) else None
    return choose("experiment", "Experiment", list(known["experiment"]), first)


def runs(store: Store, experiment: str) -> pd.DataFrame:
    """One row per run of the experiment; arms of one name with different settings are different arms."""
    return store.computed(("runs", experiment), lambda reader: outcomes(reader, experiment))


def updated(store: Store, experiment: str) -> pd.DataFrame:
    """`runs` with what the optimizer updates of each looked like, which reads all of them."""
    each = runs(store, experiment)
    return store.computed(("updated", experiment), lambda reader: with_updates(reader, experiment, each))


def question(store: Store, experiment: str) -> str:
    """The question of the experiment, as its author wrote it."""
    known = store.query("experiments")
    asked = known.loc[known["experiment"] == experiment, "question"]
    return str(asked.iloc[0]) if len(asked) and isinstance(asked.iloc[0], str) else experiment


def differences(configs: Mapping[str, str | None]) -> list[tuple[str, list[str]]]:
    """Dotted key and its value in each arm, for every setting (the seed aside) that is not the same in all arms.

    `configs` holds the resolved configuration of each arm as JSON.
    """
    flat = {arm: settings_of(text) for arm, text in configs.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings if key != "seed")
    rows = [(key, [settings.get(key, "") for settings in flat.values()]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def settings_of(config: str | None) -> dict[str, str]:
    """Dotted key -> value, as a word, of a resolved configuration (JSON); empty for what is none."""
    try:
        found = json.loads(config or "{}")
    except ValueError:  # logs of another trainer may carry anything
        return {}
    return words_of(found) if isinstance(found, dict) else {}


def words_of(tables: Mapping[str, Any]) -> dict[str, str]:
    """Dotted key -> value, as a word, of nested tables of settings."""
    return {key: _word(value) for key, value in leaves(tables) if value != {}}


def _word(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
