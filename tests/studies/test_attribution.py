"""`sorl bench attribution`: faults of known place, through the recorder and the store, and what is said of
them.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from studies import attribution as planted
from studies.attribution import CLIP, PLANTED, Case, cases, plans
from studies.planted import KINDS, VISIBLE, WEAK, Kind, healthy
from tests.cli.command import done, refused, told
from tests.store.stored_batch import write_batch


@pytest.fixture(scope="module")
def found() -> list[Case]:
    return list(cases(plans(20, 0, 8)))


def test_planted_faults_are_found_in_their_turn_at_their_tokens_and_nowhere_else(found: list[Case]) -> None:
    faulty, clean = ([case for case in found if bool(case.kind) is planted] for planted in (True, False))
    assert {case.kind for case in faulty} == {kind.name for kind in KINDS}
    assert sum(case.right_turn for case in faulty) >= 18
    assert sum(case.right_span for case in faulty) >= 17
    assert len(clean) == 8
    assert sum(case.stands_out for case in clean) <= 1, (
        "no turn is named with confidence where nothing is planted"
    )
    assert not any(case.right_turn or case.right_span for case in clean)


def test_the_harness_fails_where_the_fault_is_not_where_it_says() -> None:
    lying = Kind(
        "liar",
        "says that it changed tokens and did not",
        lambda draw, drawn, turn, strength: np.array([np.flatnonzero(drawn.turn[0] == turn)[0]]),
    )
    told = list(cases([replace(plan, kind=lying) for plan in plans(10, 0, 0)]))
    assert sum(case.right_turn for case in told) <= 2


def test_strengths_are_told_apart_by_the_clip_range() -> None:
    assert min(VISIBLE) >= CLIP > max(WEAK)
    made = plans(200, 60, 10)
    assert [sum(bool(p.kind) and (p.strength >= CLIP) is seen for p in made) for seen in (True, False)] == [
        200,
        60,
    ]
    assert {p.turns for p in made} == set(range(1, 9))
    assert PLANTED[0] == 500, "the number of faults is that of the docs"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_fault_changes_its_own_trajectory_and_nothing_else(kind: Kind) -> None:
    drawn, as_was = (healthy(np.random.default_rng(3), 4, "testbed", "other engine") for _ in range(2))
    span = kind.plant(np.random.default_rng(4), drawn, 2, 1.0)
    for name in ("tokens", "old", "behaviour", "mask"):
        assert np.array_equal(getattr(drawn, name)[1:], getattr(as_was, name)[1:])
    changed = (drawn.old[0] != as_was.old[0]) | (drawn.new[:, 0] != as_was.new[:, 0]).any(0)
    assert set(np.flatnonzero(changed)) == set(span.tolist())
    assert len(span)


def test_cases_are_counted_again_from_the_file_that_was_written(found: list[Case], tmp_path: Path) -> None:
    file = tmp_path / "planted.parquet"
    planted.write(found, file)
    assert planted.read(file) == found
    assert done("bench", "attribution", "--from", file).output.strip() == planted.page(found).strip()
    assert planted.wilson(8, 10) == "8/10 = 80.0 % [49.0, 94.3]"  # Wilson's interval as the books have it
    assert planted.wilson(0, 0) == "-"
    (tmp_path / "x.parquet").write_text("no")
    refused("no planted faults", "bench", "attribution", "--from", tmp_path / "x.parquet")
    refused("'attribution'", "bench", "atribution")


def test_diagnose_names_who_carries_a_step_and_says_which_steps_are_stored(tmp_path: Path) -> None:
    folder = tmp_path / "demo" / "ppo-s0"
    write_batch(folder, 4)
    assert "ppo-s0, step 4:" in done("diagnose", folder, "--step", 4).output
    assert "trajectory" in told("diagnose", folder, "--step", 4)[0]
    refused("stored are 4", "diagnose", folder, "--step", 7)
