"""The recorder: a step's evidence in, rows of the run's tables out, collapse and alarms judged on the way."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sorl.collapse.events import GUARD_RULES, Event, Rule, RuleWatch, alarms
from sorl.collapse.rule import Watch
from sorl.measures import CATALOGUE, measure
from sorl.measures.declare import dictionary
from sorl.measures.evidence import Evidence, Known, Rollouts, StepEvidence
from sorl.recording.ledger import MB as MB
from sorl.recording.ledger import encode
from sorl.recording.segments import SegmentWriter, chosen, filled
from sorl.recording.transcripts import transcript_rows
from sorl.spec import BATCH_FOLDER, BATCH_FORMAT, BatchesSettings, RunSettings

# Wall times and memory differ from session to session, so no watch may see them.
TIMED = ("seconds_", "tokens_per_second", "memory_")
MEASURED = (
    "log_prob_behaviour",
    "log_prob_old",
    "log_prob",
    "entropy",
    "gradient_weight",
    "advantages",
    "values_old",
    "route_mismatch",
    "route_shift",
)
PLAIN = ("mask", "turn", "active_low", "active_high")
COLUMN = {"advantages": "advantage", "values_old": "value"}  # of table token, where its name is another
FALLS = ("collapse", "mild")  # events that come some steps after the onset that they report

Decode = Callable[[list[int]], Sequence[str]]
log = logging.getLogger("sorl.recording")


class Recorder:
    """Writes one run down, and keeps what its watches have seen.

    Without a folder it measures, and writes nothing. Call `flush()` before a checkpoint is written: rows
    older than a checkpoint are not measured again on resume. `decode` turns token ids into texts (NULL
    without it); `group` is how many episodes of a step share a prompt; `band_rules` are those of a baseline
    (`sorl.collapse.band`).
    """

    def __init__(
        self,
        folder: Path | None,
        run_id: str,
        settings: RunSettings,
        decode: Decode | None = None,
        group: int = 1,
        band_rules: Iterable[Rule] = (),
    ) -> None:
        self.run_id = run_id
        self.settings = settings
        self.decode = decode
        self.group = group
        # behind a step's success; None: it is another score
        self.episodes: int | None = settings.learn.episodes
        self._writer = SegmentWriter(folder, settings.record.flush_seconds) if folder else None
        self._box = BlackBox(folder, settings.record.batches)
        self._band_rules = tuple(band_rules)
        self.replay([])
        self.raised: list[Event] = []  # events of the last step
        self._seconds: float | None = None
        self._boxed = 0.0  # seconds that the batch of this step took
        if self._writer and not self._writer.files("diagnostic"):
            self.rows("diagnostic", dictionary(CATALOGUE))

    def rows(self, table: str, columns: Mapping[str, Any]) -> None:
        """Append rows to `table`: lists or arrays of one length, scalars for constants, absent columns NULL.

        The run's id and the time are filled in. Raises KeyError for a column that the table does not have.
        """
        if self._writer:
            self._writer.append(table, filled(self.run_id, table, columns))

    def batch(self, step: int, packed: tuple[Mapping[str, np.ndarray], Mapping[str, Any]] | None) -> None:
        """Keep the arrays and metadata of the training batch of `step` in the black box; None:
        there is none.
        """
        began = time.perf_counter()
        if packed is not None:
            arrays, meta = packed
            used = np.flatnonzero(np.bincount(arrays["tokens"].ravel())).tolist()
            texts = dict(zip(used, self.decode(used), strict=True)) if self.decode else {}
            self._box.write(step, arrays, {**meta, "texts": texts})
        self._boxed = time.perf_counter() - began

    def step(
        self, step: int, evidence: StepEvidence, evaluations: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float | None]:
        """Measure and write down one step and the events that it raises; returns its row of table `step`."""
        began = time.perf_counter()
        if self._seconds is not None:
            evidence = replace(evidence, seconds={"record": self._seconds, **evidence.seconds})
        measured = measure(step, evidence)
        turns = measured.turn
        share = self.settings.record.turns
        if turns and share < 1.0:  # the turns of a share of the trajectories, spread evenly over the batch
            index = turns["trajectory"]
            keep = ((index + 1) * share).astype(int) > (index * share).astype(int)
            turns = {
                name: column if column is None else chosen(column, keep) for name, column in turns.items()
            }
        trained = evidence.trained or evidence.rollouts
        tables: dict[str, Mapping[str, Any]] = vars(measured) | {"turn": turns}
        rows = sample(
            step, self.settings.record.tokens, with_tokens(trained), measured.trajectory["gradient_share"]
        )
        if rows:
            tables |= {"token": token_rows(rows, trained, evidence.updates, self.decode)}
        most_tokens = self.settings.record.transcript_tokens
        if self._writer:
            tables |= {"transcript": transcript_rows(step, trained, self.decode, most_tokens, rows)}
        self._write(step, {table: columns for table, columns in tables.items() if columns})
        self.evaluations(step, evaluations)
        self.raised = self._see(step, measured.step, evidence.mismatches or ())
        self.events(self.raised)
        self._seconds = time.perf_counter() - began + self._boxed
        return measured.step

    def _write(self, step: int, tables: Mapping[str, Mapping[str, Any]]) -> None:
        for table, columns in tables.items():
            self.rows(table, {"step": step, **columns})

    def evaluations(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the held-out evaluations of the policy before `step`, all of them in one call."""
        if rows:
            self.rows("evaluation", {"step": step, **_columns_of(rows, rows[0])})

    def events(self, events: Sequence[Event]) -> None:
        """Append events to table `event`."""
        if events:
            self.rows("event", _columns_of([vars(event) for event in events], Event.__dataclass_fields__))

    def diverged(self, step: int, message: str) -> None:
        """Record that the run could not continue after `step`; its outcome is diverged."""
        self.events([self.watch.crashed(step, message)])

    @property
    def falling(self) -> set[int]:
        """Steps around the onset of a fall that was called, or that may be under way."""
        return self._box.fell | self._box.brink

    def run(
        self,
        identity: Mapping[str, Any],
        status: str,
        reason: str | None,
        *,
        steps: int,
        seconds: float | None,
    ) -> None:
        """Write the row of table `run`: its unchanging columns `identity`, and what the collapse rule says so
        far.
        """
        ended = None if status == "running" else datetime.now(UTC).replace(tzinfo=None)
        state = {"status": status, "reason": reason, "ended_at": ended, "steps": steps, "seconds": seconds}
        row = {**identity, **state, **self.verdict(final=status == "finished")}
        self.rows("run", {name: [value] for name, value in row.items()})
        self.flush()

    def verdict(self, final: bool = True) -> dict[str, Any]:
        """Return the verdict as columns of table `run`; before the end only collapsed and diverged are
        outcomes.
        """
        columns = self.watch.verdict.columns()
        settled = final or columns["outcome"] in ("collapsed", "diverged")
        return columns if settled else columns | {"outcome": None}

    def replay(self, history: Sequence[Mapping[str, float | None]]) -> None:
        """Restore the watches of a checkpoint: show them its `history` again, without writing
        events twice.
        """
        self.history: list[dict[str, float | None]] = []  # what the watches saw, a row per step; JSON-able
        self.watch = Watch(self.settings.collapse, self.episodes, self.group)
        self._rules = RuleWatch((*alarms(CATALOGUE), *GUARD_RULES, *self._band_rules))
        self._box.forget()
        for row in history:
            self._see(int(row["step"] or 0), {k: v for k, v in row.items() if k != "step"})

    @property
    def onset(self) -> int | None:
        """The step after which a fall began, as far as the collapse rule knows."""
        columns = self.watch.verdict.columns()
        for name in ("onset_low", "collapse_step"):
            step = columns.get(name)
            if isinstance(step, int):
                return step
        return None

    @property
    def recorded(self) -> int:
        """The last step whose rows were on the disk when this session began, -1 without one."""
        return self._writer.last_step("step") if self._writer else -1

    def started_at(self) -> datetime | None:
        """When training of this run first began, from its own segments; None when they do not say."""
        for file in self._writer.files("run") if self._writer else ():
            first: datetime | None = pc.min(pq.read_table(file, columns=["started_at"])["started_at"]).as_py()
            if first is not None:
                return first
        return None

    def flush(self) -> bool:
        """Write what is buffered; False when the disk refused (the rows are kept for the next try)."""
        return self._writer is None or self._writer.flush()

    def close(self) -> None:
        """Write what is left. Raises InputError when the disk refused to the end."""
        if self._writer:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _see(
        self, step: int, row: Mapping[str, float | None], mismatches: Sequence[tuple[int, int]] = ()
    ) -> list[Event]:
        seen = {k: v for k, v in row.items() if v is not None and not k.startswith(TIMED)}
        self.history.append({"step": step, **seen})
        events = [*self.watch.step(step, seen), *self._rules.step(step, seen, mismatches)]
        self._box.see(step, events, self.watch.brink)
        return events


