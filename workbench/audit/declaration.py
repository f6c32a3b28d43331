"""What a run says of how it trained, as far as an identity asks; what it does not say raises Missing.

A run of sorl's own trainer says all of it in its settings. A run that was recorded from another trainer says
it in the configuration and in the stored batches that the ledger wrote.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sorl.algorithms import resolve
from sorl.diagnosis.log import RECORDED_TRAINERS
from sorl.diagnosis.trainers import trainers
from sorl.learn.run import settings_of
from sorl.measures.evidence import Missing
from sorl.objective import Algorithm
from sorl.spec import InputError, RunSettings

LOSS = ("ratio", "clip", "aggregate", "correction")  # slots that make the policy's loss
OWN = "sorl"
# Slots that a recording of these trainers does not tell, where its batches do not say which.
_UNTOLD = (*LOSS, "advantage", "kl")


@dataclass(frozen=True)
class Declaration:
    """What a run says of itself; None = it does not say."""

    trainer: str = ""  # OWN, or another as trainers.toml spells it; empty = a loop of its own
    own_settings: RunSettings | None = None  # of a run of sorl's trainer
    config: Mapping[str, Any] = field(default_factory=dict)  # what another trainer was configured with
    name: str = ""  # of the algorithm
    is_recorded: bool = True  # by our recorder, and not imported from logs
    epochs: int | None = None
    minibatches: int | None = None
    may_end_early: bool = False  # before every sequence was trained on
    max_grad_norm: float | None = None
    measures_clipped_norm: bool = True  # the norm after clipping is no number of the recorder's own
    old_log_prob: str | None = None  # update, rollout or behaviour: whose the old log-probs are
    staleness: int = 0
    unfinished: int | None = None  # the step in which the run stopped, whose updates may be lacking

    @property
    def settings(self) -> RunSettings:
        """The settings of sorl's own trainer: world, sampler, optimizer, and weights to compute with."""
        if self.own_settings is None:
            raise Missing("the weights or the world of the run, which only sorl's own trainer stores")
        return self.own_settings

    def algorithm(self, meta: Mapping[str, Any]) -> Algorithm:
        """Return the algorithm that a stored batch says ran. Raises Missing where it has no words of ours."""
        if self.own_settings is not None:
            own = resolve(self.own_settings.algorithm, self.own_settings.slots)
            return own.within(self.own_settings.world.completion_budget)
        try:
            return resolve(meta["algorithm"], meta.get("slots"))
        except (InputError, KeyError, TypeError):
            raise self.lacks("algorithm") from None

    def hold(self, meta: Mapping[str, Any], *slots: str) -> None:
        """Raise Missing where the run does not say what it has in one of these slots of its algorithm."""
        if self.own_settings is not None:
            return
        default = _UNTOLD if self.trainer else ()
        untold = set(meta.get("undeclared", default)) & set(slots)
        if untold:
            (slot,) = untold if len(untold) == 1 else ("algorithm",)
            raise self.lacks(slot if slot in needs() else "algorithm")

    def lacks(self, need: str) -> Missing:
        """Return the Missing of a need of `needs.toml`, in the words of the run's trainer."""
        entry = needs()[need]
        how = self._how_to_record(entry)
        return Missing(f"{entry['what']}: {how}" if how else entry["what"])

    def _how_to_record(self, entry: Mapping[str, str]) -> str:
        if self.trainer == OWN:
            return entry.get(OWN, "")
        own = entry.get(self.trainer, "")
        if not own and self.trainer in trainers():
            own = trainers()[self.trainer].logs.get(entry.get("logs", ""), "")
        return f"in {self.trainer} {own}" if own else entry.get("ledger", "")

    def lacks_weights(self, step: int) -> Missing:
        """Return the Missing of the weights of a step."""
        if self.own_settings is None:
            return Missing("the weights of the policy, which only sorl's own trainer stores")
        return Missing(f"the weights of step {step} (record.batches.weights_mb, last, every)")


@cache
def needs() -> Mapping[str, Mapping[str, str]]:
    """Return what an identity may need by name: `what`, and how each trainer is told to record it."""
    text = files(__package__).joinpath("needs.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def declaration_of(folder: Path) -> Declaration:
    """Return what the run in a folder says of itself. Raises InputError for a folder that is no run."""
    if (folder / "config.toml").is_file() or not (folder / "segments").is_dir():
        return _of_settings(settings_of(folder))
    return _of_recording(folder)


def _of_settings(settings: RunSettings) -> Declaration:
    learn = settings.learn
    return Declaration(
        trainer=OWN,
        own_settings=settings,
        name=settings.algorithm if isinstance(settings.algorithm, str) else "",
        epochs=learn.epochs,
        minibatches=learn.minibatches,
        may_end_early=learn.target_kl is not None,
        max_grad_norm=learn.policy.max_grad_norm,
        old_log_prob=learn.old_log_prob,
        staleness=learn.staleness,
    )


def _of_recording(folder: Path) -> Declaration:
    """What the last row of table `run` says of a recorded or imported run."""
    row = _last_row(folder)
    config = _table(row.get("config"))
    learn = _table(config.get("learn"))
    policy = _table(learn.get("policy"))
    recorder = str(_table(row.get("versions")).get("trainer", ""))
    imported_from = str(_table(row.get("reading")).get("trainer", ""))
    finished = row.get("status") == "finished"
    steps = row.get("steps")
    return Declaration(
        trainer=RECORDED_TRAINERS.get(recorder, imported_from),
        config=config,
        name=str(row.get("algorithm") or ""),
        is_recorded=bool(recorder),
        epochs=_whole(learn.get("epochs", config.get("epochs"))),
        minibatches=_whole(learn.get("minibatches", config.get("minibatches"))),
        max_grad_norm=_number(policy.get("max_grad_norm", config.get("max_grad_norm"))),
        measures_clipped_norm=recorder not in RECORDED_TRAINERS,
        old_log_prob=learn.get("old_log_prob", config.get("old_log_prob")),
        unfinished=None if finished or not steps else int(steps) - 1,
    )


def segment_files(folder: Path, table: str) -> list[Path]:
    """The files of a table in a run's folder, without those that are being written."""
    files_of_table = (folder / "segments" / table).glob("*.parquet")
    return sorted(file for file in files_of_table if not file.name.startswith("."))


def _last_row(folder: Path) -> Mapping[str, Any]:
    """The newest row of table `run` in the segments of a folder; empty where there is none."""
    rows: list[dict[str, Any]] = []
    for file in segment_files(folder, "run"):
        try:
            rows += pq.read_table(file).to_pylist()
        except (OSError, ValueError):
            continue
    return max(rows, key=lambda row: str(row.get("written_at")), default={})


def _table(value: Any) -> Mapping[str, Any]:
    """A table that may be written as JSON; empty for anything else."""
    try:
        table = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return table if isinstance(table, Mapping) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
