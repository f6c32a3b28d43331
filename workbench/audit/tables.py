"""Identities of the rows of a run: they need no stored batch, and look at every step.

What the recorder computes itself from one and the same array is no identity: it could not be violated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sorl.algorithms import ALGORITHMS
from sorl.audit.declaration import OWN, Declaration, declaration_of, segment_files
from sorl.audit.registry import IDENTITIES, TABLES, identity
from sorl.batch import Batch, turn_ids
from sorl.measures.evidence import Missing
from sorl.objective import Algorithm, prepare
from sorl.spec import InputError
from sorl.spec.evidence import Check
from sorl.store import batches
from sorl.tensors import Tensor, torch

CHANCE = 40.0  # nats: a batch this surprising is drawn again once in 1e17 times
LISTS = ("trained", "log_prob", "log_prob_old", "log_prob_behaviour", "entropy", "advantage", "turn_index")
# How trainers call the configured number of rollouts of a prompt; `learn.group_size` is what was counted.
GROUP_SIZES = ("num_generations", "rollout_n", "n_samples_per_prompt", "group_size")
KEY = ("step", "trajectory")
OF_GROUPS = ("grpo", "mean_only", "rloo")  # advantages that are one number a sequence
ENTROPIES = (("minibatch", "entropy"), ("step", "entropy"), ("trajectory", "entropy"))


@dataclass
class Tables:
    """The rows of a run by table, read from its segments; and what the run says of itself."""

    folder: Path
    declared: Declaration

    def rows(self, table: str, *columns: str) -> pd.DataFrame:
        """Return the rows that have a value in all of these columns; none where a column was not logged."""
        parts: list[pa.Table] = []
        for file in segment_files(self.folder, table):
            try:
                if {*columns} <= {*pq.read_schema(file).names}:
                    parts.append(pq.read_table(file, columns=list(columns)))
            except (OSError, pa.ArrowException):
                continue  # `sorl sync` sets a damaged file aside and says so
        if not parts:
            return pd.DataFrame(columns=list(columns))
        frame: pd.DataFrame = pa.concat_tables(parts, promote_options="permissive").to_pandas()
        frame = frame.dropna(ignore_index=True)
        # A step that was trained again after a stop has its rows twice.
        return frame.drop_duplicates([*KEY], keep="last") if {*KEY} <= {*columns} else frame

    @cached_property
    def meta(self) -> dict[str, Any]:
        """What a stored batch says of the algorithm; of a run without one what its name says."""
        for step in batches.steps(self.folder)[:1]:
            try:
                return dict(batches.read(self.folder, step).meta)
            except InputError:
                break
        return {"algorithm": self.declared.name}

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that ran, where its advantages are declared."""
        is_named = str(self.meta.get("algorithm")) in ALGORITHMS
        if "told" not in self.meta and self.declared.trainer != OWN and not is_named:
            raise self.declared.lacks("algorithm")
        self.declared.hold(self.meta, "advantage", "select", "shaping")
        return self.declared.algorithm(self.meta)


@identity(
    "advantages are mixed up between groups, scaled or normalised wrongly",
    formula="for GRPO A_i = (R_i - mean_g R) / (std_g R + eps), from the rows of table trajectory",
    innocent=(
        "The declared algorithm is not the one that ran (`replay_as`), or a bonus is added to rewards later."
    ),
    change=(
        "Work the advantages of one named group out by hand. `sorl audit RUN --only advantages` shows tokens."
    ),
    reads=TABLES,
)
def group_advantages(tables: Tables) -> Iterator[Check]:
    """A trajectory's advantage is made of its reward and those of its group."""
    columns = ("step", "trajectory", "prompt_group", "reward", "advantage")
    rows = tables.rows("trajectory", *columns)
    if rows.empty:
        raise tables.declared.lacks("trajectory")
    own = tables.algorithm
    is_plain = own.kl.kind != "reward" and own.shaping.kind == "outcome" and own.select.kind == "none"
    if own.advantage.kind not in OF_GROUPS or not is_plain:
        raise Missing("an algorithm whose advantages are made of the rewards of a group alone")
    _need_groups(tables)
    everything = tables.rows("trajectory", *columns[:4])
    for step, part in by_step(rows):
        sizes = everything[everything["step"] == step].groupby("prompt_group")["reward"].size()
        counts = part.groupby("prompt_group")["reward"].transform("size")
        whole = part[(counts == part["prompt_group"].map(sizes)).to_numpy()]
        if len(whole):
            yield _compare_advantages(own, step, whole)


