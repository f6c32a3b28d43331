"""What is trained is not what was sampled: which tokens, read off the transcripts of the flagged steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import numpy as np
import pandas as pd

from workbench.diagnosis.finding import Cause, Clue, Evidence
from workbench.diagnosis.log import Log

Kind = Literal["prompt", "observation", "shift", "padding", "tokens", "unknown"]
_BLOCK = re.compile(r"<information>(.*?)</information>", re.DOTALL)
_MOST = 0.5
_SHARE = 0.1  # of the transcripts: a sampled tag in the wrong place makes one of them look odd
_ROWS = 400  # transcripts that are looked at


def kind(log: Log) -> tuple[Kind, int] | None:
    """Which tokens are trained that should not be, or not, and since which step; None where all is as sampled."""
    flagged = log.series("step", "token_mismatches")
    flagged = flagged[flagged > 0]
    if flagged.empty:
        return None
    step = int(flagged.index[0])
    if not {"token", "trained"} <= set(log.table("token").columns):
        return "unknown", step
    frame = log.transcripts("token", "trained")
    rows = frame[frame["step"].isin(flagged.index)].head(_ROWS)
    seen = [_look(list(t), np.asarray(m, bool)) for t, m in zip(rows["token"], rows["trained"], strict=True)]
    for name in ("shift", "prompt", "observation"):
        if sum(name in one for one in seen) >= max(2, _SHARE * len(seen)):
            return name, step
    return _counted(log, flagged.index), step


def _look(tokens: list[str], trained: np.ndarray) -> set[Kind]:
    """What is wrong with the mask of one transcript, by the tags of the protocol."""
    text = "".join(tokens)
    flags = np.repeat(trained, [len(token) for token in tokens])
    found: set[Kind] = set()
    blocks = list(_BLOCK.finditer(text))
    if any(flags[block.start(1) : block.end(1)].mean() > _MOST for block in blocks if block.end(1) > block.start(1)):
        found.add("observation")
    after = [block.end() for block in blocks if block.end() < len(text)]
    if after and np.mean([not flags[at] for at in after]) > _MOST and any(flags[b.start()] for b in blocks):
        found.add("shift")
    # Nothing predicts the first token, so a mask that lets the prompt through begins at the second one.
    if len(trained) > 2 and trained[1] and trained[2]:
        found.add("prompt")
    return found


def _counted(log: Log, steps: pd.Index) -> Kind:
    """Padding or other tokens: padding is trained on beside all that was written."""
    written = log.table("trajectory").groupby("step")["n_tokens"].sum()
    trained = log.table("minibatch").groupby(["step", "epoch"])["tokens"].sum().groupby("step").max()
    both = pd.concat([written, trained], axis=1, keys=["written", "trained"]).dropna()
    both = both[both.index.isin(steps)]
    if both.empty:
        return "unknown"
    return "padding" if (both["trained"] > both["written"]).mean() > _MOST else "tokens"


def _looker(wanted: Kind, says: str) -> Callable[[Log], Clue | None]:
    def look(log: Log) -> Clue | None:
        found = kind(log)
        if found is None or found[0] != wanted:
            return None
        step = found[1]
        count = float(log.series("step", "token_mismatches").loc[step])
        trajectory, turn = _where(log, step)
        place = f", first in trajectory {trajectory}, turn {turn}" if turn is not None else ""
        return Clue(
            "proof", 0.97 if wanted != "unknown" else 0.9, step,
            f"from step {step} on {says}; {count:.0f} trajectories of that step are trained on otherwise than sampled"
            f"{place}",
            (Evidence("step.token_mismatches", step, count, 0.0),), trajectory, turn,
        )  # fmt: skip

    return look


def _where(log: Log, step: int) -> tuple[int | None, int | None]:
    """The first trajectory and turn that the guard's event names."""
    events = log.events("guard_token_identity")
    for message in events.loc[events["step"] == step, "message"] if "message" in events else ():
        if found := re.search(r"trajectory (\d+), turn (\d+)", str(message)):
            return int(found[1]), int(found[2])
    return None, None


_NEEDS = ("step.token_mismatches",)
_TEST = (
    "sorl sql \"SELECT trajectory, turn_index, token, trained FROM token WHERE run_id = '{run}' AND step = {step}\" "
    "--format json"
)
_BUILD = "Build the loss mask from the sampler's own stretches, not from text; sorl's mask self-test shows how."

PROMPT_LEAK = Cause(
    "prompt_leak", "The prompt is trained on", "critical", _NEEDS, _BUILD, _TEST,
    _looker("prompt", "the loss mask covers tokens of the prompt"),
)  # fmt: skip
OBSERVATION_LEAK = Cause(
    "observation_leak", "What the world wrote is trained on", "critical", _NEEDS, _BUILD, _TEST,
    _looker("observation", "the loss mask covers the text inside <information>: the agent imitates its retriever"),
)  # fmt: skip
PADDING_LEAK = Cause(
    "padding_leak", "Padding is trained on", "critical", (*_NEEDS, "minibatch.tokens", "trajectory.n_tokens"),
    "Multiply the loss mask with the attention mask, and normalise by the tokens that remain.", _TEST,
    _looker("padding", "updates train on more tokens than were written, and no transcript shows them: padding"),
)  # fmt: skip
TURN_SHIFT = Cause(
    "turn_shift", "The boundaries of the turns are shifted", "critical", _NEEDS,
    "Look for an off-by-one between tokens and the log-probs that predict them.", _TEST,
    _looker("shift", "turns lose their first token, and gain what follows their last"),
)  # fmt: skip
RETOKENISED = Cause(
    "retokenised", "The trained tokens are not the sampled ones", "critical",
    (*_NEEDS, "minibatch.tokens", "trajectory.n_tokens"),
    "Keep the sampler's token ids from end to end; text that is decoded and encoded again has other tokens.", _TEST,
    _looker("tokens", "the mask fits, but tokens of the trajectories are others than were sampled"),
)  # fmt: skip
NOT_SAMPLED = Cause(
    "not_sampled", "What is trained is not what was sampled", "critical", _NEEDS,
    "Keep transcripts (record.tokens) to learn which tokens; compare ids and mask with the sampler's.", _TEST,
    _looker("unknown", "trained tokens or turns are not the sampled ones"),
)  # fmt: skip
