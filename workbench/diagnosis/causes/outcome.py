"""What is paid and what is written, as the scalars of any trainer show it: groups, length,
evaluation, parts.
"""

import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sorl.diagnosis.changepoint import CLEAR, Curve, Evidence, Level, Outcome, reward_after, sure
from sorl.diagnosis.finding import Clue, rows_in_words, scalar
from sorl.diagnosis.log import PART, Log

# of the groups without an advantage: all right, all wrong
IDLE = 0.7
STUCK = 0.6
# of the range of the reward
EASY = 0.7
HARD = 0.3
TOKENS = "tokens"
GROUP = 8  # rollouts of a prompt, where nobody says how many
# x the length of the start, where the reward pays for it and where it does not
GROWN = 1.8
PADDED = 2.5
BARELY = 0.1  # of the range of a score, that it gains
SHORT = 0.4  # of the length of the start
# of the answers: where fewer were cut at the start, and where it was always so
CUT = 0.12
LIMIT = 0.2
ALL_CUT = 0.9  # of the answers in every row: where it matters however few the rows are
FALLEN = 0.75  # of the share of cut answers at the start, below which it falls by itself
CEILING = 0.95  # of the greatest length, at which answers are pinned
PINNED_FROM = 0.67  # of it, below which they were at first
DEAD_ROWS = 20
DEAD_SHARE = 0.8  # of the rows, in which such a part is at its floor
LITTLE = 0.02  # of the range of the reward, that such a part pays on average
LOST = 0.05  # of the range of the evaluation
RULES = 2 / 3  # of all that moved the reward
LATE = 1 / 5  # of what the reward gained in all: what it gains from the first third of the run on
STILL = 0.05  # of its range, that a reward which learns gains in FLAT steps
FULL = 0.85  # of its range, beyond which a reward has little left to gain
FLAT = 100  # steps
FELL = ("mild", "collapsed", "recovered", "falling", "diverged")  # outcomes
# Parts of the reward that are about the answer, and parts that are about its form, by the words of their
# names.
_ANSWER = re.compile(
    r"correct|acc|answer|outcome|exact|(^|_)em($|_)|(^|_)env($|_)|f1|solve|success|task|result|pass|verif"
)
_FORM = re.compile(r"form|len|brev|style|tag|think|xml|json|struct|repeti|lang|tool|turn|penalty|bonus")


def _all_solved(log: Log) -> Clue | None:
    """Find in a short log that every group has the best reward."""
    return _all_idle(log, 1.0)


def _all_failed(log: Log) -> Clue | None:
    """Find in a short log that every group has a reward of zero."""
    return _all_idle(log, 0.0)


def _all_idle(log: Log, reward: float) -> Clue | None:
    idle = log.series("step", "zero_advantage_frac")
    rewards = log.series("step", "reward")
    if idle.empty or rewards.empty or float(idle.min()) < 1 or not (rewards == reward).all():
        return None
    step = int(idle.index[0])
    rows = rows_in_words(len(idle), len(idle))
    shown = Evidence("step.zero_advantage_frac", step, float(idle.iloc[0]), 0.0)
    says = f"in {rows} all rollouts of every group have the reward {reward:g}: they give no gradient"
    return Clue("sign", 0.7, step, says, (shown,), from_the_start=True)


def _all_cut(log: Log) -> Clue | None:
    """Find in a short log that nearly every answer is cut."""
    cut = log.series("step", "truncated_frac")
    if cut.empty or float(cut.min()) < ALL_CUT:
        return None
    step = int(cut.index[0])
    share = "all answers" if cut.min() == 1 else f"at least {100 * cut.min():.0f} % of the answers"
    says = f"{share} end at the token limit in {rows_in_words(len(cut), len(cut))}"
    shown = Evidence("step.truncated_frac", step, float(cut.iloc[0]), 0.0)
    return Clue("sign", 0.7, step, says, (shown,), from_the_start=True)


