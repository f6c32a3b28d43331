"""What runs recorded: the seed reached the arms, equal compute or the difference told, and what trainers flagged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.learn.tiny import TINY, merged
from tests.store.fixture import START, write_run, write_segment
from workbench.agent.tokenizer import build_tokenizer
from workbench.algorithms import resolve
from workbench.diagnostics import CATALOGUE
from workbench.grid import guard
from workbench.grid.cell import Cell
from workbench.grid.guard import Finding, Range, Run, sampled, updates, write_events
from workbench.learn.loop import Trainer
from workbench.learn.warmstart import ensure
from workbench.record.recorder import Recorder
from workbench.spec import RunSettings
from workbench.store.reader import Reader
from workbench.store.sync import sync

STEPS = 4
BASE: dict[str, Any] = {"iterations": STEPS, "learn": {"episodes": 8, "minibatches": 2}}
UPDATES = STEPS * 2


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def run(arm: str, seed: int, group_size: int = 1, algorithm: str = "ppo", **changes: Any) -> Run:
    return Run(f"{arm}-s{seed}", arm, seed, RunSettings.model_validate(BASE | changes), group_size, resolve(algorithm))


def written(runs: Path, *done: tuple[Run, Sequence[int | None]], tokens: int = 1000) -> Reader:
    """A database in which each run trained on questions with these fingerprints, step by step."""
    for one, hashes in done:
        n = len(hashes)
        steps = {"run_id": [one.run_id] * n, "step": range(n), "questions_hash": hashes, "written_at": [START] * n}
        share = [one.settings.learn.epochs * one.settings.learn.minibatches] * n
        write_segment(
            runs / "demo" / one.run_id, "step", {**steps, "updates": share, "tokens_trained": [tokens / n] * n}
        )
    sync(runs, CATALOGUE)
    return Reader(runs)


def flagged(findings: Sequence[Finding]) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.check, finding.arms) for finding in findings if finding.flagged]


A0, A1, B0, B1 = run("a", 0), run("a", 1), run("b", 0), run("b", 1)
ZERO, ONE = [10, 11, 12, 13], [20, 21, 22, 23]


def test_arms_that_share_their_seeds_questions_are_not_flagged(runs: Path) -> None:
    reader = written(runs, (A0, ZERO), (A1, ONE), (B0, ZERO[:2]), (B1, ONE))
    assert guard.recorded(reader, [A0, A1, B1]) == []
    assert flagged(guard.recorded(reader, [A0, A1, B0, B1])) == [], "a run that ended early shares what it saw"


def test_a_seed_that_did_not_reach_an_arm_is_flagged_with_the_step(runs: Path) -> None:
    reader = written(runs, (A0, ZERO), (A1, ONE), (B0, [10, 11, 99, 13]), (B1, ONE))
    found = guard.recorded(reader, [A0, A1, B0, B1])
    assert flagged(found) == [("questions", ("a", "b"))]
    assert found[0].message == "a and b trained on different questions with seed 0, from step 2 on"


def test_the_same_questions_in_another_order_are_other_questions(runs: Path) -> None:
    reader = written(runs, (A0, ZERO), (B0, ZERO[::-1]))
    assert flagged(guard.recorded(reader, [A0, B0])) == [("questions", ("a", "b"))]


def test_two_seeds_with_the_same_questions_are_flagged_as_no_replicates(runs: Path) -> None:
    reader = written(runs, (A0, ZERO), (A1, ZERO))
    (finding,) = guard.recorded(reader, [A0, A1])
    assert (finding.check, finding.flagged) == ("questions", True)
    assert "seeds 0 and 1 trained on the same questions (a)" in finding.message


@pytest.mark.parametrize(
    "other",
    [
        replace(B0, group_size=8),
        run("b", 0, learn={"episodes": 16, "minibatches": 2}),
        run("b", 0, world={"entities": 8}),
    ],
    ids=["group size", "episodes", "world"],
)
def test_arms_that_ask_at_another_pace_or_of_another_world_are_not_compared(runs: Path, other: Run) -> None:
    reader = written(runs, (A0, ZERO), (other, [1, 2, 3, 4]))
    assert flagged(guard.recorded(reader, [A0, other])) == []


def test_seeds_without_a_step_in_common_are_not_said_to_be_the_same(runs: Path) -> None:
    reader = written(runs, (A0, ZERO[:2]), (A1, [None, None, *ONE[2:]]))
    assert flagged(guard.recorded(reader, [A0, A1])) == []


def test_runs_that_recorded_no_fingerprint_are_not_judged_by_it(runs: Path) -> None:
    reader = written(runs, (A0, ZERO), (B0, [None] * 4), (B1, [None] * 4))
    assert guard.recorded(reader, [A0, B0, B1]) == []


def test_recorded_tokens_are_told_where_they_differ_by_more_than_a_hundredth(runs: Path) -> None:
    written(runs, (A0, ZERO), tokens=1000)
    written(runs, (B0, ZERO), tokens=1008)
    reader = written(runs, (run("c", 0), ZERO), tokens=2000)
    assert guard.recorded(reader, [A0, B0]) == []
    (note,) = guard.recorded(reader, [A0, B0, run("c", 0)])
    assert note.message == (
        "the arms recorded different numbers of trained tokens (mean of a finished run: 1,000 in a to 2,000 in c)"
    )
    assert (note.check, note.flagged) == ("compute", False)
    assert guard.recorded(reader, [A0, replace(run("c", 0), finished=False)]) == [], "it may still catch up"


def test_runs_that_did_less_than_was_planned_are_told_by_rollouts_and_updates(runs: Path) -> None:
    reader = written(runs, (A0, ZERO), (B0, ZERO[:2]))
    messages = [finding.message for finding in guard.recorded(reader, [A0, B0])]
    assert any("rollouts (mean of a finished run: 16 in b to 32 in a)" in message for message in messages)
    assert any(f"optimizer updates (mean of a finished run: 4 in b to {UPDATES} in a)" in m for m in messages)


def test_what_the_trainers_flagged_is_told_once_for_each_check(runs: Path) -> None:
    reader = written(runs, (A0, ZERO), (A1, ONE), (B0, ZERO))
    for one, step, kind, severity in (
        (A0, 3, "guard_stuck_batch", "warning"),
        (B0, 2, "guard_stuck_batch", "warning"),
        (B0, 4, "guard_stuck_batch", "warning"),
        (A1, 0, "guard_compute", "info"),
        (A1, 1, "alarm", "warning"),
    ):
        row = {"run_id": one.run_id, "step": step, "kind": kind, "severity": severity, "diagnostic": "",
               "message": f"told at {step}"}  # fmt: skip
        write_segment(runs / "demo" / one.run_id, "event", {k: [v] for k, v in {**row, "written_at": START}.items()})
    sync(runs, CATALOGUE)
    (finding,) = guard.recorded(reader, [A0, A1, B0])
    assert (finding.check, finding.arms, finding.flagged) == ("stuck_batch", ("b", "a"), True)
    assert finding.message == "b, seed 0, step 2: told at 2 (and in 1 more runs of b and a)"


def test_the_fixture_of_the_store_is_a_fair_comparison(runs: Path) -> None:
    names = [("ppo", 0), ("ppo", 1), ("st-ppo", 0)]
    for algorithm, seed in names:
        write_run(runs, "demo", f"{algorithm}-s{seed}", algorithm=algorithm, seed=seed)
    sync(runs, CATALOGUE)
    all_runs = [Run(f"{arm}-s{seed}", arm, seed, RunSettings(), 1, resolve(arm)) for arm, seed in names]
    assert flagged(guard.recorded(Reader(runs), all_runs)) == []


def trained(runs: Path, cache: Path, arm: str, filed_under: int = 0, **changes: Any) -> Run:
    """A run of two tiny iterations, recorded."""
    tiny = merged(TINY, {"iterations": 2, "evaluation": {"every": 0, "episodes": 2}})
    settings = RunSettings.model_validate(merged(tiny, changes))
    algorithm = resolve(settings.algorithm, settings.slots)
    one = Run(f"{arm}-s{filed_under}", arm, filed_under, settings, settings.learn.group_size or 1, algorithm)
    with Recorder(runs / "demo" / one.run_id, one.run_id, settings) as recorder:
        for _ in Trainer(settings, ensure(settings, cache), recorder, build_tokenizer()).steps():
            pass
    return one


def test_what_turns_in_reverse_order_and_further_draws_took_lies_where_the_plan_has_it(runs: Path, cache: Path) -> None:
    def arm(name: str, **changes: Any) -> Run:
        learn = {"group_size": 4, "epochs": 1, "staleness": 1}
        return trained(runs, cache, name, **merged({"algorithm": name, "learn": learn}, changes))

    # Nearly untrained, so that every group fails as one and dapo draws as often as it may.
    done = [arm("grpo"), arm("seeupo"), arm("dapo", warmstart={"steps": 1})]
    sync(runs, CATALOGUE)
    reader = Reader(runs)
    sums = "SELECT run_id, sum(updates), sum(episodes_sampled), max(turns) FROM step GROUP BY run_id"
    seen = {row[0]: row[1:] for row in reader.rows(sums).rows}
    amounts = {one.arm: (updates(one.settings, one.algorithm), sampled(one.settings, one.algorithm)) for one in done}
    assert amounts["grpo"] == (Range(4, 4), Range(32, 32))
    assert amounts["seeupo"] == (Range(4, 12), Range(32, 32))  # three turns at most
    assert amounts["dapo"] == (Range(4, 4), Range(32, 128))  # four rounds at most
    for one in done:
        for count, planned in zip(seen[one.run_id], amounts[one.arm], strict=False):
            assert planned.low <= count <= planned.high, one.arm
    assert seen["seeupo-s0"][0] > 4
    assert seen["dapo-s0"][1] > 32
    findings = guard.recorded(reader, done)
    assert flagged(findings) == []  # dapo trains on questions of its own, by its rule
    told = [finding.message for finding in findings]
    assert any(
        f"optimizer updates (mean of a finished run: 4 in grpo to {seen['seeupo-s0'][0]:,.0f}" in m for m in told
    )
    assert any(f"sampled episodes (mean of a finished run: 32 in grpo to {seen['dapo-s0'][1]:,.0f}" in m for m in told)


def test_trained_runs_share_their_questions_and_one_with_another_seed_is_found(runs: Path, cache: Path) -> None:
    fresh = trained(runs, cache, "fresh", learn={"staleness": 0})
    honest = [fresh, trained(runs, cache, "stale"), trained(runs, cache, "stale", 1, seed=1)]
    lost = trained(runs, cache, "lost", seed=7)
    sync(runs, CATALOGUE)
    assert flagged(guard.recorded(Reader(runs), honest)) == []
    assert flagged(guard.recorded(Reader(runs), [*honest, lost])) == [("questions", ("fresh", "lost"))]


# Findings as events


def cell(arm: str, seed: int = 0) -> Cell:
    return Cell("demo", arm, "ppo", seed, RunSettings(seed=seed), "0", f"{arm}-s{seed}")


def stored(runs: Path) -> list[tuple[Any, ...]]:
    sync(runs, CATALOGUE)
    return Reader(runs).rows("SELECT run_id, step, kind, severity, message FROM event ORDER BY run_id, kind").rows


def test_flagged_findings_become_events_of_the_runs_of_their_arms_once_and_are_withdrawn(runs: Path) -> None:
    cells = [cell("a"), cell("a", 1), cell("b"), cell("c")]
    for one in cells[:3]:  # c never ran
        write_run(runs, "demo", one.run_id, arm=one.arm, seed=one.seed)
    findings = [
        Finding("idle_ratio", "a and c are one arm", ("a", "c"), flagged=True),
        Finding("compute", "b did more", ("b",)),
    ]
    assert write_events(runs, cells, findings) == 2
    row = (None, "guard_idle_ratio", "warning", "a and c are one arm")
    assert stored(runs) == [("a-s0", *row), ("a-s1", *row)]
    assert write_events(runs, cells, findings) == 0
    changed = [replace(findings[0], message="a and c are still one arm")]
    assert write_events(runs, cells, changed) == 2
    assert [r[4] for r in stored(runs)] == ["a and c are still one arm"] * 2
    assert write_events(runs, cells, []) == 2
    assert stored(runs) == []
    assert write_events(runs, cells, []) == 0
    assert write_events(runs, cells, changed) == 2
    assert len(stored(runs)) == 2


def test_what_a_trainer_sees_itself_is_left_to_it(runs: Path) -> None:
    write_run(runs, "demo", "a-s0", arm="a")
    told = [Finding("stuck_batch", "again", ("a",), flagged=True)]
    assert write_events(runs, [cell("a")], told) == 0
