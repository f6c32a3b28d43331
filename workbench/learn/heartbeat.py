"""A file that is touched while the main loop moves: whoever watches the run tells a slow step from a hang by it.

No thread beats here. One would go on beating while the loop waits for a lock, or for a socket that never answers.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from torch import nn

SECONDS = 1.0


class Heartbeat:
    """Touches `folder/heartbeat` at most once a second, whenever it is called."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "heartbeat"
        self._next = 0.0

    def __call__(self) -> None:
        """The loop moves."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + SECONDS
            with suppress(OSError):  # a full disk is the recorder's to tell
                self._file.touch()

    def follow(self, network: nn.Module) -> None:
        """Beat at every pass through `network`: each token that is sampled with it, each part of an update."""
        # A plain function: a bound method would be copied together with a network that is copied.
        network.register_forward_pre_hook(lambda *_: self())