@scalar(
    "reward",
    severity="warning",
    rewarded=True,
    when_short=_all_solved,
    change="Sample harder prompts, or draw others in place of solved groups (dynamic sampling).",
    test=(
        "on harder prompts the share of groups without an advantage must fall, and the evaluation rise again"
    ),
    options=("sampling", "learn.group_size"),
)
def groups_too_easy(log: Log, reward: Curve) -> Clue | None:
    """Most groups are at the top of their reward: they give no gradient."""
    unchecked = (
        "" if log.columns("evaluation") else "; no evaluation is logged, and a hacked reward looks the same"
    )
    what = "all right" if reward.bounded else "all near the highest reward of this log"
    return None if reward.reached < EASY else _idle(log, reward, IDLE, what, unchecked)


@scalar(
    "reward",
    explains=("component_dominates",),
    when_short=_all_failed,
    change="Start from easier prompts or a better model, draw larger groups, or give partial reward.",
    test="on easier prompts, or in groups twice as large, the share of groups without an advantage must fall",
    options=("learn.group_size", "sampling"),
)
def groups_too_hard(log: Log, reward: Curve) -> Clue | None:
    """Most groups are at the bottom of their reward: they give no gradient."""
    what = "all wrong" if reward.bounded else "all near the lowest reward of this log"
    return None if reward.reached > HARD else _idle(log, reward, STUCK, what)


@scalar(
    "reward",
    severity="warning",
    rewarded=True,
    change=(
        "Bring the variety back: a checkpoint from before this step, a small entropy bonus or a higher upper"
        " clip bound, larger groups, a lower learning rate."
    ),
    test="the share of groups without an advantage must fall, and the entropy must not",
    options=("learn.group_size", "sampling"),
)
def groups_agree(log: Log, reward: Curve) -> Clue | None:
    """The rollouts of a prompt have become alike: whole groups are right or wrong, and give no gradient."""
    if not HARD < reward.reached < EASY:
        return None
    idle = _idle_share(log)
    if idle is None or idle.end < IDLE or idle.end - idle.begin <= CLEAR * idle.error:
        return None
    what = "in some groups every rollout succeeds and in the others none, as if a prompt had one answer"
    return _idle_clue(idle, reward, IDLE, "", f"{what}; they give no gradient{_entropy_beside(log)}")


def _entropy_beside(log: Log) -> str:
    """How the entropy goes meanwhile, where it is logged and has fallen."""
    entropy = log.curve("step.entropy")
    if entropy is None or entropy.begin - entropy.end <= CLEAR * entropy.error:
        return ""
    return f"; the entropy goes {entropy.course()} nats a token meanwhile"


def _idle_share(log: Log) -> Curve | None:
    """Share of the groups whose rollouts all have one reward: as logged, or those all right and those all
    wrong.
    """
    logged = log.curve("step.zero_advantage_frac")
    if logged is not None:
        return logged
    solved = log.series("step", "solved_group_frac")
    failed = log.series("step", "failed_group_frac")
    return Curve.of("step.solved_group_frac", (solved + failed).dropna())


def _idle(log: Log, reward: Curve, mark: float, what: str, more: str = "") -> Clue | None:
    idle = _idle_share(log)
    goes = ""
    if idle is None and (without := _without_spread(log)) is not None:
        idle, goes = without
    fell = (reward.begin - reward.floor) / reward.span > HARD and mark == STUCK
    # Of a reward alone that has fallen nothing says why; where the policy is logged too, its own causes come
    # first.
    bare = not any(
        log.columns(name) for name in ("step.entropy", "KL", "clip fraction", "minibatch.grad_norm")
    )
    if idle is not None:
        return _idle_clue(idle, reward, mark, goes, f"they are {what} and give no gradient{more}")
    if not reward.bounded or log.parts or (fell and bare):
        return None
    return _least_idle(log, reward, mark, f"{what} and give no gradient{more}")


