"""Methods against staleness and for credit of turns, against their authors' public code on 24 batches.

The numbers were recorded by record_methods.py. Repositories, as of August 2026 at the latest: AReaL 4aef98d
(M2PO over all tokens, A-3PO), slime 624b824 (OPSM), prime-rl 559b447, Archer2.0 (ASPO), verl 1dda039 (OTB),
ARL-Arena (GiGPO). A tensor is compared by three random projections and its norm.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sorl.algorithms import ALGORITHMS, resolve
from sorl.batch import Batch
from sorl.objective import Algorithm, policy_loss, prepare
from tests.parity.cases import case, sequence_advantages, sketch

FILE = Path(__file__).parent / "methods.json"
SEEDS = range(24)
STALENESS = torch.tensor([0, 1, 2, 3, 4, 5] * 2)  # of the 12 rows of a batch


def squares(batch: Batch) -> Tensor:
    """Sums of squared probabilities that fit the log-probs, (B, T)."""
    rest = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    p = batch.log_prob_old.exp()
    return p.square() + rest * (1 - p).square()


def anchors(batch: Batch) -> dict[tuple[int, int], str]:
    """What each turn of each row has read since the turn before it, and its prompt group, as text."""
    found: dict[tuple[int, int], str] = {}
    for i, (tokens, turn) in enumerate(zip(batch.tokens.tolist(), batch.turn.tolist(), strict=True)):
        read = [f"group {int(batch.group[i])}"]
        for token, k in zip(tokens, turn, strict=True):
            if k == 0:
                read.append(str(token))
            elif (i, k) not in found:
                found[i, k] = " ".join(read)
                read = read[:1]
    return found


def recorded(name: str) -> list[list[float]]:
    numbers: list[list[float]] = json.loads(FILE.read_text())[name]
    return numbers


def near(expected: list[float]) -> object:
    return pytest.approx(expected, rel=1e-6, abs=1e-6)


def solved(algorithm: Algorithm, batch: Batch, new: Tensor) -> list[float]:
    leaf = new.clone().requires_grad_()
    loss = policy_loss(algorithm, batch, leaf).loss
    (gradient,) = torch.autograd.grad(loss, leaf)
    return [float(loss.detach()), *sketch(gradient)]


@pytest.mark.parametrize("name", ["opsm", "prime-rl", "aspo"])
def test_loss_and_gradient_are_those_of_the_authors_code(name):
    for seed, expected in zip(SEEDS, recorded(name), strict=True):
        batch, new = case(seed)
        if name == "opsm":
            batch = replace(batch, advantages=sequence_advantages(batch)[:, None] * batch.mask)
        assert solved(ALGORITHMS[name], batch, new) == near(expected)


def test_m2po_over_all_tokens_drops_the_tokens_that_areal_drops():
    over_all = resolve("m2po", {"clip": {"tokens": "all"}})
    dropped = 0
    for seed, expected in zip(SEEDS, recorded("m2po"), strict=True):
        batch, new = case(seed)
        terms = policy_loss(over_all, batch, new).terms
        closed = terms.active_low | terms.active_high
        dropped += int(closed.sum())
        assert sketch((batch.mask & ~closed).double()) == near(expected)
    assert dropped > 0


def test_the_interpolated_proximal_policy_is_areals():
    proximal = ALGORITHMS["a-3po"].proximal
    for seed, expected in zip(SEEDS, recorded("a-3po"), strict=True):
        batch, new = case(seed)
        assert sketch(proximal.log_prob(replace(batch, staleness=STALENESS), new)) == near(expected)


@pytest.mark.parametrize("name", ["otb", "gigpo"])
def test_advantages_are_those_of_the_authors_code(name):
    for seed, expected in zip(SEEDS, recorded(name), strict=True):
        batch, _ = case(seed)
        made = prepare(ALGORITHMS[name], replace(batch, squared_probs=squares(batch)))
        assert sketch(made.need("advantages")) == near(expected)
