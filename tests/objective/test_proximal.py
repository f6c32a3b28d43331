"""The proximal policies: what the ratio is against, and which weight corrects to the sampler."""

import math
from dataclasses import replace

import pytest
import torch

from sorl.algorithms import ALGORITHMS, resolve
from sorl.objective import policy_loss
from sorl.objective.proximal import Interpolated
from sorl.spec import InputError
from tests.objective.batches import F64, close, plain

NOW = torch.tensor([[-1.0, -2.0], [-1.0, -2.0], [-1.0, -2.0]], dtype=F64)
SAMPLER = torch.tensor([[-1.6, -1.4], [-1.6, -1.4], [-1.6, -1.4]], dtype=F64)
BATCH = plain(NOW, log_prob_behaviour=SAMPLER, staleness=torch.tensor([0, 1, 4]))


def test_the_interpolated_policy_is_the_sampler_until_two_versions_lie_between():
    found = Interpolated().log_prob(BATCH, NOW)
    assert torch.equal(found[:2], SAMPLER[:2])
    # staleness 4: a quarter of the sampler, three of the present policy
    assert found[2].tolist() == pytest.approx([-0.25 * 1.6 - 0.75, -0.25 * 1.4 - 1.5])


def test_ratio_and_weight_of_a_3po_multiply_to_the_ratio_to_the_sampler():
    unclipped = replace(ALGORITHMS["a-3po"], clip=ALGORITHMS["reinforce"].clip)
    terms = policy_loss(unclipped, BATCH, NOW).terms
    assert terms.correction is not None
    product = terms.ratio * terms.correction
    assert product.flatten().tolist() == close([math.exp(0.6), math.exp(-0.6)] * 3)
    assert terms.ratio[2].tolist() == close([math.exp(0.15), math.exp(-0.15)])


def test_a_mean_weight_that_is_taken_before_the_pass_is_refused_where_the_pass_decides_it():
    with pytest.raises(InputError, match="divides by the mean weight of the minibatch"):
        resolve("a-3po", {"correction": {"normalise": True}})
    resolve("ppo-ewma", {"correction": {"normalise": True}})
