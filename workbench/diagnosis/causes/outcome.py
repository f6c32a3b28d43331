"""What is paid and what is written, as the scalars of any trainer show it: groups, length, rewards, plateau."""

import re

import numpy as np

from workbench.diagnosis.curve import Curve, outcome, sure, told
from workbench.diagnosis.finding import Clue, scalar
from workbench.diagnosis.log import Log

IDLE, STUCK = 0.7, 0.6  # of the groups without an advantage, at the end: all right, all wrong
GROUP = 8  # rollouts of a prompt, where nobody says how many
EASY, HARD = 0.7, 0.3  # of the range of the reward
TIMES, PADDED = 1.8, 2.5  # x the length of the start: where the reward pays for it, and where it does not
BARELY = 0.1  # of the range of the score
SHORT = 0.4  # of the length of the start
CUT, LIMIT = 0.12, 0.2  # of the answers: where fewer were cut before, and where it was so from the start
LOSS = 0.05  # of the range of the evaluation
RULES = 2 / 3  # of what moves the reward
LATE = 1 / 6  # of what the reward gained in all, from the first third of the run to its end
STILL = 0.04  # of its range, that a reward which learns gains in FLAT steps
FULL = 0.85  # of its range, from which on a reward has little left to gain
FLAT = 100  # steps, below which a flat reward says nothing
# Parts of the reward that are about the answer, and parts that are about its form, by the words of their names.
_ANSWER = re.compile(r"correct|acc|answer|outcome|exact|(^|_)em($|_)|f1|solve|success|task|result|pass|verif")
_FORM = re.compile(r"form|len|brev|style|tag|think|xml|json|struct|repeti|lang|tool|turn|penalty|bonus")


@scalar(
    severity="warning",
    needs=("reward",),
    change="Sample harder prompts, or drop solved groups and draw others (dynamic sampling).",
    test="",
)
def groups_too_easy(log: Log) -> Clue | None:
    """Most groups are all right: they give no gradient."""
    return _groups(log, easy=True)


@scalar(
    needs=("reward",),
    explains=("component_dominates",),
    change="Start from easier prompts or a better model, draw larger groups, or give partial reward.",
    test="",
)
def groups_too_hard(log: Log) -> Clue | None:
    """Most groups are all wrong: they give no gradient."""
    return _groups(log, easy=False)


def _groups(log: Log, easy: bool) -> Clue | None:
    reward = log.curve("reward")
    if reward is None or not (reward.reached > EASY if easy else reward.reached < HARD):
        return None
    seen = log.idle
    if seen is None and (not reward.bounded or log.parts):
        return None
    idle = seen or _least_idle(reward, log.settings.get("learn.group_size"))
    if idle.end < (IDLE if easy else STUCK):
        return None
    step = idle.left("up") if idle.end - idle.begin > 4 * idle.error else int(idle.steps[0])
    what, how = "all right" if easy else "all wrong", "have" if seen else "must have"
    return Clue.of(
        "sign" if seen else "pattern", sure(idle.end / (IDLE if easy else STUCK), 0.8 if seen else 0.7), "step.zero_advantage_frac", step,
        idle.end, idle.begin,
        f"from step {step} on {100 * idle.end:.0f} % of the groups {how} one reward for all rollouts, at a mean reward of "
        f"{reward.end:.3g}: they are {what} and give no gradient{_unchecked(log) if easy else ''}",
    )  # fmt: skip


def _unchecked(log: Log) -> str:
    return "" if log.columns("evaluation") else "; without an evaluation, a reward that is hacked looks the same"


def _least_idle(reward: Curve, size: object) -> Curve:
    """The smallest share of idle groups that a mean reward allows: p^n + (1 - p)^n, of equal prompts (Jensen)."""
    n = float(size) if isinstance(size, int | float) and size > 1 else GROUP
    low = min(0.0, -1.0 if float(reward.values.min()) < -0.01 else 0.0)
    p = np.clip((reward.values - low) / (1 - low), 0, 1)
    return Curve(reward.steps, p**n + (1 - p) ** n)


@scalar(
    needs=("length",),
    explains=("truncation", "reward_hacking", "kl_blowup", "groups_too_easy"),
    change="Pay nothing for length: normalise by a constant length, mask what the limit cuts, and judge by evaluation.",
    test="sorl eval {run}",
)
def length_hacking(log: Log) -> Clue | None:
    """Answers grow longer because length is paid."""
    if (length := log.curve("length")) is None or length.end < TIMES * length.begin:
        return None
    step = length.left("up")
    real = log.curve("evaluation") or log.curve("reward")
    paid = log.outcome(step)
    if real is None or paid is None:
        return None
    known = outcome(real, step)
    gained = (known.after - known.before) / max(real.span, 1e-12)
    pays = log.curve("evaluation") is not None and known.change <= 0 < paid.change
    cut = log.curve("step.truncated_frac")
    if not pays and (length.end < PADDED * length.begin or gained > BARELY or (cut is not None and cut.end > CUT)):
        return None  # answers that run into the limit fail for that
    return Clue.of(
        "sign" if pays else "pattern", sure(length.end / length.begin / TIMES, 0.75 if pays else 0.65),
        "step.response_tokens", step, length.end, length.begin,
        f"from step {step} on answers grow from {length.begin:.0f} to {length.end:.0f} tokens"
        + (f" and the reward with them ({paid.before:.3g} -> {paid.after:.3g})" if pays else "")
        + f", while the {'evaluation' if log.curve('evaluation') else 'reward'} gains next to nothing "
        f"({known.before:.3g} -> {known.after:.3g})",
    )  # fmt: skip


