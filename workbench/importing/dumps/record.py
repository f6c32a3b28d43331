"""Steps of a dump become steps of a run: the same measures, tables and stored batches as of a run that was
recorded while it trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sorl.collapse.events import Event
from sorl.importing.dumps.rows import COLUMNS, Coverage, Dump, DumpStep, Row, Update
from sorl.recording.scribe import Scribe
from sorl.spec import BatchesSettings

MOST_CELLS = 2**21  # rows times tokens of the longest one, of an update: what is measured at once
TOKENS_KEPT = 4  # trajectories of a step that are kept with every token

Decode = Callable[[int], str]


@dataclass(frozen=True)
class Identity:
    """The run that a dump becomes."""

    run_id: str
    experiment: str
    folder: Path


class DumpRecorder:
    """Writes the steps of one dump down as a run, in this process."""

    def __init__(self, dump: Dump, identity: Identity, decode: Decode | None = None) -> None:
        self._dump = dump
        self._decode = decode
        self._shown: set[int] = set()  # token ids whose text was handed over
        self._coverage = Coverage()
        self._first_step: int | None = None
        self.rows = 0
        self.rows_without_tokens = 0  # that sampling left out
        self._scribe = Scribe(identity.folder)
        self._scribe.take(_opening(dump, identity), {})
        self.last_step = self._scribe.recorder.recorded  # of a session before this one

    def record(self, step: DumpStep) -> None:
        """Measure and write a step."""
        step = thinned(step)
        if self._first_step is None:
            self._first_step = step.number
        self.rows += len(step.rows)
        self.rows_without_tokens += sum(not row.is_measured for row in step.rows)
        if step.coverage is not None:
            self._coverage.add(step.coverage)
        meta, arrays = self._rollouts(step)
        self._scribe.take(meta, arrays)
        for number, update in enumerate(step.updates or [Update(range(len(step.rows)))]):
            message = {"kind": "update", "step": step.number, "update": number, "epoch": update.epoch}
            tensors = update_tensors(step.rows, update)
            if tensors:
                self._scribe.take(message, tensors)
        self._scribe.take({"kind": "end", "step": step.number, "seconds": {}}, {})
        self.last_step = step.number

    def flush(self, *, is_live: bool) -> None:
        """Write what is known of the run so far."""
        self._scribe.row("running" if is_live else "finished")

    def finish(self) -> None:
        """Write what is left, with the sentences about the dump as events.

        Raises InputError where the disk refuses.
        """
        if self._first_step is not None:
            step = self._first_step
            numbered = enumerate(self.sentences())
            events = [Event(step, "dump", "info", sentence, str(number)) for number, sentence in numbered]
            self._scribe.recorder.events(events)
            self._scribe.row("finished")
        self._scribe.recorder.close()

    def sentences(self) -> list[str]:
        """What of the dump was not read, not found or assumed."""
        sentences = [*self._coverage.sentences(), *self._dump.notes]
        if 0 < self.rows_without_tokens < self.rows:
            with_tokens = self.rows - self.rows_without_tokens
            sentences.append(
                f"Tokens of {with_tokens:,} of {self.rows:,} rows were read; of the others only rewards and"
                " groups (whole groups, drawn at random)."
            )
        return sentences

    def _rollouts(self, step: DumpStep) -> tuple[dict[str, Any], dict[str, Any]]:
        """The message that says which rollouts the step has."""
        meta: dict[str, Any] = {"kind": "rollouts", "step": step.number}
        arrays = rollout_arrays(step)
        for name in ("question", "answer", "ended"):
            values = [getattr(row, name) for row in step.rows]
            if any(value is not None for value in values):
                meta[name] = values
        if self._decode is not None:
            ids = np.unique(np.concatenate([arrays["prompts"], arrays["responses"]])).tolist()
            new = [token for token in ids if token not in self._shown]
            self._shown.update(new)
            meta["texts"] = {token: self._decode(token) for token in new}
        return meta, arrays


def _opening(dump: Dump, identity: Identity) -> dict[str, Any]:
    """The message that opens the run."""
    config = json.loads(json.dumps(dict(dump.settings), default=str))
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return {
        "kind": "open",
        "run": {
            "run_id": identity.run_id,
            "experiment": identity.experiment,
            "algorithm": "unknown",
            "arm": dump.folder.name or "dump",
            "seed": 0,
            "config_hash": digest,
            "versions": json.dumps({"trainer": dump.trainer}),
        },
        "config": config,
        "replay_as": "grpo",
        "undeclared": list(SLOTS),
        "clip": None,
        "temperature": 1.0,
        "every": 1,
        "tokens": TOKENS_KEPT,
        "batches": BatchesSettings().model_dump(mode="json"),
        "ranks": [],
        "is_afterwards": True,
    }


# A dump does not name its algorithm: no audit holds it to one.
SLOTS = (
    "advantage",
    "ratio",
    "clip",
    "stabilise",
    "aggregate",
    "kl",
    "select",
    "correction",
    "shaping",
    "schedule",
)


def thinned(step: DumpStep) -> DumpStep:
    """The step with the tokens of fewer groups, where all of them would not fit into memory."""
    longest = max((len(row.tokens) for row in step.rows), default=0)
    measured = [row for row in step.rows if row.is_measured]
    if longest * len(measured) <= MOST_CELLS:
        return step
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(step.rows):
        groups.setdefault(group_of(row), []).append(number)
    order = sorted(groups, key=lambda group: hashlib.sha256(f"{step.number} {group}".encode()).digest())
    with_tokens: set[int] = set()
    for group in order:
        with_tokens.update(number for number in groups[group] if step.rows[number].is_measured)
        if longest * len(with_tokens) > MOST_CELLS:
            if len(with_tokens) > len(groups[group]):
                with_tokens.difference_update(groups[group])
            break
    rows = [row if number in with_tokens else row.without_tokens() for number, row in enumerate(step.rows)]
    return replace(step, rows=rows)


def group_of(row: Row) -> str:
    """The prompt group of a row; of a dump without groups each rollout is one."""
    return row.group if row.group is not None else row.trajectory


def numbered(names: Sequence[str]) -> np.ndarray:
    """Names as numbers from 0, in the order in which they come first."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def rollout_arrays(step: DumpStep) -> dict[str, Any]:
    """What is told of each row of a step, as the message of a ledger has it."""
    rows = step.rows
    arrays: dict[str, Any] = {
        "group": numbered([group_of(row) for row in rows]),
        "rollout": numbered([row.trajectory for row in rows]),
        "mask": [row.written for row in rows],
    }
    rewards = [row.reward for row in rows]
    if any(reward is not None for reward in rewards):
        arrays["reward"] = np.array([np.nan if reward is None else reward for reward in rewards])
        arrays["reward_known"] = np.array([reward is not None for reward in rewards])
    if all(row.success is not None for row in rows):
        arrays["success"] = np.array([row.success for row in rows], dtype=bool)
    if all(row.turn_lengths is not None for row in rows):
        arrays["turns"] = np.array([len(row.turn_lengths or ()) for row in rows], dtype=np.int64)
    if all(row.version is not None for row in rows):
        arrays["rollout_step"] = np.array([row.version for row in rows], dtype=np.int64)
    if all(row.sample is not None for row in rows):
        arrays["sample"] = np.array([row.sample for row in rows], dtype=np.int64)
    prompts = [row.tokens[: row.prompt_length] for row in rows]
    responses = [row.tokens[row.prompt_length :] for row in rows]
    for name, parts in (("prompts", prompts), ("responses", responses)):
        arrays[name] = np.concatenate([*parts, np.zeros(0, np.int32)])
        arrays[f"{name}.length"] = np.array([len(part) for part in parts], dtype=np.int32)
    return arrays


