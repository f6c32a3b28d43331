"""Faults of the environment: rewards, retrieved passages, truncated episodes."""

import re

import numpy as np
import pandas as pd

from sorl.diagnosis.changepoint import Evidence, before, first
from sorl.diagnosis.finding import Clue, among, cause, sql
from sorl.diagnosis.log import Log

SHIFTS = 8  # rows by which rewards may be off
FEW = 0.02  # of trajectories whose reward is not their success: below, F1 and rounding
_NEEDS = ("trajectory.reward", "trajectory.success")
_PAID = sql("SELECT question, gold, answer, reward FROM trajectory", "AND step = {step}")
_MOST = 0.9  # share of the searches
_CUT = ("transcripts", "loss_mask", "reward")  # identities that a budget which nobody set violates
_SEARCH = re.compile(
    r"<\s*search\s*>(.*?)<\s*/\s*search\s*>\s*<\s*information\s*>(.*?)<\s*/\s*information\s*>", re.DOTALL
)
_WORD = re.compile(r"\w+")


def paid(log: Log) -> dict[str, Clue]:
    """Return the clues of how reward and success part, by the causes that fit; nothing where they agree.

    A trajectory is paid if its reward is above half of the range of rewards. An answer after valid turns is
    formed.
    """
    if log.settings.get("world.reward", "em") != "em":
        return {}  # a graded reward differs from exact match by design
    rows = _paid_rows(log.table("trajectory"))
    share = (rows["paid"] != rows["success"]).groupby(rows["step"]).mean()
    if (share > FEW).mean() < 0.05 or not (share > FEW).any():
        return {}
    step = int(share.index[share > FEW][0])
    rows = rows[rows["step"] >= step]
    clues = _format_clue(rows, step) | _sign_clue(rows, step)
    return clues or _shift_clue(rows, step) or _noise_clue(rows, step)


def _paid_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """The trajectories whose reward and success are known, with what was paid and what was answered."""
    rows = frame[frame["reward"].notna() & frame["success"].notna()]
    answered = rows["answer"].notna() if "answer" in rows else pd.Series(False, index=rows.index)
    formed = answered & (rows["valid_turn_frac"] >= 1.0) if "valid_turn_frac" in rows else answered
    return rows[["step", "trajectory", "reward"]].assign(
        paid=rows["reward"] > (rows["reward"].min() + rows["reward"].max()) / 2,
        success=rows["success"].astype(bool),
        answered=answered,
        formed=formed,
    )


def _wrongly_paid(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["paid"] != rows["success"]]


def _reward_evidence(step: int, value: float, usual: float) -> Evidence:
    return Evidence("trajectory.reward", step, value, usual)


def _example(rows: pd.DataFrame, step: int) -> int | None:
    """The first trajectory of the step among the rows."""
    of_step = rows[rows["step"] == step]["trajectory"]
    return None if of_step.empty else int(of_step.iloc[0])


def _format_clue(rows: pd.DataFrame, step: int) -> dict[str, Clue]:
    """The reward pays for the form of an answer: it agrees with it, and wrong answers of it are paid."""
    agree, form = max((float((rows["paid"] == rows[name]).mean()), name) for name in ("answered", "formed"))
    failed = rows[~rows["success"] & rows[form]]
    if not (agree >= 0.9 and len(failed) and failed["paid"].mean() >= 0.9):
        return {}
    what = "an answer" if form == "answered" else "an answer after valid turns"
    says = (
        f"the reward pays for giving {what}: that alone explains {100 * agree:.0f} % of the rewards, and "
        f"{100 * float(failed['paid'].mean()):.0f} % of the wrong answers of that form are paid"
    )
    evidence = _reward_evidence(step, float(rows["paid"].mean()), float(rows["success"].mean()))
    example = _example(failed[failed["paid"]], step)
    return {"reward_format": Clue.since("sign", 0.93, evidence, says, example)}


