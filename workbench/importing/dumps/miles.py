"""miles' `--dump-details`: train_data with a file a rank, and the log-probs of every call of the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sorl.importing.dumps import files
from sorl.importing.dumps.megatron_dump import MegatronDump
from sorl.importing.dumps.megatron_layout import is_of_miles, lowest_step_file, rank_files
from sorl.importing.dumps.megatron_ranks import COPIES, NEW_LOG_PROB, RankFile, RankFiles, read_rank
from sorl.importing.dumps.megatron_rows import Training, TrainingRow
from sorl.importing.dumps.miles_policy_loss import ITSELF, SAMPLER, PolicyLossCalls, RankCalls

NO_UPDATES = (
    "train_data does not tell which rows each update trains on (num_microbatches, micro_batch_indices): a"
    " step counts as one update."
)
NO_CALLS = (
    "The dump has no policy_loss_debug. With one update a step, miles' log_probs are taken for the policy at"
    " the update too; with several, the policy at the updates is not known."
)
MISMATCH = (
    "policy_loss_debug of some steps does not match train_data: its old log-probs are of other rows. The"
    " log-probs at the updates of those steps are left out."
)
RATIO_TO_SAMPLER = (
    "The trainer's ratio compares with the sampler (--use-rollout-logprobs): log_prob_old is the sampler's."
)
RATIO_TO_ITSELF = (
    "The trainer's ratio compares with the policy at the update itself (--skip-actor-forward-only):"
    " log_prob_old is log_prob."
)


class MilesDump(MegatronDump):
    """A folder that miles' `--dump-details` filled."""

    trainer = "miles"

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether rollout_data or train_data holds numbered files of `torch.save`, and they are of miles."""
        return lowest_step_file(folder) is not None and is_of_miles(folder)

    def _start_over(self) -> None:
        super()._start_over()
        self._calls = PolicyLossCalls(self.folder / "policy_loss_debug")

    def training_files(self) -> dict[int, list[Path]]:
        """`{step}_{rank}.pt` of each step."""
        return rank_files(self.folder / "train_data")

    def read_training(
        self, step: int, paths: Sequence[Path], keeps: Callable[[TrainingRow], bool]
    ) -> Training:
        """Put the files of the ranks together, with the calls of the loss on their rows."""
        ranks = RankFiles(keeps, self.note)
        all_calls: list[RankCalls] = []
        covered: set[tuple[object, ...]] = set()
        is_matched = True
        for path in paths:
            ranked = read_rank(path)
            shard = _shard_of(ranked)
            if shard in covered or not self._calls.has_calls(ranked.rank):
                ranks.add(ranked)
                continue
            calls = self._calls.of(ranked)
            if calls is None:
                is_matched = False
                ranks.add(ranked)
                continue
            all_calls.append(calls)
            if ranked.cp_rank is not None:
                covered.add(shard)
            ranks.add(ranked, {NEW_LOG_PROB: calls.new_log_prob})
        training = ranks.training()
        self.note_count(COPIES, ranks.copies)
        if not is_matched:
            self.note(MISMATCH)
            training.log_prob.clear()
        elif all_calls:
            self._set_proximal_policy(training, all_calls)
        else:
            self._reuse_old_log_probs(training)
        if not training.updates:
            self._without_updates(training)
        return training

    def texts(self, step: int) -> Mapping[int, Mapping[str, Any]]:
        """Conversations of trajectory/{step}.jsonl; only samples that have one are in it."""
        file = self.folder / "trajectory" / f"{step}.jsonl"
        if not file.exists():
            return {}
        lines = files.json_objects(file)
        return {line["sample_index"]: line for line in lines if isinstance(line.get("sample_index"), int)}

    def _set_proximal_policy(self, training: Training, all_calls: Sequence[RankCalls]) -> None:
        """Make log_prob_old what the trainer's ratio compares with."""
        proximal: set[str] = set()
        for calls in all_calls:
            proximal |= calls.proximal
        if SAMPLER in proximal:
            self.note(RATIO_TO_SAMPLER)
            for row in training.rows:
                if "log_prob_behaviour" in row.columns:
                    row.columns["log_prob_old"] = row.columns["log_prob_behaviour"]
        if ITSELF in proximal:
            self.note(RATIO_TO_ITSELF)
            for number, values in training.log_prob.items():
                training.rows[number].columns["log_prob_old"] = values

    def _reuse_old_log_probs(self, training: Training) -> None:
        self.note(NO_CALLS)
        if len(training.updates) != 1:
            return
        for row in training.rows:
            if "log_prob_old" in row.columns:
                row.columns["log_prob"] = row.columns["log_prob_old"]

    def _without_updates(self, training: Training) -> None:
        self.note(NO_UPDATES)
        for number, values in training.log_prob.items():
            training.rows[number].columns["log_prob"] = values
        training.log_prob.clear()


def _shard_of(ranked: RankFile) -> tuple[object, ...]:
    """The same for ranks of tensor parallelism, which hold copies of rows and slices."""
    return (str(ranked.columns.get("sample_indices", ranked.rank)), ranked.cp_rank)
