"""Steps: what the fresh rollouts look like, what the updates did over all, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain

import numpy as np

from workbench.diagnostics.declare import MEANT, NO_MARK, OTHER, OURS, TRAINERS, VERL, Measure, diagnostic
from workbench.diagnostics.evidence import Rollouts, StepEvidence, fingerprint
from workbench.diagnostics.ratio import OUR_MARK
from workbench.spec import Alarm, Level, Unit

STEP = Level.STEP

# Declarations of columns without an alarm, by the reason.
judged = partial(diagnostic, STEP, alarm="the collapse rule judges the score")
hard = partial(diagnostic, STEP, alarm="a hard event watches it")
guarded = partial(diagnostic, STEP, alarm="the fair-comparison guard has an event for it")
describing = partial(diagnostic, STEP, alarm="it describes the data or the settings; no value of it is wrong")
cost = partial(diagnostic, STEP, alarm="it says where the time or the memory goes, not how training fares")
curve = partial(diagnostic, STEP, alarm=f"{NO_MARK}; read it as a curve, next to `valid_action_frac`")
two_curves = partial(
    diagnostic, STEP, alarm=f"{NO_MARK}; a fall while entropy stays is the sign, which takes two curves"
)


@dataclass(frozen=True)
class StepView:
    """A step, its number, and the columns (U,) of its updates (None when nothing was trained)."""

    step: int
    evidence: StepEvidence
    updates: Mapping[str, np.ndarray | None] | None

    def over_updates(self, name: str) -> np.ndarray | None:
        """Return the measured values of `name` over the updates; None when no update has one."""
        if self.updates is None:
            return None
        column = self.updates[name]
        values = np.array([]) if column is None else np.ma.compressed(column)
        return values if len(values) else None

    @cached_property
    def groups(self) -> list[np.ndarray]:
        """Indices of the fresh rollouts of each prompt group with at least two of them."""
        group = self.evidence.rollouts.group
        order = np.argsort(group, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
        return [part for part in parts if len(part) > 1]

    @cached_property
    def group_std(self) -> np.ndarray:
        """Unbiased standard deviation of the reward inside each of `groups`; exactly 0 where all are equal."""
        reward = self.evidence.rollouts.reward
        # Against the smallest: the mean of six rewards of .1 is not .1, and their deviations from it are not 0.
        return np.array([(reward[part] - reward[part].min()).std(ddof=1) for part in self.groups])


def _mean(values: np.ndarray | None) -> float | None:
    return None if values is None or len(values) == 0 else float(np.mean(values))


def _share(part: float, whole: float) -> float | None:
    return None if whole <= 0 else float(part / whole)


# The fresh rollouts


@judged(Unit.FRACTION, "share of fresh rollouts whose answer is exactly right", "Search-R1 (exact match)")
def success(v: StepView) -> float | None:
    """Training success: the score that collapse is judged by."""
    return _mean(v.evidence.rollouts.success)


@judged(Unit.FRACTION, "share of held-out questions answered exactly right", "Search-R1 (exact match)")
def heldout_success(v: StepView) -> float | None:
    """Success on held-out questions of the policy before this step; NULL in steps without an evaluation."""
    return None if v.evidence.heldout is None else v.evidence.heldout[0]


@describing(Unit.COUNT, "number of held-out questions", "ours", sql_type="BIGINT")
def heldout_episodes(v: StepView) -> float | None:
    """How many held-out questions that success is a share of; NULL in steps without an evaluation."""
    return None if v.evidence.heldout is None else v.evidence.heldout[1]


@judged(Unit.REWARD, "mean R of the fresh rollouts", TRAINERS)
def reward(v: StepView) -> float | None:
    """Mean outcome reward."""
    return _mean(v.evidence.rollouts.reward)


@describing(Unit.REWARD, "population std of R over the fresh rollouts", TRAINERS)
def reward_std(v: StepView) -> float | None:
    """Spread of the outcome reward over all fresh rollouts."""
    reward = v.evidence.rollouts.reward
    return float(reward.std()) if len(reward) else None


@diagnostic(
    STEP,
    Unit.REWARD,
    "mean over prompt groups of the unbiased std of R in the group",
    "RAGEN arXiv 2504.20073",
    alarm=Alarm(
        "below",
        0.1,
        "RAGEN stops a run when the mean in-group std stays below 10 % of its first-10-step mean for 10 steps",
        points=10,
        relative="baseline",
    ),
)
def group_reward_std(v: StepView) -> float | None:
    """Spread of the reward among rollouts of one prompt; NULL when every prompt is sampled once."""
    return _mean(v.group_std)


@hard(Unit.FRACTION, "share of prompt groups with max R = min R", "TRL (frac_reward_zero_std)")
def zero_advantage_frac(v: StepView) -> float | None:
    """Share of prompt groups that teach a group-relative method nothing; NULL when every prompt is sampled once."""
    reward = v.evidence.rollouts.reward
    return _mean(np.array([np.ptp(reward[part]) == 0 for part in v.groups]))


@judged(Unit.FRACTION, "share of prompt groups in which every rollout succeeds", "arXiv 2503.14476 (DAPO)")
def solved_group_frac(v: StepView) -> float | None:
    """Share of prompt groups that are already solved; NULL when every prompt is sampled once."""
    return _mean(np.array([v.evidence.rollouts.success[part].all() for part in v.groups]))


@judged(Unit.FRACTION, "share of prompt groups in which no rollout succeeds", "arXiv 2503.14476 (DAPO)")
def failed_group_frac(v: StepView) -> float | None:
    """Share of prompt groups that are out of reach; NULL when every prompt is sampled once."""
    return _mean(np.array([not v.evidence.rollouts.success[part].any() for part in v.groups]))


@hard(Unit.FRACTION, "valid turns / turns", "Search-R1, RAGEN")
def valid_action_frac(v: StepView) -> float | None:
    """Share of turns in the protocol's format."""
    return _share(v.evidence.rollouts.valid_turns.sum(), v.evidence.rollouts.turns.sum())