def _sign_clue(rows: pd.DataFrame, step: int) -> dict[str, Clue]:
    """The reward has the wrong sign: it falls with success."""
    won = rows[rows["success"]]
    lost = rows[~rows["success"]]
    if not len(won) or not len(lost) or rows["reward"].corr(rows["success"].astype(float)) > -0.8:
        return {}
    mean = float(won["reward"].mean())
    usual = float(lost["reward"].mean())
    says = f"a failure is paid {usual:.2g} and a success {mean:.2g} on average: the reward has the wrong sign"
    evidence = _reward_evidence(step, mean, usual)
    example = _example(_wrongly_paid(rows), step)
    return {"reward_inverted": Clue.since("proof", 0.96, evidence, says, example)}


def _shift_clue(rows: pd.DataFrame, step: int) -> dict[str, Clue]:
    """The rewards are those of other trajectories: so many rows further they agree with success."""
    agreement = {k: _agreement(rows, k) for k in range(-SHIFTS, SHIFTS + 1) if k}
    rows_off = max(agreement, key=lambda k: (agreement[k], -abs(k)))
    if agreement[rows_off] < 0.98:
        return {}
    side = "before" if rows_off > 0 else "after"
    says = (
        f"the rewards are those of other trajectories, {abs(rows_off)} rows {side}"
        f": so read, {100 * agreement[rows_off]:.0f} % of them are right"
    )
    evidence = _reward_evidence(step, float((rows["paid"] == rows["success"]).mean()), 1.0)
    example = _example(_wrongly_paid(rows), step)
    return {"reward_shifted": Clue.since("proof", 0.96, evidence, says, example)}


def _agreement(rows: pd.DataFrame, rows_off: int) -> float:
    """Share of the trajectories of a step whose reward is the success of the one `rows_off` rows before."""
    shares = [
        (np.roll(part["success"].to_numpy(), rows_off) == part["paid"].to_numpy()).mean()
        for _, part in rows.groupby("step")
    ]
    return float(np.mean(shares))


def _noise_clue(rows: pd.DataFrame, step: int) -> dict[str, Clue]:
    """Rewards go to trajectories that did not earn them, in no way that is known."""
    won = rows[rows["success"]]
    lost = rows[~rows["success"]]
    off = float((rows["paid"] != rows["success"]).mean())
    says = (
        f"the reward of {100 * off:.0f} % of the trajectories is not their success:"
        f" {100 * lost['paid'].mean():.0f}"
        f" % of the failures are paid, {100 * (~won['paid']).mean():.0f} % of the successes are not"
    )
    example = _example(_wrongly_paid(rows), step)
    return {"reward_noise": Clue.since("sign", 0.9, _reward_evidence(step, 1 - off, 1.0), says, example)}


reward_format = among(
    paid,
    "reward_format",
    "The reward pays for the form of an answer, not for its truth",
    needs=(*_NEEDS, "trajectory.answer"),
    breaks=("reward",),
    denied_by="reward",
    test=_PAID,
    change=(
        "Pay the outcome; a format term must stay small against it, and success is to be measured apart from"
        " the reward."
    ),
)
reward_inverted = among(
    paid,
    "reward_inverted",
    "The reward has the wrong sign",
    needs=_NEEDS,
    breaks=("reward",),
    denied_by="reward",
    test=_PAID,
    change="Check the sign of the reward and which row it is written to.",
)
reward_shifted = among(
    paid,
    "reward_shifted",
    "Rewards belong to other trajectories",
    needs=_NEEDS,
    breaks=("reward",),
    denied_by="reward",
    test=sql("SELECT trajectory, success, reward FROM trajectory", "AND step = {step} ORDER BY 1"),
    change=(
        "Keep an id with each reward from scoring to training; look for a sort, a filter or a shuffle in"
        " between."
    ),
)
reward_noise = among(
    paid,
    "reward_noise",
    "Rewards go to trajectories that did not earn them",
    needs=_NEEDS,
    breaks=("reward",),
    denied_by="reward",
    test=_PAID,
    change=(
        "Check the order of rows between scoring and training, the normalisation of answers, and the judge if"
        " there is one."
    ),
)


