"""Counts that the evidence of a step is summed up by, against their plain definitions."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.measures.evidence import Known, Rollouts, count_stretches, distinct_ngrams, stretches
from sorl.measures.step import prompt_retrieval_frac

TOKENS = st.lists(st.integers(0, 3), max_size=30)


@given(TOKENS, st.integers(1, 5))
def test_distinct_ngrams_are_the_set_of_all_stretches_of_n_tokens(tokens, n):
    stretches_of_n = {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}
    assert distinct_ngrams(np.array(tokens, np.int64), n) == len(stretches_of_n)


def test_distinct_ngrams_of_more_tokens_than_a_number_can_tell_apart():
    different = np.arange(60_000)
    assert distinct_ngrams(np.concatenate([different, different])) == 2 * 60_000 - 3 - (60_000 - 3)


@given(st.lists(st.booleans(), max_size=20))
def test_stretches_are_counted_as_they_are_listed(written):
    assert count_stretches(np.array(written, bool)) == len(stretches(written, written))


@given(st.lists(st.lists(TOKENS, max_size=3), min_size=6, max_size=6))
def test_a_rollout_is_near_to_its_prompt_by_the_cosine_of_their_counts(written):
    counts = np.array([np.bincount([*chain.from_iterable(turns)], minlength=4) for turns in written])
    group = np.array([0, 0, 0, 1, 1, 1])
    shares = []
    for row in range(6):
        others = [counts[(group == g) & (np.arange(6) != row)].sum(0) for g in (0, 1)]
        norms = [np.linalg.norm(counts[row]) * np.linalg.norm(other) for other in others]
        likeness = [
            counts[row] @ other / norm if norm else 0.0 for other, norm in zip(others, norms, strict=True)
        ]
        nearest = np.array(likeness) >= max(likeness) - 1e-9
        shares.append(nearest[group[row]] / nearest.sum())

    class View:
        groups_with_tokens = (np.arange(3), np.arange(3, 6))
        rollouts = Known(Rollouts(reward=None, group=group, rollout_step=np.zeros(6), written=written))

    assert prompt_retrieval_frac(View()) == pytest.approx(np.mean(shares))