def _least_idle(log: Log, reward: Curve, mark: float, what: str) -> Clue | None:
    """Return the clue of the smallest share of groups without an advantage that a mean reward p of right or
    wrong allows: p^n + (1 - p)^n of groups of n (Jensen).
    """
    size = log.settings.get("learn.group_size")
    is_known = isinstance(size, int | float) and size > 1
    n = float(size) if is_known else GROUP  # type: ignore[arg-type]

    def share(level: float | np.ndarray) -> float | np.ndarray:
        p = np.clip((level - reward.floor) / reward.span, 0, 1)
        return p**n + (1 - p) ** n

    idle = Curve(reward.column, reward.steps, np.asarray(share(reward.values)))
    if idle.end < mark:
        return None
    rises = idle.end - idle.begin > CLEAR * idle.error
    step = idle.left("up") if rises else int(idle.steps[0])
    goes = f"is {reward.end_level}"
    if rises:
        goes = f"goes {reward.course()}, clearly from step {step} on"
    assumed = "" if is_known else f" (groups of {n:g} are assumed)"
    says = f"the mean reward {goes}: of groups of {n:g} rollouts that are right or wrong, at least"
    says += (
        f" {100 * share(reward.end):.3g} % then have one reward for all rollouts{assumed}: they are {what}"
    )
    return Clue.of("pattern", sure(idle.end / mark, 0.7), reward.shown(step), says)


def _idle_clue(idle: Curve, reward: Curve, mark: float, goes: str, what: str) -> Clue | None:
    """Return the clue of a share of groups without an advantage that ends above a mark; `goes` says how it
    goes, by default as the curve does.
    """
    if idle.end < mark:
        return None
    rises = idle.end - idle.begin > CLEAR * idle.error
    step = idle.left("up") if rises else int(idle.steps[0])
    since = f", clearly from step {step} on" if rises else ""
    if not goes:
        goes = "the share of groups that have one reward for all rollouts "
        goes += f"rises {idle.course('%')}" if rises else f"is {idle.end_level.text('%')}"
    says = f"{goes}{since}, at a mean reward of {reward.end_level}: {what}"
    return Clue.of("sign", sure(idle.end / mark, 0.8), idle.shown(step), says)


class _Spread(NamedTuple):
    """In which steps all rollouts had one reward: the share of the steps before each, and how many there are
    at the start and at the end, in words.
    """

    share: Curve
    says: str


