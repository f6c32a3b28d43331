"""File names of a `--dump-details` folder, and whose it is."""

from __future__ import annotations

import re
from pathlib import Path

from sorl.importing.dumps import files

# Folders that only miles makes.
MILES_FOLDERS = ("policy_loss_debug", "trajectory", "dashboard_columns")


def rank_files(folder: Path) -> dict[int, list[Path]]:
    """`{step}_{rank}.pt` by step, in the order of ranks."""
    numbers = []
    for path in folder.glob("*_*.pt"):
        match = re.fullmatch(r"(\d{1,12})_(\d{1,9})", path.stem, re.ASCII)
        if match:
            numbers.append((int(match[1]), int(match[2]), path))
    by_step: dict[int, list[Path]] = {}
    for step, _rank, path in sorted(numbers):
        by_step.setdefault(step, []).append(path)
    return by_step


def lowest_step_file(folder: Path) -> Path | None:
    """A file of a `--dump-details` folder that `torch.save` wrote, rollout_data first."""
    candidates = [
        *files.numbered(folder / "rollout_data", "{}.pt").values(),
        *files.numbered(folder / "train_data", "{}.pt").values(),
    ]
    for paths in rank_files(folder / "train_data").values():
        candidates += paths
    return candidates[0] if candidates and head_of(candidates[0]) else None


def is_of_miles(folder: Path) -> bool:
    """Whether a `--dump-details` folder is of miles: its own folders, or metadata before the samples."""
    if any((folder / name).is_dir() for name in MILES_FOLDERS):
        return True
    file = lowest_step_file(folder)
    head = head_of(file) if file is not None and file.parent.name == "rollout_data" else b""
    metadata = head.find(b"metadata")
    return metadata >= 0 and (b"samples" not in head or metadata < head.find(b"samples"))


def head_of(file: Path) -> bytes:
    """The first bytes of what `torch.save` wrote, with the names of its first keys; none of other files."""
    with file.open("rb") as handle:
        head = handle.read(1024)
    return head if head.startswith(b"PK\x03\x04") and b"rollout_id" in head else b""
