"""What the import of a token dump takes: CPU time and memory, and the pace of plain reading beside it.

    PYTHONPATH=. .venv/bin/python bench/dump_import.py --steps 5

Writes dumps of 512 rollouts a step, of up to 8,192 tokens each, in the layouts of NeMo-RL and slime; 5 steps
are about a gigabyte of either. Imports each in a process of its own, and reads the same files with
`json.loads` and with `torch.load(weights_only=True)` for a baseline. Values are random.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

GROUPS = 64
ROLLOUTS = 8  # a group
PROMPT_TOKENS = 500
FEWEST_TOKENS = 4_000
WIDTH = 8_192
VOCABULARY = 150_000
SHARDS = 8


@dataclass(frozen=True)
class Rollout:
    """One rollout; arrays along its N tokens after the prompt."""

    group: int
    prompt: list[int]
    response: list[int]
    mask: np.ndarray  # (N,) of 0 and 1
    sampler: np.ndarray  # (N,) log-probs
    trainer: np.ndarray  # (N,) log-probs
    turns: int
    reward: float
    advantage: float


def rollouts(draw: np.random.Generator) -> list[Rollout]:
    """The rollouts of a step."""
    batch: list[Rollout] = []
    for group in range(GROUPS):
        prompt = draw.integers(0, VOCABULARY, PROMPT_TOKENS).tolist()
        batch.extend(_rollout(draw, group, prompt) for _ in range(ROLLOUTS))
    return batch


def _rollout(draw: np.random.Generator, group: int, prompt: list[int]) -> Rollout:
    size = int(draw.integers(FEWEST_TOKENS, WIDTH)) - PROMPT_TOKENS
    mask = np.zeros(size, dtype=np.int64)
    start = turns = 0
    while start < size:
        end = min(size, start + int(draw.integers(100, 600)))
        mask[start:end] = 1
        start = end + int(draw.integers(50, 300))
        turns += 1
    sampler = (-draw.gamma(0.3, 1, size)).astype(np.float32) * mask
    return Rollout(
        group,
        prompt,
        draw.integers(0, VOCABULARY, size).tolist(),
        mask,
        sampler,
        (sampler + draw.normal(0, 0.01, size) * mask).astype(np.float32),
        turns,
        float(draw.integers(0, 2)),
        float(draw.normal()),
    )


def write_nemo_rl(folder: Path, step: int, batch: list[Rollout]) -> None:
    """`train_data_step{N}.jsonl`, padded on the right."""
    folder.mkdir(exist_ok=True)
    with (folder / f"train_data_step{step + 1}.jsonl").open("w") as file:
        for one in batch:
            file.write(json.dumps(_nemo_rl_line(one)) + "\n")


def _nemo_rl_line(one: Rollout) -> dict[str, Any]:
    length = PROMPT_TOKENS + len(one.response)

    def padded(values: list[Any]) -> list[list[Any]]:
        filled = [0.0] * PROMPT_TOKENS + values
        return [filled + [0.0] * (WIDTH - length)]

    return {
        "content": [[""]],
        "rewards": [one.reward],
        "input_lengths": [length],
        "token_ids": [one.prompt + one.response + [0] * (WIDTH - length)],
        "token_loss_mask": [[0] * PROMPT_TOKENS + one.mask.tolist() + [0] * (WIDTH - length)],
        "sample_loss_mask": [1.0],
        "advantages": [[one.advantage] * WIDTH],
        "generation_logprobs": padded(one.sampler.tolist()),
        "prev_logprobs": padded(one.trainer.tolist()),
    }


def write_slime(folder: Path, step: int, batch: list[Rollout]) -> None:
    """`rollout_data/{step}.pt` and `train_data/{step}.pt` of format 2."""
    samples = [_slime_sample(number, one) for number, one in enumerate(batch)]
    trained = [_slime_row(number, one) for number, one in enumerate(batch)]
    shards = [_slime_shard(rank, len(batch)) for rank in range(SHARDS)]
    packs = {
        "rollout_data": {"rollout_id": step, "samples": samples},
        "train_data": {
            "format_version": 2,
            "rollout_id": step,
            "rank": 0,
            "samples": trained,
            "dp_shards": shards,
            "raw_reward": [one.reward for one in batch],
        },
    }
    for name, pack in packs.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        torch.save(pack, folder / name / f"{step}.pt")


def _slime_sample(number: int, one: Rollout) -> dict[str, Any]:
    return {
        "group_index": one.group,
        "index": number,
        "tokens": one.prompt + one.response,
        "response_length": len(one.response),
        "reward": one.reward,
        "loss_mask": one.mask.tolist(),
        "weight_versions": ["1"] * one.turns,
        "rollout_log_probs": one.sampler.tolist(),
        "status": "completed",
    }


def _slime_row(number: int, one: Rollout) -> dict[str, Any]:
    advantages = torch.full((len(one.response),), one.advantage)
    return {
        "data_parallel_rank": number % SHARDS,
        "sample_index": number,
        "rollout_position": number,
        "tokens": torch.tensor(one.prompt + one.response),
        "response_lengths": len(one.response),
        "total_lengths": PROMPT_TOKENS + len(one.response),
        "loss_masks": torch.tensor(one.mask, dtype=torch.int32),
        "rollout_log_probs": torch.tensor(one.sampler),
        "log_probs": torch.tensor(one.trainer),
        "ref_log_probs": torch.tensor(one.trainer),
        "advantages": advantages,
        "returns": advantages,
        "kl": torch.zeros(len(one.response)),
    }


def _slime_shard(rank: int, row_count: int) -> dict[str, Any]:
    positions = list(range(rank, row_count, SHARDS))
    return {
        "rank": rank,
        "data_parallel_rank": rank,
        "sample_indices": positions,
        "partition": positions,
        "num_microbatches": [len(positions)],
        "micro_batch_indices": [[place] for place in range(len(positions))],
        "global_batch_sizes": [row_count],
    }


def read_lines(file: Path) -> None:
    """Read JSON lines with the standard library."""
    with file.open("rb") as handle:
        for line in handle:
            json.loads(line)


def read_tensors(file: Path) -> None:
    """Read a file of torch.save as torch reads it without code."""
    torch.load(file, weights_only=True)


@dataclass(frozen=True)
class Layout:
    """How a trainer writes a step, and the plain way to read a file of it."""

    write: Callable[[Path, int, list[Rollout]], None]
    read: Callable[[Path], None]


LAYOUTS = {"NeMo-RL": Layout(write_nemo_rl, read_lines), "slime": Layout(write_slime, read_tensors)}


def seconds_of(action: Callable[[], None]) -> float:
    """CPU seconds that an action takes in this process."""
    began = time.process_time()
    action()
    return time.process_time() - began


@dataclass(frozen=True)
class Import:
    """What an import took."""

    seconds: float  # of CPU
    peak_bytes: int


def import_dump(dump: Path, runs: Path) -> Import:
    """Import a dump in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "cli.py", "--runs", str(runs), "import", str(dump)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Import(seconds, after.ru_maxrss * 1024)


