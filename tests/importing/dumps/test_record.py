"""Steps of a dump as steps of a run: what is written, what stays NULL, and what does not fit into memory."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest
import torch

from sorl.importing.dumps import record
from sorl.importing.dumps.record import DumpRecorder, Identity, thinned, update_tensors
from sorl.importing.dumps.rows import Coverage, Dump, DumpStep, Row, Sampler, Update
from sorl.replay.play import Loaded, play, unanswerable
from sorl.store import batches

PROMPT = [1, 2]


class MadeDump(Dump):
    trainer = "NeMo-RL"
    format = "made"

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return False

    def steps(self, after: int, *, is_live: bool = False) -> Iterator[DumpStep]:
        yield from ()


def row(trajectory: str, response: list[int], written: list[int], **told) -> Row:
    columns = {name: np.asarray(values, np.float32) for name, values in told.pop("columns", {}).items()}
    return Row(
        trajectory,
        np.array([*PROMPT, *response], np.int32),
        len(PROMPT),
        np.array(written, bool),
        columns=columns,
        **told,
    )


def two_turns(trajectory: str, reward: float | None, **told) -> Row:
    log_probs = {"log_prob_behaviour": [-0.5, -0.25, 0, -1.0], "log_prob_old": [-0.5, -0.375, 0, -1.5]}
    told.setdefault("columns", log_probs)
    return row(trajectory, [5, 6, 7, 8], [1, 1, 0, 1], reward=reward, group="g", **told)


def recorded(folder: Path, *steps: DumpStep) -> DumpRecorder:
    home = folder / "dumps" / "run"
    home.mkdir(parents=True)
    recorder = DumpRecorder(MadeDump(folder, Sampler()), Identity("run", "dumps", home))
    for step in steps:
        recorder.record(step)
    recorder.finish()
    return recorder


def asked(folder: Path, table: str, columns: str) -> list[tuple]:
    files = folder / "dumps" / "run" / "segments" / table / "*.parquet"
    return duckdb.sql(f"SELECT {columns} FROM read_parquet('{files}') ORDER BY ALL").fetchall()


def test_a_step_has_its_rewards_mismatch_and_turns_and_null_for_what_the_dump_lacks(tmp_path):
    recorded(tmp_path, DumpStep(3, [two_turns("a", 1.0), two_turns("b", 0.0)]))
    assert asked(tmp_path, "step", "step, reward, success, entropy") == [(3, 0.5, 0.5, None)]
    ((mismatch,),) = asked(tmp_path, "minibatch", "mismatch")
    assert mismatch == pytest.approx(np.mean([0, 0.125, 0.5]))
    turns = asked(tmp_path, "turn", "trajectory, turn_index, n_tokens, ratio_geo, clip_frac")
    assert turns == [
        (0, 1, 2, None, None),
        (0, 2, 1, None, None),
        (1, 1, 2, None, None),
        (1, 2, 1, None, None),
    ]
    ((tokens,),) = asked(tmp_path, "token", "list(log_prob_old ORDER BY trajectory)")
    assert tokens[0] == [None, None, -0.5, -0.375, None, -1.5]


def test_rewards_that_a_dump_lacks_are_null_and_its_rollouts_are_still_counted(tmp_path):
    recorded(tmp_path, DumpStep(0, [two_turns("a", None), two_turns("b", None)]))
    assert asked(tmp_path, "step", "reward, success, turns") == [(None, None, 2.0)]
    stored = batches.read(tmp_path / "dumps" / "run", 0)
    assert {"score", "log_prob", "advantages"} == stored.absent


def test_a_reward_that_one_rollout_lacks_is_null_there_and_the_mean_is_of_the_others(tmp_path):
    recorded(tmp_path, DumpStep(0, [two_turns("a", 0.25), two_turns("b", None)]))
    assert asked(tmp_path, "trajectory", "trajectory, reward") == [(0, 0.25), (1, None)]
    assert asked(tmp_path, "step", "reward") == [(0.25,)]


def test_rows_of_one_rollout_make_one_reward_and_a_tree(tmp_path):
    fork = row("a", [5, 6, 9], [1, 1, 1], reward=1.0, group="g")
    recorded(tmp_path, DumpStep(0, [two_turns("a", 1.0, columns={}), two_turns("b", 0.0, columns={}), fork]))
    assert asked(tmp_path, "step", "reward, success, turns") == [(0.5, 0.5, 2.5)]
    tree = asked(tmp_path, "trajectory", "trajectory, rollout, parent, shared_tokens")
    assert tree == [(0, 0, None, 0), (1, 1, None, 0), (2, 0, 0, 4)]


def test_updates_of_a_step_have_their_own_log_probs(tmp_path):
    rows = [two_turns("a", 1.0), two_turns("b", 0.0)]
    rows = [replace(one, columns={**one.columns, "advantages": np.ones(4, np.float32)}) for one in rows]
    at = np.array([-0.5, -0.375, 0, -1.0], np.float32)
    updates = [Update([0], {0: at}), Update([1], {1: at}, epoch=0)]
    recorded(tmp_path, DumpStep(0, rows, updates))
    ratios = asked(tmp_path, "minibatch", "update, ratio_max")
    assert ratios == [(0, pytest.approx(np.exp(0.5))), (1, pytest.approx(np.exp(0.5)))]
    assert not batches.read(tmp_path / "dumps" / "run", 0).absent


def test_a_token_that_the_loss_leaves_out_is_written_and_not_trained(tmp_path):
    untrained = two_turns("a", 1.0, trained=np.zeros(4, bool))
    recorded(tmp_path, DumpStep(0, [untrained, two_turns("b", 0.0)]))
    assert asked(tmp_path, "trajectory", "trajectory, n_tokens") == [(0, 3), (1, 3)]
    assert {trajectory for trajectory, _ in asked(tmp_path, "turn", "trajectory, turn_index")} == {1}


def test_a_replay_answers_for_the_first_update_and_says_so(tmp_path):
    rows = [two_turns("a", 1.0), two_turns("b", 0.0)]
    recorded(tmp_path, DumpStep(0, rows))
    from sorl.algorithms import resolve

    done = play(batches.read(tmp_path / "dumps" / "run", 0), {"grpo": resolve("grpo")}, "grpo")
    assert any("first update" in caveat for caveat in done.caveats)
    assert any("algorithm is not known" in caveat for caveat in done.caveats)
    assert done.advantage_gap is None


def test_no_algorithm_answers_without_rewards():
    assert "rewards" in unanswerable(None, None, None, is_unscored=True)  # type: ignore[arg-type]


def test_a_second_session_goes_on_behind_the_last_step(tmp_path):
    recorded(tmp_path, DumpStep(0, [two_turns("a", 1.0)]))
    home = tmp_path / "dumps" / "run"
    again = DumpRecorder(MadeDump(tmp_path, Sampler()), Identity("run", "dumps", home))
    assert again.last_step == 0
    again.record(DumpStep(1, [two_turns("a", 0.0)]))
    again.finish()
    assert asked(tmp_path, "step", "step, reward") == [(0, 1.0), (1, 0.0)]


def test_whole_groups_lose_their_tokens_where_a_step_is_too_large(monkeypatch):
    rows = [replace(two_turns(f"{n}", 1.0), group=f"g{n // 2}") for n in range(8)]
    monkeypatch.setattr(record, "MOST_CELLS", 6 * 4)
    thin = thinned(DumpStep(0, rows))
    kept = [one.group for one in thin.rows if one.is_measured]
    assert len(kept) == 4
    assert sorted(kept) == sorted([*{*kept}] * 2)
    assert [one.reward for one in thin.rows] == [1.0] * 8
    assert thinned(DumpStep(0, rows)).rows[0].is_measured == thin.rows[0].is_measured
    monkeypatch.setattr(record, "MOST_CELLS", 1)
    assert sum(one.is_measured for one in thinned(DumpStep(0, rows)).rows) == 2  # one group at least


def test_a_column_that_a_row_lacks_is_not_known_of_the_update():
    rows = [two_turns("a", 1.0), two_turns("b", 1.0, columns={"log_prob_old": [0, 0, 0, 0]})]
    tensors = update_tensors(rows, Update([0, 1]))
    assert "log_prob_old" in tensors
    assert "log_prob_behaviour" not in tensors


def test_coverage_adds_up_and_names_the_rest():
    coverage = Coverage()
    assert coverage.sentences() == []
    coverage.join(75)
    coverage.miss("of a step without its file", 25)
    whole = Coverage()
    whole.add(coverage)
    whole.add(coverage)
    assert whole.sentences() == [
        "75.0 % of trained tokens joined to a rollout; the rest: 50 of a step without its file."
    ]


def test_the_account_of_a_dump_is_kept_as_events(tmp_path):
    coverage = Coverage()
    coverage.join(6)
    recorded(tmp_path, DumpStep(2, [two_turns("a", 1.0)], coverage=coverage))
    ((step, kind, message),) = asked(tmp_path, "event", "step, kind, message")
    assert (step, kind, message) == (2, "dump", "100.0 % of trained tokens joined to a rollout.")


def test_a_replay_counts_the_reward_of_a_rollout_once(tmp_path):
    from sorl.algorithms import resolve

    fork = row("a", [5, 6, 9], [1, 1, 1], reward=1.0, group="g", columns={"log_prob_old": [-1, -1, -1]})
    rest = [two_turns(name, 0.0, columns={"log_prob_old": [-1, -1, 0, -1]}) for name in "bc"]
    first = two_turns("a", 1.0, columns={"log_prob_old": [-1, -1, 0, -1]})
    recorded(tmp_path, DumpStep(0, [first, *rest, fork]))
    algorithm = resolve({"base": "grpo", "advantage": "mean_only"})
    played = Loaded(batches.read(tmp_path / "dumps" / "run", 0), algorithm, torch.float64)
    advantages = played.estimated(algorithm).need("advantages").amax(1)
    assert advantages[[0, 3]].tolist() == pytest.approx([2 / 3, 2 / 3])
