"""Contexts that come again: what sampler and trainer say about a token that they have scored before.

A sampler whose weights never change gives a token after the same words the same log-prob for ever. One whose
weights follow the trainer does not, and neither does one that lacks a single layer. Nothing else in a dump of
log-probs tells these two apart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from sorl.measures.evidence import Missing, Revisits, Rollouts, StepEvidence
from sorl.measures.tokens import Tokens

MOST_CONTEXTS = 100_000  # that are remembered, the oldest forgotten first
MOST_TRAJECTORIES = 512  # of a step that are looked at
FIRST_TOKENS = 32  # of a trajectory: what follows differs from rollout to rollout


class _Visit(NamedTuple):
    step: int
    sampler: float  # log-prob
    trainer: float


class Memory:
    """Log-probs of the first tokens of each prompt, by all that the policy had read."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, _Visit] = OrderedDict()

    def see(self, step: int, evidence: StepEvidence) -> Revisits | None:
        """Compare a step with what was seen before it, and remember it; None without token ids or log-probs.

        Tokens of one step are not compared with each other.
        """
        rollouts = evidence.trained or evidence.rollouts
        if evidence.updates is None or rollouts.tokens is None or rollouts.written is None:
            return None
        now: dict[bytes, _Visit] = {}
        try:
            now.update(_contexts(step, Tokens(evidence.updates), rollouts))
        except Missing:
            return None
        again = [(self._seen[key], now[key]) for key in now if key in self._seen]
        for key, value in now.items():
            self._seen[key] = value
            self._seen.move_to_end(key)
        while len(self._seen) > MOST_CONTEXTS:
            self._seen.popitem(last=False)
        if not again:
            return Revisits(0, None, None, None)
        sampler = [abs(after.sampler - before.sampler) for before, after in again]
        trainer = [abs(after.trainer - before.trainer) for before, after in again]
        steps = [after.step - before.step for before, after in again]
        return Revisits(len(again), float(np.mean(sampler)), float(np.mean(trainer)), float(np.median(steps)))


def _contexts(step: int, tokens: Tokens, rollouts: Rollouts) -> Iterator[tuple[bytes, _Visit]]:
    """Yield a key of each of the first tokens of each trajectory, with its log-probs in its first update."""
    sampler = tokens.log_prob_behaviour
    trainer = tokens.log_prob_trainer
    starts = np.flatnonzero(np.diff(tokens.sequence, prepend=-1))
    ends = [*starts[1:].tolist(), len(tokens.sequence)]
    done: set[int] = set()
    for start, end in zip(starts.tolist(), ends, strict=True):
        trajectory = int(tokens.trajectory[start])
        if trajectory in done or len(done) >= MOST_TRAJECTORIES:
            continue
        done.add(trajectory)
        for place, key in enumerate(_keys(rollouts, trajectory)):
            if place < end - start:
                yield key, _Visit(step, float(sampler[start + place]), float(trainer[start + place]))


def _keys(rollouts: Rollouts, trajectory: int) -> Iterator[bytes]:
    """Yield a digest of all tokens up to each token of the first turn, that token included."""
    assert rollouts.tokens is not None
    assert rollouts.written is not None
    turns = rollouts.written[trajectory]
    ids = rollouts.tokens[trajectory]
    begin = _start_of_response(rollouts, trajectory)
    first: Sequence[int] = turns[0][:FIRST_TOKENS] if turns else ()
    if begin is None or list(ids[begin : begin + len(first)]) != list(first):
        return
    digest = blake2b(np.asarray(ids[:begin], dtype=np.int64).tobytes(), digest_size=12)
    for token in first:
        digest.update(int(token).to_bytes(8, "little"))
        yield digest.digest()


def _start_of_response(rollouts: Rollouts, trajectory: int) -> int | None:
    """How many tokens the prompt has; None where that is not known."""
    if rollouts.tokens is None or rollouts.response_tokens is None or rollouts.observation_tokens is None:
        return None
    response = rollouts.response_tokens[trajectory] + rollouts.observation_tokens[trajectory]
    return len(rollouts.tokens[trajectory]) - int(response)
