"""One optimizer update: no algorithm is silently another one, and what stabilisers and clips do to its columns.

tests/learn/test_reference.py computes every column again for the named algorithms; here are the parts that none
of them has.
"""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.algorithms.ragged import ragged
from tests.diagnostics.shared_batch import rollouts_of
from workbench.agent.tokenizer import Spans, build_tokenizer
from workbench.algorithms import ALGORITHMS
from workbench.batch import Batch
from workbench.diagnostics import CATALOGUE, measure, measure_updates
from workbench.diagnostics.evidence import Evidence, StepEvidence
from workbench.learn import networks
from workbench.learn.networks import Critic, log_probs
from workbench.learn.probe import controls
from workbench.learn.update import Learner
from workbench.objective import Algorithm, prepare
from workbench.objective.clip import Hard, Ppo, Soft
from workbench.objective.kl import LossKL
from workbench.objective.stabilise import AdvNorm, CNorm, KlClipFrac, RmsBatch, RmsSeq, RmsTurn, Subtract
from workbench.spec import LearnSettings, PolicySettings

TOKENIZER = build_tokenizer()
GRPO = ALGORITHMS["grpo"]
BIAS = ("clip_bias_norm", "clip_bias_ratio", "clip_bias_cosine")
# Pairs that are the same update on this data, and why.
ALIKE = {
    frozenset({"gspo", "gspo-token"}): "one advantage a sequence: the gradients are equal, as its page says",
    frozenset({"ppo", "s-ppo"}): "the trigger, tau 3, does not fire here; the second test makes it fire",
    frozenset({"turn-ppo", "st-ppo"}): "the same",
}


# Columns that are NULL, and their descriptions say so: without a critic, without a correction, without a trigger, and
# on data without a noise scale or a direction of the bias.
CRITIC = {
    *(("minibatch", x) for x in ("value_loss", "critic_grad_norm", "value_mae_out_of_range", "value_bias")),
    *(("minibatch", x) for x in ("explained_variance", "value_mae", "vf_clip_frac")),
    *((table, x) for table in ("turn", "turn_step") for x in ("value", "value_error")),
    ("turn_step", "value_mae"), ("turn_step", "explained_variance"), ("step", "explained_variance"),
}  # fmt: skip
CORRECTED = ("corrected_frac", "corrected_positive_frac", "corrected_negative_frac", "correction_mean")
CORRECTION = {*(("minibatch", x) for x in CORRECTED), ("step", "corrected_frac")}
STABILISER = {("minibatch", "stabiliser_ratio"), ("minibatch", "stabiliser_factor"), ("step", "stabiliser_factor")}
UNDEFINED = {("minibatch", "noise_scale"), ("minibatch", "clip_bias_cosine")}
# What neither rollouts nor clock of this test have: they are no algorithm's.
ELSEWHERE = {
    (d.table, d.name) for d in CATALOGUE
    if d.name.startswith(("retrieval_", "seconds_", "heldout_")) or d.name in (
        "status", "search_frac", "answer_frac", "invalid_frac", "sync_error", "memory_peak", "tokens_per_second",
        "batch_hash", "first_log_ratio_abs_max", "token_mismatches",
    )
}  # fmt: skip


def learner(algorithm: Algorithm, critic: bool = True, **chosen: Any) -> Learner:
    network = networks.create(PolicySettings(hidden=16, layers=1, heads=2, mlp=16), TOKENIZER, seed=0)
    settings = LearnSettings.model_validate({"policy": {"lr": 0.5}, "clip_bias_every": 1} | chosen)
    return Learner(algorithm, settings, network, Critic(network) if critic and algorithm.critic else None)


def now(one: Learner, batch: Batch) -> Tensor:
    with torch.no_grad():
        return torch.where(batch.mask, log_probs(one.policy, batch.tokens)[0], 0)


