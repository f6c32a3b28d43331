"""Steps: what the fresh rollouts look like, what the updates did over all, and where the time went."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from sorl.measures.declare import MEANT, NO_MARK, OTHER, OURS, TRAINERS, VERL, Measure, diagnostic
from sorl.measures.evidence import Known, Missing, StepEvidence, fingerprint
from sorl.measures.ratio import OUR_MARK
from sorl.spec import Alarm, Level, Unit

RAGEN = "RAGEN arXiv 2504.20073"
RAGEN_2 = "RAGEN-2 arXiv 2604.06268"
RAGEN_2_OURS = f"{RAGEN_2}, by a proxy of ours"
DAPO = "arXiv 2503.14476 (DAPO)"
EXACT = "Search-R1 (exact match)"

# Why a column of the step has no alarm.
JUDGED = "the collapse rule judges the score"
HARD = "a hard event watches it"
GUARDED = "the fair-comparison guard has an event for it"
DESCRIBES = "it describes the data or the settings; no value of it is wrong"
COST = "it says where the time or the memory goes, not how training fares"
CURVE = f"{NO_MARK}; read it as a curve, next to `valid_action_frac`"
TWO_CURVES = f"{NO_MARK}; a fall while entropy stays is the sign, which takes two curves"

column = partial(diagnostic, Level.STEP)


def _row(
    name: str,
    watch: Alarm | str,
    unit: Unit,
    formula: str,
    source: str,
    description: str,
    function: Callable[..., Any],
    **more: Any,
) -> Measure:
    """Declare a column of the step; `watch` is its alarm, or why it has none."""
    more["no_alarm" if isinstance(watch, str) else "alarm"] = watch
    return Measure(name, (Level.STEP,), unit, formula, source, description, function, **more)


def _mean(values: np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _share(part: float, whole: float) -> float | None:
    return None if whole <= 0 else float(part / whole)


class StepView:
    """A step and the columns (U,) of its updates, empty when nothing was trained; what is missing raises
    Missing.
    """

    def __init__(self, step: int, evidence: StepEvidence, columns: Mapping[str, np.ndarray | None]) -> None:
        self.step = step
        self.evidence = evidence
        self.columns = columns
        self.known = Known(evidence)
        self.rollouts = Known(evidence.rollouts)

    def of_updates(self, name: str) -> np.ndarray:
        """Return the measured values of `name`, one an update; Missing when no update has one."""
        column = self.columns.get(name)
        if column is None or not np.ma.count(column):
            raise Missing(name)
        return np.asarray(np.ma.compressed(column))

    def over_updates(self, name: str, reduce: Callable[[np.ndarray], Any] = np.mean) -> float:
        """Return `reduce` of the measured values of `name` over the updates."""
        return float(reduce(self.of_updates(name)))

    @cached_property
    def groups(self) -> list[np.ndarray]:
        """Indices of the fresh rollouts of each prompt group with at least two of them."""
        group = self.rollouts.group
        order = np.argsort(group, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
        return [part for part in parts if len(part) > 1]

    @cached_property
    def groups_with_tokens(self) -> list[np.ndarray]:
        """The same of the rollouts whose tokens are known, not left out by a sample."""
        known = ~np.ma.getmaskarray(self.rollouts.response_tokens)
        parts = [part[known[part]] for part in self.groups]
        return [part for part in parts if len(part) > 1]

    def of_groups(self, of: Callable[[np.ndarray], Any]) -> float | None:
        """Return the mean over prompt groups of `of` their indices; None when every prompt is
        sampled once.
        """
        values = [of(part) for part in self.groups]
        return _mean(np.array([value for value in values if value is not np.ma.masked]))

    def asked(self, name: str) -> list[Any]:
        """Return a fact of every search that a retriever was asked for: retrieval_status or
        retrieval_seconds.
        """
        turns = chain.from_iterable(getattr(self.rollouts, name))
        return [turn for turn in turns if turn is not None]

    def retrieved(self, outcome: str) -> float | None:
        """Return the share of the searches with this outcome; None where no retriever was asked."""
        seen = self.asked("retrieval_status")
        return _share(seen.count(outcome), len(seen))


ROLLOUTS = (
    _row(
        "group_reward_std",
        Alarm(
            "below",
            0.1,
            "RAGEN stops a run when the mean in-group std stays below 10 % of its first-10-step mean "
            "for 10 steps",
            points=10,
            relative="baseline",
        ),
        Unit.REWARD,
        "mean over prompt groups of the unbiased std of R in the group",
        RAGEN,
        "Spread of the reward among rollouts of one prompt; NULL when every prompt is sampled once.",
        # Against the smallest: the mean of six rewards of .1 is not .1, and their deviations from it are not
        # 0.
        lambda v: v.of_groups(
            lambda part: (v.rollouts.reward[part] - v.rollouts.reward[part].min()).std(ddof=1)
        ),
    ),
    _row(
        "retrieval_failed_frac",
        Alarm(
            "above", 0.0, "a failed search is answered in words that no retriever found, and is trained on"
        ),
        Unit.FRACTION,
        "searches that failed / searches, of the fresh rollouts",
        OURS,
        "Share of searches that the retriever did not answer after all retries; NULL where no retriever was"
        " asked.",
        lambda v: v.retrieved("failed"),
    ),
    _row(
        "observation_frac",
        DESCRIBES,
        Unit.FRACTION,
        "observation tokens / (observation + written tokens)",
        "Search-R1",
        "Share of the tokens after the prompt that the world wrote.",
        lambda v: _share(
            v.rollouts.observation_tokens.sum(),
            (v.rollouts.observation_tokens + v.rollouts.response_tokens).sum(),
        ),
    ),
    _row(
        "repetition_frac",
        f"{NO_MARK}; the event `echo_trap` takes a doubling into account",
        Unit.FRACTION,
        "mean over rollouts of 1 - #{distinct 4-grams} / #{4-grams}",
        RAGEN,
        "Mean share of written 4-grams that repeat an earlier one of their rollout.",
        lambda v: _mean(np.ma.compressed(v.rollouts.repetition)),
    ),
    _row(
        "episodes_sampled",
        DESCRIBES,
        Unit.COUNT,
        "rollouts sampled in the step",
        DAPO,
        "Fresh rollouts, those of further draws included: above learn.episodes under dynamic sampling. All"
        " other columns of the fresh rollouts describe the first draw, before any selection by reward.",
        lambda v: v.evidence.episodes_sampled or len(v.rollouts),
        sql_type="BIGINT",
    ),
    _row(
        "grad_clipped_frac",
        MEANT,
        Unit.FRACTION,
        "share of updates with 0 < ||g||_2 after the clip < ||g||_2",
        TRAINERS,
        "Share of the updates whose gradient the norm clip shortened, steps left out aside; 0 where it is "
        "off.",
        lambda v: _mean(
            (v.of_updates("grad_norm_after") > 0)
            & (v.of_updates("grad_norm_after") < v.of_updates("grad_norm") * (1 - 1e-6))
        ),
    ),
    _row(
        "staleness",
        DESCRIBES,
        Unit.COUNT,
        "mean over updates of step - rollout_step",
        "verl (trajectory_staleness)",
        "Age of the data that the step trained on, in iterations.",
        lambda v: _mean(v.step - v.known.updates.rollout_step.cpu().numpy()),
    ),
    _row(
        "seconds_retrieval",
        COST,
        Unit.SECONDS,
        "sum of the searches' wall times",
        OURS,
        "Wall time that the fresh rollouts spent in the retriever, a part of `seconds_rollout`; NULL without"
        " one.",
        lambda v: float(sum(v.asked("retrieval_seconds"))) if v.asked("retrieval_seconds") else None,
    ),
    _row(
        "sync_error",
        HARD,
        Unit.NATS,
        "max |log p_engine - log p_trainer| on fixed probes after the weight sync",
        OURS,
        "How far the sampling engine's copy of the policy is from the trainer's; NULL where the engine has no"
        " copy. Beyond engine.sync_tolerance the run stops with event stale_weights.",
        lambda v: v.evidence.sync_error,
    ),
)


@column(
    Unit.NONE,
    "hash of question, gold answer and prompt group of the trained trajectories, in order",
    OURS,
    sql_type="BIGINT",
    no_alarm=GUARDED,
)
def questions_hash(v: StepView) -> int:
    """Fingerprint of the questions that the step trained on; equal in arms with one seed and group size."""
    r = Known(v.evidence.trained or v.evidence.rollouts)
    asked = zip(r.group.tolist(), r.question, r.gold, strict=True)
    return fingerprint(*(f"{group}\t{question}\t{gold}".encode() for group, question, gold in asked))


@column(
    Unit.NATS, "max |delta| of the first update, where delta is 0 by construction", OURS, no_alarm=GUARDED
)
def first_log_ratio_abs_max(v: StepView) -> float | None:
    """Rounding in the first update on fresh old log-probs; NULL where another policy took them."""
    moved = v.columns.get("log_ratio_abs_max") if v.evidence.fresh else None
    return None if moved is None or not len(moved) or np.ma.getmaskarray(moved)[0] else float(moved[0])


distinct_rollout_frac = _row(
    "distinct_rollout_frac",
    TWO_CURVES,
    Unit.FRACTION,
    "mean over prompt groups of #{distinct rollouts} / #{rollouts}",
    RAGEN_2_OURS,
    "Variety of the rollouts of one prompt, H(Z | X); NULL when every prompt is sampled once.",
    lambda v: _mean(np.array([_distinct_share(v.rollouts.written, part) for part in v.groups_with_tokens])),
)


def _distinct_share(written: Any, rows: np.ndarray) -> float:
    """Different texts among some rollouts, over their number."""
    return len({tuple(map(tuple, written[row])) for row in rows}) / len(rows)


@column(
    Unit.FRACTION,
    "share of rollouts whose counts of written tokens are nearest (cosine) to those of their own prompt's"
    " others",
    RAGEN_2_OURS,
    no_alarm=TWO_CURVES,
)
def prompt_retrieval_frac(v: StepView) -> float | None:
    """Whether a rollout identifies its prompt, a stand-in for the mutual information I(X; Z).

    At 1 / prompts every answer could belong to any prompt: a template. NULL with fewer than two prompt
    groups.
    """
    groups = v.groups_with_tokens
    if len(groups) < 2:
        return None
    rollouts, size = _word_counts(v.rollouts.written, np.concatenate(groups))
    label = np.repeat(np.arange(len(groups)), [len(part) for part in groups]).tolist()
    totals = np.zeros((size, len(groups)))  # a row a token: a rollout takes the rows of its tokens
    for own, rollout in zip(label, rollouts, strict=True):
        totals[rollout.words, own] += rollout.counts
    squared = np.square(totals).sum(0)
    shares = [
        _share_of_own(rollout.counts @ totals[rollout.words], squared, rollout, own)
        for own, rollout in zip(label, rollouts, strict=True)
    ]
    return float(np.mean(shares))


INFORMATION = (
    _row(
        "prompt_information",
        TWO_CURVES,
        Unit.NATS,
        "mean over P prompts of log p(z | x) - log (sum_j p(z | x_j) / P), z the first turn of a rollout",
        RAGEN_2,
        "Mutual information of first turns and prompts, at most log P, P up to 8. Near 0 the policy writes"
        " the same whatever it is asked: a template. Measured every learn.information_every steps.",
        lambda v: v.known.information.nats,
    ),
    _row(
        "prompt_score_retrieval_frac",
        TWO_CURVES,
        Unit.FRACTION,
        "share of P first turns that their own prompt makes the likeliest; alike prompts share it",
        RAGEN_2,
        "Whether the policy's own log-probs tell which prompt a first turn answers; 1 / P is chance.",
        lambda v: v.known.information.retrieved,
    ),
    _row(
        "group_reward_variance",
        DESCRIBES,
        Unit.REWARD,
        "mean over prompt groups of the unbiased variance of R in the group",
        RAGEN_2,
        "Signal that a group-relative method has, a stand-in for the signal-to-noise ratio of its gradient;"
        " NULL when every prompt is sampled once.",
        lambda v: v.of_groups(lambda part: _variance(v.rollouts.reward[part])),
    ),
)


def _variance(values: np.ndarray) -> Any:
    """Unbiased variance; exactly 0 of equal values, whatever their mean rounds to."""
    return (values - values.min()).var(ddof=1)


@column(
    Unit.FRACTION,
    "smallest share of prompt groups that holds 90 % of the variance of R in all groups",
    RAGEN_2,
    no_alarm=DESCRIBES,
)
def signal_group_frac(v: StepView) -> float | None:
    """How few prompts carry the reward's signal: what a filter by reward variance would keep.

    NULL when every prompt is sampled once, or where no group has any variance.
    """
    variances = [_variance(v.rollouts.reward[part]) for part in v.groups]
    known = np.array([float(value) for value in variances if value is not np.ma.masked])
    if not known.sum() > 0:
        return None
    held = np.cumsum(np.sort(known)[::-1]) / known.sum()
    return float((np.searchsorted(held, 0.9 - 1e-12) + 1) / len(known))


class _Words(NamedTuple):
    """Which of the step's different tokens a rollout wrote, and how often."""

    words: np.ndarray
    counts: np.ndarray