@cause(
    "trajectory.n_observation_tokens",
    "trajectory.n_searches",
    breaks=("transcripts",),
    change="Ask the retriever by hand with a query of the log; look at its index, its port, its time limit.",
    test=sql(
        "SELECT step, sum(n_observation_tokens) / sum(n_searches) FROM trajectory",
        "GROUP BY step ORDER BY step",
    ),
)
def retriever_empty(log: Log) -> Clue | None:
    """The retriever returns nothing."""
    share = log.series("step", "retrieval_empty_frac")
    empty = share[share > _MOST]
    if len(empty) >= 2 and (share > _MOST).iloc[-max(2, len(share) // 4) :].mean() > 0.5:
        step = int(empty.index[0])
        shown = Evidence("step.retrieval_empty_frac", step, float(empty.iloc[0]), before(share, step))
        says = f"the retriever answers {100 * empty.mean():.0f} % of the searches with no passage"
        return Clue.since("proof", 0.96, shown, says)
    sums = log.table("trajectory").groupby("step")[["n_observation_tokens", "n_searches"]].sum()
    sums = sums[sums["n_searches"] > 0]
    told = sums["n_observation_tokens"] / sums["n_searches"]  # mean observation tokens of a search, by step
    gone = first(told.rename("trajectory.n_observation_tokens"), "below", points=2, margin=4.0, floor=0.1)
    if gone is None or max(gone.value, float(told[told.index >= gone.step].median())) > 0.5 * gone.usual:
        return None
    says = (
        f"a search is answered with {gone.value:.1f} tokens, where {gone.usual:.1f} were usual: the retriever"
    )
    return Clue.since("sign", 0.9, gone, f"{says} returns next to nothing")


@cause(
    "step.retrieval_failed_frac",
    breaks=("transcripts",),
    change=(
        "Restart the retriever, raise world.retriever.retries or timeout, and leave failed episodes out of"
        " the batch."
    ),
    test="sorl show {run}",
)
def retriever_failing(log: Log) -> Clue | None:
    """The retriever does not answer."""
    share = log.series("step", "retrieval_failed_frac")
    failed = log.first_above("step", "retrieval_failed_frac", 0.0)
    if failed is None:
        return None
    says = (
        f"the retriever did not answer up to {100 * float(share.max()):.0f} % of the searches, after all"
        " retries"
    )
    shown = Evidence(failed.column, failed.step, failed.value, before(share, failed.step))
    return Clue.since("proof", 0.9, shown, says)


@cause(
    "step.seconds_rollout",
    "step.seconds_update",
    needs_ledger=True,
    severity="warning",
    change=(
        "Look at the load of the retriever's machine and at world.retriever.batch; training itself is not"
        " harmed."
    ),
    test=sql("SELECT step, seconds_retrieval, seconds_rollout FROM step", "ORDER BY step"),
)
def retriever_slow(log: Log) -> Clue | None:
    """The retriever has become slow."""
    sure = 0.9
    column = "seconds_retrieval"
    told = "waiting for the retriever"
    if not log.measured("step", column):
        sure = 0.7
        column = "seconds_rollout"
        told = "sampling"
    waited = log.series("step", column)
    # A machine that is busy with something else slows the updates as well.
    relative = (waited / log.series("step", "seconds_update")).dropna()
    rise = first(relative, "above", points=3, margin=4.0, floor=0.25)
    since = relative.index >= (np.inf if rise is None else rise.step)
    if rise is None or float(relative[since].quantile(0.1)) < 2 * float(relative[~since].median()):
        return None
    now, usual = (float(waited[relative.index[part]].median()) for part in (since, ~since))
    says = (
        f"a step spends {now:.2g} s {told}, where {usual:.2g} s were usual, while its updates take as long as"
        " before"
    )
    return Clue.since("sign", sure, Evidence(f"step.{column}", rise.step, now, usual), says)


@cause(
    "token.token",
    breaks=("transcripts",),
    change=(
        "Ask it by hand with a query of the log; look for answers out of step with their requests in a batch,"
        " another index, another embedding model than the index was built with."
    ),
    test=sql("SELECT token FROM token", "AND step = {step}", form="json"),
)
def retriever_junk(log: Log) -> Clue | None:
    """The retriever answers another question."""
    frame = log.transcripts("token")
    shares = []
    for step, tokens in zip(frame["step"], frame["token"], strict=True):
        for query, passages in _SEARCH.findall(" ".join(tokens)):
            words = set(_WORD.findall(query.lower()))
            told = set(_WORD.findall(passages.lower()))
            if words and len(told) > 1:  # one word is a refusal, not a passage
                shares.append((int(step), len(words & told) / len(words)))
    # Mean share of the words of a search that its passages hold, by step.
    named = pd.DataFrame(shares, columns=["step", "share"]).groupby("step")["share"].mean()
    if len(named) < 8:
        return None
    drop = first(named.rename("token.token"), "below", points=3, margin=4.0, floor=0.1, least=0.05)
    if drop is None or float(named[named.index >= drop.step].median()) > 0.6 * drop.usual:
        return None
    says = f"{100 * drop.value:.0f} % of the words that searches ask for come back in the passages, where "
    says += f"{100 * drop.usual:.0f} % were usual: the retriever answers another question"
    return Clue.since("sign", 0.9, drop, says)


@cause(
    "trajectory.ended",
    "trajectory.n_turns",
    breaks=_CUT,
    change=(
        "Raise the budget of turns or tokens, or leave truncated episodes out of the loss: they are punished"
        " for their length."
    ),
    test=sql("SELECT step, ended, count(*) FROM trajectory", "GROUP BY ALL ORDER BY 1"),
)
def truncated(log: Log) -> Clue | None:
    """Episodes are cut short."""
    frame = log.table("trajectory")
    unfinished = (frame["ended"] != "answer").groupby(frame["step"]).mean()
    rise = first(unfinished.rename("step.truncated_frac"), "above", margin=4.0, floor=0.3, least=0.03)
    if rise is None or rise.value - rise.usual < 0.1 or turn_cut.look(log) is not None:
        return None
    since = frame[frame["step"] >= rise.step]
    share = float(unfinished[unfinished.index >= rise.step].mean())
    for column in (name for name in ("n_turns", "n_tokens") if name in frame):
        cut = since[since["ended"] != "answer"][column]
        free = frame[frame["step"] < rise.step][column]
        bound = cut.quantile(0.9)
        more = float((free > bound).mean())
        if len(cut) and (cut >= bound).mean() > 0.5 and more > 0.02 and since[column].max() <= bound:
            says = (
                f"{100 * share:.0f} % of the episodes end without an answer, and none has more than"
                f" {bound:.0f} "
            )
            return Clue.since(
                "sign", 0.92, rise, f"{says}{column[2:]}, where before {100 * more:.0f} % had more"
            )
    return None


@cause(
    "step.valid_action_frac",
    "token.trained",
    breaks=_CUT,
    change=(
        "Raise the budget of tokens of a turn (world.max_turn_tokens), or look for a stop word that comes too"
        " early."
    ),
    test=sql("SELECT step, valid_action_frac, response_tokens / turns FROM step", "ORDER BY step"),
)
def turn_cut(log: Log) -> Clue | None:
    """Turns are cut before they are complete."""
    valid = log.series("step", "valid_action_frac")
    drop = first(valid, "below", points=2, margin=4.0, least=0.02)
    if drop is None or drop.usual - drop.value < 0.2:
        return None
    kept = log.transcripts("trained")
    edges = [np.flatnonzero(np.diff(np.pad(np.asarray(mask, int), 1))) for mask in kept["trained"]]
    # of turns
    lengths = pd.Series([at[1::2] - at[::2] for at in edges], kept["step"], dtype=object).explode().dropna()
    earlier = lengths[lengths.index < drop.step]
    later = lengths[lengths.index >= drop.step]
    bound = later.max()
    longer = float((earlier > bound).mean()) if len(later) else 0.0
    if not longer >= 0.3 or (later == bound).mean() < 0.3:
        return None
    says = (
        f"no turn has more than {bound} tokens, where before {100 * longer:.0f} % had more, and the share of"
        " valid "
    )
    says += f"actions falls from {drop.usual:.2f} to {drop.value:.2f}: turns end before their closing tag"
    return Clue.since("sign", 0.92, drop, says)
