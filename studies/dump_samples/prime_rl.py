"""Dumps of prime-rl in its four layouts: `python -m studies.dump_samples.prime_rl SOURCES FOLDER`.

SOURCES holds `PrimeIntellect-ai+prime-rl`, the repository at 559b447 (2026-08-21, Apache-2.0), the wheel
`verifiers-0.4.0` (MIT), unpacked, and `prime_rl_files`, single files of prime-rl from other commits:
`history_token_export_941019f2e.py`, and `new_*.py` of September 2026 (`traces/chunks.py` 551bfc3,
`traces/update.py` and `trainer/rl/annotations.py` 65a1848, `orchestrator/annotations.py`). It needs pyzstd.

- `rewards`: `TokenExporter.export` at 941019f2e, which still had rewards; two rollouts a step.
- `exports`: `TokenExporter.export` at 559b447, and episodes by `Episode.to_record` of verifiers.
- `single_files` (two rollouts a step) and `chunks`: episodes as before, `stamp_arrival`, `stamp_batch` and
  `AnnotationWriter`. Chunks are of `ChunkedJsonl`, sealed by it. The code that wrote single files was not to
  be had: the same records stand in them one a line, not rounded. Index files are left out: none is read.

Steps 2 and 3 of `chunks` were done twice, as by a run that crashed. The first trace of step 2 has two
branches, an evaluation runs beside it, and the first episode of step 1 has a second, untrained agent.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from studies.dump_samples.episodes import Episode, episodes
from studies.dump_samples.trainer_source import stand_in

STEPS_OF_LAYOUT = {"rewards": (1, 2), "exports": (1, 2), "single_files": (1, 2), "chunks": (1, 2, 3)}
SMALL_LAYOUTS = ("rewards", "single_files")  # with two rollouts a step
ENTROPY = 0.5  # of trained tokens
PROMPT_LOG_PROB = -2.5  # the trainer's, of tokens of the prompt
RUBBISH = -9.75  # what the exporter has at the first token of a sequence
FORK_OBSERVATION = [801, 802]
FORK_TURN = [901, 902]
FORK_BEHAVIOUR = [-0.5, -0.25]
FORK_OLD = [-0.75, -0.125]
CHUNK_BYTES = 4_500
NOW = 1_790_000_000.0  # seconds


@dataclass(frozen=True)
class Rollout:
    """A trace of the samples: an episode, its step and its name."""

    step: int
    number: int  # in the step
    episode: Episode
    attempt: int = 2  # of the step; the last is 2

    @property
    def name(self) -> str:
        """The id of the trace."""
        return f"trace-{self.step}-{self.number}" + ("-first" if self.attempt == 1 else "")

    @property
    def group(self) -> str:
        """The id of the group."""
        return f"group-{self.step}-{self.episode.group}"

    @property
    def policy(self) -> int:
        """Updates that the weights had seen that sampled it; the second group is a step late."""
        return max(0, self.step - 1 - self.episode.group)

    @property
    def version(self) -> int:
        """The step that trained these weights."""
        return self.policy + 1

    @property
    def has_fork(self) -> bool:
        """Whether a second branch leaves after the first turn."""
        return self.step == 2 and self.number == 0


def truth(layout: str) -> dict[int, list[Rollout]]:
    """The rollouts of each step, in the order in which they were trained."""
    batches = {step: rollouts_of(step) for step in STEPS_OF_LAYOUT[layout]}
    return first_pairs(batches) if layout in SMALL_LAYOUTS else batches


def rollouts_of(step: int, attempt: int = 2) -> list[Rollout]:
    """The rollouts of a step."""
    return [Rollout(step, number, episode, attempt) for number, episode in enumerate(episodes(step))]


def first_pairs(batches: dict[int, list[Rollout]]) -> dict[int, list[Rollout]]:
    """The first two rollouts of each step, which are of one group."""
    return {step: rollouts[:2] for step, rollouts in batches.items()}


def fork_tokens(rollout: Rollout) -> list[int]:
    """The tokens of the second branch."""
    first_turn = rollout.episode.response[: rollout.episode.turn_ends[0]]
    return rollout.episode.prompt + first_turn + FORK_OBSERVATION + FORK_TURN


@dataclass
class Pack:
    """Sequences that the trainer trains in one forward pass, one behind the other."""

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    behaviour: list[float] = field(default_factory=list)
    trainer: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    trace_ids: list[str] = field(default_factory=list)
    branch_indices: list[int] = field(default_factory=list)

    def add(self, rollout: Rollout) -> None:
        """Append a rollout's branches that the loss has."""
        episode = rollout.episode
        if not episode.is_in_loss:
            return
        self._append(rollout, 0, episode.tokens, episode.written, episode.behaviour, episode.old)
        if rollout.has_fork:
            tokens = fork_tokens(rollout)
            shared = episode.turn_ends[0]
            untrained = [0] * (shared + len(FORK_OBSERVATION))
            behaviour = [*episode.behaviour[:shared], 0.0, 0.0, *FORK_BEHAVIOUR]
            old = [*episode.old[:shared], PROMPT_LOG_PROB, PROMPT_LOG_PROB, *FORK_OLD]
            self._append(rollout, 1, tokens, [*untrained, 1, 1], behaviour, old)

    def _append(
        self,
        rollout: Rollout,
        branch: int,
        tokens: list[int],
        written: list[int],
        behaviour: list[float],
        old: list[float],
    ) -> None:
        prompt = len(tokens) - len(written)
        self.token_ids += tokens
        self.loss_mask += [False] * prompt + [bool(flag) for flag in written]
        self.advantages += [0.0] * prompt + [rollout.episode.advantage * flag for flag in written]
        self.behaviour += [0.0] * prompt + behaviour
        self.trainer += [RUBBISH, *[PROMPT_LOG_PROB] * (prompt - 1), *old]
        self.rewards += [rollout.episode.reward] * len(tokens)
        self.lengths.append(len(tokens))
        self.trace_ids.append(rollout.name)
        self.branch_indices.append(branch)

    def micro_batch(self) -> dict[str, Any]:
        """What the trainer hands to its writers, with two tokens of padding in the last sequence."""
        import torch

        padding = 2
        environments = ["math"] * len(self.token_ids) + [""] * padding
        return {
            "input_ids": torch.tensor([self.token_ids + [0] * padding]),
            "position_ids": torch.tensor([[*range(len(self.token_ids)), 0, 0]]),
            "loss_mask": torch.tensor([self.loss_mask + [False] * padding]),
            "advantages": torch.tensor([self.advantages + [0.0] * padding]),
            "inference_logprobs": torch.tensor([self.behaviour + [0.0] * padding]),
            "rewards": torch.tensor([self.rewards + [float("nan")] * padding]),
            "env_names": environments,
            "training_mode": "rl",
            "sequence_lengths": [*self.lengths[:-1], self.lengths[-1] + padding],
            "trace_ids": self.trace_ids,
            "branch_indices": self.branch_indices,
        }

    def model_output(self) -> dict[str, Any]:
        """Log-probs and entropies of the forward pass."""
        import torch

        log_probs = torch.tensor([[*self.trainer, 0.0, 0.0]])
        return {"logprobs": log_probs, "entropy": torch.full_like(log_probs, ENTROPY)}


