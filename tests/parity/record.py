"""Records what verl and TRL compute on fixed random batches: `make parity`, in an environment of its own.

Only numbers leave this script. Each reference function is called as its package has it; where its trainer
would have to exist around it, it gets an object with the attributes that it reads.
"""

import json
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sorl.batch import Batch
from tests.parity.cases import SCALE, SEEDS, case, new_values, sequence_advantages, sketch, token_rewards

FILE = Path(__file__).parent / "recorded.json"
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
CLIPS: dict[str, dict[str, float]] = {
    "vanilla": {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 1.5},
    "gspo": {"clip_ratio_low": 0.05, "clip_ratio_high": 0.06},
    "sapo": {"tau_pos": 1.0, "tau_neg": 1.05},
    "cispo": {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28},
    "geo_mean": {"clip_ratio_low": 0.3, "clip_ratio_high": 0.3},
    "dppo_tv": {"clip_ratio_low": 0.1, "clip_ratio_high": 0.1, "clip_ratio_c": 20.0},
}


def solved(loss: Tensor, leaf: Tensor) -> list[float]:
    (gradient,) = torch.autograd.grad(loss, leaf)
    return [float(loss.detach()), *sketch(gradient)]


def verl(seed: int) -> dict[str, list[float]]:
    from verl.trainer.ppo import core_algos as core
    from verl.trainer.ppo import rollout_corr_helper as corr
    from verl.workers.config import ActorConfig

    batch, new = case(seed)
    mask = batch.mask.double()
    group = batch.group.numpy()
    made: dict[str, list[float]] = {
        "batch": sketch(torch.stack([new, batch.log_prob_old, batch.need("advantages")]))
    }

    def config(name: str) -> Any:
        return ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **CLIPS[name])

    def loss(name: str, mode: str, advantages: Tensor, **more: Any) -> list[float]:
        leaf = new.clone().requires_grad_()
        function = core.get_policy_loss_fn(name)
        found, metrics = function(batch.log_prob_old, leaf, advantages, mask, mode, config(name), **more)
        return [*solved(found, leaf), metrics["actor/pg_clipfrac"], metrics["actor/pg_clipfrac_lower"]]

    rewards = token_rewards(batch)
    for gamma, lam in ((1.0, 1.0), (0.99, 0.95)):
        advantages, returns = core.compute_gae_advantage_return(
            rewards, batch.need("values"), mask, gamma, lam
        )
        made[f"compute_gae_advantage_return {gamma} {lam}"] = sketch(advantages * mask) + sketch(
            returns * mask
        )
    for by_std in (True, False):
        found = core.compute_grpo_outcome_advantage(rewards, mask, group, norm_adv_by_std_in_grpo=by_std)[0]
        made[f"compute_grpo_outcome_advantage {by_std}"] = sketch(found)
    made["compute_rloo_outcome_advantage"] = sketch(
        core.compute_rloo_outcome_advantage(rewards, mask, group)[0]
    )
    for gamma in (1.0, 0.9):
        found = core.compute_reinforce_plus_plus_outcome_advantage(
            rewards, mask, SimpleNamespace(gamma=gamma)
        )[0]
        made[f"compute_reinforce_plus_plus_outcome_advantage {gamma}"] = sketch(found)

    for mode in MODES:
        made[f"compute_policy_loss_vanilla {mode}"] = loss("vanilla", mode, batch.need("advantages"))
        made[f"agg_loss {mode}"] = [float(core.agg_loss(batch.need("advantages"), mask, mode))]
    modes = {"gspo": "seq-mean-token-mean", "sapo": "-", "cispo": "token-mean", "dppo_tv": "token-mean"}
    for name, mode in modes.items():
        made[f"compute_policy_loss_{name}"] = loss(name, mode, batch.need("advantages"))
    one = sequence_advantages(batch)[:, None] * mask
    made["compute_policy_loss_geo_mean"] = loss("geo_mean", "-", one)
    leaf = new.clone().requires_grad_()
    found = core.compute_policy_loss_reinforce(
        batch.log_prob_behaviour, leaf, batch.need("advantages"), mask, "token-mean", config("vanilla")
    )[0]
    made["compute_policy_loss_reinforce"] = solved(found, leaf)

    for name in ("k1", "k2", "k3", "abs", "k1+", "k3+"):
        leaf = new.clone().requires_grad_()
        found = core.kl_penalty(leaf, batch.need("log_prob_ref"), name)
        made[f"kl_penalty {name}"] = solved((found * mask).sum() / mask.sum(), leaf)
    leaf = new_values(batch, seed).requires_grad_()
    found, share = core.compute_value_loss(leaf, batch.need("returns"), batch.need("values"), mask, 0.5)
    made["compute_value_loss"] = [*solved(found, leaf), float(share)]

    gap = (batch.log_prob_old - batch.log_prob_behaviour) * mask
    for level in ("token", "sequence"):
        for threshold in (1.5, "0.5_2.0"):
            for normalise in (False, True):
                weights = corr.compute_rollout_correction_weights(gap, mask, level, threshold, normalise)[0]
                key = f"compute_rollout_correction_weights {level} {threshold} {normalise}"
                made[key] = sketch(weights * mask)
    weights = corr.compute_rollout_correction_weights(gap, mask, "token", 1.5)[0]
    made["compute_policy_loss_vanilla corrected"] = loss(
        "vanilla", "token-mean", batch.need("advantages"), rollout_is_weights=weights
    )
    kept = corr.compute_rollout_rejection_mask(gap, mask, "token_k1", "0.5_1.5")[0]
    made["compute_rollout_rejection_mask token_k1 0.5_1.5"] = sketch(kept)
    told = corr.compute_offpolicy_metrics(batch.log_prob_old, batch.log_prob_behaviour, mask)
    made["compute_offpolicy_metrics"] = [told["kl"], told["k3_kl"], told["chi2_token"]]
    return made


