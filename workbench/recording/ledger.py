"""The recorder for any trainer: what an update saw goes in, the same tables come out as of our own trainer.

The trainer's process copies tensors to the host and queues them, nothing more. A thread sends them on: on the
first rank to a process that measures and writes (__main__.py, scribe.py), on every other rank to files that
this process reads and deletes. Once open, a ledger never raises and never blocks training: what cannot be
recorded is left out, with one warning.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import platform
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import wraps
from glob import escape
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count
from multiprocessing import Pipe
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self

import numpy as np
from safetensors.numpy import load, save

from sorl.recording.witness import Witness
from sorl.spec import BatchesSettings, InputError, nearest
from sorl.spec.files import lock_file
from sorl.spec.names import FolderName, folder_to_write, slug

MB = 10**6
NEWEST_GENERATION = 10_000  # a run's name is given that often, as name, name-g2, ...
PARTS = "parts"  # of the run's folder: what the other ranks saw, until it is measured
PATIENCE = 120.0  # seconds that `close` waits for the last step to be measured and written

# Of each token of an update, (B, T).
TOKENS = (
    "log_prob",
    "log_prob_old",
    "log_prob_behaviour",
    "log_prob_ref",
    "values",
    "values_old",
    "returns",
    "entropy",
)
# What only the trainer's own loss knows, (B, T): its pooled ratio, where its clip stopped the gradient, the
# factor of its stabiliser, the weight of its rollout correction, and d loss / d log-prob.
TERMS = (
    "ratio",
    "active_low",
    "active_high",
    "out_of_range",
    "dual",
    "factor",
    "correction",
    "corrected",
    "gradient_weight",
)
SUMMED = ("policy_loss", "kl_loss", "value_loss")  # over the parts of an update; then the mean over ranks
AVERAGED = ("clip_frac",)  # over the parts of an update: as trainers log what each micro-batch has of its own
SCALARS = (
    *SUMMED,
    *AVERAGED,
    "grad_norm",
    "grad_norm_after",
    "critic_grad_norm",
    "lr",
    "stabiliser_ratio",
    "stabiliser_factor",
)

log = logging.getLogger("sorl.recording")


@dataclass(frozen=True)
class Clip:
    """The range in which the trainer's clip leaves a ratio alone: `lower` is 1 - epsilon, `upper` 1 +
    epsilon.

    `dual`: bound c on the loss of negative advantages. `level`: the ratio is that of the token, or the
    geometric mean of its turn or sequence. `stops`: False for clips that bound a weight and stop no gradient
    (CISPO).
    """

    lower: float = 0.8
    upper: float = 1.2
    dual: float | None = None
    level: Literal["token", "turn", "sequence"] = "token"
    stops: bool = True


class _Session(NamedTuple):
    """What the first rank decides when recording begins, and tells the other ranks."""

    run_id: str
    began_ns: int  # names the folders of the other ranks
    refusal: str  # why the run cannot be recorded; empty: it can


@dataclass
class _Progress:
    """What was told of the present step so far."""

    trajectories: int = 0
    updates: int = 0
    sampling_seconds: float | None = None
    measured: np.ndarray | None = None  # which trajectories are measured; None: all


class _Message(NamedTuple):
    """What waits to be sent."""

    size: int  # bytes of the arrays
    meta: dict[str, Any]
    arrays: dict[str, Any]
    measured: np.ndarray | None  # trajectories of the step so far that are measured; None: all


class _Backlog:
    """Messages that wait to be sent, and a bound on their bytes: of all, and of one step."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.queue: queue.Queue[_Message | None] = queue.Queue()  # None ends the thread that sends
        self._waiting_bytes = 0
        self.step_bytes = 0  # of the present step so far, sent or not
        self._lock = threading.Lock()

    def admit(self, size: int) -> bool:
        """Count a message of so many bytes; False, and nothing is counted, where it is too much."""
        with self._lock:
            is_full = self._waiting_bytes + size > self.max_bytes or self.step_bytes + size > self.max_bytes
            if not is_full:
                self._waiting_bytes += size
                self.step_bytes += size
        return not is_full

    def fits_step(self, size: int) -> bool:
        """Whether one step may have that many more bytes."""
        return self.step_bytes + size <= self.max_bytes

    def release(self, size: int) -> None:
        """Count off a message that was sent."""
        with self._lock:
            self._waiting_bytes -= size

    def end_step(self) -> None:
        """Begin to count the bytes of another step."""
        with self._lock:
            self.step_bytes = 0