def packs_of(rollouts: Sequence[Rollout]) -> list[Pack]:
    """Two packs, one for each rank."""
    packs = [Pack(), Pack()]
    for rollout in rollouts:
        packs[rollout.episode.group].add(rollout)
    return [pack for pack in packs if pack.token_ids]


# The trainer's code


def load_module(name: str, file: Path) -> ModuleType:
    """A source file as a module of that name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def stand_in_for_prime_rl() -> None:
    """The modules that prime-rl's writers import."""
    for name in ("", ".configs", ".trainer", ".trainer.rl", ".monitors", ".monitors.file"):
        stand_in(f"prime_rl{name}")
    stand_in("prime_rl.monitors.file.traces")
    stand_in("prime_rl.monitors.base", Kind=str)
    loss_config = type("DefaultLossConfig", (), {"dppo_mask_high": 0.2, "dppo_mask_low": 0.2})
    stand_in(
        "prime_rl.configs.trainer",
        DefaultLossConfig=loss_config,
        TrainerConfig=object,
        TokenExportConfig=object,
    )
    stand_in("prime_rl.trainer.rl.loss", compute_importance_ratio_and_mismatch_kl=_ratio)


def _ratio(trainer: Any, inference: Any) -> Any:
    log_ratio = trainer - inference
    ratio = log_ratio.exp()
    return log_ratio, ratio, ratio - log_ratio - 1


