"""The rollout correction, or a bound on the age of data, does something else than it was meant to do."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from sorl.analysis.strata import Shift, shift
from sorl.diagnosis.changepoint import Evidence, before
from sorl.diagnosis.finding import Clue, cause
from sorl.diagnosis.log import Log

SHRUNK = 0.5  # factor on the pull of a batch, from which more of it is gone than is left
LASTS = 3  # steps that it stays so low
SAME_POLICY = (
    0.05  # nats a token, up to which sampler and trainer hold the same policy for all practical ends
)
LEAST_DROPPED = 20  # units (rows, or prompt groups that were dropped as a whole)
LEAST_STEPS = 3  # in which something was dropped
LEAST_SHARE = 0.02  # of the trajectories
STRICT = 1e-3  # level of a test, before it is divided by the number of tests
LONGER = 1.25  # times the length of the kept
OF_SPREAD = 0.3  # standard deviations of the reward between dropped and kept
OLDER = 0.9  # share of the dropped that is older than all that was kept of its step


def _may_correct(log: Log) -> bool:
    """Whether the run may correct its rollouts. Our own trainer writes the weights wherever it has some."""
    is_ours = log.ledger and not log.trainer
    return not is_ours or bool(log.columns("correction weight"))


@cause(
    "correction weight",
    arises=_may_correct,
    severity="warning",
    options=("correction",),
    change=(
        "Weigh tokens (correction.level = token), or let the geometric mean of a sequence decide and tokens"
        " weigh (mis with seq_geo_filter); or divide the weights by their mean (correction.normalise = true)."
        " Raising the learning rate instead leaves the long trajectories where they are."
    ),
    test="sorl replay {run} --step {step} --corrections",
)
def correction_shrinks(log: Log) -> Clue | None:
    """The rollout correction shrinks the whole batch."""
    (column, *_) = log.columns("correction weight")
    series = log.series(*column.split(".", 1))
    step = _lasting_below(series, SHRUNK)
    if step is None or (log.certain is not None and step > log.certain):
        return None
    level = float(series[series.index >= step].median())
    apart = log.series("minibatch", "mismatch")
    gap = float(apart[apart.index >= step].median()) if not apart.empty else None
    is_same_policy = gap is None or gap < SAME_POLICY
    says = f"the weights of the rollout correction scale the batch to {level:.2g} of its pull"
    if level > 0:
        says += f", {1 / level:.1f} times less"
    if gap is not None:
        says += f"; sampler and trainer differ by {gap:.2g} nats a token"
    says += _by_length(log, step)
    if is_same_policy and gap is not None:
        says += ". Weights that multiply over a sequence do this although each token's is near 1"
    shown = Evidence(column, step, level, before(series, step))
    fails = log.run.get("outcome") == "no_learning"
    return Clue(
        "sign" if is_same_policy else "pattern",
        0.9 if is_same_policy and gap is not None else 0.7,
        step,
        f"from step {step} on {says}",
        (shown,),
        severity="critical" if fails else None,
    )


def _lasting_below(series: pd.Series, mark: float) -> int | None:
    """The first step from which a curve stays below a mark for LASTS steps, of a shorter log for all."""
    if series.empty:
        return None
    points = min(LASTS, len(series))
    below = (series < mark).rolling(points).sum() == points
    if not below.any():
        return None
    last = int(np.flatnonzero(below)[0])
    return int(series.index[last - points + 1])


def _by_length(log: Log, step: int) -> str:
    """What is left of the longest and of the shortest third of the trajectories, as part of a sentence."""
    if not log.measured("trajectory", "correction_mean", "n_tokens"):
        return ""
    rows = log.table("trajectory")[["step", "correction_mean", "n_tokens"]].dropna()
    rows = rows[rows["step"] >= step]
    if len(rows) < LEAST_DROPPED:
        return ""
    place = rows.groupby("step")["n_tokens"].rank(pct=True)
    longest = float(rows["correction_mean"][place > 2 / 3].mean())
    shortest = float(rows["correction_mean"][place <= 1 / 3].mean())
    if not np.isfinite(longest) or not np.isfinite(shortest):
        return ""
    return f"; the longest third of the trajectories keeps {longest:.2g}, the shortest {shortest:.2g}"


class Dropped(NamedTuple):
    """Which rows of table trajectory no update learned from, and why."""

    rows: pd.DataFrame  # with column `dropped`, bool
    reason: str


@cause(
    "trajectory.advantage",
    "trajectory.n_tokens",
    severity="warning",
    options=("learn.staleness", "correction"),
    change=(
        "Bound the age of data by sampling less ahead, not by throwing away: what is dropped is what took"
        " longest. Else count an episode's age from its end, let long ones finish before weights change, or"
        " correct old ones by weights in place of a mask."
    ),
    test="sorl replay {run} --step {step} --corrections",
)
def stale_discard_bias(log: Log) -> Clue | None:
    """What is dropped as too old, or by the mask of a correction, is no random sample."""
    dropped = _dropped(log)
    if dropped is None:
        return None
    rows = dropped.rows
    shifts = {
        name: _shift_of(rows, name) for name in ("n_tokens", "reward") if log.measured("trajectory", name)
    }
    level = STRICT / max(1, len(shifts))
    told: list[str] = []
    for name, found in shifts.items():
        if found is not None and found.chosen_units >= LEAST_DROPPED and found.p < level:
            told += _difference(name, found, rows)
    if not told:
        return None
    affected = rows.loc[rows["dropped"], "step"]
    step = int(affected.iloc[0])
    share = float(rows["dropped"].mean())
    says = (
        f"{100 * share:.0f} % of the trajectories {dropped.reason}, and these are not like the others: "
        f"{'; '.join(told)} (by ranks within {'a step' if _is_by_group(rows) else 'a prompt group'})"
    )
    shown = Evidence("trajectory.advantage", step, share)
    return Clue("sign", 0.85, step, f"from step {step} on {says}", (shown,))


def _shift_of(rows: pd.DataFrame, name: str) -> Shift | None:
    return shift(rows[name].astype(float), rows["dropped"], rows["step"], rows["prompt_group"])


def _difference(name: str, found: Shift, rows: pd.DataFrame) -> list[str]:
    """The sentence on a difference that is large enough to matter; none where it is small."""
    chance = f"p = {found.p:.1g}" if found.p >= 1e-12 else "p < 1e-12"
    if name == "n_tokens":
        ratio = found.chosen / max(found.others, 1e-9)
        if 1 / LONGER < ratio < LONGER:
            return []
        return [f"{found.chosen:,.0f} tokens where the kept have {found.others:,.0f}, {chance}"]
    spread = float(rows["reward"].astype(float).std())
    if not spread > 0 or abs(found.chosen - found.others) < OF_SPREAD * spread:
        return []
    return [f"a reward of {found.chosen:.3g} where the kept have {found.others:.3g}, {chance}"]


def _is_by_group(rows: pd.DataFrame) -> bool:
    return bool((rows.groupby(["step", "prompt_group"])["dropped"].nunique() == 1).all())


def _dropped(log: Log) -> Dropped | None:
    """The rows that were written and not learned from, where age or a mask is the reason.

    A selection by reward (dynamic sampling) drops rows of any age: it is meant to, and is left out.
    """
    frame = log.table("trajectory")
    rows = frame[frame["n_tokens"].fillna(0) > 0].copy()
    if "prompt_group" not in rows:
        rows["prompt_group"] = rows["trajectory"]
    is_trained = rows["advantage"].notna()
    # of a step without any advantage nothing is known
    rows = rows[is_trained.groupby(rows["step"]).transform("any")]
    is_trained = rows["advantage"].notna()
    reasons = {"were dropped and are older than all that was kept": _too_old(rows, ~is_trained)}
    if "correction_mean" in rows:
        reasons["have no token that the mask of the correction leaves"] = rows["correction_mean"] == 0
    for reason, dropped in reasons.items():
        marked = rows.assign(dropped=dropped)
        if marked.loc[dropped, "step"].nunique() >= LEAST_STEPS and dropped.mean() >= LEAST_SHARE:
            return Dropped(marked[is_trained | dropped], reason)
    return None


def _too_old(rows: pd.DataFrame, untrained: pd.Series) -> pd.Series:
    """Untrained rows, where nearly all of them are older than what was trained on in their step."""
    nothing = pd.Series(False, index=rows.index)
    if "rollout_step" not in rows or not untrained.any():
        return nothing
    born = rows["rollout_step"].astype(float)
    oldest_kept = born.where(~untrained).groupby(rows["step"]).transform("min")
    is_older = untrained & (born < oldest_kept)
    return untrained if is_older.sum() >= OLDER * untrained.sum() else nothing
