"""Settings that a text prints besides its metrics: calls, command lines, YAML and lists of arguments."""

from __future__ import annotations

import re
from typing import Any

from sorl.importing.names import place, settings

MOST = 5000  # settings of a text
_CALLED = r"\w*(?:Config|Arguments|Args)\w*|Namespace"
_CALL_BEGINS = re.compile(rf"^(?:.*[\s=:>])?\W*(?:{_CALLED})\(\s*$")
_CALL = re.compile(rf"(?:^|[\s=:>\[])(?:{_CALLED})\((?P<inside>.*)\)\W*$")
_ARGUMENT = re.compile(
    r"""(?:^|[\s,(])(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>'[^']*'|"[^"]*"|[^\s,(){}\[\]<>]+)"""
)
_FLAG = re.compile(r"(?:^|\s)--(?P<name>[A-Za-z][\w.-]*)(?:=|\s+)(?P<value>(?!--)[^\s\\]+)")
_OVERRIDE = re.compile(r"(?:^|\s)\+{0,2}(?P<name>[A-Za-z_]\w*(?:\.\w+)+)=(?P<value>[^\s\\]+)")
_DOTTED = re.compile(r"^\W*(?P<name>[A-Za-z_]\w*) \.{3,} (?P<value>\S.*?)\s*$")
_OUTLINE = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z_][\w-]*):(?: +(?P<value>[^\s#].*?))?\s*(?:#.*)?$")
_LEARNING_RATE = "minibatch.lr"  # a setting as well as a metric


class PrintedSettings:
    """Collects the settings in the lines of a text, by dotted key."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._is_in_call = False
        self._keys: list[tuple[int, str]] = []  # of an outline: what the next lines are below, by indent
        self._outline: dict[str, Any] = {}

    def take(self, text: str) -> bool:
        """Look at a line; whether it holds settings and so no metrics."""
        if self._is_in_call:
            self._is_in_call = not text.strip().startswith(")") and len(self.found) < MOST
            self._add(_pairs_of(_ARGUMENT, text.split("#")[0]))
            return True
        if "(" in text:
            if _CALL_BEGINS.match(text):
                self._is_in_call = True
                return True
            call = _CALL.search(text)
            if call is not None and "=" in call["inside"]:
                self._add(_pairs_of(_ARGUMENT, call["inside"]))
                return True
        if "--" in text or "=" in text or " ..." in text:
            for form in (_FLAG, _OVERRIDE, _DOTTED):
                pairs = _pairs_of(form, text)
                if pairs and settings(pairs) and not has_metric(pairs):
                    self._add(pairs)
                    return True
        self._take_outline(text)
        return False

    def end(self) -> None:
        """Take what is open: the last outline."""
        if len(settings(self._outline)) > 1 and not has_metric(self._outline):
            self._add(self._outline)
        self._outline = {}
        self._keys = []

    def _add(self, pairs: dict[str, Any]) -> None:
        if len(self.found) + len(pairs) <= MOST:
            self.found |= pairs

    def _take_outline(self, text: str) -> None:
        """Take a line of YAML, which is below the last line with less before it."""
        line = _OUTLINE.match(text)
        if line is None:
            if self._keys and not text.lstrip().startswith(("-", "#")):
                self.end()
            return
        indent = len(line["indent"])
        if not indent and not line["value"] and self._outline and not self._keys:
            self.end()
        while self._keys and self._keys[-1][0] >= indent:
            self._keys.pop()
        if line["value"] is None:
            self._keys.append((indent, line["name"]))
        elif len(self._outline) < MOST:
            key = ".".join([*(name for _, name in self._keys), line["name"]])
            self._outline[key] = line["value"].strip("'\"")


def has_metric(values: dict[str, Any]) -> bool:
    """Whether some name is one of a metric."""
    for name, value in values.items():
        known = place(name)
        if known is not None and known[0] != _LEARNING_RATE and not isinstance(value, bool | dict | list):
            return True
    return False


def _pairs_of(form: re.Pattern[str], text: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for match in form.finditer(text):
        pairs[match["name"].replace("-", "_")] = match["value"].rstrip(",").strip("'\"")
    return pairs
