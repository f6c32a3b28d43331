"""Training data as NeMo-RL writes it: `python -m studies.dump_samples.nemo_rl SOURCES FOLDER`.

SOURCES holds `NVIDIA-NeMo+RL`, the repository at 7ea279a (2026-08-22, Apache-2.0). Written by
`Logger.log_batched_dict_as_jsonl` of `nemo_rl/utils/logger.py` over the trainer's `BatchedDataDict`; the
columns are those that `grpo.py` and `ppo.py` hand it, with made-up values.

Step 1: GRPO. Step 2: with dynamic sampling (`rewards` is of other rows) and the placeholder of an on-policy
loss for `prev_logprobs`. Step 3: PPO, with an assistant message in the prompt that the loss trains on.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from studies.dump_samples.episodes import Episode, episodes
from studies.dump_samples.trainer_source import load_function, stand_in

STEPS = (1, 2, 3)
PAD = 0
MULTIPLE = 8  # make_sequence_length_divisible_by
PROMPT_LOG_PROB = -2.5  # the trainer's, of tokens of the prompt
HISTORY = slice(1, 3)  # of the prompts of step 3: an assistant message


def truth() -> dict[int, list[Episode]]:
    """The rollouts by step."""
    return {step: episodes(step) for step in STEPS}


def batch_of(step: int) -> dict[str, list[Any]]:
    """The columns that the trainer hands to its logger."""
    rollouts = episodes(step)
    longest = max(len(rollout.tokens) for rollout in rollouts)
    width = -(-longest // MULTIPLE) * MULTIPLE
    batch: dict[str, list[Any]] = {
        "content": [["a question"] + ["a turn"] * len(rollout.turn_ends) for rollout in rollouts],
        "rewards": [rollout.reward for rollout in rollouts],
        "input_lengths": [len(rollout.tokens) for rollout in rollouts],
        "token_ids": [_padded(rollout.tokens, width) for rollout in rollouts],
        "token_loss_mask": [_padded(_mask(rollout, step), width) for rollout in rollouts],
        "sample_loss_mask": [float(rollout.is_in_loss) for rollout in rollouts],
        "advantages": [[rollout.advantage] * width for rollout in rollouts],
        "generation_logprobs": [
            _padded([0.0] * len(rollout.prompt) + rollout.behaviour, width) for rollout in rollouts
        ],
        "prev_logprobs": [_padded(_old_log_probs(rollout), width) for rollout in rollouts],
    }
    if step == 2:
        batch["filtered_rewards"] = batch["rewards"]
        batch["rewards"] = [0.0, 0.0, 0.0, *batch["rewards"]]
        batch["prev_logprobs"] = [[0.0] * width for _ in rollouts]
    return batch


def write(sources: Path, folder: Path) -> None:
    """Write the files of all steps."""
    import torch

    repository = sources / "NVIDIA-NeMo+RL"
    stand_in("nemo_rl", repository / "nemo_rl")
    stand_in("nemo_rl.distributed", repository / "nemo_rl/distributed")
    stand_in("nemo_rl.data")
    stand_in(
        "nemo_rl.data.multimodal_utils",
        MULTIMODAL_CONTENT_TYPES=(),
        NATIVE_MULTIMODAL_KEYS=(),
        PackedTensor=type("PackedTensor", (), {}),
    )
    stand_in("nemo_rl.data.packing", get_packer=None)
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict  # type: ignore[import-not-found]

    namespace = {
        "BatchedDataDict": BatchedDataDict,
        "Any": Any,
        "os": os,
        "json": json,
        "torch": torch,
        "np": np,
    }
    log = load_function(repository / "nemo_rl/utils/logger.py", "log_batched_dict_as_jsonl", namespace)
    for step in STEPS:
        log(SimpleNamespace(base_log_dir=str(folder)), batch_of(step), f"train_data_step{step}.jsonl")
    messages = [[{"role": "user", "content": "a question"}, {"role": "assistant", "content": "a turn"}]]
    validation = {"content": messages, "rewards": [1.0]}
    log(SimpleNamespace(base_log_dir=str(folder)), validation, "val_data_step1.jsonl")


def _mask(rollout: Episode, step: int) -> list[int]:
    prompt = [0] * len(rollout.prompt)
    if step == 3:
        prompt[HISTORY] = [1] * len(prompt[HISTORY])
    return prompt + rollout.written


def _old_log_probs(rollout: Episode) -> list[float]:
    return [0.0] + [PROMPT_LOG_PROB] * (len(rollout.prompt) - 1) + rollout.old


def _padded(values: list[Any], width: int) -> list[Any]:
    return values + [PAD] * (width - len(values))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
