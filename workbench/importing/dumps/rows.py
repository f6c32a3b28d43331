"""What every reader of token dumps yields: the training rows of a step, with what their trainer told of each
token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar

import numpy as np

# What a trainer may tell of each response token, by the names of `Ledger.update`.
COLUMNS = (
    "log_prob",  # of the policy at the update on the row
    "log_prob_old",  # of the proximal policy, before the updates of the step
    "log_prob_behaviour",  # of the sampler
    "log_prob_ref",
    "advantages",
    "entropy",
    "values_old",
    "returns",
    "correction",  # weight of the rollout correction
)


@dataclass(frozen=True)
class Row:
    """One sequence that a trainer trained on.

    Axes: P tokens of the prompt, R of the response, observations included. What is None or not in `columns`
    is not in the dump.
    """

    trajectory: str  # the rollout that it is of; several rows may be of one
    tokens: np.ndarray  # (P+R,) int32, without padding
    prompt_length: int  # P
    written: np.ndarray  # (R,) bool, where the policy wrote the token
    trained: np.ndarray | None = None  # (R,) bool, where the loss has it; None = where it was written
    turn: np.ndarray | None = None  # (R,) turn of each token, from 1; None = the runs of `written`
    reward: float | None = None  # of the rollout
    success: bool | None = None
    group: str | None = None  # rollouts of one prompt share it
    version: int | None = None  # the step whose weights sampled it
    newest_version: int | None = None  # of a rollout that several versions sampled: the last one
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)  # (R,) float32 each, by COLUMNS
    sample: int | None = None  # the trainer's own number of it, counted in the order of the data
    question: str | None = None
    answer: str | None = None
    ended: str | None = None  # answer, max_turns or max_tokens
    is_measured: bool = True  # False: sampling left out its tokens; reward, group and versions are kept
    turn_lengths: Sequence[int] | None = None  # tokens that each turn wrote, where the dump has no tokens

    def __post_init__(self) -> None:
        """Raise ValueError where lengths do not fit each other, or a column is none of COLUMNS."""
        length = len(self.tokens) - self.prompt_length
        if unknown := self.columns.keys() - {*COLUMNS}:
            raise ValueError(f"no column of a dump is called {', '.join(sorted(unknown))}")
        columns = {"written": self.written, "trained": self.trained, "turn": self.turn, **self.columns}
        for name, values in columns.items():
            if values is not None and len(values) != length:
                raise ValueError(f"{name} has {len(values)} entries for {length} tokens of the response")

    @property
    def mask(self) -> np.ndarray:
        """(R,) where the loss has the token."""
        return self.written if self.trained is None else self.trained

    def without_tokens(self) -> Row:
        """The row as sampling leaves it: what is known of the rollout, and no tokens."""
        return Row(
            self.trajectory,
            np.zeros(0, np.int32),
            0,
            np.zeros(0, bool),
            reward=self.reward,
            success=self.success,
            group=self.group,
            version=self.version,
            newest_version=self.newest_version,
            sample=self.sample,
            question=self.question,
            answer=self.answer,
            ended=self.ended,
            is_measured=False,
            turn_lengths=self.turn_lengths,
        )


@dataclass(frozen=True)
class Update:
    """One optimizer update of a step."""

    rows: Sequence[int]  # numbers of the step's rows that it trains on
    log_prob: Mapping[int, np.ndarray] = field(default_factory=dict)  # (R,) at this update, by row number
    epoch: int = 0


@dataclass
class Coverage:
    """How many trained tokens of a dump found their rollout, and why others did not."""

    tokens: int = 0  # that the trainer trained on
    joined: int = 0  # of them, those whose rollout was found
    reasons: dict[str, int] = field(default_factory=dict)  # tokens that were not, by reason

    def miss(self, reason: str, tokens: int) -> None:
        """Count trained tokens whose rollout was not found."""
        self.tokens += tokens
        self.reasons[reason] = self.reasons.get(reason, 0) + tokens

    def join(self, tokens: int) -> None:
        """Count trained tokens whose rollout was found."""
        self.tokens += tokens
        self.joined += tokens

    def add(self, other: Coverage) -> None:
        """Add the counts of another step."""
        self.tokens += other.tokens
        self.joined += other.joined
        for reason, tokens in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + tokens

    def sentences(self) -> list[str]:
        """How many trained tokens found their rollout, and why the rest did not; none without a count."""
        if not self.tokens:
            return []
        share = f"{100 * self.joined / self.tokens:.1f} % of trained tokens joined to a rollout"
        if not self.reasons:
            return [f"{share}."]
        rest = ", ".join(f"{tokens:,} {reason}" for reason, tokens in self.reasons.items())
        return [f"{share}; the rest: {rest}."]


@dataclass
class DumpStep:
    """The rows of one step, in the trainer's order, and its updates."""

    number: int
    rows: list[Row]
    updates: list[Update] = field(default_factory=list)  # none: one update on all rows
    coverage: Coverage | None = None  # None: rollouts and training rows are one thing in this dump


@dataclass(frozen=True)
class Sampler:
    """Decides which rollouts of a step keep their tokens, so that memory does not grow with the dump.

    The choice depends on the group and the step alone, so it is the same however often a dump is read, and
    whole groups are kept.
    """

    bytes_a_step: int = 200 * 2**20  # of the files of a step; of what is more, a share of the groups is kept

    def share(self, size: int) -> float:
        """Share of the groups to keep of a step whose files have so many bytes."""
        return min(1.0, self.bytes_a_step / max(1, size))

    def keeps(self, group: str, step: int, share: float) -> bool:
        """Whether a group keeps its tokens where `share` of the groups do."""
        if share >= 1.0:
            return True
        digest = blake2b(f"{step} {group}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") < share * 2**64


class Dump(ABC):
    """The token dump of one training run, read step by step. A reader of a format is a subclass."""

    trainer: ClassVar[str]  # its name, as `sorl import` says it
    format: ClassVar[str]  # what the files are called there

    def __init__(self, folder: Path, sampler: Sampler) -> None:
        self.folder = folder
        self.sampler = sampler
        # Sentences about what the dump lacks, or what was assumed; no doubles.
        self.notes: dict[str, None] = {}
        self._counts: dict[str, int] = {}  # that are in these sentences

    @classmethod
    @abstractmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether `folder` itself holds such a dump, by names and the first bytes of files alone."""

    @abstractmethod
    def steps(self, after: int, *, is_live: bool = False) -> Iterator[DumpStep]:
        """Yield the steps after `after` (-1: all), in order, each as soon as it is read.

        `is_live`: a trainer may still be writing; a step that may be unfinished is not yielded yet. It may be
        called again later, and then yields what has come since. Raises InputError, one line that names the
        file, for a damaged or hostile one.
        """

    @property
    def settings(self) -> Mapping[str, object]:
        """What the dump says of the trainer's configuration."""
        return {}

    @property
    def tokenizer(self) -> Path | None:
        """The folder of the tokenizer that the dump brings along."""
        return None

    def note(self, sentence: str) -> None:
        """Remember a sentence for the reader of the import, once."""
        self.notes[sentence] = None

    def note_count(self, sentence: str, count: int) -> None:
        """Remember a sentence with a `{}` in it, where the counts of all steps add up."""
        before = self._counts.get(sentence, 0)
        self.notes.pop(sentence.format(before), None)
        self._counts[sentence] = before + count
        if before + count:
            self.note(sentence.format(before + count))
