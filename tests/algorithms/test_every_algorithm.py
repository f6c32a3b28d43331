"""What holds for every named algorithm from its rewards on.

tests/objective has what holds for every pipeline of the kinds that a slot may have: all of them, says the first test.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import pad

from tests.objective.batches import ADVANTAGES, EVERY, dirtied, poisoned, ragged, solved, widened
from workbench.algorithms import ALGORITHMS
from workbench.objective import KINDS, prepare

every = pytest.mark.parametrize("algorithm", [a.within(20) for a in ALGORITHMS.values()], ids=list(ALGORITHMS))


@pytest.mark.parametrize(("slot", "choices"), [*EVERY.items(), ("advantage", ADVANTAGES)])
def test_every_kind_is_among_those_that_the_random_pipelines_draw(slot: str, choices: list[object]) -> None:
    assert {type(choice) for choice in choices} == set(KINDS[slot].values())


@every
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_neither_what_the_policy_did_not_write_nor_padding_nor_the_order_matters(algorithm, garbage):
    for seed in range(2):
        batch, new = ragged(seed)
        expected, gradient = solved(algorithm, prepare(algorithm, batch), new)
        order = torch.randperm(len(new), generator=torch.Generator().manual_seed(seed))
        dirty = replace(dirtied(batch, garbage), tokens=poisoned(batch.tokens, batch.mask, 0))
        wider = widened(dirty, order, 5)
        new = pad(poisoned(new, batch.mask, garbage)[order], (0, 5))
        found, wide = solved(algorithm, prepare(algorithm, wider), new)
        assert torch.allclose(found.loss, expected.loss, rtol=1e-9, atol=1e-12)
        assert torch.allclose(wide[:, :-5], gradient[order], rtol=1e-9, atol=1e-12)
        assert torch.all(wide[~wider.mask] == 0)
