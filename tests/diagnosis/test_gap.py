"""Why another trainer and its sampler disagree: each signature planted, and what must not be named."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sorl.diagnosis.causes import CAUSES, mismatch
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.finding import Cause
from sorl.diagnosis.gap import is_mixture
from sorl.diagnosis.log import Log

STEPS = 20
ROWS = 12
FROM = 8
NEW = {name for name, value in vars(mismatch).items() if isinstance(value, Cause)}
ROUTES = {"policy.model_name": "Qwen/Qwen3-30B-A3B"}
DENSE = {"policy.model_name": "Qwen/Qwen2.5-7B"}


@dataclass
class Made:
    """Columns of a dump's run, one value a step."""

    gap: Any = 1e-5
    sharper: float = 0.45
    likelier: float = 0.48
    broken: float = 0.0
    shifts: tuple[float, float] | None = None  # of sampler and trainer
    revisit_steps: int = 3
    slope: float = 1.0
    age: Any = 0  # by trajectory of a step
    gap_by_age: tuple[float, ...] = ()  # nats of data of age 0, 1, ...
    trainer: str | None = "slime"
    settings: dict[str, Any] = field(default_factory=dict)

    def log(self) -> Log:
        """The run as a diagnosis reads it."""
        steps = np.arange(STEPS)
        gap = np.broadcast_to(np.asarray(self.gap, float), STEPS)
        minibatch = {
            "step": steps,
            "gap": gap,
            "gap_sharper_frac": self.sharper,
            "gap_likelier_frac": self.likelier,
            "gap_broken_frac": self.broken,
            "gap_slope": self.slope,
            "mismatch": gap,
            "mismatch_max": 20 * gap,
            "tokens": 500,
        }
        step = {"step": steps, "success": 0.5, "reward": 0.5}
        if self.shifts is not None:
            sampler, trainer = self.shifts
            step |= {
                "revisited_tokens": 40,
                "sampler_revisit_shift": sampler,
                "trainer_revisit_shift": trainer,
            }
            step |= {"revisit_steps": self.revisit_steps}
        number = np.repeat(steps, ROWS)
        age = np.minimum(np.resize(np.asarray(self.age), len(number)), number)
        by_age = np.array(self.gap_by_age)[age] if self.gap_by_age else np.repeat(gap, ROWS)
        trajectory = {"step": number, "rollout_step": number - age, "gap": by_age}
        tables = {"minibatch": minibatch, "step": step, "trajectory": trajectory}
        frames = {name: pd.DataFrame(columns) for name, columns in tables.items()}
        run = {"versions": json.dumps({"trainer": self.trainer} if self.trainer else {})}
        return Log("made", lambda name, _: frames.get(name, pd.DataFrame()), self.settings, run)


def late(level: Any) -> np.ndarray:
    """Kernel noise, and from step FROM on a gap of this size."""
    return np.where(np.arange(STEPS) < FROM, 1e-5, level)


def growing(first: float, each: float) -> np.ndarray:
    """A gap that grows with every update from step FROM on."""
    return late(first + each * np.maximum(np.arange(STEPS) - FROM, 0))


PLANTED = {
    "version_lag": Made(gap=0.15, age=[0, 2, 4], gap_by_age=(1e-5, 0.1, 0.2, 0.25, 0.3)),
    "sync_never_lands": Made(gap=growing(0.01, 0.02), shifts=(0.0, 0.03)),
    "truncated_sampling": Made(gap=late(0.02), sharper=1.0, likelier=1.0),
    "temperature": Made(gap=late(0.05), sharper=0.01),
    "low_precision": Made(gap=late(0.004)),
    "other_tokens": Made(gap=late(0.3), broken=0.4),
    "route_mismatch": Made(gap=late(0.06), settings=ROUTES),
    "part_differs": Made(gap=late(0.06), settings=DENSE),
}
# `temperature` also needs columns of table token, which these tables lack.
ASKED_FOR = {*PLANTED, "corrupt_log_prob", "staleness"} - {"temperature"}
ASKED = [cause for cause in CAUSES if cause.name in ASKED_FOR]