def load_verifiers(folder: Path) -> ModuleType:
    """verifiers' episodes, over stand-ins for what they import beside pydantic and numpy."""
    from pydantic import BaseModel, ConfigDict
    from typing_extensions import TypeVar

    class Loose(BaseModel):
        model_config = ConfigDict(extra="allow")

    def loose(name: str, base: type = Loose) -> Any:
        return type(name, (base,), {"__module__": __name__})

    agent = loose("AgentConfig")
    data = loose("TaskData")
    state = loose("State")
    globals().update(AgentConfig=agent, TaskData=data, State=state)
    stand_in("renderers")
    stand_in("renderers.base", RenderedTokens=object)
    stand_in("verifiers", folder / "verifiers", __version__="0.4.0")
    package = stand_in("verifiers.v1", folder / "verifiers" / "v1")
    stand_in("verifiers.v1.configs")
    stand_in("verifiers.v1.configs.agent", AgentConfig=agent, WireAgentConfig=loose("WireAgentConfig", agent))
    stand_in("verifiers.v1.runtimes", RuntimeInfo=loose("RuntimeInfo"))
    data_type = TypeVar("data_type", bound=BaseModel, default=data)  # type: ignore[valid-type]
    stand_in("verifiers.v1.task", DataT=data_type, TaskData=data, WireTaskData=loose("WireTaskData", data))
    error = type("ProviderError", (Exception,), {})
    stand_in("verifiers.v1.errors", ProviderError=error, stop_condition=lambda raised: None)
    stand_in("verifiers.v1.state", State=state, StateT=TypeVar("StateT", bound=BaseModel, default=state))
    stand_in("verifiers.v1.utils", folder / "verifiers" / "v1" / "utils")
    stand_in("verifiers.v1.utils.version", verifiers_commit=lambda: None)
    module = importlib.import_module("verifiers.v1.episode")
    package.Episode = module.Episode  # type: ignore[attr-defined]
    return module


# Episodes


def episode_of(rollout: Rollout, *, kind: str = "train", with_judge: bool = False) -> Any:
    """An episode of verifiers' classes."""
    module = importlib.import_module("verifiers.v1.episode")
    traces = [_trace(rollout, "solver", is_trainable=True)]
    if with_judge:
        judge = replace(rollout, number=90 + rollout.number)
        traces.append(_trace(judge, "judge", is_trainable=False))
    work_type = module.TrainWorkInfo if kind == "train" else module.EvalWorkInfo
    work = work_type(step=rollout.step, policy=module.PolicySpan(start=rollout.policy, end=rollout.policy))
    return module.Episode(
        id=f"episode-{rollout.name}",
        env=module.EnvInfo(id="math", name="math"),
        task=traces[0].task,
        group=module.GroupInfo(id=rollout.group),
        run=module.TrainRunInfo(id="run", work=work),
        ok=True,
        traces=traces,
    )


def _trace(rollout: Rollout, agent: str, *, is_trainable: bool) -> Any:
    module = importlib.import_module("verifiers.v1.trace")
    configs = importlib.import_module("verifiers.v1.configs.agent")
    tasks = importlib.import_module("verifiers.v1.task")
    prompt = f"question {rollout.episode.group}"
    nodes = _nodes(rollout, module.MessageNode)
    calls = [module.ModelCall(node=n, finish_reason="stop") for n, node in enumerate(nodes) if node.sampled]
    return module.Trace(
        id=rollout.name,
        task=module.TraceTask(type="Math", data=tasks.WireTaskData(prompt=prompt), key=rollout.group),
        agent=module.AgentInfo(config=configs.WireAgentConfig(), name=agent, trainable=is_trainable),
        nodes=nodes,
        calls=calls,
        rewards={
            "correct": module.Reward(score=rollout.episode.reward * 2, weight=0.5),
            "style": module.Reward(score=7.0, weight=0.0),
            "broken": None,
        },
        timing=module.Timing(start=NOW),
        is_completed=True,
        ok=True,
    )


