"""Findings as events: what the guard flags in the comparison is written down with the runs of the arms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.grid.cell import Cell
from workbench.grid.folder import append, folder_of
from workbench.grid.guard.finding import Finding
from workbench.spec import GUARD

# A trainer writes down what it sees itself; these are seen by whoever knows all arms.
KINDS = {check.kind: check for check in GUARD if check.seen in ("plan", "compare")}


def write(runs: Path, cells: Sequence[Cell], findings: Iterable[Finding]) -> int:
    """Append the flagged findings to the runs of their arms; returns how many rows were new.

    A finding that was written before is not written again, and one that no longer holds is withdrawn.
    """
    flagged = [finding for finding in findings if finding.flagged]
    written = 0
    for cell in cells:
        folder = folder_of(runs, cell)
        if not folder.is_dir():
            continue
        wanted: dict[str, str] = {}
        for kind, check in KINDS.items():
            if told := [f.message for f in flagged if f.check == check.name and cell.arm in f.arms]:
                wanted[kind] = "; ".join(told)
        known = _known(folder)
        for kind in (*wanted, *(known.keys() - wanted.keys())):
            if wanted.get(kind) != known.get(kind):
                _append(folder, cell.run_id, kind, wanted.get(kind))
                written += 1
    return written


def _append(folder: Path, run_id: str, kind: str, message: str | None) -> None:
    """One row; without a message it has no severity either, which withdraws the event."""
    severity = None if message is None else KINDS[kind].severity
    row = {"run_id": run_id, "step": None, "kind": kind, "severity": severity, "diagnostic": "", "message": message}
    append(folder, "event", row)


def _known(folder: Path) -> dict[str, str]:
    """The messages of KINDS that stand in the run's folder."""
    newest: dict[str, tuple[datetime, str | None]] = {}
    for file in sorted((folder / "segments" / "event").glob("*.parquet")):
        if file.name.startswith(".") or not file.is_file():
            continue
        try:
            found = pq.read_table(file, columns=["kind", "message", "written_at"]).to_pylist()
        except (pa.ArrowInvalid, OSError):
            continue  # a torn segment is the store's to set aside
        for row in found:
            kind, at = row["kind"], row["written_at"]
            if kind in KINDS and (kind not in newest or at >= newest[kind][0]):
                newest[kind] = (at, row["message"])
    return {kind: message for kind, (_, message) in newest.items() if message is not None}
