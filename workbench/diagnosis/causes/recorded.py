"""Broken identities: what was recorded contradicts itself or the settings, so no threshold is needed."""

from __future__ import annotations

from workbench.diagnosis.finding import Cause, Clue, Evidence
from workbench.diagnosis.log import Log

CLOSE = 1.01  # x, of two numbers that should be one


def _rate(log: Log) -> Clue | None:
    lr = log.series("minibatch", "lr", "max")
    told = log.settings.get("learn.policy.lr")
    usual = float(lr.iloc[: max(1, len(lr) // 5)].median()) if told is None else float(told)
    above = lr[lr > 1.5 * usual]
    if above.empty:
        return None
    step, value = int(above.index[0]), float(above.iloc[0])
    meant = "the settings say" if told is not None else "it began with"
    return Clue(
        "proof" if told is not None else "sign", 0.97, step,
        f"from step {step} on the optimizer's learning rate is {value:.3g}, where {meant} {usual:.3g}",
        (Evidence("minibatch.lr", step, value, usual),),
    )  # fmt: skip


def _unclipped(log: Log) -> Clue | None:
    bound = log.settings.get("learn.policy.max_grad_norm")
    if bound is None:
        return None
    after = log.series("minibatch", "grad_norm_after", "max")
    beyond = after[after > CLOSE * float(bound)]
    if beyond.empty:
        return None
    step, value = int(beyond.index[0]), float(beyond.iloc[0])
    return Clue(
        "proof", 0.97, step,
        f"from step {step} on the optimizer steps along gradients with norms up to {float(beyond.max()):.3g}, though "
        f"max_grad_norm = {bound:g}: clipping is configured and not applied",
        (Evidence("minibatch.grad_norm_after", step, value, float(bound)),),
    )  # fmt: skip


def _queue(log: Log) -> Clue | None:
    told = log.settings.get("learn.staleness")
    age = log.series("step", "staleness")
    if age.empty:
        return None
    usual = float(told) if told is not None else float(age.iloc[: max(1, len(age) // 5)].max())
    older = age[age > usual + 0.5]
    if older.empty:
        return None
    step = int(older.index[0])
    return Clue(
        "proof" if told is not None else "sign", 0.95, step,
        f"from step {step} on the data are older than {usual:g} iterations, at last {float(older.max()):g}: "
        "the queue between sampler and trainer grows",
        (Evidence("step.staleness", step, float(older.iloc[0]), usual),),
    )  # fmt: skip


def _reused(log: Log) -> Clue | None:
    hashes = log.table("step")[["step", "batch_hash"]].dropna()
    again = hashes[hashes["batch_hash"].duplicated()]
    if again.empty:
        return None
    step = int(again["step"].iloc[0])
    source = int(hashes.loc[hashes["batch_hash"] == again["batch_hash"].iloc[0], "step"].iloc[0])
    return Clue(
        "proof", 0.97, step,
        f"step {step} trains on the very tokens of step {source}; {len(again)} steps of {log.steps} repeat a batch",
        (Evidence("step.batch_hash", step, None, None),),
    )  # fmt: skip


def _not_finite(log: Log) -> Clue | None:
    counts = log.series("minibatch", "non_finite", "sum")
    broken = counts[counts > 0]
    if broken.empty:
        return None
    step = int(broken.index[0])
    return Clue(
        "proof", 0.6, step, f"loss or gradient is NaN or Inf in step {step}",
        (Evidence("minibatch.non_finite", step, float(broken.iloc[0]), 0.0),),
    )  # fmt: skip


LEARNING_RATE = Cause(
    "learning_rate",
    "The learning rate is not the one that was set",
    "critical",
    ("minibatch.lr",),
    "Look at the schedule: warm-up, a resumed scheduler, a scale by world size or by accumulation steps.",
    "sorl sql \"SELECT step, max(lr) FROM minibatch WHERE run_id = '{run}' GROUP BY step ORDER BY step\"",
    _rate,
)
CLIPPING_OFF = Cause(
    "clipping_off",
    "Gradient clipping is configured but not applied",
    "critical",
    ("minibatch.grad_norm_after",),
    "Clip after the gradients are unscaled and gathered, before optimizer.step(); check that the parameters clipped "
    "are those that are stepped.",
    "--set learn.policy.max_grad_norm=1.0",
    _unclipped,
    needs_settings=("learn.policy.max_grad_norm",),
)
STALENESS = Cause(
    "staleness",
    "Data are older than was asked for",
    "critical",
    ("step.staleness",),
    "Bound the queue between sampler and trainer, drop what is older than learn.staleness, or correct for it.",
    "--set learn.staleness=0",
    _queue,
)
BATCH_REUSED = Cause(
    "batch_reused",
    "A batch is trained on again",
    "critical",
    ("step.batch_hash",),
    "Look at the queue and the data loader: an iterator that is not advanced, a buffer that is not cleared after a "
    "step.",
    "sorl sql \"SELECT batch_hash, list(step) FROM step WHERE run_id = '{run}' GROUP BY 1 HAVING count(*) > 1\"",
    _reused,
)
NOT_FINITE = Cause(
    "not_finite",
    "A loss or gradient is not a number",
    "critical",
    ("minibatch.non_finite",),
    "Open the batch of that step: ratios and log-ratios come before losses, losses before gradients.",
    "sorl replay {run} --step {step}",
    _not_finite,
)
