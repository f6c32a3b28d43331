"""The error rates of the diagnosis are counted as they say."""

from dataclasses import replace
from pathlib import Path

import pytest

from sorl.spec import InputError
from studies import Share
from studies import diagnosis as score
from studies.diagnosis import Case, scores
from studies.scalar_logs import bench
from studies.unknown_bugs import count
from tests.studies.test_scalar_logs import ANSWERS
from tests.studies.test_unknown_bugs import answer as bug


def case(fault: str, *named: str, outcome: str = "healthy", algorithm: str = "ppo") -> Case:
    run_id = "-".join(["r", algorithm, fault, *named, outcome])
    return Case(run_id, "lab", "arm", algorithm, 0, fault, 12 if fault else None, outcome, named, 12)


FOUND = [
    case("mask", "mask", "other"),
    case("mask", "other", "mask", algorithm="grpo"),
    case("mask", "a", "b", "c", "mask"),
    case("lr"),
    case("", "lr"),
    case(""),
    case("", outcome="mild"),
    case("", "off_policy", outcome="collapsed"),
]


def test_shares_are_over_the_runs_that_the_question_is_about_with_clopper_pearson_intervals() -> None:
    assert score.right_first(FOUND) == Share(1, 4)
    assert score.right_among_three(FOUND) == Share(2, 4)
    assert score.false_alarms(FOUND) == Share(1, 3), "a run that collapsed on its own is not healthy"
    assert (str(Share(1, 4)), str(Share(0, 0))) == ("1/4 = 25 % [1, 81]", "-")


def test_confusion_counts_every_run_once_and_the_page_says_what_was_taken_for_what() -> None:
    table = score.confusion(FOUND)
    assert table.to_numpy().sum() == 7
    assert [table.loc[pair] for pair in (("mask", "other"), ("lr", "nothing"), ("none", "lr"))] == [1, 1, 1]
    for words in (
        "| all | 1/4 = 25 % [1, 81] | 2/4 = 50 % [7, 93] |",
        "| `mask` | 3 | 1 | 2 | a 1, other 1 |",
        "| `none` | 3 | 2 | 2 | lr 1 |",
        "1 runs without a fault that collapsed",
    ):
        assert words in scores(FOUND)


def test_what_the_audit_proves_where_the_fault_is_not_named_first_is_counted_apart() -> None:
    proved = [*FOUND, replace(case("lr"), proof="learning_rate"), replace(case("lr"), proof="learning_rate")]
    said = "In 2 of the other 5 the audit proves a violated identity: `learning_rate` in a run with `lr` (2)."
    assert said in scores(proved)
    assert "audit" not in scores(FOUND)


@pytest.mark.parametrize("content", [b"", b"PAR1", None])
@pytest.mark.parametrize(
    ("study", "found", "what"),
    [
        (score, FOUND, "scored diagnoses"),
        (count, [bug("values_one_off")], "answers"),
        (bench, ANSWERS, "answers"),
    ],
    ids=["diagnosis", "unknown bugs", "scalar logs"],
)
def test_cases_survive_their_file_and_another_file_is_refused(
    study, found, what, content, tmp_path: Path
) -> None:
    study.write(found, path := tmp_path / "scored.parquet")
    assert study.read(path) == found
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(InputError, match=f"holds no {what}"):
        study.read(path)