@curve(Unit.FRACTION, "share of rollouts with an answer", "Search-R1")
def answered_frac(v: StepView) -> float | None:
    """Share of rollouts that give an answer, right or wrong."""
    return _mean(v.evidence.rollouts.answered)


@curve(Unit.FRACTION, "share of rollouts that end without an answer", "verl (response_length/clip_ratio)")
def truncated_frac(v: StepView) -> float | None:
    """Share of rollouts that ran out of turns or tokens."""
    return _mean(v.evidence.rollouts.truncated)


@describing(Unit.COUNT, "mean turns of a rollout", "verl (num_turns/mean)")
def turns(v: StepView) -> float | None:
    """Mean number of turns."""
    return _mean(v.evidence.rollouts.turns)


@describing(Unit.COUNT, "mean searches of a rollout", "Search-R1")
def searches(v: StepView) -> float | None:
    """Mean number of searches."""
    return _mean(v.evidence.rollouts.searches)


@curve(Unit.FRACTION, "searches that found no passage / searches, of the fresh rollouts", OURS)
def retrieval_empty_frac(v: StepView) -> float | None:
    """Share of searches that the retriever answered with no passage; NULL where no retriever was asked."""
    return _retrieved(v, "empty")


@diagnostic(
    STEP,
    Unit.FRACTION,
    "searches that failed / searches, of the fresh rollouts",
    OURS,
    alarm=Alarm("above", 0.0, "a failed search is answered in words that no retriever found, and is trained on"),
)
def retrieval_failed_frac(v: StepView) -> float | None:
    """Share of searches that the retriever did not answer after all retries; NULL where no retriever was asked."""
    return _retrieved(v, "failed")


def _retrieved(v: StepView, outcome: str) -> float | None:
    seen = [turn for turns in v.evidence.rollouts.retrieval_status for turn in turns if turn is not None]
    return _share(seen.count(outcome), len(seen))


@describing(Unit.TOKENS, "mean written tokens of a rollout", "verl (response_length/mean)")
def response_tokens(v: StepView) -> float | None:
    """Mean number of tokens that the policy wrote."""
    return _mean(v.evidence.rollouts.response_tokens)