def _nodes(rollout: Rollout, node_type: Any) -> list[Any]:
    """The messages: a question, then turns with what tools answered between them, and the fork."""
    types = importlib.import_module("verifiers.v1.types")
    episode = rollout.episode
    question = types.UserMessage(content=f"question {episode.group}")
    # The last token of the prompt is the scaffold of the first answer.
    nodes = [_message(node_type, question, episode.prompt[:-1])]
    starts = [0, *episode.turn_ends[:-1]]
    for turn, (start, end) in enumerate(zip(starts, episode.turn_ends, strict=True)):
        begin = start + episode.written[start:end].index(1)
        if turn:
            result = types.ToolMessage(content="a result", tool_call_id=f"call-{turn}")
            nodes.append(_behind(_message(node_type, result, episode.response[start:begin]), nodes))
        scaffold = [] if turn else episode.prompt[-1:]
        tokens = episode.response[begin:end]
        text = f"turn {turn + 1}"
        nodes.append(_behind(_answer(node_type, text, scaffold, tokens, episode.behaviour[begin:end]), nodes))
    if rollout.has_fork:
        nodes.append(_message(node_type, types.UserMessage(content="another try"), FORK_OBSERVATION))
        nodes[-1].parent = 1
        nodes.append(_behind(_answer(node_type, "fork", [], FORK_TURN, FORK_BEHAVIOUR), nodes))
    _complete(nodes, episode.advantage)
    return nodes


def _complete(nodes: list[Any], advantage: float) -> None:
    """What the orchestrator adds."""
    for node in nodes:
        node.timestamp = NOW
        if node.sampled:
            node.advantages = [advantage] * len(node.logprobs)


def _message(node_type: Any, message: Any, tokens: list[int]) -> Any:
    return node_type(message=message, token_ids=tokens, mask=[False] * len(tokens))


def _behind(node: Any, nodes: list[Any]) -> Any:
    node.parent = len(nodes) - 1
    return node


def _answer(node_type: Any, text: str, scaffold: list[int], tokens: list[int], log_probs: list[float]) -> Any:
    types = importlib.import_module("verifiers.v1.types")
    return node_type(
        message=types.AssistantMessage(content=text),
        sampled=True,
        token_ids=scaffold + tokens,
        mask=[False] * len(scaffold) + [True] * len(tokens),
        logprobs=log_probs,
    )


# Layouts


def write_exports(exporter: ModuleType, folder: Path, batches: dict[int, list[Rollout]]) -> None:
    """Token exports of two ranks by the exporter of that version."""
    loss = sys.modules["prime_rl.configs.trainer"].DefaultLossConfig()
    exporters = [exporter.TokenExporter(folder, rank) for rank in (0, 1)]
    for step, rollouts in batches.items():
        for rank, pack in enumerate(packs_of(rollouts)):
            batch = pack.micro_batch()
            exporters[rank].export(step, 0, batch, pack.model_output(), batch["sequence_lengths"], loss)
        for writer in exporters:
            writer.mark_stable()


def write_rollouts(folder: Path, batches: dict[int, list[Rollout]]) -> None:
    """Episodes of the batches as `FileMonitor.log_episodes` wrote them at 559b447."""
    for step, rollouts in batches.items():
        file = folder / "rollouts" / f"step_{step}" / "train" / "effective" / "traces.jsonl"
        file.parent.mkdir(parents=True)
        records = [episode_of(rollout).to_record(float_decimals=None) for rollout in rollouts]
        file.write_bytes(b"".join(_line(record) for record in records))


@dataclass
class TraceRecords:
    """The records of the three streams, in the order in which they are written."""

    episodes: list[dict[str, Any]] = field(default_factory=list)
    shipped: list[dict[str, Any]] = field(default_factory=list)
    trained: list[dict[str, Any]] = field(default_factory=list)


def trace_records(sources: Path, batches: Sequence[list[Rollout]], decimals: int | None) -> TraceRecords:
    """What orchestrator and trainer write of these batches, by their own code."""
    files = sources / "prime_rl_files"
    records = TraceRecords()
    load_module("prime_rl.monitors.file.traces.update", files / "new_traces_update.py")
    stamps = load_module("orchestrator_annotations", files / "new_orchestrator_annotations.py")
    stamps.time = SimpleNamespace(time=lambda: NOW + len(records.shipped))  # type: ignore[attr-defined]
    writer = _annotation_writer(files, records, decimals)
    for rollouts in batches:
        _write_batch(records, stamps, rollouts, decimals)
        for pack in packs_of(rollouts):
            masked = pack.micro_batch()["loss_mask"].long() - 1
            writer.export(pack.micro_batch(), pack.model_output(), {"is_masked": masked})
        writer.flush()
    return records


