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
from typing import IO, Any, Literal, Self

import numpy as np
from safetensors.numpy import load, save

from sorl.recording.witness import Witness
from sorl.spec import BatchesSettings, InputError, nearest
from sorl.spec.files import lock_file
from sorl.spec.names import FolderName, folder_to_write, slug

MB = 10**6
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
        self.dead = self._inside = False  # nothing is recorded any more; a guarded block is open
        self.seconds = 0.0  # that recording took the trainer in this step
        self.trajectories = trajectories
        self.decode = decode
        self.witnesses = witnesses
        self._witnesses: dict[str, Witness] = {}  # by network
        self._started_at = datetime.now(UTC).replace(tzinfo=None)
        self._most = memory_mb * MB
        self._warned: set[str] = set()
        self._words: dict[str, int] = {}  # of trainers that hand over texts: their ids
        self._shown = np.zeros(0, dtype=bool)  # token ids whose text was sent
        self._step = -1
        self._ended = -1
        self._began = time.perf_counter()
        self._kept: np.ndarray | None = None  # trajectories of the step that are measured; None = all
        self._count = self._updates = 0  # trajectories and updates of the step so far
        self._seconds_rollout: float | None = None
        self._queue: queue.Queue[Any] = queue.Queue()  # (bytes, meta, arrays, kept trajectories); None ends
        # bytes
        self._waiting = 0
        self._of_step = 0
        self._lock = threading.Lock()
        self._handle: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Any = None
        if tokens < 0 or every < 1 or (trajectories is not None and trajectories < 1):
            raise InputError("every and trajectories must be 1 or more, tokens 0 or more")
        plain: dict[str, Any] = json.loads(json.dumps(dict(settings or {}), default=str))
        hashed = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
        arm = arm or algorithm
        digest = hashlib.sha256(f"{experiment} {hashed}".encode()).hexdigest()[:8]
        home = FolderName(experiment, "experiment")
        name = FolderName(f"{slug(arm)}-s{seed}-{digest}" if run is None else run, "run")
        self.rank = 0
        self.ranks = 1
        self._sequence = count(1)
        torch = sys.modules.get("torch")
        dist: Any = torch.distributed if torch is not None and torch.distributed.is_available() else None
        if dist is not None and dist.is_initialized():
            self.rank = dist.get_rank(process_group)
            self.ranks = dist.get_world_size(process_group)
        told: list[Any] = [name, time.time_ns(), ""]  # the first rank chooses the run and tells the others
        if self.rank == 0:
            try:
                told[0] = self._open(Path(runs), home, name, resume, chosen=run is not None)
            except InputError as error:
                told[2] = str(error)
        if self.ranks > 1:
            source = dist.get_global_rank(process_group, 0) if process_group is not None else 0
            dist.broadcast_object_list(told, src=source, group=process_group)
        if told[2]:
            raise InputError(told[2])
        self.run_id = str(told[0])
        self.folder = Path(runs) / experiment / str(told[0])
        self._parts = self.folder / PARTS / f"{told[1]}-{self.rank:04d}"
        if self.rank == 0:
            config = plain if iterations is None else {"iterations": iterations} | plain
            self._start(
                {
                    "run": {
                        "run_id": self.run_id,
                        "experiment": experiment,
                        "algorithm": algorithm,
                        "arm": arm,
                        "seed": seed,
                        "config_hash": hashed,
                        "versions": json.dumps(_versions(trainer)),
                    },
                    "config": config,
                    "replay_as": replay_as or algorithm,
                    "undeclared": list(undeclared),
                    "clip": clip and asdict(clip),
                    "temperature": temperature,
                    "every": every,
                    "tokens": tokens,
                    "batches": (batches or BatchesSettings()).model_dump(mode="json"),
                    "ranks": [str(self.folder / PARTS / f"{told[1]}-{r:04d}") for r in range(1, self.ranks)],
                }
            )
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
        columns = {
            "reward": rewards,
            "success": success,
            "turns": turns,
            "group": group,
            "rollout_step": rollout_step,
            "mask": mask,
            "searches": searches,
        }
        words = {"status": status, "question": question, "gold": gold, "answer": answer, "ended": ended}
        arrays = {name: _host(value) for name, value in columns.items() if value is not None}
        texts = {name: list(value) for name, value in words.items() if value is not None}
        n = len(arrays["reward"])
        lists = {"prompts": prompts, "responses": responses}
        arrays |= {name: list(value) for name, value in lists.items() if value is not None}
        if wrong := {name: len(x) for name, x in (arrays | texts).items() if len(x) != n}:
            raise ValueError(f"{n} rewards, but {wrong}")
        if self.trajectories is not None and group is not None:
            share = min(1.0, self.trajectories / (n * self.ranks))
            numbers = np.asarray(_numpy(arrays["group"]), dtype=np.uint64)
            kept = (numbers * np.uint64(2654435761) + np.uint64(40503 * step)) % np.uint64(
                2**32
            ) < share * 2**32
            self._kept = kept if self._kept is None else np.concatenate([self._kept, kept])
        if seconds is not None:
            self._seconds_rollout = seconds + (self._seconds_rollout or 0.0)
        self._put({"kind": "rollouts", "step": step, **texts}, arrays)
        self._count += n

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
        for kind, told, known in (("scalar", scalars, SCALARS), ("term", terms or (), TERMS)):
            if unknown := [name for name in told if name not in known]:
                raise TypeError(
                    f"no {kind} '{unknown[0]}'{nearest(unknown[0], known)}; there is: {', '.join(known)}"
                )
        number = self._updates if update is None else update
        self._updates = max(self._updates, number + 1)
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
        if log_prob is None and any(given[name] is not None for name in ("mask", *TOKENS)):
            raise TypeError("log_prob is missing, which the other tensors belong to")
        if missing := [
            n for n in ("log_prob_old", "mask", "advantages") if log_prob is not None and given[n] is None
        ]:
            raise TypeError(f"{missing[0]} is missing")
        arrays = {name: _host(value) for name, value in given.items() if value is not None}
        if wrong := {
            n: tuple(arrays[n].shape)
            for n in ("mask", "turn", "tokens", *TOKENS, *TERMS)
            if n in arrays and arrays[n].shape != arrays["log_prob"].shape
        }:
            raise ValueError(f"log_prob is {tuple(arrays['log_prob'].shape)}, but {wrong}")
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
        seconds = {"total": now - self._began, "record": self.seconds}
        if self._seconds_rollout is not None:
            seconds |= {"rollout": self._seconds_rollout, "update": seconds["total"] - self._seconds_rollout}
        self._began = now
        self.seconds = 0.0
        self._ended = step
        self._put_witnesses(step)
        self._put({"kind": "end", "step": step, "seconds": seconds}, {})
        self._kept = None
        self._count = 0
        self._updates = 0
        self._seconds_rollout = None
        with self._lock:
            self._of_step = 0

    def close(self, status: str = "finished", reason: str | None = None) -> None:
        """Write what is left and end the run, as finished, failed or interrupted; does nothing the second
        time.
        """
        atexit.unregister(self.close)
        if self._thread.is_alive():
            self._follow(self._step + 1)
            self._put({"kind": "close", "status": status, "reason": reason}, {})
            self._queue.put(None)
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
        outermost = not self._inside
        self._inside = True
        began = time.perf_counter()
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever a trainer hands over, training goes on
            self.warn(what, f"{what} could not be recorded: {type(error).__name__}: {error}")
        finally:
            if outermost:
                self._inside = False
                self.seconds += time.perf_counter() - began

    def warn(self, cause: str, text: str) -> None:
        """Warn of a cause once."""
        if cause not in self._warned:
            log.warning("%s", text)
        self._warned.add(cause)

    def _open(self, runs: Path, experiment: FolderName, name: FolderName, resume: bool, chosen: bool) -> str:
        """Lock the run's folder and return its name: a later start of the same settings gets -g2, -g3, ..."""
        folder = folder_to_write(runs, experiment)
        names = [name, *(f"{name}-g{number}" for number in range(2, 10_000))]
        found = {one.parent.name for one in folder.glob(f"{escape(name)}*/segments")}
        begun = [one for one in names if one in found]
        for one in begun[-1:] or names[:1] if resume else names[:1] if chosen else names:
            held = "exists: give resume=True to continue it, or another name"
            if resume or one not in begun:
                folder_to_write(runs, experiment, FolderName(one, "run"))
                try:
                    (folder / one).mkdir(parents=True, exist_ok=True)
                    # as long as this process or its recorder lives
                    self._handle = lock_file(folder / one / "lock")
                except OSError as error:
                    raise InputError(f"cannot write to '{folder / one}': {error.strerror}") from None
                if self._handle is not None:
                    return one
                held = "is being recorded by another process; wait for it, or give another name"
        raise InputError(f"run '{one}' in '{folder}' {held}")

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
            if self._count or self._updates:
                self.end(self._step)
            self._step = step
        elif step < self._step:
            raise ValueError(f"step {step} comes after step {self._step}")
        return step > self._ended

    def _put(self, meta: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Queue a message, unless too much waits already: then the tensors of the whole step are left out."""
        size = sum(getattr(x, "nbytes", 0) for x in arrays.values())
        with self._lock:
            full = self._waiting + size > self._most or self._of_step + size > self._most
            if not full:
                self._waiting += size
                self._of_step += size
        if full:
            what = "waits to be recorded" if self._of_step + size <= self._most else "is recorded of one step"
            what = f"more than {self._most / MB:g} MB {what}"
            self.warn("full", f"{what}: updates are left out (see trajectories, memory_mb)")
            meta = {"kind": "lost", "step": meta["step"]}
            arrays = {}
            size = 0
        self._queue.put((size, meta, arrays, self._kept))

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
        while (item := self._queue.get()) is not None:
            size, meta, arrays, kept = item
            try:
                if not self.dead:
                    if meta["kind"] == "rollouts":
                        arrays = self._flat(meta, arrays)
                    arrays = {name: _numpy(x) for name, x in arrays.items()}
                    self._write(meta, encode(meta, _rows(arrays, kept)))
            except OSError as error:
                if meta["kind"] != "close":  # of another rank, when the first one was faster
                    self._give_up(str(error))
            except Exception as error:  # noqa: BLE001  a wrong array costs its rows, not the recording
                self.warn(
                    "thread", f"a {meta['kind']} could not be recorded: {type(error).__name__}: {error}"
                )
            with self._lock:
                self._waiting -= size

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

    def _flat(self, meta: dict[str, Any], arrays: dict[str, Any]) -> dict[str, np.ndarray]:
        """Lists of tokens as ids (M,) and lengths (N,), and the texts of ids that were not seen before."""
        for name in ("prompts", "responses"):
            if (rows := arrays.pop(name, None)) is None:
                continue
            if any(isinstance(token, str) for row in rows[:1] for token in row[:1]):
                rows = [[self._words.setdefault(token, len(self._words)) for token in row] for row in rows]
            lists = (row if isinstance(row, list | tuple) else _numpy(_host(row)) for row in rows)
            flat = [np.asarray(row, dtype=np.int32) for row in lists]
            arrays[name] = np.concatenate([*flat, np.zeros(0, np.int32)])
            arrays[f"{name}.length"] = np.array([len(row) for row in flat], dtype=np.int32)
            used = np.unique(arrays[name])
            if len(used) and used[-1] >= len(self._shown):
                self._shown = np.concatenate(
                    [self._shown, np.zeros(used[-1] + 1 - len(self._shown), dtype=bool)]
                )
            new = used[~self._shown[used]].tolist()
            self._shown[new] = True
            if self._words:
                names = list(self._words)
                meta.setdefault("texts", {}).update({i: names[i] for i in new})
            elif self.decode is not None and new:
                meta.setdefault("texts", {}).update(zip(new, self.decode(new), strict=True))
        return arrays


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


def _rows(arrays: dict[str, np.ndarray], kept: np.ndarray | None) -> dict[str, np.ndarray]:
    """Leave out padding, rows and columns, and the trajectories that are not measured."""
    if "log_prob" not in arrays:
        return arrays
    mask = arrays["mask"] = arrays["mask"].astype(bool)
    trajectory = arrays.get("trajectory", np.arange(len(mask))).astype(np.int64)
    keep = trajectory >= 0
    if kept is not None:
        keep &= kept[np.maximum(trajectory, 0)]
    arrays["trajectory"] = trajectory
    width = int(np.flatnonzero(mask[keep].any(axis=0)).max(initial=-1)) + 1
    cut = {name: x[keep] for name, x in arrays.items() if x.ndim}
    return arrays | {name: x[:, :width] if x.ndim == 2 else x for name, x in cut.items()}


def _versions(trainer: str) -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for name in filter(None, ("sorl", "torch", "transformers", "numpy", trainer)):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found | {"trainer": trainer or "a loop of its own"}
