"""One run from its folder: lock, resume, train, record the outcome."""

from __future__ import annotations

import json
import platform
import signal
import sys
import time
import traceback
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

from sorl.learn.pulse import Pulse, beat_at_passes
from sorl.spec import InputError, RunSettings
from sorl.spec.files import MIB, from_toml, lock_file, read_text
from sorl.spec.heartbeat import NAME
from sorl.spec.names import LADDER

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sorl.collapse.events import Rule
    from sorl.learn.guard import Guard
    from sorl.recording.recorder import Recorder

# exit codes
FINISHED = 0
FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 3
HELD = 4
CHECKPOINTS = "checkpoints"  # of a run's folder: the newest, to resume from
PRECISION = "precision.json"  # of a run's folder: what dtype = "auto" came to


class Held(InputError):
    """Another process trains this run."""


def locked(folder: Path) -> IO[str]:
    """Take the run's lock, which the kernel releases if the process dies; raises Held if another process has
    it.
    """
    handle = lock_file(folder / "lock")
    if handle is None:
        raise Held(f"run '{folder.name}' is being trained by another process; wait for it, or stop it")
    return handle


def settings_of(folder: Path) -> RunSettings:
    """Return the settings of a run folder. Raises InputError for a folder that is no run of this version."""
    if not (folder / "config.toml").is_file():
        raise InputError(f"no config.toml in '{folder}': a run folder is made by `sorl run FILE.toml`")
    try:
        told = from_toml(read_text(folder / "config.toml", MIB))
        if (folder / PRECISION).is_file():
            for table, dtype in json.loads(read_text(folder / PRECISION, MIB)).items():
                told[table] = {**told.get(table, {}), "dtype": dtype}
        return RunSettings.model_validate(told)
    except ValueError as error:
        why = str(error).splitlines()[0]
        raise InputError(
            f"'{folder}/config.toml' is no configuration of this version of sorl: {why}"
        ) from None


def _measure_precision(folder: Path, settings: RunSettings) -> RunSettings:
    """Settle what "auto" stands for, once in the life of a run: a resumed run keeps its precision."""
    from sorl.learn.networks import with_measured_precision

    measured = with_measured_precision(settings)
    if measured is not settings:
        chosen = {"compute": measured.compute.dtype, "engine": measured.engine.dtype}
        (folder / PRECISION).write_text(json.dumps(chosen))
    return measured


def _band_rules_of(folder: Path, settings: RunSettings) -> list[Rule]:
    """Return the rules of the baseline that a run names, from the copy in its folder."""
    name = settings.record.baseline
    if name is None:
        return []
    from sorl.collapse.band import band_rules, read_bands
    from sorl.spec.baselines import COPY

    return list(band_rules(read_bands(folder / COPY, name), name))


def run(folder: Path, cache: Path, out: TextIO = sys.stdout) -> int:
    """Train or resume the run in `folder`, a JSON line a step to `out`; returns the exit code. InputError: no
    run.
    """
    settings = settings_of(folder)
    if not (folder / "run.json").is_file():
        raise InputError(f"no run.json in '{folder}': a run folder is made by `sorl run FILE.toml`")
    identity = json.loads((folder / "run.json").read_text())
    with locked(folder):
        pulse = Pulse(folder / NAME)
        pulse.part("loading the libraries")
        from sorl.learn.warmstart import ensure, tokenizer_of
        from sorl.recording.recorder import Recorder

        settings = _measure_precision(folder, settings)
        start = ensure(settings, cache, pulse)
        interrupted = _catch_signals()
        tokenizer = tokenizer_of(start)
        _take_over_parent(folder, settings)
        decode = tokenizer.convert_ids_to_tokens
        bands = _band_rules_of(folder, settings)
        with Recorder(folder, identity["run_id"], settings, decode, band_rules=bands) as recorder:
            session = _Session(folder, settings, identity, recorder, interrupted, out)
            return session.train(start, tokenizer, pulse)


def _catch_signals() -> list[str]:
    """The list that gets the names of Ctrl-C and SIGTERM, which from here on wait for the end of a step."""
    interrupted: list[str] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, _: interrupted.append(signal.Signals(caught).name))
    return interrupted


def _take_over_parent(folder: Path, settings: RunSettings) -> None:
    """Make the parent's state a fork's own first checkpoint.

    A run with a fault takes it over at every start: what a fault remembers is in no checkpoint.
    """
    from sorl.learn.checkpoint import checkpoint_of, checkpoints, take_over

    fork = settings.fork
    own = folder / CHECKPOINTS
    if fork is not None and (settings.fault is not None or not checkpoints(own)):
        ladder = folder.parents[1] / fork.experiment / fork.run / LADDER
        take_over(checkpoint_of(ladder, fork.at_step), own)


