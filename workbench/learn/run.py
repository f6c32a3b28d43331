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
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from workbench.spec import InputError, RunSettings
from workbench.spec.files import lock_file

if TYPE_CHECKING:
    from torch import nn

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


class Interrupt:
    """Remembers SIGINT and SIGTERM; the run stops between two steps, with a checkpoint."""

    def __init__(self) -> None:
        self.asked = ""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.asked = signal.Signals(number).name


def run(folder: Path, cache: Path, out: TextIO = sys.stdout) -> int:
    """Train or resume the run in `folder`; returns the exit code of the process.

    One JSON line per step goes to `out` for watchers. Raises InputError for a folder that is no run.
    """
    settings, identity = _read(folder)
    with locked(folder):
        from workbench.agent.engines import StaleWeights
        from workbench.algorithms import resolve
        from workbench.learn.loop import Diverged, SelfTestFailed, Trainer
        from workbench.learn.warmstart import ensure, tokenizer_of
        from workbench.record.recorder import Recorder

        start = ensure(settings, cache)
        interrupt = Interrupt()  # from here on Ctrl-C waits for the end of a step
        tokenizer = tokenizer_of(start)
        group = settings.learn.group_size or resolve(settings.algorithm, settings.slots).group_size
        with Recorder(folder, identity["run_id"], settings, tokenizer.convert_ids_to_tokens, group) as recorder:
            trainer = Trainer(settings, start, recorder, tokenizer)
            resumed = trainer.resume(folder / "checkpoints")
            Heartbeat(folder).follow(trainer.learner.policy)
            status = _Status(recorder, identity, settings, trainer, resumed)
            status.write("running")
            every = settings.record.checkpoint_every
            try:
                trainer.self_test()
                for row in trainer.steps():
                    print(json.dumps(_progress(row, trainer, settings)), file=out, flush=True)
                    if interrupt.asked:
                        trainer.save(folder / "checkpoints")
                        status.write("interrupted", f"stopped by {interrupt.asked} after step {trainer.step - 1}")
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


def _read(folder: Path) -> tuple[RunSettings, dict[str, Any]]:
    for name in ("config.toml", "run.json"):
        if not (folder / name).is_file():
            raise InputError(f"no {name} in '{folder}': a run folder is made by `sorl run FILE.toml`")
    settings = RunSettings.model_validate(tomllib.loads((folder / "config.toml").read_text()))
    return settings, json.loads((folder / "run.json").read_text())


class _Status:
    """Writes the row of table `run`: who it is, how it stands, what the collapse rule says so far."""

    def __init__(
        self, recorder: Any, identity: dict[str, Any], settings: RunSettings, trainer: Any, resumed: bool
    ) -> None:
        self._recorder, self._identity, self._settings, self._trainer = recorder, identity, settings, trainer
        first = recorder.started_at() if resumed else None
        self._started = first or datetime.now(UTC).replace(tzinfo=None)

    def write(self, status: str, reason: str | None = None) -> None:
        over = status in ("finished", "failed", "interrupted")
        row = {
            **{key: self._identity[key] for key in ("experiment", "algorithm", "arm", "seed", "config_hash")},
            **{key: self._identity.get(key) for key in ("generation", "attempt")},
            "config": self._settings.model_dump_json(),
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
    names = ("sorl", "torch", "transformers", "numpy")
    return {name: version(name) for name in names} | {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _progress(row: dict[str, Any], trainer: Any, settings: RunSettings) -> dict[str, Any]:
    keys = ("success", "clip_frac", "grad_norm_max", "entropy")
    return {
        "step": trainer.step,
        "steps": settings.iterations,
        **{key.removesuffix("_max"): row.get(key) for key in keys},
        "seconds": round(trainer.seconds, 3),
        "at": time.time(),
    }


SECONDS = 1.0


class Heartbeat:
    """Touches `folder/heartbeat` at most once a second, whenever it is called."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "heartbeat"
        self._next = 0.0

    def __call__(self) -> None:
        """The loop moves."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + SECONDS
            with suppress(OSError):  # a full disk is the recorder's to tell
                self._file.touch()

    def follow(self, network: nn.Module) -> None:
        """Beat at every pass through `network`: each token that is sampled with it, each part of an update."""
        # A plain function: a bound method would be copied together with a network that is copied.
        network.register_forward_pre_hook(lambda *_: self())