@describing(Unit.FRACTION, "observation tokens / (observation + written tokens)", "Search-R1")
def observation_frac(v: StepView) -> float | None:
    """Share of the tokens after the prompt that the world wrote."""
    r = v.evidence.rollouts
    seen = float(r.observation_tokens.sum())
    return _share(seen, seen + float(r.response_tokens.sum()))


@diagnostic(
    STEP,
    Unit.FRACTION,
    "mean over rollouts of 1 - #{distinct 4-grams} / #{4-grams}",
    "RAGEN arXiv 2504.20073",
    alarm=f"{NO_MARK}; the event `echo_trap` takes a doubling into account",
)
def repetition_frac(v: StepView) -> float | None:
    """Mean share of written 4-grams that repeat an earlier one of their rollout."""
    return _mean(np.ma.compressed(v.evidence.rollouts.repetition))


@curve(Unit.FRACTION, "turns equal to an earlier turn of their rollout / turns", OURS)
def duplicate_turn_frac(v: StepView) -> float | None:
    """Share of turns that say exactly what an earlier turn of their rollout said (the same query again)."""
    rollouts = v.evidence.rollouts
    return _share(rollouts.duplicates.sum(), sum(len(t) for t in rollouts.written))


@describing(Unit.COUNT, "rollouts sampled in the step", "arXiv 2503.14476 (DAPO)", sql_type="BIGINT")
def episodes_sampled(v: StepView) -> int | None:
    """Fresh rollouts, those of further draws included: above learn.episodes under dynamic sampling.

    All other columns of the fresh rollouts describe the first draw, before any selection by reward.
    """
    return v.evidence.episodes_sampled or len(v.evidence.rollouts)


# The updates


@diagnostic(
    STEP,
    Unit.NORM,
    "max ||g||_2 over updates, before gradient clipping",
    "RAGEN arXiv 2504.20073",
    alarm=Alarm(
        "above",
        10.0,
        "the earliest sign in this project's small runs: 647 one step before a "
        "collapse, where 5 to 25 is typical; RAGEN calls the spike the point of no "
        "return; the factor 10 is ours, to be calibrated",
        relative="baseline",
    ),
)
def grad_norm_max(v: StepView) -> float | None:
    """Largest gradient norm of the step's updates."""
    norms = v.over_updates("grad_norm")
    return None if norms is None else float(np.max(norms))


@diagnostic(STEP, Unit.NORM, "mean ||g||_2 over updates, before gradient clipping", TRAINERS, alarm=OTHER)
def grad_norm_mean(v: StepView) -> float | None:
    """Mean gradient norm of the step's updates."""
    return _mean(v.over_updates("grad_norm"))


@diagnostic(STEP, Unit.FRACTION, "share of updates with 0 < ||g||_2 after the clip < ||g||_2", TRAINERS, alarm=MEANT)
def grad_clipped_frac(v: StepView) -> float | None:
    """Share of the step's updates whose gradient the norm clip shortened, steps left out aside; 0 where it is off."""
    before, after = v.over_updates("grad_norm"), v.over_updates("grad_norm_after")
    if before is None or after is None:
        return None
    return float(np.mean((after > 0) & (after < before * (1 - 1e-6))))


@diagnostic(
    STEP,
    Unit.NORM,
    "max ||C|| over the updates where it was taken",
    "arXiv 2511.20718 Fig. 3d",
    alarm="its claimed growth before a collapse is what this project tests, so a mark would beg the question",
)
def clip_bias_norm_max(v: StepView) -> float | None:
    """Largest clipping bias of the step; NULL when no update measured it."""
    norms = v.over_updates("clip_bias_norm")
    return None if norms is None else float(np.max(norms))


@diagnostic(
    STEP,
    Unit.FRACTION,
    "min over updates of ess_frac",
    VERL,
    alarm=Alarm("below", 0.3, f"as if seven of ten tokens weighed nothing; {OUR_MARK}", points=2),
)
def ess_frac_min(v: StepView) -> float | None:
    """Smallest effective sample size of an update of the step."""
    shares = v.over_updates("ess_frac")
    return None if shares is None else float(np.min(shares))