def megabytes_of(files: Sequence[Path]) -> float:
    """Size of files in MB, 10^6 bytes."""
    return sum(file.stat().st_size for file in files) / 1e6


def measure(name: str, steps: int, folder: Path) -> None:
    """Write, import and read a dump, and print a line."""
    layout = LAYOUTS[name]
    draw = np.random.default_rng(0)
    dump = folder / name
    for step in range(steps):
        layout.write(dump, step, rollouts(draw))
    files = [file for file in sorted(dump.rglob("*")) if file.is_file()]
    took = import_dump(dump, folder / "runs")
    pace = f"imported at {megabytes_of(files) / took.seconds:.1f} MB a CPU second"
    memory = f"{took.peak_bytes / 2**30:.2f} GiB at most"
    print(f"{name}, {megabytes_of(files):,.0f} MB: {pace}, {memory}", flush=True)
    reading = megabytes_of(files[:1]) / seconds_of(lambda: layout.read(files[0]))
    print(f"  {files[0].name} alone, by {layout.read.__name__}: {reading:.1f} MB/s", flush=True)


def main() -> None:
    """Measure each layout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", choices=LAYOUTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in [given.only] if given.only else LAYOUTS:
        with TemporaryDirectory() as folder:
            measure(name, given.steps, Path(folder))


if __name__ == "__main__":
    main()
