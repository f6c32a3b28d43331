"""The benchmarks at a size at which only their form can be looked at: pairs, tables, parts, processes, the
command.
"""

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from bench import iteration, main, measure, processes, stored, training
from bench.measure import Comparison, Results, Sample, Share, Side, Target
from bench.training import Scene, defaults, scene
from sorl.algorithms import CORE, resolve
from sorl.cli.bench import ON_REQUEST, PARTS
from sorl.learn.loop import Trainer
from sorl.recording.recorder import Recorder
from sorl.replay.play import play
from sorl.spec import InputError, RunSettings
from tests.cli.command import done, refused

TINY = RunSettings.model_validate(
    {
        "iterations": 1000,
        "world": {"max_turns": 2, "max_turn_tokens": 6},
        "policy": {"hidden": 16, "layers": 1, "heads": 2, "mlp": 16},
        "warmstart": {"steps": 2, "batch": 4},
        # the entropy bonus moves a policy that never succeeds and so has no other gradient
        "learn": {"episodes": 8, "group_size": 4, "epochs": 2, "minibatches": 2, "entropy_coef": 0.1},
        "evaluation": {"every": 0, "episodes": 1},
    }
)


@pytest.fixture
def stage(cache: Path) -> Iterator[Scene]:
    with scene(TINY, cache) as made:
        yield made


def side(label: str, *samples: tuple[float, float]) -> Side:
    return Side(label, [Sample(work, seconds, 2 * seconds) for work, seconds in samples])


def comparison(ours: Side, baseline: Side, target: Target = Target("ratio", 2.0)) -> Comparison:
    return Comparison("speed", "laps/s", ours, baseline, target, note="by hand", facts={"laps": 4})


# Rates 8, 2, 9 against 2, 1, 9: pairs 4, 2, 1; the medians 8 and 2 would say 4.
PAIRED = comparison(side("fast", (8, 1), (4, 2), (9, 1)), side("slow", (4, 2), (1, 1), (9, 1)))
SHARES = [Share("ppo", iterations=4, total=8.0, rollout=2.0, update=5.6, logging=0.2)]


def test_the_ratio_is_the_median_over_pairs_and_a_target_is_on_it_or_on_our_rate() -> None:
    assert (PAIRED.ratios, PAIRED.ratio) == ([4, 2, 1], 2)
    assert (PAIRED.ours.rate, PAIRED.baseline.rate) == (8, 2)
    for target, met in (
        (("ratio", 2.0), True),
        (("ratio", 2.1), False),
        (("rate", 10), True),
        (("rate", 11), False),
    ):
        assert comparison(side("a", (10, 1)), side("b", (5, 1)), Target(*target)).met is met


def test_sides_run_in_turn_and_neither_the_warm_up_nor_preparing_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    once = {name: lambda name=name: order.append(name) or Sample(len(order), 1, 1) for name in "ab"}
    a, b = measure.alternate(once["a"], once["b"], rounds=2, warm_up=1)
    assert order == ["a", "b"] * 3
    assert ([s.work for s in a], [s.work for s in b]) == ([3, 5], [4, 6])
    clock = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: sum(clock))
    monkeypatch.setattr(measure.time, "process_time", lambda: sum(clock) / 2)
    sample = measure.timed(lambda: clock.append(100) or (lambda: clock.append(4) or 12.0))()
    assert (sample.seconds, sample.cpu_seconds, sample.rate, sample.cpu_rate) == (4, 2, 3, 6)


@pytest.mark.parametrize("busy", [True, False])
def test_the_table_has_a_row_a_comparison_and_points_out_a_busy_machine(busy: bool, capsys) -> None:
    # By the clock 2 times as fast, by CPU time equally fast: something took the baseline's time.
    other = comparison(Side("a", [Sample(1, 1, 1)]), Side("b", [Sample(1, 1 + busy, 1)]))
    measure.show(Results(TINY, 3, [PAIRED, other], SHARES))
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[0].split()) == "measured unit ours baseline ratio min max by CPU target met"
    assert lines[2].split() == ["speed", "laps/s", "8", "2", "2", "1", "4", "2", "ratio", ">=", "2", "yes"]
    assert any(line.startswith("speed: fast, ") and line.endswith(" slow; by hand") for line in lines)
    assert any(line.split() == ["ppo", "2", "25.0%", "70.0%", "2.5%"] for line in lines)
    assert ("measure again" in "\n".join(lines)) is busy
    # The JSON holds every sample and what the machine was.
    found = json.loads(json.dumps(measure.as_json(Results(TINY, 3, [PAIRED], SHARES)), allow_nan=False))
    (one,) = found["comparisons"]
    assert one["ours"]["samples"][1] == {"work": 4, "seconds": 2, "cpu_seconds": 4}
    assert one["ratio"] == {"median": 2, "min": 1, "max": 4, "cpu": 2, "pairs": [4, 2, 1]}
    assert (one["target"], one["facts"]) == ({"of": "ratio", "at_least": 2, "met": True}, {"laps": 4})
    assert (found["shares"][0]["update_frac"], found["settings"]["policy"]["hidden"]) == (
        pytest.approx(0.7),
        16,
    )
    assert {"at", "machine", "versions", "rounds"} <= set(found)