class _Session:
    """One start of a run: its trainer, its recorder, and what becomes of it at the end."""

    def __init__(
        self,
        folder: Path,
        settings: RunSettings,
        identity: dict[str, Any],
        recorder: Recorder,
        interrupted: list[str],
        out: TextIO,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._identity = identity
        self._recorder = recorder
        self._interrupted = interrupted  # names of signals that came
        self._out = out

    def train(self, start: Path, tokenizer: PreTrainedTokenizerBase, pulse: Pulse) -> int:
        """Train from `start` or from the last checkpoint to the end; returns the exit code."""
        from sorl.agent.engines import StaleWeights
        from sorl.learn.loop import Diverged, SelfTestFailed, Trainer

        trainer = Trainer(self._settings, start, self._recorder, tokenizer, pulse)
        self._trainer = trainer
        first_start = self._recorder.started_at() if trainer.resume(self._folder / CHECKPOINTS) else None
        self._constant = self._constants(first_start or datetime.now(UTC).replace(tzinfo=None))
        pulse.begin()
        beat_at_passes(pulse, trainer.learner.policy)
        self._write("running")
        if first_start is None:
            self._record_beginning(start)
        try:
            return self._train_steps()
        except (SelfTestFailed, StaleWeights) as error:
            self._record_failure(error)
            return FAILED
        except Diverged as error:
            # A divergence is a result, not a failure: the run is over and everything up to it is kept.
            self._recorder.diverged(trainer.step, str(error))
            self._write("finished", str(error))
            return FINISHED
        # The edge of the process: whatever broke must reach the log and the table.
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            self._write("failed", f"{type(error).__name__}: {error}")
            return FAILED

    def _train_steps(self) -> int:
        """Train step by step; returns the exit code."""
        from sorl.learn.guard import Guard

        guard = None
        if self._settings.guard is not None:
            guard = Guard(self._settings, self._folder, self._identity)
        self._trainer.self_test()
        for row in self._trainer.steps():
            self._print(row)
            # Before a checkpoint: a run that goes on from one does not raise the alarm again.
            if guard is not None and self._ends_by(guard):
                return FINISHED
            if self._interrupted:
                self._trainer.save(self._folder / CHECKPOINTS)
                step = self._trainer.step - 1
                self._write("interrupted", f"stopped by {self._interrupted[-1]} after step {step}")
                return INTERRUPTED
            self._save()
        self._trainer.save(self._folder / CHECKPOINTS)
        self._write("finished", self._trainer.stopped or None)
        return FINISHED

    def _print(self, row: dict[str, Any]) -> None:
        """Print the line of a step. The step comes first: the grid knows the line by it."""
        line: dict[str, object] = {"step": self._trainer.step, "steps": self._settings.iterations}
        line |= {name: row.get(name) for name in ("success", "clip_frac", "entropy")}
        line |= {"grad_norm": row.get("grad_norm_max")}
        line |= {"seconds": round(self._trainer.seconds, 3), "at": time.time()}
        print(json.dumps(line), file=self._out, flush=True)

    def _ends_by(self, guard: Guard) -> bool:
        """Record what the guard decides; whether it ends this start."""
        decision = guard.decide(self._recorder.raised, self._recorder.onset)
        if decision is None:
            return False
        self._recorder.events([decision.event])
        if not decision.ends:
            return False
        self._recorder.flush()
        if decision.rollback is not None:
            decision.rollback.write(self._folder)
        self._write("finished", decision.event.message)
        return True

    def _save(self) -> None:
        """Save the checkpoints that are due after a step: to resume from, and to fork from."""
        every = self._settings.record.checkpoint_every
        rungs = self._trainer.steps_between_rungs
        if every and self._trainer.step % every == 0:
            self._trainer.save(self._folder / CHECKPOINTS)
        if rungs and self._trainer.step % rungs == 0:
            self._trainer.save_rung(self._folder / LADDER)

    def _record_beginning(self, start: Path) -> None:
        """Leave the events of a run that begins: what its imitation came to, and what it goes on from."""
        from sorl.collapse.events import Event
        from sorl.learn.guard import goes_on
        from sorl.learn.warmstart import result_of

        imitated = result_of(start)
        if imitated is not None:
            self._recorder.events([Event(0, "warm_start", "info", imitated.sentence)])
        going_on = goes_on(self._settings)
        if going_on is not None:
            self._recorder.events([going_on])

    def _record_failure(self, error: Exception) -> None:
        """Record that a check has failed: in the log, the table, and of stale weights as an event."""
        from sorl.agent.engines import StaleWeights
        from sorl.collapse.events import Event

        if isinstance(error, StaleWeights):
            measured = ("sync_error", error.error, error.tolerance)
            stale = Event(self._trainer.step, "stale_weights", "critical", str(error), *measured)
            self._recorder.events([stale])
        print(f"sorl: {error}", file=sys.stderr)
        self._write("failed", str(error))

    def _write(self, status: str, reason: str | None = None) -> None:
        """Record the row of the run as it stands."""
        trainer = self._trainer
        self._recorder.run(self._constant, status, reason, steps=trainer.step, seconds=trainer.seconds)

    def _constants(self, started_at: datetime) -> dict[str, Any]:
        """The columns of the run's row that never change."""
        identity = self._identity
        versions = {name: version(name) for name in ("sorl", "torch", "transformers", "numpy")}
        versions |= {
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
        }
        row = {key: identity[key] for key in ("experiment", "algorithm", "arm", "seed", "config_hash")}
        row |= {key: identity.get(key) for key in ("generation", "attempt")}
        fork = self._settings.fork
        if fork is not None:
            row |= {"parent": fork.run, "forked_at": fork.at_step, "draw": self._settings.draw}
        row |= {"config": self._settings.model_dump_json(), "versions": json.dumps(versions)}
        return row | {"started_at": started_at}
