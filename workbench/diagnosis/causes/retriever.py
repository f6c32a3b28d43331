"""The retriever: it returns nothing, does not answer, is slow, or answers another question."""

from __future__ import annotations

import re

import pandas as pd

from workbench.diagnosis.departure import first
from workbench.diagnosis.finding import Cause, Clue, Evidence
from workbench.diagnosis.log import Log

_MOST = 0.9
_SEARCH = re.compile(
    r"<\s*search\s*>(.*?)<\s*/\s*search\s*>\s*<\s*information\s*>(.*?)<\s*/\s*information\s*>", re.DOTALL
)
_WORD = re.compile(r"\w+")


def _empty(log: Log) -> Clue | None:
    share = log.series("step", "retrieval_empty_frac")
    since = share[share > _MOST]
    if len(since) >= 2 and (share > _MOST).iloc[-max(2, len(share) // 4) :].mean() > 0.5:
        step = int(since.index[0])
        return Clue(
            "proof", 0.96, step,
            f"from step {step} on the retriever answers {100 * float(since.mean()):.0f} % of the searches with no "
            "passage",
            (Evidence("step.retrieval_empty_frac", step, float(since.iloc[0]), _before(share, step)),),
        )  # fmt: skip
    told = _told(log)
    gone = first(told, "below", points=2, margin=4.0, floor=0.1)
    if (
        gone is None
        or gone.value > 0.5 * gone.usual
        or float(told[told.index >= gone.step].median()) > 0.5 * gone.usual
    ):
        return None
    return Clue(
        "sign", 0.9, gone.step,
        f"from step {gone.step} on a search is answered with {gone.value:.1f} tokens, where {gone.usual:.1f} were "
        "usual: the retriever has next to nothing to say",
        (Evidence("trajectory.n_observation_tokens", gone.step, gone.value, gone.usual),),
    )  # fmt: skip


def _told(log: Log) -> pd.Series:
    """Mean observation tokens of a search, by step."""
    frame = log.table("trajectory")
    if not {"n_observation_tokens", "n_searches"} <= set(frame.columns):
        return pd.Series(dtype=float)
    sums = frame.groupby("step")[["n_observation_tokens", "n_searches"]].sum()
    asked = sums[sums["n_searches"] > 0]
    return asked["n_observation_tokens"] / asked["n_searches"]


def _failing(log: Log) -> Clue | None:
    share = log.series("step", "retrieval_failed_frac")
    failed = share[share > 0]
    if failed.empty:
        return None
    step = int(failed.index[0])
    return Clue(
        "proof", 0.9, step,
        f"from step {step} on the retriever did not answer up to {100 * float(failed.max()):.0f} % of the searches, "
        "after all retries",
        (Evidence("step.retrieval_failed_frac", step, float(failed.iloc[0]), _before(share, step)),),
    )  # fmt: skip


def _slow(log: Log) -> Clue | None:
    waited, column, told = log.series("step", "seconds_retrieval"), "seconds_retrieval", "waiting for the retriever"
    if waited.empty:
        waited, column, told = log.series("step", "seconds_rollout"), "seconds_rollout", "sampling"
    # A machine that is busy with something else slows the updates as well.
    relative = (waited / log.series("step", "seconds_update")).dropna()
    rise = first(relative, "above", points=3, margin=4.0, floor=0.25)
    if rise is None:
        return None
    before, since = relative[relative.index < rise.step], relative[relative.index >= rise.step]
    if float(since.quantile(0.1)) < 2 * float(before.median()):
        return None
    now, usual = float(waited[since.index].median()), float(waited[before.index].median())
    return Clue(
        "sign", 0.9 if column == "seconds_retrieval" else 0.7, rise.step,
        f"from step {rise.step} on a step spends {now:.2g} s {told}, where {usual:.2g} s were usual, while its updates "
        "take as long as before",
        (Evidence(f"step.{column}", rise.step, now, usual),),
    )  # fmt: skip


def _before(series: pd.Series, step: int) -> float | None:
    past = series[series.index < step]
    return None if past.empty else float(past.median())


def _junk(log: Log) -> Clue | None:
    named = _on_topic(log.transcripts("token"))
    if len(named) < 8:
        return None
    drop = first(named, "below", points=3, margin=4.0, floor=0.1, least=0.05)
    if drop is None or float(named[named.index >= drop.step].median()) > 0.6 * drop.usual:
        return None
    return Clue(
        "sign", 0.9, drop.step,
        f"from step {drop.step} on {100 * drop.value:.0f} % of the words that searches ask for come back in the "
        f"passages, where {100 * drop.usual:.0f} % were usual: the retriever answers something else",
        (Evidence("token.token", drop.step, drop.value, drop.usual),),
    )  # fmt: skip


def _on_topic(frame: pd.DataFrame) -> pd.Series:
    """Mean share of the words of a search that its passages hold, by step, over the transcripts."""
    shares = []
    for step, tokens in zip(frame["step"], frame["token"], strict=True):
        for query, passages in _SEARCH.findall(" ".join(tokens)):
            words, told = set(_WORD.findall(query.lower())), set(_WORD.findall(passages.lower()))
            if words and len(told) > 1:  # one word is a refusal, not a passage
                shares.append((int(step), len(words & told) / len(words)))
    found = pd.DataFrame(shares, columns=["step", "share"])
    return found.groupby("step")["share"].mean()


RETRIEVER_EMPTY = Cause(
    "retriever_empty",
    "The retriever returns nothing",
    "critical",
    ("trajectory.n_observation_tokens", "trajectory.n_searches"),
    "Ask the retriever by hand with a query of the log; look at its index, its port, its time limit.",
    "sorl sql \"SELECT step, sum(n_observation_tokens) / sum(n_searches) FROM trajectory WHERE run_id = '{run}' "
    'GROUP BY step ORDER BY step"',
    _empty,
)
RETRIEVER_FAILING = Cause(
    "retriever_failing",
    "The retriever does not answer",
    "critical",
    ("step.retrieval_failed_frac",),
    "Restart the retriever, raise world.retriever.retries or timeout, and leave failed episodes out of the batch.",
    "sorl show {run}",
    _failing,
)
RETRIEVER_SLOW = Cause(
    "retriever_slow",
    "The retriever has become slow",
    "warning",
    ("step.seconds_rollout", "step.seconds_update"),
    "Look at the load of the retriever's machine and at world.retriever.batch; training itself is not harmed.",
    "sorl sql \"SELECT step, seconds_retrieval, seconds_rollout FROM step WHERE run_id = '{run}' ORDER BY step\"",
    _slow,
)
RETRIEVER_JUNK = Cause(
    "retriever_junk",
    "The retriever answers something else than was asked",
    "critical",
    ("token.token",),
    "Ask it by hand with a query of the log; look for answers out of step with their requests in a batch, another "
    "index, another embedding model than the index was built with.",
    "sorl sql \"SELECT token FROM token WHERE run_id = '{run}' AND step = {step}\" --format json",
    _junk,
)
