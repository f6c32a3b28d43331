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
from typing import IO, TYPE_CHECKING, TextIO

from sorl.learn.pulse import Pulse, beat_at_passes
from sorl.spec import InputError, RunSettings
from sorl.spec.files import MIB, from_toml, lock_file, read_text
from sorl.spec.heartbeat import NAME
from sorl.spec.names import LADDER

if TYPE_CHECKING:
    from sorl.collapse.events import Rule

# exit codes
FINISHED = 0
FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 3
HELD = 4
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
        from sorl.agent.engines import StaleWeights
        from sorl.collapse.events import Event
        from sorl.learn.checkpoint import checkpoint_of, checkpoints, take_over
        from sorl.learn.guard import Guard, goes_on
        from sorl.learn.loop import Diverged, SelfTestFailed, Trainer
        from sorl.learn.warmstart import ensure, result_of, tokenizer_of
        from sorl.recording.recorder import Recorder

        settings = _measure_precision(folder, settings)
        start = ensure(settings, cache, pulse)
        interrupted: list[str] = []  # from here on Ctrl-C and SIGTERM wait for the end of a step
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda caught, _: interrupted.append(signal.Signals(caught).name))
        tokenizer = tokenizer_of(start)
        fork = settings.fork
        own = folder / "checkpoints"
        # The parent's state is a fork's own first checkpoint; what a fault remembers is in none, so it starts
        # again.
        if fork is not None and (settings.fault is not None or not checkpoints(own)):
            take_over(
                checkpoint_of(folder.parents[1] / fork.experiment / fork.run / LADDER, fork.at_step), own
            )
        decode = tokenizer.convert_ids_to_tokens
        bands = _band_rules_of(folder, settings)
        with Recorder(folder, identity["run_id"], settings, decode, band_rules=bands) as recorder:
            trainer = Trainer(settings, start, recorder, tokenizer, pulse)
            first = recorder.started_at() if trainer.resume(own) else None
            constant = {
                key: identity[key] for key in ("experiment", "algorithm", "arm", "seed", "config_hash")
            }
            constant |= {key: identity.get(key) for key in ("generation", "attempt")}
            versions = {name: version(name) for name in ("sorl", "torch", "transformers", "numpy")}
            versions |= {
                "python": platform.python_version(),
                "machine": f"{platform.system()} {platform.machine()}",
            }
            if fork is not None:
                constant |= {"parent": fork.run, "forked_at": fork.at_step, "draw": settings.draw}
            constant |= {"config": settings.model_dump_json(), "versions": json.dumps(versions)}
            constant |= {"started_at": first or datetime.now(UTC).replace(tzinfo=None)}

            def write(status: str, reason: str | None = None) -> None:
                recorder.run(constant, status, reason, steps=trainer.step, seconds=trainer.seconds)

            pulse.begin()
            beat_at_passes(pulse, trainer.learner.policy)
            write("running")
            if first is None and (imitated := result_of(start)) is not None:
                recorder.events([Event(0, "warm_start", "info", imitated.sentence)])
            if first is None and (going_on := goes_on(settings)) is not None:
                recorder.events([going_on])
            guard = Guard(settings, folder, identity) if settings.guard is not None else None
            every = settings.record.checkpoint_every
            rungs = settings.record.ladder
            try:
                trainer.self_test()
                for row in trainer.steps():
                    # The step comes first: the grid knows the line by it.
                    line: dict[str, object] = {"step": trainer.step, "steps": settings.iterations}
                    line |= {name: row.get(name) for name in ("success", "clip_frac", "entropy")}
                    line |= {"grad_norm": row.get("grad_norm_max")}
                    line |= {"seconds": round(trainer.seconds, 3), "at": time.time()}
                    print(json.dumps(line), file=out, flush=True)
                    # Before a checkpoint: a run that goes on from one does not raise the alarm again.
                    decision = guard.decide(recorder.raised, recorder.onset) if guard is not None else None
                    if decision is not None:
                        recorder.events([decision.event])
                        if decision.ends:
                            recorder.flush()
                            if decision.rollback is not None:
                                decision.rollback.write(folder)
                            write("finished", decision.event.message)
                            return FINISHED
                    if interrupted:
                        trainer.save(own)
                        write("interrupted", f"stopped by {interrupted[-1]} after step {trainer.step - 1}")
                        return INTERRUPTED
                    if every and trainer.step % every == 0:
                        trainer.save(own)
                    if rungs and trainer.step % rungs == 0:
                        trainer.save_rung(folder / LADDER)
                trainer.save(own)
                write("finished", trainer.stopped or None)
            except (SelfTestFailed, StaleWeights) as error:
                if isinstance(error, StaleWeights):
                    measured = ("sync_error", error.error, error.tolerance)
                    recorder.events([Event(trainer.step, "stale_weights", "critical", str(error), *measured)])
                print(f"sorl: {error}", file=sys.stderr)
                write("failed", str(error))
                return FAILED
            except Diverged as error:
                # A divergence is a result, not a failure: the run is over and everything up to it is kept.
                recorder.diverged(trainer.step, str(error))
                write("finished", str(error))
            # The edge of the process: whatever broke must reach the log and the table.
            except Exception as error:  # noqa: BLE001
                traceback.print_exc()
                write("failed", f"{type(error).__name__}: {error}")
                return FAILED
    return FINISHED