def _word_counts(written: Any, rows: np.ndarray) -> tuple[list[_Words], int]:
    """What each rollout wrote, and how many different tokens there are."""
    flat = [np.fromiter(chain.from_iterable(written[row]), np.int64) for row in rows]
    vocabulary, index = np.unique(np.concatenate(flat), return_inverse=True)
    parts = np.split(index, np.cumsum([len(tokens) for tokens in flat])[:-1])
    return [_Words(*np.unique(part, return_counts=True)) for part in parts], len(vocabulary)


def _share_of_own(inner: np.ndarray, squared: np.ndarray, rollout: _Words, own: int) -> float:
    """1 where a rollout is nearest (cosine) to the counts of its own prompt, itself left out; 1 / n where n
    prompts are as near; 0 elsewhere.

    `inner`: products (P,) of its counts with those of each prompt, `squared`: squared norms of these. Counts
    are whole numbers, so what is left of its own prompt is exact.
    """
    itself = float(rollout.counts @ rollout.counts)
    rest = squared.copy()
    rest[own] += itself - 2 * inner[own]
    others = inner.astype(float)
    others[own] -= itself
    norm = np.sqrt(rest * itself)
    likeness = np.where(norm > 0, others / np.where(norm > 0, norm, 1.0), 0.0)
    nearest = likeness >= likeness.max() - 1e-9
    return float(nearest[own] / nearest.sum())


