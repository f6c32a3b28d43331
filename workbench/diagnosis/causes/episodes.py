"""Episodes that are cut short: by a budget of turns, or of tokens a turn."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.diagnosis.departure import first
from workbench.diagnosis.finding import Cause, Clue, Evidence
from workbench.diagnosis.log import Log


def _longest(frame: pd.DataFrame) -> pd.DataFrame:
    """Of every transcript: its step and the length of each of its turns in tokens."""
    rows = []
    for step, trained in zip(frame["step"], frame["trained"], strict=True):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(trained, int), [0]])))
        rows += [(int(step), int(end - start)) for start, end in zip(edges[::2], edges[1::2], strict=True)]
    return pd.DataFrame(rows, columns=["step", "length"])


def _short_turns(log: Log) -> Clue | None:
    valid = log.series("step", "valid_action_frac")
    drop = first(valid, "below", points=2, margin=4.0, least=0.02)
    turns = _longest(log.transcripts("trained"))
    if drop is None or drop.usual - drop.value < 0.2 or turns.empty:
        return None
    before, after = turns[turns["step"] < drop.step]["length"], turns[turns["step"] >= drop.step]["length"]
    if before.empty or after.empty:
        return None
    bound = int(after.max())
    longer = float((before > bound).mean())
    if longer < 0.3 or (after == bound).mean() < 0.3:
        return None
    return Clue(
        "sign", 0.92, drop.step,
        f"from step {drop.step} on no turn has more than {bound} tokens, where before {100 * longer:.0f} % had more, "
        f"and the share of valid actions falls from {drop.usual:.2f} to {drop.value:.2f}: turns end before their "
        "closing tag",
        (Evidence("step.valid_action_frac", drop.step, drop.value, drop.usual),),
    )  # fmt: skip


def _cut(log: Log) -> Clue | None:
    frame = log.table("trajectory")
    if "ended" not in frame or _short_turns(log) is not None:
        return None
    unfinished = (frame["ended"] != "answer").groupby(frame["step"]).mean()
    rise = first(unfinished, "above", points=2, margin=4.0, floor=0.3, least=0.03)
    if rise is None or rise.value - rise.usual < 0.1:
        return None
    since = frame[frame["step"] >= rise.step]
    for column, word in (("n_turns", "turns"), ("n_tokens", "tokens")):
        if column not in frame:
            continue
        cut, free = since[since["ended"] != "answer"][column], frame[frame["step"] < rise.step][column]
        bound = cut.quantile(0.9)
        if len(cut) and (cut >= bound).mean() > 0.5 and (free > bound).mean() > 0.02 and since[column].max() <= bound:
            return Clue(
                "sign", 0.92, rise.step,
                f"from step {rise.step} on {100 * float(unfinished[unfinished.index >= rise.step].mean()):.0f} % of "
                f"the episodes end without an answer, and none has more than {bound:.0f} {word}, where before "
                f"{100 * float((free > bound).mean()):.0f} % had more",
                (Evidence("step.truncated_frac", rise.step, rise.value, rise.usual),),
            )  # fmt: skip
    return None


TRUNCATED = Cause(
    "truncated",
    "Episodes are cut short",
    "critical",
    ("trajectory.ended", "trajectory.n_turns"),
    "Raise the budget of turns or tokens, or leave truncated episodes out of the loss: they are punished for their "
    "length.",
    "sorl sql \"SELECT step, ended, count(*) FROM trajectory WHERE run_id = '{run}' GROUP BY ALL ORDER BY 1\"",
    _cut,
)
TURN_CUT = Cause(
    "turn_cut",
    "Turns are cut before they are complete",
    "critical",
    ("step.valid_action_frac", "token.trained"),
    "Raise the budget of tokens of a turn (world.max_turn_tokens), or look for a stop word that comes too early.",
    "sorl sql \"SELECT step, valid_action_frac, response_tokens / turns FROM step WHERE run_id = '{run}' ORDER BY "
    'step"',
    _short_turns,
)
