"""Stored settings of earlier versions of sorl, read in one place: the rest of the code knows one format."""

from collections.abc import Mapping
from typing import Any

# The defaults of the first collapse rule, which judged by running medians. Stored settings of the runs that
# it judged hold these keys, and so do the hashes in the names of all runs with the default rule.
_FIRST_COLLAPSE_RULE = {
    "window": 5,
    "baseline": 5,
    "severe": 0.5,
    "mild": 0.2,
    "points": 5,
    "sigmas": 3.0,
}
_ONLY_IN_FIRST_RULE = frozenset({"window", "baseline", "points", "sigmas"})


def read_collapse_settings(stored: Any) -> Any:
    """Return stored settings of the collapse rule without those of the first rule.

    The shares lost, `severe` and `mild`, mean the same in both rules. What holds only some keys of the first
    rule was never stored by it, and comes back as it is.
    """
    if not isinstance(stored, dict) or not set(stored) >= _ONLY_IN_FIRST_RULE:
        return stored
    return {key: value for key, value in stored.items() if key not in _ONLY_IN_FIRST_RULE}


def with_first_collapse_rule(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key with the defaults of the first collapse rule, for the hash of a run: one
    that trains the same keeps its name.
    """
    defaults = {f"collapse.{key}": value for key, value in _FIRST_COLLAPSE_RULE.items()}
    return {**settings, **defaults}