def _annotation_writer(files: Path, records: TraceRecords, decimals: int | None) -> Any:
    """The trainer's writer, whose records are kept."""

    async def log_annotations(updates: list[dict[str, Any]]) -> None:
        records.trained.extend(updates)

    sys.modules["prime_rl.monitors"].log_annotations = log_annotations  # type: ignore[attr-defined]
    sys.modules["prime_rl"].monitors = sys.modules["prime_rl.monitors"]  # type: ignore[attr-defined]
    trainer = load_module("trainer_annotations", files / "new_trainer_annotations.py")
    world = SimpleNamespace(world_size=1, rank=0)
    return trainer.AnnotationWriter(SimpleNamespace(cp_enabled=False), world, decimals)


def _write_batch(records: TraceRecords, stamps: Any, rollouts: list[Rollout], decimals: int | None) -> None:
    step = rollouts[0].step
    batch = [episode_of(rollout, with_judge=step == 1 and rollout.number == 0) for rollout in rollouts]
    stamps.stamp_arrival(batch, "train", step)
    evaluation = []
    if step == 2:
        evaluation.append(episode_of(replace(rollouts[1], number=50), kind="eval"))
        stamps.stamp_arrival(evaluation, "eval", step)
    for episode in batch + evaluation:
        bare = episode.model_copy(deep=True)
        for trace in bare.traces:
            for node in trace.nodes:
                node.advantages = None  # they come with the batch
        records.episodes.append(bare.to_record(float_decimals=decimals))
    records.shipped.extend(stamps.stamp_batch(batch, step))
    for episode in evaluation:
        for trace in episode.traces:
            for node in trace.nodes:
                node.advantages = None  # none in an evaluation
    records.shipped.extend(stamps.stamp_batch(evaluation, step))


def write_single_files(records: TraceRecords, folder: Path) -> None:
    """Streams as #3444 had them."""
    root = folder / "monitors" / "file" / "traces"
    (root / "annotations").mkdir(parents=True)
    (root / "stream.jsonl").write_bytes(b"".join(map(_line, records.episodes)))
    (root / "annotations" / "orch.jsonl").write_bytes(b"".join(map(_line, records.shipped)))
    (root / "annotations" / "trainer.jsonl").write_bytes(b"".join(map(_line, records.trained)))


def write_chunks(records: TraceRecords, folder: Path, chunks: ModuleType) -> None:
    """Streams as #3465 has them; the last chunk of each stays open, as after a crash."""
    root = folder / "monitors" / "file" / "traces"
    streams = {
        root / "stream": records.episodes,
        root / "annotations" / "orch": records.shipped,
        root / "annotations" / "trainer": records.trained,
    }
    for path, values in streams.items():
        stream = chunks.ChunkedJsonl(path, CHUNK_BYTES, True)
        for value in values:
            stream.append(_line(value))
        stream.flush()
        for thread in stream._sealing:
            thread.join()


def _line(record: dict[str, Any]) -> bytes:
    import orjson

    return orjson.dumps(record, default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)


def main(sources: Path, folder: Path) -> None:
    """Write all four layouts."""
    shutil.rmtree(folder, ignore_errors=True)
    stand_in_for_prime_rl()
    load_verifiers(sources / "verifiers-0.4.0")
    first = load_module("first_export", sources / "prime_rl_files" / "history_token_export_941019f2e.py")
    exporter = sources / "PrimeIntellect-ai+prime-rl" / "src/prime_rl/trainer/rl/token_export.py"
    write_exports(first, folder / "rewards", truth("rewards"))
    write_exports(load_module("last_export", exporter), folder / "exports", truth("exports"))
    write_rollouts(folder / "exports", truth("exports"))
    batches = list(truth("single_files").values())
    write_single_files(trace_records(sources, batches, None), folder / "single_files")
    first_attempts = [rollouts_of(1), rollouts_of(2, attempt=1), rollouts_of(3, attempt=1)]
    attempts = [*first_attempts, rollouts_of(2), rollouts_of(3)]
    chunks = load_module("chunks", sources / "prime_rl_files" / "new_traces_chunks.py")
    write_chunks(trace_records(sources, attempts, 4), folder / "chunks", chunks)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