def by_step(rows: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    """Yield each step with its rows."""
    for step, part in rows.groupby("step"):
        yield int(str(step)), part


def _need_groups(tables: Tables) -> None:
    told = tables.meta.get("told")
    if told is not None and "group" not in told:
        raise tables.declared.lacks("group")


def _compare_advantages(own: Algorithm, step: int, rows: pd.DataFrame) -> Check:
    """Compare the advantages of a step, a token a trajectory, with those of the rewards."""
    reward = torch.tensor(rows["reward"].to_numpy(dtype=np.float32))
    expected = _advantages(own, rows, reward)
    signs = torch.ones_like(reward)
    signs[::2] = -1
    moved = _advantages(own, rows, reward * (1 + signs * torch.finfo(torch.float32).eps))
    size = max(1.0, float(np.abs(expected).max()))
    rounding = 4 * np.abs(moved - expected)
    steady = rounding < 0.05 * size
    apart = np.where(steady, np.abs(rows["advantage"].to_numpy(dtype=float) - expected), 0.0)
    # A trainer in bfloat16 has advantages of 8 bits.
    tolerance = 2.0**-7 * size + float(rounding[steady].max(initial=0.0))
    worst = int(apart.argmax())
    broken = tuple(int(row) for row in rows["trajectory"].to_numpy()[apart > tolerance])
    logged = float(rows["advantage"].iloc[worst])
    return Check(
        step=step,
        gap=float(apart[worst]),
        tolerance=tolerance,
        logged=logged,
        expected=float(expected[worst]),
        trajectories=broken,
    )


def _advantages(own: Algorithm, rows: pd.DataFrame, reward: Tensor) -> np.ndarray:
    one = torch.ones(len(rows), 1, dtype=torch.bool)
    batch = Batch(
        tokens=one.long(),
        response=one,
        mask=one,
        turn_id=turn_ids(one),
        length=torch.ones(len(rows), dtype=torch.long),
        group=torch.tensor(rows["prompt_group"].to_numpy(dtype=np.int64)),
        trajectory=torch.arange(len(rows)),
        score=reward,
        log_prob_behaviour=None,
        log_prob_old=torch.zeros(len(rows), 1),
    )
    return np.asarray(prepare(own, batch).need("advantages")[:, 0].numpy(), dtype=float)


@identity(
    "groups of several prompts are one: their baseline is that of other prompts",
    formula="rollouts of a prompt group <= configured rollouts of a prompt",
    innocent="The data has a prompt twice, and the trainer names groups by their prompt on purpose.",
    change="Count the rows of the named step by prompt group. Check what a group's number is made of.",
    reads=TABLES,
)
def group_size(tables: Tables) -> Iterator[Check]:
    """No prompt has more rollouts than configured."""
    rows = tables.rows("trajectory", *KEY, "prompt_group")
    if rows.empty:
        raise tables.declared.lacks("trajectory")
    _need_groups(tables)
    sizes = [tables.declared.config.get(name) for name in GROUP_SIZES]
    known = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool)]
    if not known:
        raise tables.declared.lacks("group_size")
    for step, part in by_step(rows):
        largest = int(part["prompt_group"].value_counts().max())
        yield Check(
            step=step,
            gap=float(max(0, largest - known[0])),
            tolerance=0.0,
            logged=float(largest),
            expected=float(known[0]),
        )


