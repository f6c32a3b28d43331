"""Training batches as SkyRL writes them: `python -m studies.dump_samples.skyrl SOURCES FOLDER`.

SOURCES holds the unpacked wheels `whl/skyrl-0.4.0` (2026-10) and `whl/skyrl-0.3.0` (2026-07), and
`skyrl_train-v0.4.0/skyrl_train/training_batch.py` as of that tag (2026-02); all Apache-2.0. Written by
`TrainingInputBatch.save` of each. The tables of the wheels are made by their own
`convert_prompts_responses_to_batch_tensors` and `pad_training_input_batch`; those of the tag are laid out
here, prompts padded on the left and responses on the right. Every version needs a process of its own.

0.4.0, step 1: two minibatches, three padding rows, a reference model. Step 2: a critic in bfloat16, routed
experts, and no old log-probs (`rollout_is`). 0.3.0, step 1: step-wise training, a row a turn. Tag, step 1:
responses at the left.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from studies.dump_samples.episodes import Episode, episodes
from studies.dump_samples.trainer_source import stand_in

if TYPE_CHECKING:
    from torch import Tensor

VERSIONS = ("0.4.0", "0.3.0", "skyrl_train-v0.4.0")
NAME = "global_step_{}_training_input.pkl"
PAD = 0
PAD_ROWS = 3
VALUE = 0.5  # of the critic, exact in bfloat16
RETURN = 0.75
GROUPS_0_4 = [(0, 3), (3, 6)]
UPDATES_0_4 = [(0, 3), (3, 6)]


class TurnRow(NamedTuple):
    """A row of step-wise training: a turn, after all that came before it."""

    episode: int
    prompt: list[int]
    response: list[int]
    behaviour: list[float]
    old: list[float]
    advantage: float


def truth(step: int = 1) -> list[Episode]:
    """The rollouts of a step, by row."""
    return episodes(step)


def turn_rows() -> list[TurnRow]:
    """The rows of the sample of step-wise training."""
    rows = []
    for number, episode in enumerate(episodes(1)):
        start = 0
        for end in episode.turn_ends:
            while not episode.written[start]:
                start += 1
            turn = slice(start, end)
            prompt = episode.prompt + episode.response[:start]
            rows.append(
                TurnRow(
                    number,
                    prompt,
                    episode.response[turn],
                    episode.behaviour[turn],
                    episode.old[turn],
                    episode.advantage,
                )
            )
            start = end
    return rows


def write(sources: Path, folder: Path, version: str) -> None:
    """Write the samples of one version."""
    (folder / version).mkdir(parents=True, exist_ok=True)
    stand_in("jaxtyping", Bool=_Annotation, Float=_Annotation, Integer=_Annotation)
    stand_in("transformers", AutoTokenizer=object)
    stand_in("loguru", logger=SimpleNamespace(warning=print, info=print))
    if version == "skyrl_train-v0.4.0":
        _write_left_aligned(sources / version, folder / version)
        return
    root = sources / "whl" / f"skyrl-{version}" / "skyrl"
    for name in (
        "",
        "backends",
        "backends/skyrl_train",
        "backends/skyrl_train/utils",
        "train",
        "train/dataset",
    ):
        stand_in(".".join(["skyrl", *name.split("/")]).rstrip("."), root / name)
    if version == "0.3.0":
        _write_step_wise(folder / version)
    else:
        _write_whole_episodes(folder / version)


class _Annotation:
    """Stands for the types of tensors with named axes."""

    def __class_getitem__(cls, axes: object) -> type:
        return object


def _write_whole_episodes(folder: Path) -> None:
    for step in (1, 2):
        rollouts = truth(step)
        batch = _batch(
            pad_token=PAD,
            prompts=[rollout.prompt for rollout in rollouts],
            responses=[rollout.response for rollout in rollouts],
            loss_masks=[rollout.trained for rollout in rollouts],
            behaviour=[rollout.behaviour for rollout in rollouts],
            experts=_routed_experts(rollouts) if step == 2 else None,
        )
        metadata = {
            "policy_prompt_boundaries": GROUPS_0_4,
            "policy_mini_batch_boundaries": UPDATES_0_4,
            "metrics": {"avg_final_rewards": float(np.mean([rollout.reward for rollout in rollouts]))},
        }
        batch = _padded(batch, metadata, PAD_ROWS)
        old = [rollout.old for rollout in rollouts]
        advantages = [[rollout.advantage] * len(rollout.response) for rollout in rollouts]
        batch["action_log_probs"] = _right_aligned(old, batch) if step == 1 else None
        reference = [rollout.reference for rollout in rollouts]
        batch["base_action_log_probs"] = _right_aligned(reference, batch) if step == 1 else None
        batch["advantages"] = _right_aligned(advantages, batch)
        batch["returns"] = batch["advantages"]
        batch["values"] = None
        if step == 2:
            _add_critic(batch)
        batch.save(folder / NAME.format(step))


def _write_step_wise(folder: Path) -> None:
    rows = turn_rows()
    batch = _batch(
        pad_token=SimpleNamespace(pad_token_id=PAD),  # this version asks the tokenizer
        prompts=[row.prompt for row in rows],
        responses=[row.response for row in rows],
        loss_masks=[[1] * len(row.response) for row in rows],
        behaviour=[row.behaviour for row in rows],
    )
    second_group = [row.episode >= 3 for row in rows].index(True)
    groups = [(0, second_group), (second_group, len(rows))]
    metadata = {"policy_prompt_boundaries": groups, "policy_mini_batch_boundaries": [(0, len(rows))]}
    batch = _padded(batch, metadata, 1)
    batch["action_log_probs"] = _right_aligned([row.old for row in rows], batch)
    batch["base_action_log_probs"] = None
    batch["values"] = None
    batch["advantages"] = _right_aligned([[row.advantage] * len(row.response) for row in rows], batch)
    batch["returns"] = batch["advantages"]
    batch.save(folder / NAME.format(1))


def _write_left_aligned(source: Path, folder: Path) -> None:
    import torch

    sys.path.insert(0, str(source))
    from skyrl_train.training_batch import TrainingInputBatch  # type: ignore[import-not-found]

    rollouts = truth()
    most_prompt = max(len(rollout.prompt) for rollout in rollouts)
    most_response = max(len(rollout.response) for rollout in rollouts)

    def left_aligned(lists: Sequence[Sequence[float]], dtype: Any = torch.float32) -> Tensor:
        return torch.tensor([[*row] + [0] * (most_response - len(row)) for row in lists], dtype=dtype)

    def right_aligned(prompt: list[int]) -> list[int]:
        return [PAD] * (most_prompt - len(prompt)) + prompt

    prompts = torch.tensor([right_aligned(rollout.prompt) for rollout in rollouts])
    response_mask = left_aligned([[1] * len(rollout.response) for rollout in rollouts], torch.int64)
    responses = left_aligned([rollout.response for rollout in rollouts], torch.int64)
    advantages = left_aligned([rollout.spread(rollout.advantage) for rollout in rollouts])
    attended = (prompts != PAD).long()
    batch = TrainingInputBatch(
        {
            "sequences": torch.cat([prompts, responses], dim=1),
            "attention_mask": torch.cat([attended, response_mask], dim=1),
            "response_mask": response_mask,
            "loss_mask": left_aligned([rollout.trained for rollout in rollouts], torch.int64),
            "rollout_logprobs": None,
            "action_log_probs": left_aligned([rollout.old for rollout in rollouts]),
            "base_action_log_probs": None,
            "values": None,
            "advantages": advantages,
            "returns": advantages,
        }
    )
    batch.metadata = {"response_length": most_response, "pad_size": 0}
    batch.save(folder / NAME.format(1))


def _batch(
    *,
    pad_token: Any,
    prompts: list[list[int]],
    responses: list[list[int]],
    loss_masks: list[list[int]],
    behaviour: list[list[float]],
    experts: list[np.ndarray] | None = None,
) -> Any:
    from skyrl.backends.skyrl_train.training_batch import (  # type: ignore[import-not-found]
        TrainingInputBatch,
    )
    from skyrl.train.dataset.preprocess import (  # type: ignore[import-not-found]
        convert_prompts_responses_to_batch_tensors,
    )

    rewards = [[0.0] * len(response) for response in responses]
    tables = convert_prompts_responses_to_batch_tensors(
        pad_token, prompts, responses, rewards, loss_masks, behaviour, experts
    )
    names = ["sequences", "attention_mask", "response_mask", "rewards", "loss_mask", "rollout_logprobs"]
    batch = TrainingInputBatch(dict(zip(names, tables, strict=False)))
    if experts is not None:
        batch["rollout_expert_indices"] = tables[6]
    batch.pop("rewards")  # as the trainer does before it writes
    return batch


def _padded(batch: Any, metadata: dict[str, Any], rows: int) -> Any:
    from skyrl.backends.skyrl_train.training_batch import pad_training_input_batch

    batch.metadata = {**metadata, "response_length": batch["response_mask"].shape[1]}
    return pad_training_input_batch(batch, rows)


def _right_aligned(lists: Sequence[Sequence[float]], batch: Any) -> Tensor:
    import torch

    table = torch.zeros(batch["response_mask"].shape, dtype=torch.float32)
    padded = [*lists, *[lists[0]] * (len(table) - len(lists))]
    for row, values in zip(table, padded, strict=True):
        row[len(row) - len(values) :] = torch.tensor(values)
    return table


def _add_critic(batch: Any) -> None:
    import torch

    shape = batch["response_mask"].shape
    batch["values"] = torch.full(shape, VALUE, dtype=torch.bfloat16)
    batch["returns"] = torch.full(shape, RETURN)


def _routed_experts(rollouts: list[Episode]) -> list[np.ndarray]:
    return [np.ones((len(rollout.tokens), 2, 1), np.uint8) for rollout in rollouts]


if __name__ == "__main__":
    if len(sys.argv) == 4:
        write(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    else:
        for each in VERSIONS:
            subprocess.run(
                [sys.executable, "-m", "studies.dump_samples.skyrl", *sys.argv[1:3], each], check=True
            )
