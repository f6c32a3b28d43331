"""The study of mismatch: its shipped answers keep what the page says, and a dump is read as it was made."""

from pathlib import Path

import numpy as np
import pytest

from sorl.importing.dumps.find import dumps_in
from studies.mismatch import count, dumps, plan
from studies.mismatch.count import RIGHT, Case
from studies.mismatch.dumps import Told

ANSWERS = Path("experiments/results/mismatch")


def case(kind: str, *named: str, grade: str = "sign") -> Case:
    """An answer to a dump of a kind."""
    return Case("00", 0, kind, "", 0.0, "slime", 10, True, 0, False, 0.1, named, grade if named else "")


def test_a_wrong_pattern_is_no_confident_mistake():
    assert case("routing", "part_differs").is_confidently_wrong
    assert not case("routing", "part_differs", grade="pattern").is_confidently_wrong
    assert not case("routing", "route_mismatch", "part_differs").is_confidently_wrong
    assert not case("routing").is_right


def test_anything_that_is_named_of_a_clean_dump_is_a_false_alarm():
    cases = [case("clean"), case("clean lag"), case("clean", "staleness", grade="pattern")]
    assert (count.false_alarms(cases).k, count.false_alarms(cases).n) == (1, 3)


def test_the_shipped_answers_are_of_a_whole_study_and_meet_its_bars():
    cases = count.read(ANSWERS / "counted.parquet")
    assert [case.kind for case in cases] == [*plan.WITH_FAULT, *plan.CLEAN]
    assert count.right_first(cases).value >= 0.85
    assert count.confidently_wrong(cases).value <= 0.05
    assert count.false_alarms(cases).k == 0


def test_the_seeds_counted_are_not_those_of_the_marks():
    assert {case.seed for case in count.read(ANSWERS / "counted.parquet")} == {3}
    assert {case.seed for case in count.read(ANSWERS / "first.parquet")} == {2}


def test_a_study_has_sixty_dumps_with_one_of_seven_kinds_and_thirty_clean_ones():
    assert len(plan.WITH_FAULT) == 60
    assert len(plan.CLEAN) == 30
    faults = {count.GROUP[kind] for kind in RIGHT if RIGHT[kind]}
    assert len(faults) == 7


@pytest.mark.parametrize(
    ("layout", "write"), [("NeMo-RL", dumps._write_nemo_rl), ("slime", dumps._write_slime)]
)
def test_a_dump_is_imported_with_the_log_probs_that_were_written(tmp_path, layout, write):
    row = Told(
        tokens=[5, 6, 7, 8, 9],
        written=[False, False, True, False, True],
        sampler=[0.0, 0.0, -1.0, 0.0, -2.0],
        trainer=[0.0, 0.0, -1.5, 0.0, -2.25],
        prompt_length=2,
        reward=1.0,
        advantage=0.5,
        group=0,
        version=3,
        is_cut=False,
    )
    for step in range(5):
        write(tmp_path, step, [row, row])
    (dump,) = dumps_in(tmp_path)
    assert dump.trainer == layout
    read = list(dump.steps(-1))[-1].rows[0]
    assert read.written.tolist() == [True, False, True]
    gap = read.columns["log_prob_old"] - read.columns["log_prob_behaviour"]
    assert np.allclose(gap[read.written], [-0.5, -0.25])
    assert read.version == (3 if layout == "slime" else None)
