"""What runs recorded: the seed reached the arms, equal compute or the difference told, and what trainers flagged."""

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
from workbench.grid.guard import Finding, Range, Run, amounts, write_events
from workbench.learn.loop import Trainer
from workbench.learn.warmstart import ensure
from workbench.record.recorder import Recorder
from workbench.spec import RunSettings
from workbench.store.reader import Reader
from workbench.store.sync import sync

BASE: dict[str, Any] = {"iterations": 4, "learn": {"episodes": 8, "minibatches": 2}}


def run(arm: str, seed: int, **changes: Any) -> Run:
    settings = RunSettings.model_validate(merged(BASE, changes))
    return Run(f"{arm}-s{seed}", arm, seed, settings, resolve(settings.algorithm))


def written(runs: Path, *done: tuple[Run, Sequence[int | None]], tokens: int = 1000) -> Reader:
    """A database in which each run trained on questions with these fingerprints, step by step."""
    for one, hashes in done:
        n, updates = len(hashes), one.settings.learn.epochs * one.settings.learn.minibatches
        steps = {"run_id": [one.run_id] * n, "step": range(n), "questions_hash": hashes, "written_at": [START] * n}
        amounts = {"updates": [updates] * n, "tokens_trained": [tokens / n] * n}
        write_segment(runs / "demo" / one.run_id, "step", {**steps, **amounts})
    sync(runs, CATALOGUE)
    return Reader(runs)


def flagged(findings: Sequence[Finding]) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.check, finding.arms) for finding in findings if finding.flagged]


A0, A1, B0, B1 = run("a", 0), run("a", 1), run("b", 0), run("b", 1)
ZERO, ONE = [10, 11, 12, 13], [20, 21, 22, 23]
QUESTIONS = [("questions", ("a", "b"))]


@pytest.mark.parametrize(
    ("done", "found"),
    [
        ([(A0, ZERO), (A1, ONE), (B0, ZERO[:2]), (B1, ONE)], []),  # shared, one ended early
        ([(A0, ZERO), (A1, ONE), (B0, [10, 11, 99, 13]), (B1, ONE)], QUESTIONS),  # a seed that did not reach an arm
        ([(A0, ZERO), (B0, ZERO[::-1])], QUESTIONS),  # another order
        ([(A0, ZERO), (A1, ZERO)], [("questions", ("a", "a"))]),  # seeds that are no replicates
        ([(A0, ZERO), (run("b", 0, learn={"group_size": 8}), [1, 2, 3, 4])], []),
        ([(A0, ZERO), (run("b", 0, learn={"episodes": 16}), [1, 2, 3, 4])], []),
        ([(A0, ZERO), (run("b", 0, world={"entities": 8}), [1, 2, 3, 4])], []),
        ([(A0, ZERO[:2]), (A1, [None, None, *ONE[2:]])], []),  # no step in common
        ([(A0, ZERO), (B0, [None] * 4), (B1, [None] * 4)], []),  # no fingerprint
    ],
)
def test_a_seed_gives_comparable_arms_the_same_questions_and_another_seed_other_ones(runs, done, found):
    findings = guard.recorded(written(runs, *done), [one for one, _ in done])
    assert flagged(findings) == found
    messages = [finding.message for finding in findings]
    if len(done) == 4 and found:
        assert "a and b trained on different questions with seed 0, from step 2 on" in messages
    if found and found != QUESTIONS:
        assert any("seeds 0 and 1 trained on the same questions (a)" in message for message in messages)


def test_recorded_amounts_are_told_where_they_differ_from_the_plan_or_by_more_than_a_hundredth(runs):
    more, less = run("c", 0), run("d", 0)
    written(runs, (A0, ZERO), tokens=1000)
    written(runs, (B0, ZERO), tokens=1008)
    written(runs, (more, ZERO), tokens=2000)
    reader = written(runs, (less, ZERO[:2]), tokens=1000)
    assert guard.recorded(reader, [A0, B0]) == []
    (note,) = guard.recorded(reader, [A0, B0, more])
    assert note.message == (
        "the arms recorded different numbers of trained tokens (mean of a finished run: 1,000 in a to 2,000 in c)"
    )
    assert (note.check, note.flagged) == ("compute", False)
    assert guard.recorded(reader, [A0, replace(more, finished=False)]) == [], "it may still catch up"
    messages = [finding.message for finding in guard.recorded(reader, [A0, less])]
    assert any("rollouts (mean of a finished run: 16 in d to 32 in a)" in message for message in messages)
    assert any("optimizer updates (mean of a finished run: 4 in d to 8 in a)" in message for message in messages)
    (seeds,) = (f.message for f in guard.recorded(reader, [A0, A1, B0]) if f.check == "seeds")
    assert "different numbers of seeds (2 seeds, but b: 1)" in seeds


