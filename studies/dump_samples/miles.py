"""`--dump-details` as miles writes it: `python -m studies.dump_samples.miles SOURCES FOLDER`.

SOURCES holds `radixark+miles`, the repository at 31f1ca9 (2026-08-21), Apache-2.0. Files by
`save_debug_rollout_data`, `save_debug_train_data_for_rank` and `maybe_dump_policy_loss_debug`, columns by
`convert_samples_to_train_data`, slices by `slice_log_prob_with_cp`. Log-probs and advantages are made up.

- `run`: two steps on two data-parallel ranks, with the schedule of micro-batches. Step 1 has one update,
  step 2 has two and rollouts of two rows. Every second rollout has its conversation in `trajectory`.
- `sliced`: one step of one update on two ranks of context parallelism; half of the rollouts are dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from studies.dump_samples.megatron_rows import ONE_UPDATE, SEVERAL_ROWS, SampleRow, Shard, shards, truth
from studies.dump_samples.trainer_source import load_function, stand_in

RUN_STEPS = (ONE_UPDATE, SEVERAL_ROWS)
CONTEXT_RANKS = 2
SLICED_ROWS = 3  # of `sliced`; the trainer drops the others of the step
Cut = Callable[[Any, int, int], Any]  # the slice of a column, by total length and length of the response


def write(sources: Path, folder: Path) -> None:
    """Write both runs."""
    root = sources / "radixark+miles" / "miles"
    for name in ("", "utils", "backends", "backends/training_utils", "ray", "ray/rollout"):
        stand_in(".".join(["miles", *name.split("/")]).rstrip("."), root / name)
    stand_in("miles.backends.training_utils.parallel", get_parallel_state=lambda: None)
    for step in RUN_STEPS:
        rows = truth(step)
        data = _sampled(root, folder / "run", step)
        for rank, shard in enumerate(shards(rows)):
            _write_rank(folder / "run", step, rank, _Ranked(data, rows, shard, cut=_whole))
    rows = truth(ONE_UPDATE)
    data = _sampled(root, folder / "sliced", ONE_UPDATE)
    shard = Shard(list(range(SLICED_ROWS)), [[0], [1, 2]], [2])
    for rank in range(CONTEXT_RANKS):
        cut = _slicer(root, rank)
        ranked = _Ranked(data, rows, shard, cut=cut, cp_rank=rank, cp_size=CONTEXT_RANKS)
        _write_rank(folder / "sliced", ONE_UPDATE, rank, ranked)


def _whole(values: Any, _total: int, _length: int) -> Any:
    return values


class _Ranked(SimpleNamespace):
    """What a rank trains on."""

    def __init__(
        self,
        data: dict[str, Any],
        rows: Sequence[SampleRow],
        shard: Shard,
        cut: Cut,
        cp_rank: int = 0,
        cp_size: int = 1,
    ) -> None:
        super().__init__(data=data, rows=rows, shard=shard, cut=cut, cp_rank=cp_rank, cp_size=cp_size)

    def slices(self, name: str) -> list[Any]:
        """The rank's part of a column of its rows."""
        import torch

        slices = []
        for position in self.shard.partition:
            row = self.rows[position]
            values = torch.tensor(getattr(row, name))
            slices.append(self.cut(values, len(row.tokens), len(row.response)))
        return slices

    def spread_advantages(self) -> list[Any]:
        """One advantage a row, at all of its tokens."""
        import torch

        pairs = zip(self.slices("old"), self.own_rows, strict=True)
        return [torch.full_like(old, row.advantage) for old, row in pairs]

    @property
    def own_rows(self) -> list[SampleRow]:
        """The rank's rows in its own order."""
        return [self.rows[position] for position in self.shard.partition]


def _sampled(root: Path, folder: Path, step: int) -> dict[str, Any]:
    """Write rollout_data and trajectory, and convert the samples to the columns of the whole batch."""
    from miles.ray.rollout.debug_data import save_debug_rollout_data  # type: ignore[import-not-found]
    from miles.utils.types import Sample  # type: ignore[import-not-found]

    rows = truth(step)
    samples = [_sample(Sample, row) for row in rows]
    paths = SimpleNamespace(
        save_debug_rollout_data=str(folder / "rollout_data" / "{rollout_id}.pt"),
        save_debug_trajectory_data=str(folder / "trajectory" / "{rollout_id}.jsonl"),
    )
    save_debug_rollout_data(paths, samples, rollout_id=step, evaluation=False, metadata={})
    rewards = ([row.reward for row in rows], [row.advantage for row in rows])
    namespace = {"Sample": Sample, "Any": Any, "_post_process_rewards": lambda *names, **options: rewards}
    file = root / "ray" / "rollout" / "train_data_conversion.py"
    load_function(file, "_compute_rollout_mask_sums", namespace)
    convert = load_function(file, "convert_samples_to_train_data", namespace)
    options = SimpleNamespace(use_dynamic_global_batch_size=False)
    data: dict[str, Any] = convert(options, samples, {}, None, None)
    return data


