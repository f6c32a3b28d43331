"""`--dump-details` as slime writes it: `python -m studies.dump_samples.slime SOURCES FOLDER`.

SOURCES holds `THUDM+slime`, the repository at 624b824 (2026-08-21), Apache-2.0.

- `gathered`, format 2: samples by `Sample.append_response_tokens`, files by `save_debug_rollout_data` and
  `_build_dump_payload`, columns by `_convert_samples_to_train_data` and
  `tensorize_rollout_data_for_training`. Log-probs and advantages are made up, as they come from Megatron.
  Three steps on two data-parallel ranks; step 1 has one update, in step 2 some rollouts are two rows.
- `ranks`, format 1, as slime wrote it up to v0.3.1: one step on four ranks, two of context and two of tensor
  parallelism. Its writer is one `torch.save` of `{rollout_id, rank, rollout_data}`, written out here; the
  slices are cut by `slice_log_prob_with_cp` of the later commit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from studies.dump_samples.megatron_rows import STEPS, SampleRow, Shard, shards, truth
from studies.dump_samples.trainer_source import load_function, stand_in

COLUMNS = ("log_probs", "ref_log_probs", "advantages", "returns", "kl")
CONTEXT_RANKS = 2
TENSOR_RANKS = 2


def write(sources: Path, folder: Path) -> None:
    """Write both formats."""
    root = sources / "THUDM+slime" / "slime"
    stand_in("slime", root)
    stand_in("slime.utils", root / "utils")
    stand_in("slime.utils.misc", decode_int32_meta_array=lambda *names: None)
    stand_in("slime.observability", root / "observability")
    for step in STEPS:
        _write_gathered(root, folder / "gathered", step)
    tokenizer = folder / "gathered" / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    (tokenizer / "tokenizer_config.json").write_text("{}\n")
    _write_ranks(root, folder / "ranks")


def _write_gathered(root: Path, folder: Path, step: int) -> None:
    import torch
    from slime.observability.train_data_utils import _build_dump_payload  # type: ignore[import-not-found]

    rows = truth(step)
    data = _training_data(root, folder, step)
    gathered = []
    for rank, shard in enumerate(shards(rows)):
        columns = _shard_columns(data, rows, shard)
        gathered.append({"rank": rank, "data_parallel_rank": rank, "rollout_data": columns})
    payload = _build_dump_payload(gathered, rollout_id=step, writer_rank=0)
    (folder / "train_data").mkdir(exist_ok=True)
    torch.save(payload, folder / "train_data" / f"{step}.pt")


def _training_data(root: Path, folder: Path, step: int) -> dict[str, Any]:
    """Write rollout_data, and convert its samples to the columns of the whole batch."""
    from slime.observability.rollout_data_utils import (  # type: ignore[import-not-found]
        save_debug_rollout_data,
    )
    from slime.utils.types import Sample  # type: ignore[import-not-found]

    rows = truth(step)
    samples = [_sample(Sample, row) for row in rows]
    template = str(folder / "rollout_data" / "{rollout_id}.pt")
    save_debug_rollout_data(template, samples, rollout_id=step, evaluation=False)
    namespace = {"Sample": Sample, "get_source": lambda sample: "unknown"}
    convert = load_function(root / "ray" / "rollout.py", "_convert_samples_to_train_data", namespace)
    rewards = ([row.reward for row in rows], [row.advantage for row in rows])
    manager = SimpleNamespace(
        args=SimpleNamespace(),
        custom_convert_samples_to_train_data_func=None,
        _post_process_rewards=lambda samples: rewards,
    )
    data: dict[str, Any] = convert(manager, samples)
    return data


def _sample(sample_class: Any, row: SampleRow) -> Any:
    """A sample that was generated turn by turn."""
    sample = sample_class(
        group_index=row.group,
        index=row.index,
        rollout_id=row.rollout_id,
        prompt=[{"role": "user", "content": f"question {row.group}"}],
        tokens=list(row.prompt),
        label="gold",
        reward=row.reward,
        remove_sample=not row.is_in_loss,
    )
    end = 0
    for turn, version in zip(row.turns, row.weight_versions, strict=True):
        if turn.start > end:
            sample.append_response_tokens(
                tokens=row.response[end : turn.start], trainable=False, text="observation "
            )
        sample.append_response_tokens(
            tokens=row.response[turn],
            log_probs=row.behaviour[turn],
            meta_info={"finish_reason": {"type": "stop"}, "weight_version": version},
            text=f"turn of {turn.stop - turn.start} ",
        )
        end = turn.stop
    return sample


def _shard_columns(data: dict[str, Any], rows: Sequence[SampleRow], shard: Shard) -> dict[str, Any]:
    """What a data-parallel rank has at the end of a step."""
    import torch
    from slime.observability.rollout_data_utils import (
        tensorize_rollout_data_for_training,
    )

    columns: dict[str, Any] = {}
    for key, values in data.items():
        columns[key] = [values[position] for position in shard.partition]
    columns["partition"] = shard.partition
    columns["total_lengths"] = [len(tokens) for tokens in columns["tokens"]]
    columns["local_raw_reward"] = columns["raw_reward"]
    columns["raw_reward"] = data["raw_reward"]
    columns["num_microbatches"] = shard.micro_batch_counts
    columns["micro_batch_indices"] = shard.micro_batches
    columns["global_batch_sizes"] = [len(rows)]
    tensorize_rollout_data_for_training(columns)
    for key in COLUMNS:
        columns[key] = [torch.tensor(_column(rows[position], key)) for position in shard.partition]
    return columns


def _column(row: SampleRow, key: str) -> list[float]:
    length = len(row.response)
    if key == "log_probs":
        return row.old
    if key == "ref_log_probs":
        return row.reference
    return [0.0] * length if key == "kl" else [row.advantage] * length


def _write_ranks(root: Path, folder: Path) -> None:
    import torch

    step = 0
    rows = truth(step)
    data = _training_data(root, folder, step)
    everything = Shard(list(range(len(rows))), [], [])
    for rank in range(CONTEXT_RANKS * TENSOR_RANKS):
        context_rank = rank // TENSOR_RANKS
        columns = _shard_columns(data, rows, everything)
        for key in ("partition", "num_microbatches", "micro_batch_indices", "global_batch_sizes"):
            del columns[key]
        cut = _slicer(root, context_rank)
        for key in ("rollout_log_probs", *COLUMNS):
            pieces = zip(columns[key], rows, strict=True)
            columns[key] = [cut(values, len(row.tokens), len(row.response)) for values, row in pieces]
        (folder / "train_data").mkdir(exist_ok=True)
        pack = {"rollout_id": step, "rank": rank, "rollout_data": columns}
        torch.save(pack, folder / "train_data" / f"{step}_{rank}.pt")


def _slicer(root: Path, context_rank: int) -> Any:
    """slime's function that cuts a column for a context-parallel rank."""
    import torch

    parallel = SimpleNamespace(
        get_context_parallel_rank=lambda: context_rank,
        get_context_parallel_world_size=lambda: CONTEXT_RANKS,
    )
    file = root / "backends" / "megatron_utils" / "cp_utils.py"
    namespace = {"torch": torch, "mpu": parallel}
    load_function(file, "get_logits_and_tokens_offset_with_cp", namespace)
    return load_function(file, "slice_log_prob_with_cp", namespace)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
