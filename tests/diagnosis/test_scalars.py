"""Causes that a log of scalars shows: each is named first in a log that has it, and not in a healthy
look-alike.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.changepoint import Curve
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.log import Log
from sorl.diagnosis.rank import in_order
from sorl.diagnosis.report import text
from sorl.diagnosis.unanswered import not_looked_at

STEPS = 400
Columns = dict[str, np.ndarray]
Shape = Callable[[np.ndarray], np.ndarray]  # of the share of the run
Change = Callable[[Columns, np.ndarray, np.random.Generator], None]


def healthy(seed: int = 0, steps: int = STEPS) -> Columns:
    """A run that learns: reward and evaluation rise, entropy falls with them, KL and length grow gently."""
    draw = np.random.default_rng(seed)
    t = np.linspace(0, 1, steps)

    def noisy(curve: np.ndarray, sd: float) -> np.ndarray:
        return curve + sd * draw.normal(size=steps)

    skill = _skill(t)
    columns = {
        "step.reward_part_correct": noisy(skill, 0.03),
        "step.heldout_success": noisy(skill - 0.05, 0.02),
        "step.reward_part_format": 0.1 * noisy(0.98 - 0.3 * np.exp(-20 * t), 0.01),
        "step.entropy": np.abs(noisy(0.3 + 0.5 * np.exp(-1.5 * t), 0.02)),
        "step.kl_ref": np.abs(noisy(0.01 + 0.2 * t, 0.01)),
        "step.clip_frac": np.abs(noisy(0.02 + 0.02 * t, 0.005)),
        "step.approx_kl": np.abs(noisy(0.002 + 0 * t, 5e-4)),
        "step.response_tokens": noisy(400 + 150 * t, 20),
        "step.truncated_frac": np.abs(noisy(0.01 + 0 * t, 0.005)),
        "step.staleness": np.abs(noisy(1 + 0 * t, 0.2)),
        "step.zero_advantage_frac": np.clip(noisy(0.15 + 0.15 * t, 0.05), 0, 1),
        "step.explained_variance": noisy(0.2 + 0.4 * t, 0.05),
        "minibatch.grad_norm": 0.4 * np.exp(noisy(0 * t, 0.2)),
        "minibatch.mismatch": 0.005 * np.exp(noisy(0.2 * t, 0.1)),
        "minibatch.lr": 1e-6 * np.minimum(1, 20 * t + 0.01),
        "minibatch.value_loss": 0.1 * np.exp(noisy(-0.5 * t, 0.2)),
        "minibatch.non_finite": np.zeros(steps),
    }
    columns["step.reward"] = columns["step.reward_part_correct"] + columns["step.reward_part_format"]
    return columns


def _skill(t: np.ndarray) -> np.ndarray:
    return 0.2 + 0.5 * (1 - np.exp(-2 * t))


def log(columns: Columns, settings: dict[str, object] | None = None, **run: object) -> Log:
    """These columns as a log of scalars."""
    steps = np.arange(len(next(iter(columns.values()))))
    tables = {}
    for table in ("step", "minibatch"):
        kept = {key.split(".", 1)[1]: value for key, value in columns.items() if key.startswith(table)}
        tables[table] = pd.DataFrame({"step": steps, **kept})
    return Log("made", lambda table, step: tables.get(table, pd.DataFrame()), settings or {}, run)


def times(column: str, shape: Shape) -> Change:
    return lambda columns, t, draw: columns.update({column: columns[column] * shape(t)})


def plus(column: str, shape: Shape, sd: float = 0.0) -> Change:
    return lambda columns, t, draw: columns.update(
        {column: columns[column] + shape(t) + sd * draw.normal(size=len(t))}
    )


def level(column: str, shape: Shape, sd: float = 0.02) -> Change:
    return lambda columns, t, draw: columns.update({column: shape(t) + sd * draw.normal(size=len(t))})


def ramp(at: float, end: float, to: float, start: float = 0.0) -> Shape:
    """From `start` at a share of the run to another value at another share."""
    return lambda t: start + (to - start) * np.clip((t - at) / (end - at), 0, 1)


def grows(at: float, end: float, factor: float) -> Shape:
    """Multiply by a factor, evenly in the logarithm."""
    return lambda t: factor ** ramp(at, end, 1)(t)


def rewarded(shape: Shape, *names: str) -> Change:
    """Let reward and evaluation (or these) go another way; the parts of the reward are not logged."""

    def change(columns: Columns, t: np.ndarray, draw: np.random.Generator) -> None:
        for name in names or ("reward", "heldout_success"):
            columns[f"step.{name}"] = np.clip(shape(t) + 0.02 * draw.normal(size=len(t)), 0, 1)
        for name in ("step.reward_part_correct", "step.reward_part_format"):
            columns.pop(name, None)

    return change


def spikes(columns: Columns, t: np.ndarray, draw: np.random.Generator) -> None:
    columns["minibatch.grad_norm"][::25] *= 60


def falls(at: float) -> Change:
    """The reward goes to nothing from a share of the run on."""
    return rewarded(lambda t: _skill(t) * (1 - ramp(at, at + 0.2, 0.9)(t)))


def stays(at: float) -> Change:
    """The reward stays where it is at a share of the run."""
    return rewarded(lambda t: _skill(np.minimum(t, at)))


def parts(answer: Shape, form: Shape) -> Change:
    def change(columns: Columns, t: np.ndarray, draw: np.random.Generator) -> None:
        columns["step.reward_part_correct"] = answer(t) + 0.005 * draw.normal(size=len(t))
        columns["step.reward_part_format"] = form(t) + 0.01 * draw.normal(size=len(t))
        columns["step.reward"] = columns["step.reward_part_correct"] + columns["step.reward_part_format"]

    return change


def nan_from_step(columns: Columns, t: np.ndarray, draw: np.random.Generator) -> None:
    columns["minibatch.grad_norm"][t > 0.6] = np.nan
    columns["minibatch.non_finite"][t > 0.6] = 1


def pinned_length(columns: Columns, t: np.ndarray, draw: np.random.Generator) -> None:
    """Answers grow to a limit, and nobody logs how many are cut."""
    columns.pop("step.truncated_frac")
    columns["step.response_tokens"] = np.minimum(
        400 * grows(0.1, 0.5, 4)(t) + 10 * draw.normal(size=len(t)), 1024
    )


def dead_part(columns: Columns, t: np.ndarray, draw: np.random.Generator) -> None:
    """The part about the answer is 0 in every row."""
    columns["step.reward_part_correct"] = 0 * t
    columns["step.reward"] = columns["step.reward_part_format"]
    columns.pop("step.heldout_success")


# Cause -> logs that have it, and healthy ones that look like it; each is a list of changes to a healthy log.
LOGS: dict[str, tuple[list[list[Change]], list[list[Change]]]] = {
    "entropy_collapse": (
        [
            [times("step.entropy", grows(0.3, 0.6, 0.02)), stays(0.4)],
            [times("step.entropy", grows(0.5, 0.52, 0.05)), falls(0.6)],
        ],
        [
            [times("step.entropy", grows(0, 1, 0.4))],
            [times("step.entropy", grows(0, 1, 0.1)), rewarded(ramp(0, 0.9, 0.97, 0.3))],
        ],
    ),
    "entropy_explosion": (
        [
            [times("step.entropy", grows(0.5, 0.9, 6)), falls(0.6)],
            [times("step.entropy", grows(0.2, 1, 3.5)), stays(0.3)],
        ],
        [[times("step.entropy", grows(0, 1, 2))]],
    ),
    "clip_saturation": (
        [
            [plus("step.clip_frac", ramp(0.3, 0.6, 0.5), 0.02), stays(0.5)],
            [level("step.clip_frac", lambda t: 0.6 + 0 * t)],
        ],
        [[plus("step.clip_frac", ramp(0, 0.8, 0.1))]],
    ),
    "clip_idle": (
        [[times("step.clip_frac", lambda t: 0 * t), times("minibatch.mismatch", grows(0.2, 1, 12))]],
        [[times("step.clip_frac", lambda t: 0 * t), times("step.approx_kl", lambda t: 0 * t)]],
    ),
    "mismatch_grows": (
        [
            [times("minibatch.mismatch", grows(0.4, 1, 20))],
            [times("minibatch.mismatch", grows(0.6, 0.61, 8)), falls(0.7)],
        ],
        [
            [times("minibatch.mismatch", grows(0, 1, 1.8))],
            [times("minibatch.mismatch", lambda t: 1e-5 * grows(0.4, 1, 20)(t))],
        ],  # float32's rounding
    ),
    "kl_blowup": (
        [
            [plus("step.kl_ref", lambda t: 5 * t**3), stays(0.5)],
            [plus("step.kl_ref", ramp(0.5, 0.52, 3), 0.2), falls(0.55)],
        ],
        [[plus("step.kl_ref", ramp(0, 1, 0.5))]],
    ),
    "grad_spikes": (
        [[spikes, falls(0.3)]],
        [[spikes], [lambda columns, t, draw: columns["minibatch.grad_norm"].__setitem__(slice(50, 52), 9.0)]],
    ),
    "grad_explosion": (
        [[times("minibatch.grad_norm", grows(0.5, 1, 60)), falls(0.6)]],
        [[times("minibatch.grad_norm", grows(0, 1, 3))]],
    ),
    "groups_too_easy": (
        [[rewarded(ramp(0, 0.2, 0.97, 0.4)), level("step.zero_advantage_frac", ramp(0, 0.2, 0.85, 0.2))]],
        [[rewarded(ramp(0, 1, 0.9, 0.4)), level("step.zero_advantage_frac", ramp(0, 1, 0.6, 0.2))]],
    ),
    "groups_too_hard": (
        [[rewarded(lambda t: 0.02 + 0 * t), level("step.zero_advantage_frac", lambda t: 0.85 + 0 * t)]],
        [[rewarded(ramp(0, 1, 0.6, 0.05)), level("step.zero_advantage_frac", ramp(0, 1, 0.2, 0.75))]],
    ),
    "groups_agree": (
        [[rewarded(ramp(0, 0.2, 0.5, 0.4)), level("step.zero_advantage_frac", ramp(0.2, 0.6, 0.85, 0.2))]],
        [
            [rewarded(ramp(0, 1, 0.65, 0.3)), level("step.zero_advantage_frac", lambda t: 0.85 + 0 * t)],
            [rewarded(ramp(0, 1, 0.65, 0.3)), level("step.zero_advantage_frac", ramp(0.2, 0.6, 0.4, 0.2))],
        ],
    ),
    "length_hacking": (
        [
            [
                times("step.response_tokens", grows(0.1, 0.9, 3)),
                rewarded(ramp(0.1, 0.9, 0.95, 0.3), "reward"),
                rewarded(lambda t: 0.3 + 0 * t, "heldout_success"),
            ],
            [times("step.response_tokens", grows(0.1, 1, 4)), stays(0.02)],
        ],
        [[times("step.response_tokens", grows(0, 0.9, 2.2))]],
    ),
    "truncation": (
        [
            [
                times("step.response_tokens", grows(0.3, 0.9, 4)),
                plus("step.truncated_frac", ramp(0.5, 0.9, 0.5), 0.02),
                falls(0.6),
            ],
            [level("step.truncated_frac", lambda t: 0.35 + 0 * t)],
        ],
        [[plus("step.truncated_frac", ramp(0, 1, 0.08))]],
    ),
    "length_collapse": (
        [[times("step.response_tokens", grows(0.5, 0.55, 0.15)), falls(0.5)]],
        [[times("step.response_tokens", grows(0, 0.8, 0.45))]],
    ),
    "reward_hacking": (
        [
            [
                rewarded(ramp(0, 0.9, 0.95, 0.3), "reward"),
                rewarded(lambda t: np.minimum(0.3 + 0.5 * t, 0.6 - 0.3 * t), "heldout_success"),
            ]
        ],
        [[plus("step.heldout_success", ramp(0.2, 1, -0.08))]],
    ),
    "component_dominates": (
        [
            [parts(ramp(0, 1, 0.04, 0.02), ramp(0, 0.3, 0.95, 0.3))],
            [parts(ramp(0, 1, 0.2, 0.4), ramp(0, 0.6, 0.5))],
        ],
        [[parts(_skill, ramp(0, 0.1, 0.3, 0.1))]],
    ),
    "plateau": (
        [[rewarded(ramp(0, 0.15, 0.55, 0.2))], [rewarded(lambda t: 0.3 + 0 * t)]],
        [[stays(0.6)], [rewarded(ramp(0, 0.3, 0.95, 0.3))]],
    ),
    "staleness": (
        [
            [plus("step.staleness", ramp(0.4, 0.8, 12)), falls(0.6)],
            [plus("step.staleness", lambda t: 16 + 0 * t), falls(0)],
        ],
        [[plus("step.staleness", lambda t: 3 + 0 * t, 0.5)]],
    ),
    "critic_diverges": (
        [
            [times("minibatch.value_loss", grows(0.4, 0.5, 30)), falls(0.5)],
            [plus("step.explained_variance", ramp(0.3, 0.6, -1.5))],
        ],
        [[times("minibatch.value_loss", lambda t: 1 + 9 * ((t > 0.5) & (t < 0.53)))]],
    ),
    "dead_policy": (
        [
            [
                times("step.entropy", grows(0.3, 0.35, 1e-4)),
                times("minibatch.grad_norm", grows(0.3, 0.35, 1e-6)),
                stays(0.3),
            ]
        ],
        [[times("step.entropy", grows(0, 1, 0.4)), times("minibatch.grad_norm", grows(0, 1, 0.2))]],
    ),
    "no_update": (
        [[level("step.kl_ref", lambda t: 0.001 + 0 * t, 1e-4), rewarded(lambda t: 0.4 + 0 * t)]],
        [[level("step.kl_ref", lambda t: 0.001 + 0 * t, 1e-4)]],
    ),
    "zero_gradient": (
        [
            [
                times("minibatch.grad_norm", lambda t: 0 * t),
                times("step.kl_ref", lambda t: 0 * t),
                rewarded(lambda t: 0.4 + 0 * t),
            ]
        ],
        # Adapters of which no norm is taken: the KL moves.
        [[times("minibatch.grad_norm", lambda t: 0 * t)]],
    ),
    "unscaled_gradient": (
        [[times("minibatch.grad_norm", lambda t: 1e9 + 0 * t)]],
        [[times("minibatch.grad_norm", lambda t: 1e2 + 0 * t)]],
    ),
    "reference_mismatch": (
        [[plus("step.kl_ref", lambda t: 0.9 + 0 * t)]],
        [[plus("step.kl_ref", ramp(0, 0.3, 0.3))]],
    ),
    "length_ceiling": ([[pinned_length, falls(0.3)]], [[pinned_length]]),
    "dead_reward_part": ([[dead_part]], [[parts(lambda t: np.maximum(0, t - 0.1), ramp(0, 1, 0.2))]]),
    "not_finite": ([[nan_from_step, falls(0.6)]], [[]]),
}
SICK = [(cause, i) for cause, (sick, _) in LOGS.items() for i in range(len(sick))]
SOUND = [(cause, i) for cause, (_, sound) in LOGS.items() for i in range(len(sound))]


def made(changes: list[Change], seed: int = 0, steps: int = STEPS) -> Columns:
    columns = healthy(seed, steps)
    t = np.linspace(0, 1, steps)
    for change in changes:
        change(columns, t, np.random.default_rng(seed + 1))
    return columns


def names(columns: Columns, settings: dict[str, object] | None = None) -> list[str]:
    return [finding.cause.name for finding in diagnose(log(columns, settings)).findings]


SHORT = {
    "minibatch.grad_norm": [0.0, 0.0],
    "step.kl_ref": [0.0, 0.0],
    "step.reward": [0.3, 0.4],
    "step.zero_advantage_frac": [0.2, 0.1],
}


MOVING = {"minibatch.grad_norm": [0.3, 0.2], "step.kl_ref": [0.0, 0.001]}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ["zero_gradient"]),
        ({"step.zero_advantage_frac": [1.0, 1.0]}, []),
        ({"step.entropy": [0.0, 0.001]}, []),
        ({"step.kl_ref": [0.0, 0.002]}, []),
        ({"minibatch.grad_norm": [0.4, 0.0]}, []),
        ({"minibatch.grad_norm": [3e9, 2e9]}, ["unscaled_gradient"]),
        ({"minibatch.grad_norm": [300.0, 900.0]}, []),
        (MOVING | {"step.truncated_frac": [1.0, 0.95]}, ["truncation"]),
        (MOVING | {"step.truncated_frac": [1.0, 0.4]}, []),
        (MOVING | {"step.zero_advantage_frac": [1.0, 1.0], "step.reward": [0.0, 0.0]}, ["groups_too_hard"]),
        (MOVING | {"step.zero_advantage_frac": [1.0, 1.0], "step.reward": [1.0, 1.0]}, ["groups_too_easy"]),
        (MOVING | {"step.zero_advantage_frac": [1.0, 1.0], "step.reward": [0.3, 0.4]}, []),
        (MOVING | {"step.kl_ref": [3.0, 3.0]}, ["reference_mismatch"]),
    ],
)
def test_a_level_that_matters_whatever_the_noise_is_named_in_a_log_of_two_rows(
    changed: dict[str, list[float]], expected: list[str]
) -> None:
    columns = {name: np.array(values) for name, values in {**SHORT, **changed}.items()}
    findings = diagnose(log(columns)).findings
    assert [finding.cause.name for finding in findings] == expected
    assert all(finding.severity == "warning" for finding in findings)


def test_a_gradient_of_absurd_size_is_told_with_its_smallest_and_largest_norm() -> None:
    columns = {**SHORT, "minibatch.grad_norm": [3e9, 2e9]}
    (finding,) = diagnose(log({name: np.array(values) for name, values in columns.items()})).findings
    assert finding.clue.says.startswith("the gradient norm is 2e+09 to 3e+09 in 2 rows;")


def test_every_cause_of_scalars_has_a_log_here() -> None:
    assert {cause.name for cause in CAUSES if cause.scalar} <= set(LOGS)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("steps", [200, 2000])
@pytest.mark.parametrize(("cause", "i"), SICK)
def test_a_cause_is_named_first_however_long_the_log(cause: str, i: int, steps: int, seed: int) -> None:
    columns = made(LOGS[cause][0][i], seed, steps)
    assert names(columns)[:1] == [cause], names(columns)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("cause", "i"), SOUND)
def test_a_healthy_look_alike_has_no_finding(cause: str, i: int, seed: int) -> None:
    assert names(made(LOGS[cause][1][i], seed)) == []


@pytest.mark.parametrize("steps", [9, 40, 100, 200, 2000])
def test_a_healthy_log_of_any_length_has_no_finding_and_nor_has_its_beginning(steps: int) -> None:
    columns = healthy(3, steps)
    assert names(columns) == []
    assert names({name: values[: steps // 2 + 4] for name, values in columns.items()}) == []


# A log that begins late says nothing of the first step.
AT_ANY_STEP = [case for case in SICK if case[0] != "reference_mismatch"]


@given(st.sampled_from(AT_ANY_STEP), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_rows_the_number_of_the_first_step_and_gaps_change_nothing(
    case: tuple[str, int], draw
) -> None:
    columns = made(LOGS[case[0]][0][case[1]], 5)
    order = list(range(STEPS))
    draw.shuffle(order)
    holes = np.random.default_rng(draw.randrange(100)).uniform(size=STEPS) < 0.2
    tables = {}
    for table in ("step", "minibatch"):
        kept = {
            key.split(".", 1)[1]: np.where(holes & (key != "minibatch.non_finite"), np.nan, values)
            for key, values in columns.items()
            if key.startswith(table)
        }
        tables[table] = pd.DataFrame({"step": np.arange(STEPS) + 70_000, **kept}).iloc[order]
    found = diagnose(Log("made", lambda name, step: tables.get(name, pd.DataFrame()))).findings
    assert found[0].cause.name == case[0]
    assert found[0].clue.step >= 70_000


SCALED = {
    "entropy_collapse": "step.entropy",
    "entropy_explosion": "step.entropy",
    "mismatch_grows": "minibatch.mismatch",
    "grad_explosion": "minibatch.grad_norm",
    "length_collapse": "step.response_tokens",
    "critic_diverges": "minibatch.value_loss",
}


@given(st.sampled_from(sorted(SCALED)), st.floats(0.02, 50))
@settings(max_examples=25, deadline=None)
def test_what_is_judged_by_its_own_past_is_the_same_in_any_unit(cause: str, scale: float) -> None:
    for columns, first in ((made(LOGS[cause][0][0], 7), [cause]), (healthy(7), [])):
        columns |= {name: scale * columns[name] for name in SCALED.values()}
        assert names(columns)[:1] == first


def test_a_reward_in_other_units_is_judged_by_its_own_range() -> None:
    columns = healthy(2)
    for name in (
        "step.reward",
        "step.reward_part_correct",
        "step.reward_part_format",
        "step.heldout_success",
    ):
        columns[name] = 10 * columns[name] - 3
    assert names(columns) == []
    flat = made(LOGS["plateau"][0][0], 2)
    flat["step.reward"] = 10 * flat["step.reward"] - 3
    assert names(flat) == ["plateau"]


@pytest.mark.parametrize(("size", "found"), [(4, ["groups_too_hard"]), (32, [])])
def test_without_a_share_of_idle_groups_the_group_size_of_the_settings_says_how_many_there_are_at_least(
    size: int, found: list[str]
) -> None:
    columns = made([rewarded(lambda t: 0.25 - 0.2 * t)])
    del columns["step.zero_advantage_frac"], columns["step.heldout_success"]
    assert [name for name in names(columns, {"learn.group_size": size}) if name != "plateau"] == found


def test_spikes_that_change_nothing_are_named_only_where_few_were_seen_and_no_bound_is_known() -> None:
    columns = healthy()
    columns["minibatch.grad_norm"][[90, 180, 270]] *= 60
    (spiky,) = diagnose(log(columns)).findings
    assert (spiky.cause.name, spiky.clue.grade, spiky.clue.step) == ("grad_spikes", "pattern", 90)
    assert names(columns, {"learn.policy.max_grad_norm": 1.0}) == []


def test_a_consequence_ranks_behind_what_began_before_it_and_says_so() -> None:
    def both(kl: float, entropy: float) -> list[Change]:
        noise = times("step.entropy", grows(entropy, entropy + 0.2, 8))
        return [plus("step.kl_ref", ramp(kl, kl + 0.1, 4), 0.1), noise, falls(min(kl, entropy) + 0.1)]

    first, second, *_ = diagnose(log(made(both(kl=0.3, entropy=0.6)))).findings
    assert (first.cause.name, first.clue.grade) == ("kl_blowup", "sign")
    assert (second.cause.name, second.clue.grade) == ("entropy_explosion", "pattern")
    assert second.clue.confidence < first.clue.confidence
    assert names(made(both(kl=0.7, entropy=0.2)))[:2] == ["entropy_explosion", "kl_blowup"]


def test_a_curve_dates_a_cause_no_closer_than_a_tenth_of_the_log() -> None:
    columns = made(LOGS["kl_blowup"][0][1])
    for onset, first in ((195, "likely cause"), (20, "a consequence, not the cause")):
        d = diagnose(log(columns, outcome="collapsed", collapse_step=onset, detection_step=onset + 5))
        assert next(f.cause.name for f in in_order(d)) == "kl_blowup"
        assert first in text(d)


def test_nothing_is_assumed_of_a_log_whose_settings_are_not_known() -> None:
    """KL at the first step, a learning rate that warms up, a sampler that never agreed, a slow rollout."""
    columns = healthy()
    columns["step.kl_ref"] = columns["step.kl_ref"] + 0.3
    columns["minibatch.mismatch"] = columns["minibatch.mismatch"] * 10
    columns["step.seconds_rollout"] = np.linspace(1, 20, STEPS)
    columns["step.seconds_update"] = np.ones(STEPS)
    assert names(columns) == []


def test_what_needs_a_ledger_is_one_line_and_not_a_list_of_names() -> None:
    columns = healthy()
    del columns["step.clip_frac"], columns["minibatch.value_loss"], columns["step.explained_variance"]
    lines = not_looked_at(diagnose(log(columns)))
    assert lines[0].startswith("Cannot tell: ")
    assert "clip_saturation" in lines[0]
    unlogged = lines[0].split("not logged: ")[1].removesuffix(").").split(", ")
    assert {"clip fraction", "critic"} <= set(unlogged)
    assert "KL" not in unlogged, "it is logged"
    assert "stale_weights" not in lines[0]
    assert len(lines) == 2
    assert lines[1].endswith("more causes need a turn ledger: docs/causes.md says which and why.")


def test_a_curve_of_a_jump_a_ramp_and_an_exponential_is_dated_near_its_beginning() -> None:
    t = np.linspace(0, 1, 500)
    draw = np.random.default_rng(0)
    shapes = {
        250: (t > 0.5) * 3.0,
        200: np.clip(t - 0.4, 0, 1) * 5,
        300: np.expm1(9 * np.clip(t - 0.6, 0, 1)),
    }
    for at, shape in shapes.items():
        curve = Curve.of("a.b", pd.Series(1 + shape + 0.05 * draw.normal(size=500)))
        tenth = int(np.flatnonzero(shape >= 0.1 * shape[-1])[0])
        assert at <= curve.left("up") <= tenth + 5
    assert Curve.of("a.b", pd.Series([1.0, np.nan, np.inf] * 3)) is None


def test_a_finding_is_a_remark_where_no_harm_follows_and_a_warning_where_no_reward_is_known() -> None:
    """Answers are cut from the start on, and the run learns all the same."""
    columns = made([level("step.truncated_frac", lambda t: 0.9 + 0 * t)])

    def severity(outcome: str | None, columns: Columns) -> str:
        (finding,) = (
            one for one in diagnose(log(columns, outcome=outcome)).findings if one.cause.name == "truncation"
        )
        return finding.severity

    assert severity("healthy", columns) == "info"
    assert severity("no_learning", columns) == "critical"
    fallen = made([level("step.truncated_frac", ramp(0.4, 0.5, 0.9)), falls(0.5)])
    assert severity("collapsed", fallen) == "critical"
    unknown = {name: values for name, values in columns.items() if "reward" not in name}
    del unknown["step.heldout_success"]
    assert severity(None, unknown) == "warning"


def test_what_the_reward_pays_for_is_no_remark_because_the_reward_rises() -> None:
    for cause in ("reward_hacking", "component_dominates", "length_hacking"):
        columns = made(LOGS[cause][0][0])
        found = {one.cause.name: one for one in diagnose(log(columns, outcome="healthy")).findings}
        assert found[cause].severity == found[cause].cause.severity != "info"
