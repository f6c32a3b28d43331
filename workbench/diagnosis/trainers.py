"""What other trainers call the settings of an advice, and which of their options logs what a cause needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from sorl.diagnosis.log import Log
from sorl.store.text import visible


@dataclass(frozen=True)
class Trainer:
    """The names of one trainer: `options` by our setting, `logs` by what a cause needs."""

    name: str
    options: Mapping[str, str]
    logs: Mapping[str, str]


@cache
def trainers() -> dict[str, Trainer]:
    """Return the trainers of `trainers.toml` by name."""
    import tomllib

    text = files(__package__).joinpath("trainers.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return {name: Trainer(name, table["options"], table["logs"]) for name, table in tables.items()}


def _trainer_of(log: Log) -> Trainer | None:
    return trainers().get(log.trainer) if log.trainer else None


def option_names(settings: Sequence[str], log: Log) -> list[str]:
    """Return what the trainer of a log calls some settings of ours, with their values where they were read:
    `learning_rate (1e-06 now)`. A setting without a known name is left out.
    """
    trainer = _trainer_of(log)
    read = log.reading.options if log.reading else {}
    names: list[str] = []
    for setting in settings:
        known, value = read.get(setting, ("", None))
        name = known or (trainer.options.get(setting, "") if trainer else "")
        if not name or any(name in earlier for earlier in names):
            continue
        names.append(f"{visible(name)} ({_written(value)} now)" if known else name)
    return names


def how_to_log(need: str, log: Log) -> str:
    """Return the option of a log's trainer that would log what a cause needs; empty where none is known."""
    trainer = _trainer_of(log)
    return trainer.logs.get(need, "") if trainer else ""


def _written(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else "not set"
    return f"{value:g}" if isinstance(value, int | float) else visible(str(value))
