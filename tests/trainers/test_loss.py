"""Our algorithms as losses elsewhere: equal to our own loop, whatever the split into micro-
batches and ranks.
"""

import os
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence

from sorl.algorithms import ALGORITHMS, resolve
from sorl.objective import Normaliser, policy_loss, statistics
from sorl.spec import InputError
from sorl.trainers.loss import (
    COUNTS,
    Loss,
    feedable,
    metrics,
    micro_statistics,
    refusal,
    split_note,
)
from sorl.trainers.skyrl import skyrl_loss
from sorl.trainers.tinker import tinker_loss
from sorl.trainers.trl_loss import TrlLoss, mask_of
from tests.objective.batches import plain
from tests.trainers.fake_trl import micro_batches
from tests.trainers.fake_verl import recorded

B = 8
T = 18
NAMED = ("mask", "advantages", "log_prob_old", "log_prob_behaviour", "log_prob_ref")


def tensors(seed=0, spread=0.4):
    """What a trainer has of B sequences of several turns, in float64, and the policy's log-probs.

    `spread`: std of log pi_theta - log pi_old, nats.
    """
    stream = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=stream, dtype=torch.float64)

    mask = torch.rand(B, T, generator=stream) < 0.7
    mask[:, 0] = True
    mask[3, 4:] = False
    old = -normal(B, T).abs()
    found = {
        "mask": mask,
        "advantages": normal(B),
        "log_prob_old": old,
        "log_prob_behaviour": old + 0.2 * normal(B, T),
        "log_prob_ref": old + 0.3 * normal(B, T),
    }
    return found, old + spread * normal(B, T)


def ours(algorithm, given, log_prob, micros):
    """Loss and gradient as our own loop makes them."""
    told = {name: given[name] for name in ("log_prob_behaviour", "log_prob_ref")}
    advantages = given["advantages"][:, None] * given["mask"]
    batch = plain(given["log_prob_old"], given["mask"], advantages=advantages, **told)
    leaf = log_prob.clone().requires_grad_()
    whole = Normaliser.of(batch, len(micros), algorithm.correction)
    found = [statistics(algorithm, batch.rows(rows), leaf[rows]) for rows in micros]
    sums = None if found[0] is None else torch.stack(found).sum(0)
    parts = [
        policy_loss(algorithm, batch.rows(r), leaf[r], normaliser=whole, statistics=sums).loss for r in micros
    ]
    loss = torch.stack(parts).sum()
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def theirs(loss, given, log_prob, micros, ranks=1):
    """Loss and gradient of these micro-batches by `Loss`, the sums added over them, and over the ranks if
    there are.
    """
    leaf = log_prob.clone().requires_grad_()
    batches = [loss.batch(**{name: given[name][rows] for name in NAMED}) for rows in micros]
    own = [loss.sums(batch, leaf[rows]) for batch, rows in zip(batches, micros, strict=True)]
    sums = torch.stack(own).sum(0)
    if ranks > 1:
        dist.all_reduce(sums)
    pairs = zip(batches, micros, strict=True)
    total = torch.stack([loss(b, leaf[r], sums, ranks * len(micros)).loss for b, r in pairs]).sum()
    return total.detach(), torch.autograd.grad(total, leaf)[0]


def algorithm_of(name, **slots):
    return resolve(name, slots).within(64), Loss(name, horizon=64, **slots)


GLOBAL = {"stabilise": {"kind": "rms_batch", "tau": 1.0, "scope": "global"}}
CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in feedable()] + [
    ("st-ppo", {"stabilise": {"tau": 1.0}}),
    ("st-ppo", GLOBAL),
    ("s-ppo", GLOBAL),
    ("so-grpo", {"stabilise": {"tau": 1.0}}),
    ("st-ppo", {"stabilise": {"kind": "rms_turn", "tau": 1.0, "scope": "global"}}),
    ("ppo", {"stabilise": {"kind": "adv_norm", "threshold": 0.1, "scope": "global"}}),
    ("grpo", {"kl": {"kind": "loss", "beta": 0.1}}),
    ("tis", {"correction": {"normalise": True}}),
]


