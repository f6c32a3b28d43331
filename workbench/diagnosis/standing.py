"""How a run stands, in sentences: its outcome, from what to what success fell and since when, what came
after.
"""

import math

import numpy as np
import pandas as pd

from sorl.collapse.unsized import FEWEST, SHORTEST, SIGN, UNCORRELATED, Change
from sorl.diagnosis.changepoint import SMOOTH, Level
from sorl.diagnosis.log import Log
from sorl.spec import NOT_RISEN

FINAL = 10  # steps that a last mean is of, as run.final_success
MOST = 100  # standard errors of a change, above which their number says nothing more
PEAK = 5  # steps of the median that a peak is, as run.peak_success
_WORDS = {
    "healthy": "Healthy",
    "mild": "A mild fall",
    "collapsed": "Collapsed",
    "recovered": "Collapsed and recovered",
    "falling": "Falling at its end, too late for the collapse rule",
    "diverged": "Diverged",
    "no_learning": "Did not rise above its start",
    "no_clear_change": "No clear change",
    "saturated": "Saturated: started near its top and stayed",
}
_DOWN = ("collapsed", "falling", "diverged")  # outcomes that say it already
_CRITICAL = {"non_finite": "NaN or Inf"}


def figure(value: float | None) -> str:
    """Write a number in three figures, NULL as a dash."""
    return "-" if value is None else f"{value:.3g}"


