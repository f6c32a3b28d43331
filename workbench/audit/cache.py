"""Checks that an audit has made, kept by the content of what they were made from.

A check depends on the stored step, the steps that it is compared with, the settings, and the code that
recomputes them. A diagnosis after an audit of the same run finds its checks here.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from sorl.audit.declaration import Declaration
from sorl.spec.evidence import Check
from sorl.store import batches

Checks = dict[str, list[Check]]  # by the name of their identity


class CheckCache:
    """The checks of a run's steps, in the cache of its runs folder; one that can't be written keeps none."""

    def __init__(self, run_folder: Path, declared: Declaration) -> None:
        self.run_folder = run_folder
        self.declared = declared
        self.folder = run_folder.parent.parent / ".cache" / "audit" / run_folder.name
        self.stored = set(batches.steps(run_folder))
        self._key = cache(self._key_of)  # a file is read once, however many steps are compared with it
        self._file_digest = cache(self._digest_of)

    def load(self, step: int) -> Checks:
        """Return the checks that were made of a step as it is now."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            document = json.loads((self.folder / f"{step}.json").read_text())
            if document["key"] == self._key(step):
                return {name: list(map(Check.of, rows)) for name, rows in document["checks"].items()}
        return {}

    def save(self, step: int, checks: Checks) -> None:
        """Keep the checks of a step, but those that failed: they are tried again."""
        rows = {}
        for name, own in checks.items():
            if not any(check.failed for check in own):
                rows[name] = [check.as_dict() for check in own]
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            document = json.dumps({"key": self._key(step), "checks": rows}, default=float)
            file = self.folder / f"{step}.json"
            unfinished = file.with_suffix(f".{os.getpid()}")
            unfinished.write_text(document)
            unfinished.replace(file)

    def _key_of(self, step: int) -> str:
        """Return the digest of all that the checks of a step are made from."""
        digest = sha256(_code_digest().encode())
        digest.update(repr(self.declared).encode())
        compared = {0, *range(step - self.declared.staleness, step + 2)} & self.stored
        for other in sorted(compared):
            digest.update(self._file_digest(other))
        return digest.hexdigest()

    def _digest_of(self, step: int) -> bytes:
        return sha256(batches.file_of(self.run_folder, step).read_bytes()).digest()


@cache
def _code_digest() -> str:
    """Return the digest of this package and of the library that computes: any of it may change a check."""
    digest = sha256(version("torch").encode())
    for file in sorted(Path(__file__).parents[1].rglob("*")):
        if file.suffix in (".py", ".toml"):
            digest.update(file.read_bytes())
    return digest.hexdigest()
