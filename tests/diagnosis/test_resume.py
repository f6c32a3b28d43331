"""Data that a resumed run skipped or saw twice: found in the order, and not in any healthy order."""

import numpy as np
import pandas as pd
import pytest

from sorl.diagnosis.causes.resume import resume_skip, resumed_at
from sorl.diagnosis.data_order import chance_of, passed_over
from studies.correction_and_resume import ORDERS, QUESTIONS, ordered
from tests.diagnosis.logs import log

HEALTHY = ("none", "none, a filter", "none, with ids", "none, a filter, with ids")


def clue_of(seed, order, fault, is_known, **more):
    return resume_skip.clue(log(ordered(seed, order, fault, is_known, **more)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fault", HEALTHY)
@pytest.mark.parametrize("is_known", [True, False])
def test_no_healthy_order_is_called_broken(order, fault, is_known):
    assert clue_of(0, order, fault, is_known) is None
    assert clue_of(1, order, fault, is_known, is_async=True) is None


@pytest.mark.parametrize("is_async", [False, True])
def test_questions_that_come_again_at_a_resume_are_proved_and_elsewhere_a_sign(is_async):
    proof = clue_of(0, "3.3 passes, shuffled", "goes back 3 steps", True, is_async=is_async)
    assert proof.grade == "proof"
    assert "the questions of 3 steps before" in proof.says
    assert "where the run was resumed" in proof.says
    sign = clue_of(0, "3.3 passes, shuffled", "goes back 3 steps", False, is_async=is_async)
    assert (sign.grade, sign.step) == ("sign", proof.step)
    assert "no resume is recorded" in sign.says


def test_a_run_that_ends_before_new_questions_come_may_have_ended_a_pass():
    tables = ordered(0, "stream", "begins anew", True)
    at = int(tables["event"]["step"].iloc[0])
    rows = tables["trajectory"]
    short = tables | {"trajectory": rows[rows["step"] < at + 4]}
    assert resume_skip.clue(log(short)).grade == "pattern"
    del short["event"]
    assert resume_skip.clue(log(short)) is None


def test_a_jump_in_a_fixed_order_is_told_as_data_that_were_not_seen():
    clue = clue_of(0, "3.3 passes, one order", "skips 3 steps", True)
    assert "jumps ahead by 3 steps" in clue.says


def test_an_order_that_was_drawn_anew_is_a_pattern_at_a_known_resume_alone():
    assert clue_of(0, "stream", "order drawn anew", True).grade == "pattern"
    assert clue_of(0, "stream", "order drawn anew", False) is None


def test_ids_show_what_was_never_seen_and_questions_alone_do_not():
    clue = clue_of(0, "stream", "skips 3 steps, with ids", True)
    assert clue.grade == "proof"
    assert clue.says.startswith(f"{3 * QUESTIONS} sample ids")
    assert clue_of(0, "stream", "skips 3 steps", True) is None


def samples(*ids_of_step):
    parts = [pd.DataFrame({"step": step, "sample": list(ids)}) for step, ids in enumerate(ids_of_step)]
    return pd.concat(parts, ignore_index=True)


def test_several_resumes_may_each_pass_over_ids():
    starts = [0, 8, 16, 40, 48, 72, 80, 88, 96]
    found = passed_over(samples(*(range(start, start + 8) for start in starts)))
    assert (found.steps, found.missing, found.elsewhere, found.of) == ((3, 5), 32, 0, 104)


def test_ids_of_the_last_steps_and_those_that_come_late_are_not_missing():
    early = [range(8 * s, 8 * s + 8) for s in range(8)]
    assert passed_over(samples(*early[:6], range(80, 88), range(88, 96))) is None
    late = [
        *early[:3],
        range(40, 48),
        range(32, 40),
        range(24, 32),
        *(range(8 * s, 8 * s + 8) for s in (6, 7, 8)),
    ]
    assert passed_over(samples(*late)) is None


def test_a_trainer_that_trains_on_each_batch_twice_has_a_habit():
    frame = pd.DataFrame({"step": np.repeat(range(24), 8), "prompt_group": np.tile(range(8), 24)})
    frame["question"] = (frame["step"] // 2).astype(str) + "-" + frame["prompt_group"].astype(str)
    assert resume_skip.clue(log({"trajectory": frame})) is None


def test_resumes_are_known_by_events_and_by_the_sessions_of_witnesses():
    witness = pd.DataFrame({"step": [0, 1, 2, 3], "started_at": ["a", "a", "b", "b"]})
    event = pd.DataFrame({"step": [7, 8], "kind": ["retried", "alarm"]})
    assert resumed_at(log({"witness": witness, "event": event})) == [2, 7]
    assert resumed_at(log({})) == []


def test_the_bound_on_chance_is_above_the_binomial_tail():
    # at least 8 of 10 successes of probability .3: exact .00159
    assert 0.00159 < chance_of(0.8, 10, 0.3) < 0.01
    assert chance_of(0.8, 10, 0.9) == 1.0