def _revisited(name: str, formula: str, description: str, of: Callable[[Any], Any], unit: Unit) -> Measure:
    return _row(name, DESCRIBES, unit, formula, OURS, description, lambda v: of(v.known.revisits))


REVISITS = (
    replace(
        _revisited(
            "revisited_tokens",
            "first tokens of trajectories whose whole past an earlier step had as well",
            "Tokens that sampler and trainer have scored before, after the same words; NULL in runs"
            " of sorl's own"
            " trainer.",
            lambda revisits: revisits.tokens,
            Unit.TOKENS,
        ),
        sql_type="BIGINT",
    ),
    _revisited(
        "sampler_revisit_shift",
        "mean |log_prob_behaviour now - then| over revisited tokens",
        "How far the sampler's log-probs of the same tokens have moved: 0 where its weights never"
        " change. NULL"
        " without a revisited token.",
        lambda revisits: revisits.sampler_shift,
        Unit.NATS,
    ),
    _revisited(
        "trainer_revisit_shift",
        "mean |log p now - then| over revisited tokens, p of the trainer before the step's updates",
        "How far the trainer's log-probs of the same tokens have moved. NULL without a revisited token.",
        lambda revisits: revisits.trainer_shift,
        Unit.NATS,
    ),
    _revisited(
        "revisit_steps",
        "median over revisited tokens of the steps since the last visit",
        "How many steps the shifts of revisited tokens are of. NULL without a revisited token.",
        lambda revisits: revisits.steps,
        Unit.COUNT,
    ),
)