def test_the_parts_run_and_every_comparison_has_as_many_pairs_as_rounds(cache: Path, capsys) -> None:
    parts = ["rollout", "update", "mixture", "logging", "shares"]
    said = []
    seen = main.run(TINY, cache, parts, 2, said.append)
    assert said[1:] == parts
    names = ["rollout", "update, ppo", "update, st-ppo", "mixture", "logging", "black box"]
    assert [c.name for c in seen.comparisons] == names
    for c in seen.comparisons:
        assert len(c.ours.samples) == len(c.baseline.samples) == 2
        assert all(s.work > 0 and s.seconds > 0 for s in [*c.ours.samples, *c.baseline.samples])
    assert [s.algorithm for s in seen.shares] == ["ppo", "grpo"]
    for share in seen.shares:
        assert min(share.rollout, share.update, share.logging) > 0
        assert share.rollout + share.update + share.logging <= share.total
    measure.show(seen)
    assert len(capsys.readouterr().out.splitlines()) > len(seen.comparisons)


def test_training_with_and_without_the_recorder_ends_at_the_same_weights(stage: Scene) -> None:
    made: list[Trainer] = []

    class Remembering(Scene):
        def trainer(self, settings: RunSettings, recorder: Recorder) -> Trainer:
            made.append(super().trainer(settings, recorder))
            return made[-1]

    training.logging(Remembering(*(getattr(stage, f.name) for f in fields(Scene))), rounds=1)
    fresh = stage.trainer(stage.settings, made[0].recorder)
    first, *others, new = (
        torch.cat([p.flatten() for p in t.learner.policy.parameters()]) for t in [*made, fresh]
    )
    assert [t.step for t in made] == [2 * training.STEPS] * 4
    assert all(torch.equal(first, other) for other in others)
    assert not torch.equal(first, new)


def test_both_sides_of_an_update_of_the_ingest_and_of_the_replay_do_the_same_work(stage: Scene) -> None:
    step = training.sampled(stage, "ppo")
    learn = defaults().learn
    assert (learn.episodes, learn.epochs, learn.minibatches, learn.staleness) == (
        64,
        4,
        4,
        0,
    ), "whatever the defaults"
    networks = [*step.policy.parameters(), *step.critic.parameters()]
    before = [p.clone() for p in networks]
    written = sum(sum(e.written) for e in step.rollout.episodes)
    assert step.tokens == training.full(step)() == training.bare(step)() == 2 * written, "once an epoch"
    assert all(torch.equal(old, new) for old, new in zip(before, networks, strict=True))
    (seen,) = stored.ingest(stage, rounds=2, rows=500)
    assert {s.work for s in [*seen.ours.samples, *seen.baseline.samples]} == {seen.facts["rows"]}
    assert seen.facts["rows"] >= 500
    batch = stored.stored(trajectories=16, turns=4, tokens=64)
    assert stored.replayed(batch)() == stored.bare_losses(batch)() == 1.0
    played = play(batch, {name: resolve(name) for name in CORE}, "ppo")
    assert not played.reasons
    assert {one.cells["turn_index"].max() for one in played.played} == {4}


WORKER = """
import json, sys
for i, line in enumerate(sys.stdin):
    lengths = [10, 20, 30, 40, 10, 20, 30, 40]
    report = {"seconds": 2.0, "cpu_seconds": 1.0, "trained_tokens": %d, "lengths": lengths}
    print(json.dumps(report), flush=True)
"""


