"""Audit: what a stored step says it did, recomputed from what it had.

A violated identity is a proof that something is wrong, whatever its cause: both sides were stored by the
trainer.
"""

from sorl.audit import identities, recorded, tables
from sorl.audit.comparison import explain
from sorl.audit.declaration import Declaration, declaration_of
from sorl.audit.registry import IDENTITIES, Identity, arrange, asked_of_steps
from sorl.audit.run import audit, chosen
from sorl.audit.tables import table_checks
from sorl.audit.witnesses import WitnessTables, witness_checks, witness_tables
from sorl.spec.evidence import Check

__all__ = [
    "IDENTITIES",
    "Check",
    "Declaration",
    "Identity",
    "WitnessTables",
    "asked_of_steps",
    "audit",
    "chosen",
    "declaration_of",
    "explain",
    "identities",
    "recorded",
    "table_checks",
    "tables",
    "witness_checks",
    "witness_tables",
]

# From the question to the optimizer: the first violation is the one nearest to its cause.
arrange(
    (
        "transcripts",
        "token_ids",
        "row_lengths",
        "loss_mask",
        "trained_tokens",
        "trained_mask",
        "turns",
        "reward",
        "reward_mean",
        "fresh_batch",
        "rollout_age",
        "sampler_weights",
        "behaviour_log_probs",
        "log_prob_range",
        "sampling",
        "sampled_entropy",
        "entropy_range",
        "independence",
        "old_log_probs",
        "old_log_probs_fixed",
        "reference_log_probs",
        "reference_still",
        "values",
        "group_size",
        "advantages",
        "group_advantages",
        "returns",
        "order",
        "minibatches",
        "clip_fraction",
        "loss",
        "token_weights",
        "gradient",
        "gradient_clip",
        "learning_rate",
        "peak_learning_rate",
        "optimizer_steps",
        "log_probs",
        "critic_loss",
        "critic_gradient",
        "weights",
        "weights_between_steps",
        "policy_moves",
        "frozen_layers",
        "optimizer_state",
    )
)
