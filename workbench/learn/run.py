"""One run from its folder: lock, resume, train, record the outcome."""

from __future__ import annotations

import fcntl
import json
import platform
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from workbench.spec import InputError, RunSettings
from workbench.spec.files import lock_file

if TYPE_CHECKING:
    from torch import nn

    from workbench.learn.loop import Trainer

FINISHED, FAILED, WRONG_INPUT, INTERRUPTED, HELD = 0, 1, 2, 3, 4  # exit codes


class Held(InputError):
    """Another process trains this run."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run's lock for as long as the process lives; the kernel releases it however the process dies.

    Raises Held when another process trains this run.
    """
    with lock_file(folder / "lock") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"run '{folder.name}' is being trained by another process; wait for it, or stop it"
            raise Held(message) from None
        yield


def run(folder: Path, cache: Path, out: TextIO = sys.stdout) -> int:
    """Train or resume the run in `folder`; returns the exit code of the process.

    One JSON line per step goes to `out` for watchers. Raises InputError for a folder that is no run.
    """
    for name in ("config.toml", "run.json"):
        if not (folder / name).is_file():
            raise InputError(f"no {name} in '{folder}': a run folder is made by `sorl run FILE.toml`")
    settings = RunSettings.model_validate(tomllib.loads((folder / "config.toml").read_text()))
    identity = json.loads((folder / "run.json").read_text())
    with locked(folder):
        from workbench.agent.engines import StaleWeights
        from workbench.algorithms import resolve
        from workbench.learn.loop import Diverged, SelfTestFailed, Trainer
        from workbench.learn.warmstart import ensure, tokenizer_of
        from workbench.record.recorder import Recorder

        start = ensure(settings, cache)
        interrupted: list[str] = []  # from here on Ctrl-C and SIGTERM wait for the end of a step
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda caught, _: interrupted.append(signal.Signals(caught).name))
        tokenizer = tokenizer_of(start)
        group = settings.learn.group_size or resolve(settings.algorithm, settings.slots).group_size
        with Recorder(folder, identity["run_id"], settings, tokenizer.convert_ids_to_tokens, group) as recorder:
            trainer = Trainer(settings, start, recorder, tokenizer)
            resumed = trainer.resume(folder / "checkpoints")
            Heartbeat(folder).follow(trainer.learner.policy)
            status = _Status(identity, trainer, resumed)
            status.write("running")
            every = settings.record.checkpoint_every
            try:
                trainer.self_test()
                for row in trainer.steps():
                    told = {name: row.get(name) for name in ("success", "clip_frac", "entropy")}
                    told |= {"step": trainer.step, "steps": settings.iterations, "grad_norm": row.get("grad_norm_max")}
                    told |= {"seconds": round(trainer.seconds, 3), "at": time.time()}
                    print(json.dumps(told), file=out, flush=True)
                    if interrupted:
                        trainer.save(folder / "checkpoints")
                        status.write("interrupted", f"stopped by {interrupted[-1]} after step {trainer.step - 1}")
                        return INTERRUPTED
                    if every and trainer.step % every == 0:
                        trainer.save(folder / "checkpoints")
                trainer.save(folder / "checkpoints")
                status.write("finished", trainer.stopped or None)
            except (SelfTestFailed, StaleWeights) as error:
                print(f"sorl: {error}", file=sys.stderr)
                status.write("failed", str(error))
                return FAILED
            except Diverged as error:
                # A divergence is a result, not a failure: the run is over and everything up to it is kept.
                recorder.diverged(trainer.step, str(error))
                status.write("finished", str(error))
            except Exception as error:  # noqa: BLE001  the edge of the process: whatever broke must reach the log and the table
                traceback.print_exc()
                status.write("failed", f"{type(error).__name__}: {error}")
                return FAILED
    return FINISHED


class _Status:
    """Writes the row of table `run`: who it is, how it stands, what the collapse rule says so far."""

    def __init__(self, identity: dict[str, Any], trainer: Trainer, resumed: bool) -> None:
        self._identity, self._trainer, self._recorder = identity, trainer, trainer.recorder
        first = self._recorder.started_at() if resumed else None
        self._started = first or datetime.now(UTC).replace(tzinfo=None)

    def write(self, status: str, reason: str | None = None) -> None:
        over = status in ("finished", "failed", "interrupted")
        row = {
            **{key: self._identity[key] for key in ("experiment", "algorithm", "arm", "seed", "config_hash")},
            **{key: self._identity.get(key) for key in ("generation", "attempt")},
            "config": self._trainer.settings.model_dump_json(),
            "status": status,
            "reason": reason,
            "steps": self._trainer.step,
            "started_at": self._started,
            "ended_at": datetime.now(UTC).replace(tzinfo=None) if over else None,
            "seconds": self._trainer.seconds,
            "versions": json.dumps(versions()),
            **self._recorder.verdict(final=status == "finished"),
        }
        self._recorder.rows("run", {key: [value] for key, value in row.items()})
        self._recorder.flush()


def versions() -> dict[str, str]:
    """Versions of what decides the numbers, and the machine."""
    found = {name: version(name) for name in ("sorl", "torch", "transformers", "numpy")}
    machine = f"{platform.system()} {platform.machine()}"
    return found | {"python": platform.python_version(), "machine": machine}


class Heartbeat:
    """Touches `folder/heartbeat` at most once a second, whenever it is called."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "heartbeat"
        self._next = 0.0

    def __call__(self) -> None:
        """The loop moves."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + 1.0
            with suppress(OSError):  # a full disk is the recorder's to tell
                self._file.touch()

    def follow(self, network: nn.Module) -> None:
        """Beat at every pass through `network`: each token that is sampled with it, each part of an update."""
        # A plain function: a bound method would be copied together with a network that is copied.
        network.register_forward_pre_hook(lambda *_: self())
