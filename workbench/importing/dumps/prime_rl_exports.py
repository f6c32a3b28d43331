"""Token exports of prime-rl, `token_exports/`: what the trainer saw of each packed sequence.

Written with `enable_token_export` from 2026-05-21 to #3444 (2026-09-01); since then prime-rl writes traces.
Until 2026-06-27 (0be5ac452) with `rewards`. Then without, and since 2026-07-09 the episodes of a batch lie in
`rollouts/step_N/train/effective/`. Exports and episodes share no ids, so they are joined by their tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sorl.importing.dumps.files import (
    flags,
    floats,
    is_settled,
    json_objects,
    numbered,
    one_length,
    token_ids,
)
from sorl.importing.dumps.prime_rl_episodes import Branch, rollout_at, traces_of_episode
from sorl.importing.dumps.rows import Coverage, Dump, DumpStep, Row, Sampler
from sorl.spec import InputError

FIRST_BYTES = b'{"schema_version":'
# Columns of a record by those of a row. The sampler's log-probs are the old policy's in the ratio.
COLUMN_OF_KEY = {
    "trainer_logprobs": ("log_prob",),
    "inference_logprobs": ("log_prob_behaviour", "log_prob_old"),
    "advantages": ("advantages",),
    "entropy": ("entropy",),
}
MOST_CUT_LENGTHS = 8  # different lengths at which rollouts are looked for that a shorter context cut off

ONE_UPDATE = "prime-rl trains each batch once and takes the sampler's log-probs as the old policy's."
NO_ROLLOUTS = (
    "The rollouts of the batches are missing (rollouts/step_N/train/effective/traces.jsonl, which prime-rl"
    " writes since 2026-07-09): versions are not known, and rows of the same prompt are taken for a group."
)
NOT_FOUND = "its tokens are in no rollout of the batch"
NOT_FINITE = "Trained tokens whose log-prob was not finite: {}; they stay NaN."
OTHER_LOSS = "Tokens that another loss than RL trains: {}; they do not count as trained."
NO_SAMPLER = "The sampler's log-probs are all zero, a placeholder, and are left out."
CUT = "Rows that are shorter than their rollout, which the trainer's context cut off: {}."


@dataclass(frozen=True)
class Sequence:
    """One record of an export."""

    name: str
    branch: Branch  # its mask is that of the loss, as long as nothing better is known
    trained: np.ndarray
    columns: dict[str, np.ndarray]
    reward: float | None


class RolloutBranch(NamedTuple):
    """A branch of an episode's trace, with what is known of the trace."""

    rollout: Row
    branch: Branch


@dataclass
class Rollouts:
    """The branches of a batch, found by their tokens. A branch is given out once, as twins are two rows."""

    branches: list[RolloutBranch]
    _by_length: dict[int | None, dict[bytes, list[int]]] = field(default_factory=dict)
    _given: set[int] = field(default_factory=set)

    def take(self, tokens: np.ndarray) -> RolloutBranch | None:
        """The rollout with these tokens; else one that begins with them."""
        for length in (None, len(tokens)):
            for number in self._with_length(length).get(_digest(tokens), []):
                if number not in self._given:
                    self._given.add(number)
                    return self.branches[number]
        return None

    def _with_length(self, length: int | None) -> dict[bytes, list[int]]:
        """Numbers of branches by a digest of their tokens; with a length, of the beginning of longer ones."""
        if length is not None and length not in self._by_length and len(self._by_length) > MOST_CUT_LENGTHS:
            return {}
        if length not in self._by_length:
            numbers: dict[bytes, list[int]] = {}
            for number, rollout in enumerate(self.branches):
                tokens = rollout.branch.tokens
                if length is None or len(tokens) > length:
                    numbers.setdefault(_digest(tokens[:length]), []).append(number)
            self._by_length[length] = numbers
        return self._by_length[length]


