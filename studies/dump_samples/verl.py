"""Rollouts as verl writes them: `python -m studies.dump_samples.verl SOURCES FOLDER`.

SOURCES holds the unpacked wheel `whl/verl-0.9.1` (2026-09-20, Apache-2.0). Written by `_write_generations` of
`verl/trainer/ppo/v1/trainer_base.py` (the trainer V1) and of `verl/trainer/ppo/ray_trainer.py` (the one
before it), with what each hands to it and made-up texts.

`v1`: two steps; the first episode has two rows, and two rows are padding. `legacy`: one step. `validation`:
what V1 writes into `trainer.validation_data_dir`, which is no training data.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from studies.dump_samples.episodes import Episode, episodes
from studies.dump_samples.trainer_source import load_function

STEPS = (1, 2)
PADDING = f"pad{'0123456789abcdef' * 2}"
PROMPTS = ("2+2?", "3*3?")


class NamedRow(NamedTuple):
    """A row of the trainer V1."""

    name: str  # {uid}_{session}_{index}
    episode: Episode


def truth(step: int) -> list[NamedRow]:
    """The rows of a step of the trainer V1, without padding."""
    rows = []
    for number, episode in enumerate(episodes(step)):
        name = f"{uid(step, episode.group)}_{number % 3}"
        rows.append(NamedRow(f"{name}_0", episode))
        if number == 0:
            rows.append(NamedRow(f"{name}_1", episode))
    return rows


def uid(step: int, group: int) -> str:
    """The id of a prompt group; verl's are random and may have underscores in data sets of their own."""
    return f"task_{step}-{group}"


def write(sources: Path, folder: Path) -> None:
    """Write the three folders."""
    trainers = sources / "whl/verl-0.9.1/verl/trainer/ppo"
    write_v1 = _writer(trainers / "v1/trainer_base.py")
    write_legacy = _writer(trainers / "ray_trainer.py")
    for step in STEPS:
        rows = truth(step)
        padding = [NamedRow(f"{PADDING}_{number}_0", _without_reward(rows[0].episode)) for number in (0, 1)]
        padded = padding + rows
        names = [row.name for row in padded]
        rollouts = [row.episode for row in padded]
        write_v1(*_texts(rollouts), {"uid": names}, str(folder / "v1"), step)
    rollouts = episodes(1)
    rewards = [rollout.reward for rollout in rollouts]
    extras = {
        "acc": [reward == 1 for reward in rewards],
        "request_id": [f"r{n}" for n in range(len(rewards))],
    }
    write_legacy(*_texts(rollouts), extras, str(folder / "legacy"), 1)
    names = [row.name for row in truth(1)]
    rollouts = [row.episode for row in truth(1)]
    rewards = [rollout.reward for rollout in rollouts]
    write_v1(*_texts(rollouts), {"reward": rewards, "uid": names}, str(folder / "validation"), 1)


def _writer(file: Path) -> Any:
    return load_function(file, "_write_generations", {"os": os, "json": json, "np": np})


def _texts(rollouts: list[Episode]) -> list[list[Any]]:
    """Inputs, outputs, right answers and scores."""
    inputs = [PROMPTS[rollout.group] for rollout in rollouts]
    outputs = [f"a response of {len(rollout.response)} tokens" for rollout in rollouts]
    scores = [rollout.reward for rollout in rollouts]
    return [inputs, outputs, ["4"] * len(rollouts), scores]


def _without_reward(episode: Episode) -> Episode:
    return Episode(episode.group, episode.prompt)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
