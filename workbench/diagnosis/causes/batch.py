"""The trained batch differs from the sampled one: data, tokens, log-probs, groups."""

import re
from functools import partial

import numpy as np
import pandas as pd

from sorl.diagnosis.changepoint import CLEAR, Evidence, before, reward_after, sure
from sorl.diagnosis.finding import Clue, among, cause, sql
from sorl.diagnosis.gap import KERNELS
from sorl.diagnosis.log import Log

NOISE = 1e-4  # nats; float32 kernels differ by 1e-7 to 2e-5 on average
RISE = 5.0  # x what was usual, where a sampler in another precision never agreed to begin with
OLD = 8.0  # iterations, up to which asynchronous training is reported to do no harm (2505.24298)
_SAME = 1e-4  # of two advantages of one group and one reward
_NATS = 0.5  # of one token, from which it is no rounding
_MOST = 0.5
_SHARE = 0.1  # of the transcripts: a sampled tag in the wrong place makes one of them look odd
_ROWS = 400  # transcripts that are looked at
# Columns of table token with one value a token.
_PER_TOKEN = ("trained", "log_prob_behaviour", "log_prob_old", "log_prob", "entropy")
_BLOCK = re.compile(r"<information>(.*?)</information>", re.DOTALL)


@cause(
    "step.staleness",
    breaks=("transcripts", "rollout_age"),
    without={"learn.staleness": 0},
    explains=("mismatch_grows", "clip_saturation", "kl_blowup", "entropy_explosion", "groups_too_hard"),
    change=(
        "Bound the queue between sampler and trainer, drop what is older than learn.staleness, or correct"
        " for it."
    ),
    test="--set learn.staleness=0",
    options=("learn.staleness", "correction"),
)
def staleness(log: Log) -> Clue | None:
    """Data are older than they should be."""
    allowed = log.settings.get("learn.staleness")
    if allowed is not None and log.ledger:
        found = log.first_above("step", "staleness", float(allowed) + 0.5, float(allowed))
        most = float(log.series("step", "staleness").max())
        says = f"the data are older than {allowed:g} iterations, up to {most:g}"
        return None if found is None else Clue.since("proof", 0.95, found, says)
    # Of a mean over rollouts: older than allowed, older than they were, or old and the reward falls.
    if (age := log.curve("step.staleness")) is None:
        return None
    older = age.end >= max(age.begin + 1, 1.5 * age.begin, age.begin + CLEAR * age.error)
    late = allowed is not None and age.end > float(allowed) + 0.5 + CLEAR * age.error
    step = age.left("up") if older else int(age.steps[0])
    score = log.outcome(step)
    falls = score is not None and min(score.change, score.late) < 0
    if not older and not late and (age.end <= OLD or not falls):
        return None
    bound = f", where {allowed:g} are allowed" if late else ""
    certain = age.end - age.begin if older else age.end / OLD
    goes = f"grows {age.course()}, clearly from step {step} on" if older else f"is {age.end_level}"
    says = f"the age of the data, in iterations, {goes}{bound}{reward_after(score)}"
    return Clue.of("sign" if older or late else "pattern", sure(certain, 0.75), age.shown(step), says)


@cause(
    "step.batch_hash",
    breaks=("transcripts", "fresh_batch", "trained_tokens"),
    change=(
        "Look at the queue and the data loader: an iterator that is not advanced, a buffer that is not"
        " cleared after a step."
    ),
    test=sql("SELECT batch_hash, list(step) FROM step", "GROUP BY 1 HAVING count(*) > 1"),
)
def batch_reused(log: Log) -> Clue | None:
    """A batch is trained on twice."""
    hashes = log.table("step")[["step", "batch_hash"]].dropna()
    again = hashes[hashes["batch_hash"].duplicated()]
    if again.empty:
        return None
    same = hashes.loc[hashes["batch_hash"] == again["batch_hash"].iloc[0], "step"]
    source = int(same.iloc[0])
    step = int(again["step"].iloc[0])
    says = (
        f"trains on exactly the tokens of step {source}; a batch repeats in {len(again)} of {log.steps} steps"
    )
    return Clue.of("proof", 0.97, Evidence("step.batch_hash", step, None), f"step {step} {says}")