def test_what_the_trainers_flagged_is_told_once_for_each_check(runs):
    reader = written(runs, (A0, ZERO), (A1, ONE), (B0, ZERO), (B1, ONE))
    for one, step, kind in ((A0, 3, "guard_stuck_batch"), (B0, 2, "guard_stuck_batch"), (A1, 1, "alarm")):
        row = {"run_id": one.run_id, "step": step, "kind": kind, "severity": "warning", "diagnostic": "",
               "message": f"told at {step}", "written_at": START}  # fmt: skip
        write_segment(runs / "demo" / one.run_id, "event", {k: [v] for k, v in row.items()})
    sync(runs, CATALOGUE)
    (finding,) = guard.recorded(reader, [A0, A1, B0, B1])
    assert (finding.check, finding.arms, finding.flagged) == ("stuck_batch", ("b", "a"), True)
    assert finding.message == "b, seed 0, step 2: told at 2 (and in 1 more runs of b and a)"


def test_what_turns_in_reverse_order_and_further_draws_took_lies_where_the_plan_has_it(runs, cache):
    tiny = merged(TINY, {"iterations": 2, "evaluation": {"every": 0, "episodes": 2}})
    done = []
    for name in ("grpo", "seeupo", "dapo"):
        changes: dict[str, Any] = {"algorithm": name, "learn": {"group_size": 4, "epochs": 1, "staleness": 1}}
        if name == "dapo":  # nearly untrained, so that every group fails as one and it draws as often as it may
            changes["warmstart"] = {"steps": 1}
        settings = RunSettings.model_validate(merged(tiny, changes))
        one = Run(f"{name}-s0", name, 0, settings, resolve(settings.algorithm, settings.slots))
        with Recorder(runs / "demo" / one.run_id, one.run_id, settings) as recorder:
            for _ in Trainer(settings, ensure(settings, cache), recorder, build_tokenizer()).steps():
                pass
        done.append(one)
    sync(runs, CATALOGUE)
    reader = Reader(runs)
    sums = "SELECT run_id, sum(updates), sum(episodes_sampled) FROM step GROUP BY run_id"
    seen = {row[0].removesuffix("-s0"): row[1:] for row in reader.rows(sums).rows}
    plan = {one.arm: [amounts(one.settings, one.resolved)[n] for n in ("optimizer updates", "sampled episodes")]
            for one in done}  # fmt: skip
    assert plan["grpo"] == [Range(4, 4), Range(32, 32)]
    assert plan["seeupo"] == [Range(4, 12), Range(32, 32)]  # three turns at most
    assert plan["dapo"] == [Range(4, 4), Range(32, 128)]  # four rounds at most
    for arm, counts in plan.items():
        assert all(low <= n <= high for (low, high), n in zip(counts, seen[arm], strict=True))
    assert (seen["seeupo"][0] > 4, seen["dapo"][1] > 32) == (True, True)
    findings = guard.recorded(reader, done)
    assert flagged(findings) == []  # dapo trains on questions of its own, by its rule
    told = "\n".join(finding.message for finding in findings)
    assert f"optimizer updates (mean of a finished run: 4 in grpo to {seen['seeupo'][0]:,.0f}" in told
    assert f"sampled episodes (mean of a finished run: 32 in grpo to {seen['dapo'][1]:,.0f}" in told


def test_flagged_findings_become_events_of_the_runs_of_their_arms_once_and_are_withdrawn(runs):
    names = [("a", 0), ("a", 1), ("b", 0), ("c", 0)]
    cells = [Cell("demo", arm, seed, RunSettings(seed=seed), resolve("ppo")) for arm, seed in names]
    for one in cells[:3]:  # c never ran
        write_run(runs, "demo", one.run_id, arm=one.arm, seed=one.seed)

    def stored():
        sync(runs, CATALOGUE)
        return Reader(runs).rows("SELECT run_id, step, kind, severity, message FROM event ORDER BY run_id, kind").rows

    findings = [
        Finding("idle_ratio", "a and c are one arm", ("a", "c"), flagged=True),
        Finding("compute", "b did more", ("b",)),
        Finding("stuck_batch", "a trainer writes it itself", ("a",), flagged=True),
    ]
    assert write_events(runs, cells, findings) == 2
    row = (None, "guard_idle_ratio", "warning", "a and c are one arm")
    assert stored() == [(cells[0].run_id, *row), (cells[1].run_id, *row)]
    assert write_events(runs, cells, findings) == 0
    changed = [replace(findings[0], message="a and c are still one arm")]
    assert write_events(runs, cells, changed) == 2
    assert [r[4] for r in stored()] == ["a and c are still one arm"] * 2
    assert write_events(runs, cells, []) == 2
    assert stored() == []
    assert write_events(runs, cells, []) == 0
    assert write_events(runs, cells, changed) == 2
    assert len(stored()) == 2
