"""TRL's `GRPOTrainer` on a benchmark's model, one iteration for each line on stdin; `make bench-trl` drives
it.

Runs in TRL's own environment (constraints-trl.txt) and imports nothing of this project. By hand:

    .venv-trl/bin/python bench/trl_grpo.py --model runs/.cache/warmstart/HASH --prompts 30 --completion 30 <<<
    $'go\ngo'

An iteration is what our loop does in one step: sample a batch of completions, score them, take their
log-probs, and make `epochs` x `minibatches` optimizer updates. Options are TRL's own; off is what costs time
and our side does not do: no reference model (beta 0), no logging, no checkpoints, no activation
checkpointing, no clipping of the gradient norm. Each line on stdout is {"seconds", "cpu_seconds",
"trained_tokens", "lengths"} of one iteration.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any, TextIO

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Turnstile(TrainerCallback):
    """Lets one iteration (`updates` optimizer steps, the first of which samples) pass for each line on
    `lines`.
    """

    def __init__(self, updates: int, epochs: int, lines: TextIO, out: TextIO) -> None:
        self._updates = updates
        self._epochs = epochs
        self._lines = lines
        self._out = out
        self._began: tuple[float, float] | None = None
        # tokens of prompt and completion of each row of the iteration
        self.lengths: list[tuple[int, int]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Between two iterations: report the last one, wait for the next line; the end of the input ends
        training.
        """
        if state.global_step % self._updates:
            return
        if self._began is not None:
            wall, cpu = self._began
            report = {
                "seconds": time.perf_counter() - wall,
                "cpu_seconds": time.process_time() - cpu,
                "trained_tokens": self._epochs * sum(completion for _, completion in self.lengths),
                "lengths": [prompt + completion for prompt, completion in self.lengths],
            }
            print(json.dumps(report), file=self._out, flush=True)
        if not self._lines.readline():
            sys.exit(0)
        self.lengths = []
        self._began = (time.perf_counter(), time.process_time())


def questions(tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], n: int) -> Dataset:
    """`n` prompts of random words, `lengths` in turn: what they say does not change what a step costs."""
    words = whole_words(tokenizer)
    draw = random.Random(0)
    return Dataset.from_list(
        [{"prompt": prompt_of(tokenizer, words, length, draw)} for length in islice(cycle(lengths), n)]
    )


def whole_words(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Words that are one token each, also after a space."""
    special = set(tokenizer.all_special_tokens)
    pieces = sorted({tokenizer.decode([number]).strip() for number in tokenizer.get_vocab().values()})
    around = tokens_of(tokenizer, "")
    return [
        piece
        for piece in pieces
        if piece not in special and piece.isalnum() and tokens_of(tokenizer, f"{piece} {piece}") == around + 2
    ]


def prompt_of(
    tokenizer: PreTrainedTokenizerBase, words: Sequence[str], length: int, draw: random.Random
) -> str:
    """Random words that the tokenizer cuts into `length` tokens, with those that it puts around a text."""
    around = tokens_of(tokenizer, "")
    text = " ".join(draw.choices(words, k=max(1, length - around)))
    assert tokens_of(tokenizer, text) == max(1 + around, length), "words are merged across spaces"
    return text


def tokens_of(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    """How many tokens a text is cut into."""
    return len(tokenizer(text).input_ids)


def main(argv: list[str]) -> None:
    """Build the trainer and let it train until stdin ends."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="checkpoint folder with its tokenizer")
    parser.add_argument("--prompts", required=True, help="tokens of the prompts of a batch: 12,12,35,58")
    parser.add_argument(
        "--completion", type=int, required=True, help="tokens of a completion, all of them trained on"
    )
    parser.add_argument("--completions", type=int, default=64, help="completions an iteration")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--optimizer", choices=("sgd", "adamw_torch_fused"), default="sgd")
    parser.add_argument("--lr", type=float, default=0.15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    # The trainer prints; only reports may reach stdout.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    updates = options.epochs * options.minibatches
    luck = random.Random(1)
    turnstile = Turnstile(updates, options.epochs, sys.stdin, out)

    def reward(prompts: list[str], completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        """Random: every advantage has a gradient, and nothing is learned that would change the lengths."""
        turnstile.lengths = [
            (tokens_of(tokenizer, prompt), len(ids))
            for prompt, ids in zip(prompts, completion_ids, strict=True)
        ]
        return [luck.random() for _ in prompts]

    config = GRPOConfig(
        output_dir=os.path.join(os.environ.get("TMPDIR", "/tmp"), "sorl-bench-trl"),
        per_device_train_batch_size=options.completions // options.minibatches,
        steps_per_generation=options.minibatches,
        gradient_accumulation_steps=1,
        num_generations=options.group_size,
        num_iterations=options.epochs,
        max_completion_length=options.completion,
        generation_kwargs={"min_new_tokens": options.completion},  # an early end of text would shorten a row
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        optim=options.optimizer,
        learning_rate=options.lr,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        max_steps=1_000_000,
        activation_checkpointing=False,
        bf16=False,
        use_cpu=True,
        shuffle_dataset=False,
        seed=0,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
        reward_funcs=reward,
        args=config,
        train_dataset=questions(tokenizer, [int(n) for n in options.prompts.split(",")], 4096),
        processing_class=tokenizer,
        callbacks=[turnstile],
    )
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1:])
