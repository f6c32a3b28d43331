"""What holds of every diagnostic on any batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sorl.measures import measure, measure_turns, measure_updates
from sorl.measures.evidence import Evidence, StepEvidence
from tests.measures.shared_batch import random_evidence, rollouts_of, tensors_of

shapes = st.tuples(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4))
quick = settings(max_examples=30)


def assert_same(left, right, **tolerance):
    assert left.keys() == right.keys()
    for name, column in left.items():
        other = right[name]
        if column is None or other is None:
            assert column is other, name
        elif isinstance(column, list):
            assert column == other, name
        else:
            np.testing.assert_array_equal(np.ma.getmaskarray(column), np.ma.getmaskarray(other), err_msg=name)
            a, b = (np.ma.filled(np.ma.asarray(x, dtype=float), 0.0) for x in (column, other))
            np.testing.assert_allclose(a, b, err_msg=name, **(tolerance or {"rtol": 0, "atol": 0}))


@quick
@given(shapes)
def test_values_under_the_mask_change_nothing(shape):
    clean = random_evidence(*shape)
    under = {k: x for k, x in tensors_of(clean).items() if x.dim() == 3 and k not in ("mask", "turn")}
    garbage = {k: True if x.dtype == torch.bool else float("nan") for k, x in under.items()}
    dirty = replace(clean, **{k: torch.where(clean.mask, x, garbage[k]) for k, x in under.items()})
    assert_same(measure_updates(clean), measure_updates(dirty))
    assert_same(measure_turns(clean), measure_turns(dirty))


@quick
@given(shapes)
def test_padding_and_the_order_of_sequences_change_no_update(shape):
    plain = random_evidence(*shape)
    order = torch.randperm(plain.mask.shape[1], generator=torch.Generator().manual_seed(shape[0]))
    wide = {}
    for name, x in tensors_of(plain).items():
        if x.dim() == 3:
            x = torch.cat([x, x.new_full((1, x.shape[1], 3), 0)], dim=2)
        if x.dim() >= 2:
            x = torch.cat(
                [x[:, order], x.new_full((1, 2, *x.shape[2:]), -1 if name == "trajectory" else 0)], dim=1
            )
        wide[name] = x
    other = replace(plain, **wide)
    assert_same(measure_updates(plain), measure_updates(other), rtol=1e-9, atol=1e-12)
    left = measure_turns(plain)
    right = measure_turns(other)
    place = np.lexsort((right["turn_index"], right["trajectory"]))
    right = {
        k: v if v is None else [v[i] for i in place] if isinstance(v, list) else v[place]
        for k, v in right.items()
    }
    assert_same(left, right, rtol=1e-9, atol=1e-12)


def first_log_prob(evidence, value):
    """`evidence` with this log-prob at its first trained token."""
    log_prob = evidence.log_prob.clone()
    log_prob[tuple(evidence.mask.nonzero()[0].tolist())] = value
    return replace(evidence, log_prob=log_prob)


def test_a_nan_stays_a_nan_an_infinity_infinite_and_both_are_counted_and_spare_the_other_updates():
    one = random_evidence(1, 3, 2)
    update = measure_updates(Evidence.stack([one, first_log_prob(one, np.nan), first_log_prob(one, -np.inf)]))
    assert update["non_finite"].tolist() == [0, 1, 1]
    for name in ("approx_kl", "ratio_max", "ess_frac", "log_ratio_q50", "kl_k3", "chi2"):
        assert np.isnan(update[name]).tolist()[:2] == [False, True], name
    assert update["approx_kl"][2] == np.inf
    assert update["ratio_min"][2] == pytest.approx(np.exp(-20))


def test_an_update_without_a_trained_token_measures_nothing_and_says_so():
    empty = random_evidence(3, 2, 2)
    empty = replace(empty, mask=torch.zeros_like(empty.mask), turn=torch.zeros_like(empty.turn))
    update = measure_updates(Evidence.stack([random_evidence(4, 2, 2), empty]))
    assert update["tokens"].tolist()[1] == 0
    for name in ("approx_kl", "ess_sequence_frac"):
        assert np.ma.getmaskarray(update[name]).tolist() == [False, True]
    alone = measure(0, StepEvidence(rollouts_of([1.0, 0.0]), empty))
    assert (alone.step["entropy"], alone.step["success"]) == (None, 0.5)
    assert len(alone.turn["turn_index"]) == 0


def test_bfloat16_evidence_is_measured_too():
    plain = random_evidence(10, 3, 2)
    half = {k: x.bfloat16() for k, x in tensors_of(plain).items() if x.dtype == torch.float64}
    rough = measure_updates(replace(plain, **half))
    assert rough["entropy"][0] == pytest.approx(measure_updates(plain)["entropy"][0], rel=0.02)
