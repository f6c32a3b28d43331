"""The diagnostics that left their own past: first of all before a fall, or at the fall itself."""

from collections.abc import Iterator

import numpy as np

from sorl.diagnosis.changepoint import MARGIN, Evidence, first, spread
from sorl.diagnosis.log import EVALUATION, PART, Log
from sorl.measures import column_types

_KEYS = ("run_id", "step", "written_at", "success")
# No signals of training: clocks, fingerprints, counters.
_NO_SIGNAL = (
    "seconds_",
    "tokens_per_second",
    "memory_",
    "questions_hash",
    "batch_hash",
    "heldout_episodes",
    "updates",
    "first_log_ratio_abs_max",
    "revisit",
    "sampler_revisit",
    "trainer_revisit",
)
_LEAST = 0.01  # spread of a fraction: of 64 trajectories one is 0.016


def signals(log: Log) -> Iterator[tuple[str, float]]:
    """Yield each step diagnostic that may say something, and the least spread that it can have.

    Of the columns that another trainer has under its own names only parts of the reward and evaluations are
    known to be no clock, counter or hardware.
    """
    ours = column_types("step")
    for column in log.table("step").columns:
        is_known = column in ours or column.startswith(PART) or EVALUATION.match(column) is not None
        if not is_known or column in _KEYS or column.startswith(_NO_SIGNAL):
            continue
        yield column, _LEAST if column.endswith("_frac") else 0.0


def moved(log: Log) -> tuple[Evidence, ...]:
    """The step diagnostics that left their own past, earliest first; those after a collapse say nothing about
    it.
    """
    looks = (first(log.series("step", column), points=2, least=least) for column, least in signals(log))
    found = (left for left in looks if left is not None and (log.onset is None or left.step <= log.onset))
    return tuple(sorted(found, key=lambda m: (m.step, m.column)))


def swung(log: Log) -> tuple[Evidence, ...]:
    """The step diagnostics that, between onset and detection (the end), took a value never seen before the
    onset; the largest deviation first.

    Judged by all of the past, however short: a fall in the first steps has no other.
    """
    found = []
    certain = log.first_known("detection_step")
    for column, least in signals(log) if log.onset is not None else ():
        series = log.series("step", column)
        steps = series.index.to_numpy()
        values = series.to_numpy()
        past = values[(steps < log.onset) & np.isfinite(values)]
        at = np.flatnonzero((steps >= log.onset) & (steps <= (np.inf if certain is None else certain)))
        if len(past) < 2 or not len(at):
            continue
        usual, wide = spread(past, 0.05, least)
        i = int(at[np.argmax(np.abs(values[at] - usual))])
        away = abs(values[i] - usual) / wide
        if away > MARGIN and not past.min() <= values[i] <= past.max():
            found.append((-away, Evidence(f"step.{column}", int(steps[i]), float(values[i]), usual)))
    return tuple(one for _, one in sorted(found, key=lambda pair: (pair[0], pair[1].column)))