class _Vocabulary:
    """Token ids of what a trainer hands over, and the text of each id, said once."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}  # of trainers that hand over texts
        self._is_sent = np.zeros(0, dtype=bool)  # by token id: whether its text was sent

    def flatten(self, rows: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Lists of tokens as ids (M,) and lengths (N,)."""
        if _holds_texts(rows):
            rows = [self._number(row) for row in rows]
        lists = (row if isinstance(row, list | tuple) else _numpy(_host(row)) for row in rows)
        flat = [np.asarray(row, dtype=np.int32) for row in lists]
        ids = np.concatenate([*flat, np.zeros(0, np.int32)])
        return ids, np.array([len(row) for row in flat], dtype=np.int32)

    def new_texts(
        self, ids: np.ndarray, decode: Callable[[list[int]], Sequence[str]] | None
    ) -> dict[int, str]:
        """The texts of the ids that were not sent before; none where nobody can say them."""
        used = np.unique(ids)
        if len(used) and used[-1] >= len(self._is_sent):
            added = np.zeros(used[-1] + 1 - len(self._is_sent), dtype=bool)
            self._is_sent = np.concatenate([self._is_sent, added])
        new = used[~self._is_sent[used]].tolist()
        self._is_sent[new] = True
        if self._ids:
            texts = list(self._ids)
            return {token: texts[token] for token in new}
        if decode is not None and new:
            return dict(zip(new, decode(new), strict=True))
        return {}

    def _number(self, row: Sequence[str]) -> list[int]:
        """Ids of tokens that are handed over as texts; a text that is new gets the next id."""
        return [self._ids.setdefault(token, len(self._ids)) for token in row]


def _holds_texts(rows: Sequence[Any]) -> bool:
    """Whether tokens are handed over as texts: the first one says it for all."""
    return len(rows) > 0 and len(rows[0]) > 0 and isinstance(rows[0][0], str)


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def called(self: Ledger, *args: Any, **kwargs: Any) -> None:
        if not self.dead:
            with self.guarded(f"{method.__name__}()"):
                method(self, *args, **kwargs)

    return called


