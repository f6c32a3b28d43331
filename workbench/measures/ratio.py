"""Importance ratios, and what the clip and the stabiliser do with them."""

import numpy as np

from sorl.measures.declare import MEANT, OTHER, OURS, VERL, Measure, diagnostic, reported
from sorl.measures.tokens import CLAMP, QUANTILES, Segments, Tokens, quotient
from sorl.spec import Alarm, Level, Unit

TRL = "TRL grpo_trainer.py"
CORE_ALGOS = "verl core_algos.py"
PAPER = "arXiv 2511.20718"
LEMMA = "arXiv 2511.20718 Lemma 4.1"
SUMS = "arXiv 2602.10693 (sums, not means)"
OUR_MARK = (
    "verl has the mark for another ratio, pi_old / mu; on pi_theta / pi_old it is ours, to be calibrated"
)
OUR_BIAS = "this project, C of arXiv 2511.20718"
PAPER_CODE = "development code of arXiv 2511.20718 (clip_grad_norm)"
STEP = Level.STEP
TRAJECTORY = Level.TRAJECTORY
TURN = Level.TURN
UPDATE = Level.UPDATE


def _product(by: Segments, t: Tokens) -> np.ndarray:
    return np.exp(np.clip(by.total(t.clamped), -CLAMP, CLAMP))


SPREAD = (
    Measure(
        "ratio_mean",
        (UPDATE, STEP),
        Unit.RATIO,
        "<exp(clamp(delta, +-20))>_m",
        VERL,
        "Mean token ratio; 1 in expectation over samples of the old policy.",
        lambda t, by: by.mean(t.ratio),
        alarm=Alarm("above", 2.0, f"samples of the old policy have a mean of 1; {OUR_MARK}", points=2),
    ),
    Measure(
        "ratio_max",
        (UPDATE, TURN, TRAJECTORY, STEP),
        Unit.RATIO,
        "max r",
        VERL,
        "Largest token ratio. With a negative advantage nothing bounds it unless the dual clip is on.",
        lambda t, by: by.maximum(t.ratio),
        roll="max",
        no_alarm=OTHER,
    ),
    Measure(
        "ratio_min",
        (UPDATE, TURN),
        Unit.RATIO,
        "min r",
        VERL,
        "Smallest token ratio; drift to 0 on good tokens starves them of gradient.",
        lambda t, by: by.minimum(t.ratio),
        roll="min",
    ),
    Measure(
        "ratio_std",
        (UPDATE,),
        Unit.RATIO,
        "population std of r",
        VERL,
        "Spread of the token ratios.",
        lambda t, by: by.std(t.ratio),
    ),
    Measure(
        "unit_ratio_mean",
        (UPDATE,),
        Unit.RATIO,
        "<w>_m, w = the ratio that the algorithm pools",
        OURS,
        "Mean of the ratio that entered the surrogate (token, turn or sequence).",
        lambda t, by: by.mean(t.unit_ratio),
    ),
    Measure(
        "unit_ratio_max",
        (UPDATE,),
        Unit.RATIO,
        "max w, w = the ratio that the algorithm pools",
        OURS,
        "Largest ratio that entered the surrogate.",
        lambda t, by: by.maximum(t.unit_ratio),
    ),
    Measure(
        "unit_ratio_min",
        (UPDATE,),
        Unit.RATIO,
        "min w, w = the ratio that the algorithm pools",
        OURS,
        "Smallest ratio that entered the surrogate.",
        lambda t, by: by.minimum(t.unit_ratio),
    ),
    Measure(
        "log_ratio_std",
        (UPDATE,),
        Unit.NATS,
        "population std of delta",
        OURS,
        "Spread of the token log-ratios; their mean is -approx_kl.",
        lambda t, by: by.std(t.log_ratio),
    ),
    Measure(
        "log_ratio_abs_max",
        (UPDATE,),
        Unit.NATS,
        "max |delta|",
        TRL,
        "Largest move of one token, before any clamp.",
        lambda t, by: by.maximum(np.abs(t.log_ratio)),
    ),
    Measure(
        "clamp_hits",
        (UPDATE,),
        Unit.COUNT,
        "#{|delta| > 20}",
        f"{CORE_ALGOS} clamps there",
        "Tokens whose log-ratio was clamped before exp; one is already a broken update.",
        lambda t, by: by.total(np.abs(t.log_ratio) > CLAMP),
    ),
    *(
        Measure(
            f"log_ratio_q{100 * q:02.0f}",
            (UPDATE,),
            Unit.NATS,
            f"quantile {q} of delta",
            TRL,
            f"{100 * q:.0f} % quantile of the token log-ratios.",
            lambda t, by, place=place: t.log_ratio_quantiles[place],
        )
        for place, q in enumerate(QUANTILES)
    ),
    Measure(
        "ratio_positive_q50",
        (UPDATE,),
        Unit.RATIO,
        "median of r over the tokens with A > 0",
        "arXiv 2603.10069 (drift of the ratios)",
        "Median ratio of the tokens to be reinforced; on the way to 0 they lose their gradient. NULL without"
        " any.",
        lambda t, by: Segments(by.ids[t.advantages > 0], by.size).quantiles(
            t.ratio[t.advantages > 0], (0.5,)
        )[0],
    ),
    Measure(
        "ess_frac",
        (UPDATE, STEP),
        Unit.FRACTION,
        "(sum r)^2 / (n sum r^2) over tokens",
        VERL,
        "Effective sample size of the token ratios as a share of the tokens, in (1/n, 1].",
        lambda t, by: np.minimum(by.total(t.ratio) ** 2 / (by.n * by.total(t.ratio**2)), 1.0),
        no_alarm=OTHER,
    ),
)


