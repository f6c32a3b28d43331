"""The warm starts that cells share: each is made once, by one process, before the cells that need it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from workbench.grid.ending import one_line
from workbench.grid.executor import Executor, Process
from workbench.grid.folder import take
from workbench.grid.log import last_line
from workbench.spec import RunSettings


def warm_key(settings: RunSettings) -> str:
    """Which warm start a cell needs; empty for a `model` that is loaded as it is."""
    from workbench.learn.warmstart import key

    return "" if settings.model is not None else key(settings)


def made(cache: Path, key: str) -> bool:
    """True when this warm start was made before."""
    return (cache / "warmstart" / key / "model.safetensors").is_file()


@dataclass
class _Making:
    process: Process
    log: Path
    since: int  # bytes of the log that were there before
    claim: IO[str]
    tries: int


class WarmStarts:
    """Makes warm starts in processes of their own; `failed` says why one could not be made."""

    def __init__(self, cache: Path, executor: Executor, command: Sequence[str], retries: int) -> None:
        self._cache, self._executor, self._command, self._retries = cache, executor, command, retries
        self._making: dict[str, _Making] = {}
        self._ready: set[str] = set()
        self._tries: dict[str, int] = {}
        self.failed: dict[str, str] = {}

    def __len__(self) -> int:
        """How many are being made by this grid."""
        return len(self._making)

    def ready(self, key: str) -> bool:
        """True when a cell with this key need not wait: it is made, or there is nothing to make."""
        if key and key not in self._ready and made(self._cache, key):
            self._ready.add(key)
        return not key or key in self._ready

    def make(self, key: str, config: Path, threads: int) -> bool:
        """Start making the one of `config.toml`; False when it is being made, here or by another grid."""
        if key in self._making:
            return False
        self._cache.mkdir(parents=True, exist_ok=True)
        claim = take(self._cache / f"warmstart-{key}.claim")
        if claim is None:
            return False
        log = self._cache / f"warmstart-{key}.log"
        since = log.stat().st_size if log.exists() else 0
        command = (*self._command, str(config), str(self._cache))
        process = self._executor.start(command, log, threads, (claim.fileno(),))
        self._tries[key] = self._tries.get(key, 0) + 1
        self._making[key] = _Making(process, log, since, claim, self._tries[key])
        return True

    def collect(self, note: Callable[[str], None]) -> None:
        """Take notice of those that are made, or failed too often."""
        for key, making in list(self._making.items()):
            if (sight := making.process.look()).code is None and not sight.lost:
                continue
            del self._making[key]
            making.claim.close()
            if sight.code == 0:
                self._ready.add(key)
                continue
            reason = one_line(sight.lost or last_line(making.log, making.since)) or f"exit code {sight.code}"
            if making.tries > self._retries:
                self.failed[key] = reason
            else:
                note(f"warm start failed, trying again ({making.tries} of {self._retries}): {reason}")

    def stop(self) -> None:
        """Kill what is being made: it keeps nothing half-made, so there is nothing to wait for."""
        for making in self._making.values():
            making.process.kill()
            making.claim.close()
        self._making.clear()