def with_tokens(rollouts: Rollouts) -> Sequence[int]:
    """Trajectories of which a token could be kept: all of them, but for those whose tokens were left out."""
    if rollouts.tokens is None:
        return range(len(rollouts))
    return [number for number, ids in enumerate(rollouts.tokens) if len(ids)]


def sample(step: int, count: int, candidates: Sequence[int], gradient_share: np.ndarray | None) -> list[int]:
    """`count` of the candidate trajectories: the one with the largest share of the gradient, and others in
    turn, step by step.
    """
    n = len(candidates)
    if count <= 0 or n == 0:
        return []
    culprit = [] if gradient_share is None else [int(np.argmax(np.ma.filled(gradient_share, -1.0)))]
    others = [candidates[(step * max(1, count - 1) + j) % n] for j in range(n)]
    return [*culprit, *[i for i in others if i not in culprit]][:count]


def token_rows(
    trajectories: Sequence[int], rollouts: Rollouts, updates: Evidence | None, decode: Decode | None
) -> dict[str, Any]:
    """Columns of table `token` for some trajectories, measured in the last update that trained on each.

    `worst_*` are measured in the one with the largest sum of |gradient_weight| over the trajectory. What is
    measured on trained tokens only is NULL elsewhere; what no update trained on is NULL throughout. No rows
    without token ids.
    """
    if rollouts.tokens is None:
        return {}
    rows = [_token_row(i, rollouts, updates) for i in trajectories]
    columns: dict[str, Any] = _columns_of(rows, dict.fromkeys(chain.from_iterable(rows)))
    columns["token"] = [list(decode(ids)) if decode is not None else None for ids in columns["token_id"]]
    return columns