@pytest.mark.parametrize(
    ("name", "slots"), CASES, ids=lambda x: x if isinstance(x, str) else "-".join(x) or "plain"
)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_loss_elsewhere_is_that_of_our_own_loop(name: str, slots: dict[str, Any], parts: int) -> None:
    algorithm, loss = algorithm_of(name, **slots)
    given, log_prob = tensors()
    micros = list(torch.arange(B).chunk(parts))
    value, gradient = ours(algorithm, given, log_prob, micros)
    found, its_gradient = theirs(loss, given, log_prob, micros)
    torch.testing.assert_close(found, value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(its_gradient, gradient, rtol=1e-12, atol=1e-12)
    assert gradient.abs().sum() > 0


def _rank(rank: int, ranks: int, folder: str, cases: list[tuple[str, dict[str, Any]]]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    given, log_prob = tensors()
    mine = torch.arange(B).chunk(ranks)[rank]
    micros = list(mine.chunk(2))
    found = []
    for name, slots in cases:
        loss = algorithm_of(name, **slots)[1]
        value, gradient = theirs(loss, given, log_prob, micros, ranks)
        averaged = gradient * ranks  # the trainer multiplies its loss by the number of ranks
        dist.all_reduce(averaged)
        found.append((value, averaged / ranks))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_loss_of_several_ranks_is_that_of_one(tmp_path: Path, ranks: int) -> None:
    wanted = ("turn-ppo", "s-ppo", "st-ppo", "so-grpo", "gspo", "turn-ppo-mdp", "sapo-search", "tis")
    cases = [case for case in CASES if case[0] in wanted]
    torch.multiprocessing.spawn(_rank, (ranks, str(tmp_path), cases), nprocs=ranks)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(ranks)]
    given, log_prob = tensors()
    micros = [half for part in torch.arange(B).chunk(ranks) for half in part.chunk(2)]
    for i, (name, slots) in enumerate(cases):
        value, gradient = ours(algorithm_of(name, **slots)[0], given, log_prob, micros)
        torch.testing.assert_close(torch.stack([f[i][0] for f in found]).sum(), value, rtol=1e-10, atol=1e-12)
        for one in found:
            torch.testing.assert_close(one[i][1], gradient, rtol=1e-10, atol=1e-12)


def split_errors(name: str, **slots: Any) -> list[float]:
    """How far the gradient of 8 rows in 3 micro-batches is from that of the whole, of its largest entry, for
    each of 8 batches whose log-ratios are large enough for every rule to act.
    """
    loss = algorithm_of(name, **slots)[1]
    errors = []
    for seed in range(8):
        given, log_prob = tensors(seed, spread=1.5)
        _, whole_gradient = theirs(loss, given, log_prob, [torch.arange(B)])
        _, gradient = theirs(loss, given, log_prob, list(torch.arange(B).tensor_split(3)))
        error = (gradient - whole_gradient).abs().max() / whole_gradient.abs().max()
        errors.append(float(error))
    return errors


OF_MICRO_BATCH = {"s-ppo", "st-ppo", "grpo-guard", "grpo-guard-full", "m2po"}


@pytest.mark.parametrize("name", feedable())
def test_the_split_matters_for_the_algorithms_that_say_so_and_for_no_other(name: str) -> None:
    errors = split_errors(name)
    if name in OF_MICRO_BATCH:
        assert max(errors) > 0.01, "it is in the list, and the split changes nothing"
    else:
        assert max(errors) < 1e-6
    assert bool(micro_statistics(ALGORITHMS[name])) == (name in OF_MICRO_BATCH)


def test_a_statistic_of_the_micro_batch_is_named_with_what_to_set_and_goes_with_it() -> None:
    note = split_note(resolve("st-ppo"))
    assert "the factor of the stabiliser (slot stabilise, with scope = 'global'" in note
    assert "in each bin (slot ratio, there is no other form)" in split_note(resolve("grpo-guard"))
    for name in ("s-ppo", "st-ppo"):
        slots = {"stabilise": {"scope": "global"}}
        assert not split_note(resolve(name, slots))
        assert max(split_errors(name, **slots)) < 1e-6
    for slots in (
        {"clip": "entropy_band"},
        {"aggregate": {"scope": "micro"}},
        {"stabilise": {"kind": "adv_norm", "threshold": 0.1}},
        {"stabilise": "kl_clipfrac"},
        {"stabilise": "rms_turn"},
    ):
        assert split_note(resolve("ppo", slots))
        assert max(split_errors("ppo", **slots)) > 0.01


def test_the_page_on_losses_lists_the_algorithms_for_which_the_split_matters() -> None:
    page = (HERE.parents[1] / "docs" / "losses.md").read_text(encoding="utf-8")
    section = page.partition("## Does the split into micro-batches matter?")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    of_one = [names for _, names, _, over, _ in rows if over.strip().startswith("one micro-batch")]
    assert set(re.findall("`([^`]+)`", " ".join(of_one))) == OF_MICRO_BATCH


def test_sums_without_the_log_probs_that_a_loss_compares_are_refused() -> None:
    given, log_prob = tensors()
    for name, slots in (("bapo", {}), ("st-ppo", {"stabilise": {"scope": "global"}})):
        loss = Loss(name, **slots)
        batch = loss.batch(**{key: given[key] for key in NAMED})
        with pytest.raises(ValueError, match="its sums need log_prob"):
            loss(batch, log_prob, loss.sums(batch))


def test_micro_batches_alone_would_end_bapos_search_at_other_bounds() -> None:
    loss = Loss("bapo")
    apart = 0
    for seed in range(8):
        given, log_prob = tensors(seed, spread=1.5)
        batch = loss.batch(**{name: given[name] for name in NAMED})
        sums = [loss.sums(batch.rows(rows), log_prob[rows]) for rows in torch.arange(B).tensor_split(3)]
        bounds = [loss.algorithm.clip.search(part[COUNTS:]) for part in [torch.stack(sums).sum(0), *sums]]
        apart += len(set(bounds)) > 1
    assert apart > 0


@pytest.mark.parametrize("ranks", [2, 4])
def test_bapo_on_several_ranks_has_the_gradient_of_one_rank_with_one_micro_batch(
    tmp_path: Path, ranks: int
) -> None:
    torch.multiprocessing.spawn(_rank, (ranks, str(tmp_path), [("bapo", {})]), nprocs=ranks)
    found = [torch.load(tmp_path / f"{rank}.pt")[0] for rank in range(ranks)]
    given, log_prob = tensors()
    value, gradient = ours(resolve("bapo"), given, log_prob, [torch.arange(B)])
    torch.testing.assert_close(torch.stack([part[0] for part in found]).sum(), value, rtol=1e-10, atol=1e-12)
    for part in found:
        torch.testing.assert_close(part[1], gradient, rtol=1e-10, atol=1e-12)


NEEDS_SAMPLER = [name for name in feedable() if ALGORITHMS[name].needs_sampler]
PART = {name: ALGORITHMS[name].parts_with_sampler[0] for name in NEEDS_SAMPLER}


def test_the_algorithms_that_need_the_sampler_are_these() -> None:
    assert {name for name, part in PART.items() if part == "clip"} == {
        "dppo",
        "vespo",
        "topr",
        "trm",
        "prime-rl",
    }
    of_correction = {"tis", "mis", "icepop", "minirl", "decoupled-ppo"}
    assert {name for name, part in PART.items() if part == "correction"} == of_correction
    assert set(PART.values()) == {"clip", "correction"}


@pytest.mark.parametrize("name", NEEDS_SAMPLER)
def test_without_the_samplers_log_probs_an_algorithm_that_needs_them_is_refused_in_every_trainer(
    name: str,
) -> None:
    given, log_prob = tensors()
    words = {key: given[key] for key in NAMED[:3]}
    said = f"the {PART[name]} of '{name}' needs the sampler's log-probs"
    with pytest.raises(InputError, match=rf"{said}.*verl: rollout\.calculate_log_probs=true") as refused:
        Loss(name).batch(**words)
    assert "another algorithm, set " + (
        "clip = {'against'" if PART[name] == "clip" else "correction ="
    ) in str(refused.value)
    unscored = torch.full_like(given["log_prob_old"], torch.nan)
    with pytest.raises(InputError, match=said):
        Loss(name).batch(**words, log_prob_behaviour=unscored)
    nowhere = torch.where(given["mask"], unscored, 0.0)
    with pytest.raises(InputError, match=said):
        Loss(name).batch(**words, log_prob_behaviour=nowhere)
    with pytest.raises(InputError, match=f"{said}: set use_vllm = True"):
        type("Mine", (TrlLoss, FakeTrl), {"loss": name})([{}] * 4, 2)
    no_kl = {"kl": "none"}  # SkyRL takes no KL term
    with pytest.raises(InputError, match=rf"{said}.*SkyRL: generator\.sampling_params\.logprobs"):
        skyrl_loss(name, **no_kl)(
            log_prob, given["log_prob_old"], log_prob, config=None, loss_mask=given["mask"]
        )
    fields = {"mask": given["mask"].double(), "advantages": unscored, "logprobs": unscored}
    row = {key: SimpleNamespace(to_torch=lambda x=x: x[0]) for key, x in fields.items()}
    with pytest.raises(InputError, match=said):
        tinker_loss(name)([SimpleNamespace(loss_fn_inputs=row)], [log_prob[0]])


@pytest.mark.parametrize("name", NEEDS_SAMPLER)
def test_a_token_without_a_score_of_the_sampler_takes_the_old_one_and_no_token_needs_none(name: str) -> None:
    given, _ = tensors()
    words = {key: given[key] for key in NAMED[:3]}
    first = given["log_prob_behaviour"].clone()
    first[:, 1:] = torch.nan
    batch = Loss(name).batch(**words, log_prob_behaviour=first)
    mask = given["mask"]
    assert batch.log_prob_behaviour[:, 0].tolist() == given["log_prob_behaviour"][:, 0].tolist()
    assert (
        batch.log_prob_behaviour[:, 1:].tolist() == torch.where(mask, batch.log_prob_old, 0)[:, 1:].tolist()
    )
    words["mask"] = torch.zeros_like(mask)
    Loss(name).batch(**words, log_prob_behaviour=torch.full_like(first, torch.nan))


@pytest.mark.parametrize(("name", "slots"), [(n, {"clip": {"against": "old"}}) for n in ("dppo", "vespo")])
def test_against_the_old_policy_no_sampler_is_asked_for(name: str, slots: dict[str, Any]) -> None:
    given, log_prob = tensors()
    loss = Loss(name, **slots)
    out = loss(loss.batch(**{key: given[key] for key in NAMED[:3]}), log_prob)
    assert torch.isfinite(out.loss)
    made: Any = type("Mine", (TrlLoss, FakeTrl), {"loss": {"base": name} | slots})
    assert made([{}] * 4, 2)._ours.algorithm == loss.algorithm


HERE = Path(__file__).parent
TUNED = {"st-ppo": {"stabilise": {"tau": 1.0, "scope": "global"}}}


def trained(trainer, name):
    """The micro-batches that a real trainer trained on with a loss of ours, by rank, and where it keeps our
    tensors.
    """
    if trainer == "verl":  # float32, 2 ranks
        files = (HERE / f"verl_{name.replace('-', '_')}.{rank}.npz" for rank in range(2))
        ranks = recorded(*files)[0]
        mask = "response_mask"
        old = "old_log_probs"
    else:  # float64
        parts = micro_batches(np.load(HERE / "trl_losses.npz"), f"{name}.")
        ranks = [[{k: torch.tensor(x) for k, x in part.items()} for part in parts]]
        for part in ranks[0]:
            part["mask"] = part["completion_mask"] * part["tool_mask"]
        mask = "mask"
        old = "old_per_token_logps"
    return ranks, {"mask": mask, "log_prob_old": old, "log_prob_behaviour": old}


def whole(parts, name):
    """A field of micro-batches as one tensor, in float64."""
    return pad_sequence([row for part in parts for row in part[name].double()], batch_first=True)


@pytest.mark.parametrize(
    ("trainer", "name", "exact"),
    [
        ("verl", "st-ppo", 1e-6),
        ("verl", "bapo", 1e-6),
        *(("trl", name, 1e-10) for name in ("st-ppo", "turn-ppo", "s-ppo", "so-grpo", "gspo")),
    ],
)
def test_what_was_trained_for_real_elsewhere_has_the_loss_and_gradient_of_our_loop(trainer, name, exact):
    ranks, names = trained(trainer, name)
    algorithm = resolve(name, TUNED.get(name, {}))
    clipped = 0
    assert len(ranks[0]) == 8
    for update in range(4):  # of two micro-batches on each rank
        parts = [part for rank in ranks for part in rank[2 * update : 2 * update + 2]]
        log_prob = whole(parts, "log_prob")
        given = {our: whole(parts, their) for our, their in names.items()}
        mask = given["mask"] = given["mask"].bool()
        given |= {our: torch.where(mask, x, 0) for our, x in given.items() if our != "mask"}
        given["advantages"] = torch.cat(
            [p["advantages"].reshape(len(p["log_prob"]), -1)[:, 0] for p in parts]
        ).double()
        given["log_prob_ref"] = torch.zeros_like(log_prob)
        micros = list(torch.arange(len(mask)).split([len(part["log_prob"]) for part in parts]))
        if name not in OF_MICRO_BATCH or name in TUNED:
            micros = [torch.arange(len(mask))]  # two ranks and their micro-batches are as one of each
        loss, gradient = ours(algorithm, given, log_prob, micros)
        # A trainer averages over its ranks, so each of them has its part times their number.
        found = whole(parts, "gradient") / len(ranks)
        torch.testing.assert_close(found, gradient, rtol=0, atol=exact * float(gradient.abs().max()))
        assert sum(float(part["loss"]) for part in parts) / len(ranks) == pytest.approx(
            float(loss), abs=exact
        )
        clipped += int((gradient[mask] == 0).sum())
    assert clipped > 0


def test_what_is_more_than_a_loss_is_refused_by_name() -> None:
    assert {"ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo", "gspo", "cispo", "llds"} <= set(
        feedable()
    )
    refused = {name: refusal(a) for name, a in ALGORITHMS.items() if name not in feedable()}
    assert {"starpo-s", "dapo", "loop", "seeupo", "sspo"} <= set(refused)
    with pytest.raises(
        InputError, match=r"'dapo' is more than a loss: its select is dynamic.*leave it out with"
    ):
        Loss("dapo")
    Loss("dapo", select="none", shaping="outcome")
    for slot, kind, said in (
        ("stabilise", "cnorm", "second backward"),
        ("kl", "reward", "belongs to the reward"),
        ("proximal", "averaged", "an average of the policy's weights"),
        ("proximal", "interpolated", "how stale each row is"),
        ("rate", "effective_samples", "learning rate is the trainer's"),
    ):
        with pytest.raises(InputError, match=said):
            Loss("ppo", **{slot: kind})
    with pytest.raises(InputError, match="give horizon"):
        Loss("dr-grpo")
    given, _ = tensors()
    with pytest.raises(InputError, match="needs the reference's log-probs"):
        Loss("grpo", kl="loss").batch(**{n: given[n] for n in NAMED[:3]})
    with pytest.raises(InputError, match="needs the sampler's log-probs"):
        Loss("tis").batch(**{n: given[n] for n in NAMED[:3]})


class FakeTrl:
    """The parts of TRL's GRPOTrainer that the mixin calls, over tensors that are given."""

    def __init__(self, slices, accumulated, **options):
        vars(self).update({"beta": 0.0, "use_vllm": False} | options)
        self._buffered_inputs = slices
        self._step = 0
        self.current_gradient_accumulation_steps = accumulated
        self.max_completion_length = 64
        self._metrics = {"train": defaultdict(list)}
        self.model = torch.nn.Linear(1, 1)
        self.accelerator = SimpleNamespace(num_processes=1, reduce=lambda x, reduction: x)
        self.args = SimpleNamespace(steps_per_generation=len(slices), gradient_accumulation_steps=accumulated)

    def _get_per_token_logps_and_entropies(self, model, ids, *_, **__):
        return model(ids), torch.ones(len(ids), T)


@pytest.mark.parametrize("name", ["turn-ppo", "s-ppo", "st-ppo", "so-grpo", "gspo", "bapo"])
def test_in_trl_the_loss_of_an_update_is_that_of_our_loop(name: str) -> None:
    given, log_prob = tensors(spread=1.5)
    leaf = log_prob.clone().requires_grad_()
    micros = list(torch.arange(B).chunk(4))
    slices = [
        {
            "prompt_ids": rows[:, None],
            "prompt_mask": torch.ones(len(rows), 1),
            "completion_ids": torch.zeros(len(rows), T),
            "completion_mask": torch.ones(len(rows), T, dtype=torch.long),
            "tool_mask": given["mask"][rows].long(),
            "advantages": given["advantages"][rows],
            "old_per_token_logps": given["log_prob_old"][rows],
        }
        for rows in micros
    ]
    trainer: Any = type("Mine", (TrlLoss, FakeTrl), {"loss": name})(slices, 2)
    for update in range(2):
        losses = []
        for micro in range(2):
            inputs = slices[2 * update + micro]
            losses.append(trainer._compute_loss(lambda ids: leaf[ids[:, 0].long()], inputs))
            trainer._step += 1
        rows = torch.cat(micros[2 * update : 2 * update + 2])
        (gradient,) = torch.autograd.grad(torch.stack(losses).sum(), leaf)
        part = {k: x[rows] for k, x in given.items()} | {"log_prob_behaviour": given["log_prob_old"][rows]}
        parts = list(torch.arange(len(rows)).chunk(2 if name in OF_MICRO_BATCH else 1))
        wanted, expected = ours(resolve(name), part, log_prob[rows], parts)
        torch.testing.assert_close(torch.stack(losses).sum().detach(), wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient[rows], expected, rtol=1e-12, atol=1e-12)
    assert len(trainer._metrics["train"]["clip_ratio/region_mean"]) == 4


@pytest.mark.parametrize("tools", [{}, {"tool_mask": None}])
def test_in_trl_a_batch_without_tools_is_masked_by_its_padding_alone(tools: dict[str, Any]) -> None:
    completion = torch.tensor([[1, 1, 0]])
    assert mask_of({"completion_mask": completion} | tools).equal(completion)


@pytest.mark.parametrize(
    ("loss", "options", "said"),
    [
        (
            "st-ppo",
            {"accumulated": 8},
            "gradient_accumulation_steps = 8 must divide steps_per_generation = 4",
        ),
        ({"base": "grpo", "kl": "loss"}, {}, "KL term of 'grpo' needs the reference's log-probs: set beta"),
        ("tis", {}, "correction of 'tis' needs the sampler's log-probs: set use_vllm"),
        ("st-ppo", {"use_vllm": True, "vllm_importance_sampling_correction": True}, "set it to False"),
        (
            "st-ppo",
            {"top_entropy_quantile": 0.2},
            "top_entropy_quantile belongs to TRL's own loss.*set it to 1.0",
        ),
        ("dapo", {}, "its select is dynamic"),
        ("st-ppoo", {}, "did you mean 'st-ppo'"),
    ],
)
def test_what_trl_cannot_feed_is_refused_when_the_trainer_is_made(loss: Any, options: Any, said: str) -> None:
    mine: Any = type("Mine", (TrlLoss, FakeTrl), {"loss": loss})
    with pytest.raises(InputError, match=said):
        mine([{}] * 4, **({"accumulated": 2} | options))


def test_a_trainer_logs_what_the_terms_say() -> None:
    given, log_prob = tensors()
    loss = Loss("st-ppo")
    found = metrics(loss(loss.batch(**{n: given[n] for n in NAMED[:3]}), log_prob).terms)
    assert found["clip_frac"] == pytest.approx(found["clip_low_frac"] + found["clip_high_frac"])
    assert {"stabiliser_ratio", "stabiliser_factor", "approx_kl"} <= found.keys()


@pytest.mark.parametrize("name", ["st-ppo", "turn-ppo", "so-grpo", "cispo"])
def test_in_tinker_and_skyrl_the_loss_is_that_of_our_loop(name: str) -> None:
    given, log_prob = tensors()
    mask = given["mask"]
    given["log_prob_behaviour"] = given["log_prob_old"]
    _, expected = ours(resolve(name, {"aggregate": "token_mean"}), given, log_prob, [torch.arange(B)])
    leaf = log_prob.clone().requires_grad_()
    wide = given["advantages"][:, None].expand(B, T)
    fields = {"mask": mask.double(), "advantages": wide, "logprobs": given["log_prob_old"]}
    rows = [{key: SimpleNamespace(to_torch=lambda x=x[i]: x) for key, x in fields.items()} for i in range(B)]
    data = [SimpleNamespace(loss_fn_inputs=row) for row in rows]
    value, shown = tinker_loss(name, aggregate="token_mean")(data, list(leaf))
    torch.testing.assert_close(torch.autograd.grad(value, leaf)[0], expected, rtol=1e-12, atol=1e-12)
    assert 0 < shown["out_of_range_frac"] < 1
    scaled = (given["advantages"] / mask.sum())[:, None] * torch.ones(T)  # its loss_reduction = token_mean
    value, _ = skyrl_loss(name)(leaf, given["log_prob_old"], scaled, config=None, loss_mask=mask.double())
    torch.testing.assert_close(torch.autograd.grad(value, leaf)[0], expected, rtol=1e-10, atol=1e-12)


def test_what_a_micro_batch_of_skyrl_or_tinker_cannot_tell_is_refused() -> None:
    for name, slots, said in (
        ("st-ppo", {"stabilise": {"scope": "global"}}, "needs more than a micro-batch"),
        ("llds", {}, "a term besides the surrogate"),
        ("bapo", {}, "bounds need the whole update"),
        ("tis", {"correction": {"normalise": True}}, "needs the mean of an update"),
    ):
        with pytest.raises(InputError, match=said):
            skyrl_loss(name, **slots)
    with pytest.raises(InputError, match="leave it out: kl='none'"):
        tinker_loss("grpo", kl="loss")
