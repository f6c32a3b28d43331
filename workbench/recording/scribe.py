"""What the process behind a ledger does: messages in, measured and written rows out.

A step is measured when it ends, over the rows of all ranks together, so that every mean is over all its
tokens; a run that was killed keeps the step that it was in.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from torch import Tensor

from sorl.batch import pool, spread, turn_ids
from sorl.collapse.events import Event
from sorl.measures.evidence import (
    Evidence,
    Known,
    Rollouts,
    StepEvidence,
    count_stretches,
    fingerprint,
    number_turns,
    stretches,
)
from sorl.measures.tokens import CLAMP
from sorl.recording.branches import find_branches, merge_rows
from sorl.recording.ledger import AVERAGED, PARTS, SUMMED, TERMS, TOKENS, decode
from sorl.recording.recorder import Recorder
from sorl.recording.revisits import Memory
from sorl.recording.witness import as_columns, row_checksum, total_checksum, trained_rows
from sorl.spec import BatchesSettings, LearnSettings, RecordSettings, RunSettings

RANKS_WAIT = 60.0  # seconds for the rows of a rank; without them the step is measured as it is, with an event
DETAIL = ("trajectory", "turn", "token")  # tables with many rows a step, which `every` thins out
# What the black box holds once for all updates of a step.
CONSTANT = (
    "mask",
    "log_prob_old",
    "advantages",
    "log_prob_behaviour",
    "log_prob_ref",
    "values_old",
    "returns",
)
ROLLOUTS = (
    "reward",
    "success",
    "turns",
    "group",
    "rollout_step",
    "sample",
    "searches",
    "status",
    "question",
    "gold",
    "answer",
    "ended",
)
# What an audit holds against each other, of which it matters that the trainer itself told it.
TOLD_OF_UPDATES = ("group", "turn", "correction", "gradient_weight", "entropy")
FLAGS = ("active_low", "active_high", "out_of_range", "dual", "corrected")

Message = tuple[int, dict[str, Any], dict[str, np.ndarray]]  # the rank that sent it, what it says, arrays
# The first trajectory of the rank that sent a part of an update, what it says, arrays.
Part = tuple[int, dict[str, Any], dict[str, np.ndarray]]
log = logging.getLogger("sorl.recording")


class Thinned(Recorder):
    """A recorder that writes the detail of every n-th step, and of the steps around an alarm."""

    def __init__(self, folder: Path, run_id: str, settings: RunSettings, every: int) -> None:
        super().__init__(folder, run_id, settings)
        self._held: deque[tuple[int, dict[str, Mapping[str, Any]]]] = deque(
            maxlen=settings.record.batches.before
        )
        self._every = every
        self._until = -1

    def _write(self, step: int, tables: Mapping[str, Mapping[str, Any]]) -> None:
        """Append the tables of a step; detail that is not due is held back until it is clear that no alarm
        follows.
        """
        refused = self._writer is not None and self._writer.refused  # memory must not fill up with rows
        due = step % self._every == 0 or step <= self._until
        detail = {name: columns for name, columns in tables.items() if name in DETAIL}
        super()._write(step, {n: c for n, c in tables.items() if n not in DETAIL or (due and not refused)})
        if not due and not refused:
            self._held.append((step, detail))

    def events(self, events: Sequence[Event]) -> None:
        """Append events; one that is not only information releases the detail of the steps before it."""
        super().events(events)
        for event in (event for event in events if event.severity != "info"):
            self._until = event.step + self.settings.record.batches.before
            while self._held:
                super()._write(*self._held.popleft())


class Scribe:
    """Takes the messages of the first rank, reads those of the others, and writes the run down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: dict[str, Any] = {}
        self.texts: dict[int, str] = {}
        # the present step, and what has come of it; -1: none
        self.step = -1
        self.messages = list[Message]()
        self.steps = 0
        self._began = time.monotonic()
        self._started = datetime.now(UTC).replace(tzinfo=None)
        self._history: list[dict[str, Any]] = []
        self._others: list[Path] = []  # folders of the other ranks
        self._ended = False  # the trainer said so
        self._memory = Memory()  # of what this session has seen

    def open(self, meta: dict[str, Any]) -> None:
        """Begin the run, or continue it: what it has on the disk is what its watches have seen."""
        self.opened = meta
        batches = BatchesSettings.model_validate(meta["batches"])
        settings = RunSettings(record=RecordSettings(tokens=meta["tokens"], batches=batches))
        self.recorder = Thinned(self.folder, meta["run"]["run_id"], settings, meta["every"])
        self._started = self.recorder.started_at() or self._started
        for file in sorted((self.folder / "segments" / "step").glob("[0-9]*.parquet")):
            with suppress(OSError, pa.ArrowException):
                rows = pq.read_table(file).drop_columns(["run_id", "written_at"]).to_pylist()
                self._history += [_without_none(row) for row in rows]
        self._others = [Path(folder) for folder in meta["ranks"]]
        # by ranks of a session that was killed
        for left in {*(self.folder / PARTS).glob("*")} - {*self._others}:
            shutil.rmtree(left, ignore_errors=True)
        self.row("running")

    def row(self, status: str, reason: str | None = None) -> None:
        """Write the row of table `run`."""
        config: dict[str, Any] = dict(self.opened["config"])
        if self.recorder.episodes and self.steps and isinstance(learn := config.get("learn", {}), dict):
            size = {"episodes": self.recorder.episodes, "group_size": self.recorder.group}
            config["learn"] = learn | size  # so that `sorl rescan` judges alike
        identity = {"config": json.dumps(config), "started_at": self._started, "generation": 1, "attempt": 1}
        steps = len(self.recorder.history)
        seconds: float | None = time.monotonic() - self._began
        if self.opened.get("is_afterwards"):  # of a dump: nothing is known of its trainer's times
            identity["started_at"] = None
            seconds = None
        self.recorder.run(self.opened["run"] | identity, status, reason, steps=steps, seconds=seconds)

    def take(self, meta: dict[str, Any], arrays: dict[str, np.ndarray], rank: int = 0) -> None:
        """Do what a message says: begin or end the run, keep what it says of the present step,
        or end that.
        """
        kind = meta["kind"]
        number = meta.get("step", -1)
        if kind == "open":
            self.open(meta)
        elif kind == "close" and rank == 0:
            self.finish()
            self.row(meta["status"], meta["reason"])
            self._ended = True
        self.texts |= {int(token): str(text) for token, text in meta.pop("texts", {}).items()}
        if kind == "evaluation":
            self.recorder.evaluations(
                number, [{name: meta[name] for name in ("data", "success", "episodes")}]
            )
            return
        if kind == "event" and rank == 0:
            self.recorder.events([Event(number, meta["event"], "warning", meta["message"])])
            return
        if kind == "witness" and rank == 0:
            columns = as_columns(meta["rows"])
            started_at = datetime.fromisoformat(meta["started_at"])
            self.recorder.rows("witness", {"step": number, "started_at": started_at, **columns})
            return
        if kind not in ("rollouts", "update", "lost", "end"):
            return
        if self.step < number:
            self.finish()
            self.step = number
        self.messages.append((rank, meta, arrays))
        if kind == "end" and rank == 0:
            self.finish()

    def finish(self) -> None:
        """Measure and write the step that is under way, if there is one."""
        if self.step < 0:
            return
        missing = [rank for rank in range(1, len(self._others) + 1) if not self._join(rank)]
        step = self.step
        messages = self.messages
        self.step = -1
        self.messages = []
        if not _of(messages, "rollouts"):
            log.warning("step %d is not recorded: nothing was told of its rollouts", step)
            return
        try:
            joined = Joined(step, messages, self.opened)
        except (ValueError, IndexError, KeyError) as error:  # ids or shapes that do not fit each other
            log.warning("step %d is not recorded: %s: %s", step, type(error).__name__, error)
            return
        # how many episodes and how large a group a score stands for, and what came before
        if self.steps == 0:
            rollouts = joined.merged or joined.rollouts
            groups = np.unique(rollouts.group, return_counts=True)[1]
            self.recorder.group = int(groups.max(initial=1))
            self.recorder.episodes = None if rollouts.success is None else len(rollouts)
            seen = {row["step"]: row for row in self._history if row["step"] < step}
            self.recorder.replay([seen[number] for number in sorted(seen)])
        if missing:
            words = (
                f"the rows of {len(missing)} of {len(self._others) + 1} ranks did not come: rank {missing[0]}"
                " first"
            )
            self.recorder.events([Event(step, "rank_missing", "warning", words, value=len(missing))])
        if joined.lost:
            words = "its tensors were more than memory_mb, or came faster than they were measured"
            self.recorder.events(
                [Event(step, "not_recorded", "warning", f"no updates of this step: {words}")]
            )
        if self.texts:
            self.recorder.decode = lambda ids: [self.texts.get(token, "") for token in ids]
        self._write(step, joined)
        self.steps += 1

    def _write(self, step: int, joined: Joined) -> None:
        """Measure a step that was put together, and write it down."""
        self.recorder.batch(step, joined.packed())
        if joined.seen is not None:
            self.recorder.rows("witness_batch", {"step": step, **joined.witnessed()})
        evidence = joined.evidence()
        self.recorder.step(step, replace(evidence, revisits=self._memory.see(step, evidence)))

    def stop(self) -> int:
        """Write what is left: the trainer is gone. Returns 1 where rows could not be written."""
        if not self.opened:
            return 0
        if not self._ended and _of(self.messages, "update"):
            self.finish()  # it was killed in this step
        shutil.rmtree(self.folder / PARTS, ignore_errors=True)
        try:
            self.recorder.close()
        except ValueError as error:
            log.warning("%s", error)
            return 1
        return 0

    def _join(self, rank: int) -> bool:
        """Take what another rank saw of the present step; False where its end did not come."""
        folder = self._others[rank - 1]
        number = self.step
        until = time.monotonic() + RANKS_WAIT
        while not (ended := any(file.name >= f"{number:08d}-end" for file in folder.glob("[0-9]*"))):
            if time.monotonic() > until:
                break
            time.sleep(0.02)
        for file in sorted(folder.glob(f"{number:08d}-*")):
            try:
                self.take(*decode(file.read_bytes()), rank=rank)
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                log.warning("'%s' left out: %s", file, error)
            with suppress(OSError):
                file.unlink()
        return ended


