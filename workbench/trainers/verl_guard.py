"""verl: train under a guard that reads what verl prints, and that goes back to a checkpoint when it falls.

verl has no callback, but it can resume from any checkpoint: weights, optimizer, schedule and the place in the
data. So the guard stands outside. It starts the command, follows its output, stops it when the score has
collapsed, and starts it again from a checkpoint before the fall, with one option changed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from sorl.collapse.unsized import FEWEST, judge_unsized
from sorl.importing.logs import read
from sorl.spec import InputError
from sorl.spec.files import MIB, from_json, read_text

STATE = "guard.json"  # in the guard's folder: the starts so far
CHECKPOINT = "global_step_"
SAVE_FREQ = "trainer.save_freq"
FOLDER = "trainer.default_local_dir"
LOGGER = "trainer.logger"
DELETES = "trainer.del_local_ckpt_after_load"
RESUME_MODE = "trainer.resume_mode"
RESUME_FROM = "trainer.resume_from_path"
GRACE_SECONDS = 60.0  # between the request to stop and the kill


class Fall(NamedTuple):
    """A collapse of the score in what verl printed."""

    onset: int  # last step before the fall
    last_step: int  # that was read

    @property
    def words(self) -> str:
        """Return it as a sentence of the terminal."""
        return f"the score collapsed after step {self.onset} (seen at step {self.last_step})"


@dataclass(frozen=True)
class Start:
    """One start of the command."""

    log: str  # name of a file in the guard's folder
    overrides: dict[str, str] = field(default_factory=dict)  # options that the guard adds
    at_step: int | None = None  # of the checkpoint that it begins with; None: verl chooses
    reason: str = ""  # of the rollback before it; empty without one
    rollbacks: int = 0  # that lie behind it
    started_at: float = 0.0  # seconds since 1970


@dataclass(frozen=True)
class Plan:
    """What a guard is asked to do."""

    command: tuple[str, ...]
    checkpoints: Path  # where verl writes global_step_N
    changes: tuple[dict[str, str], ...]  # options by name, one set a rollback; each stays
    before: int = 1  # steps that the checkpoint lies before the onset, at least
    poll_seconds: float = 30.0

    @classmethod
    def of(
        cls,
        command: Sequence[str],
        checkpoints: Path | None,
        changes: Sequence[Mapping[str, str]],
        before: int,
        poll_seconds: float,
    ) -> Plan:
        """Return the plan of a command. Raises InputError for one that leaves nothing to go back to."""
        options = options_of(command)
        frequency = options.get(SAVE_FREQ, "-1")
        if not frequency.isdigit() or int(frequency) == 0:
            raise InputError(
                f"the command writes no checkpoints, so there is nothing to go back to: add {SAVE_FREQ}=20"
            )
        if "console" not in options.get(LOGGER, "console"):
            raise InputError(f"the guard reads what verl prints: add console to {LOGGER}")
        if options.get(DELETES, "False").lower() == "true":
            raise InputError(f"{DELETES}=True deletes the checkpoint that verl goes back to: leave it out")
        if checkpoints is None and FOLDER not in options:
            raise InputError(
                f"where are the checkpoints? Add {FOLDER}=DIR to the command, or give --checkpoints DIR"
            )
        folder = checkpoints or Path(options[FOLDER])
        copies = tuple(dict(change) for change in changes)
        return cls(tuple(command), folder, copies, before, poll_seconds)


def options_of(command: Sequence[str]) -> dict[str, str]:
    """Return the Hydra overrides of a command, without `+` before their names."""
    options = {}
    for word in command:
        name, is_override, value = word.lstrip("+").partition("=")
        if is_override and not name.startswith("-"):
            options[name] = value
    return options


def with_overrides(command: Sequence[str], overrides: Mapping[str, str]) -> list[str]:
    """Return a command with some options set: where it sets one already, in that place."""
    words = list(command)
    places = {word.lstrip("+").partition("=")[0]: place for place, word in enumerate(words) if "=" in word}
    for name, value in overrides.items():
        place = places.get(name)
        if place is None:
            words.append(f"{name}={value}")
        else:
            plus = words[place][: len(words[place]) - len(words[place].lstrip("+"))]
            words[place] = f"{plus}{name}={value}"
    return words


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder that still hold an actor, ascending."""
    steps = []
    for checkpoint in folder.glob(f"{CHECKPOINT}*"):
        number = checkpoint.name.removeprefix(CHECKPOINT)
        actor = checkpoint / "actor"
        if number.isdigit() and actor.is_dir() and any(actor.iterdir()):
            steps.append(int(number))
    return sorted(steps)


def read_scores(starts: Sequence[Start], folder: Path) -> pd.Series:
    """Return the score by step over all starts: a later start replaces what it trains again."""
    scores = pd.Series(dtype=float)
    for start in starts:
        if start.at_step is not None:
            scores = scores[scores.index <= start.at_step]
        try:
            own = read(folder / start.log).series("step", "success").dropna()
        except (InputError, OSError):
            continue  # nothing is printed yet
        if len(own):
            scores = pd.concat([scores[scores.index < own.index.min()], own])
    return scores


def find_fall(scores: pd.Series) -> Fall | None:
    """Return the collapse in a score by step; None without one, or while there are too few steps."""
    if len(scores) < FEWEST:
        return None
    steps = [int(step) for step in scores.index]
    verdict = judge_unsized(scores.tolist(), steps)
    onset = verdict.columns().get("collapse_step")
    if verdict.outcome != "collapsed" or not isinstance(onset, int):
        return None
    return Fall(onset, steps[-1])