@cause(
    "token.token",
    "token.trained",
    change="Look at what writes the transcripts: each array of a row must have one entry a token.",
    test=sql("SELECT trajectory, len(token), len(trained) FROM token", "AND step = {step}"),
)
def inconsistent_record(log: Log) -> Clue | None:
    """The record contradicts itself: a transcript has more flags than tokens, or fewer."""
    frame = log.table("token")
    for row in frame.dropna(subset=["token"]).to_dict("records"):
        size = len(row["token"])
        for name in _PER_TOKEN:
            values = row.get(name)
            if not isinstance(values, list | np.ndarray) or len(values) == size:
                continue
            step = int(row["step"])
            says = f"in step {step} trajectory {row['trajectory']} has {size} tokens and {len(values)} values"
            shown = Evidence(f"token.{name}", step, float(len(values)), float(size))
            return Clue.of("proof", 0.97, shown, f"{says} of `{name}`", int(row["trajectory"]))
    return None


def misfit(log: Log) -> dict[str, Clue]:
    """Return the clue of which tokens are trained that should not be, or not, by its cause; nothing where all
    fit.
    """
    flagged = log.series("step", "token_mismatches")
    flagged = flagged[flagged > 0]
    if flagged.empty:
        return {}
    name = _kind(log, flagged.index)
    step = int(flagged.index[0])
    events = log.events("guard_token_identity")
    said = " ".join(events.loc[events["step"] == step, "message"].astype(str)) if "message" in events else ""
    first = re.search(r"trajectory (\d+), turn (\d+)", said)  # as the guard's event names it
    culprit, where = (map(int, first.groups()), f", first in {first[0]}") if first else ((), "")
    count = float(flagged[step])
    sure = 0.97 if name != "not_sampled" else 0.9
    says = f"{_SAID[name]}; {count:.0f} trajectories of that step are not trained as they were sampled{where}"
    return {
        name: Clue.since("proof", sure, Evidence("step.token_mismatches", step, count, 0.0), says, *culprit)
    }


_SAID = {
    "observation_leak": (
        "the loss mask covers the text inside <information>: the agent imitates its retriever"
    ),
    "prompt_leak": "the loss mask covers tokens of the prompt",
    "padding_leak": "updates train on more tokens than were written, and no transcript shows them: padding",
    "turn_shift": "turns lose their first token, and gain what follows their last",
    "retokenised": "the mask fits, but tokens of the trajectories differ from the sampled ones",
    "not_sampled": "trained tokens or turns are not the sampled ones",
}
_TOKENS = sql("SELECT trajectory, turn_index, token, trained FROM token", "AND step = {step}", form="json")
_misfit = partial(among, misfit, test=_TOKENS)
_NEEDS = ("step.token_mismatches",)
# identities that a loss mask violates which is not what the policy wrote
_MASK = ("loss_mask", "trained_mask", "turns", "trained_tokens")
_COUNTS = ("step.token_mismatches", "minibatch.tokens", "trajectory.n_tokens")
_BUILD = (
    "Build the loss mask from the sampler's own stretches, not from text; sorl's mask self-test shows how."
)
observation_leak = _misfit(
    "observation_leak",
    "Observations are trained on",
    needs=_NEEDS,
    breaks=_MASK,
    denied_by="loss_mask",
    change=_BUILD,
)
prompt_leak = _misfit(
    "prompt_leak",
    "The prompt is trained on",
    needs=_NEEDS,
    breaks=_MASK,
    denied_by="loss_mask",
    change=_BUILD,
)
padding_leak = _misfit(
    "padding_leak",
    "Padding is trained on",
    needs=_COUNTS,
    breaks=_MASK,
    denied_by="loss_mask",
    change="Multiply the loss mask with the attention mask, and normalise by the tokens that remain.",
)
turn_shift = _misfit(
    "turn_shift",
    "The boundaries of the turns are shifted",
    needs=_NEEDS,
    breaks=_MASK,
    denied_by="loss_mask",
    change="Look for an off-by-one between tokens and the log-probs that predict them.",
)
retokenised = _misfit(
    "retokenised",
    "The trained tokens are not the sampled ones",
    needs=_COUNTS,
    breaks=("transcripts", "trained_tokens", "behaviour_log_probs"),
    denied_by="transcripts",
    change=(
        "Keep the sampler's token ids from end to end; text that is decoded and re-encoded has other tokens."
    ),
)
not_sampled = _misfit(
    "not_sampled",
    "Trained tokens or turns are not the sampled ones",
    needs=_NEEDS,
    breaks=("transcripts", *_MASK),
    change="Keep transcripts (record.tokens) to learn which tokens; compare ids and mask with the sampler's.",
)


