"""TRL: `guard(trainer, changes=[...])` before `trainer.train()` goes back to weights from before a fall of
the reward and goes on with one change.

What comes back is the weights, the optimizer, the schedule of the learning rate and the random states. The
data goes on where it is: TRL reads it from an iterator that cannot be rewound.
"""

from __future__ import annotations

import copy
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from sorl.collapse.events import Event
from sorl.collapse.rule import Watch
from sorl.spec import InputError, nearest

log = logging.getLogger("sorl.guard")

EVERY = 10  # updates between two snapshots
BEFORE = 10  # updates that a snapshot lies before the onset of a fall, at least
KEPT = 20  # snapshots, the newest ones; each is a copy of what is trained and of its optimizer
REWARD = "reward"  # the metric of TRL that a fall is judged by


class RolledBack(NamedTuple):
    """A rollback that has happened; steps count optimizer updates, as TRL does."""

    alarm_step: int
    onset: int
    back_to: int  # the update whose weights came back
    change: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class Snapshot:
    """The state of a trainer after an update, on the CPU."""

    step: int
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    python: Any
    numpy: Any
    torch: torch.Tensor
    history: list[tuple[int, float]]  # step and reward of what the watch had seen


class Guard:
    """Watches the reward of one trainer, keeps snapshots, and puts one back when the reward falls.

    `rollbacks` lists what it has done.
    """

    def __init__(
        self, trainer: Any, changes: Sequence[Mapping[str, Any]], *, every: int, before: int, keep: int
    ) -> None:
        self.trainer = trainer
        self.changes = [dict(change) for change in changes]
        self.before = before
        self.every = every
        self.snapshots: deque[Snapshot] = deque(maxlen=keep)
        self.rollbacks: list[RolledBack] = []
        self._history: list[tuple[int, float]] = []
        self._watch = Watch()
        self._due: RolledBack | None = None

    def logged(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Look at what TRL logs of an update."""
        reward = metrics.get(REWARD)
        if not isinstance(reward, int | float) or self._due is not None:
            return
        self._history.append((step, float(reward)))
        for event in self._watch.step(step, {"success": float(reward)}):
            if event.kind == "collapse" and len(self.rollbacks) < len(self.changes):
                self._due = self._answer(event)

    def stepped(self, step: int) -> None:
        """After an update: put a snapshot back if one is due, else keep one from time to time.

        A rollback waits until new completions are due, so that no batch is trained by two policies.
        """
        if self._due is not None:
            if self._is_generation_due():
                self._roll_back(self._due)
        elif step % self.every == 0:
            self.snapshots.append(self._snapshot(step))

    def _is_generation_due(self) -> bool:
        """Whether the trainer samples completions before its next update; also where it does not say so."""
        trainer = self.trainer
        micro_batches = getattr(trainer.args, "steps_per_generation", 1) * getattr(
            trainer, "num_iterations", 1
        )
        return bool(getattr(trainer, "_step", 0) % micro_batches == 0)

    def _answer(self, alarm: Event) -> RolledBack | None:
        onset = self._onset()
        old_enough = [one.step for one in self.snapshots if one.step <= onset - self.before]
        if not old_enough:
            log.warning(
                "%s at update %d, but no snapshot is older than update %d: the run goes on as it is",
                alarm.message,
                alarm.step,
                onset - self.before,
            )
            return None
        change = self.changes[len(self.rollbacks)]
        return RolledBack(alarm.step, onset, max(old_enough), change, alarm.message)

    def _onset(self) -> int:
        columns = self._watch.verdict.columns()
        onset = columns.get("collapse_step")
        return int(onset) if isinstance(onset, int) else self._history[-1][0]

    def _roll_back(self, due: RolledBack) -> None:
        self._due = None
        while self.snapshots[-1].step > due.back_to:
            self.snapshots.pop()
        self._restore(self.snapshots[-1])
        self.rollbacks.append(due)
        for earlier in self.rollbacks:  # the snapshot may be older than a change
            for option, value in earlier.change.items():
                CHANGES[option](self.trainer, value)
        words = _words_of(due, len(self.rollbacks), len(self.changes))
        log.warning("%s", words)
        recording = getattr(self.trainer, "sorl_recording", None)  # of record(), if it was called
        if recording is not None:
            recording.say_rollback(words)

    def _snapshot(self, step: int) -> Snapshot:
        trainer = self.trainer
        return Snapshot(
            step,
            {name: weight.detach().to("cpu", copy=True) for name, weight in self._trained()},
            _on_cpu(trainer.optimizer.state_dict()),
            copy.deepcopy(trainer.lr_scheduler.state_dict()),
            random.getstate(),
            np.random.get_state(),
            torch.get_rng_state(),
            list(self._history),
        )

    def _restore(self, snapshot: Snapshot) -> None:
        trainer = self.trainer
        with torch.no_grad():
            for name, weight in self._trained():
                weight.copy_(snapshot.weights[name])
        # The optimizer takes over the tensors that it is given: the snapshot keeps its own.
        trainer.optimizer.load_state_dict(copy.deepcopy(snapshot.optimizer))
        trainer.lr_scheduler.load_state_dict(copy.deepcopy(snapshot.schedule))
        random.setstate(snapshot.python)
        np.random.set_state(snapshot.numpy)
        torch.set_rng_state(snapshot.torch)
        # Completions of the policy that fell are not trained on.
        trainer._buffered_inputs = None
        self._history = list(snapshot.history)
        self._watch = Watch()
        for step, reward in self._history:
            self._watch.step(step, {"success": reward})

    def _trained(self) -> list[tuple[str, Any]]:
        named = self.trainer.model.named_parameters()
        return [(name, weight) for name, weight in named if weight.requires_grad]


def guard(
    trainer: Any,
    changes: Sequence[Mapping[str, Any]],
    *,
    every: int = EVERY,
    before: int = BEFORE,
    keep: int = KEPT,
) -> Guard:
    """Roll a GRPOTrainer back when its reward falls: one of `changes` a rollback, in order; each stays.

    `every`: updates between two snapshots; `before`: updates that the snapshot lies before the onset of the
    fall, at least; `keep`: snapshots in memory. Raises InputError for a change that TRL cannot make while it
    trains, and for weights that are spread over processes.
    """
    for name in ("is_deepspeed_enabled", "is_fsdp_enabled"):
        if getattr(trainer, name, False):
            raise InputError(f"guard() cannot put back weights that are spread over processes ({name})")
    if trainer.args.world_size > 1:
        raise InputError("guard() works in one process: each would see another reward, and fall back alone")
    if not changes:
        raise InputError('guard() needs changes, one a rollback: changes=[{"learning_rate": 1e-6}]')
    for change in changes:
        for option in change:
            if option not in CHANGES:
                allowed = ", ".join(CHANGES)
                raise InputError(
                    f"guard() cannot change '{option}'{nearest(option, CHANGES)} while TRL trains; it can:"
                    f" {allowed}"
                )
        if "beta" in change and not trainer.beta:
            raise InputError("guard() cannot change beta from 0: the trainer has loaded no reference model")
    watching = Guard(trainer, changes, every=every, before=before, keep=keep)
    trainer.add_callback(_callback(watching))
    return watching


def _callback(watching: Guard) -> Any:
    """Return the callback that tells a guard what the trainer does."""
    from transformers import TrainerCallback

    class Watching(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            watching.logged(state.global_step, logs or {})

        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            # Between two updates: the log of the last one has been written.
            watching.stepped(state.global_step)

    return Watching()


def _words_of(done: RolledBack, number: int, most: int) -> str:
    """Return what a rollback did, as the log and an event say it."""
    change = ", ".join(f"{option} = {value}" for option, value in done.change.items()) or "no change"
    return (
        f"rolled back at update {done.alarm_step}: {done.reason}; the weights of update {done.back_to} are"
        f" back, with {change} (rollback {number} of {most})"
    )


def _set_learning_rate(trainer: Any, value: float) -> None:
    """Set the rate that the schedule starts from, and the present one in proportion."""
    for place, group in enumerate(trainer.optimizer.param_groups):
        base = trainer.lr_scheduler.base_lrs[place]
        group["lr"] *= value / base if base else 1.0
        group["initial_lr"] = value
        trainer.lr_scheduler.base_lrs[place] = value


def _set_argument(name: str) -> Callable[[Any, Any], None]:
    return lambda trainer, value: setattr(trainer.args, name, value)


def _set_attribute(name: str) -> Callable[[Any, Any], None]:
    return lambda trainer, value: setattr(trainer, name, value)


# Option of TRL -> how it is changed in the middle of a run.
CHANGES: Mapping[str, Callable[[Any, Any], None]] = {
    "learning_rate": _set_learning_rate,
    "max_grad_norm": _set_argument("max_grad_norm"),
    "beta": _set_attribute("beta"),
    "epsilon": _set_attribute("epsilon_low"),
    "epsilon_high": _set_attribute("epsilon_high"),
}


def _on_cpu(state: Any) -> Any:
    """Return a copy of nested state with its tensors on the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: _on_cpu(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_on_cpu(value) for value in state)
    return copy.deepcopy(state)
