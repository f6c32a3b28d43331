"""The guard of a run: on an alarm it says so, stops the run, or goes back to a checkpoint from before the
fall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sorl.collapse.events import Event
from sorl.learn.checkpoint import checkpoints
from sorl.spec import GuardSettings, RunSettings
from sorl.spec.baselines import KIND as BASELINE
from sorl.spec.names import LADDER
from sorl.spec.rollback import Rollback

ROLLBACK = "rollback"  # the kind of its events; of the others the kind is what the guard is set to do


class Decision(NamedTuple):
    """What a guard does: the event that says it, and the rollback if the run goes back."""

    event: Event
    ends: bool  # whether the run ends here
    rollback: Rollback | None = None


class Guard:
    """Looks at the events of each step, and decides what to do about the first alarm that it is set to."""

    def __init__(self, settings: RunSettings, folder: Path, identity: Mapping[str, Any]) -> None:
        assert settings.guard is not None
        self._guard: GuardSettings = settings.guard
        self._fork = settings.fork
        self._ladder = folder / LADDER
        self._experiment = str(identity["experiment"])
        self._run_id = str(identity["run_id"])
        self._is_done = False

    def decide(self, events: Sequence[Event], onset: int | None) -> Decision | None:
        """Return what to do about the events of a step; None where none is an alarm, or one was answered
        before.

        `onset`: the step after which a fall began, as far as the collapse rule knows.
        """
        alarm = next((event for event in events if self._rings(event)), None)
        if alarm is None or self._is_done:
            return None
        self._is_done = True
        reason = _words_of(alarm, onset)
        if self._guard.do == "alert":
            return Decision(Event(alarm.step, "alert", "warning", reason), ends=False)
        if self._guard.do == "stop":
            return Decision(Event(alarm.step, "stop", "warning", f"{reason}; stopped"), ends=True)
        return self._roll_back(alarm, onset, reason)

    def _rings(self, event: Event) -> bool:
        """Whether an event is one that the guard is set to: by its kind, or as `KIND:DIAGNOSTIC`."""
        names = {event.kind}
        if event.diagnostic:
            names.add(f"{event.kind}:{event.diagnostic}")
        return not names.isdisjoint(self._guard.on)

    def _roll_back(self, alarm: Event, onset: int | None, reason: str) -> Decision:
        number = self._guard.done + 1
        most = len(self._guard.changes)
        if number > most:
            used = "the only rollback is used" if most == 1 else f"all {most} rollbacks are used"
            said = f"{reason}; {used}, so the run goes on as it is"
            return Decision(Event(alarm.step, ROLLBACK, "warning", said), ends=False)
        began = alarm.step if onset is None else min(onset, alarm.step)
        source = self._source(began - self._guard.before)
        if source is None:
            said = (
                f"{reason}; there is no checkpoint from step {max(0, began - self._guard.before)} or before"
                " (record.ladder), so the run stops"
            )
            return Decision(Event(alarm.step, ROLLBACK, "critical", said), ends=True)
        change = dict(self._guard.changes[number - 1])
        rollback = Rollback(*source, alarm.step, reason, change, number, most)
        return Decision(Event(alarm.step, ROLLBACK, "warning", rollback.words), ends=True, rollback=rollback)

    def _source(self, latest: int) -> _Source | None:
        """Return the newest checkpoint up to a step, or the one that this run began with."""
        rungs = [int(rung.name) for rung in checkpoints(self._ladder) if int(rung.name) <= latest]
        if rungs:
            return _Source(self._experiment, self._run_id, max(rungs))
        if self._fork is not None:
            return _Source(self._fork.experiment, self._fork.run, self._fork.at_step)
        return None


def goes_on(settings: RunSettings) -> Event | None:
    """Return the event that a run begins with after a rollback; None of any other run."""
    if settings.guard is None or settings.fork is None or not settings.guard.done:
        return None
    step = settings.fork.at_step
    message = f"goes on from step {step} of {settings.fork.run}, after rollback {settings.guard.done}"
    return Event(step, ROLLBACK, "info", message)


class _Source(NamedTuple):
    """A checkpoint: of which run, and of which step."""

    experiment: str
    run: str
    at_step: int


def _words_of(alarm: Event, onset: int | None) -> str:
    is_of_one_column = alarm.kind in ("alarm", BASELINE)
    named = f"{alarm.kind} {alarm.diagnostic}" if is_of_one_column else alarm.kind
    began = f", the fall began after step {onset}" if onset is not None else ""
    return f"{named} at step {alarm.step}{began}"