@diagnostic(
    STEP,
    Unit.RATIO,
    "mean over updates of the stabiliser's factor",
    "arXiv 2511.20718",
    alarm="the stabiliser is meant to act, and `stabiliser_factor` is there to match a control to it",
)
def stabiliser_factor(v: StepView) -> float | None:
    """Mean factor of the stabiliser: compare with a control whose learning rate is scaled by it.

    NULL without a stabiliser, or with one that multiplies nothing.
    """
    return _mean(v.over_updates("stabiliser_factor"))


@hard(Unit.COUNT, "sum over updates of non_finite", "arXiv 2502.01600 (LOOP)", sql_type="BIGINT")
def non_finite(v: StepView) -> int | None:
    """Numbers of the step's updates that are not finite."""
    counts = v.over_updates("non_finite")
    return None if counts is None else int(np.sum(counts))


@describing(Unit.COUNT, "optimizer updates", OURS, sql_type="BIGINT")
def updates(v: StepView) -> int:
    """Optimizer updates of the step."""
    return 0 if v.evidence.updates is None else len(v.evidence.updates.epoch)


@describing(Unit.COUNT, "mean over updates of step - rollout_step", "verl (trajectory_staleness)")
def staleness(v: StepView) -> float | None:
    """Age of the data that the step trained on, in iterations."""
    if v.evidence.updates is None:
        return None
    return _mean(v.step - v.evidence.updates.rollout_step.cpu().numpy())


@describing(Unit.TOKENS, "sum over updates of sum m", OURS, sql_type="BIGINT")
def tokens_trained(v: StepView) -> int:
    """Tokens trained on, each epoch counted."""
    return v.evidence.tokens_trained


# Time


def _timing(part: str, formula: str, description: str) -> Measure:
    reason = cost.keywords["alarm"]
    return Measure(
        f"seconds_{part}",
        (STEP,),
        Unit.SECONDS,
        formula,
        OURS,
        description,
        lambda v: v.evidence.seconds.get(part),
        reason,
    )


seconds_rollout = _timing("rollout", "wall time of sampling", "Wall time of sampling the fresh rollouts.")


@cost(Unit.SECONDS, "sum of the searches' wall times", OURS)
def seconds_retrieval(v: StepView) -> float | None:
    """Wall time that the fresh rollouts spent in the retriever, a part of `seconds_rollout`; NULL without one."""
    waited = [s for turns in v.evidence.rollouts.retrieval_seconds for s in turns if s is not None]
    return float(sum(waited)) if waited else None


seconds_update = _timing("update", "wall time of the updates", "Wall time of advantages and updates.")
seconds_evaluation = _timing(
    "evaluation", "wall time of evaluation", "Wall time of held-out evaluation; near 0 on steps without one."
)
seconds_record = _timing(
    "record",
    "wall time of measuring and recording the step before",
    "Wall time that measuring and recording the previous step took the trainer; NULL on the first step.",
)
seconds_total = _timing(
    "total", "wall time of the step without recording", "Wall time of the step: evaluation, sampling and updates."
)


@cost(Unit.NONE, "tokens_trained / seconds_update", OURS)
def tokens_per_second(v: StepView) -> float | None:
    """Training speed in tokens per second of updating."""
    return _share(v.evidence.tokens_trained, v.evidence.seconds.get("update", 0.0))


# The machine


@hard(Unit.NATS, "max |log p_engine - log p_trainer| on fixed probes after the weight sync", OURS)
def sync_error(v: StepView) -> float | None:
    """How far the sampling engine's copy of the policy is from the trainer's; NULL where the engine has no copy.

    Beyond engine.sync_tolerance the run stops with event stale_weights.
    """
    return v.evidence.sync_error


@cost(Unit.BYTES, "max allocated on the GPU, or max resident set of the process", OURS)
def memory_peak(v: StepView) -> float | None:
    """Most memory that the trainer's process has taken so far."""
    return None if v.evidence.memory_peak is None else float(v.evidence.memory_peak)


# The fair-comparison guard


