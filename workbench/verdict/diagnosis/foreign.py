"""The log of another trainer as a Log: scalars per step, from JSON lines, CSV, Parquet or a trainer_state.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.spec import InputError
from workbench.verdict.diagnosis.log import Log
from workbench.verdict.diagnosis.names import NAMES, SCORES, STEP

KINDS = (".jsonl", ".json", ".csv", ".parquet")
Judge = Callable[[Sequence[float | None], Sequence[int]], dict[str, Any]]


def read(path: Path, judge: Judge) -> Log:
    """The log in a file. `judge` says of scores and steps what table `run` would: outcome, collapse_step, ...

    Columns of ours keep their names, those of other trainers are translated (`names.py`), the rest is left out.
    Raises InputError for a file that cannot be read or holds nothing that is known.
    """
    rows = _rows(path)
    if rows.empty:
        raise InputError(f"'{path}' holds no rows")
    tables = _translate(rows, path)
    score = next((tables["step"][c] for c in ("success", "reward") if c in tables["step"]), None)
    run: dict[str, Any] = {"status": None, "outcome": None, "collapse_step": None, "detection_step": None}
    if score is not None:
        points = score.dropna()
        run |= judge(points.astype(float).tolist(), tables["step"].loc[points.index, "step"].astype(int).tolist())
    return Log(path.name, lambda table, step: tables.get(table, pd.DataFrame()), {}, run)


def _rows(path: Path) -> pd.DataFrame:
    if path.suffix not in KINDS:
        raise InputError(f"'{path}' has none of the endings {', '.join(KINDS)}: say what it is by its name")
    try:
        if path.suffix == ".csv":
            return pd.read_csv(path)
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        text = path.read_text(encoding="utf-8")
        return pd.DataFrame(_states(json.loads(text), path) if path.suffix == ".json" else _lines(text, path))
    except InputError:
        raise
    except (OSError, ValueError, ArithmeticError) as error:
        raise InputError(f"'{path}' cannot be read as {path.suffix[1:]}: {str(error).splitlines()[0]}") from None


def _lines(text: str, path: Path) -> list[dict[str, Any]]:
    """One object a line; a last line that was cut off is left out, any other broken one is an error."""
    rows = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            if number == len(lines) and not text.endswith("\n"):
                break
            raise InputError(f"line {number} of '{path}' is not JSON: {line[:60]!r}") from None
        if not isinstance(row, dict):
            raise InputError(f"line {number} of '{path}' is no object with metrics: {line[:60]!r}")
        rows.append(_flat(row))
    return rows


def _states(found: Any, path: Path) -> list[dict[str, Any]]:
    """The rows of a list, or of `log_history` in a trainer_state.json."""
    rows = found.get("log_history") if isinstance(found, dict) else found
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"'{path}' is neither a list of objects nor a trainer_state.json with log_history")
    return [_flat(row) for row in rows]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Metrics that are nested one level (`{"data": {...}, "step": 3}`) beside the others."""
    nested = {k: v for value in row.values() if isinstance(value, dict) for k, v in value.items()}
    return {**nested, **{k: v for k, v in row.items() if not isinstance(v, (dict, list))}}


def _translate(rows: pd.DataFrame, path: Path) -> dict[str, pd.DataFrame]:
    key = next((name for name in STEP if name in rows), None)
    steps = pd.to_numeric(rows[key], errors="coerce") if key else pd.Series(range(len(rows)), dtype=float)
    rows, steps = rows[steps.notna().to_numpy()].reset_index(drop=True), steps.dropna().reset_index(drop=True)
    columns: dict[str, dict[str, pd.Series]] = {"step": {}, "minibatch": {}}
    for name in rows.columns:
        known = NAMES.get(str(name)) or NAMES.get(str(name).removeprefix("train/"))
        if known is None and "." in str(name) and str(name).split(".")[0] in columns:
            known = str(name)
        if known is not None and known.split(".")[1] not in columns[known.split(".")[0]]:
            table, column = known.split(".")
            columns[table][column] = pd.to_numeric(rows[name], errors="coerce")
    for name in SCORES:
        if name in rows and "success" not in columns["step"]:
            columns["step"]["success"] = pd.to_numeric(rows[name], errors="coerce")
    if not any(columns.values()):
        seen = ", ".join(map(str, list(rows.columns)[:8]))
        raise InputError(
            f"'{path}' has no metric that is known here (it has: {seen}, ...); known are the names of verl, "
            "Search-R1, TRL, "
            "SkyRL, prime-rl, slime, ROLL and OpenRLHF, and our own as step.entropy or minibatch.grad_norm"
        )
    order = steps.astype(int).rename("step")
    return {
        table: pd.DataFrame({"step": order, **found}).groupby("step", as_index=False).mean()
        for table, found in columns.items()
    }
