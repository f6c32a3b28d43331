"""The default settings of other trainers by version: what a log does not say, because nobody set it.

`trainer_defaults.json` holds the history of each option, from the published packages (`python -m
studies.trainer_defaults`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.version import InvalidVersion, Version

# The package whose defaults a trainer has, by the name of the trainer (workbench/importing/trainer.py).
PACKAGES = {"TRL": "trl", "verl": "verl"}


class Absent:
    """An option that a log does not say, and whose default is not known."""

    def __repr__(self) -> str:
        return "not set"


ABSENT = Absent()


@dataclass(frozen=True)
class Defaults:
    """The defaults of one package: option -> [[version, value], ...], an entry for each change; [version]
    alone where the option is not there.
    """

    package: str
    versions: tuple[str, ...]  # that were read, ascending
    options: dict[str, list[list[Any]]]

    def at(self, version: str) -> dict[str, Any]:
        """Return every default of a version: of one that was not read, those of the version before it.

        Empty for a version that is older than all that were read, or no version.
        """
        known = _parsed(version)
        if known is None or known < Version(self.versions[0]):
            return {}
        defaults: dict[str, Any] = {}
        for option, history in self.options.items():
            entries = [entry for entry in history if Version(entry[0]) <= known]
            if entries and len(entries[-1]) > 1:
                defaults[option] = entries[-1][1]
        return defaults

    def is_newer_than_read(self, version: str) -> bool:
        """Whether a version came after the newest that was read: its defaults may be others."""
        known = _parsed(version)
        return known is not None and known > Version(self.versions[-1])


@cache
def defaults_of(trainer: str) -> Defaults | None:
    """Return the defaults of a trainer; None where its package was not read."""
    package = PACKAGES.get(trainer)
    if package is None:
        return None
    text = files(__package__).joinpath("trainer_defaults.json").read_text(encoding="utf-8")
    table = json.loads(text)[package]
    return Defaults(package, tuple(table["versions"]), table["options"])


def _parsed(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:
        return None
