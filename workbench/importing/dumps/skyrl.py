"""SkyRL: the batch of a step as `global_step_{N}_training_input.pkl`, written with `trainer.dump_data_batch`.

The batch has no rewards and no ids: SkyRL takes them out before it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from sorl.importing.dumps import files
from sorl.importing.dumps.rows import Dump, DumpStep, Row, Update
from sorl.importing.dumps.skyrl_batch import COLUMNS, Contents, is_count, read_contents
from sorl.spec import InputError

NAMES = "global_step_{}_training_input.pkl"
# Nats by which the trainer must find an end of a row less likely than certain, where the sampler's log-prob
# is 0, so that SkyRL itself must have appended it.
APPENDED_LOG_PROB = -0.01


@dataclass(frozen=True)
class _Parts:
    """A row as the tables have it, without padding; of P tokens of the prompt and R of the response."""

    tokens: np.ndarray  # (P+R,)
    written: np.ndarray  # (R,)
    trained: np.ndarray  # (R,)
    columns: dict[str, np.ndarray]  # (R,) each

    @property
    def prompt(self) -> np.ndarray:
        return self.tokens[: len(self.tokens) - len(self.trained)]


class SkyRlDump(Dump):
    """Training batches of SkyRL, as of skyrl_train 0.4.0 (2026-02) to SkyRL 0.4.0."""

    trainer = "SkyRL"
    format = NAMES.format("{N}")

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether the folder has pickles of that name."""
        return any(_begins_as_pickle(file) for file in files.numbered(folder, NAMES).values())

    def steps(self, after: int, *, is_live: bool = False) -> Iterator[DumpStep]:
        """Yield a step a file."""
        numbered = files.numbered(self.folder, NAMES)
        newest = max(numbered, default=0)
        for number, file in numbered.items():
            if number <= after:
                continue
            if is_live and not files.is_settled(file, later=number < newest):
                return
            yield self._step(number, file)

    def _step(self, number: int, file: Path) -> DumpStep:
        contents = read_contents(file)
        share = self.sampler.share(file.stat().st_size)
        groups = _groups(contents, file, number)
        trajectories = _Trajectories(number)
        rows = []
        for index in range(contents.row_count):
            parts = self._parts(contents, index, file)
            group = groups[index] if groups else _digest(parts.prompt)
            row = Row(
                trajectory=trajectories.of_next(parts, group),
                tokens=parts.tokens,
                prompt_length=len(parts.prompt),
                written=parts.written,
                trained=parts.trained,
                group=group,
                columns=parts.columns,
            )
            is_kept = self.sampler.keeps(group, number, share)
            rows.append(row if is_kept else row.without_tokens())
        self._note_contents(contents, has_groups=bool(groups), is_joined=trajectories.joined_count > 0)
        return DumpStep(number, rows, self._updates(contents, file))

    def _parts(self, contents: Contents, index: int, file: Path) -> _Parts:
        """Row `index` without padding.

        Entries are taken where the masks have ones. So it does not matter that responses begin at the left
        until 2026-03 (the prompt is padded on its left, the response on its right) and end at the right
        since.
        """
        tables = contents.tables
        attended = tables["attention_mask"][index] != 0
        answered = tables["response_mask"][index] != 0
        tokens = files.token_ids(tables["sequences"][index][attended], f"sequences of row {index}", file)
        if answered.sum() > len(tokens):
            problem = f"{answered.sum()} tokens of the response, but {len(tokens)} in all"
            raise InputError(f"'{file}', row {index}: {problem}")
        trained = tables["loss_mask"][index][answered] > 0
        columns = {
            name: tables[key][index][answered].astype(np.float32)
            for key, name in COLUMNS.items()
            if key in tables
        }
        # The loss leaves out what the policy did not write, and whole rows that a filter removed. There the
        # sampler's log-probs tell: they are 0 on observations.
        written = trained
        if "log_prob_behaviour" in columns:
            written = trained | (columns["log_prob_behaviour"] != 0)
        elif len(trained) and not trained.any():
            self.note(
                "Of rows that the loss leaves out, the dump does not say which tokens the policy wrote."
            )
        columns["advantages"] = np.where(written, columns["advantages"], np.float32(0))
        self._note_appended_end(trained, columns)
        return _Parts(tokens, written, trained, columns)

    def _note_appended_end(self, trained: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        if not len(trained) or not trained[-1]:
            return
        sampler = columns.get("log_prob_behaviour")
        trainer = columns.get("log_prob_old")
        if sampler is None or trainer is None or sampler[-1] != 0 or trainer[-1] > APPENDED_LOG_PROB:
            return
        self.note(
            "Some rows end with a token that the loss trains on and nobody sampled: SkyRL appends an end of "
            "sequence and gives it the log-prob 0, so its ratio to the sampler means nothing."
        )

    def _updates(self, contents: Contents, file: Path) -> list[Update]:
        key = "policy_mini_batch_boundaries"
        if key not in contents.metadata:
            self.note("SkyRL before 0.3.0 does not say which update trained on a row.")
            return []
        self.note("A dump does not say how often its updates are repeated (trainer.update_epochs_per_batch).")
        return [Update(rows) for rows in _stretches(contents, key, file)]

    def _note_contents(self, contents: Contents, *, has_groups: bool, is_joined: bool) -> None:
        self.note("SkyRL takes the rewards out before it writes a dump, so rewards are unknown.")
        self.note("SkyRL writes no weight versions, so staleness is unknown.")
        self.note("SkyRL writes no log-probs of the updated policy and no entropy.")
        self.note("Advantages are those of the estimator, before SkyRL normalises them over the batch.")
        self.note_count("{} rows that only fill up a batch were left out.", contents.pad_count)
        if not has_groups:
            self.note("Rollouts with the same prompt tokens are taken for one group: the dump has no groups.")
        if is_joined:
            self.note(
                "Rows that continue the tokens of the row before are taken for later turns of its episode: "
                "SkyRL does not say where an episode ends."
            )
        if "action_log_probs" not in contents.tables:
            self.note(
                "The loss used the sampler's log-probs as its old policy: the trainer's own are not there."
            )
        if "rollout_logprobs" not in contents.tables:
            self.note("The sampler's log-probs are not in the dump (generator.sampling_params.logprobs).")


class _Trajectories:
    """Names the trajectories of a step; rows of one follow each other, and each continues the last."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.count = 0
        self.joined_count = 0
        self.last_tokens = np.zeros(0, np.int32)
        self.last_group: str | None = None

    def of_next(self, row: _Parts, group: str) -> str:
        """The trajectory of the row after the last one."""
        is_continued = group == self.last_group and _begins_with(row.prompt, self.last_tokens)
        if is_continued:
            self.joined_count += 1
        else:
            self.count += 1
        # A row without a response would be "continued" by the next rollout of its prompt.
        self.last_group = group if len(row.trained) else None
        self.last_tokens = row.tokens
        return f"{self.step}-{self.count - 1}"


def _begins_as_pickle(file: Path) -> bool:
    with file.open("rb") as handle:
        return handle.read(1) == b"\x80"


def _groups(contents: Contents, file: Path, step: int) -> list[str]:
    """The group of each row; none where the file does not tell (before SkyRL 0.3.0)."""
    key = "policy_prompt_boundaries"
    if key not in contents.metadata:
        return []
    groups = [""] * contents.row_count
    for number, rows in enumerate(_stretches(contents, key, file)):
        for row in rows:
            groups[row] = f"{step}-{number}"
    if "" in groups:
        raise InputError(f"'{file}', row {groups.index('')}: {key} has no group for it")
    return groups


def _stretches(contents: Contents, key: str, file: Path) -> list[range]:
    """Stretches of rows in the metadata. Raises InputError unless they are pairs that follow each other."""
    boundaries = contents.metadata[key]
    if not isinstance(boundaries, list | tuple):
        raise InputError(f"'{file}': {key} is no list")
    stretches: list[range] = []
    last_end = 0
    for number, pair in enumerate(boundaries):
        if not _is_stretch(pair, last_end, contents.row_count):
            raise InputError(f"'{file}': entry {number} of {key} is no stretch of its rows")
        stretches.append(range(pair[0], pair[1]))
        last_end = pair[1]
    return stretches


def _is_stretch(pair: Any, last_end: int, row_count: int) -> bool:
    if not isinstance(pair, Sequence) or len(pair) != 2 or isinstance(pair, str | bytes):
        return False
    start, end = pair
    return is_count(start, row_count) and is_count(end, row_count) and last_end <= start < end


def _begins_with(tokens: np.ndarray, start: np.ndarray) -> bool:
    return len(tokens) >= len(start) and np.array_equal(tokens[: len(start)], start)


def _digest(tokens: np.ndarray) -> str:
    return blake2b(tokens.tobytes(), digest_size=8).hexdigest()
