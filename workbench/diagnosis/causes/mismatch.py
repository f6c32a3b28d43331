"""Another trainer's sampler and trainer disagree: the reasons that only its gap column by column tells apart.

What they share with runs of sorl's own trainer (temperature, rounding, routes) is in `causes/sampler.py`.
"""

from sorl.diagnosis.causes.sampler import parted
from sorl.diagnosis.finding import among, sql

_NEEDS = ("minibatch.gap",)
_CONSEQUENCES = ("mismatch_grows", "kl_blowup", "clip_saturation", "off_policy")

version_lag = among(
    parted,
    "version_lag",
    "The data are of older weights, and the gap follows their age",
    severity="warning",
    needs=(*_NEEDS, "trajectory.rollout_step", "trajectory.gap"),
    explains=(*_CONSEQUENCES, "staleness"),
    change=("Bound the age of the data (the queue, steps off-policy), or correct for it (truncated ratios)."),
    test=sql(
        "SELECT step - rollout_step AS age, count(*), avg(gap) FROM trajectory", "GROUP BY 1 ORDER BY 1"
    ),
    options=("learn.staleness", "correction"),
)
sync_never_lands = among(
    parted,
    "sync_never_lands",
    "The trainer's weights never reach the sampler",
    needs=_NEEDS,
    needs_ledger=True,
    explains=_CONSEQUENCES,
    change=(
        "Compare a checksum of the sampler's weights with the trainer's after a sync: an adapter"
        " that is never"
        " loaded, a cached copy, a sync that fails silently, a version that is counted and not sent."
    ),
    test=(
        "some steps with learning rate 0: a gap that no longer grows, and does not close, is that of old"
        " weights"
    ),
)
truncated_sampling = among(
    parted,
    "truncated_sampling",
    "The sampler leaves out unlikely tokens (top-p, top-k), the trainer does not",
    needs=_NEEDS,
    needs_ledger=True,
    explains=_CONSEQUENCES,
    change=(
        "Sample with top_p = 1 and no top_k or min_p, or have the sampler report log-probs from before them."
    ),
    test="one batch sampled with top_p = 1: the gap must vanish",
)
other_tokens = among(
    parted,
    "other_tokens",
    "The trainer reads other tokens than were sampled",
    needs=_NEEDS,
    needs_ledger=True,
    explains=_CONSEQUENCES,
    change=(
        "Keep the sampler's token ids from end to end; compare the chat template of both sides"
        " (system prompt,"
        " dropped thinking, tool tags), and the ids of one row with what the sampler returned."
    ),
    test=sql("SELECT trajectory, turn_index, mismatch FROM turn", "AND step = {step} ORDER BY 1, 2"),
)
part_differs = among(
    parted,
    "part_differs",
    "A part of the weights is not synced, or one side computes it otherwise",
    needs=_NEEDS,
    needs_ledger=True,
    explains=_CONSEQUENCES,
    change=(
        "Compare the weights of both sides by name and checksum (tied embeddings, adapters, what the loader"
        " skips), then the hidden states of one sequence layer by layer: the first that differs is it."
    ),
    test=(
        "some steps with learning rate 0: a layer that is computed otherwise keeps its gap, and so"
        " does one that"
        " is not synced; then load the checkpoint into a fresh sampler: only the former keeps it"
    ),
)
