"""The black box: training batches on the disk, of the last steps, of every n-th, and of those before an event.

What is known at a step decides what is deleted, so a resumed run keeps what an uninterrupted one would have kept.
"""

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
FALLS = ("collapse", "mild")  # events that come some steps after the onset that they report

log = logging.getLogger("sorl.record")


class BlackBox:
    """Files `folder/batches/NNNNNN.safetensors`, written to another name and renamed; the disk never stops a run."""

    def __init__(self, folder: Path, settings: BatchesSettings) -> None:
        self.folder, self.settings, self._warned = folder / BATCH_FOLDER, settings, set[str]()
        self.forget()
        with suppress(OSError):
            for unfinished in self.folder.glob(".*.writing"):
                unfinished.unlink(missing_ok=True)

    def forget(self) -> None:
        """Forget all events; `see` is shown them again after a resume."""
        self._alarmed: set[int] = set()  # the steps before an event
        self._fell: set[int] = set()  # the steps of a fall, from its onset on
        self._brink: set[int] = set()  # the steps around the onset of a fall that may be under way

    def write(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Keep the batch of `step`, after making room for it, unless it is too large or the disk refuses."""
        # All metadata is one text: several keys would be written in an order that differs from process to process.
        text = json.dumps({"format": BATCH_FORMAT, "step": step, **meta})
        data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {"sorl": text})
        if len(data) > self.settings.mb * MB:
            size = f"{len(data) / MB:.0f} MB"
            self._warn_once("large", f"a batch of {size} is not kept: record.batches.mb = {self.settings.mb}")
            return
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
            self._warn_once("disk", f"cannot store batches, training continues without them: {error}")
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)

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

    @property
    def falling(self) -> set[int]:
        """Steps around the onset of a fall that was called, or that may be under way."""
        return self._fell | self._brink

    def _warn_once(self, cause: str, text: str) -> None:
        if cause not in self._warned:
            log.warning("%s", text)
        self._warned.add(cause)


def doomed(
    sizes: Mapping[int, int], now: int, alarmed: set[int], fell: set[int], settings: BatchesSettings
) -> set[int]:
    """Return the stored steps (`sizes`, bytes) to remove: those that no setting keeps, and those over the cap.

    Over the cap, the every-n-th go first, such that the others stay evenly spread, then the latest alarms (the first
    ones tell most), then the oldest of the last steps, then the steps of falls; step `now` stays.
    """
    every = {step: step // settings.every for step in sizes if settings.every and step % settings.every == 0}
    ranks = {step: (0, (n & -n).bit_length() if n else 64, step) for step, n in every.items()}
    ranks |= {step: (1, 0, -step) for step in sizes.keys() & alarmed}
    ranks |= {step: (2, 0, step) for step in sizes if step > now - settings.last}
    ranks |= {step: (3, 0, step) for step in sizes.keys() & fell} | {now: (4, 0, now)}
    gone, left = sizes.keys() - ranks.keys(), sum(sizes[step] for step in ranks)
    for step in sorted(ranks.keys() - {now}, key=ranks.__getitem__):
        if left > settings.mb * MB:
            gone.add(step)
            left -= sizes[step]
    return gone
