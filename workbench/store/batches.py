"""Stored training batches: which steps a run's folder holds, and one of them read as arrays, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from workbench.spec import BATCH_FOLDER, BATCH_FORMAT, InputError
from workbench.store.stored import ARRAYS, StoredBatch, StoredUpdate


def steps(run_folder: Path) -> list[int]:
    """Steps of which the batch is stored, in order; none where there are no batches."""
    found = (run_folder / BATCH_FOLDER).glob("[0-9]*.safetensors")
    return sorted(int(file.stem) for file in found if file.stem.isdecimal() and file.is_file())


def folder_of(runs: Path, experiment: str, run_id: str) -> Path | None:
    """The folder of a run; None where there is none below `runs`.

    Both names come from rows that anybody may have written: neither a path nor a link leads out of the folder.
    """
    if any(name != Path(name).name or name in ("", ".", "..") or "\0" in name for name in (experiment, run_id)):
        return None
    folder = (runs / experiment / run_id).resolve()
    return folder if folder.is_dir() and folder.is_relative_to(runs.resolve()) else None


def file_of(run_folder: Path, step: int) -> Path:
    """The file of a stored step. Raises InputError, with the steps that there are, where it is not stored."""
    known = steps(run_folder)
    if step in known:
        return run_folder / BATCH_FOLDER / f"{step:06d}.safetensors"
    if not known:
        raise InputError(
            f"run '{run_folder.name}' has no stored batches: it was trained without them (record.batches.mb = 0, or "
            "before sorl kept any), has not begun, or its disk was full; train it again with `sorl run`"
        )
    near = min(known, key=lambda other: abs(other - step))
    raise InputError(
        f"the batch of step {step} of run '{run_folder.name}' is not stored; stored are {ranges(known)}; "
        f"the nearest is --step {near} (record.batches says which steps are kept)"
    )


def read(run_folder: Path, step: int, *, weights: bool = False) -> StoredBatch:
    """The batch of a stored step; with `weights`, also those of the step's start where they were small enough.

    Raises InputError for a step that is not stored, and for a file that is truncated, corrupt or of a newer version.
    """
    file = file_of(run_folder, step)
    try:
        with safe_open(file, framework="numpy") as opened:
            names = set(opened.keys())
            meta = _meta(opened.metadata(), file)
            wanted = {name for name in names if weights or not _is_weight(name)}
            arrays = {name: opened.get_tensor(name) for name in wanted}
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise _broken(file, str(error)) from None
    problem = _problem(arrays)
    if problem:
        raise _broken(file, problem)
    try:
        updates = _updates(arrays, meta)
        texts = {int(token): str(text) for token, text in meta.pop("texts", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken(file, f"its list of updates cannot be read ({error})") from None
    plain: dict[str, Any] = {n: arrays.get(n) for n in ARRAYS if not n.startswith("update.")}
    plain["mask_sampled"] = arrays.get("mask_sampled", arrays["mask"])
    told = {key: value for key, value in meta.items() if key not in ("updates", "step")}
    kept = {name: array for name, array in arrays.items() if _is_weight(name)}
    return StoredBatch(step=step, **plain, updates=updates, meta=told, texts=texts, weights=kept)


def ranges(numbers: list[int]) -> str:
    """`0, 20, 31-46`: neighbours joined."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _is_weight(name: str) -> bool:
    return name.startswith(("policy.", "critic."))


def _meta(told: Mapping[str, str] | None, file: Path) -> dict[str, Any]:
    meta = json.loads((told or {}).get("sorl", "null"))
    if not isinstance(meta, dict) or not isinstance(meta.get("format"), int):
        raise _broken(file, "it does not say that it is a batch of sorl")
    if meta["format"] > BATCH_FORMAT:
        raise InputError(
            f"'{file}' was written by a newer sorl (format {meta['format']}, this one reads up to {BATCH_FORMAT}); "
            "update sorl to read it"
        )
    return meta


def _problem(arrays: Mapping[str, np.ndarray]) -> str:
    """What is wrong with the arrays of a file; empty where nothing is."""
    missing = [name for name, stored in ARRAYS.items() if stored.always and name not in arrays]
    if missing:
        return f"it lacks {', '.join(missing)}"
    if arrays["tokens"].ndim != 2 or arrays["update.rows"].ndim != 1 or arrays["update.size"].ndim != 1:
        return "its arrays have other axes than those of a batch"
    b, t = arrays["tokens"].shape
    r, u = len(arrays["update.rows"]), len(arrays["update.size"])
    shapes = {"B": (b,), "BT": (b, t), "R": (r,), "RT": (r, t), "U": (u,)}
    kinds = {"int": "i", "bool": "b", "float": "f"}
    for name, stored in ARRAYS.items():
        if name not in arrays:
            continue
        if arrays[name].shape != shapes[stored.axes]:
            return f"{name} has shape {arrays[name].shape}, expected {shapes[stored.axes]}"
        if arrays[name].dtype.kind != kinds[stored.kind]:
            return f"{name} holds {arrays[name].dtype}, expected {stored.kind}"
    rows, sizes, length = arrays["update.rows"], arrays["update.size"], arrays["length"]
    if (sizes < 0).any() or sizes.sum() != r or (r and (rows.min() < 0 or rows.max() >= b)):
        return "its updates speak of rows that it does not have"
    if b == 0 or t == 0 or (length < 0).any() or (length > t).any():
        return "its lengths do not fit its tokens"
    return ""


def _updates(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> tuple[StoredUpdate, ...]:
    ends = arrays["update.size"].cumsum()
    if len(meta["updates"]) != len(ends):
        raise ValueError(f"{len(meta['updates'])} are described, {len(ends)} stored")
    found = []
    for index, (end, told) in enumerate(zip(ends, meta["updates"], strict=True)):
        part = slice(int(end) - int(arrays["update.size"][index]), int(end))
        own = {name: arrays.get(f"update.{name}") for name in ("values", "mask", "advantages", "log_prob_old")}
        if sum(told["passes"]) != part.stop - part.start:
            raise ValueError(f"the micro-batches of update {index} are not its rows")
        found.append(
            StoredUpdate(
                index=index,
                epoch=int(told["epoch"]),
                rollout_step=int(told["rollout_step"]),
                rows=arrays["update.rows"][part],
                log_prob=arrays["update.log_prob"][part],
                **{name: None if array is None else array[part] for name, array in own.items()},
                passes=tuple(int(n) for n in told["passes"]),
                scalars=dict(told["scalars"]),
            )
        )
    return tuple(found)


def _broken(file: Path, why: str) -> InputError:
    return InputError(
        f"'{file}' cannot be read: {why}. It is damaged (a full disk, a torn copy); remove it, or take another step"
    )