TABLE = (
    _row(
        "success",
        JUDGED,
        Unit.FRACTION,
        "share of fresh rollouts whose answer is exactly right",
        EXACT,
        "Training success: the score that collapse is judged by. Of a trainer that tells no success, the mean"
        " reward.",
        lambda v: _mean(v.rollouts.reward if v.evidence.rollouts.success is None else v.rollouts.success),
    ),
    _row(
        "heldout_success",
        JUDGED,
        Unit.FRACTION,
        "share of held-out questions answered exactly right",
        EXACT,
        "Success on held-out questions of the policy before this step; NULL in steps without an evaluation.",
        lambda v: v.known.heldout[0],
    ),
    _row(
        "heldout_episodes",
        DESCRIBES,
        Unit.COUNT,
        "number of held-out questions",
        "ours",
        "How many held-out questions that success is a share of; NULL in steps without an evaluation.",
        lambda v: v.known.heldout[1],
        sql_type="BIGINT",
    ),
    _row(
        "reward",
        JUDGED,
        Unit.REWARD,
        "mean R of the fresh rollouts",
        TRAINERS,
        "Mean outcome reward.",
        lambda v: _mean(v.rollouts.reward),
    ),
    _row(
        "reward_std",
        DESCRIBES,
        Unit.REWARD,
        "population std of R over the fresh rollouts",
        TRAINERS,
        "Spread of the outcome reward over all fresh rollouts.",
        lambda v: float(v.rollouts.reward.std()) if len(v.rollouts) else None,
    ),
    _row(
        "zero_advantage_frac",
        HARD,
        Unit.FRACTION,
        "share of prompt groups with max R = min R",
        "TRL (frac_reward_zero_std)",
        "Share of prompt groups that teach a group-relative method nothing; NULL when every prompt is sampled"
        " once.",
        lambda v: v.of_groups(lambda part: np.ptp(v.rollouts.reward[part]) == 0),
    ),
    _row(
        "solved_group_frac",
        JUDGED,
        Unit.FRACTION,
        "share of prompt groups in which every rollout succeeds",
        DAPO,
        "Share of prompt groups that are already solved; NULL when every prompt is sampled once.",
        lambda v: v.of_groups(lambda part: v.rollouts.success[part].all()),
    ),
    _row(
        "failed_group_frac",
        JUDGED,
        Unit.FRACTION,
        "share of prompt groups in which no rollout succeeds",
        DAPO,
        "Share of prompt groups that are out of reach; NULL when every prompt is sampled once.",
        lambda v: v.of_groups(lambda part: not v.rollouts.success[part].any()),
    ),
    _row(
        "valid_action_frac",
        HARD,
        Unit.FRACTION,
        "valid turns / turns",
        "Search-R1, RAGEN",
        "Share of turns in the protocol's format.",
        lambda v: _share(v.rollouts.valid_turns.sum(), v.rollouts.turns.sum()),
    ),
    _row(
        "answered_frac",
        CURVE,
        Unit.FRACTION,
        "share of rollouts with an answer",
        "Search-R1",
        "Share of rollouts that give an answer, right or wrong.",
        lambda v: _mean(v.rollouts.answered),
    ),
    _row(
        "truncated_frac",
        CURVE,
        Unit.FRACTION,
        "share of rollouts that end without an answer",
        "verl (response_length/clip_ratio)",
        "Share of rollouts that ran out of turns or tokens.",
        lambda v: _mean(v.rollouts.truncated),
    ),
    _row(
        "turns",
        DESCRIBES,
        Unit.COUNT,
        "mean turns of a rollout",
        "verl (num_turns/mean)",
        "Mean number of turns.",
        lambda v: _mean(v.rollouts.turns),
    ),
    _row(
        "searches",
        DESCRIBES,
        Unit.COUNT,
        "mean searches of a rollout",
        "Search-R1",
        "Mean number of searches.",
        lambda v: _mean(v.rollouts.searches),
    ),
    _row(
        "retrieval_empty_frac",
        CURVE,
        Unit.FRACTION,
        "searches that found no passage / searches, of the fresh rollouts",
        OURS,
        "Share of searches that the retriever answered with no passage; NULL where no retriever was asked.",
        lambda v: v.retrieved("empty"),
    ),
    _row(
        "response_tokens",
        DESCRIBES,
        Unit.TOKENS,
        "mean written tokens of a rollout",
        "verl (response_length/mean)",
        "Mean number of tokens that the policy wrote.",
        lambda v: _mean(v.rollouts.response_tokens),
    ),
    _row(
        "duplicate_turn_frac",
        CURVE,
        Unit.FRACTION,
        "turns equal to an earlier turn of their rollout / turns",
        OURS,
        "Share of turns that say exactly what an earlier turn of their rollout said (the same query again).",
        lambda v: _share(v.rollouts.duplicates.sum(), sum(map(len, v.rollouts.written))),
    ),
    _row(
        "grad_norm_mean",
        OTHER,
        Unit.NORM,
        "mean ||g||_2 over updates, before gradient clipping",
        TRAINERS,
        "Mean gradient norm of the step's updates.",
        lambda v: v.over_updates("grad_norm"),
    ),
    _row(
        "grad_norm_max",
        Alarm(
            "above",
            10.0,
            "the earliest sign in this project's small runs: 647 one step before a collapse, where 5 to 25 is"
            " typical; RAGEN calls the spike the point of no return; the factor 10 is ours, to be calibrated",
            relative="baseline",
        ),
        Unit.NORM,
        "max ||g||_2 over updates, before gradient clipping",
        RAGEN,
        "Largest gradient norm of the step's updates.",
        lambda v: v.over_updates("grad_norm", np.max),
    ),
    _row(
        "clip_bias_norm_max",
        "its claimed growth before a collapse is what this project tests, so a mark would beg the question",
        Unit.NORM,
        "max ||C|| over the updates where it was taken",
        "arXiv 2511.20718 Fig. 3d",
        "Largest clipping bias of the step; NULL when no update measured it.",
        lambda v: v.over_updates("clip_bias_norm", np.max),
    ),
    _row(
        "ess_frac_min",
        Alarm("below", 0.3, f"as if seven of ten tokens weighed nothing; {OUR_MARK}", points=2),
        Unit.FRACTION,
        "min over updates of ess_frac",
        VERL,
        "Smallest effective sample size of an update of the step.",
        lambda v: v.over_updates("ess_frac", np.min),
    ),
    _row(
        "stabiliser_factor",
        "the stabiliser is meant to act, and `stabiliser_factor` is there to match a control to it",
        Unit.RATIO,
        "mean over updates of the stabiliser's factor",
        "arXiv 2511.20718",
        "Mean factor of the stabiliser, to scale a control's learning rate by; NULL where none multiplies"
        " anything.",
        lambda v: v.over_updates("stabiliser_factor"),
    ),
    _row(
        "non_finite",
        HARD,
        Unit.COUNT,
        "sum over updates of non_finite",
        "arXiv 2502.01600 (LOOP)",
        "Numbers of the step's updates that are not finite.",
        lambda v: int(v.over_updates("non_finite", np.sum)),
        sql_type="BIGINT",
    ),
    _row(
        "updates",
        DESCRIBES,
        Unit.COUNT,
        "optimizer updates",
        OURS,
        "Optimizer updates of the step.",
        lambda v: 0 if v.evidence.updates is None else len(v.evidence.updates.epoch),
        sql_type="BIGINT",
    ),
    _row(
        "tokens_trained",
        DESCRIBES,
        Unit.TOKENS,
        "sum over updates of sum m",
        OURS,
        "Tokens trained on, each epoch counted.",
        lambda v: v.evidence.tokens_trained,
        sql_type="BIGINT",
    ),
    *(
        _row(
            f"seconds_{part}",
            COST,
            Unit.SECONDS,
            formula,
            OURS,
            description,
            lambda v, part=part: v.evidence.seconds.get(part),
        )
        for part, formula, description in (
            ("rollout", "wall time of sampling", "Wall time of sampling the fresh rollouts."),
            ("update", "wall time of the updates", "Wall time of advantages and updates."),
            (
                "evaluation",
                "wall time of evaluation",
                "Wall time of held-out evaluation; near 0 on steps without one.",
            ),
            (
                "record",
                "wall time of measuring and recording the step before",
                (
                    "Wall time that measuring and recording the previous step took the trainer; NULL on the"
                    " first step."
                ),
            ),
            (
                "total",
                "wall time of the step without recording",
                "Wall time of evaluation, sampling and updates.",
            ),
        )
    ),
    _row(
        "tokens_per_second",
        COST,
        Unit.NONE,
        "tokens_trained / seconds_update",
        OURS,
        "Training speed in tokens per second of updating.",
        lambda v: _share(v.evidence.tokens_trained, v.evidence.seconds.get("update", 0.0)),
    ),
    _row(
        "memory_peak",
        COST,
        Unit.BYTES,
        "max allocated on the GPU, or max resident set of the process",
        OURS,
        "Most memory that the trainer's process has taken so far.",
        lambda v: float(v.known.memory_peak),
    ),
    _row(
        "batch_hash",
        GUARDED,
        Unit.NONE,
        "hash of the trained tokens, prompts included, and the loss mask",
        OURS,
        "Fingerprint of the batch that the step trained on; two steps with the same one trained on one batch"
        " twice.",
        lambda v: v.evidence.batch_hash,
        sql_type="BIGINT",
    ),
    _row(
        "token_mismatches",
        GUARDED,
        Unit.COUNT,
        "trained rows that are not the tokens and turns as sampled",
        OURS,
        "Trajectories whose trained tokens or turn ids are not those of the sampler; NULL where it kept no"
        " record.",
        lambda v: len(v.known.mismatches),
        sql_type="BIGINT",
    ),
)
