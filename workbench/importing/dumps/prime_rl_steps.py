"""Rows of one step of prime-rl, out of its traces and what the trainer told of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sorl.importing.dumps.prime_rl_annotations import Annotation, Shipment
from sorl.importing.dumps.prime_rl_episodes import Branch, Trace, rollout_at
from sorl.importing.dumps.rows import Coverage, Dump, DumpStep, Row
from sorl.spec import InputError

UNTRAINED = "Rows of a batch that the trainer never annotated: {}; none of their tokens counts as trained."
WITHOUT_LOG_PROB = (
    "Sampled tokens that the trainer gave no log-prob: {}; the loss left them out, or it was not finite."
)
OTHER_TOKENS = "Trained tokens that the policy did not write: {}; they are left out."
ROUNDED = "Log-probs are rounded to 4 decimals, so a ratio is good to about 0.0001."
NO_TRAINER = "The trainer's annotations are missing, so its log-probs and entropies are not known."


class SizedTrace(NamedTuple):
    """A trace, and its share of the bytes of its episode."""

    trace: Trace
    size: int


class _JoinedTrace(NamedTuple):
    trace: Trace
    shipment: Shipment
    annotations: dict[int, Annotation]


class StepBuilder:
    """Makes the rows of one step, a branch a row, and counts the trained tokens that found their trace."""

    def __init__(self, dump: Dump, number: int, lost: Coverage, *, has_trainer: bool) -> None:
        self.traces: list[_JoinedTrace] = []
        self._dump = dump
        self._number = number
        self._has_trainer = has_trainer
        self._size = 0
        self._coverage = lost

    def add(self, sized: SizedTrace | None, shipment: Shipment, annotations: dict[int, Annotation]) -> None:
        """Take the trace of a shipment into the step."""
        if sized is None:
            for annotation in annotations.values():
                self._coverage.miss("its episode is not in the stream", annotation.tokens)
            return
        if not sized.trace.is_training:
            return
        self._size += sized.size + sum(annotation.size for annotation in annotations.values())
        self.traces.append(_JoinedTrace(sized.trace, shipment, annotations))

    def step(self) -> DumpStep:
        """The rows, in the order in which the orchestrator sent them."""
        if not self._has_trainer:
            self._dump.note(
                "The trainer's annotations are missing, so its log-probs and entropies are not known."
            )
        rows: list[Row] = []
        share = self._dump.sampler.share(self._size)
        while self.traces:
            joined = self.traces.pop(0)
            rollout = rollout_at(joined.trace.rollout, self._number)
            keeps = self._dump.sampler.keeps(rollout.group or rollout.trajectory, self._number, share)
            branches = self._branches(joined)
            rows.extend(self._row(rollout, branch, joined) if keeps else rollout for branch in branches)
        coverage = self._coverage if self._has_trainer else None
        return DumpStep(self._number, rows, coverage=coverage)

    def _branches(self, joined: _JoinedTrace) -> list[Branch]:
        """The branches that are rows; what the trainer told of them is counted."""
        branches = joined.trace.branches()
        for index, annotation in joined.annotations.items():
            if index >= len(branches):
                self._coverage.miss("its rollout has no branch of that number", annotation.tokens)
                continue
            length = len(branches[index].tokens)
            if len(annotation.log_prob) > length:
                where = f"trace {joined.trace.rollout.trajectory}, branch {index}"
                problem = f"{len(annotation.log_prob)} entries for {length} tokens"
                raise InputError(f"'{annotation.file}': {where}: trainer_logprobs has {problem}")
            self._coverage.join(annotation.tokens)
        trainable = [branch for branch in branches if branch.is_trainable and branch.to_train.any()]
        annotated = [branch for branch in branches if branch.index in joined.annotations]
        return sorted(
            {id(branch): branch for branch in trainable + annotated}.values(), key=lambda x: x.index
        )

    def _row(self, rollout: Row, branch: Branch, joined: _JoinedTrace) -> Row:
        length = len(branch.tokens)
        columns = {"log_prob_behaviour": branch.log_probs}
        advantages = joined.shipment.advantages.get(branch.index)
        if advantages is not None:
            if len(advantages) > length:
                where = f"trace {rollout.trajectory}, branch {branch.index}"
                problem = f"advantages has {len(advantages)} entries for {length} tokens"
                raise InputError(f"'{self._dump.folder}': {where}: {problem}")
            columns["advantages"] = _stretched(advantages, length)
        annotation = joined.annotations.get(branch.index)
        if annotation is None:
            trained = np.zeros(length, bool) if self._has_trainer else branch.to_train
            self._dump.note_count(UNTRAINED, 1 if self._has_trainer else 0)
            return branch.row(rollout, trained, columns)
        log_prob = _stretched(annotation.log_prob, length)
        in_loss = ~np.isnan(log_prob)
        trained = in_loss & branch.written
        self._note_differences(branch, in_loss, len(annotation.log_prob))
        columns["log_prob"] = np.where(trained, log_prob, 0.0)
        columns["log_prob_old"] = branch.log_probs
        if annotation.entropy is not None:
            columns["entropy"] = np.where(trained, _stretched(annotation.entropy, length), 0.0)
        return branch.row(rollout, trained, columns)

    def _note_differences(self, branch: Branch, in_loss: np.ndarray, length: int) -> None:
        expected = branch.to_train[:length] & ~in_loss[:length]
        self._dump.note_count(WITHOUT_LOG_PROB, int(expected.sum()))
        self._dump.note_count(OTHER_TOKENS, int((in_loss & ~branch.written).sum()))
        written = branch.log_probs[branch.written].astype(np.float64)
        if len(written) >= 8 and np.allclose(written, written.round(4), rtol=0, atol=1e-6):
            self._dump.note(ROUNDED)


def _stretched(values: np.ndarray, length: int) -> np.ndarray:
    """Values up to a longer length; what a shorter context cut off is NaN."""
    return np.concatenate([values, np.full(length - len(values), np.nan, np.float32)])