def names(run: Made) -> list[str]:
    return [found.cause.name for found in diagnose(run.log(), ASKED).findings]


def test_every_cause_of_the_file_is_planted_here():
    assert set(PLANTED) >= NEW


@pytest.mark.parametrize("name", sorted(set(PLANTED) - {"temperature"}))
def test_a_planted_reason_is_named_first_from_its_first_step_on(name):
    found = diagnose(PLANTED[name].log(), ASKED).findings
    assert [finding.cause.name for finding in found][:1] == [name]
    assert found[0].clue.step == (0 if name == "version_lag" else FROM)


def test_another_temperature_moves_likely_tokens_to_one_side():
    (cause,) = (cause for cause in CAUSES if cause.name == "temperature")
    clue = cause.look(PLANTED["temperature"].log())
    assert clue is not None
    assert "flatter" in clue.says


def test_kernel_noise_is_no_finding():
    assert names(Made(gap=np.resize([2e-5, 4e-4], STEPS))) == []


def test_a_gap_of_three_steps_is_too_short_to_be_named():
    assert names(Made(gap=np.where(np.arange(STEPS) < STEPS - 3, 1e-5, 0.3), settings=DENSE)) == []


def test_ordinary_lag_is_no_finding_and_large_lag_is():
    usual = Made(gap=0.03, age=1, gap_by_age=(1e-5, 0.03))
    large = Made(gap=0.1, age=1, gap_by_age=(1e-5, 0.1))
    assert names(usual) == []
    assert names(large)[0] == "version_lag"


def test_fresh_data_that_differ_as_much_as_older_ones_do_not_lag():
    alike = Made(gap=0.1, age=[0, 2], gap_by_age=(0.1, 0.1, 0.1), settings=DENSE)
    assert names(alike) == ["part_differs"]


@pytest.mark.parametrize(
    ("shifts", "expected", "grade"),
    [
        ((0.0, 0.03), "sync_never_lands", "sign"),
        ((0.03, 0.03), "part_differs", "sign"),
        (None, "sync_never_lands", "pattern"),
        ((0.0, 1e-6), "sync_never_lands", "pattern"),  # neither has moved: nothing is known
    ],
)
def test_contexts_that_come_again_tell_all_weights_from_a_part_of_them(shifts, expected, grade):
    (found,) = diagnose(Made(gap=growing(0.01, 0.02), shifts=shifts, settings=DENSE).log(), ASKED).findings
    assert (found.cause.name, found.clue.grade) == (expected, grade)


def test_visits_from_before_the_sync_was_lost_say_nothing_of_it():
    """The sampler's weights changed between them, up to the last sync."""
    long_ago = Made(gap=growing(0.01, 0.02), shifts=(0.03, 0.03), revisit_steps=STEPS, settings=DENSE)
    (found,) = diagnose(long_ago.log(), ASKED).findings
    assert (found.cause.name, found.clue.grade) == ("sync_never_lands", "pattern")


def test_a_gap_of_the_first_step_is_no_lost_sync_even_if_it_grows():
    from_start = Made(gap=0.02 + 0.01 * np.arange(STEPS), settings=DENSE)
    assert names(from_start) == ["part_differs"]


def test_a_cold_sampler_is_no_truncated_one_though_it_finds_nearly_all_its_tokens_likelier():
    assert "truncated_sampling" not in names(Made(gap=late(0.02), sharper=1.0, likelier=1.0, slope=1.2))


def test_a_gap_that_was_there_from_the_start_makes_no_outlier_of_its_largest_token():
    assert "corrupt_log_prob" not in names(Made(gap=0.03, settings=DENSE))


def test_runs_of_sorls_own_trainer_keep_the_causes_of_the_fault_lab():
    assert not NEW & set(names(Made(gap=late(0.3), broken=0.4, trainer=None)))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ROUTES, True),
        (DENSE, False),
        ({"model.path": "mistralai/Mixtral-8x7B"}, True),
        ({"num_experts": 8}, True),
        ({"num_experts": 1}, None),
        ({}, None),
    ],
)
def test_a_mixture_of_experts_is_known_by_its_name_or_its_experts(settings, expected):
    assert is_mixture(settings) is expected