@identity(
    "a batch is trained on twice: a queue, a loader or a buffer has not moved on",
    formula="tokens of step a != tokens of step b, unless both say that one policy sampled them",
    innocent=(
        "A replay buffer is meant to be used again, and nobody told the step that sampled (rollout_step)."
    ),
    change=(
        "Look at the queue and the data loader: an iterator that is not advanced, a buffer that is"
        " not cleared."
    ),
    reads=TABLES,
)
def fresh_batch(tables: Tables) -> Iterator[Check]:
    """Steps with rollouts of different policies have different tokens."""
    rows = tables.rows("step", "step", "batch_hash", "entropy", "tokens_trained", "updates")
    if rows.empty:
        raise tables.declared.lacks("batch_hash")
    sampled = tables.rows("minibatch", "step", "rollout_step").groupby("step")["rollout_step"].min()
    first: dict[str, int] = {}
    for row in rows.sort_values("step").to_dict("records"):
        step = int(row["step"])
        earlier = first.setdefault(str(row["batch_hash"]), step)
        tokens = row["tokens_trained"] / max(1, row["updates"])  # at least those of one update
        is_possible = row["entropy"] * tokens < CHANCE  # a policy that always says the same
        is_reused = earlier != step and not is_possible
        if is_reused and sampled.get(step, step) != sampled.get(earlier, earlier):
            yield Check(
                step=step,
                gap=1.0,
                tolerance=0.0,
                logged=float(step),
                expected=math.nan,
                says=f"the tokens of step {earlier} again",
            )
        else:
            yield Check(step=step, gap=0.0, tolerance=0.0)


@identity(
    "rollouts are said to be sampled by a policy that did not exist yet",
    formula="rollout_step <= step",
    innocent="The trainer counts steps and weights from different numbers on purpose.",
    change=(
        "Count both from the same number. The step is the one that trains, rollout_step the one that samples."
    ),
    reads=TABLES,
)
def rollout_age(tables: Tables) -> Iterator[Check]:
    """No rollout is younger than the step that trains on it."""
    rows = tables.rows("minibatch", "step", "rollout_step")
    if tables.declared.trainer != OWN and (rows["step"] == rows["rollout_step"]).all():
        raise tables.declared.lacks("rollout_step")  # it stands for the step where nobody told it
    for step, part in by_step(rows):
        newest = int(part["rollout_step"].max())
        gap = float(max(0, newest - step))
        yield Check(step=step, gap=gap, tolerance=0.0, logged=float(newest), expected=float(step))


@identity(
    "the learning rate is scaled: by the world size, by the accumulation, or twice",
    formula="learning rate of an update <= configured learning rate",
    innocent="The schedule rises above its configured rate on purpose (one-cycle, restarts).",
    change="Plot the logged rate over updates, and look at the factor between both sides.",
    reads=TABLES,
)
def peak_learning_rate(tables: Tables) -> Iterator[Check]:
    """No update has a higher learning rate than the configured one."""
    rows = tables.rows("minibatch", "step", "update", "lr")
    highest = _configured_rate(tables.declared)
    if rows.empty or highest is None:
        raise tables.declared.lacks("lr")
    for step, part in by_step(rows):
        lr = float(part["lr"].max())
        gap = max(0.0, lr - highest)
        says = f"{lr / highest:.4g} times the configured rate" if gap > 1e-6 * highest else ""
        yield Check(step=step, gap=gap, tolerance=1e-6 * highest, logged=lr, expected=highest, says=says)


def _configured_rate(declared: Declaration) -> float | None:
    if declared.own_settings is not None:
        return declared.own_settings.learn.policy.lr if declared.own_settings.match is None else None
    learn = declared.config.get("learn")
    policy = learn.get("policy") if isinstance(learn, dict) else None
    rate = policy.get("lr") if isinstance(policy, dict) else None
    rate = declared.config.get("learning_rate", declared.config.get("lr")) if rate is None else rate
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    return float(rate) if is_number and rate > 0 else None


@identity(
    "what is logged as an entropy is none: another sign, or a mean over other tokens",
    formula="0 <= H, and H <= log(size of the vocabulary) where that is known",
    innocent="The log calls the entropy's loss an entropy: its sign is the other one.",
    change="Look at how the trainer makes this number, and give it the name that it deserves (--map).",
    reads=TABLES,
)
def entropy_range(tables: Tables) -> Iterator[Check]:
    """An entropy is not negative."""
    size = tables.declared.config.get("vocab_size")
    highest = math.log(size) if isinstance(size, int) and size > 0 else math.inf
    any_rows = False
    for table, column in ENTROPIES:
        rows = tables.rows(table, "step", column)
        for step, part in by_step(rows):
            any_rows = True
            low = float(part[column].min())
            high = float(part[column].max())
            worst = low if low < 0 else high
            # The sum of p log p in bfloat16, as some trainers take it, is right to a 128th.
            tolerance = 2.0**-7 * max(1.0, abs(worst))
            nearest = min(max(worst, 0.0), highest)
            gap = abs(worst - nearest)
            yield Check(step=step, gap=gap, tolerance=tolerance, logged=worst, expected=nearest)
    if not any_rows:
        raise tables.declared.lacks("entropy")