def _sample(sample_class: Any, row: SampleRow) -> Any:
    question = [{"role": "user", "content": f"question {row.group}"}]
    answer = {"role": "assistant", "content": f"answer {row.index}"}
    return sample_class(
        group_index=row.group,
        index=row.index,
        rollout_id=row.rollout_id,
        prompt=question,
        tokens=row.tokens,
        response=f"response {row.index}",
        response_length=len(row.response),
        label="gold",
        reward=row.reward,
        loss_mask=row.written,
        weight_versions=row.weight_versions,
        rollout_log_probs=row.behaviour,
        status=sample_class.Status.COMPLETED,
        remove_sample=not row.is_in_loss,
        metadata={"messages": [*question, answer]} if row.rollout % 2 == 0 else {},
    )


def _write_rank(folder: Path, step: int, rank: int, ranked: _Ranked) -> None:
    """Write a rank's train_data and its calls of the loss."""
    from miles.utils.train_dump_utils import (  # type: ignore[import-not-found]
        save_debug_train_data_for_rank,
    )

    columns = _columns(ranked)
    for numbers in ranked.shard.micro_batches:
        batch = {}
        for key, values in columns.items():
            batch[key] = [values[number] for number in numbers]
        _write_call(folder, rank, batch)
    del columns["new"], columns["masks"]
    columns["raw_reward"] = ranked.data["raw_reward"]
    columns["num_microbatches"] = ranked.shard.micro_batch_counts
    columns["micro_batch_indices"] = ranked.shard.micro_batches
    columns["num_rollouts"] = [len({row.rollout for row in ranked.rows})]
    template = str(folder / "train_data" / "{rollout_id}_{rank}.pt")
    options = SimpleNamespace(save_debug_train_data=template, qkv_format="thd")
    save_debug_train_data_for_rank(
        options,
        rollout_id=step,
        rollout_data=columns,
        rank=rank,
        cp_rank=ranked.cp_rank,
        cp_size=ranked.cp_size,
    )


def _columns(ranked: _Ranked) -> dict[str, list[Any]]:
    """The columns of a rank, an entry a row; `new` and `masks` are for the calls alone."""
    import torch

    columns: dict[str, list[Any]] = {}
    for key, values in ranked.data.items():
        columns[key] = [values[position] for position in ranked.shard.partition]
    columns["tokens"] = [torch.tensor(tokens) for tokens in columns["tokens"]]
    columns["loss_masks"] = [torch.tensor(mask, dtype=torch.int) for mask in columns["loss_masks"]]
    columns["total_lengths"] = [len(tokens) for tokens in columns["tokens"]]
    columns["rollout_log_probs"] = ranked.slices("behaviour")
    columns["log_probs"] = ranked.slices("old")
    columns["ref_log_probs"] = ranked.slices("reference")
    columns["advantages"] = ranked.spread_advantages()
    columns["returns"] = columns["advantages"]
    columns["new"] = ranked.slices("new")
    columns["masks"] = ranked.slices("trained")
    return columns


def _write_call(folder: Path, rank: int, batch: dict[str, list[Any]]) -> None:
    """One call of the policy loss on a micro-batch."""
    import torch
    from miles.backends.training_utils import debug_dump  # type: ignore[import-not-found]

    debug_dump.dist = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: rank
    )
    calls = list((folder / "policy_loss_debug").glob(f"rank_{rank}_call_*.pt"))
    debug_dump._POLICY_LOSS_DUMP_COUNTER = len(calls)
    debug_dump.maybe_dump_policy_loss_debug(
        args=SimpleNamespace(dump_details=str(folder)),
        batch=batch,
        train_log_probs=batch["new"],
        old_log_probs=batch["log_probs"],
        rollout_log_probs=batch["rollout_log_probs"],
        advantages=batch["advantages"],
        local_loss_masks=batch["masks"],
        ppo_kl=torch.cat(batch["log_probs"]) - torch.cat(batch["new"]),
        pg_loss=torch.zeros(1),
    )


def _slicer(root: Path, context_rank: int) -> Cut:
    """miles' function that cuts a column for a context-parallel rank."""
    import torch

    ranks = SimpleNamespace(cp=SimpleNamespace(rank=context_rank, size=CONTEXT_RANKS))
    namespace = {"torch": torch, "get_parallel_state": lambda: ranks}
    file = root / "backends" / "training_utils" / "cp_utils.py"
    load_function(file, "get_logits_and_tokens_offset_with_cp", namespace)
    cut: Cut = load_function(file, "slice_log_prob_with_cp", namespace)
    return cut


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
