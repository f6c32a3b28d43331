"""Records what the authors' public code of newer methods computes on 24 of the batches of this folder.

Type `python -m tests.parity.record_methods CLONES`, a folder with the repositories below, each in
OWNER+NAME/repo. Only the functions named are taken, without the trainers around them; only numbers leave this
script. test_methods.py compares them.
"""

import argparse
import ast
import json
import math
import subprocess
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sorl.batch import Batch
from tests.parity.cases import case, sequence_advantages, sketch, token_rewards
from tests.parity.test_methods import SEEDS, STALENESS, anchors, squares

FILE = Path(__file__).parent / "methods.json"
AREAL = ("inclusionAI+AReaL", "areal/trainer/ppo/actor.py")
OTB = ("verl-project+verl", "verl/trainer/ppo/core_algos.py")
GIGPO = ("WillDreamer+ARL-Arena", "recipe/search_agent/ppo/core_algos.py")
ASPO = ("wizard-III+Archer2.0", "verl/trainer/ppo/core_algos.py")
OPSM = ("THUDM+slime", "slime/utils/ppo_utils.py")
PRIME = ("PrimeIntellect-ai+prime-rl", "src/prime_rl/trainer/rl/loss.py")
MT_GRPO = ("SiliangZeng+Multi-Turn-RL-Agent", "verifiers/trainers/mt_grpo_env_trainer.py")


