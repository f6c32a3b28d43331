"""verl's own actor update on a CPU, with our losses and our recorder; `make bench-verl` drives it.

Runs in verl's own environment (constraints-verl.txt) with this project's core on PYTHONPATH. By hand:

    PYTHONPATH=. .venv-verl/bin/python bench/verl_recorded.py runs --loss vanilla --truth truth.npz --output
    out.json

What runs is TrainingWorker.train_mini_batch with the FSDP2 engine and `ppo_loss`, on a tiny Qwen2 and random
responses of several turns; verl has no CPU platform, so one is set through its own plugin point. Rollouts,
vLLM, Ray and the driver do not run. `--truth` keeps the tensors of every micro-batch as verl had them, to
hold the ledger against.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VERL_ENGINE_DEVICE": "cuda",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "TOKENIZERS_PARALLELISM": "false"}
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "sorl.trainers.verl")

import numpy as np
import torch
import torch.distributed as dist

VOCABULARY = 64
PROMPT = 4
WIDTH = 14
GROUP = 4


def platform() -> None:
    """Tell verl that its accelerator is the CPU."""
    from verl.plugin.platform.platform_cuda import PlatformCUDA
    from verl.plugin.platform.platform_manager import set_platform

    class Cpu(PlatformCUDA):
        device_name = "cpu"
        device_module = torch.cpu

        def is_available(self) -> bool:
            return True

        def current_device(self) -> Any:
            return torch.device("cpu")

        def set_device(self, device_index: int) -> None:
            pass

        def synchronize(self, device_index: int | None = None) -> None:
            pass

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        manual_seed_all = manual_seed

        def empty_cache(self) -> None:
            pass

        def communication_backend_name(self) -> str:
            return "gloo"

    torch.cpu.max_memory_allocated = torch.cpu.max_memory_reserved = lambda *_: 0
    set_platform(Cpu())


def model_in(folder: Path) -> str:
    """Save a tiny Qwen2 and a tokenizer of words w0, w1, ..."""
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w0").save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def rows_of(step: int, count: int) -> dict[str, list[Any]]:
    """Prompts and responses of several turns; the last row fills up the batch as verl does it: without a
    mask.
    """
    stream = torch.Generator().manual_seed(1000 + step)
    found: dict[str, list[Any]] = {
        name: [] for name in ("prompts", "responses", "response_mask", "rm_scores", "uid")
    }
    for i in range(count):
        n = int(torch.randint(6, WIDTH + 1, (1,), generator=stream))
        mask = torch.ones(n, dtype=torch.long)
        mask[2:4] = 0  # what a tool answered
        mask[7:8] = 0
        score = torch.zeros(n)
        score[-1] = float(torch.rand((), generator=stream) < 0.5)
        last = i == count - 1
        found["prompts"].append(torch.randint(2, VOCABULARY, (PROMPT,), generator=stream))
        found["responses"].append(torch.randint(2, VOCABULARY, (n,), generator=stream))
        found["response_mask"].append(mask * (not last))
        found["rm_scores"].append(score * (not last))
        found["uid"].append("pad" if last else f"q{step}-{i // GROUP}")
    return found


def nested(rows: list[Any]) -> Any:
    """A jagged tensor, as verl 0.9 keeps its batches."""
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def main(rank: int, options: argparse.Namespace, meet: str) -> None:
    """Train on one rank, and report from the first."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(options.ranks), "MASTER_PORT": "0"}
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=options.ranks)
    import verl

    platform()
    from verl.trainer.config import CheckpointConfig
    from verl.utils import tensordict_utils as tu
    from verl.workers import config as configs
    from verl.workers.engine_workers import TrainingWorker
    from verl.workers.utils.losses import ppo_loss
    from verl.workers.utils.padding import no_padding_2_padding, response_from_nested

    mode = plain = f"sorl:{options.loss}" if options.ours else options.loss
    record = f"record={options.runs}/{options.experiment}&tokens=16"
    if options.ours and options.record:
        mode += ("&" if "?" in mode else "?") + record
    elif options.record:
        os.environ["SORL_RECORD"] = record.removeprefix("record=")
    optimizer = configs.FSDPOptimizerConfig(
        lr=options.lr, total_training_steps=options.steps, lr_scheduler_type="constant", clip_grad=1.0
    )
    actor = configs.FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=GROUP,
        ppo_micro_batch_size_per_gpu=options.micro,
        optim=optimizer,
        use_dynamic_bsz=options.dynamic,
        use_torch_compile=False,
        policy_loss=configs.PolicyLossConfig(loss_mode=mode),
        ppo_epochs=2,
        use_kl_loss=options.beta is not None,
        kl_loss_coef=options.beta or 0.0,
        clip_ratio_high=0.25,
        loss_agg_mode=options.aggregate,
    )
    engine = configs.FSDPEngineConfig(
        strategy="fsdp2",
        use_torch_compile=False,
        use_dynamic_bsz=options.dynamic,
        max_token_len_per_gpu=48,
        micro_batch_size_per_gpu=options.micro,
        infer_micro_batch_size_per_gpu=options.micro,
        mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32"},
    )
    model = configs.HFModelConfig(
        path=options.model,
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "eager"},
    )
    worker = TrainingWorker(
        configs.TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=optimizer,
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    kept: list[dict[str, np.ndarray]] = []

    def watched(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
        out = ppo_loss(config, model_output, data, dp_group)
        found = {
            name: no_padding_2_padding(model_output[key], data).detach().numpy().copy()
            for name, key in {"log_prob": "log_probs", "entropy": "entropy"}.items()
        }
        for name in ("response_mask", "old_log_probs", "advantages", "rollout_log_probs", "ref_log_prob"):
            if name in data:
                found[name] = data[name].to_padded_tensor(0).numpy().copy()
        found |= {"row": data["truth_row"].numpy().copy(), "loss": np.array(float(out[0].detach()))}
        model_output["log_probs"].register_hook(
            lambda g: found.update(gradient=no_padding_2_padding(g, data).numpy().copy())
        )
        kept.append(found)
        return out

    worker.set_loss_fn(partial(watched if options.truth else ppo_loss, config=actor))
    mini = options.mini or options.rows // 2
    logged = []
    seconds = []
    for step in range(options.steps):
        every = rows_of(step, options.rows)
        mine = slice(rank * options.rows // options.ranks, (rank + 1) * options.rows // options.ranks)
        own = {name: rows[mine] for name, rows in every.items()}
        whole = [torch.cat(pair) for pair in zip(own["prompts"], own["responses"], strict=True)]
        stream = torch.Generator().manual_seed(step)
        advantages = torch.randn(options.rows, generator=stream)[mine]
        data = tu.get_tensordict(
            {
                "input_ids": nested(whole),
                "position_ids": nested([torch.arange(len(ids)) for ids in whole]),
                "loss_mask": nested(own["response_mask"]),
                "truth_row": torch.arange(options.rows)[mine],
                "advantages": nested(
                    [a.repeat(len(r)) for a, r in zip(advantages, own["responses"], strict=True)]
                ),
                "uid": own["uid"],
                **{name: nested(own[name]) for name in own if name != "uid"},
            },
            {
                "temperature": 1.0,
                "calculate_entropy": True,
                "compute_loss": False,
                "use_dynamic_bsz": False,
                "micro_batch_size_per_gpu": options.micro,
                "use_remove_padding": False,
            },
        )
        with worker.engine.eval_mode():
            found = worker.engine.infer_batch(data)["model_output"]["log_probs"].detach()
        old = response_from_nested(found, data["response_mask"])
        noise = torch.Generator().manual_seed(99 + step + rank)
        data["old_log_probs"] = old
        data["rollout_log_probs"] = nested(
            [x + 0.05 * torch.randn(x.shape, generator=noise) for x in old.unbind()]
        )
        data["ref_log_prob"] = nested([x + 0.1 * torch.randn(x.shape, generator=noise) for x in old.unbind()])
        tu.assign_non_tensor(
            data,
            compute_loss=True,
            global_batch_size=mini,
            mini_batch_size=mini,
            epochs=2,
            seed=1,
            dataloader_kwargs={"shuffle": True},
            use_dynamic_bsz=options.dynamic,
            max_token_len_per_gpu=48,
        )
        began = time.perf_counter()
        out = worker.train_mini_batch(data)
        seconds.append(time.perf_counter() - began)
        logged.append(
            {k: np.asarray(v).tolist() for k, v in tu.get(out, "metrics").items() if "perf" not in k}
        )
    weights = torch.cat(
        [p.full_tensor().detach().flatten().double() for p in worker.engine.module.parameters()]
    )
    report = {
        "log": logged,
        "seconds": seconds,
        "mode": plain,
        "weights": [float(weights.sum()), float(weights.norm())],
        "versions": {"verl": verl.__version__, "torch": torch.__version__},
    }
    if options.truth:
        file = options.truth.with_suffix(f".{rank}.npz") if options.ranks > 1 else options.truth
        np.savez_compressed(
            file,
            log=np.array(json.dumps(report)),
            rows=np.array(
                json.dumps(
                    [
                        {
                            k: [np.asarray(x).tolist() for x in rows]
                            for k, rows in rows_of(s, options.rows).items()
                        }
                        for s in range(options.steps)
                    ]
                )
            ),
            **{f"{i}.{name}": x for i, found in enumerate(kept) for name, x in found.items()},
        )
    if rank == 0:
        if options.output:
            options.output.write_text(json.dumps(report))
        print(json.dumps({"weights": report["weights"], "seconds": seconds, "mode": plain}))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument(
        "--loss", default="vanilla", help="name of a loss, with its slots: st-ppo?stabilise.scope=global"
    )
    parser.add_argument(
        "--ours", action=argparse.BooleanOptionalAction, default=True, help="sorl:<loss>, or verl's own"
    )
    parser.add_argument("--record", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--experiment", default="verl")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--mini", type=int, help="rows of an update on all ranks, by default half of them")
    parser.add_argument("--micro", type=int, default=4, help="rows of a micro-batch")
    parser.add_argument("--dynamic", action="store_true", help="micro-batches of so many tokens")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--beta", type=float, help="coefficient of verl's KL loss")
    parser.add_argument("--aggregate", default="token-mean")
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--output", type=Path)
    told = parser.parse_args()
    told.runs = told.runs.resolve()
    with tempfile.TemporaryDirectory() as folder:
        told.model = model_in(Path(folder) / "model")
        if told.ranks == 1:
            main(0, told, f"{folder}/meet")
        else:
            torch.multiprocessing.spawn(main, (told, f"{folder}/meet"), nprocs=told.ranks)
