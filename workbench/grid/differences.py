"""What sets the cells of a grid apart: only the keys whose values differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.grid.keys import flatten
from workbench.spec import RunSettings


def differing(arms: Mapping[str, RunSettings]) -> dict[str, dict[str, Any]]:
    """Dotted key -> arm -> value, for every setting (the seed aside) that is not the same in all arms."""
    flat = {arm: flatten(settings.model_dump(mode="json", exclude={"seed"})) for arm, settings in arms.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    rows = {key: {arm: settings.get(key) for arm, settings in flat.items()} for key in keys}
    return {key: row for key, row in rows.items() if len({repr(value) for value in row.values()}) > 1}