def _without_spread(log: Log) -> _Spread | None:
    """Return where all rollouts of a step had one reward, if their deviation is logged and is often 0: then a
    step has few groups.
    """
    spread = log.series("step", "reward_std")
    if spread.empty or not (spread == 0).any():
        return None
    width = max(8, len(spread) // 10)
    is_zero = spread == 0
    share = Curve.of("step.reward_std", is_zero.astype(float).rolling(width, min_periods=1).mean())
    if share is None:
        return None
    last = int(is_zero.iloc[-width:].sum())
    says = f"all rollouts have one reward in {last} of the last {width} rows"
    return _Spread(share, says)


@scalar(
    "answer length",
    "reward",
    explains=("truncation", "reward_hacking", "kl_blowup", "groups_too_easy"),
    rewarded=True,
    change="Pay nothing for length: normalise by a constant length, and choose the checkpoint by evaluation.",
    test=(
        "score answers of before and after this step that are cut to one length: the longer ones must be no"
        " better"
    ),
    options=("world.max_response_tokens", "reward parts"),
)
def length_hacking(log: Log, length: Curve, reward: Curve) -> Clue | None:
    """Answers grow longer without getting better."""
    heldout = log.curve("evaluation")
    least = length.least()
    growth = length.end / max(least.value, 1e-9)
    if growth < GROWN:
        return None
    step = length.left("up", since=least)
    judge = heldout or reward
    paid = Outcome.of(reward, step)
    real = Outcome.of(judge, step)
    gained = real.gain / judge.span
    says = f"answers grow {length.course(TOKENS, least)}, clearly from step {step} on"
    gains = "falls" if real.change < 0 else "gains next to nothing"
    gains += f", from {real.before} to {real.after}"
    shown = length.shown(step, least.value)
    if heldout is not None and paid.change > 0 >= real.change and 3 * gained < paid.gain / reward.span:
        says += (
            f", and the reward with them, from {paid.before} to {paid.after}, while the evaluation {gains}"
        )
        return Clue.of("sign", sure(growth / GROWN, 0.75), shown, says)
    if gained > BARELY or growth < PADDED or _runs_into_limit(log):
        return None
    says += f", while the {'evaluation' if heldout else 'reward'} {gains}"
    return replace(Clue.of("pattern", sure(growth / GROWN, 0.65), shown, says), severity="warning")


def _runs_into_limit(log: Log) -> bool:
    """Whether answers end at the token limit: they fail for that, not for being padded."""
    cut = log.curve("step.truncated_frac")
    return cut is not None and cut.end > CUT


@scalar(
    "step.truncated_frac",
    explains=("groups_too_hard", "length_hacking"),
    when_short=_all_cut,
    change=(
        "Raise the token limit, leave truncated answers out of the loss, or penalise length before the limit."
    ),
    test="with twice the token limit the share of truncated answers must fall and the reward rise",
    options=("world.max_response_tokens", "truncated"),
)
def truncation(log: Log, cut: Curve) -> Clue | None:
    """Answers run into the token limit."""
    falls = cut.end < FALLEN * cut.begin or cut.begin - cut.end > max(0.1 * cut.begin, CLEAR * cut.error)
    if cut.end < max(CUT, min(3 * cut.begin, LIMIT)) or falls:
        return None
    rises = cut.end - cut.begin > max(0.1 * cut.begin, CLEAR * cut.error)
    step = cut.left("up") if rises else int(cut.steps[0])
    limit = log.settings.get("world.max_response_tokens")
    bound = f" of {limit:,}" if isinstance(limit, int) else ""
    goes = f"is {cut.start_level.text('%')} at the start and {cut.end_level.text('%')} at the end"
    if rises:
        goes = f"rises {cut.course('%')}, clearly from step {step} on"
    says = f"the share of answers that end at the token limit{bound} {goes}{reward_after(log.outcome(step))}"
    return Clue.of("sign", sure(cut.end / CUT, 0.7), cut.shown(step), says)


@scalar(
    "answer length",
    "reward",
    explains=("groups_too_hard", "length_hacking", "component_dominates"),
    change="Raise the token limit, or penalise length before it; log the share of truncated answers.",
    test="with twice the token limit the answers must grow on, and the reward rise",
    options=("world.max_response_tokens", "truncated"),
)
def length_ceiling(log: Log, length: Curve, reward: Curve) -> Clue | None:
    """Answers have reached a ceiling of their length: they are cut at the token limit."""
    if log.curve("step.truncated_frac") is not None:
        return None  # which says so itself
    top = float(np.quantile(length.values, 0.99))
    pinned = length.end > CEILING * top and length.begin < PINNED_FROM * top
    step = length.left("up", 0.8)
    grows = length.left("up")
    score = Outcome.of(reward, grows)
    if not pinned or score.change >= 0:
        return None
    limit = f"they are never above {top:.0f}"
    if top < length.values.max():
        limit = f"in 99 % of all rows they are at most {top:.0f}"
    says = f"answers grow {length.course(TOKENS)} and stay there since step {step}: {limit}, which looks like"
    says += f" the token limit; they grow clearly from step {grows} on{reward_after(score)}"
    return Clue.of("sign", 0.8, length.shown(step), says)


@scalar(
    "reward",
    "reward parts",
    severity="warning",
    explains=("groups_too_hard", "groups_too_easy", "component_dominates"),
    rewarded=True,
    change=(
        "Check what that part of the reward compares; start from easier prompts, or pay for partial answers."
    ),
    test="score a right answer by hand with that part of the reward: it must be paid",
    options=("reward parts",),
)
def dead_reward_part(log: Log, reward: Curve, _: Curve) -> Clue | None:
    """A part of the reward hardly ever pays."""
    curves = {column: log.curve(column) for column in sorted(log.columns("reward parts"))}
    known = {column: curve for column, curve in curves.items() if curve is not None}
    moving = {column for column, curve in known.items() if np.ptp(curve.values) > 0}
    for column, part in known.items():
        name = column.split(PART, 1)[1]
        floor = _floor_of_dead(part, reward) if moving - {column} else ""
        if not floor:
            continue
        says = f"the part '{name}' of the reward is {floor}: it gives next to no signal, and whatever is"
        says += " learned comes from other parts"
        shown = part.shown(int(part.steps[0]))
        if _ANSWER.search(name):
            return replace(Clue.of("sign", 0.9, shown, says), severity="critical")
        return Clue.of("sign", 0.8, shown, says)
    return None


def _floor_of_dead(part: Curve, reward: Curve) -> str:
    """Return where a part of the reward lies that hardly ever pays, in words; empty of any other part."""
    floor = float(part.values.min())
    most = float(part.values.max())
    at_floor = int((part.values == floor).sum())
    pays = float(part.values.mean()) - floor > LITTLE * reward.span
    if len(part) < DEAD_ROWS or at_floor < DEAD_SHARE * len(part) or floor > 0 or pays:
        return ""
    if at_floor == len(part):
        return f"{floor:g} in all {len(part):,} rows"
    return f"{floor:g} in {at_floor:,} of {len(part):,} rows and never above {most:.3g}"


@scalar(
    "answer length",
    explains=("entropy_collapse", "groups_too_hard"),
    change=(
        "Read answers of before and after this step; drop penalties on length, and pay for what the steps"
        " show."
    ),
    test="without a penalty on length, from a checkpoint before this step, the length must hold",
    options=("reward parts",),
)
def length_collapse(log: Log, length: Curve) -> Clue | None:
    """Answers shrink to next to nothing."""
    step = length.left("down")
    score = log.outcome(step)
    better = score is not None and (
        score.solved or (score.change > 0 and length.end > SHORT / 3 * length.begin)
    )
    if better or length.begin <= 0 or length.end > SHORT * length.begin:
        return None
    says = f"answers shrink {length.course(TOKENS)}, clearly from step {step} on{reward_after(score)}"
    certain = sure(SHORT * length.begin / max(length.end, 1e-9), 0.7)
    return Clue.of("sign", certain, length.shown(step), says)


@scalar(
    "reward",
    "evaluation",
    explains=("kl_blowup", "entropy_collapse", "groups_too_easy", "length_collapse", "component_dominates"),
    rewarded=True,
    change=(
        "Read the best-paid answers of after this step, mend what the reward takes for right, and go back to"
        " the checkpoint of the best evaluation."
    ),
    test="score the best-paid answers of a late step by hand: most of them must be wrong",
    options=("slots.kl.beta", "reward parts"),
)
def reward_hacking(log: Log, reward: Curve, heldout: Curve) -> Clue | None:
    """The training reward rises and the evaluation falls."""
    width = max(3, len(heldout) // 10)
    means = heldout.series.rolling(width, center=True).mean().dropna()
    step = int(means.index[int(means.argmax())])
    best = float(means.max())
    end = float(means.iloc[-1])
    paid = Outcome.of(reward, step)
    least = max(5 * heldout.noise / np.sqrt(width), LOST * heldout.span)
    if best - end < (least if paid.change > 0 or paid.solved else 2 * least) or paid.change < 0:
        return None
    top = _level_around(heldout, step, width)
    says = f"the evaluation falls {heldout.course(since=top)}, while the training reward goes from"
    certain = sure((best - end) / (LOST * heldout.span), 0.75)
    shown = Evidence(heldout.column, step, end, best)
    return Clue.of("sign", certain, shown, f"{says} {paid.before} to {paid.after}")


def _level_around(score: Curve, step: int, width: int) -> Level:
    """Return the median of so many points around a step."""
    middle = int(np.searchsorted(score.steps, step))
    around = slice(max(0, middle - width // 2), middle + width // 2 + 1)
    return Level.of(score.steps[around], score.values[around])


@scalar(
    "reward",
    "reward parts",
    severity="warning",
    explains=("reward_hacking", "groups_too_easy", "length_collapse"),
    rewarded=True,
    change=(
        "Scale the parts of the reward so that the answer outweighs the rest, or drop a part that is already"
        " full."
    ),
    test="with a tenth of that part's weight the part about the answer must rise",
    options=("reward parts",),
)
def component_dominates(log: Log, reward: Curve, _: Curve) -> Clue | None:
    """One part of the reward drowns the answer."""
    parts = log.parts
    moved = {name: part.end - part.begin for name, part in parts.items()}
    total = sum(map(abs, moved.values()))
    gain = reward.end - reward.begin
    if len(parts) < 2 or not total or abs(sum(moved.values()) - gain) > abs(gain) / 2 + CLEAR * reward.error:
        return None  # they are not what the reward is made of
    answers = [name for name in parts if _ANSWER.search(name)]
    first = max(moved, key=lambda name: abs(moved[name]))
    share = abs(moved[first]) / total
    part = parts[first]
    starved = bool(answers) and all(moved[name] < -CLEAR * parts[name].error for name in answers)
    if moved[first] <= 0 or first in answers or not (answers or _FORM.search(first)):
        return None
    if share < RULES and not starved:
        return None
    step = part.left("up")
    rest = ", ".join(f"'{name}' by {moved[name]:+.2g}" for name in sorted({*parts} - {first}))
    says = f"from the first tenth of the run to the last the part '{first}' moves the reward by"
    says += f" {moved[first]:+.2g}, clearly from step {step} on, and {rest}"
    return Clue.of("sign", sure(share / RULES, 0.75), part.shown(step), says)


@scalar(
    "reward",
    severity="info",
    residual=True,
    change=(
        "Look at what is left to learn: harder prompts, larger groups, a higher learning rate; or stop here."
    ),
    test="twice the learning rate, or other prompts, from the last checkpoint must move the reward",
    options=("learn.policy.lr", "learn.group_size"),
)
def plateau(log: Log, reward: Curve) -> Clue | None:
    """The reward has stopped rising."""
    if reward.steps[-1] - reward.steps[0] < FLAT or (reward.bounded and reward.reached >= FULL):
        return None
    if log.run.get("outcome") in FELL:
        return None  # a fall is no plateau
    scores = [log.curve("evaluation"), *(part for name, part in log.parts.items() if _ANSWER.search(name))]
    gains = _gains(reward)
    risen = gains.whole > max(gains.error, STILL * reward.span)
    if risen and not -2 * LATE * gains.whole < gains.late < LATE * gains.whole:
        return None
    is_learning = any(_gains(score).goes_on for score in scores if score is not None)
    if abs(reward.end - float(reward.part(0.8, 1).mean())) > gains.error or is_learning:
        return None  # it still moves, or what it is for does
    largest = max(abs(gains.whole), abs(gains.late))
    if not risen and (gains.error > 0.1 * reward.span or largest > STILL * reward.span):
        return None  # a gain that noise may hide
    step = reward.left("up", 0.8) if risen else int(reward.steps[0])
    if risen:
        reached = reward.around(step)[1]
        says = f"the reward has hardly moved since step {step}: {reached}, then {reward.end_level}"
    else:
        says = f"the reward has not moved: {reward.start_level}, then {reward.end_level}"
    return Clue.of("pattern", 0.5, reward.shown(step), says)


class _Gains(NamedTuple):
    """What a score gains in all, what of it after the first third, and what may be noise."""

    whole: float
    late: float
    error: float

    @property
    def goes_on(self) -> bool:
        """Whether the score still rises after the first third."""
        return self.late > max(self.error, LATE * self.whole)


def _gains(score: Curve) -> _Gains:
    start = score.part(0, 0.05)
    early = score.part(0.2, 0.35)
    end = score.part(0.8, 1)
    noise = [float(part.std()) / np.sqrt(len(part)) for part in (early, end)]
    error = CLEAR * max(float(np.hypot(*noise)), score.error)
    return _Gains(float(end.mean() - start.mean()), float(end.mean() - early.mean()), error)