def _columns_of(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, list[Any]]:
    """The rows as columns of these names; None where a row lacks one."""
    columns = {}
    for name in names:
        columns[name] = [row.get(name) for row in rows]
    return columns


def _token_row(i: int, rollouts: Rollouts, updates: Evidence | None) -> dict[str, Any]:
    """Row of table `token` for trajectory `i`."""
    ids = np.asarray(Known(rollouts).tokens[i]).tolist()
    row: dict[str, Any] = {"trajectory": i, "token_id": ids}
    if updates is None:
        return row
    places = (updates.trajectory == i).nonzero().tolist()  # (update, row of it)
    if not places:
        return row
    passes = [_tokens_at(place, updates, len(ids)) for place in places]
    last = passes[-1]
    for name, values in _trained_columns(last, MEASURED).items():
        row[COLUMN.get(name, name)] = values
    row["trained"] = last["mask"].tolist()
    row["turn_index"] = last["turn"].tolist()
    if updates.gradient_weight is None:
        return row
    worst = _heaviest(passes)
    for name, values in _trained_columns(passes[worst], ("gradient_weight",)).items():
        row[f"worst_{name}"] = values
    row["worst_epoch"] = int(updates.epoch[places[worst][0]])
    return row


def _tokens_at(place: Sequence[int], updates: Evidence, length: int) -> dict[str, np.ndarray]:
    """What an update saw of one trajectory, (length,) each; `place`: the update, and its row."""
    arrays = {}
    for name in (*MEASURED, *PLAIN):
        tensor = getattr(updates, name)
        if tensor is not None:
            values = tensor[place[0], place[1], :length].detach().cpu()
            arrays[name] = np.asarray((values.double() if values.is_floating_point() else values).numpy())
    return arrays


def _trained_columns(arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, list[Any]]:
    """Columns of these names, the log-ratio, and whether a token was clipped; NULL off the loss mask.

    Only what was measured becomes a column.
    """
    measured = dict(arrays)
    if "log_prob" in arrays and "log_prob_old" in arrays:
        measured["log_ratio"] = arrays["log_prob"] - arrays["log_prob_old"]
    columns = {}
    for name in (*names, "log_ratio"):
        if name in measured:
            columns[name] = np.ma.array(measured[name], mask=~arrays["mask"]).tolist()
    if "active_low" in arrays:
        clipped = arrays["mask"] & (arrays["active_low"] | arrays["active_high"])
        columns["clipped"] = clipped.tolist()
    return columns