@identity(
    "the arrays of a transcript do not belong together: flags or log-probs of another row, or cut",
    formula="entries of each array of a row = tokens of the row",
    innocent="The log keeps log-probs of the response only, and says nowhere where the response begins.",
    change="Look at what writes the transcripts: each array of a row must have one entry a token.",
    reads=TABLES,
)
def row_lengths(tables: Tables) -> Iterator[Check]:
    """Each array of a transcript has one entry a token."""
    frame = tables.rows("token", "step", "trajectory", "token_id")
    if frame.empty:
        raise tables.declared.lacks("token")
    for column in LISTS:
        rows = tables.rows("token", "step", "trajectory", "token_id", column)
        lengths = rows[column].map(len)
        tokens = rows["token_id"].map(len)
        for row, length, count in zip(rows.to_dict("records"), lengths, tokens, strict=True):
            says = f"{column} has {length} entries for {count} tokens" if length != count else ""
            yield Check(
                step=int(row["step"]),
                gap=float(abs(length - count)),
                tolerance=0.0,
                logged=float(length),
                expected=float(count),
                says=says,
                trajectories=(int(row["trajectory"]),) if says else (),
            )


@identity(
    "one of two logs of the reward is of other rollouts, or of another reward",
    formula="reward of a step = mean of the rewards of its trajectories",
    innocent="One of the logs leaves trajectories out, such as those that were cut, or adds a bonus.",
    change="Compare both logs of one named step. Look at what each of them leaves out.",
    reads=TABLES,
)
def reward_mean(tables: Tables) -> Iterator[Check]:
    """The reward of a step is the mean of its trajectories'."""
    if tables.declared.is_recorded:
        raise Missing("a log of the reward beside the rollouts' own: the recorder makes one of the other")
    steps = tables.rows("step", "step", "reward")
    rows = tables.rows("trajectory", "step", "reward")
    if rows.empty or steps.empty:
        raise tables.declared.lacks("trajectory")
    logged_at = dict(zip(steps["step"].astype(int), steps["reward"].astype(float), strict=True))
    for step, part in by_step(rows):
        if step in logged_at:
            logged = logged_at[step]
            mean = float(part["reward"].mean())
            tolerance = 1e-3 * max(1.0, abs(mean))  # logs of text round to three digits
            gap = abs(logged - mean)
            yield Check(step=step, gap=gap, tolerance=tolerance, logged=logged, expected=mean)


def table_checks(
    folder: Path, names: Collection[str] = (), declared: Declaration | None = None
) -> Iterator[Check]:
    """Check the identities of the rows of a run: each with its first violation, else with its closest shave.

    A check without a violation speaks of the whole run, so its step is -1.
    """
    tables = Tables(folder, declared or declaration_of(folder))
    for one in IDENTITIES.values():
        if one.reads != TABLES or (names and one.name not in names):
            continue
        for check in _summary(one.checks(tables)):
            yield one.named(check, check.step)


def _summary(found: Sequence[Check]) -> Iterator[Check]:
    """The first violation with the number of the others; else the closest shave; and what was not checked."""
    checks = [check for check in found if not check.missing]
    broken = sorted((check for check in checks if check.violated), key=lambda check: check.step)
    if broken:
        others = len({check.step for check in broken}) - 1
        first = broken[0]
        more = f"and in {others} more steps" if others else ""
        earlier = [check.step for check in checks if 0 <= check.step < first.step]
        says = "; ".join(filter(None, (first.says, more)))
        yield replace(first, says=says, holds_until=max(earlier, default=None))
        return
    if checks:
        nearest = max(checks, key=lambda check: check.tolerance_share)
        yield replace(nearest, step=-1, says="")
    lacking = [check for check in found if check.missing]
    if lacking:
        yield lacking[-1]
    elif not checks:
        yield Check(missing="needs rows that were not logged")
