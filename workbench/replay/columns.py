"""The columns of a replay's tables: declared once, for the answers, the docs and the app."""

from __future__ import annotations

from workbench.spec import Column

_WHO = (
    Column("algorithm", "VARCHAR", "Name of the algorithm, or of the variant; the one that ran stands first."),
    Column("own", "BOOLEAN", "True for the algorithm that ran."),
)
_UPDATE = Column("update", "BIGINT", "Optimizer update of the step, from 0; NULL: all updates that were asked for.")
_TRAJECTORY = Column("trajectory", "BIGINT", "Index of the trajectory in the batch of its step.")
_TURN = Column("turn_index", "BIGINT", "Turn of the trajectory, from 1.")
_N = Column("n_tokens", "BIGINT", "Trained tokens.")
_SHARES = (
    Column("gradient_share", "DOUBLE", "sum |d loss / d log-prob| here, over that of the whole."),
    Column("unit_ratio_mass_frac", "DOUBLE", "sum w here, over that of the whole; w as in unit_ratio_mean."),
)
_RATIOS = (
    Column("ratio_max", "DOUBLE", "Largest token ratio r = exp(log pi - log pi_old)."),
    Column("unit_ratio_mean", "DOUBLE", "<w>_m, w the ratio that entered the surrogate (token, turn or sequence)."),
    Column("unit_ratio_max", "DOUBLE", "max w."),
    Column("unit_ratio_min", "DOUBLE", "min w."),
    Column("approx_kl", "DOUBLE", "<-(log pi - log pi_old)>_m, nats."),
)
_CLIPS = (
    Column("clip_frac", "DOUBLE", "Share of tokens whose gradient the clip stopped, by either bound."),
    Column("clip_low_frac", "DOUBLE", "Share stopped by the lower bound."),
    Column("clip_high_frac", "DOUBLE", "Share stopped by the upper bound."),
    Column("dual_clip_frac", "DOUBLE", "Share whose loss the dual clip bounded."),
    Column(
        "out_of_range_frac",
        "DOUBLE",
        "Share of tokens whose r lies outside the bounds, whatever the sign of A.",
    ),
)
_LOSS = (
    Column("policy_loss", "DOUBLE", "The surrogate, aggregated; over several updates the mean."),
    Column("kl_loss", "DOUBLE", "What the KL term adds to the loss."),
    Column("penalty", "DOUBLE", "What the stabiliser adds to the loss."),
    Column("stabiliser_ratio", "DOUBLE", "Largest rho = c / n that an RMS stabiliser judged; NULL without one."),
    Column("stabiliser_factor", "DOUBLE", "Mean factor on the loss; NULL where there is none."),
    Column("clipped_rms", "DOUBLE", "c, RMS of r A over the tokens out of range."),
    Column("unclipped_rms", "DOUBLE", "n, RMS of r A over the others."),
)  # fmt: skip
_GRADIENT = (
    Column("grad_norm", "DOUBLE", "||g||, the true gradient of the policy's loss; NULL without --gradients."),
    Column("clip_bias_norm", "DOUBLE", "||C||, the true clipping bias; likewise."),
    Column("gradient_cosine", "DOUBLE", "Cosine of g with that of the algorithm that ran; likewise."),
)
SUMMARY = (
    *_WHO, _UPDATE,
    Column("source", "VARCHAR", "replayed, or logged: what the trainer itself wrote down then."),
    *_LOSS, *_RATIOS,
    Column("ess_frac", "DOUBLE", "(sum r)^2 / (n sum r^2): effective sample size of the token ratios, as a share."),
    Column("unit_ess_frac", "DOUBLE", "The same of w."),
    *_CLIPS,
    Column("weight_abs", "DOUBLE", "sum |d loss / d log-prob|: how hard the loss pulls on the log-probs."),
    *_GRADIENT,
    Column("reason", "VARCHAR", "Why there is no answer; NULL where there is one."),
)  # fmt: skip
TURNS = (
    *_WHO, _UPDATE, _TURN, _N,
    Column("advantage", "DOUBLE", "Mean advantage."),
    *_RATIOS, *_CLIPS,
    Column("factor", "DOUBLE", "Mean factor of the stabiliser."),
    *_SHARES,
)  # fmt: skip
CULPRITS = (
    *_WHO,
    Column("rank", "BIGINT", "Place by gradient_share, from 1."),
    _TRAJECTORY, *TURNS[3:],
)  # fmt: skip
TOKENS = (
    *_WHO, _UPDATE, _TRAJECTORY,
    Column("position", "BIGINT", "Position in the trajectory's tokens, the prompt's included, from 0."),
    _TURN,
    Column("token_id", "BIGINT", "Vocabulary id."),
    Column("token", "VARCHAR", "Its text; NULL where the batch was stored without."),
    Column("log_ratio", "DOUBLE", "log pi - log pi_old, nats."),
    Column("unit_ratio", "DOUBLE", "w of the token."),
    Column("advantage", "DOUBLE", "A of the token."),
    Column("factor", "DOUBLE", "Factor of the stabiliser on it."),
    Column("clipped", "BOOLEAN", "The clip stopped its gradient."),
    Column("weight", "DOUBLE", "d loss / d log-prob: below 0 the update makes the token likelier."),
)  # fmt: skip
LOGGED = frozenset(c.name for c in (*_LOSS, *_GRADIENT))
"""Columns of the summary that a trainer logs of each update."""