def _heaviest(passes: Sequence[Mapping[str, np.ndarray]]) -> int:
    """Index of the pass with the largest sum of |gradient_weight|; one that is no number is the largest."""
    sums = [np.abs(arrays["gradient_weight"][arrays["mask"]]).sum() for arrays in passes]
    return int(np.nan_to_num(sums, nan=np.inf, posinf=np.inf).argmax())


class BlackBox:
    """Training batches on the disk, of the last steps, of every n-th, and of those before an event; none
    without one.

    What is known at a step decides what is deleted, so a resumed run keeps what an uninterrupted one would
    have kept. Files `folder/batches/NNNNNN.safetensors` are written to another name and renamed; the disk
    never stops a run.
    """

    def __init__(self, folder: Path | None, settings: BatchesSettings) -> None:
        self.folder = folder and folder / BATCH_FOLDER
        self.settings = settings
        self._warned = set[str]()
        self.forget()
        with suppress(OSError):
            for unfinished in self.folder.glob(".*.writing") if self.folder else ():
                unfinished.unlink(missing_ok=True)

    def forget(self) -> None:
        """Forget all events; `see` is shown them again after a resume."""
        self._alarmed: set[int] = set()  # the steps before an event
        self.fell: set[int] = set()  # the steps of a fall, from its onset on
        self.brink: set[int] = set()  # the steps around the onset of a fall that may be under way

    def write(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Keep the batch of `step`, after making room for it, unless it is too large or the disk refuses."""
        if self.folder is None:
            return
        data = encode({"format": BATCH_FORMAT, "step": step, **meta}, arrays)
        if len(data) > self.settings.mb * MB:
            size = f"{len(data) / MB:.0f} MB"
            self._warn_once("large", f"a batch of {size} is not kept: record.batches.mb = {self.settings.mb}")
            return
        unfinished = self.folder / f".{step:06d}.writing"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            files = [file for file in self.folder.glob("[0-9]*.safetensors") if file.stem.isdigit()]
            sizes = {int(file.stem): file.stat().st_size for file in files} | {step: len(data)}
            for old in doomed(sizes, step, self._alarmed, self.fell | self.brink, self.settings):
                (self.folder / f"{old:06d}.safetensors").unlink(missing_ok=True)
            unfinished.write_bytes(data)
            os.replace(unfinished, self.folder / f"{step:06d}.safetensors")
        except OSError as error:
            self._warn_once("disk", f"cannot store batches, training continues without them: {error}")
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def see(self, step: int, events: Iterable[Event], brink: int | None) -> None:
        """Pin what `events` of `step` make worth keeping; `brink` is where a fall that is under way began."""
        before = self.settings.before
        self.brink = set() if brink is None else set(range(brink - before, brink + before + 1))
        for event in (event for event in events if event.severity != "info"):
            leading = set(range(event.step - before, event.step + 1))
            self._alarmed |= leading
            self.fell |= self.brink | leading if event.kind in FALLS else set()

    def _warn_once(self, cause: str, text: str) -> None:
        if cause not in self._warned:
            log.warning("%s", text)
        self._warned.add(cause)


def doomed(
    sizes: Mapping[int, int], now: int, alarmed: set[int], fell: set[int], settings: BatchesSettings
) -> set[int]:
    """Return the stored steps (`sizes`, bytes) to remove: those that no setting keeps, and those over the
    cap.

    Over the cap, the every-n-th go first, such that the others stay evenly spread, then the latest alarms
    (the first ones tell most), then the oldest of the last steps, then the steps of falls; step `now` stays.
    """
    every = {step: step // settings.every for step in sizes if settings.every and step % settings.every == 0}
    ranks = {step: (0, (n & -n).bit_length() if n else 64, step) for step, n in every.items()}
    ranks |= {step: (1, 0, -step) for step in sizes.keys() & alarmed}
    ranks |= {step: (2, 0, step) for step in sizes if step > now - settings.last}
    ranks |= {step: (3, 0, step) for step in sizes.keys() & fell} | {now: (4, 0, now)}
    gone = sizes.keys() - ranks.keys()
    left = sum(sizes[step] for step in ranks)
    for step in sorted(ranks.keys() - {now}, key=ranks.__getitem__):
        if left > settings.mb * MB:
            gone.add(step)
            left -= sizes[step]
    return gone