class Guard:
    """Runs a command of verl, watches its log, and starts it again from a checkpoint after a fall."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        """`folder`: where logs and state are written; `say` prints a line for the user.

        Raises InputError for a folder of another command.
        """
        self.plan = plan
        self.folder = folder
        self.starts = self._read_state()
        self._say = say
        self._gave_up = False
        self._bytes_judged = 0

    def run(self) -> int:
        """Train until the command ends by itself, and return its exit code."""
        self.folder.mkdir(parents=True, exist_ok=True)
        start = self._continued() if self.starts else Start("start-1.log")
        while True:
            outcome = self._train(start)
            if isinstance(outcome, int):
                return outcome
            start = outcome

    def _train(self, start: Start) -> int | Start:
        """Run one start; return the exit code of a command that ended, or the start that follows a fall."""
        self.starts.append(replace(start, started_at=time.time()))
        self._write_state()
        with (self.folder / start.log).open("wb", buffering=0) as log:
            process = subprocess.Popen(
                with_overrides(self.plan.command, start.overrides),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            copying = threading.Thread(target=_copy_lines, args=(process, log, self._say), daemon=True)
            copying.start()
            try:
                return self._watch(process)
            finally:
                stop_group(process)
                copying.join()

    def _watch(self, process: subprocess.Popen[bytes]) -> int | Start:
        while True:
            try:
                return process.wait(self.plan.poll_seconds)
            except subprocess.TimeoutExpired:
                following = self._look()
                if following is not None:
                    return following

    def _look(self) -> Start | None:
        """Decide; what cannot be judged never ends the training."""
        if self._gave_up:
            return None
        try:
            return self._decide()
        except Exception as error:  # noqa: BLE001  the edge between a training and what only watches it
            self._give_up(f"its output cannot be judged ({type(error).__name__}: {error})")
            return None

    def _decide(self) -> Start | None:
        """Return the start after a rollback, if the score has fallen and there is a way back."""
        size = (self.folder / self.starts[-1].log).stat().st_size
        if size == self._bytes_judged:
            return None
        self._bytes_judged = size
        fall = find_fall(read_scores(self.starts, self.folder))
        if fall is None:
            return None
        last = self.starts[-1]
        if last.rollbacks == len(self.plan.changes):
            self._give_up(f"{fall.words}; all {last.rollbacks} changes are used")
            return None
        latest = fall.onset - self.plan.before
        usable = [step for step in checkpoint_steps(self.plan.checkpoints) if step <= latest]
        if not usable:
            self._give_up(
                f"{fall.words}; '{self.plan.checkpoints}' has no checkpoint from step {latest} or before"
            )
            return None
        return self._roll_back(fall, usable[-1])

    def _give_up(self, why: str) -> None:
        self._gave_up = True
        self._say(f"{why}, so the training goes on as it is")

    def _roll_back(self, fall: Fall, at_step: int) -> Start:
        last = self.starts[-1]
        change = self.plan.changes[last.rollbacks]
        number = last.rollbacks + 1
        words = ", ".join(f"{name}={value}" for name, value in change.items())
        reason = (
            f"{fall.words}; back to step {at_step} with {words or 'no change'}"
            f" (rollback {number} of {len(self.plan.changes)})"
        )
        self._say(reason)
        return Start(
            log=f"start-{len(self.starts) + 1}.log",
            overrides={**last.overrides, **change, **self._resume_from(at_step)},
            at_step=at_step,
            reason=reason,
            rollbacks=number,
        )

    def _resume_from(self, step: int) -> dict[str, str]:
        checkpoint = (self.plan.checkpoints / f"{CHECKPOINT}{step}").resolve()
        return {RESUME_MODE: "resume_path", RESUME_FROM: str(checkpoint)}

    def _continued(self) -> Start:
        """Return the start that goes on where an interrupted guard was.

        After a rollback verl's own choice, the newest checkpoint, may be one that was given up: only those
        written since then count.
        """
        last = self.starts[-1]
        log = f"start-{len(self.starts) + 1}.log"
        if last.at_step is None:
            return replace(last, log=log)
        written_since = [
            step
            for step in checkpoint_steps(self.plan.checkpoints)
            if (self.plan.checkpoints / f"{CHECKPOINT}{step}").stat().st_mtime >= last.started_at
        ]
        step = max(written_since, default=last.at_step)
        overrides = {**last.overrides, **self._resume_from(step)}
        return replace(last, log=log, overrides=overrides, at_step=step)

    def _read_state(self) -> list[Start]:
        file = self.folder / STATE
        if not file.is_file():
            return []
        try:
            state = from_json(read_text(file, MIB))
            starts = [Start(**start) for start in state["starts"]]
            command = tuple(state["command"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"'{file}' cannot be read: {error}; name another folder with --folder") from None
        if command != self.plan.command:
            raise InputError(f"'{self.folder}' belongs to another command; name another folder with --folder")
        return starts

    def _write_state(self) -> None:
        """Write the file in one rename."""
        state = {"command": self.plan.command, "starts": [asdict(start) for start in self.starts]}
        unfinished = self.folder / f".{STATE}"
        unfinished.write_text(json.dumps(state, indent=1), encoding="utf-8")
        unfinished.replace(self.folder / STATE)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it has started, kindly first; nothing happens to one that has ended."""
    if process.poll() is not None:
        return
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
            return


def _copy_lines(process: subprocess.Popen[bytes], log: FileIO, say: Callable[[str], None]) -> None:
    """Copy what a command prints to the terminal and to its log.

    It reads on when one of them refuses: a command that nobody reads from stops in the middle.
    """
    assert process.stdout is not None
    is_full = False
    for line in process.stdout:
        try:
            log.write(line)
        except OSError as error:
            if not is_full:
                say(f"its log cannot be written ({error}): the training goes on and is not watched")
            is_full = True
        with suppress(OSError):  # the terminal is gone
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
