"""Turns and trajectories: what the agent and the retriever did, what it earned, what the
updates did with it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sorl.measures.declare import OURS, TRAINERS, Measure, diagnostic
from sorl.measures.evidence import Known, Missing, Rollouts
from sorl.measures.tokens import Segments, Tokens, quotient
from sorl.spec import Level, Unit


def _by_turn(
    trajectory: np.ndarray, turn_index: np.ndarray, labels: Sequence[Sequence[object]]
) -> np.ndarray:
    """Return the label (P,) of each row of the ledger; None where the rollout does not say."""
    shape = (max(trajectory.max(initial=-1) + 1, len(labels)), turn_index.max(initial=0) + 1)
    known = np.full(shape, None, dtype=object)
    for i, turns in enumerate(labels):
        known[i, 1 : len(turns) + 1] = turns[: shape[1] - 1]
    return np.asarray(known[trajectory, turn_index])


def _numbers(values: np.ndarray, of: Callable[[Any], float] = float) -> np.ndarray | None:
    """`of` each of the values, masked where None; None where nothing was measured."""
    missing = [value is None for value in values]
    if all(missing):
        return None
    return np.ma.array(
        [0.0 if value is None else of(value) for value in values], dtype=np.float64, mask=missing
    )


# What the agent did, and how the retriever did, at (trajectory, turn_index) of each row.
OF_TURNS = (
    Measure(
        "status",
        (Level.TURN,),
        Unit.NONE,
        "search, answer or invalid",
        "Search-R1",
        "What the agent did in the turn, invalid: a void turn; NULL when the rollout does not say.",
        lambda *labels: _by_turn(*labels).tolist(),
        sql_type="VARCHAR",
    ),
    Measure(
        "retrieval_seconds",
        (Level.TURN,),
        Unit.SECONDS,
        "wall time of the turn's search; of a batch its share",
        OURS,
        "How long the retriever took, retries included; NULL where no retriever was asked.",
        lambda *seconds: _numbers(_by_turn(*seconds)),
        roll="turns",
    ),
    *(
        Measure(
            f"retrieval_{outcome}_frac",
            (Level.TURN,),
            Unit.FRACTION,
            formula,
            OURS,
            f"1 where the retriever {did}, else 0; NULL where no retriever was asked.",
            lambda *seen, outcome=outcome: _numbers(_by_turn(*seen), lambda one: one == outcome),
            roll="turns",
        )
        for outcome, formula, did in (
            ("empty", "1[the search found no passage]", "answered with no passage"),
            ("failed", "1[the search failed]", "gave no answer after all retries"),
        )
    ),
)

column = partial(diagnostic, Level.TURN_STEP)


class TurnRows:
    """The turn ledger of a step, P rows by turn index; `columns` (P,) are masked where not measured."""

    def __init__(self, by: Segments, columns: Mapping[str, Any]) -> None:
        self.by = by
        self.columns = columns

    def of(self, name: str) -> np.ndarray:
        """Return a column of the ledger as it is. Raises Missing where no turn has one."""
        if (column := self.columns.get(name)) is None:
            raise Missing(name)
        return np.ma.getdata(column)

    def share(self, status: str) -> np.ndarray:
        """Return the share of the turns of each index with this status, of those whose status is known."""
        found = np.array(self.columns["status"], dtype=object)
        return self.by.mean(found == status, found != None)  # noqa: E711 - elementwise


@column(Unit.COUNT, "trajectories with a turn of this index", OURS, sql_type="BIGINT")
def n_turns(v: TurnRows) -> np.ndarray:
    """How many trajectories have a turn of this index; read the other columns with it in mind."""
    trajectory = np.asarray(v.columns["trajectory"])
    width = int(trajectory.max(initial=0)) + 1
    distinct = np.unique(v.by.ids * width + trajectory) // width
    return np.bincount(distinct, minlength=v.by.size)


@column(Unit.REWARD, "population std of A over the tokens of the turns", "arXiv 2511.20718 Fig. 2")
def advantage_std(v: TurnRows) -> np.ndarray:
    """Spread of the advantages of the tokens in turns of this index: between the turns, and inside them."""
    mean = v.of("advantage")
    inside = v.of("advantage_std")
    tokens = v.of("n_tokens")
    count = v.by.total(tokens)
    centre = v.by.spread(quotient(v.by.total(tokens * mean), count))
    return np.sqrt(quotient(v.by.total(tokens * (inside**2 + (mean - centre) ** 2)), count))


@column(
    Unit.NONE,
    "1 - Var(V_old(s_k) - G) / (Var(G) + 1e-5), unbiased variances over the turns with this index",
    "Search-R1 and verl (critic/vf_explained_var), turn by turn",
)
def explained_variance(v: TurnRows) -> np.ndarray:
    """How much of the returns the critic explains at turns of this index; NULL without a critic and for one
    turn.
    """
    value = v.of("value")
    error = v.of("value_error")
    return 1.0 - v.by.variance(error) / (v.by.variance(value - error) + 1e-5)


AT_INDEX = (
    Measure(
        "value_mae",
        (Level.TURN_STEP,),
        Unit.REWARD,
        "mean |V_old(s_k) - G| over the turns with this index",
        OURS,
        "How wrong the critic is where turns of this index begin; value_error is its bias. NULL without a"
        " critic.",
        lambda v: v.by.mean(np.abs(v.of("value_error"))),
    ),
    *(
        Measure(
            f"{status}_frac",
            (Level.TURN_STEP,),
            Unit.FRACTION,
            f"share of turns with status {status}",
            OURS,
            f"Share of the turns of this index that {does}.",
            lambda v, status=status: v.share(status),
        )
        for status, does in (("search", "search"), ("answer", "answer"), ("invalid", "break the protocol"))
    ),
)

TRAJECTORY = (Level.TRAJECTORY,)


class Trajectories:
    """The N trajectories that a step trained on; `by`: a segment of trained tokens for each, over all its
    updates.
    """

    def __init__(self, rollouts: Rollouts, trained: Tokens | None) -> None:
        self.rollouts = Known(rollouts)
        self.trained = trained
        if trained is not None:
            self.by = Segments(trained.trajectory, len(rollouts))
            epoch = trained.evidence.epoch.cpu().numpy()[trained.update]
            # The tokens (M,) of each trajectory in the last epoch that trained on it, in one update or
            # several.
            self.last = np.asarray(epoch == self.by.spread(self.by.maximum(epoch)))


TRAJECTORIES = (
    Measure("reward", TRAJECTORY, Unit.REWARD, "R", TRAINERS, "Outcome reward.", lambda v: v.rollouts.reward),
    Measure(
        "success",
        TRAJECTORY,
        Unit.NONE,
        "answer is exactly right",
        "Search-R1 (exact match)",
        "True when the answer matches exactly.",
        lambda v: v.rollouts.success,
        sql_type="BOOLEAN",
    ),
    Measure(
        "n_turns",
        TRAJECTORY,
        Unit.COUNT,
        "K",
        OURS,
        "Turns of the trajectory.",
        lambda v: v.rollouts.turns,
        sql_type="BIGINT",
    ),
    Measure(
        "n_tokens",
        TRAJECTORY,
        Unit.TOKENS,
        "sum m",
        OURS,
        "Tokens that the policy wrote.",
        lambda v: v.rollouts.response_tokens,
        sql_type="BIGINT",
    ),
    Measure(
        "n_observation_tokens",
        TRAJECTORY,
        Unit.TOKENS,
        "sum (a - m)",
        "Search-R1",
        "Tokens that the world wrote after the prompt.",
        lambda v: v.rollouts.observation_tokens,
        sql_type="BIGINT",
    ),
    Measure(
        "n_searches",
        TRAJECTORY,
        Unit.COUNT,
        "number of searches",
        "Search-R1",
        "Searches that were carried out.",
        lambda v: v.rollouts.searches,
        sql_type="BIGINT",
    ),
    Measure(
        "valid_turn_frac",
        TRAJECTORY,
        Unit.FRACTION,
        "valid turns / turns",
        "Search-R1, RAGEN",
        "Share of turns in the protocol's format.",
        lambda v: quotient(v.rollouts.valid_turns.astype(np.float64), v.rollouts.turns),
    ),
    Measure(
        "repetition_frac",
        TRAJECTORY,
        Unit.FRACTION,
        "1 - #{distinct 4-grams} / #{4-grams} of written tokens",
        "RAGEN arXiv 2504.20073",
        "Share of written 4-grams that repeat an earlier one; NULL below four tokens.",
        lambda v: v.rollouts.repetition,
    ),
    Measure(
        "duplicate_turn_frac",
        TRAJECTORY,
        Unit.FRACTION,
        "turns equal to an earlier turn / turns",
        OURS,
        "Share of turns that say exactly what an earlier turn of the trajectory said (the same query again).",
        lambda v: quotient(v.rollouts.duplicates, np.array([len(turns) for turns in v.rollouts.written])),
    ),
    Measure(
        "gradient_share",
        TRAJECTORY,
        Unit.FRACTION,
        "sum |d loss / d log_prob| of the trajectory / that of the step",
        OURS,
        "Share of the step's gradient signal that comes from the trajectory: finds the culprit.",
        lambda v: (
            None
            if (t := v.trained) is None
            else quotient(v.by.total(t.weight), np.full(len(v.rollouts), t.weight.sum()))
        ),
    ),
    Measure(
        "log_ratio_sum",
        TRAJECTORY,
        Unit.NATS,
        "sum of clamp(delta, +-20) in the last epoch",
        "arXiv 2602.10693 (log W)",
        "Log of the product ratio of the trajectory when the step last trained on it.",
        lambda v: None if v.trained is None else v.by.total(np.where(v.last, v.trained.clamped, 0.0)),
    ),
    Measure(
        "likelihood_displacement",
        TRAJECTORY,
        Unit.NATS,
        "mean delta in the last epoch",
        "arXiv 2512.04220 (LLDS)",
        "How much likelier the trajectory had become per token; negative on a good one = lazy displacement.",
        lambda v: None if v.trained is None else v.by.mean(v.trained.log_ratio, v.last),
    ),
)
