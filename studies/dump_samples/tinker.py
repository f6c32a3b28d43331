"""Captures and summaries of tinker-cookbook: `python -m studies.dump_samples.tinker SOURCES FOLDER`.

SOURCES holds the wheel `tinker_cookbook-0.6.1` (Apache-2.0), unpacked. `serialize_rollout_summaries` wrote
the summaries, `instrument_tinker` with `CaptureExporter` and `JsonlFileSink` the records, over a stand-in for
tinker's client, and `wire_rows_from_sample_record` with `CaptureDB` the store.

Iterations 1 to 3. The second group of each was sampled by the weights of an iteration before. The last turn
of the first rollout of iteration 2 has a prompt that does not go on from the tokens before. One call failed,
and one is of an evaluation. The store holds a second run.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from studies.dump_samples.episodes import Episode, episodes
from studies.dump_samples.trainer_source import load_function, stand_in

ITERATIONS = (1, 2, 3)
RUN = "run-a"
TEMPERATURE = 0.75
NEW_PROMPT = [701, 702, 703]  # after the history was rewritten
NEW_TURN = [711, 712]
NEW_LOG_PROBS = [-0.5, -0.25]


@dataclass(frozen=True)
class Call:
    """One call of the sampler."""

    prompt: list[int]
    tokens: list[int]
    log_probs: list[float]


@dataclass(frozen=True)
class Rollout:
    """An episode at its place in an iteration."""

    iteration: int
    trajectory: int  # in the group
    episode: Episode

    @property
    def version(self) -> int:
        """The iteration whose weights sampled it."""
        return self.iteration - self.episode.group

    @property
    def is_rewritten(self) -> bool:
        """Whether a last turn has another history."""
        return self.iteration == 2 and self.episode.group == 0 and self.trajectory == 0

    def calls(self) -> list[Call]:
        """A call a turn."""
        calls = []
        start = 0
        for end in self.episode.turn_ends:
            begin = start + self.episode.written[start:end].index(1)
            prompt = self.episode.prompt + self.episode.response[:begin]
            calls.append(Call(prompt, self.episode.response[begin:end], self.episode.behaviour[begin:end]))
            start = end
        if self.is_rewritten:
            calls.append(Call(NEW_PROMPT, NEW_TURN, NEW_LOG_PROBS))
        return calls


def truth() -> dict[int, list[Rollout]]:
    """The rollouts of each iteration."""
    rollouts: dict[int, list[Rollout]] = {}
    for iteration in ITERATIONS:
        counts = [0, 0]
        rollouts[iteration] = []
        for episode in episodes(iteration):
            rollouts[iteration].append(Rollout(iteration, counts[episode.group], episode))
            counts[episode.group] += 1
    return rollouts


# Summaries


def summary_records(serialize: Any, iteration: int, rollouts: list[Rollout]) -> list[dict[str, Any]]:
    """Summaries of an iteration as the trainer makes them."""
    groups = []
    for number in (0, 1):
        members = [rollout for rollout in rollouts if rollout.episode.group == number]
        rewards = [rollout.episode.reward for rollout in members]
        groups.append(
            SimpleNamespace(
                trajectories_G=[_trajectory(rollout) for rollout in members],
                final_rewards_G=rewards,
                metrics_G=[{"correct": reward} for reward in rewards],
                get_total_rewards=lambda rewards=rewards: rewards,
            )
        )
    records: list[dict[str, Any]] = serialize(
        split="train",
        iteration=iteration,
        trajectory_groups_P=groups,
        taglist_P=[["math"], ["math"]],
        sampling_client_steps_P=[iteration, iteration - 1],
    )
    return records


def _trajectory(rollout: Rollout) -> SimpleNamespace:
    calls = rollout.calls()
    transitions = [
        SimpleNamespace(
            ob=SimpleNamespace(length=len(call.prompt)),
            ac=SimpleNamespace(tokens=call.tokens),
            reward=0.0,
            episode_done=call is calls[-1],
            metrics={},
            logs={},
        )
        for call in calls
    ]
    last = SimpleNamespace(length=len(calls[-1].prompt) + len(calls[-1].tokens))
    return SimpleNamespace(transitions=transitions, final_ob=last)


# Capture


class SamplingClient:
    """Stands in for tinker's: it answers with the next call of the rollout."""

    _sampling_session_id = "session"

    def __init__(self, version: int, answers: Iterator[Call]) -> None:
        self.model_path = f"tinker://model/sampler_weights/{version:06d}"
        self._answers = answers

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Future[Any]:
        """One sequence, or an error where there is no more."""
        future: Future[Any] = Future()
        call = next(self._answers, None)
        if call is None:
            future.set_exception(TimeoutError("no answer"))
            return future
        sequence = SimpleNamespace(tokens=call.tokens, logprobs=call.log_probs, stop_reason="stop")
        future.set_result(SimpleNamespace(sequences=[sequence]))
        return future

    async def sample_async(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        """The same for the event loop."""
        return self.sample(prompt, num_samples, sampling_params).result()


class TrainingClient:
    """Stands in for tinker's, which the capture wraps as well."""

    def forward_backward(self) -> None:
        """Not called."""

    def optim_step(self) -> None:
        """Not called."""

    def save_weights_for_sampler(self) -> None:
        """Not called."""


class Storage:
    """Appends to files below a folder, as tinker_cookbook's LocalStorage does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, path: str, data: bytes) -> None:
        """Append to a file."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as handle:
            handle.write(data)


def capture_all(folder: Path) -> None:
    """Sample every rollout under the capture, which writes its records below `folder`."""
    export = importlib.import_module("tinker_cookbook.capture.exporter")
    instrument = importlib.import_module("tinker_cookbook.capture.instrument")
    capture = importlib.import_module("tinker_cookbook.capture.scope").capture
    exporter = export.CaptureExporter(export.JsonlFileSink(Storage(folder)))
    instrument.instrument_tinker(exporter)
    for iteration, rollouts in truth().items():
        for rollout in rollouts:
            place = {"group_idx": rollout.episode.group, "traj_idx": rollout.trajectory}
            with capture(run_id=RUN, split="train", iteration=iteration, **place):
                _sample_rollout(rollout)
    with capture(run_id=RUN, iteration=3, group_idx=0, traj_idx=0):
        _sample(SamplingClient(3, iter(())), [1, 2, 3])
    with capture(run_id=RUN, iteration=3, group_idx=0, traj_idx=0, purpose="eval"):
        _sample(SamplingClient(3, iter([Call([], [5], [-0.5])])), [1, 2, 3])
    instrument.uninstrument_tinker()
    exporter.wait_pending(5)
    exporter.shutdown()


def _sample_rollout(rollout: Rollout) -> None:
    calls = rollout.calls()
    client = SamplingClient(rollout.version, iter(calls))
    for call in calls:
        _sample(client, call.prompt)


def _sample(client: SamplingClient, prompt: list[int]) -> None:
    settings = SimpleNamespace(max_tokens=64, temperature=TEMPERATURE, top_p=1.0, top_k=-1, seed=None)
    client.sample(SimpleNamespace(to_ints=lambda: prompt), 1, settings)


def write_store(cookbook: Path, records: Path, file: Path) -> None:
    """The same records as rows of the store, behind those of another run."""
    columns = ("run_id", "run_attempt", "split", "iteration", "group_idx", "traj_idx", "purpose")
    names = {"_SCOPE_COLUMNS": columns, "CaptureRecord": dict, "JsonDict": dict, "Any": Any}
    client = cookbook / "capture" / "store" / "client.py"
    wire_rows = load_function(client, "wire_rows_from_sample_record", names)
    store = importlib.import_module("tinker_cookbook.capture.store.db").CaptureDB(file)
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    other = lines[0] | {"scope": {"run_id": "run-before"}, "seq_id": 1}
    for record in [other, *lines]:
        store.ingest_wire(wire_rows(record))
    store._conn.execute("PRAGMA journal_mode=DELETE")  # one file, without the log beside it
    store.close()


def stand_in_for_tinker(cookbook: Path) -> None:
    """The modules that the capture and the summaries import."""
    stand_in("tinker", SamplingClient=SamplingClient, TrainingClient=TrainingClient)
    for name in ("", ".capture", ".rl", ".stores", ".utils", ".capture.store"):
        stand_in(f"tinker_cookbook{name}", cookbook.joinpath(*name.split(".")))
    stand_in("tinker_cookbook.rl.types", TrajectoryGroup=object)
    stand_in("tinker_cookbook.utils.deprecation", deprecated=lambda **options: lambda function: function)
    stand_in("tinker_cookbook.utils.misc_utils", safezip=lambda *lists: zip(*lists, strict=True))
    stand_in("tinker_cookbook.utils.trace", _instrument_sdk_clients=lambda: None)


def main(sources: Path, folder: Path) -> None:
    """Write records and summaries to `files`, the store to `store`."""
    shutil.rmtree(folder, ignore_errors=True)
    cookbook = sources / "tinker_cookbook-0.6.1" / "tinker_cookbook"
    stand_in_for_tinker(cookbook)
    serialize = importlib.import_module("tinker_cookbook.rl.rollout_logging").serialize_rollout_summaries
    for iteration, rollouts in truth().items():
        records = summary_records(serialize, iteration, rollouts)
        file = folder / "files" / f"iteration_{iteration:06d}" / "train_rollout_summaries.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    capture_all(folder / "files")
    (folder / "store").mkdir()
    write_store(cookbook, folder / "files" / "capture" / "sample.jsonl", folder / "store" / "capture.sqlite")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
