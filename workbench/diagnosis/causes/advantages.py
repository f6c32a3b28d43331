"""Advantages that do not follow from the recorded rewards, and single tokens whose recorded past is wrong."""

from __future__ import annotations

from workbench.diagnosis.finding import Cause, Clue, Evidence
from workbench.diagnosis.log import Log

_SAME = 1e-4  # of two advantages of one group and one reward
NOISE = 1e-4  # nats; float32 kernels differ by 1e-7 to 2e-5 on average
RISE = 5.0  # x what was usual, where a sampler in another precision never agreed to begin with
_NATS = 0.5  # of that token, from which it is no rounding


def _groups(log: Log) -> Clue | None:
    if log.measured("minibatch", "value_loss"):
        return None  # a critic gives equal rewards different advantages
    frame = log.table("trajectory")
    frame = frame[frame["advantage"].notna() & frame["reward"].notna()]
    keys = ["step", "question" if log.measured("trajectory", "question") else "prompt_group"]
    # A question that was drawn twice has two groups, each with a mean of its own.
    rollouts = frame.groupby(keys)["reward"].transform("size")
    frame = frame[rollouts == rollouts.groupby(frame["step"]).transform("median")]
    group = frame.groupby([*keys, "reward"])["advantage"]
    spread = (group.max() - group.min())[group.size() > 1]
    if spread.empty:
        return None
    unequal = (spread > _SAME * (1 + group.mean().abs().reindex(spread.index))).groupby(level="step").mean()
    wrong = unequal[unequal > 0.2]
    right = unequal[unequal <= 0.02]
    # Other estimators may do so from the first step on; only a change says something.
    if wrong.empty or right.empty or int(right.index[0]) > int(wrong.index[0]):
        return None
    step = int(wrong.index[0])
    return Clue(
        "proof", 0.96, step,
        f"from step {step} on rollouts of one question with one reward have different advantages, in "
        f"{100 * float(wrong.mean()):.0f} % of the cases; before, they never had: rewards are compared across the "
        "wrong group",
        (Evidence("trajectory.advantage", step, float(wrong.iloc[0]), 0.0),),
    )  # fmt: skip


def _token(log: Log) -> Clue | None:
    frame = log.table("minibatch")
    frame = frame[~frame["step"].isin(log.rescored)]
    total = frame["mismatch"] * frame["tokens"]
    rest = (total - frame["mismatch_max"]) / (frame["tokens"] - 1).clip(lower=1)
    usual_rest = RISE * float(frame["mismatch"].iloc[: max(1, len(frame) // 5)].median())
    alone = (frame["mismatch_max"] > _NATS) & (rest < max(NOISE, usual_rest))
    if not alone.any():
        return None
    row = frame[alone].iloc[0]
    step, value = int(row["step"]), float(row["mismatch_max"])
    usual = float(frame.loc[frame["step"] < step, "mismatch_max"].median()) if (frame["step"] < step).any() else None
    if usual is not None and usual > _NATS / 2:
        return None
    trajectory, turn = culprit(log, step)
    where = f", in turn {turn} of trajectory {trajectory}" if turn is not None else ""
    return Clue(
        "proof", 0.95, step,
        f"in step {step} the old log-prob of one token is {value:.3g} nats from the sampler's{where}; all others agree",
        (Evidence("minibatch.mismatch_max", step, value, usual),), trajectory, turn,
    )  # fmt: skip


def culprit(log: Log, step: int, column: str = "mismatch") -> tuple[int | None, int | None]:
    """Trajectory and turn with the largest value of a column of table `turn` in a step."""
    frame = log.at("turn", step)
    here = frame[frame[column].notna()] if column in frame else frame.iloc[:0]
    if here.empty:
        return None, None
    worst = here.iloc[int(here[column].abs().to_numpy().argmax())]
    return int(worst["trajectory"]), int(worst["turn_index"])


def one_token(log: Log) -> bool:
    """Whether the disagreement of sampler and trainer lies on single tokens."""
    return log.measured("minibatch", "mismatch_max", "tokens") and _token(log) is not None


WRONG_GROUPS = Cause(
    "wrong_groups",
    "Advantages are taken across the wrong groups",
    "critical",
    ("trajectory.advantage", "trajectory.reward", "trajectory.prompt_group"),
    "Check that the rows of a prompt stay together between sampling, scoring and normalising (shuffles, padding to a "
    "multiple of the world size, sorting by length).",
    "sorl sql \"SELECT prompt_group, question, reward, advantage FROM trajectory WHERE run_id = '{run}' "
    'AND step = {step} ORDER BY ALL"',
    _groups,
)
CORRUPT_LOG_PROB = Cause(
    "corrupt_log_prob",
    "One token carries a log-ratio that it cannot have",
    "critical",
    ("minibatch.mismatch", "minibatch.mismatch_max", "minibatch.tokens"),
    "Open the trajectory: an off-by-one in stored log-probs, a token that the sampler never scored, a truncated float. "
    "Until it is found, mask tokens whose two log-probs disagree (rollout correction: mis).",
    "sorl sql \"SELECT trajectory, turn_index, mismatch, ratio_max FROM turn WHERE run_id = '{run}' AND step = {step} "
    'ORDER BY mismatch DESC LIMIT 5"',
    _token,
    needs_one_policy=True,
)