class Joined:
    """A step put together: the trajectories of all ranks in one order, every update as one batch of full
    width.
    """

    def __init__(self, step: int, messages: Sequence[Message], opened: Mapping[str, Any]) -> None:
        # too much waited: no tensors
        self.step = step
        self.opened = opened
        self.lost = bool(_of(messages, "lost"))
        self.seconds: Mapping[str, float] = next(
            (m["seconds"] for r, m, _ in _of(messages, "end") if r == 0), {}
        )
        self.calls = _of(messages, "rollouts")
        first = dict[int, int]()
        self.n = 0
        for rank, _, arrays in self.calls:
            first.setdefault(rank, self.n)
            self.n += _count(arrays)
        self.told: dict[int, list[Message]] = defaultdict(list)  # of each update
        for message in [] if self.lost else _of(messages, "update"):
            self.told[message[1]["update"]].append(message)
        parts = (_parts_of(self.told[update], first) for update in sorted(self.told))
        self.parts = [of_update for of_update in parts if of_update]
        self.masks = self._masks()
        self.prompts = self._tokens("prompts")
        self.responses = self._tokens("responses")
        self.offset = np.array(
            [len(x) for x in self.prompts] if self.prompts else [0] * self.n, dtype=np.int64
        )
        self.length = self.offset + np.array([len(x) for x in self.responses or self.masks], dtype=np.int64)
        self.width = int(self.length.max(initial=1))
        self.rollouts = self._rollouts()
        self.merged = self._merged()
        self.updates = [self._update(parts) for parts in self.parts]
        self.seen = Evidence.stack(self.updates) if self.updates else None

    def _told(self, name: str) -> Any:
        """What the calls say of each trajectory, an array (N,) or a list of words; None where a call lacks
        it.
        """
        found: list[Any] = [arrays.get(name, meta.get(name)) for _, meta, arrays in self.calls]
        if any(x is None for x in found):
            return None
        return np.concatenate(found) if isinstance(found[0], np.ndarray) else [*chain.from_iterable(found)]

    def _tokens(self, name: str) -> list[np.ndarray] | None:
        """Token ids of each trajectory; None where a call lacks them."""
        rows: list[np.ndarray] = []
        for *_, arrays in self.calls:
            if name not in arrays:
                return None
            rows += np.split(arrays[name], np.cumsum(arrays[f"{name}.length"])[:-1]) if _count(arrays) else []
        return rows

    def _masks(self) -> list[np.ndarray]:
        """Where the policy wrote, of each trajectory's response: as told, else as the first update on it has
        it.
        """
        if all("mask" in arrays for *_, arrays in self.calls):
            masks = chain.from_iterable(arrays["mask"] for *_, arrays in self.calls)
            return [row.astype(bool) for row in masks]
        found = [np.zeros(0, dtype=bool)] * self.n
        for first, _, arrays in chain.from_iterable(reversed(self.parts)):
            for row, mask in zip(first + arrays["trajectory"], arrays["mask"], strict=True):
                found[row] = mask
        return found

    def _rollouts(self) -> Rollouts:
        told = {name: self._told(name) for name in ROLLOUTS}
        reward = self._reward(told["reward"])
        sampled = told["rollout_step"]
        success = self._success(told["success"], reward)
        return Rollouts(
            reward=reward,
            group=np.asarray(self._group(told["group"]), dtype=np.int64),
            rollout_step=(
                np.full(self.n, self.step) if sampled is None else np.asarray(sampled, dtype=np.int64)
            ),
            success=None if success is None else np.asarray(success) > 0.5,
            turn_status=told["status"],
            question=told["question"],
            gold=told["gold"],
            answer=told["answer"],
            ended=told["ended"],
            sample=told["sample"],
            **(self._counts() | _outcomes(told)),
        )

    def _success(self, told: np.ndarray | None, reward: np.ndarray | None) -> np.ndarray | None:
        """Success as told; else rewards that are all 0 or 1; None: not known."""
        if told is None and self.n and reward is not None and np.isin(reward, (0.0, 1.0)).all():
            return reward
        return told

    def _group(self, told: np.ndarray | None) -> np.ndarray:
        """Prompt groups as told, by the rollouts or by the updates; else each trajectory is one."""
        if told is not None:
            return told
        group = np.arange(self.n)
        for first, _, arrays in chain.from_iterable(self.parts):
            if "group" in arrays:
                group[first + arrays["trajectory"]] = arrays["group"]
        return group

    def _counts(self) -> dict[str, Any]:
        """What masks and token ids say of each trajectory, as fields of Rollouts."""
        known: dict[str, Any] = {}
        # no update, or not measured (`trajectories`)
        unknown = np.array([not len(mask) for mask in self.masks])
        count = np.ma.array([mask.sum() for mask in self.masks], dtype=np.int64, mask=unknown)
        if not unknown.all():
            turns = [count_stretches(mask) for mask in self.masks]
            known = {"response_tokens": count, "turns": np.ma.array(turns, dtype=np.int64, mask=unknown)}
        if self.responses is not None:
            lengths = np.array([len(ids) for ids in self.responses], dtype=np.int64)
            known |= {"observation_tokens": lengths - count} | self._written(self.responses)
        return known

    def _written(self, responses: Sequence[np.ndarray]) -> dict[str, Any]:
        """Token ids of each trajectory, by turns, as fields of Rollouts."""
        prompts = self.prompts or [np.zeros(0, np.int32)] * self.n
        written = []
        token_turn = []
        for prompt, ids, whole_mask in zip(prompts, responses, self.masks, strict=True):
            mask = whole_mask[: len(ids)]
            written.append(stretches(ids.tolist(), mask))
            is_written = np.concatenate([np.zeros(len(prompt), dtype=bool), mask])
            token_turn.append(number_turns(is_written) if len(mask) else None)
        return {
            "tokens": [np.concatenate(pair) for pair in zip(prompts, responses, strict=True)],
            "written": written,
            "token_turn": token_turn,
        }

    def _reward(self, told: np.ndarray | None) -> np.ndarray | None:
        """Rewards, masked where a trainer did not say one; None where it said none."""
        if told is None:
            return None
        reward = np.asarray(told, dtype=np.float64)
        known = self._told("reward_known")
        return reward if known is None else np.ma.array(reward, mask=~known)

    def _merged(self) -> Rollouts | None:
        """One entry a rollout, where several rows are of one; None where each row is a rollout."""
        rollout = self._told("rollout")
        if rollout is None or self.responses is None:
            return None
        prompts = self.prompts or [np.zeros(0, np.int32)] * self.n
        tokens = [np.concatenate(row) for row in zip(prompts, self.responses, strict=True)]
        branches = find_branches(rollout, tokens)
        if not branches.has_several_rows:
            return None
        merged = merge_rows(self.rollouts, branches, self.masks, self.offset)
        parent = np.ma.array(branches.parent, mask=branches.parent < 0)
        self.rollouts = replace(
            self.rollouts,
            rollout=branches.rollout,
            parent=parent,
            shared_tokens=branches.shared_tokens,
        )
        return merged

    def _update(self, parts: Sequence[Part]) -> Evidence:
        """One update as evidence (1, B, T); what one part lacks is not known of the update."""
        trajectory = np.concatenate([first + arrays["trajectory"] for first, _, arrays in parts])
        joined = JoinedParts(parts, self.offset, self.width)
        tensors: dict[str, Any] = {name: joined.tensor(name) for name in ("advantages", *TOKENS)}
        tensors |= {name: joined.tensor(name, bool if name in FLAGS else None) for name in TERMS}
        mask = joined.need("mask")
        told = joined.tensor("turn", np.int64)
        turn = turn_ids(mask) if told is None else told
        if self.opened["clip"] is not None and tensors["ratio"] is None:
            tensors |= clip_terms(self.opened["clip"], tensors, mask, turn)
        scalars = _scalars(self.told[parts[0][1]["update"]])
        if "stabiliser_ratio" in scalars and tensors["factor"] is not None:
            scalars["stabiliser_factor"] = float(tensors["factor"][mask].mean()) if mask.any() else 1.0
        age = round(float(self.rollouts.rollout_step[trajectory].mean())) if len(trajectory) else self.step
        return Evidence(
            epoch=torch.tensor([parts[0][1]["epoch"]]),
            rollout_step=torch.tensor([age]),
            trajectory=torch.from_numpy(trajectory)[None],
            mask=mask[None],
            turn=turn[None],
            scalars={name: [value] for name, value in scalars.items()},
            **{name: None if x is None else x[None] for name, x in tensors.items()},
        )

    def evidence(self) -> StepEvidence:
        """Return the step for the recorder."""
        trained = self.responses is not None and self.seen is not None
        parts = [x.tobytes() for x in (*(self.responses or ()), *self.masks)]
        tokens = sum(int(update.mask.sum()) for update in self.updates)
        digest = fingerprint(*parts) if trained else None
        if self.merged is None:
            return StepEvidence(self.rollouts, self.seen, None, self.seconds, tokens, batch_hash=digest)
        return StepEvidence(self.merged, self.seen, self.rollouts, self.seconds, tokens, batch_hash=digest)

    def witnessed(self) -> dict[str, Any]:
        """Checksums of the trajectories that were trained on, as sampled and as trained; None: not known."""
        parts = list(chain.from_iterable(self.parts))
        trained: list[tuple[int, int]] = []
        for first, _, arrays in parts:
            used = arrays["mask"].any(axis=1)  # a row without trained tokens was left out by a selection
            mask = arrays["mask"][used]
            rows = arrays["tokens"][used] if "tokens" in arrays else mask
            trajectories = (first + arrays["trajectory"][used]).tolist()
            trained += zip(trajectories, map(row_checksum, rows, mask), strict=True)
        numbers = sorted({number for number, _ in trained})
        is_sampled = self.responses is not None and all("mask" in arrays for *_, arrays in self.calls)
        are_trained = all("tokens" in arrays for *_, arrays in parts)
        ranks = len({rank for rank, *_ in self.calls})
        return {
            "trajectories": len(numbers),
            "sampled_checksum": self._sampled(numbers) if is_sampled else None,
            "trained_checksum": total_checksum(trained_rows(trained)) if are_trained else None,
            "micro_batches": len(parts) // ranks,
        }

    def _sampled(self, numbers: Sequence[int]) -> int:
        """Checksum of these trajectories as their rollouts were told."""
        rows = self.responses or []
        return total_checksum(
            row_checksum(rows[number], self.masks[number][: len(rows[number])]) for number in numbers
        )

    def packed(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Arrays and metadata for the black box; None where no token ids or no updates were told."""
        if self.responses is None or self.seen is None:
            return None
        real = self.seen.trajectory.numpy() >= 0  # (U, B): no padding
        trained, first, at = np.unique(
            self.seen.trajectory.numpy()[real], return_index=True, return_inverse=True
        )
        # (R, T)
        columns = {name: getattr(self.seen, name) for name in (*CONSTANT, "log_prob")}
        told = {name: column.numpy()[real] for name, column in columns.items() if column is not None}
        absent = fill_in(told)
        if "log_prob" not in told:
            return None
        log_prob = told.pop("log_prob")
        arrays = self._trajectory_arrays(trained) | {
            "update.size": real.sum(1).astype(np.int32),
            "update.rows": at.astype(np.int32),
            "update.log_prob": log_prob,
        }
        # As the first update on the trajectory has it.
        arrays |= {"values" if name == "values_old" else name: x[first] for name, x in told.items()}
        sampled = self._sampled_mask(trained)
        if not np.array_equal(sampled, arrays["mask"]):
            arrays["mask_sampled"] = sampled
        if self._updates_tell("gradient_weight"):
            arrays["update.gradient_weight"] = Known(self.seen).gradient_weight.numpy()[real]
        own = ("mask", "advantages", "log_prob_old")
        if not all(np.array_equal(told[name], arrays[name][at]) for name in own):
            arrays |= {f"update.{name}": told[name] for name in own}
        return arrays, self._meta_of_batch(trained, absent)

    def _trajectory_arrays(self, trained: np.ndarray) -> dict[str, np.ndarray]:
        """What the black box holds of these trajectories themselves."""
        place = np.arange(self.width)
        ids = np.zeros((len(trained), self.width), dtype=np.int32)
        for row, trajectory in enumerate(trained):
            ids[row, : self.length[trajectory]] = Known(self.rollouts).tokens[trajectory]
        arrays: dict[str, np.ndarray] = {
            "tokens": ids,
            "response": (place >= self.offset[trained, None]) & (place < self.length[trained, None]),
            "length": self.length[trained].astype(np.int32),
            "group": self.rollouts.group[trained].astype(np.int32),
            "trajectory": trained.astype(np.int32),
            "score": self._scores()[trained],
        }
        if self.rollouts.rollout is not None:
            arrays["rollout"] = self.rollouts.rollout[trained].astype(np.int32)
        return arrays

    def _meta_of_batch(self, trained: np.ndarray, absent: list[str]) -> dict[str, Any]:
        """What the black box says of a batch beside its arrays; `absent` are arrays that are stand-ins."""
        meta: dict[str, Any] = {
            "algorithm": self.opened["replay_as"],
            "undeclared": self.opened.get("undeclared", []),
            "told": self._names_told(),
            "group_rollouts": self._group_sizes()[trained].tolist(),
            "slots": {},
            "temperature": self.opened["temperature"],
            "learn": LearnSettings().model_dump(mode="json"),
            "compute": {},
            "updates": [self._described(*update) for update in zip(self.updates, self.parts, strict=True)],
        }
        if self.rollouts.reward is None or np.ma.getmaskarray(self.rollouts.reward)[trained].any():
            absent = [*absent, "score"]
        if absent:
            meta["absent"] = absent
        if (turns := self._told("turns")) is not None:
            meta["turns"] = turns[trained].tolist()
        return meta

    @staticmethod
    def _described(update: Evidence, parts: Sequence[Part]) -> dict[str, Any]:
        """An update as the black box describes it."""
        return {
            "epoch": int(update.epoch),
            "rollout_step": int(update.rollout_step),
            "passes": [len(arrays["mask"]) for _, _, arrays in parts],
            "scalars": _stored_scalars(update),
        }

    def _scores(self) -> np.ndarray:
        """Rewards as the black box has them; NaN where the trainer said none."""
        if self.rollouts.reward is None:
            return np.full(self.n, np.nan)
        return np.ma.filled(self.rollouts.reward, np.nan)

    def _sampled_mask(self, trained: np.ndarray) -> np.ndarray:
        """Where the policy wrote, as the rollouts say it, of the trajectories that were trained on."""
        mask = np.zeros((len(trained), self.width), dtype=bool)
        for row, trajectory in enumerate(trained):
            start = self.offset[trajectory]
            written = self.masks[trajectory][: self.width - start]
            mask[row, start : start + len(written)] = written
        return mask

    def _group_sizes(self) -> np.ndarray:
        """How many rollouts the group of each trajectory has, trained on or not."""
        _, group, sizes = np.unique(self.rollouts.group, return_inverse=True, return_counts=True)
        return np.asarray(sizes[group])

    def _rollouts_tell(self, name: str) -> bool:
        """Whether every call told this of its rollouts."""
        return all(name in arrays or name in meta for _, meta, arrays in self.calls)

    def _updates_tell(self, name: str) -> bool:
        """Whether every part of every update came with this tensor."""
        return all(name in arrays for _, _, arrays in chain.from_iterable(self.parts))

    def _names_told(self) -> list[str]:
        """What the trainer itself told of the step, and no default or computation of ours stands for."""
        of_rollouts = [name for name in (*ROLLOUTS, "mask") if self._rollouts_tell(name)]
        of_updates = [name for name in TOLD_OF_UPDATES if self._updates_tell(name)]
        return sorted({*of_rollouts, *of_updates})


def _parts_of(messages: Sequence[Message], first: Mapping[int, int]) -> list[Part]:
    """The parts of an update in order of ranks; `first`: the first trajectory of each rank."""
    parts = []
    for rank, meta, arrays in messages:
        if rank in first and "mask" in arrays:
            parts.append((first[rank], meta, arrays))
    return parts


def _outcomes(told: Mapping[str, Any]) -> dict[str, Any]:
    """What the trainer's words say of each trajectory, as fields of Rollouts."""
    status = told["status"]
    known = {name: told[name] for name in ("turns", "searches") if told[name] is not None}
    if "searches" not in known and status is not None and all(status):
        known["searches"] = np.array([turns.count("search") for turns in status], dtype=np.int64)
    if status is not None and any("invalid" in turns for turns in status):
        valid = [len(turns) - turns.count("invalid") for turns in status]
        known["valid_turns"] = np.array(valid, dtype=np.int64)
    if told["ended"] is not None:
        known["truncated"] = np.array([reason != "answer" for reason in told["ended"]], dtype=bool)
    if told["answer"] is not None:
        known["answered"] = np.array([text is not None for text in told["answer"]], dtype=bool)
    return known


def fill_in(tensors: dict[str, np.ndarray]) -> list[str]:
    """Put stand-ins for what a batch must have and the trainer did not tell; returns their names.

    Before the first update the policy is the old policy, and the old policy is the sampler's if nothing is
    stale. A replay on stand-ins says so, and no audit holds them against a run.
    """
    stand_ins = {"log_prob_old": "log_prob_behaviour", "log_prob": "log_prob_old"}
    absent = []
    for name, other in stand_ins.items():
        if name not in tensors and other in tensors:
            tensors[name] = tensors[other]
            absent.append(name)
    if "advantages" not in tensors and "log_prob" in tensors:
        tensors["advantages"] = np.zeros_like(tensors["log_prob"])
        absent.append("advantages")
    return absent


def _count(arrays: Mapping[str, np.ndarray]) -> int:
    """How many trajectories a call speaks of."""
    return len(arrays["reward"] if "reward" in arrays else arrays["group"])


def _stored_scalars(update: Evidence) -> dict[str, float | None]:
    """The scalars of an update as the black box has them, with the mean entropy of its tokens."""
    scalars = {name: values[0] for name, values in update.scalars.items()}
    if update.entropy is not None and bool(update.mask.any()):
        scalars["entropy"] = float(update.entropy[update.mask].double().mean())
    return scalars


class JoinedParts:
    """The parts of an update as one batch (b, T) of full width, prompts included.

    Only what the policy wrote is kept: elsewhere nothing is defined.
    """

    def __init__(self, parts: Sequence[Part], offset: np.ndarray, width: int) -> None:
        self._parts = parts
        self._width = width
        self._rows = 0
        self._places: list[tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]] = []  # to, from
        for first, _, arrays in parts:
            row, position = arrays["mask"].nonzero()
            start = offset[first + arrays["trajectory"]][row]
            self._places.append(((self._rows + row, position + start), (row, position)))
            self._rows += len(arrays["mask"])

    def tensor(self, name: str, kind: Any = None) -> Tensor | None:
        """One of their arrays; None where a part lacks it."""
        if not all(name in arrays for _, _, arrays in self._parts):
            return None
        found = [arrays[name] for _, _, arrays in self._parts]
        out = np.zeros((self._rows, self._width), dtype=kind or np.result_type(*found))
        for x, (to, origin) in zip(found, self._places, strict=True):
            out[to] = x[origin[0]] if x.ndim == 1 else x[origin]
        return torch.from_numpy(out)

    def need(self, name: str) -> Tensor:
        """One that every part has."""
        found = self.tensor(name)
        if found is None:
            raise ValueError(f"{name} is missing")
        return found