class Ledger:
    """Records one run of any trainer into `runs/<experiment>/<run>`; a context manager.

    A step is one batch of rollouts and the optimizer updates on it. Call `rollouts` once (or once for each
    part of the batch), `update` for every optimizer update (or for every micro-batch of it, with its `update`
    number), `end` after the last one. With several ranks every rank makes these calls for its own rows;
    `process_group` is the torch.distributed group of the ranks whose rows make up the batch (default: all).

    `settings`: what the trainer was configured with, as nested tables; runs of one experiment with equal
    settings are replicates. `iterations`: planned steps. `replay_as`: the algorithm in our words, a name or
    {base, slot, ...}, where `algorithm` is not one; `undeclared`: slots of it that are only a guess, to which
    an audit must not hold the run. `clip`: the trainer's clip; None = not known, and clip
    fractions are NULL. `decode` turns token ids into texts, in another thread. `resume`: continue the newest
    run of the same settings, or `run`; steps that it already has are not recorded twice.

    `witnesses` = False: calls of `weights` do nothing.

    What limits the cost: `every` n-th step, and those around an alarm, keep the rows of trajectories, turns
    and tokens; about so many `trajectories` of a step are measured, whole prompt groups (None = all); so many
    of them with every token (`tokens`); `batches`: the black box; `memory_mb` that may wait to be sent.

    Raises InputError for a run that another process is recording, and for names that no folder can have.
    """

    def __init__(
        self,
        runs: str | Path,
        *,
        experiment: str,
        algorithm: str,
        settings: Mapping[str, Any] | None = None,
        arm: str | None = None,
        seed: int = 0,
        run: str | None = None,
        resume: bool = False,
        iterations: int | None = None,
        replay_as: str | Mapping[str, Any] | None = None,
        undeclared: Sequence[str] = (),
        clip: Clip | None = None,
        temperature: float = 1.0,
        decode: Callable[[list[int]], Sequence[str]] | None = None,
        every: int = 1,
        trajectories: int | None = None,
        tokens: int = 2,
        batches: BatchesSettings | None = None,
        memory_mb: int = 1024,
        witnesses: bool = True,
        process_group: Any = None,
        trainer: str = "",
    ) -> None:
        _check_limits(every, trajectories, tokens)
        plain: dict[str, Any] = json.loads(json.dumps(dict(settings or {}), default=str))
        config_hash = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
        arm = arm or algorithm
        home = FolderName(experiment, "experiment")
        usual = _usual_name(experiment, arm, seed, config_hash)
        name = FolderName(usual if run is None else run, "run")
        self.trajectories = trajectories
        self.decode = decode
        self.witnesses = witnesses
        self._prepare(memory_mb * MB)
        session = self._agree(Path(runs), home, name, resume, run is not None, process_group)
        self.run_id = session.run_id
        self.folder = Path(runs) / experiment / session.run_id
        parts = [self.folder / PARTS / f"{session.began_ns}-{rank:04d}" for rank in range(self.ranks)]
        self._parts = parts[self.rank]
        self._begin(
            {
                "run": {
                    "run_id": self.run_id,
                    "experiment": experiment,
                    "algorithm": algorithm,
                    "arm": arm,
                    "seed": seed,
                    "config_hash": config_hash,
                    "versions": json.dumps(_versions(trainer)),
                },
                "config": plain if iterations is None else {"iterations": iterations} | plain,
                "replay_as": replay_as or algorithm,
                "undeclared": list(undeclared),
                "clip": clip and asdict(clip),
                "temperature": temperature,
                "every": every,
                "tokens": tokens,
                "batches": (batches or BatchesSettings()).model_dump(mode="json"),
                "ranks": [str(folder) for folder in parts[1:]],
            }
        )

    def _prepare(self, max_bytes: int) -> None:
        """Set what a ledger remembers to its beginning; so many bytes may wait to be sent."""
        self.dead = False  # True: nothing is recorded any more
        self.seconds = 0.0  # that recording took the trainer in this step
        self.rank = 0
        self.ranks = 1
        self._is_guarded = False  # a guarded block is open
        self._warned: set[str] = set()
        self._witnesses: dict[str, Witness] = {}  # by network
        self._started_at = datetime.now(UTC).replace(tzinfo=None)
        self._step = -1
        self._ended = -1
        self._step_began = time.perf_counter()
        self._progress = _Progress()
        self._backlog = _Backlog(max_bytes)
        self._vocabulary = _Vocabulary()
        self._sequence = count(1)  # numbers the files of another rank than the first
        self._handle: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Any = None

    def _begin(self, opened: dict[str, Any]) -> None:
        """Start who measures, or as another rank make the folder that it reads; and start the thread."""
        if self.rank == 0:
            self._start(opened)
        else:
            with suppress(OSError):
                self._parts.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._send, name="sorl-ledger", daemon=True)
        self._thread.start()
        atexit.register(self.close, "interrupted", "the process ended before training did")

    # What a trainer calls

    @_guarded
    def rollouts(
        self,
        step: int,
        rewards: Any,
        success: Any = None,
        turns: Any = None,
        *,
        group: Any = None,
        prompts: Sequence[Sequence[int | str]] | None = None,
        responses: Sequence[Sequence[int | str]] | None = None,
        mask: Any = None,
        rollout_step: Any = None,
        searches: Any = None,
        status: Sequence[Sequence[str]] | None = None,
        question: Sequence[str] | None = None,
        gold: Sequence[str] | None = None,
        answer: Sequence[str | None] | None = None,
        ended: Sequence[str] | None = None,
        seconds: float | None = None,
    ) -> None:
        """Record the trajectories of a step, N of them; what is None is not known.

        `rewards`, `success` (None: of rewards that are all 0 or 1, the reward), `turns`, `group` (the prompt,
        numbered over all ranks), `rollout_step` (the step whose policy sampled them) and `searches` (tool
        calls that were carried out) are (N,). `prompts` and `responses`: the token ids of each, or the tokens
        as texts, without padding; observations belong to the response. `mask` (N, T): 1 where the policy
        wrote the token of the response; None = that of the updates. `status`: of each turn search, answer or
        invalid. `ended`: answer, max_turns or max_tokens. `seconds`: that sampling took.
        """
        if not self._follow(step):
            return
        arrays = _on_host(
            {
                "reward": rewards,
                "success": success,
                "turns": turns,
                "group": group,
                "rollout_step": rollout_step,
                "mask": mask,
                "searches": searches,
            }
        )
        arrays |= _as_lists({"prompts": prompts, "responses": responses})
        texts = _as_lists(
            {"status": status, "question": question, "gold": gold, "answer": answer, "ended": ended}
        )
        _check_lengths(arrays | texts)
        n = len(arrays["reward"])
        if self.trajectories is not None and group is not None:
            share = min(1.0, self.trajectories / (n * self.ranks))
            self._choose_groups(step, _numpy(arrays["group"]), share)
        if seconds is not None:
            self._progress.sampling_seconds = seconds + (self._progress.sampling_seconds or 0.0)
        self._put({"kind": "rollouts", "step": step, **texts}, arrays)
        self._progress.trajectories += n

    @_guarded
    def update(
        self,
        step: int,
        *,
        update: int | None = None,
        epoch: int = 0,
        log_prob: Any = None,
        log_prob_old: Any = None,
        mask: Any = None,
        advantages: Any = None,
        group: Any = None,
        trajectory: Any = None,
        turn: Any = None,
        log_prob_behaviour: Any = None,
        log_prob_ref: Any = None,
        values: Any = None,
        values_old: Any = None,
        returns: Any = None,
        entropy: Any = None,
        tokens: Any = None,
        terms: Mapping[str, Any] | None = None,
        **scalars: Any,
    ) -> None:
        """Record an optimizer update of `step`, or a part of it, as it was at the weights before the update.

        Parts (micro-batches, ranks) with one `update` number (from 0 in each step; None: the next one) are
        measured together, so every fraction is over the tokens of the whole update. Tensors are (B, T) and
        aligned with the responses: entry t speaks of token t of the response (of the whole trajectory where
        no prompts were told); `advantages` may be (B,). `trajectory` (B,): the row of the rank's `rollouts`
        (None: 0..B-1; -1: padding). `turn`: turn of each token from 1 (None: the runs of ones in `mask`).
        `tokens`: the ids that this update trains on, to be compared with those of `rollouts`.
        `terms`: what only the loss knows (TERMS); without them ratio, clip and gradient weight follow from
        the ledger's `clip`, for a loss averaged over tokens.

        Scalars: grad_norm (before clipping), lr, ... (SCALARS), floats or tensors; losses are added up over
        the parts of an update and averaged over ranks, `clip_frac` (the trainer's own) is averaged over the
        parts. They may come in a call of their own, after the backward pass.
        """
        if not self._follow(step):
            return
        _check_names("scalar", scalars, SCALARS)
        _check_names("term", terms or (), TERMS)
        number = self._progress.updates if update is None else update
        self._progress.updates = max(self._progress.updates, number + 1)
        given = {
            "log_prob": log_prob,
            "log_prob_old": log_prob_old,
            "mask": mask,
            "advantages": advantages,
            "group": group,
            "trajectory": trajectory,
            "turn": turn,
            "log_prob_behaviour": log_prob_behaviour,
            "log_prob_ref": log_prob_ref,
            "values": values,
            "values_old": values_old,
            "returns": returns,
            "entropy": entropy,
            "tokens": tokens,
            **(terms or {}),
            **{f"scalar.{name}": value for name, value in scalars.items()},
        }
        _check_completeness(given)
        arrays = _on_host(given)
        _check_shapes(arrays)
        self._put({"kind": "update", "step": step, "update": number, "epoch": epoch}, arrays)

    @_guarded
    def weights(
        self,
        step: int,
        network: str,
        named_parameters: Iterable[tuple[str, Any]],
        *,
        when: Literal["start", "end"] = "start",
        trainable: bool | None = None,
        of_step: int | None = None,
        optimizer: Any = None,
    ) -> None:
        """Witness the weights of `network`: policy, critic, reference or sampler.

        Call it before the first update of a step, and again with when="end" after the last one, before
        `end`; of a reference or a sampler the first call is enough. What is kept of each group of layers are
        its size, norms and a fingerprint, a few numbers.

        `named_parameters`: whole tensors by name, as of a module. With several ranks the first one counts;
        weights that are spread over ranks are left out, with one warning. `trainable`: whether the network is
        meant to move (None: where a tensor requires a gradient). `of_step`: the step whose weights a sampler
        claims to have (None: this one). `optimizer`: of torch, with these very tensors; its steps are counted
        from then on.
        """
        if not self.witnesses or self.rank or not self._follow(step):
            return
        witness = self._witnesses.setdefault(network, Witness(network))
        if when == "end":
            witness.finish(named_parameters)
            return
        witness.start(named_parameters, of_step, trainable)
        if optimizer is not None:
            witness.watch(getattr(optimizer, "optimizer", optimizer))  # accelerate wraps it

    @_guarded
    def evaluation(self, step: int, *, data: str, success: float, episodes: int) -> None:
        """Record held-out success of the policy before `step`, a fraction of so many episodes."""
        self._put(
            {"kind": "evaluation", "step": step, "data": data, "success": success, "episodes": episodes}, {}
        )

    @_guarded
    def event(self, step: int, kind: str, message: str) -> None:
        """Record that something happened to the run at `step`, e.g. that it was rolled back."""
        self._put({"kind": "event", "step": step, "event": kind, "message": message}, {})

    @_guarded
    def end(self, step: int) -> None:
        """Say that `step` is complete, so that it is measured and written now; later calls for it are left
        out.
        """
        if step != self._step or step <= self._ended:
            return
        now = time.perf_counter()
        seconds = {"total": now - self._step_began, "record": self.seconds}
        sampling = self._progress.sampling_seconds
        if sampling is not None:
            seconds |= {"rollout": sampling, "update": seconds["total"] - sampling}
        self._step_began = now
        self.seconds = 0.0
        self._ended = step
        self._put_witnesses(step)
        self._put({"kind": "end", "step": step, "seconds": seconds}, {})
        self._progress = _Progress()
        self._backlog.end_step()

    def close(self, status: str = "finished", reason: str | None = None) -> None:
        """Write what is left and end the run, as finished, failed or interrupted; does nothing the second
        time.
        """
        atexit.unregister(self.close)
        if self._thread.is_alive():
            self._follow(self._step + 1)
            self._put({"kind": "close", "status": status, "reason": reason}, {})
            self._backlog.queue.put(None)
            self._thread.join(PATIENCE)
        self.dead = True
        if self._process is not None:
            self._pipe.close()
            try:
                if self._process.wait(PATIENCE):
                    self.warn(
                        "close", f"the recorder could not write everything (exit {self._process.returncode})"
                    )
            except subprocess.TimeoutExpired:
                self.warn("close", f"the recorder still writes the last steps to '{self.folder}'")
            self._process = None
        if self._handle is not None:
            self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif issubclass(kind, Exception):
            self.close("failed", f"{kind.__name__}: {error}")
        else:
            self.close("interrupted", f"stopped by {kind.__name__}")

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Let a mistake inside cost the rows and not the training: one warning, and the time counts as
        recording.
        """
        is_outermost = not self._is_guarded
        self._is_guarded = True
        began = time.perf_counter()
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever a trainer hands over, training goes on
            self.warn(what, f"{what} could not be recorded: {type(error).__name__}: {error}")
        finally:
            if is_outermost:
                self._is_guarded = False
                self.seconds += time.perf_counter() - began

    def warn(self, cause: str, text: str) -> None:
        """Warn of a cause once."""
        if cause not in self._warned:
            log.warning("%s", text)
        self._warned.add(cause)

    def _agree(
        self, runs: Path, experiment: FolderName, name: FolderName, resume: bool, is_chosen: bool, group: Any
    ) -> _Session:
        """Find out this process's rank, and open the run: the first rank chooses it and tells the others."""
        torch = sys.modules.get("torch")
        dist: Any = torch.distributed if torch is not None and torch.distributed.is_available() else None
        if dist is not None and dist.is_initialized():
            self.rank = dist.get_rank(group)
            self.ranks = dist.get_world_size(group)
        session = _Session(name, time.time_ns(), "")
        if self.rank == 0:
            try:
                session = session._replace(run_id=self._open(runs, experiment, name, resume, is_chosen))
            except InputError as error:
                session = session._replace(refusal=str(error))
        if self.ranks > 1:
            source = dist.get_global_rank(group, 0) if group is not None else 0
            shared: list[Any] = [*session]
            dist.broadcast_object_list(shared, src=source, group=group)
            session = _Session(*shared)
        if session.refusal:
            raise InputError(session.refusal)
        return session._replace(run_id=str(session.run_id))

    def _open(
        self, runs: Path, experiment: FolderName, name: FolderName, resume: bool, is_chosen: bool
    ) -> str:
        """Lock the run's folder and return its name: a later start of the same settings gets -g2, -g3, ..."""
        folder = folder_to_write(runs, experiment)
        names = [name, *(f"{name}-g{number}" for number in range(2, NEWEST_GENERATION))]
        recorded = {segments.parent.name for segments in folder.glob(f"{escape(name)}*/segments")}
        begun = [candidate for candidate in names if candidate in recorded]
        candidates = names
        if resume:
            candidates = begun[-1:] or names[:1]
        elif is_chosen:
            candidates = names[:1]
        for candidate in candidates:
            reason = "exists: give resume=True to continue it, or another name"
            if resume or candidate not in begun:
                folder_to_write(runs, experiment, FolderName(candidate, "run"))
                self._handle = _lock_run(folder / candidate)
                if self._handle is not None:
                    return candidate
                reason = "is being recorded by another process; wait for it, or give another name"
        raise InputError(f"run '{candidate}' in '{folder}' {reason}")

    def _start(self, opened: dict[str, Any]) -> None:
        """Start the process that measures and writes, outside the trainer's group of signals and without its
        GPUs.
        """
        path = os.pathsep.join(
            [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        try:
            inlet, self._pipe = Pipe(duplex=False)
            with inlet:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "sorl.recording", str(self.folder), str(inlet.fileno())],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=[inlet.fileno(), *([self._handle.fileno()] if self._handle else [])],
                )
        except OSError as error:
            self._give_up(f"the recorder did not start: {error}")
        self._put({"kind": "open", **opened}, {})

    # From the trainer to the thread

    def _follow(self, step: int) -> bool:
        """Begin `step`: one that was not ended ends here. False where it has ended already."""
        if step > self._step:
            if self._progress.trajectories or self._progress.updates:
                self.end(self._step)
            self._step = step
        elif step < self._step:
            raise ValueError(f"step {step} comes after step {self._step}")
        return step > self._ended

    def _choose_groups(self, step: int, group: np.ndarray, share: float) -> None:
        """Choose which trajectories (N,) are measured: a share of the groups, by a hash of their number."""
        numbers = np.asarray(group, dtype=np.uint64)
        hashes = (numbers * np.uint64(2654435761) + np.uint64(40503 * step)) % np.uint64(2**32)
        chosen = hashes < share * 2**32
        earlier = self._progress.measured
        self._progress.measured = chosen if earlier is None else np.concatenate([earlier, chosen])

    def _put(self, meta: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Queue a message, unless too much waits already: then the tensors of the whole step are left out."""
        size = sum(getattr(x, "nbytes", 0) for x in arrays.values())
        if not self._backlog.admit(size):
            what = "waits to be recorded" if self._backlog.fits_step(size) else "is recorded of one step"
            what = f"more than {self._backlog.max_bytes / MB:g} MB {what}"
            self.warn("full", f"{what}: updates are left out (see trajectories, memory_mb)")
            meta = {"kind": "lost", "step": meta["step"]}
            arrays = {}
            size = 0
        self._backlog.queue.put(_Message(size, meta, arrays, self._progress.measured))

    def _put_witnesses(self, step: int) -> None:
        """Queue what was seen of the weights in the step."""
        rows = list(chain.from_iterable(witness.rows() for witness in self._witnesses.values()))
        for witness in self._witnesses.values():
            witness.forget()
        if rows:
            meta = {"kind": "witness", "step": step, "rows": rows}
            self._put(meta | {"started_at": self._started_at.isoformat()}, {})

    def _give_up(self, why: str) -> None:
        self.dead = True
        self.warn("dead", f"nothing more is recorded of this run, training goes on: {why}")

    # The thread

    def _send(self) -> None:
        while (message := self._backlog.queue.get()) is not None:
            try:
                if not self.dead:
                    self._send_on(message)
            except OSError as error:
                if message.meta["kind"] != "close":  # of another rank, when the first one was faster
                    self._give_up(str(error))
            except Exception as error:  # noqa: BLE001  a wrong array costs its rows, not the recording
                what = f"a {message.meta['kind']} could not be recorded"
                self.warn("thread", f"{what}: {type(error).__name__}: {error}")
            self._backlog.release(message.size)

    def _send_on(self, message: _Message) -> None:
        arrays = message.arrays
        if message.meta["kind"] == "rollouts":
            self._flatten_tokens(message.meta, arrays)
        arrays = {name: _numpy(x) for name, x in arrays.items()}
        self._write(message.meta, encode(message.meta, _rows(arrays, message.measured)))

    def _flatten_tokens(self, meta: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Put ids and lengths in the place of lists of tokens, and new texts into `meta`."""
        for name in ("prompts", "responses"):
            rows = arrays.pop(name, None)
            if rows is None:
                continue
            ids, lengths = self._vocabulary.flatten(rows)
            arrays[name] = ids
            arrays[f"{name}.length"] = lengths
            texts = self._vocabulary.new_texts(ids, self.decode)
            if texts:
                meta.setdefault("texts", {}).update(texts)

    def _write(self, meta: Mapping[str, Any], message: bytes) -> None:
        """Hand a message to the process that measures; from another rank as a file, in the order of their
        names.
        """
        if not self.rank:
            self._pipe.send_bytes(message)
            return
        last = "end" if meta["kind"] == "end" else f"{next(self._sequence):08d}"
        name = f"{meta.get('step', self._step):08d}-{last}"
        (self._parts / f".{name}").write_bytes(message)
        os.replace(self._parts / f".{name}", self._parts / name)


def _check_limits(every: int, trajectories: int | None, tokens: int) -> None:
    if tokens < 0 or every < 1 or (trajectories is not None and trajectories < 1):
        raise InputError("every and trajectories must be 1 or more, tokens 0 or more")


def _check_lengths(columns: Mapping[str, Any]) -> None:
    """Raise ValueError unless every column speaks of as many trajectories as there are rewards."""
    n = len(columns["reward"])
    wrong = {name: len(values) for name, values in columns.items() if len(values) != n}
    if wrong:
        raise ValueError(f"{n} rewards, but {wrong}")


def _check_names(kind: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raise TypeError for the first name that is not known."""
    for name in names:
        if name not in known:
            raise TypeError(f"no {kind} '{name}'{nearest(name, known)}; there is: {', '.join(known)}")


def _check_completeness(given: Mapping[str, Any]) -> None:
    """Raise TypeError where an update lacks a tensor that its other tensors belong to."""
    if given["log_prob"] is None:
        if any(given[name] is not None for name in ("mask", *TOKENS)):
            raise TypeError("log_prob is missing, which the other tensors belong to")
        return
    for name in ("log_prob_old", "mask", "advantages"):
        if given[name] is None:
            raise TypeError(f"{name} is missing")


def _check_shapes(arrays: Mapping[str, Any]) -> None:
    """Raise ValueError for tensors of another shape than the log-probs."""
    wrong = {}
    for name in ("mask", "turn", "tokens", *TOKENS, *TERMS):
        if name in arrays and arrays[name].shape != arrays["log_prob"].shape:
            wrong[name] = tuple(arrays[name].shape)
    if wrong:
        raise ValueError(f"log_prob is {tuple(arrays['log_prob'].shape)}, but {wrong}")


def _usual_name(experiment: str, arm: str, seed: int, config_hash: str) -> str:
    """The name of a run that is given none: the same for the same settings."""
    digest = hashlib.sha256(f"{experiment} {config_hash}".encode()).hexdigest()[:8]
    return f"{slug(arm)}-s{seed}-{digest}"


def _lock_run(folder: Path) -> IO[str] | None:
    """Lock a run's folder for as long as this process or its recorder lives; None where it is locked."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return lock_file(folder / "lock")
    except OSError as error:
        raise InputError(f"cannot write to '{folder}': {error.strerror}") from None


def encode(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return a message as bytes: safetensors, with `meta` as JSON."""
    # All of it is one text: several keys would be written in an order that differs from process to process.
    return save(
        {name: np.ascontiguousarray(x) for name, x in arrays.items()}, {"sorl": json.dumps(meta, default=str)}
    )


def decode(message: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the meta and the arrays of a message. Raises SafetensorError or ValueError for anything else."""
    size = int.from_bytes(message[:8], "little")
    header = json.loads(message[8 : 8 + size])
    return json.loads(header["__metadata__"]["sorl"]), load(message)


def _on_host(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the arrays and tensors that are known."""
    return {name: _host(value) for name, value in values.items() if value is not None}


def _as_lists(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The sequences that are known, as lists."""
    return {name: list(value) for name, value in values.items() if value is not None}


def _host(value: Any) -> Any:
    """Copy an array or a tensor to the host, in float32 at least; from a GPU without waiting for it."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return np.array(value)
    value = value.detach()
    if value.is_floating_point() and value.element_size() < 4:
        value = value.float()
    if not value.is_cuda:
        return value.clone() if value.device.type == "cpu" else value.cpu()
    copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    copy.copy_(value, non_blocking=True)
    copy.sorl_ready = torch.cuda.Event()
    copy.sorl_ready.record()
    return copy


def _numpy(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if (ready := getattr(value, "sorl_ready", None)) is not None:
        ready.synchronize()  # the copy of `_host` is complete
    return np.asarray(value.numpy())


def _rows(arrays: dict[str, np.ndarray], measured: np.ndarray | None) -> dict[str, np.ndarray]:
    """Leave out padding, rows and columns, and the trajectories that are not measured."""
    if "log_prob" not in arrays:
        return arrays
    mask = arrays["mask"] = arrays["mask"].astype(bool)
    trajectory = arrays.get("trajectory", np.arange(len(mask))).astype(np.int64)
    keep = trajectory >= 0
    if measured is not None:
        keep &= measured[np.maximum(trajectory, 0)]
    arrays["trajectory"] = trajectory
    width = int(np.flatnonzero(mask[keep].any(axis=0)).max(initial=-1)) + 1
    cut = {name: x[keep] for name, x in arrays.items() if x.ndim}
    return arrays | {name: x[:, :width] if x.ndim == 2 else x for name, x in cut.items()}


def _versions(trainer: str) -> dict[str, str]:
    versions = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for name in filter(None, ("sorl", "torch", "transformers", "numpy", trainer)):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions | {"trainer": trainer or "a loop of its own"}
