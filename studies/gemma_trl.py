"""TRL's own GRPOTrainer on a pretrained model, recorded: does the ledger agree with what TRL logged?

    make llm GEMMA_TERMS=accept && make .venv-trl/.done
    PYTHONPATH=. .venv-trl/bin/python -m studies.gemma_trl build/models/gemma-3-270m build/gemma-trl

    sorl --runs build/gemma-trl sql 'SELECT step, entropy, clip_frac, grad_norm, kl_ref FROM minibatch'

A few updates on questions about capitals, with weights and a tokenizer that were trained elsewhere. Printed
is what TRL logged of each update, under the ledger's names; the query shows what the ledger recorded.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from sorl import record

CAPITALS = {
    "France": "Paris",
    "Japan": "Tokyo",
    "Italy": "Rome",
    "Egypt": "Cairo",
    "Peru": "Lima",
    "Norway": "Oslo",
    "Kenya": "Nairobi",
    "Cuba": "Havana",
}
COMPLETIONS = 16
GROUP = 4
UPDATES_A_STEP = 2
# TRL's names of scalars, and the ledger's names of the same
SAME = {
    "entropy": "entropy",
    "clip_ratio/region_mean": "clip_frac",
    "grad_norm": "grad_norm",
    "reward": "reward",
    "kl": "kl_ref",
}


def is_capital(completions: list[str], capital: list[str], **_: Any) -> list[float]:
    """1 where a completion names the capital, else 0."""
    return [float(name in text) for text, name in zip(completions, capital, strict=True)]


def trainer_of(model_folder: Path, output: Path, steps: int) -> GRPOTrainer:
    """TRL's trainer of the model on questions about capitals."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    questions = [
        {"prompt": f"Question: What is the capital of {country}?\nAnswer:", "capital": capital}
        for country, capital in CAPITALS.items()
    ]
    config = GRPOConfig(
        output_dir=str(output),
        per_device_train_batch_size=COMPLETIONS // UPDATES_A_STEP,
        steps_per_generation=UPDATES_A_STEP,
        gradient_accumulation_steps=1,
        num_generations=GROUP,
        num_iterations=1,
        max_completion_length=16,
        temperature=1.0,
        beta=0.01,
        use_bias_correction_kl=False,
        learning_rate=1e-5,
        max_grad_norm=1.0,
        max_steps=steps * UPDATES_A_STEP,
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        seed=0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=is_capital,
        args=config,
        processing_class=AutoTokenizer.from_pretrained(model_folder),
        train_dataset=Dataset.from_list(questions * (steps * COMPLETIONS)),
    )


def main() -> None:
    """Train a few steps with the recorder, and print what TRL logged."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="folder of a causal language model")
    parser.add_argument("runs", type=Path, help="runs folder to record into")
    parser.add_argument("--steps", type=int, default=3, help="batches of rollouts")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.runs.mkdir(parents=True, exist_ok=True)
    trainer = trainer_of(options.model, options.runs / ".trl", options.steps)
    record(trainer, options.runs, experiment="gemma-trl")
    trainer.train()
    for row in trainer.state.log_history:
        logged = {ours: row[theirs] for theirs, ours in SAME.items() if theirs in row}
        if logged:
            print(json.dumps(logged))


if __name__ == "__main__":
    main()