def _kind(log: Log, steps: pd.Index) -> str:
    """Return the cause that the transcripts of flagged steps show; without transcripts that of any tokens."""
    if not {"token", "trained"} <= set(log.table("token").columns):
        return "not_sampled"
    frame = log.transcripts("token", "trained")
    rows = frame[frame["step"].isin(steps)]
    rows = rows[rows["token"].map(len) == rows["trained"].map(len)].head(_ROWS)
    mistakes = [
        _wrong_masks(list(tokens), np.asarray(trained, bool))
        for tokens, trained in zip(rows["token"], rows["trained"], strict=True)
    ]
    for name in ("turn_shift", "prompt_leak", "observation_leak"):
        if sum(name in of_row for of_row in mistakes) >= max(2, _SHARE * len(mistakes)):
            return name
    # With padding, more tokens are trained on than were written.
    if not log.measured("trajectory", "n_tokens") or not log.measured("minibatch", "tokens", "epoch"):
        return "not_sampled"
    written = log.table("trajectory").groupby("step")["n_tokens"].sum()
    trained = log.table("minibatch").groupby(["step", "epoch"])["tokens"].sum().groupby("step").max()
    excess = (trained - written).dropna()
    excess = excess[excess.index.isin(steps)]
    if excess.empty:
        return "not_sampled"
    return "padding_leak" if (excess > 0).mean() > _MOST else "retokenised"


def _wrong_masks(tokens: list[str], trained: np.ndarray) -> set[str]:
    """Return what is wrong with the mask of one transcript, by the tags of the protocol."""
    text = "".join(tokens)
    flags = np.repeat(trained, [len(token) for token in tokens])
    blocks = list(_BLOCK.finditer(text))
    after = [not flags[block.end()] for block in blocks if block.end() < len(text)]
    inside = (flags[block.start(1) : block.end(1)] for block in blocks if block.end(1) > block.start(1))
    late = bool(after) and np.mean(after) > _MOST and any(flags[block.start()] for block in blocks)
    # Nothing predicts the first token, so a mask that lets the prompt through begins at the second one.
    prompt = len(trained) > 2 and trained[1] and trained[2]
    leaks = any(block.mean() > _MOST for block in inside)
    answers = {"observation_leak": leaks, "turn_shift": late, "prompt_leak": prompt}
    return {name for name, is_wrong in answers.items() if is_wrong}


