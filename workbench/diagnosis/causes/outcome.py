"""What is paid and what is written, as the scalars of any trainer show it: groups, length, rewards, plateau."""

import re

import numpy as np

from workbench.diagnosis.curve import Curve, outcome, sure, told
from workbench.diagnosis.finding import Clue, Evidence, Grade, cause
from workbench.diagnosis.log import Log

IDLE = 0.6  # of the groups without an advantage, at the end; a healthy batch is below half
EASY, HARD = 0.7, 0.3  # of the range of the reward
TIMES = 1.8  # x the length of the start
SHORT = 0.4  # of the length of the start
CUT = 0.12  # of the answers
RULES = 2 / 3  # of what moves the reward
FLAT = 100  # steps, below which a flat reward says nothing
_ANSWER = re.compile(r"correct|acc|answer|outcome|exact|(^|_)em($|_)|f1|solve|success|task|result|pass", re.I)


@cause(
    severity="warning",
    needs=("step.zero_advantage_frac",),
    change="Sample harder prompts, or drop solved groups and draw others (dynamic sampling).",
    test="",
)
def groups_too_easy(log: Log) -> Clue | None:
    """Most groups are all right: they give no gradient."""
    return _groups(log, easy=True)


@cause(
    needs=("step.zero_advantage_frac",),
    explains=("component_dominates",),
    change="Start from easier prompts or a better model, draw larger groups, or give partial reward.",
    test="",
)
def groups_too_hard(log: Log) -> Clue | None:
    """Most groups are all wrong: they give no gradient."""
    return _groups(log, easy=False)


def _groups(log: Log, easy: bool) -> Clue | None:
    idle, score = log.curve("step.zero_advantage_frac"), log.curve("reward")
    if idle is None or score is None or idle.end < IDLE or not (score.reached > EASY if easy else score.reached < HARD):
        return None
    step = idle.left("up") if idle.end - idle.begin > 4 * idle.error else int(idle.steps[0])
    what = "all right" if easy else "all wrong"
    return Clue.of(
        "sign", sure(idle.end / IDLE, 0.7), "step.zero_advantage_frac", step, idle.end, idle.begin,
        f"from step {step} on {100 * idle.end:.0f} % of the groups have one reward for all rollouts, at a mean reward of "
        f"{score.end:.3g}: they are {what} and give no gradient",
    )  # fmt: skip


@cause(
    needs=("step.response_tokens",),
    explains=("truncation", "reward_hacking", "kl_blowup", "groups_too_easy"),
    change="Pay nothing for length: normalise by a constant length, mask what the limit cuts, and judge by evaluation.",
    test="sorl eval {run}",
)
def length_hacking(log: Log) -> Clue | None:
    """Answers grow longer because length is paid."""
    if (length := log.curve("step.response_tokens")) is None or length.end < TIMES * length.begin:
        return None
    step = length.left("up")
    paid, real = log.outcome(step), log.curve("evaluation") and outcome(log.curve("evaluation"), step)
    if paid is None or real is None or real.change > 0 or paid.change <= 0:
        return None
    return Clue.of(
        "sign", sure(length.end / length.begin / TIMES, 0.75), "step.response_tokens", step, length.end, length.begin,
        f"from step {step} on answers grow from {length.begin:.0f} to {length.end:.0f} tokens and the reward with them "
        f"({paid.before:.3g} -> {paid.after:.3g}), while the evaluation does not ({real.before:.3g} -> {real.after:.3g})",
    )  # fmt: skip


@cause(
    needs=("step.truncated_frac",),
    explains=("groups_too_hard", "length_hacking"),
    change="Raise the token limit, leave truncated answers out of the loss, or penalise length softly before the limit.",
    test="--set world.max_turns=8",
)
def truncation(log: Log) -> Clue | None:
    """Answers run into the token limit."""
    if (cut := log.curve("step.truncated_frac")) is None or cut.end < CUT or cut.end < 3 * cut.begin:
        return None
    step = cut.left("up")
    return Clue.of(
        "sign", sure(cut.end / CUT, 0.7), "step.truncated_frac", step, cut.end, cut.begin,
        f"from step {step} on {100 * cut.end:.0f} % of the answers end at the token limit, where {100 * cut.begin:.1f} % "
        f"were usual{told(log.outcome(step))}",
    )  # fmt: skip


