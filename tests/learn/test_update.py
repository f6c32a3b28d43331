"""No algorithm is silently another one; tests/learn/test_reference.py computes every update and column again."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import Tensor

from tests.algorithms.ragged import ragged
from workbench.agent.tokenizer import build_tokenizer
from workbench.algorithms import ALGORITHMS
from workbench.batch import Batch
from workbench.learn import networks
from workbench.learn.networks import log_probs
from workbench.learn.update import Learner
from workbench.objective import Algorithm, prepare
from workbench.objective.stabilise import RmsBatch
from workbench.spec import LearnSettings, PolicySettings

TOKENIZER = build_tokenizer()
# Pairs that are the same update on this data, and why.
ALIKE = {
    frozenset({"gspo", "gspo-token"}): "one advantage a sequence: the gradients are equal, as its page says",
    frozenset({"ppo", "s-ppo"}): "the trigger, tau 3, does not fire here; the second test makes it fire",
    frozenset({"turn-ppo", "st-ppo"}): "the same",
}


def trained(algorithm: Algorithm) -> Tensor:
    """The parameters after five updates without a critic: the schedule's parts count as one, as in the loop.

    Rewards differ inside every group but one; the sampler's log-probs are up to 1.5 nats from the policy's.
    """
    network = networks.create(PolicySettings(hidden=16, layers=1, heads=2, mlp=16), TOKENIZER, seed=0)
    learner = Learner(algorithm, LearnSettings.model_validate({"policy": {"lr": 0.5}}), network, None)

    def now(batch: Batch) -> Tensor:
        with torch.no_grad():
            return torch.where(batch.mask, log_probs(learner.policy, batch.tokens)[0], 0)

    batch, _ = ragged(5, groups=4, size=4, width=18)
    floats = {k: x.float() for k, x in vars(batch).items() if x is not None and x.dtype == torch.float64}
    tokens = torch.randint(0, len(TOKENIZER), batch.tokens.shape, generator=torch.Generator().manual_seed(0))
    score = torch.tensor([1, 0, 0, 1, 0, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1.0])
    batch = replace(batch, **(floats | {"tokens": tokens, "score": score}))
    old, drift = now(batch), 1.5 * torch.linspace(-1, 1, tokens.numel()).view(tokens.shape)
    behaviour = torch.where(batch.mask, old + drift, 0)
    batch = prepare(algorithm, replace(batch, log_prob_old=old, log_prob_behaviour=behaviour))
    for _ in range(5):
        for part in algorithm.schedule.parts(batch, now):
            learner.update(part, 0, 0)
    return torch.cat([p.detach().reshape(-1) for p in learner.policy_parameters])


def apart(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) > 1e-5


def test_every_pair_of_algorithms_ends_elsewhere_unless_the_docs_say_why():
    ends = {name: trained(algorithm.within(18)) for name, algorithm in ALGORITHMS.items()}
    assert {frozenset({a, b}) for a, b in combinations(ends, 2) if not apart(ends[a], ends[b])} == set(ALIKE)


@pytest.mark.parametrize(("name", "base"), [("s-ppo", "ppo"), ("st-ppo", "turn-ppo")])
def test_a_trigger_that_fires_makes_another_algorithm(name, base):
    assert apart(trained(replace(ALGORITHMS[name], stabilise=RmsBatch(tau=1.0))), trained(ALGORITHMS[base]))