def drifted(one: Learner, old: float = 1.5, behaviour: float | None = None, **changes: Any) -> Batch:
    """A ragged batch whose rewards differ inside every group but one.

    Old log-probs are up to `old` nats from the policy's, those of the sampler up to `behaviour`, or of another policy.
    """
    batch, _ = ragged(5, groups=4, size=4, width=18)
    floats = {k: x.float() for k, x in vars(batch).items() if x is not None and x.dtype == torch.float64}
    tokens = torch.randint(0, len(TOKENIZER), batch.tokens.shape, generator=torch.Generator().manual_seed(0))
    score = torch.tensor([1, 0, 0, 1, 0, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1.0])
    batch = replace(batch, **(floats | {"tokens": tokens, "score": score} | changes))
    moved, drift = now(one, batch), torch.linspace(-1, 1, tokens.numel()).view(tokens.shape)
    batch = replace(batch, log_prob_old=torch.where(batch.mask, moved + old * drift, 0))
    if behaviour is not None:
        batch = replace(batch, log_prob_behaviour=torch.where(batch.mask, moved + behaviour * drift, 0))
    return prepare(one.algorithm, batch)


def columns(algorithm: Algorithm, **chosen: Any) -> dict[str, float | None]:
    """Table `minibatch` after one update."""
    one = learner(algorithm, **chosen)
    found = measure_updates(one.update(drifted(one), 0, 0))
    return {k: None if x is None or np.ma.getmaskarray(x)[0] else float(x[0]) for k, x in found.items()}


def trained(algorithm: Algorithm) -> Tensor:
    """The parameters after five updates without a critic: the schedule's parts count as one, as in the loop."""
    one = learner(algorithm, critic=False, clip_bias_every=0)
    batch = drifted(one, old=0.0, behaviour=1.5)
    for _ in range(5):
        for part in algorithm.schedule.parts(batch, lambda part: now(one, part)):
            one.update(part, 0, 0)
    return torch.cat([p.detach().reshape(-1) for p in one.policy_parameters])


def apart(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) > 1e-5


def test_every_pair_of_algorithms_ends_elsewhere_unless_the_docs_say_why() -> None:
    ends = {name: trained(algorithm.within(18)) for name, algorithm in ALGORITHMS.items()}
    assert {frozenset({a, b}) for a, b in combinations(ends, 2) if not apart(ends[a], ends[b])} == set(ALIKE)


@pytest.mark.parametrize(("name", "base"), [("s-ppo", "ppo"), ("st-ppo", "turn-ppo")])
def test_a_trigger_that_fires_makes_another_algorithm(name: str, base: str) -> None:
    assert apart(trained(replace(ALGORITHMS[name], stabilise=RmsBatch(tau=1.0))), trained(ALGORITHMS[base]))


