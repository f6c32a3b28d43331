"""Versions of packages that a run was made with: from its configuration and from what trackers leave beside a
log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sorl.spec import InputError
from sorl.spec.files import MIB, read_text

# What W&B saves beside a log, and the card that TRL writes into the folder of a model.
_REQUIREMENTS = ("requirements.txt", "files/requirements.txt")
_CARD = "README.md"
_PIN = re.compile(r"^(?P<package>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.+!-]+)", re.MULTILINE)
_ON_CARD = re.compile(r"^[-*] (?P<package>[A-Za-z][\w-]*): (?P<version>\d[\w.+]*)\s*$", re.MULTILINE)
_OPTION = re.compile(
    r"(?:^|[._])(?P<package>trl|verl|transformers|torch|vllm|accelerate|peft|swift)_version$"
)
_FRAMEWORKS = {
    "trl",
    "transformers",
    "pytorch",
    "datasets",
    "tokenizers",
    "verl",
    "vllm",
    "peft",
    "accelerate",
}
_SPELLED = {"pytorch": "torch"}


def versions_near(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return package -> version of the files beside a log and of the options of its configuration, which
    count.
    """
    folder = path if path.is_dir() else path.parent
    versions: dict[str, str] = {}
    # A log without a path was handed over in memory: nothing lies beside it.
    if path != Path():
        for text in _texts(folder, (_CARD,)):
            versions |= {name: version for name, version in _pairs(_ON_CARD, text) if name in _FRAMEWORKS}
        for text in _texts(folder, _REQUIREMENTS):
            versions |= dict(_pairs(_PIN, text))
    return {_SPELLED.get(name, name): version for name, version in versions.items()} | _in_options(config)


def _texts(folder: Path, names: tuple[str, ...]) -> list[str]:
    texts = []
    for name in names:
        with suppress(OSError, InputError):
            texts.append(read_text(folder / name, MIB))
    return texts


def _pairs(form: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    return [(match["package"].lower(), match["version"]) for match in form.finditer(text)]


def _in_options(config: Mapping[str, Any]) -> dict[str, str]:
    versions = {}
    for option, value in config.items():
        named = _OPTION.search(option)
        if named is not None and isinstance(value, str) and value[:1].isdigit():
            versions[named["package"]] = value
    return versions
