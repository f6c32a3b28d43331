"""Captures of tinker-cookbook: each call of the sampler, with its tokens and their log-probs.

`capture/sample.jsonl` (a record a call) or `capture.sqlite` (a row a sampled sequence), written by its
package `capture` (since 2026-07-30) where a training script asks for it. A call is a turn: turns whose prompt
goes on from the tokens of an earlier one are one row. Rewards come from the rollout summaries beside it.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from sorl.importing.dumps.files import floats, token_ids
from sorl.importing.dumps.json_streams import JsonStream
from sorl.importing.dumps.rows import Dump, DumpStep, Row, Sampler
from sorl.importing.dumps.tinker_store import STORE, CaptureStore
from sorl.importing.dumps.tinker_summaries import Scope, summaries, summary_files
from sorl.spec import InputError

RECORDS = Path("capture") / "sample.jsonl"
FIRST_BYTES = b'{"kind": "sample"'
WINDOW = 2  # iterations in flight: a call is written when it ends, so later ones may stand before it

ONLY_SAMPLER = (
    "The capture has the sampler's log-probs alone: none of the trainer, no advantages and no loss mask. All"
    " that was sampled counts as trained."
)
WEIGHTS_BY_NAME = "Which weights sampled a turn is told by the number in their name."
NO_ITERATION = "Calls without an iteration in their scope: {}; the weights that sampled them give the step."
NO_GROUP = (
    "Rollouts without a group in their scope: {}; those of one prompt and one step are taken for a group."
)
NO_REWARD = "Rollouts that no summary gives a reward: {}."
NO_TOKENS = "Calls without tokens, which failed or had images in the prompt: {}; they are left out."
NO_LOG_PROBS = "Rows with a turn without log-probs: {}; they have none at all."
EVALUATION = "Calls of evaluations: {}; they are left out."
LATE = "Calls that were written after their step had been read: {}; they are left out."
REPEATED = "Calls that are written twice, or of an attempt that a restart did again: {}; the newest count."
OTHER_RUNS = "The capture holds other runs as well; the one read is {}."


@dataclass(frozen=True)
class Turn:
    """One sequence that a call sampled."""

    iteration: int | None
    group: int | None
    trajectory: int | None  # in the group
    attempt: int  # of the run, at this iteration
    key: str  # of the call and the sequence
    prompt: np.ndarray
    tokens: np.ndarray
    log_probs: np.ndarray | None
    weights: str  # name of what sampled it, or of the client that did
    version: int | None  # the number at the end of the weights' name
    is_cut_off: bool  # at the longest length
    size: int  # bytes

    @property
    def sequence(self) -> np.ndarray:
        """Prompt and tokens: what the prompt of the next turn begins with."""
        return np.concatenate([self.prompt, self.tokens])


class TinkerCapture(Dump):
    """The capture of one training run. A step is an iteration, which tinker-cookbook counts from 0."""

    trainer = "tinker-cookbook"
    format = "capture"

    def __init__(self, folder: Path, sampler: Sampler) -> None:
        super().__init__(folder, sampler)
        self._records = JsonStream(folder / "capture" / "sample", FIRST_BYTES, self.note)
        self._store = CaptureStore(folder / STORE)
        self._run: str | None = None
        self._iterations: dict[int, list[Turn]] = {}  # in flight
        self._weights: dict[str, int] = {}  # names without a number, in the order in which they came
        self._done = -1
        self._settings: Mapping[str, object] = {}

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether the folder has sampled records, or a store."""
        if CaptureStore(folder / STORE).is_store():
            return True
        file = folder / RECORDS
        if not file.is_file():
            return False
        with file.open("rb") as handle:
            return handle.read(len(FIRST_BYTES)) == FIRST_BYTES

    @property
    def settings(self) -> Mapping[str, object]:
        """How the first call sampled: temperature and the like."""
        return self._settings

    def steps(self, after: int, *, is_live: bool = False) -> Iterator[DumpStep]:
        """Yield the iterations after `after`. The capture is read once: none comes again."""
        self.note(ONLY_SAMPLER)
        for turn in self._turns(is_live):
            iteration = self._iteration(turn)
            if iteration <= self._done:
                self.note_count(LATE, 1)
                continue
            self._iterations.setdefault(iteration, []).append(turn)
            while self._iterations and max(self._iterations) >= min(self._iterations) + WINDOW:
                yield from self._finish(after)
        while self._iterations and not is_live:
            yield from self._finish(after)

    def _turns(self, is_live: bool) -> Iterator[Turn]:
        """Yield what was sampled since the last call, of the run that is read."""
        if self._store.is_store():
            self._run = self._run or self._store.newest_run()
            if self._run is None:
                return
            for record, size in self._store.records(self._run):
                yield from self._turns_of(record, size, self._store.file)
            if self._store.has_other_runs(self._run):
                self.note(OTHER_RUNS.format(self._run))
            return
        try:
            while (line := self._records.read(is_live=is_live)) is not None:
                yield from self._turns_of(line.value, line.size, line.file)
        finally:
            self._records.close()

    def _turns_of(self, record: Mapping[str, Any], size: int, file: Path) -> Iterator[Turn]:
        scope = record.get("scope") or {}
        samples = record.get("samples") or []
        if not isinstance(scope, dict) or not isinstance(samples, list):
            raise InputError(f"'{file}': a record's scope is no object, or its samples are no list")
        run = str(scope.get("run_id"))
        self._run = self._run or run
        if run != self._run:
            self.note(OTHER_RUNS.format(self._run))
            return
        if scope.get("split", "train") not in (None, "train") or scope.get("purpose") == "eval":
            self.note_count(EVALUATION, 1)
            return
        if record.get("status", "ok") != "ok" or record.get("prompt_tokens") is None or not samples:
            self.note_count(NO_TOKENS, 1)
            return
        self._settings = self._settings or _sampling_settings(record)
        for place, sample in enumerate(samples):
            turn = _turn(record, scope, sample, _Place(place, size // len(samples), file))
            if turn is None:
                self.note_count(NO_TOKENS, 1)
            else:
                yield turn

    def _iteration(self, turn: Turn) -> int:
        if turn.iteration is not None:
            return turn.iteration
        self.note_count(NO_ITERATION, 1)
        if turn.version is not None:
            return turn.version
        return self._weights.setdefault(turn.weights, len(self._weights))

    def _finish(self, after: int) -> Iterator[DumpStep]:
        """Yield the oldest iteration in flight, if it is wanted."""
        iteration = min(self._iterations)
        turns = self._iterations.pop(iteration)
        self._done = iteration
        if iteration > after:
            yield DumpStep(iteration, self._rows(iteration, self._newest(turns)))

    def _newest(self, turns: list[Turn]) -> list[Turn]:
        """Each call once, of the last attempt at the iteration."""
        attempt = max(turn.attempt for turn in turns)
        newest = {turn.key: turn for turn in turns if turn.attempt == attempt}
        self.note_count(REPEATED, len(turns) - len(newest))
        return list(newest.values())

    def _rows(self, iteration: int, turns: list[Turn]) -> list[Row]:
        file = summary_files(self.folder).get(iteration)
        known = dict(summaries(file, iteration)) if file is not None else {}
        share = self.sampler.share(sum(turn.size for turn in turns))
        rows = []
        if any(turn.version is not None for turn in turns):
            self.note(WEIGHTS_BY_NAME)
        for rollout, chain in self._rollouts(iteration, turns, known):
            self.note_count(NO_REWARD, 1 if rollout.reward is None else 0)
            keeps = self.sampler.keeps(rollout.group or rollout.trajectory, iteration, share)
            row = _row(rollout, chain)
            self.note_count(NO_LOG_PROBS, 0 if row.columns else 1)
            rows.append(row if keeps else row.without_tokens())
        return rows

    def _rollouts(
        self, iteration: int, turns: list[Turn], known: Mapping[Scope, Row]
    ) -> Iterator[tuple[Row, list[Turn]]]:
        """Yield each chain of turns, with what is known of its rollout."""
        scopes: dict[tuple[int | None, int | None], list[Turn]] = {}
        for turn in turns:
            scopes.setdefault((turn.group, turn.trajectory), []).append(turn)
        for (group, trajectory), members in scopes.items():
            scope = None
            if group is not None and trajectory is not None:
                scope = Scope(iteration, group, trajectory)
            for number, chain in enumerate(chains(members)):
                if scope is not None:
                    yield known.get(scope, _unknown(scope.name, f"{iteration}-{group}")), chain
                    continue
                self.note_count(NO_GROUP, 1 if group is None else 0)
                label = _digest(chain[0].prompt).hex()[:16] if group is None else str(group)
                yield _unknown(f"{iteration}-{label}-{number}", f"{iteration}-{label}"), chain


def chains(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Turns in rows: each follows the one with the longest sequence that its prompt begins with.

    A sequence is continued once. Where two turns follow it, the second begins a row of its own, and what both
    have in common is prompt there.
    """
    rows: list[list[Turn]] = []
    ends: dict[bytes, list[int]] = {}  # rows by a digest of their sequence so far
    lengths: list[int] = []  # of these sequences
    for turn in sorted(turns, key=lambda turn: len(turn.prompt)):
        before = _longest_beginning(turn.prompt, lengths, ends)
        if before is None:
            number = len(rows)
            rows.append([])
        else:
            number = ends[before].pop(0)
        rows[number].append(turn)
        sequence = turn.sequence
        ends.setdefault(_digest(sequence), []).append(number)
        if len(sequence) not in lengths:
            insort(lengths, len(sequence))
    place = {turn.key: number for number, turn in enumerate(turns)}
    return sorted(rows, key=lambda row: place[row[0].key])


def _longest_beginning(
    prompt: np.ndarray, lengths: list[int], ends: Mapping[bytes, list[int]]
) -> bytes | None:
    longest = None
    digest = blake2b(digest_size=16)
    start = 0
    for length in lengths:
        if length > len(prompt):
            break
        digest.update(prompt[start:length].tobytes())
        start = length
        if ends.get(digest.digest()):
            longest = digest.digest()
    return longest


def _row(rollout: Row, chain: list[Turn]) -> Row:
    """The row of turns that follow each other."""
    tokens = chain[-1].sequence
    start = len(chain[0].prompt)
    written = np.zeros(len(tokens), bool)
    numbers = np.zeros(len(tokens), np.int32)
    log_probs = np.zeros(len(tokens), np.float32)
    for number, turn in enumerate(chain, 1):
        place = slice(len(turn.prompt), len(turn.prompt) + len(turn.tokens))
        written[place] = True
        numbers[place.start :] = number
        if turn.log_probs is not None:
            log_probs[place] = turn.log_probs
    has_log_probs = all(turn.log_probs is not None for turn in chain)
    versions = [turn.version for turn in chain if turn.version is not None]
    return replace(
        rollout,
        tokens=tokens,
        prompt_length=start,
        written=written[start:],
        turn=numbers[start:],
        columns={"log_prob_behaviour": log_probs[start:]} if has_log_probs else {},
        version=min(versions, default=None) if rollout.version is None else rollout.version,
        newest_version=max(versions, default=None),
        ended="max_tokens" if chain[-1].is_cut_off else None,
        is_measured=True,
        turn_lengths=None,
    )


def _unknown(name: str, group: str) -> Row:
    """A rollout of which no summary tells anything."""
    return Row(name, np.zeros(0, np.int32), 0, np.zeros(0, bool), group=group, is_measured=False)


@dataclass(frozen=True)
class _Place:
    number: int  # of the sequence in its call
    size: int
    file: Path


def _turn(record: Mapping[str, Any], scope: Mapping[str, Any], sample: Any, place: _Place) -> Turn | None:
    """A sampled sequence; None where it has no tokens."""
    file = place.file
    call = f"call {record.get('seq_id')}"
    if not isinstance(sample, dict):
        raise InputError(f"'{file}': {call}: a sample is no object")
    if not sample.get("tokens"):
        return None
    tokens = token_ids(sample["tokens"], f"{call}: tokens", file)
    log_probs = None
    if sample.get("logprobs") is not None:
        log_probs = floats(sample["logprobs"], f"{call}: logprobs", file)
        if len(log_probs) != len(tokens):
            raise InputError(f"'{file}': {call}: {len(log_probs)} logprobs for {len(tokens)} tokens")
    number = record.get("sample_idx", place.number)
    is_alone = len(record["samples"]) == 1 and record.get("num_samples", 1) == 1
    path = str(record.get("model_path") or "")
    version = re.search(r"\d{1,9}$", path)
    return Turn(
        iteration=_coordinate(scope, "iteration", file),
        group=_coordinate(scope, "group_idx", file),
        trajectory=_coordinate(scope, "traj_idx", file) if is_alone else None,
        attempt=_coordinate(scope, "run_attempt", file) or 0,
        key=f"{record.get('sampling_session_id')} {record.get('seq_id')} {number}",
        prompt=token_ids(record["prompt_tokens"], f"{call}: prompt_tokens", file),
        tokens=tokens,
        log_probs=log_probs,
        weights=path or str(record.get("sampling_session_id")),
        version=None if version is None else int(version[0]),
        is_cut_off=sample.get("stop_reason") == "length",
        size=place.size,
    )


def _coordinate(scope: Mapping[str, Any], key: str, file: Path) -> int | None:
    value = scope.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise InputError(f"'{file}': {key} of a scope is {value!r}, which is no whole number")
    return value


def _sampling_settings(record: Mapping[str, Any]) -> Mapping[str, object]:
    settings = record.get("sampling_params")
    if not isinstance(settings, dict):
        return {}
    return {name: value for name, value in settings.items() if value is not None}


def _digest(tokens: np.ndarray) -> bytes:
    return blake2b(tokens.tobytes(), digest_size=16).digest()