def trl(seed: int) -> dict[str, list[float]]:
    from trl import GRPOTrainer

    batch, new = case(seed)
    made: dict[str, list[float]] = {}
    for kind in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo"):
        for level in ("token", "sequence") if kind == "grpo" else ("token",):
            leaf = new.clone().requires_grad_()
            trainer = _trainer(GRPOTrainer, leaf, kind, level)
            found = GRPOTrainer._compute_loss(trainer, trainer.model, _inputs(batch))
            told = trainer._metrics["train"]
            names = [f"clip_ratio/{side}_mean" for side in ("low", "high")]
            flags = [told[side][0] for side in names if side in told]
            made[f"_compute_loss {kind} {level}"] = [*solved(found, leaf), *flags]
    return made


def _inputs(batch: Batch) -> dict[str, Tensor]:
    mask = batch.mask.double()
    nothing = torch.zeros(len(mask), 1, dtype=torch.long)
    return {
        "prompt_ids": nothing,
        "prompt_mask": nothing,
        "completion_ids": batch.tokens,
        "completion_mask": mask,
        "advantages": sequence_advantages(batch),
        "old_per_token_logps": batch.log_prob_old,
        "num_items_in_batch": mask.sum(),
    }


def _trainer(owner: Any, log_prob: Tensor, kind: str, level: str) -> Any:
    """What `_compute_loss` reads of its trainer; epsilon_high of cispo is an absolute ratio."""
    args = SimpleNamespace(
        delta=None,
        use_bias_correction_kl=False,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        steps_per_generation=1,
        vespo_k_pos=2.0,
        vespo_lambda_pos=3.0,
        vespo_k_neg=3.0,
        vespo_lambda_neg=2.0,
    )
    accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (log_prob, torch.zeros_like(log_prob), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        loss_type=kind,
        importance_sampling_level=level,
        beta=0.0,
        epsilon_low=0.2,
        epsilon_high=1.3 if kind == "cispo" else 0.28,
        args=args,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        accelerator=accelerator,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=40,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        get_gamma_weights=owner.get_gamma_weights,
    )


def main() -> None:
    torch.set_num_threads(1)
    recorded: dict[str, Any] = {"scale": SCALE, "seeds": len(SEEDS), "torch": torch.__version__}
    for package, reference in (("verl", verl), ("trl", trl)):
        cases: dict[str, list[list[float]]] = defaultdict(list)
        for seed in SEEDS:
            for name, numbers in reference(seed).items():
                cases[name].append([float(f"{x:.12g}") for x in numbers])
        recorded[package] = {"version": version(package), "cases": cases}
    FILE.write_text(json.dumps(recorded, separators=(",", ":")) + "\n")
    print(f"{FILE}: {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
