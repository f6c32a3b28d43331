"""Dumps of generated rollouts: `train_data_step{N}.jsonl` as NeMo-RL writes it, `--dump-details` as slime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from studies.mismatch.samplers import KINDS, Rolled, Scene, trainer_log_probs

# What a configuration would call a model of that family.
MODEL_OF_FAMILY = {"llama": "Qwen/Qwen2.5-1.5B-Instruct", "mixtral": "Qwen/Qwen3-30B-A3B"}


@dataclass(frozen=True)
class Told:
    """What a trainer tells of one rollout; T tokens."""

    tokens: list[int]
    written: list[bool]  # (T,)
    sampler: list[float]  # (T,) log-probs
    trainer: list[float]  # (T,) log-probs
    prompt_length: int
    reward: float
    advantage: float
    group: int
    version: int
    is_cut: bool

    @property
    def response(self) -> slice:
        """The places of the response."""
        return slice(self.prompt_length, len(self.tokens))


def write(scene: Scene, folder: Path, layout: str) -> float:
    """Write the dump of a scene; returns the mean |difference| of trainer and sampler, in nats a token."""
    writer = {"NeMo-RL": _write_nemo_rl, "slime": _write_slime}[layout]
    folder.mkdir(parents=True, exist_ok=True)
    if layout == "NeMo-RL":
        model = MODEL_OF_FAMILY[scene.course.settings.policy.family]
        (folder / "config.yaml").write_text(f"policy:\n  model_name: {model}\n")
    gaps: list[float] = []
    for step in range(scene.steps):
        rows = rows_of(scene, step)
        writer(folder, step, rows)
        for row in rows:
            gaps.extend(_gaps(row))
    return float(np.mean(gaps))


def _gaps(row: Told) -> Iterator[float]:
    for written, sampler, trainer in zip(row.written, row.sampler, row.trainer, strict=True):
        if written:
            yield abs(trainer - sampler)


def rows_of(scene: Scene, step: int) -> list[Told]:
    """What a trainer tells of the rollouts of a step."""
    rolled = KINDS[scene.kind](scene, step)
    log_probs = trainer_log_probs(scene, step, rolled)
    advantages = _advantages(rolled)
    rows = []
    for number, episode in enumerate(rolled.episodes):
        rows.append(
            Told(
                rolled.trained[number],
                list(episode.written),
                list(episode.log_prob),
                log_probs[number, : len(episode.tokens)].tolist(),
                episode.prompt_length,
                episode.reward,
                float(advantages[number]),
                episode.group,
                rolled.versions[number],
                episode.ended != "answer",
            )
        )
    return rows


def _advantages(rolled: Rolled) -> np.ndarray:
    rewards = np.array([episode.reward for episode in rolled.episodes])
    groups = np.array([episode.group for episode in rolled.episodes])
    means = {group: rewards[groups == group].mean() for group in set(groups.tolist())}
    return rewards - np.array([means[group] for group in groups.tolist()])


def _write_nemo_rl(folder: Path, step: int, rows: list[Told]) -> None:
    width = max(len(row.tokens) for row in rows)
    with (folder / f"train_data_step{step + 1}.jsonl").open("w") as file:
        for row in rows:
            padding = width - len(row.tokens)
            line = {
                "content": [["a question"]],
                "rewards": [row.reward],
                "input_lengths": [len(row.tokens)],
                "token_ids": [row.tokens + [0] * padding],
                "token_loss_mask": [[int(flag) for flag in row.written] + [0] * padding],
                "sample_loss_mask": [1.0],
                "advantages": [[row.advantage] * width],
                "generation_logprobs": [row.sampler + [0.0] * padding],
                "prev_logprobs": [row.trainer + [0.0] * padding],
            }
            file.write(json.dumps(line) + "\n")


def _write_slime(folder: Path, step: int, rows: list[Told]) -> None:
    sampled = []
    trained = []
    for number, row in enumerate(rows):
        mask = [int(flag) for flag in row.written[row.response]]
        common: dict[str, Any] = {"tokens": row.tokens}
        sampled.append(
            common
            | {
                "index": step * len(rows) + number,
                "group_index": row.group,
                "response_length": len(mask),
                "loss_mask": mask,
                "weight_versions": [str(row.version + 1)],  # slime counts from 1
                "reward": row.reward,
                "status": "truncated" if row.is_cut else "completed",
            }
        )
        trained.append(
            common
            | {
                "response_lengths": len(mask),
                "total_lengths": len(row.tokens),
                "loss_masks": torch.tensor(mask),
                "rollout_position": number,
                "sample_index": step * len(rows) + number,
                "rollout_log_probs": torch.tensor(row.sampler[row.response]),
                "log_probs": torch.tensor(row.trainer[row.response]),
                "advantages": torch.full((len(mask),), row.advantage),
            }
        )
    for name, pack in (
        ("rollout_data", {"rollout_id": step, "samples": sampled}),
        ("train_data", {"format_version": 2, "rollout_id": step, "samples": trained}),
    ):
        (folder / name).mkdir(exist_ok=True)
        torch.save(pack, folder / name / f"{step}.pt")