@guarded(
    Unit.NONE,
    "hash of question, gold answer and prompt group of the trained trajectories, in order",
    OURS,
    sql_type="BIGINT",
)
def questions_hash(v: StepView) -> int:
    """Fingerprint of the questions that the step trained on; equal in arms with one seed and group size."""
    r = v.evidence.trained or v.evidence.rollouts
    asked = zip(r.group.tolist(), r.question, r.gold, strict=True)
    return fingerprint(*(f"{group}\t{question}\t{gold}".encode() for group, question, gold in asked))


@guarded(Unit.NONE, "hash of the trained tokens, prompts included, and the loss mask", OURS, sql_type="BIGINT")
def batch_hash(v: StepView) -> int | None:
    """Fingerprint of the batch that the step trained on; two steps with the same one trained on one batch twice."""
    return v.evidence.batch_hash


@guarded(Unit.NATS, "max |delta| of the first update, where delta is 0 by construction", OURS)
def first_log_ratio_abs_max(v: StepView) -> float | None:
    """Rounding in the first update on fresh old log-probs; NULL where another policy than the trained one took them."""
    column = None if v.updates is None or not v.evidence.fresh else v.updates["log_ratio_abs_max"]
    return None if column is None or not len(column) or np.ma.getmaskarray(column)[0] else float(column[0])


@guarded(Unit.COUNT, "trained rows that are not the tokens and turns as sampled", OURS, sql_type="BIGINT")
def token_mismatches(v: StepView) -> int | None:
    """Trajectories whose trained tokens or turn ids are not those of the sampler; NULL where it kept no record."""
    return None if v.evidence.mismatches is None else len(v.evidence.mismatches)


# Template collapse

RAGEN_2 = "RAGEN-2 arXiv 2604.06268, by a proxy of ours"


@two_curves(Unit.FRACTION, "mean over prompt groups of #{distinct rollouts} / #{rollouts}", RAGEN_2)
def distinct_rollout_frac(v: StepView) -> float | None:
    """Variety of the rollouts of one prompt, H(Z | X); NULL when every prompt is sampled once."""
    written = v.evidence.rollouts.written
    shares = [len({tuple(map(tuple, written[i])) for i in part}) / len(part) for part in v.groups]
    return float(np.mean(shares)) if shares else None


@two_curves(
    Unit.FRACTION,
    "share of rollouts whose counts of written tokens are nearest (cosine) to those of their own prompt's others",
    RAGEN_2,
)
def prompt_retrieval_frac(v: StepView) -> float | None:
    """Whether a rollout identifies its prompt, a stand-in for the mutual information I(X; Z).

    At 1 / prompts every answer could belong to any prompt: a template. NULL with fewer than two prompt groups.
    """
    if len(v.groups) < 2:
        return None
    rows = np.concatenate(v.groups)
    counts = _counts(v.evidence.rollouts, rows)
    label = np.repeat(np.arange(len(v.groups)), [len(part) for part in v.groups])
    totals = np.stack([counts[label == k].sum(0) for k in range(len(v.groups))])
    likeness = _unit(counts) @ _unit(totals).T  # (N, prompts)
    own = _unit(totals[label] - counts)  # without the rollout itself
    likeness[np.arange(len(rows)), label] = (_unit(counts) * own).sum(1)
    best = likeness >= likeness.max(1, keepdims=True) - 1e-9
    return float((best[np.arange(len(rows)), label] / best.sum(1)).mean())


def _counts(rollouts: Rollouts, rows: np.ndarray) -> np.ndarray:
    """Return how often each token of the step's vocabulary was written, (N, V)."""
    flat = [list(chain.from_iterable(rollouts.written[i])) for i in rows]
    seen, index = np.unique(np.fromiter(chain.from_iterable(flat), np.int64), return_inverse=True)
    row = np.repeat(np.arange(len(rows)), [len(tokens) for tokens in flat])
    cells = np.bincount(row * max(len(seen), 1) + index, minlength=len(rows) * max(len(seen), 1))
    return cells.reshape(len(rows), -1).astype(np.float64)


def _unit(x: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(norm > 0, norm, 1.0))