@cause(
    needs=("step.response_tokens",),
    explains=("entropy_collapse", "groups_too_hard"),
    change="Look at answers from before and after this step; drop penalties on length, and pay for what the steps show.",
    test="sorl show {run}",
)
def length_collapse(log: Log) -> Clue | None:
    """Answers shrink to next to nothing."""
    if (length := log.curve("step.response_tokens")) is None or length.end > SHORT * length.begin:
        return None
    step = length.left("down")
    score = log.outcome(step)
    if score is not None and score.solved:
        return None
    return Clue.of(
        "sign", sure(SHORT * length.begin / max(length.end, 1e-9), 0.7), "step.response_tokens", step, length.end,
        length.begin,
        f"from step {step} on answers shrink from {length.begin:.0f} to {length.end:.0f} tokens{told(score)}",
    )  # fmt: skip


@cause(
    needs=("reward", "evaluation"),
    explains=("kl_blowup", "entropy_collapse", "groups_too_easy", "length_collapse", "component_dominates"),
    change="Read the best-paid answers from after this step; fix what the reward takes for right, or stop at the best "
    "evaluation.",
    test="sorl eval {run}",
)
def reward_hacking(log: Log) -> Clue | None:
    """The training reward rises and the evaluation falls."""
    paid, real = log.curve("reward"), log.curve("evaluation")
    if paid is None or real is None or paid is real:
        return None
    steps, medians = real.smooth
    best = int(np.argmax(medians))
    step = int(steps[best])
    lost = float(medians[best]) - real.end
    gain = outcome(paid, step)
    if gain.change < 0 or paid.end - paid.begin < 4 * paid.error or lost < max(4 * real.noise, 0.1 * abs(medians[best])):
        return None
    return Clue.of(
        "sign", sure(lost / max(4 * real.noise, 1e-9), 0.75), "step.heldout_success", step, real.end, float(medians[best]),
        f"from step {step} on the evaluation falls from {medians[best]:.3g} to {real.end:.3g}, while the training reward "
        f"goes from {gain.before:.3g} to {gain.after:.3g}",
    )  # fmt: skip


@cause(
    severity="warning",
    needs=("reward parts",),
    explains=("reward_hacking", "groups_too_easy", "length_collapse"),
    change="Scale the parts of the reward so that the answer outweighs the rest, or drop a part that is already full.",
    test="",
)
def component_dominates(log: Log) -> Clue | None:
    """One part of the reward drowns the others."""
    parts = log.parts
    if len(parts) < 2:
        return None
    moved = {name: part.end - part.begin for name, part in parts.items()}
    total = sum(map(abs, moved.values()))
    name = max(moved, key=lambda one: abs(moved[one]))
    if total == 0 or abs(moved[name]) < RULES * total or _ANSWER.search(name):
        return None
    others = set(parts) - {name}
    part = parts[name]
    step = part.left("up" if part.end > part.begin else "down")
    return Clue.of(
        "sign", sure(abs(moved[name]) / total / RULES, 0.75), "step.reward", step, part.end, part.begin,
        f"{100 * abs(moved[name]) / total:.0f} % of what the reward gained is '{name}' ({part.begin:.3g} -> {part.end:.3g}); "
        f"{', '.join(sorted(others))} hardly moved",
    )  # fmt: skip


@cause(
    severity="info",
    needs=("reward",),
    change="Look at what is left to learn: harder prompts, larger groups, a higher learning rate; or stop here.",
    test="--set learn.policy.lr=2e-6",
)
def plateau(log: Log) -> Clue | None:
    """The reward has stopped rising."""
    score = log.curve("reward")
    if score is None or score.reached >= 0.85:
        return None
    levels = [score.level(a, a + 0.12) for a in (0.4, 0.52, 0.64, 0.76, 0.88)]
    least = max(3 * score.error, 0.05 * (score.high - score.low))
    if score.steps[-1] - score.steps[0] < FLAT or max(levels) - min(levels) > least:
        return None
    risen = score.end - score.begin > 4 * score.error
    step = score.left("up", 0.9) if risen else int(score.steps[0])
    return Clue.of(
        "pattern", 0.5, "step.success", step, score.end, score.begin,
        f"since step {step} the reward has stayed at {score.end:.3g}, and nothing else in the log moved before",
    )  # fmt: skip