@scalar(
    needs=("step.truncated_frac",),
    explains=("groups_too_hard", "length_hacking"),
    change="Raise the token limit, leave truncated answers out of the loss, or penalise length softly before the limit.",
    test="--set world.max_turns=8",
)
def truncation(log: Log) -> Clue | None:
    """Answers run into the token limit."""
    if (cut := log.curve("step.truncated_frac")) is None or cut.end < CUT or cut.end < min(3 * cut.begin, LIMIT):
        return None
    step = cut.left("up")
    return Clue.of(
        "sign", sure(cut.end / CUT, 0.7), "step.truncated_frac", step, cut.end, cut.begin,
        f"from step {step} on {100 * cut.end:.0f} % of the answers end at the token limit, {100 * cut.begin:.1f} % at the "
        f"start{told(log.outcome(step))}",
    )  # fmt: skip


@scalar(
    needs=("length",),
    explains=("entropy_collapse", "groups_too_hard"),
    change="Look at answers from before and after this step; drop penalties on length, and pay for what the steps show.",
    test="sorl show {run}",
)
def length_collapse(log: Log) -> Clue | None:
    """Answers shrink to next to nothing."""
    if (length := log.curve("length")) is None or length.end > SHORT * length.begin:
        return None
    step = length.left("down")
    score = log.outcome(step)
    if score is not None and (score.solved or (score.change > 0 and length.end > SHORT / 3 * length.begin)):
        return None
    return Clue.of(
        "sign", sure(SHORT * length.begin / max(length.end, 1e-9), 0.7), "step.response_tokens", step, length.end,
        length.begin,
        f"from step {step} on answers shrink from {length.begin:.0f} to {length.end:.0f} tokens{told(score)}",
    )  # fmt: skip


@scalar(
    needs=("reward", "evaluation"),
    explains=("kl_blowup", "entropy_collapse", "groups_too_easy", "length_collapse", "component_dominates"),
    change="Read the best-paid answers from after this step; fix what the reward takes for right, or stop at the best "
    "evaluation.",
    test="sorl eval {run}",
)
def reward_hacking(log: Log) -> Clue | None:
    """The training reward rises and the evaluation falls."""
    paid, real = log.curve("reward"), log.curve("evaluation")
    if paid is None or real is None:
        return None
    width = max(3, len(real) // 10)
    means = np.convolve(real.values, np.full(width, 1 / width), "valid")
    best, end = int(means.argmax()), float(means[-1])
    step = int(real.steps[best + width // 2])
    lost, gain = float(means[best]) - end, outcome(paid, step)
    if lost < max(5 * real.noise / np.sqrt(width), LOSS * real.span) or not (gain.change > 0 or gain.solved):
        return None
    return Clue.of(
        "sign", sure(lost / (LOSS * real.span), 0.75), "step.heldout_success", step, end, float(means[best]),
        f"from step {step} on the evaluation falls from {means[best]:.3g} to {end:.3g}, while the training reward goes from "
        f"{gain.before:.3g} to {gain.after:.3g}",
    )  # fmt: skip


@scalar(
    severity="warning",
    needs=("reward parts",),
    explains=("reward_hacking", "groups_too_easy", "length_collapse"),
    change="Scale the parts of the reward so that the answer outweighs the rest, or drop a part that is already full.",
    test="",
)
def component_dominates(log: Log) -> Clue | None:
    """One part of the reward drowns the others."""
    parts, reward = log.parts, log.curve("reward")
    if len(parts) < 2 or reward is None:
        return None
    moved = {name: part.end - part.begin for name, part in parts.items()}
    total, gain = sum(map(abs, moved.values())), reward.end - reward.begin
    if not total or abs(sum(moved.values()) - gain) > abs(gain) / 2 + 4 * reward.error:
        return None  # they are not what the reward is made of
    answers = [name for name in parts if _ANSWER.search(name)]
    name = max(moved, key=lambda one: abs(moved[one]))
    starved = bool(answers) and all(moved[one] < -4 * parts[one].error for one in answers) and moved[name] > 0
    if name in answers or not (answers or _FORM.search(name)) or (abs(moved[name]) < RULES * total and not starved):
        return None
    others = {*parts} - {name}
    part = parts[name]
    step = part.left("up" if part.end > part.begin else "down")
    return Clue.of(
        "sign", sure(abs(moved[name]) / total / RULES, 0.75), "step.reward", step, part.end, part.begin,
        f"{100 * abs(moved[name]) / total:.0f} % of what the reward gained is '{name}' ({part.begin:.3g} -> {part.end:.3g}); "
        f"{', '.join(sorted(others))} hardly moved",
    )  # fmt: skip


@scalar(
    severity="info",
    needs=("reward",),
    change="Look at what is left to learn: harder prompts, larger groups, a higher learning rate; or stop here.",
    test="--set learn.policy.lr=2e-6",
)
def plateau(log: Log) -> Clue | None:
    """The reward has stopped rising."""
    reward = log.curve("reward")
    if reward is None or (reward.bounded and reward.reached >= FULL) or reward.steps[-1] - reward.steps[0] < FLAT:
        return None
    (start, _), (early, error), (end, error_end) = (reward.mean(*part) for part in ((0, 0.05), (0.2, 0.35), (0.8, 1)))
    error = 4 * max(np.hypot(error, error_end), reward.error)
    gained, late = end - start, end - early
    risen = gained > error
    if risen and not -2 * LATE * gained < late < LATE * gained:
        return None
    if not risen and (error > 0.1 * reward.span or max(abs(gained), abs(late)) > STILL * reward.span):
        return None  # a gain that noise may hide
    step = reward.left("up", 0.8) if risen else int(reward.steps[0])
    how = f"has stayed at {end:.3g}, with all that it gained before" if risen else f"has not moved from {end:.3g}"
    return Clue.of("pattern", 0.5, "step.reward", step, end, start, f"since step {step} the reward {how}")
