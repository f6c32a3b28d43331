"""Which runs have a recorded curve to judge again, and what it says; the rule itself belongs to the diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from workbench.spec import CollapseSettings, InputError
from workbench.spec.files import from_json

if TYPE_CHECKING:
    from workbench.store.reader import Reader

JUDGED = ("outcome", "collapse_step", "onset_low", "onset_high", "detection_step", "peak_success", "final_success")
OVER = ("finished", "failed", "interrupted")


@dataclass(frozen=True)
class Recorded:
    """A run as the database has it: its row, its rows of table `step` in order, and its events."""

    row: dict[str, Any]
    steps: list[dict[str, float | None]]
    events: list[dict[str, Any]]
    group: int | None = None  # episodes that share a prompt, as table `trajectory` has them; None where it has none

    @property
    def run_id(self) -> str:
        """Identity of the run."""
        return str(self.row["run_id"])

    @property
    def settings(self) -> CollapseSettings:
        """The collapse rule that the run was configured with; the defaults where it does not say."""
        try:
            return CollapseSettings.model_validate(self.config.get("collapse", {}))
        except ValidationError:
            raise InputError(f"run '{self.run_id}': its stored configuration has a [collapse] that is none") from None

    @property
    def episodes(self) -> int | None:
        """Episodes behind each point of the curve; None where the configuration does not say."""
        learn = self.config.get("learn")
        episodes = learn.get("episodes") if isinstance(learn, dict) else None
        return episodes if isinstance(episodes, int) and episodes > 0 else None

    @property
    def config(self) -> dict[str, Any]:
        """Its configuration; empty where it has none, as of other trainers. Raises InputError where it is no table."""
        try:
            told = from_json(self.row["config"]) if self.row["config"] else {}
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise InputError(f"run '{self.run_id}': its stored configuration is no JSON table")
        return told


def recorded(reader: Reader, columns: Sequence[str], experiment: str | None = None) -> list[Recorded]:
    """Every run (of `experiment`) that is over and has steps, with `columns` of these; unknown columns are left out."""
    runs = _dicts(reader, "SELECT * FROM run WHERE list_contains($over, status) ORDER BY run_id", {"over": list(OVER)})
    known = {row["column_name"] for row in _dicts(reader, "SELECT column_name FROM (DESCRIBE step)", None)}
    wanted = ", ".join(f'"{name}"' for name in ("step", *columns) if name in known)
    found = []
    for row in runs:
        if experiment in (None, row["experiment"]):
            steps = _dicts(
                reader, f"SELECT {wanted} FROM step WHERE run_id = $run ORDER BY step", {"run": row["run_id"]}
            )
            events = _dicts(reader, "SELECT * FROM event WHERE run_id = $run ORDER BY step", {"run": row["run_id"]})
            if steps:  # a run whose rows are gone keeps the verdict of when they were there
                found.append(Recorded(row, steps, events, _group(reader, str(row["run_id"]))))
    return found


def _group(reader: Reader, run_id: str) -> int | None:
    """Episodes that share a prompt in the first step that has trajectories."""
    rows = _dicts(
        reader,
        "SELECT count(*) AS n, count(DISTINCT prompt_group) AS prompts FROM trajectory WHERE run_id = $run "
        "AND step = (SELECT min(step) FROM trajectory WHERE run_id = $run)",
        {"run": run_id},
    )
    n, prompts = int(rows[0]["n"]), int(rows[0]["prompts"])
    return n // prompts if prompts else None


def changed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return what the verdict says differently now, in words."""
    return [f"{n} {_word(old.get(n))} -> {_word(new[n])}" for n in JUDGED if not _same(old.get(n), new[n])]


def _word(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-9 or (a != a and b != b)
    return bool(a == b)


def _dicts(reader: Reader, sql: str, parameters: dict[str, Any] | None) -> list[dict[str, Any]]:
    answer = reader.rows(sql, parameters)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