def counted(n: int, what: str = "step") -> str:
    """Write a count with its noun: 1 step, 2 steps."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def from_onset(step: int, onset: int) -> str:
    """Write where a step lies from the onset: 2 steps before it, at it, after it."""
    side = "before" if step < onset else "after"
    return "at the onset" if step == onset else f"{counted(abs(onset - step))} {side} the onset"


def standing(log: Log) -> str:
    """Say how a run stands: outcome, the fall with its figures, whether it climbs back, critical events."""
    if log.reading is not None and _knows_noise(log):
        parts = [*_by_noise(log), _critical(log)]
    else:
        parts = [*_by_counts(log), _held_out(log), _critical(log)]
    return " ".join(f"{part}." for part in parts if part)


def _knows_noise(log: Log) -> bool:
    """Whether the curve itself shows what its outcome says; a run that was filed by an older version may
    not.
    """
    fell = log.run.get("outcome") in ("collapsed", "recovered")
    return not fell or log.unsized.fall is not None


def _critical(log: Log) -> str:
    if not log.critical:
        return ""
    kinds = (f"{_CRITICAL.get(kind, kind.replace('_', ' '))} at step {step}" for step, kind in log.critical)
    return f"Critical: {', '.join(kinds)}"


# A log of unknown noise: the score is judged against the noise of its own curve.


def _by_noise(log: Log) -> list[str]:
    outcome = log.run.get("outcome")
    curve = log.unsized
    score = _score(log)
    rows = len(curve.values)
    if not rows:
        return [] if outcome == "diverged" else ["No reward was found"]
    last = _end(log)
    if outcome is None:
        few = (
            f"{counted(rows, 'row')} with a {score}, and {FEWEST} are needed to judge"
            if rows < FEWEST
            else ""
        )
        return [f"{'Running' if log.run.get('status') == 'running' else 'Undecided'}: {few or last}"]
    word = _WORDS[str(outcome)]
    if outcome in ("collapsed", "recovered"):
        return [f"{word}: {_fall(log, str(outcome))}", _began_at(log), _now(log, last)]
    if outcome == "diverged":
        return [word, f"The {score} is {last} at the end"]
    if outcome == "mild" and curve.fall is None:
        return [f"Not healthy, though the {score} held: {last} at the end"]
    if outcome == "mild":
        return [f"{word}: {_fall(log, 'mild')}", _began_at(log), _now(log, last)]
    if outcome in NOT_RISEN:
        return [f"{word}: {_flat(log)}", _sign(log)]
    return [f"{word}: {_rise(log)}, and is {last} at the end", _dip(log)]


def _score(log: Log) -> str:
    return "reward" if log.score_name == "reward" else "success rate"


def _end(log: Log) -> Level:
    values = log.unsized.values[-FINAL:]
    steps = log.unsized.steps[-FINAL:]
    return Level(float(values.mean()), steps[0], steps[-1], "mean")


def _levels(log: Log, change: Change) -> tuple[Level, Level]:
    """Return the two windows of a change as levels."""
    first, second = (log.unsized.window(at, change.length) for at in (change.first, change.second))
    return Level(*first, "mean"), Level(*second, "mean")


def _rise(log: Log) -> str:
    gain = log.unsized.gain
    if gain is None:
        return f"the {_score(log)} held"
    low, high = _levels(log, gain)
    return f"the {_score(log)} rises from {low} to {high}, {_beyond_noise(gain.score)}"


def _beyond_noise(score: float) -> str:
    """Write how sure a change is; where noise is next to nothing standard errors say nothing."""
    return "far beyond its noise" if score > MOST else f"by {score:.1f} standard errors"


def _dip(log: Log) -> str:
    change = log.unsized.change
    if change is None:
        return ""
    high, low = _levels(log, change)
    return f"In between it dips from {high} to {low}, {_beyond_noise(change.score)}"


def _fall(log: Log, outcome: str) -> str:
    change = log.unsized.change
    assert change is not None
    high, low = _levels(log, change)
    fell = f"the {_score(log)} falls from {high} to {low}, {_beyond_noise(change.score)}"
    return fell + (", and comes back" if outcome == "recovered" else "")


def _now(log: Log, last: Level) -> str:
    """Say where a score that fell ends, and whether it still falls there: the second half of the points since
    its drop, no more than a window, against the first half.
    """
    curve = log.unsized
    assert curve.change is not None
    assert curve.fall is not None
    after = sum(step > curve.fall.onset for step in curve.steps) // curve.width
    half = min(curve.change.length, after) // 2
    if half < SHORTEST:
        return f"At the end it is {last}"
    earlier = curve.points[-2 * half : -half].mean()
    latest = curve.points[-half:].mean()
    by_variogram, by_residuals = curve.noises
    noise = by_residuals if by_residuals.correlation <= UNCORRELATED else by_variogram
    falls = earlier - latest > SIGN * math.sqrt(2) * noise.error(half)
    return f"At the end it is {last}" + (", still falling" if falls else "")


def _began_at(log: Log) -> str:
    fall = log.unsized.fall
    assert fall is not None
    sure = ""
    if fall.onset_low != fall.onset_high:
        sure = f" (95 %: {fall.onset_low} to {fall.onset_high}, if it drops at once)"
    return f"Its level drops after step {fall.onset}{sure}; the fall is certain at step {fall.detection}"


def _flat(log: Log) -> str:
    curve = log.unsized
    quarter = max(3, len(curve.points) // 4)
    start = Level(*curve.window(0, quarter), "mean")
    end = Level(*curve.window(len(curve.points) - quarter, quarter), "mean")
    if not np.ptp(curve.values):
        return f"the {_score(log)} is {start}, and the same in every row"
    noise = f"single steps vary by {figure(curve.deviation)} (standard deviation)"
    return f"the {_score(log)} is {start}, then {end}; {noise}"


def _sign(log: Log) -> str:
    """Say of a score without a clear change whether its end differs from its start by more than chance as a
    rule makes.
    """
    gain, error = log.unsized.drift
    if abs(gain) <= SIGN * error:
        return ""
    way, word = ("higher", "rise") if gain > 0 else ("lower", "fall")
    return (
        f"It ends {abs(gain) / error:.1f} standard errors {way} than it began: a sign of a {word}, no proof"
    )


# A run of ours: the counts behind success are known.


def _by_counts(log: Log) -> list[str]:
    outcome = log.run.get("outcome")
    score = "success" if log.measured("step", "success") else "reward"
    curve = log.series("step", score)
    mild = log.events("mild")
    status = "Running" if log.run.get("status") == "running" else "Undecided"
    few = ": too few steps to judge" if len(curve) < SMOOTH + 2 else ""
    words = _WORDS.get(str(outcome), status + few)
    # what a critical event makes of a run that stays up
    if outcome == "mild" and mild.empty and log.critical:
        words = f"Not healthy, though {score} held"
    elif outcome == "mild" and len(mild) and "message" in mild:
        words += f": {mild['message'].iloc[-1]}"
    peak = _peak(log)
    last = curve.iloc[-FINAL:]
    if log.onset is not None:
        most = _most(log, curve, log.onset, peak)
        fell = f"{words}: {score} fell {_fell(log, curve, most)}"
        return [fell, _began(log, log.onset), _climbing(log, curve, most)]
    if last.empty:
        return [words]
    length = f"its {counted(len(last))}" if len(last) == len(curve) else f"the last {len(last)} steps"
    best = (
        f", {figure(peak)} at its best (median of {PEAK})" if peak is not None and len(curve) >= PEAK else ""
    )
    return [words, f"Its {score} was {figure(last.mean())} over {length}{best}"]


def _held_out(log: Log) -> str:
    """Say that the newest policy is down on held-out questions, which the scores of training may not show:
    they are of earlier policies, and of other questions.

    Down: the upper end of its interval lies below half of the lower end at its best.
    """
    evaluations = log.table("evaluation")
    needed = {"data", "step", "success", "success_low", "success_high"}
    if log.run.get("outcome") in _DOWN or not needed <= set(evaluations):
        return ""
    evaluations = evaluations.dropna(subset=["success", "success_low", "success_high"])
    # Without a retriever a policy that has learned to search answers less, as it should.
    evaluations = evaluations[~evaluations["data"].str.endswith("-no-search")]
    for data, rows in evaluations.groupby("data", sort=True):
        by_step = rows.sort_values("step").to_dict("records")
        last = by_step[-1]
        best = max(by_step, key=lambda row: float(row["success"]))
        if last["success_high"] < best["success_low"] / 2:
            return (
                f"But on held-out questions ({data}) the policy at step {last['step']:,} solves"
                f" {figure(last['success'])}, and {figure(best['success'])} at its best (step"
                f" {best['step']:,})"
            )
    return ""


def _peak(log: Log) -> float | None:
    peak = log.run.get("peak_success")
    return None if peak is None or peak != peak else float(peak)


def _most(log: Log, curve: pd.Series, onset: int, peak: float | None) -> float | None:
    """Return the most that a run lost: its peak, or the best median of five steps (of all, if fewer) up to
    the onset.
    """
    before = curve[curve.index <= onset]
    known = [] if peak is None or log.run.get("outcome") == "recovered" else [peak]
    if len(before):
        known.append(float(before.rolling(min(PEAK, len(before))).median().max()))
    return max(known, default=None)


def _of_best(value: float, best: float | None) -> str:
    return f", {100 * value / best:.0f} % of its best" if best is not None and best > 0 else ""


def _fell(log: Log, curve: pd.Series, best: float | None) -> str:
    after = curve[curve.index > (log.fallen_by or 0)]
    start = f"from {figure(best)} at its best"
    last = after.iloc[-FINAL:]
    if after.empty:
        return start
    steps = f"mean of steps {last.index[0]} to {last.index[-1]}" if len(last) > 1 else f"step {last.index[0]}"
    mean = f"{figure(last.mean())} ({steps})"
    if log.run.get("outcome") != "recovered":
        return f"{start} to {mean}"
    low = f"{figure(after.min())} (step {after.idxmin()})"
    return f"{start} to {low} and came back to {mean}{_of_best(last.mean(), best)}"


def _began(log: Log, onset: int) -> str:
    low, high, seen = (log.first_known(name) for name in ("onset_low", "onset_high", "detection_step"))
    sure = "" if low is None or high is None or low == high else f" (95 %: {low} to {high})"
    if log.first_known("collapse_step") is None:
        between = f"between steps {low} and {high} (95 %)" if sure else f"after step {low}"
        odds = 1 / _rule(log, "false_ending")
        return f"The fall began {between}; the counts are at least {odds:.0f} times likelier with a fall"
    certain = "" if seen is None else f" and was certain at step {seen}, {_error_rate(log)}"
    return f"The fall began after step {onset}{sure}{certain}"


def _error_rate(log: Log) -> str:
    """For which curves the rule keeps the error that it is set to."""
    if not log.counts_episodes:
        return "by a rule that often errs on noisy scores of unknown size (docs/collapse.md)"
    runs = 1 / _rule(log, "false_collapse")
    return f"by a rule set to one false collapse in {runs:.0f} runs with independent noise"


def _rule(log: Log, name: str) -> float:
    """A setting of the collapse rule, as the run had it."""
    from sorl.spec import CollapseSettings

    value = log.settings.get(f"collapse.{name}")
    if isinstance(value, float) and 0 < value < 1:
        return value
    return float(getattr(CollapseSettings(), name))


def _climbing(log: Log, curve: pd.Series, best: float | None) -> str:
    """Of a run that is called collapsed and whose last steps, SMOOTH at least, all lie above what a collapse
    leaves.
    """
    if log.run.get("outcome") != "collapsed" or best is None or best <= 0:
        return ""
    after = curve[curve.index > (log.onset or 0)]
    down = after[after <= (1 - _rule(log, "severe")) * best]
    back = after[after.index > down.index[-1]] if len(down) else after.iloc[:0]
    if len(back) < SMOOTH:
        return ""
    end = float(back.iloc[-SMOOTH:].median())
    short = "too short" if end >= (1 - _rule(log, "mild")) * best else "too low"
    now = f"{figure(end)} at the end (median of {SMOOTH} steps){_of_best(end, best)}"
    return f"Climbing back since step {back.index[0]}: {now}; {short} to call it recovered"