class PrimeRlExports(Dump):
    """Token exports of one run, in the folder that holds `token_exports`."""

    trainer = "prime-rl"
    format = "token exports"

    def __init__(self, folder: Path, sampler: Sampler) -> None:
        super().__init__(folder, sampler)
        self._root = folder / "token_exports"

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether a file of `token_exports` begins as prime-rl writes it."""
        root = folder / "token_exports"
        for pattern in ("step_*/rank_*.jsonl", "rank_*.jsonl"):
            for file in root.glob(pattern):
                with file.open("rb") as handle:
                    return handle.read(len(FIRST_BYTES)) == FIRST_BYTES
        return False

    def steps(self, after: int, *, is_live: bool = False) -> Iterator[DumpStep]:
        """Yield the steps after `after`: each has a folder."""
        folders = numbered(self._root, "step_{}")
        newest = max(folders, default=-1)
        if not folders and (single := next(self._root.glob("rank_*.jsonl"), None)) is not None:
            problem = "holds all steps in one file, as prime-rl wrote them for some hours of 2026-05-21"
            raise InputError(
                f"'{single}' {problem}; what is read are folders step_N, written since badd2b0fe"
            )
        for number, folder in folders.items():
            if number <= after:
                continue
            files = list(numbered(folder, "rank_{}.jsonl").values())
            if is_live and not self._is_complete(folder, files, number < newest):
                return
            if files:
                yield self._step(number, files)

    def _is_complete(self, folder: Path, files: list[Path], later: bool) -> bool:
        """Whether all ranks have written a step; before 2026-06-10 no file STABLE said so."""
        if (folder / "STABLE").exists():
            return True
        return bool(files) and all(is_settled(file, later) for file in files)

    def _step(self, number: int, files: list[Path]) -> DumpStep:
        self.note(ONE_UPDATE)
        rollouts = self._rollouts(number)
        share = self.sampler.share(sum(file.stat().st_size for file in files))
        coverage = Coverage() if rollouts is not None else None
        rows = []
        for file in files:
            for sequence in self._sequences(number, file):
                row = self._row(number, sequence, rollouts, coverage)
                keeps = self.sampler.keeps(row.group or row.trajectory, number, share)
                rows.append(row if keeps else row.without_tokens())
        return DumpStep(number, self._without_placeholders(rows), coverage=coverage)

    def _rollouts(self, number: int) -> Rollouts | None:
        """The rollouts of a batch, if they lie beside the export."""
        file = self.folder / "rollouts" / f"step_{number}" / "train" / "effective" / "traces.jsonl"
        if not file.is_file():
            self.note(NO_ROLLOUTS)
            return None
        branches = []
        for episode in json_objects(file):
            for trace in traces_of_episode(episode, file):
                if not trace.is_training:
                    continue
                rollout = rollout_at(trace.rollout, number)
                trained = [branch for branch in trace.branches() if branch.is_trainable]
                branches += [RolloutBranch(rollout, branch) for branch in trained]
        return Rollouts(branches)

    def _sequences(self, number: int, file: Path) -> Iterator[Sequence]:
        """Yield the records of a rank. A restart writes the file from its beginning, so none comes twice."""
        for place, record in enumerate(json_objects(file)):
            yield self._sequence(number, file, record, place)

    def _sequence(self, number: int, file: Path, record: Mapping[str, Any], place: int) -> Sequence:
        for key in ("token_ids", "loss_mask", "trainer_logprobs", "inference_logprobs"):
            if not isinstance(record.get(key), list):
                raise InputError(f"'{file}', row {place}: {key} is no list")
        step = record.get("export_step", record.get("step", number))  # several runs count their own steps
        if step != number:
            raise InputError(f"'{file}', row {place}: it is of step {step!r}")
        tokens = token_ids(record["token_ids"], f"token_ids of row {place}", file)
        written = flags(record["loss_mask"], f"loss_mask of row {place}", file)
        columns = {}
        for key, names in COLUMN_OF_KEY.items():
            if isinstance(record.get(key), list):
                values = floats(record[key], f"{key} of row {place}", file)
                columns.update(dict.fromkeys(names, values))
        one_length({"token_ids": tokens, "loss_mask": written, **columns}, file, place)
        trained = written & self._is_rl(record, len(tokens), file, place)
        self.note_count(OTHER_LOSS, int((written & ~trained).sum()))
        lacks = np.isnan(columns["log_prob"]) | np.isnan(columns["log_prob_old"])
        self.note_count(NOT_FINITE, int((trained & lacks).sum()))
        columns = {name: np.where(trained, values, np.nan_to_num(values)) for name, values in columns.items()}
        branch = Branch(0, tokens, written, np.ones(len(tokens), bool), None, columns["log_prob_behaviour"])
        name = f"{number}-{file.stem}-{record.get('export_sequence_idx', place)}"
        return Sequence(name, branch, trained, columns, _reward(record, file, place))

    def _is_rl(self, record: Mapping[str, Any], length: int, file: Path, place: int) -> np.ndarray:
        """Where the RL loss has a weight: everywhere, if the record says nothing else."""
        if record.get("training_mode", "rl") == "sft":
            return np.zeros(length, bool)
        weights = record.get("rl_weights")
        if not isinstance(weights, list) or all(weight is None for weight in weights):
            return np.ones(length, bool)
        is_rl = np.nan_to_num(floats(weights, f"rl_weights of row {place}", file)) != 0
        one_length({"token_ids": np.empty(length), "rl_weights": is_rl}, file, place)
        return is_rl

    def _row(
        self, number: int, sequence: Sequence, rollouts: Rollouts | None, coverage: Coverage | None
    ) -> Row:
        tokens = sequence.branch.tokens
        trained_tokens = int(sequence.trained.sum())
        match = rollouts.take(tokens) if rollouts is not None else None
        if match is not None:
            if coverage is not None:
                coverage.join(trained_tokens)
            self.note_count(CUT, 1 if len(tokens) < len(match.branch.tokens) else 0)
            branch = match.branch.cut(len(tokens))
            return branch.row(match.rollout, sequence.trained & branch.written, sequence.columns)
        if coverage is not None:
            coverage.miss(NOT_FOUND, trained_tokens)
        start = int(sequence.branch.written.argmax())
        group = _digest(tokens[:start]).hex() if rollouts is None else None
        known = Row(sequence.name, tokens[:0], 0, np.zeros(0, bool), reward=sequence.reward, group=group)
        return sequence.branch.row(known, sequence.trained, sequence.columns)

    def _without_placeholders(self, rows: list[Row]) -> list[Row]:
        """Rows without the sampler's log-probs, where they are zero throughout, as in distillation."""
        sampled = [row.columns["log_prob_behaviour"] for row in rows if "log_prob_behaviour" in row.columns]
        if not sampled or any(values.any() for values in sampled):
            return rows
        self.note(NO_SAMPLER)
        bare = []
        for row in rows:
            columns = {name: values for name, values in row.columns.items() if name not in _OF_SAMPLER}
            bare.append(replace(row, columns=columns))
        return bare


_OF_SAMPLER = COLUMN_OF_KEY["inference_logprobs"]


def _reward(record: Mapping[str, Any], file: Path, place: int) -> float | None:
    """The rollout's reward, which stands at each of its tokens; null is padding or none."""
    rewards = record.get("rewards")
    if not isinstance(rewards, list):
        return None
    values = floats(rewards, f"rewards of row {place}", file)
    known = values[~np.isnan(values)]
    return float(known[-1]) if len(known) else None


def _digest(tokens: np.ndarray) -> bytes:
    return blake2b(np.ascontiguousarray(tokens).tobytes(), digest_size=16).digest()