class Clones:
    """Functions out of the repositories, with nothing of their modules but what is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def functions(self, source: tuple[str, str], *names: str, **given: Any) -> SimpleNamespace:
        """Return the functions, without decorators and annotations."""
        repository, path = source
        git = ["git", "-C", str(self.folder / repository / "repo"), "show", f"HEAD:{path}"]
        text = subprocess.run(git, check=True, capture_output=True, text=True).stdout
        wanted = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
        ]
        module = ast.Module([without_hints(node) for node in wanted], [])
        space = {"torch": torch, "np": np, "defaultdict": defaultdict, "math": math} | given
        exec(compile(ast.fix_missing_locations(module), path, "exec"), space)
        return SimpleNamespace(**{name: space[name] for name in names})


def without_hints(node: Any) -> Any:
    if isinstance(node, ast.FunctionDef):
        node.decorator_list = []
        node.returns = None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
    return node


def solved(loss: Tensor, leaf: Tensor) -> list[float]:
    (gradient,) = torch.autograd.grad(loss, leaf)
    return [float(loss.detach()), *sketch(gradient)]


def opsm(clones: Clones, seed: int) -> list[float]:
    own = clones.functions(OPSM, "compute_opsm_mask", "compute_policy_loss")
    batch, new = case(seed)
    leaf = new.clone().requires_grad_()
    mask = batch.mask.double()
    advantages = sequence_advantages(batch)[:, None] * mask
    listed = [list(x) for x in (leaf, batch.log_prob_old, advantages, mask)]
    keep, _ = own.compute_opsm_mask(SimpleNamespace(opsm_delta=1e-4), *listed)
    gap = batch.log_prob_old - leaf
    loss, _ = own.compute_policy_loss(gap, advantages, 0.2, 0.2)
    token = loss * keep.view_as(loss)
    return solved(((token * mask).sum(1) / mask.sum(1)).mean(), leaf)


def prime_rl(clones: Clones, seed: int) -> list[float]:
    names = ("default_loss_fn", "compute_importance_ratio_and_mismatch_kl", "_safe_mean")
    own = clones.functions(PRIME, *names, LossOutputs=SimpleNamespace)
    config = SimpleNamespace(dppo_mask_low=0.2, dppo_mask_high=0.2, adv_tau=1.0, kl_tau=1e-3)
    batch, new = case(seed)
    leaf = new.clone().requires_grad_()
    total = torch.zeros((), dtype=new.dtype)
    advantages = batch.need("advantages")
    sampler = batch.need("log_prob_behaviour")
    for i in range(len(new)):
        row = SimpleNamespace(
            trainer_logprobs=leaf[i],
            inference_logprobs=sampler[i],
            advantages=advantages[i],
            loss_mask=batch.mask[i],
            loss_weights=None,
        )
        total = total + own.default_loss_fn(row, config).loss
    return solved(total / batch.mask.sum(), leaf)


def aspo(clones: Clones, seed: int) -> list[float]:
    functional = SimpleNamespace(masked_mean=lambda x, mask: (x * mask).sum() / mask.sum())

    def agg_loss(loss_mat: Tensor, loss_mask: Tensor, loss_agg_mode: str) -> Tensor:
        return (loss_mat * loss_mask).sum() / loss_mask.sum()

    own = clones.functions(ASPO, "compute_policy_loss_archer", verl_F=functional, agg_loss=agg_loss)
    batch, new = case(seed)
    leaf = new.clone().requires_grad_()
    mask = batch.mask
    every = torch.ones_like(mask)  # of low entropy: all are clipped at 0.2
    loss, *_ = own.compute_policy_loss_archer(batch.log_prob_old, leaf, batch.advantages, mask, every)
    return solved(loss, leaf)


def m2po(clones: Clones, seed: int) -> list[float]:
    own = clones.functions(AREAL, "_apply_m2po_masking", "_get_m2po_loss_mask")
    batch, new = case(seed)
    keep = own._apply_m2po_masking(batch.log_prob_old, new, batch.mask, 0.04)
    return sketch(keep.double())


def a_3po(clones: Clones, seed: int) -> list[float]:
    given = {
        "PROX_APPROX_METHOD_LOGLINEAR": "l",
        "PROX_APPROX_METHOD_LINEAR": "",
        "PROX_APPROX_METHOD_ROLLOUT": "",
    }
    own = clones.functions(AREAL, "compute_prox_logp_approximations", **given)
    batch, new = case(seed)
    versions = torch.where(batch.mask, 10 - STALENESS[:, None], -1)
    found = own.compute_prox_logp_approximations(batch.log_prob_behaviour, new, versions, 10, "l")
    return sketch(torch.where(batch.mask, found["l"], 0))


def otb(clones: Clones, seed: int) -> list[float]:
    own = clones.functions(OTB, "compute_multi_turn_optimal_token_baseline_advantage")
    batch, _ = case(seed)
    rewards = token_rewards(batch)
    given = (rewards, batch.mask.double(), batch.group.numpy(), batch.log_prob_old, squares(batch))
    advantages, _ = own.compute_multi_turn_optimal_token_baseline_advantage(*given)
    return sketch(advantages)


def gigpo(clones: Clones, seed: int) -> list[float]:
    """A row for each turn, as verl-agent has them; each rollout counted once in its group's mean."""
    own = clones.functions(GIGPO, "episode_norm_reward", "step_norm_reward")
    batch, _ = case(seed)
    states = anchors(batch)
    scores = torch.zeros_like(batch.log_prob_old)
    for (i, k), value in zip(states, of_steps(own, batch, states), strict=True):
        scores[i] = torch.where(batch.turn[i] == k, value, scores[i])
    return sketch(scores)


def of_steps(own: SimpleNamespace, batch: Batch, states: dict[tuple[int, int], str]) -> Tensor:
    """The advantage of each turn in `states`, (N,)."""
    index = torch.tensor([i for i, _ in states])
    turn = torch.tensor([k for _, k in states])
    score = batch.score[index]
    returns = score * 0.95 ** (batch.turn.amax(1)[index] - turn)
    ones = torch.ones(len(turn), 1, dtype=torch.float64)
    groups = batch.group[index].numpy()
    episode = own.episode_norm_reward(score[:, None].clone(), ones, groups, index.numpy(), 1e-6, True, False)
    words = np.array(list(states.values()), dtype=object)
    return (episode + own.step_norm_reward(returns, ones, words, 1e-6, True))[:, 0]


METHODS = {
    "a-3po": a_3po,
    "aspo": aspo,
    "gigpo": gigpo,
    "m2po": m2po,
    "opsm": opsm,
    "otb": otb,
    "prime-rl": prime_rl,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clones", type=Path)
    clones = Clones(parser.parse_args().clones)
    recorded = {}
    for name, method in METHODS.items():
        recorded[name] = [method(clones, seed) for seed in SEEDS]
    FILE.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
