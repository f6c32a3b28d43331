"""How a run stands, where the scores of training and held-out questions disagree."""

import pandas as pd
import pytest

from sorl.diagnosis.log import Log
from sorl.diagnosis.standing import standing


def log(*held_out: tuple[int, float], outcome: str = "recovered", data: str = "facts") -> Log:
    """A run whose success in training stays at .5, evaluated on 128 held-out questions."""
    steps = pd.DataFrame({"step": range(36), "success": [0.5] * 36})
    half_width = 0.08
    evaluations = pd.DataFrame(
        {
            "data": data,
            "step": [step for step, _ in held_out],
            "success": [success for _, success in held_out],
            "success_low": [max(0.0, success - half_width) for _, success in held_out],
            "success_high": [min(1.0, success + half_width) for _, success in held_out],
        }
    )
    tables = {"step": steps, "evaluation": evaluations}
    row = {"outcome": outcome, "status": "finished", "peak_success": 0.5}
    return Log("run", lambda table, step: tables.get(table, pd.DataFrame()), {}, row)


def test_a_policy_that_the_last_update_ruined_is_never_said_to_be_up_alone():
    words = standing(log((0, 0.33), (12, 0.53), (36, 0.01)))
    assert words.startswith("Collapsed and recovered.")
    assert words.endswith(
        "But on held-out questions (facts) the policy at step 36 solves 0.01, and 0.53 at its best (step 12)."
    )


@pytest.mark.parametrize("last", [0.45, 0.3])
def test_a_difference_within_the_intervals_is_not_mentioned(last):
    assert "held-out" not in standing(log((0, 0.33), (12, 0.53), (36, last)))


def test_a_run_that_is_known_to_be_down_says_so_once():
    assert "held-out" not in standing(log((12, 0.53), (36, 0.01), outcome="collapsed"))


def test_a_run_without_evaluations_is_judged_by_its_training():
    assert "held-out" not in standing(log())


def test_a_policy_that_answers_less_without_its_retriever_is_not_down():
    assert "held-out" not in standing(log((0, 0.4), (36, 0.0), data="facts-no-search"))


def test_questions_that_nobody_could_ever_answer_brought_nothing_down():
    assert "held-out" not in standing(log((0, 0.0), (36, 0.0), data="facts-no-search"))
