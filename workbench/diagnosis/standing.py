"""How a run stands, in sentences: its outcome, from what to what success fell and since when, what came
after.
"""

import pandas as pd

from sorl.diagnosis.changepoint import SMOOTH
from sorl.diagnosis.log import Log
from sorl.spec import CollapseSettings

FINAL = 10  # steps that a last mean is of, as run.final_success
PEAK = 5  # steps of the median that a peak is, as run.peak_success
_WORDS = {
    "healthy": "Healthy",
    "mild": "A mild fall",
    "collapsed": "Collapsed",
    "recovered": "Collapsed and recovered",
    "falling": "Falling at its end, too late for the collapse rule",
    "diverged": "Diverged",
    "no_learning": "Did not rise above its start",
}
_RULE = CollapseSettings()


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
    outcome = log.run.get("outcome")
    score = "success" if log.measured("step", "success") else "reward"
    curve = log.series("step", score)
    told = log.events("mild")
    status = "Running" if log.run.get("status") == "running" else "Undecided"
    said = _WORDS.get(str(outcome), status + (": too few steps to judge" if len(curve) < SMOOTH + 2 else ""))
    # what a critical event makes of a run that stays up
    if outcome == "mild" and told.empty and log.critical:
        said = f"Not healthy, though {score} held"
    elif outcome == "mild" and len(told) and "message" in told:
        said += f": {told['message'].iloc[-1]}"
    peak = log.run.get("peak_success")
    last = curve.iloc[-FINAL:]
    peak = None if peak is None or peak != peak else float(peak)
    parts = [said]
    if log.onset is not None:
        # The most that it lost: its peak, or the best median of five steps (of all, if fewer) up to the
        # onset.
        before = curve[curve.index <= log.onset]
        known = [] if peak is None or outcome == "recovered" else [peak]
        known += [float(before.rolling(min(PEAK, len(before))).median().max())] if len(before) else []
        most = max(known, default=None)
        parts = [
            f"{said}: {score} fell {_fell(log, curve, most)}",
            _began(log, log.onset),
            _climbing(log, curve, most),
        ]
    elif len(last):
        over = (
            f"over its {counted(len(last))}"
            if len(last) == len(curve)
            else f"over the last {len(last)} steps"
        )
        best = (
            f", {figure(peak)} at its best (median of {PEAK})"
            if peak is not None and len(curve) >= PEAK
            else ""
        )
        parts.append(f"Its {score} was {figure(last.mean())} {over}{best}")
    if (
        score == "success"
        and log.run.get("algorithm", "unknown") == "unknown"
        and not log.ledger
        and len(curve)
    ):
        # Another trainer's: see `imported`.
        parts += (
            ["The log has no success; its reward is used"]
            if curve.equals(log.series("step", "reward"))
            else []
        )
    if log.critical:
        named = {"non_finite": "NaN or Inf"}
        kinds = (f"{named.get(kind, kind.replace('_', ' '))} at step {step}" for step, kind in log.critical)
        parts.append(f"Critical: {', '.join(kinds)}")
    return " ".join(f"{part}." for part in parts if part)


def _of_best(value: float, best: float | None) -> str:
    return f", {100 * value / best:.0f} % of its best" if best is not None and best > 0 else ""


def _fell(log: Log, curve: pd.Series, best: float | None) -> str:
    after = curve[curve.index > (log.fallen_by or 0)]
    said = f"from {figure(best)} at its best"
    last = after.iloc[-FINAL:]
    if after.empty:
        return said
    steps = f"mean of steps {last.index[0]} to {last.index[-1]}" if len(last) > 1 else f"step {last.index[0]}"
    mean = f"{figure(last.mean())} ({steps})"
    if log.run.get("outcome") != "recovered":
        return f"{said} to {mean}"
    low = f"{figure(after.min())} (step {after.idxmin()})"
    return f"{said} to {low} and came back to {mean}{_of_best(last.mean(), best)}"


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
        if log.reading is not None:
            return "against the noise of this curve (docs/collapse.md)"
        return "by a rule that often errs on noisy scores of unknown size (docs/collapse.md)"
    runs = 1 / _rule(log, "false_collapse")
    return f"by a rule set to one false collapse in {runs:.0f} runs with independent noise"


def _rule(log: Log, name: str) -> float:
    """A setting of the collapse rule, as the run had it."""
    told = log.settings.get(f"collapse.{name}")
    return float(told) if isinstance(told, float) and 0 < told < 1 else float(getattr(_RULE, name))


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