def update_tensors(rows: Sequence[Row], update: Update) -> dict[str, np.ndarray]:
    """What an update saw of its rows, padded to (b, T) from the first token of the response; none without a
    trained token.
    """
    numbers = [number for number in update.rows if rows[number].is_measured and rows[number].mask.any()]
    if not numbers:
        return {}
    chosen = [rows[number] for number in numbers]
    width = max(int(np.flatnonzero(row.mask)[-1]) + 1 for row in chosen)
    tensors: dict[str, np.ndarray] = {
        "trajectory": np.array(numbers, dtype=np.int64),
        "mask": padded([row.mask for row in chosen], width, np.bool_),
    }
    for name in COLUMNS:
        if all(name in row.columns for row in chosen):
            tensors[name] = padded([row.columns[name] for row in chosen], width, np.float32)
    if update.log_prob and all(number in update.log_prob for number in numbers):
        tensors["log_prob"] = padded([update.log_prob[number] for number in numbers], width, np.float32)
    if all(row.turn is not None for row in chosen):
        turns = [np.asarray(row.turn) for row in chosen]
        tensors["turn"] = padded(turns, width, np.int64)
    return tensors


def padded(parts: Sequence[np.ndarray], width: int, kind: Any) -> np.ndarray:
    """Arrays of different lengths as rows of `width`, cut there or filled up with 0."""
    out = np.zeros((len(parts), width), dtype=kind)
    for row, part in zip(out, parts, strict=True):
        length = min(width, len(part))
        row[:length] = part[:length]
    return out
