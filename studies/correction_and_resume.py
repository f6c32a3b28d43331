"""How often the causes `correction_shrinks`, `stale_discard_bias` and `resume_skip` are right on made data.

    python -m studies.correction_and_resume --seeds 100 149

Marks were set on seeds 0 to 39; count on others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import torch

from sorl.batch import Batch, turn_ids
from sorl.diagnosis.causes.correction import correction_shrinks, stale_discard_bias
from sorl.diagnosis.causes.resume import resume_skip
from sorl.diagnosis.finding import Cause
from sorl.diagnosis.log import Log
from sorl.objective.ratio import Correction, IcePop, Mis, Tis
from studies import Share

Tables = dict[str, pd.DataFrame]
Draw = np.random.Generator
STEPS = 12
ROWS = 32  # trajectories a step
PER_PROMPT = 4
QUESTIONS = 16  # a step
ORDER_STEPS = 40  # that are logged; more data are there, for filters drop some
LENGTH = 3 * ORDER_STEPS * QUESTIONS
TURN_TOKENS = 60

FAULTS = (
    "none",
    "none, a filter",
    "none, with ids",
    "none, a filter, with ids",
    "goes back 3 steps",
    "begins anew",
    "order drawn anew",
    "skips 3 steps",
    "skips 3 steps, with ids",
    "skips 3 steps, a filter, with ids",
)

CORRECTIONS: dict[str, Correction] = {
    "tis": Tis(),
    "mis": Mis(),
    "icepop": IcePop(),
    "mis, geometric mean": Mis(level="seq_geo_filter"),
    "tis, sequence": Tis(level="seq_prod"),
    "mis, sequence": Mis(level="seq_prod"),
}


def log(tables: Tables) -> Log:
    """These tables as the log of one run."""

    def load(name: str, step: int | None) -> pd.DataFrame:
        frame = tables.get(name, pd.DataFrame())
        return frame if step is None or frame.empty else frame[frame["step"] == step]

    return Log("made", load)


# --- weights


def scale_of(correction: Correction, draw: Draw, turns: int, gap: float) -> float:
    """`correction_scale` of a batch of up to `turns` turns, whose tokens differ by `gap` nats (a standard
    deviation) between sampler and trainer.
    """
    lengths = TURN_TOKENS * draw.integers(max(1, turns // 2), turns + 1, ROWS)
    mask = torch.arange(int(lengths.max())) < torch.from_numpy(lengths)[:, None]
    # of two policies that share a mean: E exp(log omega) = 1
    log_omega = torch.from_numpy(draw.normal(-(gap**2) / 2, gap, mask.shape))
    pull = torch.from_numpy(np.abs(draw.normal(0, 1, ROWS)))[:, None].expand(mask.shape)
    zeros = torch.zeros(mask.shape, dtype=torch.float64)
    batch = Batch(
        tokens=zeros.long(),
        response=mask,
        mask=mask,
        turn_id=turn_ids(mask),
        length=torch.from_numpy(lengths),
        group=torch.arange(ROWS),
        trajectory=torch.arange(ROWS),
        score=zeros[:, 0],
        log_prob_old=log_omega,
        log_prob_behaviour=zeros,
    )
    weights = correction.weights(batch)
    assert weights is not None
    return float((weights * pull)[mask].sum() / pull[mask].sum())


def weighed(seed: int, kind: str, turns: int, gap: float) -> Tables:
    """A run with a correction."""
    draw = np.random.default_rng(seed)
    steps = range(STEPS)
    scale = [scale_of(CORRECTIONS[kind], draw, turns, gap) for _ in steps]
    step = pd.DataFrame({"step": steps, "correction_scale": scale, "success": 0.5})
    return {"step": step, "minibatch": pd.DataFrame({"step": steps, "mismatch": gap * 0.8})}


# --- who is dropped


def dropped(seed: int, by: str, share: float) -> Tables:
    """A run that drops a share of what it sampled: by chance, in whole groups or not, or by what `by`
    says.
    """
    draw = np.random.default_rng(seed)
    size = 2 * STEPS * ROWS
    rows = pd.DataFrame({"step": np.repeat(np.arange(2 * STEPS), ROWS)})
    rows["trajectory"] = np.tile(np.arange(ROWS), 2 * STEPS)
    rows["prompt_group"] = rows["trajectory"] // PER_PROMPT
    hardness = draw.normal(0, 1, size // PER_PROMPT).repeat(PER_PROMPT)
    rows["n_tokens"] = np.exp(6 + 0.4 * hardness + draw.normal(0, 0.4, size)).astype(int)
    rows["reward"] = (draw.normal(0, 1, size) > hardness).astype(float)
    groups = rows.groupby(["step", "prompt_group"])
    rows["advantage"] = rows["reward"] - groups["reward"].transform("mean")
    chance = draw.uniform(size=size)
    by_group = draw.uniform(size=size // PER_PROMPT).repeat(PER_PROMPT)
    longest = groups["n_tokens"].transform("max")
    order = {
        "rows by chance": chance,
        "groups by chance": by_group,
        "long rows": chance - 0.5 * rows["n_tokens"].rank(pct=True),
        "long groups": by_group - 0.5 * longest.rank(pct=True),
        "failed rows": chance + 0.25 * rows["reward"],
        "rows by reward, of any age": rows["reward"] + 0.01 * chance,
    }[by]
    is_dropped = order.rank(pct=True) <= share if isinstance(order, pd.Series) else order < share
    age = np.where(is_dropped & (by != "rows by reward, of any age"), 6, draw.integers(0, 3, size))
    rows["rollout_step"] = rows["step"] - age
    rows.loc[is_dropped, "advantage"] = np.nan
    return {"step": pd.DataFrame({"step": range(2 * STEPS)}), "trajectory": rows}


# --- the order of the data


def stream(draw: Draw) -> np.ndarray:
    """Questions that never come twice, (N,)."""
    return np.arange(LENGTH)


def shuffled(draw: Draw, passes: float) -> np.ndarray:
    """Passes over a data set, each in an order of its own, (N,) or a little more."""
    size = int(ORDER_STEPS * QUESTIONS / passes)
    return np.concatenate([draw.permutation(size) for _ in range(LENGTH // size + 1)])


def repeated(draw: Draw, passes: float) -> np.ndarray:
    """Passes over a data set in one order."""
    return np.arange(LENGTH) % int(ORDER_STEPS * QUESTIONS / passes)


def with_return(draw: Draw, size: int) -> np.ndarray:
    """Questions drawn with return from a pool."""
    return draw.integers(0, size, LENGTH)


ORDERS: dict[str, Callable[[Draw], np.ndarray]] = {
    "stream": stream,
    "1.4 passes, shuffled": partial(shuffled, passes=1.4),
    "3.3 passes, shuffled": partial(shuffled, passes=3.3),
    "3.3 passes, one order": partial(repeated, passes=3.3),
    "with return from 2000": partial(with_return, size=2000),
    "with return from 100": partial(with_return, size=100),
    "with return from 16": partial(with_return, size=16),
}


def ordered(seed: int, order: str, fault: str, is_known: bool, is_async: bool = False) -> Tables:
    """A run over an order of data, resumed at a drawn step, with a fault of the resume."""
    draw = np.random.default_rng(seed)
    at = int(draw.integers(10, 25))
    data = pd.DataFrame({"question": ORDERS[order](draw)})
    data["sample"] = np.arange(len(data))
    if "filter" in fault:
        data = data[draw.uniform(size=len(data)) > draw.uniform(0.2, 0.6)]
    data = data.iloc[_places(fault, at * QUESTIONS, data["question"], draw)]
    count = min(len(data) // QUESTIONS, ORDER_STEPS)
    data = data.iloc[: count * QUESTIONS]
    if is_async:  # what finishes early overtakes
        finished = np.arange(len(data)) + draw.exponential(QUESTIONS / 3, len(data))
        data = data.iloc[np.argsort(finished)]
    rows = data.reset_index(drop=True).astype({"question": str})
    if not fault.endswith("ids"):
        del rows["sample"]
    rows["step"] = np.repeat(np.arange(count), QUESTIONS)
    rows["prompt_group"] = np.tile(np.arange(QUESTIONS), count)
    rows["trajectory"] = rows["prompt_group"]
    event = pd.DataFrame({"step": [at], "kind": ["resumed"], "severity": ["info"]})
    tables = {"step": pd.DataFrame({"step": range(count)}), "trajectory": rows}
    return tables | ({"event": event} if is_known else {})


def _places(fault: str, here: int, questions: pd.Series, draw: Draw) -> np.ndarray:
    """Which places of the data a run visits that was resumed at place `here`."""
    ahead = 3 * QUESTIONS
    size = len(questions)
    if fault.startswith("goes back 3 steps"):
        return np.r_[0:here, here - ahead : size]
    if fault == "begins anew":
        return np.r_[0:here, 0:size]
    if fault == "order drawn anew":
        pool = min(questions.nunique(), 2 * ORDER_STEPS * QUESTIONS)
        anew = [draw.permutation(pool) for _ in range(LENGTH // pool + 1)]
        return np.r_[0:here, np.concatenate(anew)]
    if fault.startswith("skips 3 steps"):
        return np.r_[0:here, here + ahead : size]
    return np.arange(size)


def count(cause: Cause, make: Callable[[int], Tables], seeds: range) -> Share:
    """In how many made runs a cause is found."""
    found = 0
    for seed in seeds:
        made = log(make(seed))
        found += not cause.missing(made) and cause.clue(made) is not None
    return Share(found, len(seeds))


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=(100, 149), metavar=("FIRST", "LAST"))
    parser.add_argument("--part", choices=("weights", "dropped", "order"), help="default: all")
    arguments = parser.parse_args()
    first, last = arguments.seeds
    parts = {"weights": print_weights, "dropped": print_dropped, "order": print_order}
    for name, part in parts.items():
        if arguments.part in (None, name):
            part(range(first, last + 1))


def print_weights(seeds: range) -> None:
    """How often a scale is called shrunk, by correction, turns and noise; ten seeds, for it hardly varies."""
    seeds = seeds[:10]
    for kind in CORRECTIONS:
        for turns, gap in ((2, 0.02), (8, 0.02), (40, 0.02), (8, 0.05), (40, 0.05), (40, 0.1)):
            made = partial(weighed, kind=kind, turns=turns, gap=gap)
            scale = weighed(seeds[0], kind, turns, gap)["step"]["correction_scale"].median()
            print(f"weights | {kind}, {turns} turns, {gap} nats | {scale:.2g} |", end=" ")
            print(count(correction_shrinks, made, seeds))


def print_dropped(seeds: range) -> None:
    """How often the dropped are called unlike the kept."""
    for by in (
        "rows by chance",
        "groups by chance",
        "rows by reward, of any age",
        "long rows",
        "long groups",
        "failed rows",
    ):
        for share in (0.05, 0.2):
            made = partial(dropped, by=by, share=share)
            print(f"dropped | {by}, {share} |", count(stale_discard_bias, made, seeds))


def print_order(seeds: range) -> None:
    """How often an order is called broken: resume known or not, each in order and asynchronous."""
    for order in ORDERS:
        for fault in FAULTS:
            shares = []
            for known, mixed in ((True, False), (True, True), (False, False), (False, True)):
                made = partial(ordered, order=order, fault=fault, is_known=known, is_async=mixed)
                shares.append(str(count(resume_skip, made, seeds)))
            print(f"order | {order} | {fault} |", " | ".join(shares))


if __name__ == "__main__":
    main()
