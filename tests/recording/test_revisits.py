"""Contexts that come again: a frozen sampler repeats itself, and only the same words are compared."""

import numpy as np
import pytest
import torch

from sorl.measures import measure
from sorl.measures.evidence import Rollouts, StepEvidence
from sorl.recording.revisits import Memory
from tests.measures.shared_batch import evidence_of

PROMPT = [7, 8]
FIRST = [1, 2, 3]


def step_of(sampler: float, trainer: float, prompt=PROMPT, first=FIRST) -> StepEvidence:
    """One trajectory with these log-probs at every token of its first turn."""
    mask = torch.ones(1, len(first), dtype=torch.bool)
    old = torch.full((1, len(first)), trainer)
    behaviour = torch.full((1, 1, len(first)), sampler)
    updates = evidence_of(mask, old, torch.zeros_like(old), old, log_prob_behaviour=behaviour)
    rollouts = Rollouts(
        reward=np.zeros(1),
        group=np.zeros(1, np.int64),
        rollout_step=np.zeros(1, np.int64),
        tokens=[[*prompt, *first]],
        written=[[list(first)]],
        response_tokens=np.array([len(first)]),
        observation_tokens=np.array([0]),
    )
    return StepEvidence(rollouts, updates)


def test_the_shift_of_both_sides_since_the_last_visit_is_measured():
    memory = Memory()
    assert memory.see(0, step_of(-1.0, -1.0)).tokens == 0
    again = memory.see(3, step_of(-1.0, -1.25))
    assert again.tokens == len(FIRST)
    assert again.steps == 3
    assert again.sampler_shift == 0.0
    assert again.trainer_shift == pytest.approx(0.25)
    assert memory.see(4, step_of(-1.5, -1.25)).sampler_shift == pytest.approx(0.5), "since the last visit"


def test_only_the_same_words_after_the_same_words_are_compared():
    memory = Memory()
    memory.see(0, step_of(-1.0, -1.0))
    assert memory.see(1, step_of(-2.0, -2.0, prompt=[7, 9])).tokens == 0
    assert memory.see(2, step_of(-2.0, -2.0, first=[1, 2, 4])).tokens == 2


def test_the_shifts_are_columns_of_the_step_and_null_without_a_memory():
    memory = Memory()
    evidence = step_of(-1.0, -1.0)
    memory.see(0, evidence)
    seen = StepEvidence(evidence.rollouts, evidence.updates, revisits=memory.see(1, evidence))
    row = measure(1, seen).step
    assert (row["revisited_tokens"], row["sampler_revisit_shift"]) == (len(FIRST), 0.0)
    assert measure(1, evidence).step["revisited_tokens"] is None