@cause(
    "minibatch.mismatch",
    "minibatch.mismatch_max",
    "minibatch.tokens",
    needs_one_policy=True,
    breaks=("old_log_probs", "behaviour_log_probs", "old_log_probs_fixed"),
    change=(
        "Open the trajectory: an off-by-one in stored log-probs, a token that the sampler never scored, a"
        " truncated float. Until it is found, mask tokens whose two log-probs disagree (rollout correction:"
        " mis)."
    ),
    test=sql(
        "SELECT trajectory, turn_index, mismatch, ratio_max FROM turn",
        "AND step = {step} ORDER BY mismatch DESC LIMIT 5",
    ),
)
def corrupt_log_prob(log: Log) -> Clue | None:
    """One token has an impossible log-ratio."""
    frame = log.table("minibatch")
    frame = frame[~frame["step"].isin(log.rescored)]
    total = frame["mismatch"] * frame["tokens"]
    rest = (total - frame["mismatch_max"]) / (frame["tokens"] - 1).clip(lower=1)
    usual_rest = RISE * float(frame["mismatch"].iloc[: max(1, len(frame) // 5)].median())
    if log.is_recorded:  # its gap may have been there from the start: then its largest token is no outlier
        usual_rest = KERNELS
    alone = (frame["mismatch_max"] > _NATS) & (rest < max(NOISE, usual_rest))
    if not alone.any():
        return None
    row = frame[alone].iloc[0]
    step = int(row["step"])
    value = float(row["mismatch_max"])
    usual = before(frame.set_index("step")["mismatch_max"], step)
    if usual is not None and usual > _NATS / 2:
        return None
    trajectory, turn = culprit(log, step)
    where = f", in turn {turn} of trajectory {trajectory}" if turn is not None else ""
    says = f"old log-prob of one token is {value:.3g} nats from the sampler's{where}; all others agree"
    shown = Evidence("minibatch.mismatch_max", step, value, usual)
    return Clue.of("proof", 0.95, shown, f"in step {step} the {says}", trajectory, turn)


def culprit(log: Log, step: int, column: str = "mismatch") -> tuple[int | None, int | None]:
    """Trajectory and turn with the largest value of a column of table `turn` in a step."""
    frame = log.load("turn", step)  # of one step: the ledger of turns can have millions in all
    here = frame[frame[column].notna()] if column in frame else frame.iloc[:0]
    if here.empty:
        return None, None
    worst = here.iloc[int(here[column].abs().to_numpy().argmax())]
    return int(worst["trajectory"]), int(worst["turn_index"])


@cause(
    "trajectory.advantage",
    "trajectory.reward",
    "trajectory.prompt_group",
    breaks=("advantages", "group_advantages"),
    denied_by="advantages",
    change=(
        "Check that the rows of a prompt stay together between sampling, scoring and normalising (shuffles,"
        " padding to a multiple of the world size, sorting by length)."
    ),
    test=sql(
        "SELECT prompt_group, question, reward, advantage FROM trajectory", "AND step = {step} ORDER BY ALL"
    ),
)
def wrong_groups(log: Log) -> Clue | None:
    """Advantages are computed across the wrong groups."""
    paid = any(
        name.endswith((".kl", ".kl.kind")) and value == "reward" for name, value in log.settings.items()
    )
    if paid or log.measured("minibatch", "value_loss"):
        return None  # a KL term in the reward gives equal rewards different advantages, and so does a critic
    frame = log.table("trajectory")
    frame = frame[frame["advantage"].notna() & frame["reward"].notna()]
    keys = ["step", "question" if log.measured("trajectory", "question") else "prompt_group"]
    # A question that was drawn twice has two groups, each with a mean of its own.
    rollouts = frame.groupby(keys)["reward"].transform("size")
    frame = frame[rollouts == rollouts.min()]
    group = frame.groupby([*keys, "reward"])["advantage"]
    spread = (group.max() - group.min())[group.size() > 1]
    unequal = (spread > _SAME * (1 + group.mean().abs().reindex(spread.index))).groupby(level="step").mean()
    wrong = unequal[unequal > 0.2]
    right = unequal[unequal <= 0.02]
    # Other estimators may do so from the first step on; only a change says something.
    if wrong.empty or right.empty or int(right.index[0]) > int(wrong.index[0]):
        return None
    says = (
        "rollouts of one question with one reward have different advantages, in"
        f" {100 * float(wrong.mean()):.0f} %"
    )
    says += " of the cases; before, they never had: rewards are compared across the wrong group"
    shown = Evidence("trajectory.advantage", int(wrong.index[0]), float(wrong.iloc[0]), 0.0)
    return Clue.since("proof", 0.96, shown, says)