def test_the_sides_of_the_trl_comparison_iterate_in_turn_and_get_equal_lengths(stage, tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    real = processes.theirs
    asked = []
    script.write_text(WORKER % 80)
    monkeypatch.setattr(processes, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(processes, "SCRIPT", script)
    monkeypatch.setattr(processes, "ours", lambda scene, folder: [sys.executable, "-c", WORKER % 160])
    monkeypatch.setattr(processes, "theirs", lambda *a: asked.append(real(*a)) or asked[-1])
    ragged, padless = processes.trl(stage, rounds=3)
    assert ragged.ratios == padless.ratios == [2, 2, 2]
    options = [dict(zip(command[2::2], command[3::2], strict=True)) for command in asked]
    # 160 tokens in 2 epochs of 8 episodes: 10 written an episode; 4 rollouts a prompt, so 2 prompts: 15 and
    # 35 in all
    assert [one["--prompts"] for one in options] == ["5,25", "15"]
    same = {
        "--completion": "10",
        "--completions": "8",
        "--group-size": "4",
        "--epochs": "2",
        "--minibatches": "2",
    }
    assert all(same.items() <= one.items() for one in options)
    lengths = [35] * 20 + [58] * 24 + [81] * 12 + [103] * 8
    for groups in (1, 8):  # prompts and completions add up to our lengths
        prompts = processes.prompt_lengths(lengths, 30, groups)
        assert sum(p + 30 for p in prompts) * len(lengths) / groups == pytest.approx(sum(lengths), rel=0.01)
    dies = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit('no such tokenizer')"]
    with (
        processes.worker(dies, tmp_path / "log", threads=1) as dying,
        pytest.raises(RuntimeError, match="no such tok"),
    ):
        dying.iterate()  # its last words are reported


def test_our_worker_trains_one_iteration_a_line_and_cores_are_shared_out_evenly(
    stage, monkeypatch, capsys
) -> None:
    ways = {1: [(1, 1)], 2: [(2, 1), (1, 2)], 6: [(6, 1), (3, 2), (2, 3), (1, 6)]}  # the default first
    assert {cores: processes.splits(cores) for cores in ways} == ways
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\n"))
    iteration.main(processes.ours(stage, stage.folder / "here")[2:])
    seen = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(one["lengths"]) for one in seen] == [8, 8]
    assert all(0 < one["trained_tokens"] <= 2 * sum(one["lengths"]) and one["seconds"] > 0 for one in seen)


@pytest.mark.slow
@pytest.mark.skipif(not processes.PYTHON.is_file(), reason="needs TRL's environment: make bench-trl")
def test_trl_itself_answers_the_protocol_and_trains_on_the_lengths_it_was_given(stage: Scene) -> None:
    command = processes.theirs(stage, [3, 9], completion=4)
    with processes.worker(command, stage.folder / "processes.log", threads=1) as them:
        for seen in (them.iterate(), them.iterate()):
            assert (sorted(seen["lengths"]), seen["trained_tokens"]) == ([7] * 4 + [13] * 4, 2 * 8 * 4)


def test_parts_run_in_the_order_of_the_suite_and_an_unknown_one_is_refused_with_the_nearest(
    tmp_path, monkeypatch, capsys
):
    assert main.chosen("ingest,rollout") == ["rollout", "ingest"]
    assert main.chosen("browse,live") == ["live", "browse"]
    assert set(main.COMPARISONS) | {"browse", "shares", "vocabulary"} == set(PARTS)
    for words, says in (
        ("rolout", r"--only 'rolout' is no part.*'rollout'.*ingest"),
        (" , ", "names no part"),
    ):
        with pytest.raises(InputError, match=says):
            main.chosen(words)
    monkeypatch.chdir(tmp_path)  # without TRL's environment
    assert main.chosen(None) == [part for part in PARTS if part not in ("trl", *ON_REQUEST)]
    assert "make bench-trl" in capsys.readouterr().err


def test_the_command_prints_the_table_on_stdout_and_writes_the_json(
    cache: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(main, "defaults", lambda threads: TINY)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".cache").symlink_to(cache)

    words = ("bench", "--only", "rollout", "--rounds", 2, "--output")
    file = tmp_path / "bench.json"
    assert done(*words, file, runs=tmp_path / "runs").stdout.splitlines()[2].startswith("rollout")
    assert [c["name"] for c in json.loads(file.read_text())["comparisons"]] == ["rollout"]
    refused("nowhere", "bench", "--output", tmp_path / "nowhere" / "bench.json", runs=tmp_path / "runs")