@diagnostic(
    UPDATE, Unit.FRACTION, "(sum W)^2 / (n sum W^2), W = exp(sum delta of a sequence)", "arXiv 2602.10693"
)
def ess_sequence_frac(t: Tokens, by: Segments) -> np.ndarray:
    """Effective sample size of the product ratios of whole trajectories, as a share of the trajectories."""
    log_weight = t.by_sequence.total(t.clamped)
    groups = t.sequences_by_update
    # A common factor does not change the share; without it exp would overflow.
    weight = np.exp(log_weight - groups.spread(groups.maximum(log_weight)))
    return np.minimum(groups.total(weight) ** 2 / (groups.n * groups.total(weight**2)), 1.0)


UNITS_AND_CLIPS = (
    Measure(
        "chi2",
        (UPDATE, STEP),
        Unit.NONE,
        "<r^2>_m - 1",
        f"{VERL} (chi2_token)",
        "Chi-square divergence of the new policy from the old one, estimated on tokens of the old. The"
        " variance of the ratios only where ratio_mean is 1; in general <(r - 1)^2>_m + 2 (ratio_mean - 1).",
        lambda t, by: by.mean(t.ratio**2) - 1.0,
        alarm=Alarm("above", 1.0, f"as if half of the tokens weighed nothing; {OUR_MARK}", points=2),
    ),
    Measure(
        "chi2_sequence",
        (UPDATE,),
        Unit.NONE,
        "mean over sequences of W^2 - 1, W = exp(clamp(sum delta of a sequence, +-20))",
        f"{VERL} (chi2_seq)",
        "The same by the product ratios of whole trajectories; far above chi2 where tokens drift one way.",
        lambda t, by: t.sequences_by_update.mean(_product(t.by_sequence, t) ** 2) - 1.0,
    ),
    Measure(
        "turn_ratio_geo_max",
        (UPDATE,),
        Unit.RATIO,
        "max over turns of exp(mean delta of the turn)",
        LEMMA,
        "Largest geometric turn ratio; averaging hides outliers, so read it together with ratio_max.",
        lambda t, by: t.turns_by_update.maximum(np.exp(t.by_turn.mean(t.clamped))),
    ),
    Measure(
        "turn_ratio_arith_max",
        (UPDATE,),
        Unit.RATIO,
        "max over turns of the mean r of the turn",
        PAPER,
        "Largest arithmetic turn ratio; at least the geometric one.",
        lambda t, by: t.turns_by_update.maximum(t.by_turn.mean(t.ratio)),
    ),
    Measure(
        "turn_log_ratio_sum_abs_max",
        (UPDATE,),
        Unit.NATS,
        "max over turns of |sum delta of the turn|",
        SUMS,
        "Largest log of a product ratio of a turn: the drift of the turn that length normalisation hides.",
        lambda t, by: t.turns_by_update.maximum(np.abs(t.by_turn.total(t.clamped))),
    ),
    Measure(
        "ratio_geo",
        (TURN,),
        Unit.RATIO,
        "exp(mean delta of the turn)",
        LEMMA,
        "Geometric turn ratio, the one of Turn-PPO and ST-PPO.",
        lambda t, by: np.exp(by.mean(t.clamped)),
        roll="turns",
    ),
    Measure(
        "ratio_arith",
        (TURN,),
        Unit.RATIO,
        "mean r of the turn",
        PAPER,
        "Arithmetic turn ratio.",
        lambda t, by: by.mean(t.ratio),
        roll="turns",
    ),
    Measure(
        "ratio_prod",
        (TURN,),
        Unit.RATIO,
        "exp(clamp(sum delta of the turn, +-20))",
        "AgileRL (sum pooling)",
        "Product turn ratio: the unbiased importance weight of the whole turn.",
        lambda t, by: _product(by, t),
        roll="turns",
    ),
    Measure(
        "log_ratio_sum",
        (TURN,),
        Unit.NATS,
        "sum delta of the turn",
        SUMS,
        "Log of the product ratio of the turn, each token clamped to +-20.",
        lambda t, by: by.total(t.clamped),
        roll="turns",
    ),
    Measure(
        "ratio_mass_frac",
        (TURN,),
        Unit.FRACTION,
        "sum r of the turn / sum r of its update",
        OURS,
        "Share of the update's importance weight that lies on the turn.",
        lambda t, by: quotient(by.total(t.ratio), t.by_update.total(t.ratio)[by.first(t.update)]),
        roll="share",
    ),
    Measure(
        "clip_frac",
        (UPDATE, TURN, TRAJECTORY, STEP),
        Unit.FRACTION,
        "<1[the clip stopped the gradient of the token]>_m; of PPO's clip: clipped loss > unclipped loss",
        f"{CORE_ALGOS} (pg_clipfrac)",
        "Share of tokens whose gradient the clip stopped. 0 for clips that bound a weight and stop nothing "
        "(cispo, hard): out_of_range_frac says how often they act.",
        lambda t, by: by.mean(t.active),
        roll="tokens",
        alarm=Alarm(
            "above",
            0.3,
            "microsoft/post-training-toolkit warns at a clip fraction of 0.3; healthy PPO stays below 0.2",
            points=3,
        ),
    ),
    Measure(
        "out_of_range_frac",
        (UPDATE, TURN, STEP),
        Unit.FRACTION,
        "<1[r < 1 - eps_low or r > 1 + eps_high]>_m",
        "arXiv 2511.20718 (the set of clipped tokens)",
        "Share of tokens with a token ratio outside the bounds, whatever the sign of the advantage; what it"
        " has above clip_frac plain PPO leaves unbounded. For CISPO the share of weights that were clamped.",
        lambda t, by: by.mean(t.out_of_range),
        roll="tokens",
        no_alarm="`clip_frac` has it: out of range counts tokens that nothing stops as well",
    ),
    Measure(
        "dual_clip_frac",
        (UPDATE, STEP),
        Unit.FRACTION,
        "<1[A < 0, loss > -c A]>_m",
        f"{CORE_ALGOS} (pg_clipfrac_lower)",
        "Share of tokens whose loss the dual clip bounded, or whose weight DPPO's cap did; 0 when it is off.",
        lambda t, by: by.mean(t.dual),
        no_alarm=MEANT,
    ),
    Measure(
        "clip_low_frac",
        (UPDATE,),
        Unit.FRACTION,
        "<1[A < 0, w < 1 - eps_low]>_m",
        f"{TRL} (clip_ratio/low)",
        "Share of tokens stopped by the lower bound; clip_low_frac + clip_high_frac = clip_frac.",
        lambda t, by: by.mean(t.active_low),
    ),
    Measure(
        "clip_high_frac",
        (UPDATE,),
        Unit.FRACTION,
        "<1[A > 0, w > 1 + eps_high]>_m",
        f"{TRL} (clip_ratio/high)",
        "Share of tokens stopped by the upper bound.",
        lambda t, by: by.mean(t.active_high),
    ),
    Measure(
        "turn_clip_frac",
        (UPDATE,),
        Unit.FRACTION,
        "share of turns with a clipped token",
        OURS,
        "Share of turns in which the clip stopped at least one token.",
        lambda t, by: t.turns_by_update.mean(t.by_turn.maximum(t.active)),
    ),
    Measure(
        "turn_clip_token_frac",
        (UPDATE,),
        Unit.FRACTION,
        "share of tokens in turns with a clipped token",
        OURS,
        "Share of tokens whose turn has a clipped token: what a clip of whole turns loses.",
        lambda t, by: by.mean(t.by_turn.spread(t.by_turn.maximum(t.active))),
    ),
    Measure(
        "sequence_clip_frac",
        (UPDATE,),
        Unit.FRACTION,
        "share of sequences with a clipped token",
        OURS,
        "Share of trajectories in which the clip stopped at least one token.",
        lambda t, by: t.sequences_by_update.mean(t.by_sequence.maximum(t.active)),
    ),
    Measure(
        "sequence_clip_token_frac",
        (UPDATE,),
        Unit.FRACTION,
        "share of tokens in sequences with a clipped token",
        OURS,
        "Share of tokens whose trajectory has a clipped token: what a clip of whole trajectories loses.",
        lambda t, by: by.mean(t.by_sequence.spread(t.by_sequence.maximum(t.active))),
    ),
    reported(
        "clip_bias_norm",
        Unit.NORM,
        "||C||, C = grad J without the clip - grad J; of PPO's clip: 1/N sum over clipped tokens of r A grad "
        "log pi",
        "arXiv 2511.20718 Lemma 4.2",
        "Norm of the true clipping bias, by a second backward pass; NULL on updates without one. J is the "
        "surrogate alone, before a stabiliser's factor: no KL term, no entropy bonus.",
    ),
    reported(
        "clip_bias_ratio",
        Unit.RATIO,
        "||C|| / ||g||, g = grad J without the clip",
        OUR_BIAS,
        "Clipping bias against the unclipped gradient of the surrogate; NULL where not taken, or where g"
        " is 0.",
    ),
    reported(
        "clip_bias_cosine",
        Unit.NONE,
        "cos(C, g), g = grad J without the clip",
        OUR_BIAS,
        "Direction of what the clip removed; 1 = the clip only shortens the step. NULL where the bias was not"
        " taken, or where it or g is 0, as without a clip or with soft_sigmoid and gamma.",
    ),
    Measure(
        "clip_bias_proxy",
        (UPDATE,),
        Unit.NONE,
        "<(w A)^2 1[clipped]>_m",
        PAPER_CODE,
        "Cheap stand-in for the clipping bias that drops grad log pi; w is the ratio that the algorithm"
        " pools.",
        lambda t, by: by.mean(np.where(t.active, (t.unit_ratio * t.advantages) ** 2, 0.0)),
    ),
    Measure(
        "clip_bias_proxy_range",
        (UPDATE,),
        Unit.NONE,
        "<(r A)^2 1[out of range]>_m",
        PAPER_CODE,
        "The same by token ratios over all tokens out of range, as S-PPO and ST-PPO judge; on another scale.",
        lambda t, by: by.mean(np.where(t.out_of_range, (t.ratio * t.advantages) ** 2, 0.0)),
    ),
    reported(
        "stabiliser_ratio",
        Unit.RATIO,
        "max over units of rho = RMS of r A out of range / RMS of r A in range",
        f"development code of {PAPER}",
        "Largest rho of the units that the stabiliser judges one by one; it fires where rho > tau. Units: "
        "micro-batches (S-PPO, ST-PPO; with scope global the minibatch), turns or sequences (SO-GRPO). NULL "
        "without a stabiliser of this kind.",
    ),
    reported(
        "stabiliser_factor",
        Unit.RATIO,
        "<f>_m, f the factor on the loss of a token or on the gradient",
        PAPER,
        "What the stabiliser multiplied by; 1 when it did not fire, NULL where none multiplies anything.",
    ),
    Measure(
        "stabiliser_factor_mean",
        (UPDATE,),
        Unit.RATIO,
        "<f>_m over token factors",
        PAPER,
        "Mean factor on the loss of a token; 1 where no stabiliser acts there.",
        lambda t, by: by.mean(t.factor),
    ),
    *(
        reported(
            f"{kind}_rms",
            Unit.NONE,
            f"{x} = RMS of r A over tokens {place}",
            PAPER,
            "Over the whole minibatch, "
            f"also without a stabiliser; with one unit the {part} of stabiliser_ratio.",
        )
        for kind, x, place, part in (
            ("clipped", "c", "out of range", "numerator"),
            ("unclipped", "n", "in range", "denominator"),
        )
    ),
)