def clip_terms(
    clip: Mapping[str, Any], tensors: Mapping[str, Any], mask: Tensor, turn: Tensor
) -> dict[str, Any]:
    """What PPO's clip did, by the names of TERMS; nothing where log-probs or advantages are not known."""
    log_prob, old, advantages = (tensors[name] for name in ("log_prob", "log_prob_old", "advantages"))
    if log_prob is None or old is None or advantages is None:
        return {}
    terms = clipped(clip, log_prob - old, advantages, mask, turn)
    if tensors["gradient_weight"] is None and clip["stops"]:
        stopped = terms["active_low"] | terms["active_high"] | terms["dual"]
        free = torch.where(stopped, 0, terms["ratio"] * advantages)
        terms["gradient_weight"] = -free / mask.sum().clamp(min=1)
    return terms


def clipped(
    clip: Mapping[str, Any], log_ratio: Tensor, advantages: Tensor, mask: Tensor, turn: Tensor
) -> dict[str, Any]:
    """Return what PPO's clip did with each token, (B, T): the pooled ratio, the flags, a factor of 1."""
    x = torch.where(mask, log_ratio, 0).double().clamp(-CLAMP, CLAMP)
    advantages = advantages.double()
    token = x.exp()
    if clip["level"] != "token":
        unit = turn if clip["level"] == "turn" else mask.long()
        x = spread(pool(x, unit).mean, unit)
    ratio = x.exp()
    low = clip["lower"]
    high = clip["upper"]
    none = torch.zeros_like(mask)
    dual = none if clip["dual"] is None else mask & (advantages < 0) & (ratio > clip["dual"])
    return {
        "ratio": ratio,
        "factor": torch.ones_like(ratio),
        "dual": dual,
        "active_low": mask & (advantages < 0) & (ratio < low) if clip["stops"] else none,
        "active_high": mask & (advantages > 0) & (ratio > high) if clip["stops"] else none,
        "out_of_range": mask & ((token < low) | (token > high)),
    }


def _of(messages: Sequence[Message], kind: str) -> list[Message]:
    """Return the messages of a kind, one rank after another."""
    of_kind = (message for message in messages if message[1]["kind"] == kind)
    return sorted(of_kind, key=lambda message: message[0])


def _scalars(messages: Sequence[Message]) -> dict[str, float]:
    """Scalars of an update: losses added up over a rank's parts and averaged over ranks, others as first
    told.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for *_, arrays in messages:
        for key in (key for key in arrays if key.startswith("scalar.")):
            found[key.removeprefix("scalar.")].append(float(arrays[key].reshape(-1)[0]))
    ranks = len({rank for rank, *_ in messages})
    summed = {name: sum(told) / ranks for name, told in found.items() if name in SUMMED}
    if ratios := found.get("stabiliser_ratio"):  # each part has one of its own
        summed["stabiliser_ratio"] = max(ratios)
    means = {name: sum(found[name]) / len(found[name]) for name in AVERAGED if name in found}
    return {name: told[0] for name, told in found.items()} | summed | means


def _without_none(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}
