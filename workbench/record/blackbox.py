"""The black box: training batches on the disk, of the last steps, of every n-th, and of those before an event.

What is known at a step decides what goes, so a resumed run keeps what the run without a cut would have kept.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from workbench.diagnostics.rules import Event
from workbench.spec import BATCH_FOLDER, BATCH_FORMAT, BatchesSettings

MB = 10**6
FALLS = ("collapse", "mild")  # events that come some steps after what they speak of began

log = logging.getLogger("sorl.record")


class BlackBox:
    """Files `folder/batches/NNNNNN.safetensors`, written to another name and renamed; the disk never stops a run."""

    def __init__(self, folder: Path, settings: BatchesSettings) -> None:
        self.folder, self.settings, self._said = folder / BATCH_FOLDER, settings, set[str]()
        self.forget()
        with suppress(OSError):
            for unfinished in self.folder.glob(".*.writing"):
                unfinished.unlink(missing_ok=True)

    def forget(self) -> None:
        """No events so far; `see` tells them again after a resume."""
        self._alarmed: set[int] = set()  # steps before an event
        self._fell: set[int] = set()  # steps of a fall, from its onset on
        self._brink: set[int] = set()  # steps about the onset of a fall that may be under way

    def write(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bool:
        """Keep the batch of `step`, after making room for it; False where it is too large or the disk refused."""
        # All metadata is one text: several keys would be written in an order that differs from process to process.
        text = json.dumps({"format": BATCH_FORMAT, "step": step, **meta})
        data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {"sorl": text})
        if len(data) > self.settings.mb * MB:
            size = f"{len(data) / MB:.0f} MB"
            self._say("large", f"a batch of {size} is not kept: record.batches.mb = {self.settings.mb}")
            return False
        unfinished = self.folder / f".{step:06d}.writing"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            files = [file for file in self.folder.glob("[0-9]*.safetensors") if file.stem.isdigit()]
            sizes = {int(file.stem): file.stat().st_size for file in files} | {step: len(data)}
            for old in doomed(sizes, step, self._alarmed, self._fell | self._brink, self.settings):
                (self.folder / f"{old:06d}.safetensors").unlink(missing_ok=True)
            unfinished.write_bytes(data)
            os.replace(unfinished, self.folder / f"{step:06d}.safetensors")
        except OSError as error:
            self._say("disk", f"cannot store batches, training continues without them: {error}")
            with suppress(OSError):  # what refuses to be written may refuse to be removed
                unfinished.unlink(missing_ok=True)
            return False
        return True

    def see(self, step: int, events: Iterable[Event], brink: int | None) -> None:
        """Pin what `events` of `step` make worth keeping; `brink` is where a fall that is under way began."""
        before = self.settings.before
        self._brink = set() if brink is None else set(range(brink - before, brink + before + 1))
        for event in events:
            if event.severity == "info":
                continue
            self._alarmed |= set(range(event.step - before, event.step + 1))
            if event.kind in FALLS:
                self._fell |= self._brink | set(range(event.step - before, event.step + 1))

    def _say(self, what: str, text: str) -> None:
        if what not in self._said:
            log.warning("%s", text)
        self._said.add(what)


def doomed(
    sizes: Mapping[int, int], now: int, alarmed: set[int], fell: set[int], settings: BatchesSettings
) -> set[int]:
    """Steps to remove of those stored (`sizes`, bytes): nobody asked for them, or all together exceed the cap.

    Over the cap go first the every-n-th that leave the others evenly spread, then the latest alarms (the first signals
    are the telling ones), then the oldest of the last steps, then the steps of falls; step `now` stays.
    """

    every = {step: step // settings.every for step in sizes if settings.every and step % settings.every == 0}
    ranks = {step: (0, (n & -n).bit_length() if n else 64, step) for step, n in every.items()}
    ranks |= {step: (1, 0, -step) for step in sizes.keys() & alarmed}
    ranks |= {step: (2, 0, step) for step in sizes if step > now - settings.last}
    ranks |= {step: (3, 0, step) for step in sizes.keys() & fell} | {now: (4, 0, now)}
    gone = sizes.keys() - ranks.keys()
    left = sum(sizes[step] for step in ranks)
    for step in sorted(ranks.keys() - {now}, key=lambda step: ranks[step]):
        if left > settings.mb * MB:
            gone.add(step)
            left -= sizes[step]
    return gone
