"""The reward is not what success is: it pays for form, at random, or the wrong way round."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.diagnosis.finding import Cause, Clue, Evidence
from workbench.diagnosis.log import Log

SHIFTS = 8  # rows by which rewards may be off
FEW = 0.02  # of trajectories whose reward is not their success: below, F1 and rounding
_NEEDS = ("trajectory.reward", "trajectory.success")


def _paid(log: Log) -> pd.DataFrame:
    """Trajectories in the order of training: step, paid (reward above half of its range), success, answered, off."""
    frame = log.table("trajectory")
    rows = frame[frame["reward"].notna() & frame["success"].notna()]
    low, high = rows["reward"].min(), rows["reward"].max()
    return pd.DataFrame(
        {
            "step": rows["step"],
            "trajectory": rows["trajectory"],
            "reward": rows["reward"],
            "paid": rows["reward"] > (low + high) / 2,
            "success": rows["success"].astype(bool),
            "answered": rows["answer"].notna() if "answer" in rows else False,
            "formed": _formed(rows),
        }
    )


def _formed(rows: pd.DataFrame) -> pd.Series:
    """Whether a trajectory gives an answer and every turn of it keeps to the protocol."""
    answered = rows["answer"].notna() if "answer" in rows else pd.Series(False, index=rows.index)
    return answered & (rows["valid_turn_frac"] >= 1.0) if "valid_turn_frac" in rows else answered


def _wrong(log: Log) -> tuple[pd.DataFrame, int] | None:
    """The trajectories from the first step on where reward and success part, and that step."""
    if log.settings.get("world.reward", "em") != "em":
        return None  # a graded reward differs from exact match by design
    rows = _paid(log)
    share = (rows["paid"] != rows["success"]).groupby(rows["step"]).mean()
    apart = share[share > FEW]
    if apart.empty or (share > FEW).mean() < 0.05:
        return None
    return rows[rows["step"] >= apart.index[0]], int(apart.index[0])


def _format(log: Log) -> Clue | None:
    found = _wrong(log)
    if found is None:
        return None
    rows, step = found
    agree, form = max((float((rows["paid"] == rows[name]).mean()), name) for name in ("answered", "formed"))
    failed = rows[~rows["success"] & rows[form]]
    if agree < 0.9 or failed.empty or failed["paid"].mean() < 0.9:
        return None
    what = "an answer" if form == "answered" else "an answer after valid turns"
    return Clue(
        "sign", 0.93, step,
        f"from step {step} on the reward pays for giving {what}: that alone explains {100 * agree:.0f} % of the "
        f"rewards, and {100 * float(failed['paid'].mean()):.0f} % of the wrong answers of that form are paid",
        (Evidence("trajectory.reward", step, float(rows["paid"].mean()), float(rows["success"].mean())),),
        trajectory=_example(failed[failed["paid"]], step),
    )  # fmt: skip


def _inverted(log: Log) -> Clue | None:
    found = _wrong(log)
    if found is None:
        return None
    rows, step = found
    won, lost = rows[rows["success"]]["reward"], rows[~rows["success"]]["reward"]
    if won.empty or lost.empty or rows["reward"].corr(rows["success"].astype(float)) > -0.8:
        return None
    return Clue(
        "proof", 0.96, step,
        f"from step {step} on a failure is paid {float(lost.mean()):.2g} and a success {float(won.mean()):.2g} on "
        "average: the reward has the wrong sign",
        (Evidence("trajectory.reward", step, float(won.mean()), float(lost.mean())),),
        trajectory=_example(rows[rows["paid"] != rows["success"]], step),
    )  # fmt: skip


def _shifted(log: Log) -> Clue | None:
    found = _wrong(log)
    if found is None or _format(log) is not None or _inverted(log) is not None:
        return None
    rows, step = found
    agreement = {}
    for rows_off in (k for k in range(-SHIFTS, SHIFTS + 1) if k):
        fits = [
            (np.roll(part["success"].to_numpy(), rows_off) == part["paid"].to_numpy()).mean()
            for _, part in rows.groupby("step")
        ]
        agreement[rows_off] = float(np.mean(fits))
    rows_off = max(agreement, key=lambda k: (agreement[k], -abs(k)))
    if agreement[rows_off] < 0.98:
        return None
    return Clue(
        "proof", 0.96, step,
        f"from step {step} on the rewards are those of other trajectories, {abs(rows_off)} rows "
        f"{'before' if rows_off > 0 else 'after'}: so read, {100 * agreement[rows_off]:.0f} % of them are right",
        (Evidence("trajectory.reward", step, float((rows["paid"] == rows["success"]).mean()), 1.0),),
        trajectory=_example(rows[rows["paid"] != rows["success"]], step),
    )  # fmt: skip


def _noisy(log: Log) -> Clue | None:
    found = _wrong(log)
    if found is None or any(look(log) is not None for look in (_format, _inverted, _shifted)):
        return None
    rows, step = found
    off = float((rows["paid"] != rows["success"]).mean())
    paid, unpaid = float(rows[~rows["success"]]["paid"].mean()), float((~rows[rows["success"]]["paid"]).mean())
    return Clue(
        "sign", 0.9, step,
        f"from step {step} on the reward of {100 * off:.0f} % of the trajectories is not their success: "
        f"{100 * paid:.0f} % of the failures are paid, {100 * unpaid:.0f} % of the successes are not",
        (Evidence("trajectory.reward", step, 1 - off, 1.0),),
        trajectory=_example(rows[rows["paid"] != rows["success"]], step),
    )  # fmt: skip


def _example(rows: pd.DataFrame, step: int) -> int | None:
    here = rows[rows["step"] == step]
    return None if here.empty else int(here["trajectory"].iloc[0])


REWARD_FORMAT = Cause(
    "reward_format",
    "The reward pays for the form of an answer, not for its truth",
    "critical",
    (*_NEEDS, "trajectory.answer"),
    "Pay the outcome; a format term must stay small against it, and success is to be measured apart from the reward.",
    "sorl sql \"SELECT question, gold, answer, reward FROM trajectory WHERE run_id = '{run}' AND step = {step}\"",
    _format,
)
REWARD_INVERTED = Cause(
    "reward_inverted",
    "The reward is paid the wrong way round",
    "critical",
    _NEEDS,
    "Check the sign of the reward and which row it is written to.",
    "sorl sql \"SELECT question, gold, answer, reward FROM trajectory WHERE run_id = '{run}' AND step = {step}\"",
    _inverted,
)
REWARD_SHIFTED = Cause(
    "reward_shifted",
    "Rewards belong to other trajectories",
    "critical",
    _NEEDS,
    "Keep an id beside each reward from scoring to training; look for a sort, a filter or a shuffle in between.",
    "sorl sql \"SELECT trajectory, success, reward FROM trajectory WHERE run_id = '{run}' AND step = {step} ORDER BY "
    '1"',
    _shifted,
)
REWARD_NOISE = Cause(
    "reward_noise",
    "Rewards are given to trajectories that did not earn them",
    "critical",
    _NEEDS,
    "Check the order of rows between scoring and training, the normalisation of answers, and the judge if there is "
    "one.",
    "sorl sql \"SELECT question, gold, answer, reward FROM trajectory WHERE run_id = '{run}' AND step = {step}\"",
    _noisy,
)