def null_columns(algorithm: Algorithm) -> set[tuple[str, str]]:
    """Columns without a number after two updates with a probe and the clipping bias at each."""
    one = learner(algorithm, probe_every=1)
    one.probe.control, one.spans = controls(TOKENIZER), Spans(TOKENIZER)
    tokens = drifted(one).tokens
    tags = torch.tensor([*controls(TOKENIZER).values(), TOKENIZER.get_vocab()["<think>"]])
    tokens[:, ::2] = tags[torch.arange(tokens.numel()).view(tokens.shape) // 2 % 5][:, ::2]
    values = {} if algorithm.critic else {"values": None}
    batch = drifted(one, old=0.9, behaviour=-1.5, tokens=tokens, **values)
    parts = algorithm.schedule.parts
    updates = [one.update(part, 0, 0) for _ in range(2) for part in parts(batch, lambda part: now(one, part))]
    rollouts = rollouts_of([float(x) for x in batch.score], group=batch.group.tolist())
    found = measure(0, StepEvidence(rollouts, Evidence.stack(updates)))
    null = {("step", name) for name, value in found.step.items() if value is None}
    for table in ("minibatch", "trajectory", "turn", "turn_step"):
        for name, column in getattr(found, table).items():
            if column is None or (not isinstance(column, list) and np.ma.getmaskarray(column).all()):
                null.add((table, name))
    return null


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_column_is_filled_or_its_reason_is_the_algorithms(name: str) -> None:
    algorithm = ALGORITHMS[name].within(84)
    reasons = set() if algorithm.critic else set(CRITIC)
    reasons |= CORRECTION if algorithm.correction.kind == "none" else set()
    # A penalty multiplies nothing and compares nothing with a threshold: it has neither a factor nor a ratio.
    reasons |= STABILISER if algorithm.stabilise.kind in ("none", "kl_clipfrac") else set()
    assert null_columns(algorithm) - ELSEWHERE - UNDEFINED == reasons


def test_what_can_be_null_says_so() -> None:
    said = {(d.table, d.name): d.description for d in CATALOGUE}
    assert [place for place in sorted(CRITIC | CORRECTION | STABILISER | UNDEFINED) if "NULL" not in said[place]] == []


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({"stabilise": RmsTurn(tau=1.0)}, {}),
        ({"stabilise": CNorm(guard=0.01)}, {}),
        ({"stabilise": Subtract(alpha=0.5)}, {}),
        ({"kl": LossKL("k2", 3.0)}, {"micro_batch": 4}),
        ({"stabilise": RmsBatch(tau=1.0), "kl": LossKL("k2", 3.0)}, {"entropy_coef": 3.0}),
    ],
    ids=str,
)
def test_nothing_but_the_surrogate_moves_the_columns_of_the_clipping_bias(changes, chosen):
    found, plain = columns(replace(GRPO, **changes), **chosen), columns(GRPO)
    assert abs(found["grad_norm"] / plain["grad_norm"] - 1) > 0.05, "the gradient itself is another one"
    assert [found[name] for name in BIAS] == pytest.approx([plain[name] for name in BIAS], rel=1e-4)


@pytest.mark.parametrize(
    ("stabilise", "ratio", "factor"),
    [
        (None, False, False), (RmsBatch(), True, True), (RmsTurn(), True, True), (RmsSeq(), True, True),
        (CNorm(), False, True), (Subtract(), False, False), (KlClipFrac(), False, False), (AdvNorm(), False, False),
    ],
    ids=str,
)  # fmt: skip
def test_a_stabiliser_has_a_ratio_and_a_factor_only_where_it_computes_one(stabilise, ratio, factor):
    found = columns(GRPO if stabilise is None else replace(GRPO, stabilise=stabilise))
    assert [found[name] is not None for name in ("stabiliser_ratio", "stabiliser_factor")] == [ratio, factor]
    assert found["clipped_rms"] > 0
    assert found["unclipped_rms"] > 0


def test_the_ratio_of_a_stabiliser_is_the_largest_that_was_judged():
    whole, plain = columns(replace(GRPO, stabilise=RmsBatch()))["stabiliser_ratio"], columns(GRPO)
    assert whole == pytest.approx(plain["clipped_rms"] / plain["unclipped_rms"])
    for stabilise, chosen in ((RmsBatch(), {"micro_batch": 4}), (RmsTurn(), {}), (RmsSeq(), {})):
        largest = columns(replace(GRPO, stabilise=stabilise), **chosen)["stabiliser_ratio"]
        assert largest != pytest.approx(whole, rel=1e-3)
        taus = largest * 0.99, max(1.0, largest * 1.01)
        rules = [replace(GRPO, stabilise=replace(stabilise, tau=tau)) for tau in taus]
        fires, idle = (columns(rule, **chosen)["stabiliser_factor"] for rule in rules)
        assert fires < 1 == idle


def test_a_clip_is_counted_where_it_leaves_no_gradient():
    for clip in (ALGORITHMS["cispo"].clip, Hard()):  # they bound weights, stop no gradient, and have a bias
        found = columns(replace(GRPO, clip=clip))
        assert found["out_of_range_frac"] > 0.5
        assert found["clip_frac"] == found["clip_low_frac"] == found["clip_high_frac"] == 0
        assert found["clip_bias_norm"] > 0
        assert found["clip_bias_cosine"] is not None
    ppo, soft = (columns(replace(GRPO, clip=clip)) for clip in (Ppo(), Soft()))
    assert ppo["clip_frac"] < soft["clip_frac"] < soft["out_of_range_frac"]
