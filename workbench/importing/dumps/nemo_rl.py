"""NeMo-RL: the batch of a step as `train_data_step{N}.jsonl` in the log folder, which it writes by default.

A line is a row, with its prompt, its turns and the padding on the right. Each value stands in a list of
length one, since the trainer cuts its batch into parts of one row to write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from sorl.importing.configs import config_near
from sorl.importing.dumps import files
from sorl.importing.dumps.rows import Dump, DumpStep, Row, Update
from sorl.spec import InputError

NAMES = "train_data_step{}.jsonl"
BATCH_SIZE = "policy.train_global_batch_size"
EPOCHS = "ppo.ppo_epochs"
# Our columns by the keys of a line. All three speak of the token at their own place.
COLUMNS = {
    "generation_logprobs": "log_prob_behaviour",
    "prev_logprobs": "log_prob_old",
    "advantages": "advantages",
}
# Columns that NeMo-RL fills with zeros where it has none.
PLACEHOLDERS = {
    "log_prob_old": (
        "prev_logprobs is 0 everywhere, a placeholder that NeMo-RL writes where the loss is on-policy by "
        "construction: the old log-probs are not in the dump."
    ),
    "log_prob_behaviour": (
        "generation_logprobs is 0 everywhere, a placeholder: the sampler's log-probs are not in the dump."
    ),
}
FIRST_KEYS = (b'{"agent_ref"', b'{"content"', b'{"rewards"', b'{"input_lengths"', b'{"token_ids"')
# Nats a token that the trainer must find a stretch less likely than certain, where the sampler's log-probs
# are all 0, so that it counts as written by someone else. A certain policy stays far nearer to 0.
HISTORY_LOG_PROB = -0.01


@dataclass(frozen=True)
class _Line:
    """One line of a file, read key by key."""

    values: Mapping[str, Any]
    file: Path
    number: int  # from 0

    @property
    def is_beyond_batch(self) -> bool:
        """Whether the line has a reward and nothing else, as `rewards` may be longer than the batch."""
        return self.values.get("token_ids") == []

    def value(self, key: str) -> Any:
        """What stands in the list of length one."""
        wrapped = self.values.get(key)
        if not isinstance(wrapped, list) or len(wrapped) != 1:
            raise self.error(f"{key} is no list of length 1")
        return wrapped[0]

    def scalar(self, key: str) -> float:
        """The number of a row, NaN included."""
        value = self.value(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(f"{key} is no number")
        return float(value)

    def length(self) -> int:
        """How many tokens are no padding."""
        length = self.value("input_lengths")
        if not isinstance(length, int) or isinstance(length, bool) or length < 0:
            raise self.error("input_lengths is no count")
        return length

    def arrays(self) -> dict[str, np.ndarray]:
        """What is told of each token, by its key and without padding."""
        arrays = {
            "token_ids": files.token_ids(self.value("token_ids"), self._name("token_ids"), self.file),
            "token_loss_mask": files.flags(
                self.value("token_loss_mask"), self._name("token_loss_mask"), self.file
            ),
        }
        for key in COLUMNS:
            if key in self.values:
                arrays[key] = files.floats(self.value(key), self._name(key), self.file)
        files.one_length(arrays, self.file, self.number)
        length = self.length()
        if length > len(arrays["token_ids"]):
            raise self.error(f"input_lengths is beyond its {len(arrays['token_ids'])} tokens")
        return {key: values[:length] for key, values in arrays.items()}

    def error(self, problem: str) -> InputError:
        """The problem, with the place where it is."""
        return InputError(f"'{self.file}', row {self.number}: {problem}")

    def _name(self, key: str) -> str:
        return f"{key} of row {self.number}"


class NemoRlDump(Dump):
    """Training data of NeMo-RL (GRPO and its kin, asynchronous PPO) since v0.6.0."""

    trainer = "NeMo-RL"
    format = NAMES.format("{N}")

    _settings: Mapping[str, object] | None = None

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether the folder has files of that name which begin as such a row does."""
        return any(_begins_with_row(file) for file in files.numbered(folder, NAMES).values())

    @property
    def settings(self) -> Mapping[str, object]:
        """The configuration, where somebody put it next to the dump; NeMo-RL writes it with checkpoints."""
        if self._settings is None:
            notes: list[str] = []
            self._settings = config_near(self.folder, notes)
            for sentence in notes:
                self.note(sentence)
        return self._settings

    def steps(self, after: int, *, is_live: bool = False) -> Iterator[DumpStep]:
        """Yield a step a file. A file that a crash left without a row is passed over, with a note."""
        numbered = files.numbered(self.folder, NAMES)
        newest = max(numbered, default=0)
        for number, file in numbered.items():
            if number <= after:
                continue
            if is_live and not files.is_settled(file, later=number < newest):
                return
            step = self._step(number, file)
            if step.rows:
                yield step
            else:
                self.note(f"{file.name} has no complete row and is left out.")

    def _step(self, number: int, file: Path) -> DumpStep:
        share = self.sampler.share(file.stat().st_size)
        rows = []
        filled: set[str] = set()  # columns that are not 0 everywhere
        beyond_batch = 0
        for line_number, values in enumerate(files.json_objects(file, decode=files.decoded_with_arrays)):
            line = _Line(values, file, line_number)
            if line.is_beyond_batch:
                beyond_batch += 1
                continue
            row = self._row(line, number)
            filled.update(name for name, column in row.columns.items() if column.any())
            if not self.sampler.keeps(str(row.group), number, share):
                row = row.without_tokens()
            rows.append(row)
        if files.ends_within_line(file):
            self.note(f"{file.name} ends within a line: that row, and any after it, is missing.")
        self.note_count("{} rewards without a row were left out.", beyond_batch)
        self._note_what_lacks()
        return DumpStep(number, self._without_placeholders(rows, filled), self._updates(len(rows)))

    def _row(self, line: _Line, step: int) -> Row:
        if "token_ids" not in line.values:
            raise line.error(
                "there are no token_ids; NeMo-RL writes them since v0.6.0, for GRPO and for asynchronous PPO"
            )
        arrays = line.arrays()
        start = self._start_of_response(arrays)
        written = arrays["token_loss_mask"][start:]
        is_in_loss = "sample_loss_mask" not in line.values or line.scalar("sample_loss_mask") != 0
        columns = {name: arrays[key][start:] for key, name in COLUMNS.items() if key in arrays}
        if "advantages" in columns:  # NeMo-RL spreads it over observations and padding too
            columns["advantages"] = np.where(written, columns["advantages"], np.float32(0))
        return Row(
            trajectory=f"{step}-{line.number}",
            tokens=arrays["token_ids"],
            prompt_length=start,
            written=written,
            trained=written if is_in_loss else np.zeros_like(written),
            reward=self._reward(line),
            group=_digest(arrays["token_ids"][:start]),
            columns=columns,
        )

    def _reward(self, line: _Line) -> float | None:
        # With dynamic sampling `rewards` is of the batch before it was filtered, so it is of other rows.
        reward = line.scalar("filtered_rewards" if "filtered_rewards" in line.values else "rewards")
        if isfinite(reward):
            return reward
        self.note("Some rewards are NaN or infinite and count as unknown.")
        return None

    def _start_of_response(self, arrays: Mapping[str, np.ndarray]) -> int:
        """Where the policy's first token is.

        PPO trains on assistant messages of the prompt too. Nobody sampled these: their generation_logprobs
        are 0 while the trainer does not find them certain. They stay part of the prompt.
        """
        mask = arrays["token_loss_mask"]
        sampler = arrays.get("generation_logprobs")
        trainer = arrays.get("prev_logprobs")
        for start, end in _runs(mask):
            if sampler is None or trainer is None or not sampler.any():
                return start
            if sampler[start:end].any() or trainer[start:end].mean() > HISTORY_LOG_PROB:
                return start
            self.note(
                "The loss trains on assistant messages of some prompts as well. Nobody sampled them, so they "
                "are left in the prompt."
            )
        return len(mask)

    def _without_placeholders(self, rows: list[Row], filled: set[str]) -> list[Row]:
        """The rows without columns that are 0 in the whole step."""
        empty = PLACEHOLDERS.keys() - filled
        for name in empty:
            if any(name in row.columns for row in rows):
                self.note(PLACEHOLDERS[name])
        if not empty:
            return rows
        return [replace(row, columns=_without(row.columns, empty)) for row in rows]

    def _updates(self, row_count: int) -> list[Update]:
        """Consecutive rows an update, where a configuration says how many; PPO goes over them repeatedly."""
        batch_size = self.settings.get(BATCH_SIZE)
        if not isinstance(batch_size, int) or batch_size < 1:
            self.note(
                f"The dump does not say which update trained on a row. Put the run's config.yaml next to it: "
                f"{BATCH_SIZE} tells."
            )
            return []
        epochs = self.settings.get(EPOCHS)
        updates = []
        for epoch in range(epochs if isinstance(epochs, int) else 1):
            for start in range(0, row_count, batch_size):
                rows = range(start, min(start + batch_size, row_count))
                updates.append(Update(rows, epoch=epoch))
        return updates

    def _note_what_lacks(self) -> None:
        self.note("Rollouts with the same prompt tokens are taken for one group: NeMo-RL writes no group id.")
        self.note("NeMo-RL writes no weight versions, so staleness is unknown.")
        self.note("NeMo-RL writes no log-probs of the updated policy and no entropy.")


def _begins_with_row(file: Path) -> bool:
    with file.open("rb") as handle:
        return handle.read(32).startswith(FIRST_KEYS)


def _runs(mask: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield start and end of each stretch of true entries."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        yield int(start), int(end)


def _digest(tokens: np.ndarray) -> str:
    return blake2b(tokens.tobytes(), digest_size=8).hexdigest()


def _without(columns: Mapping[str, np.ndarray], names: set[str]) -> dict[str, np.ndarray]:
    return {name: column for name, column in columns.items() if name not in names}
