"""Why a run collapsed that no defect explains: updates on data that the policy has left behind, or simply too large."""

from __future__ import annotations

from workbench.diagnosis.causes.advantages import culprit
from workbench.diagnosis.departure import first
from workbench.diagnosis.finding import Cause, Clue, Evidence
from workbench.diagnosis.log import Log

BEFORE = 4  # steps before the onset, in which its reason is looked for
_TAIL = 3.0  # token ratio, from which a token with a negative advantage is far outside every clip range


def _window(log: Log) -> tuple[int, int] | None:
    """First and last step of the stretch in which the reason of the collapse lies; None without a collapse."""
    if log.onset is None:
        return None
    found = log.run.get("detection_step")
    last = int(found) if isinstance(found, (int, float)) and found == found else log.onset + BEFORE
    return max(0, log.onset - BEFORE), last


def reuse(log: Log) -> tuple[float, float]:
    """How off-policy training is: mean age of the data in iterations, and passes over a batch."""
    age = log.series("step", "staleness")
    epochs = log.series("minibatch", "epoch", "max")
    return (float(age.mean()) if len(age) else 0.0), (float(epochs.max()) + 1 if len(epochs) else 1.0)


def _off_policy(log: Log) -> Clue | None:
    window = _window(log)
    age, epochs = reuse(log)
    if window is None or (age == 0 and epochs == 1):
        return None
    ratio = log.series("minibatch", "ratio_max", "max")
    near = ratio[(ratio.index >= window[0]) & (ratio.index <= window[1])]
    if near.empty or float(near.max()) <= _TAIL:
        return None
    step = int(near.index[int((near > _TAIL).to_numpy().argmax())])
    worst = int(near.index[int(near.to_numpy().argmax())])
    trajectory, turn = culprit(log, worst, "gradient_share")
    usual = ratio[ratio.index < window[0]]
    return Clue(
        "pattern", 0.6, step,
        f"the data are {age:.1f} iterations old on average and used {epochs:.0f} times; around the onset (step "
        f"{log.onset}) token ratios reach {float(near.max()):.3g} (step {worst}), beyond what a clip holds where the "
        "advantage is negative",
        (Evidence("minibatch.ratio_max", worst, float(near.max()), float(usual.median()) if len(usual) else None),),
        trajectory, turn,
    )  # fmt: skip


def _step_size(log: Log) -> Clue | None:
    window = _window(log)
    if window is None or log.onset is None:
        return None
    norm = log.series("minibatch", "grad_norm", "max")
    spike = first(norm[norm.index <= window[1]], "above", points=1, floor=0.5)
    bound = log.settings.get("learn.policy.max_grad_norm")
    if spike is None or spike.step < window[0] - BEFORE or (bound is not None and spike.value > float(bound)):
        return None
    trajectory, turn = culprit(log, spike.step, "gradient_share")
    side = "before" if spike.step <= log.onset else "after"
    unbounded = "no bound on the gradient norm is set, so " if "learn.policy.max_grad_norm" in log.settings else ""
    return Clue(
        "pattern", 0.5, spike.step,
        f"the gradient norm leaps from {spike.usual:.3g} to {spike.value:.3g} in step {spike.step}, "
        f"{abs(log.onset - spike.step)} steps {side} the onset; {unbounded}the whole step was taken",
        (Evidence("minibatch.grad_norm", spike.step, spike.value, spike.usual),), trajectory, turn,
    )  # fmt: skip


OFF_POLICY = Cause(
    "off_policy",
    "Updates rest on data that the policy has left behind",
    "critical",
    ("minibatch.ratio_max", "step.success"),
    "Fewer epochs or fresher data; a dual clip or a turn ratio bounds the tokens that do it; a smaller learning rate "
    "lowers both.",
    "--set learn.staleness=0 --set learn.epochs=1",
    _off_policy,
)
STEP_SIZE = Cause(
    "step_size",
    "A single update was too large",
    "critical",
    ("minibatch.grad_norm", "step.success"),
    "Bound the gradient norm, or lower the learning rate.",
    "--set learn.policy.max_grad_norm=1.0",
    _step_size,
)
