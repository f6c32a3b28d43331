"""Traces of prime-rl, `monitors/file/traces/`: episodes, and what orchestrator and trainer told of them.

Three append-only streams are read side by side, a few steps at a time. The orchestrator says which traces
went into the batch of which step, with their advantages; the trainer says log-prob and entropy of each token
that its loss had, without a step. prime-rl writes them since #3444 (2026-09-01) in one file a stream, and
since #3465 in chunks; older versions write `token_exports/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sorl.importing.dumps.files import floats
from sorl.importing.dumps.json_streams import JsonStream, Record
from sorl.importing.dumps.prime_rl_annotations import (
    WINDOW,
    Annotation,
    Attempts,
    Shipment,
    Waiting,
    annotated_branches,
    read_annotation,
    seconds,
    shipped_step,
    trace_name,
)
from sorl.importing.dumps.prime_rl_episodes import Trace, traces_of_episode
from sorl.importing.dumps.prime_rl_steps import SizedTrace, StepBuilder
from sorl.importing.dumps.rows import Coverage, Dump, DumpStep, Sampler
from sorl.spec import InputError

ARRIVAL_SLACK = 60.0  # seconds by which the stream of episodes may be out of order
LINE_OF_EPISODE = b'{"id":'
LINE_OF_ANNOTATION = b'{"version":'

RESUMED = "Rollouts of steps that a resumed run did again: {}; those of the last attempt count."
LATE = "Rollouts of steps that were done again after they had been read: {}; the first reading stays."
REPEATED = "Annotations of a branch that came twice: {}; the newest counts."
TORN = "Lines that a crash cut off: {}; they are left out."
NOT_TRAINED_YET = "Steps at the end that were sent to the trainer and not trained: {}; they are left out."
ONE_UPDATE = "prime-rl trains each batch once and takes the sampler's log-probs as the old policy's."


class PrimeRlTraces(Dump):
    """Streams of episodes and annotations of one run."""

    trainer = "prime-rl"
    format = "traces"

    def __init__(self, folder: Path, sampler: Sampler) -> None:
        super().__init__(folder, sampler)
        root = folder / "monitors" / "file" / "traces"
        orchestrator = root / "annotations" / "orch"
        self._episodes = JsonStream(root / "stream", LINE_OF_EPISODE, self.note)
        self._shipping = JsonStream(orchestrator, LINE_OF_ANNOTATION, self.note)
        self._training = JsonStream(root / "annotations" / "trainer", LINE_OF_ANNOTATION, self.note)
        self._attempts = Attempts(JsonStream(orchestrator, LINE_OF_ANNOTATION, self.note))
        self._steps: dict[int, dict[str, Shipment]] = {}  # in flight, by trace
        self._step_of: dict[str, int] = {}  # of the traces in flight
        self._traces: Waiting[SizedTrace] = Waiting()
        self._annotations: Waiting[dict[int, Annotation]] = Waiting()
        self._overtaken: set[str] = set()  # traces of attempts that a resume did again
        self._shipping_records = 0
        self._done = -1  # the newest step that was gathered
        self._done_count = 0
        self._trainer_step = -1  # the newest step that the trainer has told something of
        self._is_live = False
        self._lost = Coverage()  # of annotations that waited in vain

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether the streams are below `folder`, the run's output."""
        root = folder / "monitors" / "file" / "traces"
        return JsonStream(root / "stream", LINE_OF_EPISODE, lambda sentence: None).exists

    def steps(self, after: int, *, is_live: bool = False) -> Iterator[DumpStep]:
        """Yield the steps after `after`. The streams are read once: what was yielded does not come again."""
        self._is_live = is_live
        if not self._shipping.exists:
            if is_live:
                return
            where = self.folder / "monitors/file/traces/annotations/orch"
            problem = "which says what was trained when; prime-rl writes it since September 2026 (#3444)"
            raise InputError(f"'{where}' is missing, {problem}")
        self.note(ONE_UPDATE)
        try:
            self._attempts.scan(is_live=is_live)
            while (number := self._next_number()) is not None and self._gather(number):
                step = self._finish(number, is_wanted=number > after)
                if step is not None:
                    yield step
        finally:
            self._close()

    def _close(self) -> None:
        torn = 0
        for stream in (self._episodes, self._shipping, self._training):
            stream.close()
            torn += stream.torn_lines
            stream.torn_lines = 0
        self.note_count(TORN, torn)

    # Reading forward

    def _next_number(self) -> int | None:
        self._read_shipments()
        return min(self._steps, default=None)

    def _gather(self, step: int) -> bool:
        """Read what belongs to a step. Answers whether that is all."""
        is_growing = True
        missing: set[tuple[str, int]] = set()
        while is_growing:
            known = len(self._steps[step])
            self._read_episodes(step)
            missing = self._read_annotations(step)
            self._read_shipments()  # a batch was written in full before the trainer could tell of it
            is_growing = len(self._steps[step]) > known
        if not self._is_live or self._trainer_step > step:
            return True
        is_trained = any(name in self._annotations for name in self._steps[step])
        return is_trained and not missing

    def _read_shipments(self) -> None:
        """Read what the orchestrator sent until enough steps are in flight."""
        while not self._steps or max(self._steps) < min(self._steps) + WINDOW - 1:
            record = self._shipping.read(is_live=self._is_live)
            if record is None:
                return
            self._shipping_records += 1
            step = shipped_step(record)
            if step is not None:
                self._take_shipment(trace_name(record), step, record)

    def _take_shipment(self, name: str, step: int, record: Record) -> None:
        if self._attempts.is_overtaken(self._shipping_records, step):
            self._overtaken.add(name)
            self._traces.take(name)
            self.note_count(RESUMED, 1 if record.value.get("branches") else 0)
            return
        if step <= self._done:  # an evaluation that took long, else a resume
            self.note_count(LATE, 1 if record.value.get("branches") else 0)
            return
        before = self._step_of.pop(name, None)
        if before is not None:
            del self._steps[before][name]
        advantages = {}
        for index, branch in annotated_branches(record):
            if branch.get("advantages") is not None:
                what = f"trace {name}, branch {index}: advantages"
                advantages[index] = floats(branch["advantages"], what, record.file)
        time = record.value["info"]["ship"].get("time")
        self._steps.setdefault(step, {})[name] = Shipment(seconds(time), advantages)
        self._step_of[name] = step
        self._overtaken.discard(name)

    def _read_episodes(self, step: int) -> None:
        """Read episodes until the traces of a step are there, or later ones come."""
        shipments = self._steps[step]
        missing = {name for name in shipments if name not in self._traces}
        times = [shipment.time for shipment in shipments.values() if shipment.time is not None]
        latest = max(times, default=np.inf) + ARRIVAL_SLACK
        arrival = -np.inf
        while missing and arrival <= latest:
            record = self._episodes.read(is_live=self._is_live)
            if record is None:
                return
            traces = list(traces_of_episode(record.value, record.file))
            for trace in traces:
                missing.discard(trace.rollout.trajectory)
                self._keep_trace(trace, record.size // len(traces))
                arrival = trace.arrival_time if trace.arrival_time is not None else arrival

    def _keep_trace(self, trace: Trace, size: int) -> None:
        name = trace.rollout.trajectory
        if name in self._overtaken:
            return
        if not trace.is_training:
            trace = Trace(trace.rollout, [], False, trace.arrival_time)
        tokens = sum(len(node.tokens) for node in trace.nodes)
        self._traces.put(name, SizedTrace(trace, size), tokens, self._done_count)

    def _read_annotations(self, step: int) -> set[tuple[str, int]]:
        """Read annotations until those of a step are there, or later ones come. Answers what is missing."""
        missing = self._branches_to_train(step)
        for name in self._steps[step]:
            for index in self._annotations.get(name) or ():
                missing.discard((name, index))
        while missing and self._trainer_step <= step:
            record = self._training.read(is_live=self._is_live)
            if record is None:
                break
            name = trace_name(record)
            if name in self._overtaken:
                continue
            self._trainer_step = max(self._trainer_step, self._step_of.get(name, -1))
            for index in self._keep_annotation(name, record):
                missing.discard((name, index))
        return missing

    def _branches_to_train(self, step: int) -> set[tuple[str, int]]:
        expected: set[tuple[str, int]] = set()
        for name, shipment in self._steps[step].items():
            sized = self._traces.get(name)
            if sized is None:
                expected.update((name, index) for index in shipment.advantages)
                continue
            for branch in sized.trace.branches():
                if branch.is_trainable and branch.to_train.any():
                    expected.add((name, branch.index))
        return expected

    def _keep_annotation(self, name: str, record: Record) -> list[int]:
        """Keep the branches of a record of the trainer; their numbers."""
        annotations = dict(self._annotations.get(name) or {})
        numbers = []
        for index, branch in annotated_branches(record):
            annotation = read_annotation(branch, f"trace {name}, branch {index}", record)
            if annotation is None:
                continue
            self.note_count(REPEATED, 1 if index in annotations else 0)
            annotations[index] = annotation
            numbers.append(index)
        tokens = sum(len(annotation.log_prob) for annotation in annotations.values())
        self._annotations.put(name, annotations, tokens, self._done_count)
        return numbers

    # A gathered step

    def _finish(self, number: int, *, is_wanted: bool) -> DumpStep | None:
        """The rows of a step that is complete; None where nothing was trained or it is not wanted."""
        shipments = self._steps.pop(number)
        self._done = number
        self._done_count += 1
        is_trained = any(name in self._annotations for name in shipments)
        builder = StepBuilder(self, number, self._lost, has_trainer=self._training.exists)
        self._lost = Coverage()
        for name, shipment in shipments.items():
            self._step_of.pop(name, None)
            builder.add(self._traces.take(name), shipment, self._annotations.take(name) or {})
        for _ in self._traces.expire(self._done_count):
            pass
        for branches in self._annotations.expire(self._done_count):
            for annotation in branches.values():
                self._lost.miss("no batch has its rollout", annotation.tokens)
        if not builder.traces or not is_wanted:
            return None
        if self._training.exists and not is_trained and number > self._trainer_step:
            self.note_count(NOT_TRAINED_YET, 1)
            return None
        return builder.step()
