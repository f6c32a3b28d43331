"""Sentences about one run: its sharpest step, and what an event said of a fall when it was seen."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup

from sorl.app.choices import share_of
from sorl.app.data import Row
from sorl.app.figures.runs import Signal
from sorl.app.text import duration, number
from sorl.diagnosis.changepoint import MARGIN, spread
from sorl.diagnosis.standing import counted, from_onset

_BEGAN = re.compile(r"the fall began after step (\d+)")


def moment_sentence(signal: Signal, rows: Sequence[Row]) -> Markup | str:
    """Say at which step a run is at its sharpest, and which trajectory did most there.

    `rows` answers query `ranking`, ranked. Of a run that fell the step lies within the interval of its onset:
    where the curve goes farther elsewhere, that is said too.
    """
    values = signal.points.set_index("step")["value"].dropna()
    step = signal.spike
    value = float(values[step])
    sentence = _sharpest(signal, step, value, values.to_numpy(float))
    share = rows[0]["gradient_share"]
    if not sentence.startswith("The sharpest") or share is None:
        return f"{sentence}."
    most = f", the most of {len(rows)}" if len(rows) > 1 and math.isfinite(share) else ""
    return Markup("{}; {}{}.").format(sentence, share_of(rows[0], len(rows)), most)


def _sharpest(signal: Signal, step: int, value: float, values: np.ndarray) -> str:
    what = signal.title
    if signal.fall is None:
        usual, wide = spread(values, 0.05) if len(values) > 1 else (value, 1.0)
        if abs(value - usual) <= MARGIN * wide:
            at = f"{number(value)} at step {step:,}, {number(usual)} as a rule"
            return f"No step stands out by its {what}: {at}"
        return f"The sharpest moment: step {step:,}, with {what} {number(value)}"
    when = f"{from_onset(step, signal.fall.step)}, with {what} {number(value)}"
    if not signal.fall.low <= step <= signal.fall.high:  # nothing was measured about the fall
        return f"The sharpest moment: step {step:,}, {when}"
    return f"The sharpest step {signal.fall.in_words()}: step {step:,}, {when}{_farther(signal, value)}"


def _farther(signal: Signal, value: float) -> str:
    """Say where the curve of a signal goes farther than `value`; nothing where it does not."""
    known = signal.points.dropna(subset=["value"])
    values = known["value"].to_numpy(float)
    place = int(values.argmin() if signal.lowest else values.argmax())
    farthest = float(values[place])
    if farthest == value:
        return ""
    which = "lowest" if signal.lowest else "highest"
    return f" (its {which} is {number(farthest)}, at step {known['step'].iloc[place]:,.0f})"


def event_sentence(message: str, noticed: int | None, onset: int | None) -> str:
    """Return the message of an event; where all steps of the run give the fall another step, that too.

    The message was written when the fall was noticed. More steps move the estimate, or the run comes back.
    """
    began = _BEGAN.search(message)
    if began is None or (onset is not None and int(began[1]) == onset):
        return message
    when = "" if noticed is None else f" at step {noticed:,}"
    if onset is None:
        return f"{message}, as it looked{when}: no such fall lasted"
    return f"{message}, as it looked{when}; by all steps of the run it began after step {onset:,}"


def rollback_sentence(starts: pd.DataFrame) -> str:
    """Say how often a run was rolled back, and what that has cost: of query `starts`."""
    abandoned = starts[starts["abandoned"]]
    rollbacks = counted(starts["start"].nunique(), "rollback")
    seconds = duration(float(abandoned["seconds"].sum()))
    return f"After {rollbacks}: {counted(len(abandoned))} ({seconds}) were given up and trained again."
