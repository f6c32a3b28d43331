"""The ledger of any trainer: the rows of our own trainer, from plain tensors; knobs, ranks,
resumes, deaths.
"""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from sorl.measures.evidence import Evidence, Rollouts, StepEvidence
from sorl.recording import Clip, Ledger, ledger
from sorl.recording.ledger import TOKENS
from sorl.recording.recorder import Recorder
from sorl.recording.segments import SegmentWriter
from sorl.spec import BatchesSettings, InputError, RunSettings, table
from sorl.store import batches
from sorl.store.segments import held
from tests.measures.shared_batch import random_evidence
from tests.recording.local import Local, read, wait_until

ROWS = 6
TURNS = 3


class Rank(Ledger):
    """Another rank: it writes parts."""

    def _start(self, opened):
        self._handle.close()
        self._handle = None
        self._parts = self.folder / "parts" / "1"
        self._parts.mkdir(parents=True)
        self.rank = 1


def opened(runs, kind=Local, **settings):
    return kind(runs, **({"experiment": "e", "algorithm": "grpo", "clip": Clip()} | settings))


def updates_of(seed, count=2):
    """Updates of one step on the same trajectories, as our learner hands them over."""
    found = []
    for u in range(count):
        one = random_evidence(seed, ROWS, TURNS)
        moved = one.log_prob + 0.1 * u
        one = replace(
            one, log_prob=moved, epoch=torch.tensor([u]), scalars={"grad_norm": [1.0 + u], "lr": [0.5]}
        )
        found.append(replace(one, group=torch.arange(ROWS)[None] // 2))
    return found


def seen_by(one, own, rows):
    """What a trainer hands over of an update: `rows` of those that are its `own`."""
    told = {
        name: x[0][own][rows]
        for name in [*TOKENS, "mask", "advantages"]
        if (x := getattr(one, name)) is not None
    }
    terms = ("ratio", "active_low", "active_high", "out_of_range", "dual", "factor", "gradient_weight")
    told["trajectory"] = torch.arange(own.stop - own.start)[rows]
    return told | {"terms": {name: getattr(one, name)[0][own][rows] for name in terms}}


def tell(
    book,
    step,
    seed=None,
    parts=(slice(None),),
    rewards=(1.0, 0.0) * 3,
    end=True,
    own=slice(0, ROWS),
    **scalars,
):
    made = updates_of(step if seed is None else seed)
    mask = made[0].mask[0][own]
    ids = torch.arange(mask.shape[1]).repeat(len(mask), 1)
    book.rollouts(step, rewards[own], group=np.arange(ROWS)[own] // 2, responses=ids.tolist(), mask=mask)
    for u, one in enumerate(made):
        for rows in parts:
            book.update(step, update=u, epoch=u, **seen_by(one, own, rows))
        book.update(step, update=u, grad_norm=1.0 + u, lr=0.5, **scalars)
    if end:
        book.end(step)
    return made


def comparable(rows):
    timed = ("run_id", "written_at", "seconds", "memory", "tokens_per_second", "batch_hash")
    remembered = ("revisited_tokens",)  # our own trainer's recorder compares no steps
    return [{k: v for k, v in row.items() if not k.startswith((*timed, *remembered))} for row in rows]


def same(a, b):
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    floats = isinstance(a, float) and isinstance(b, float)
    return a == b or (floats and a == pytest.approx(b, rel=1e-9, nan_ok=True))


def assert_alike(one, other, *tables):
    for name in tables:
        a = comparable(read(one, name))
        b = comparable(read(other, name))
        assert len(a) == len(b) > 0, name
        for x, y in zip(a, b, strict=True):
            assert not {k: (x[k], y[k]) for k in x if not same(x[k], y[k])}, name


def test_it_writes_the_rows_that_our_own_trainer_would_have_written(tmp_path):
    with opened(tmp_path) as book:
        made = tell(book, 0)
    mask = made[0].mask[0].numpy()
    ids = [list(range(mask.shape[1]))] * ROWS
    turns = [
        [[i for i in range(mask.shape[1]) if row[i] and n[i] == k] for k in range(1, n.max() + 1)]
        for row, n in zip(mask, made[0].turn[0].numpy(), strict=True)
    ]
    count = mask.sum(1)
    rollouts = Rollouts(
        reward=np.array([1.0, 0.0] * 3),
        success=np.array([True, False] * 3),
        group=np.arange(ROWS) // 2,
        rollout_step=np.zeros(ROWS, dtype=int),
        turns=np.array([len(t) for t in turns]),
        response_tokens=count,
        observation_tokens=mask.shape[1] - count,
        tokens=ids,
        written=turns,
    )
    updates = Evidence.stack([replace(one, span=None, value_clip=None) for one in made])
    with Recorder(tmp_path / "ours", "r", RunSettings(), group=2) as recorder:
        recorder.step(0, StepEvidence(rollouts, updates, tokens_trained=2 * int(count.sum())))
    assert_alike(
        tmp_path / "ours", book.folder, "step", "minibatch", "trajectory", "turn", "turn_step", "token"
    )


@pytest.mark.parametrize("parts", [[slice(0, 2), slice(2, 6)], [slice(0, 1), slice(1, 5), slice(5, 6)]])
def test_an_update_in_parts_is_measured_over_all_its_tokens(tmp_path, parts):
    with opened(tmp_path, run="whole") as whole:
        tell(whole, 0)
    with opened(tmp_path, run="parts") as split:
        tell(split, 0, parts=parts)
    assert_alike(whole.folder, split.folder, "step", "minibatch", "turn", "turn_step", "trajectory")


def test_rows_of_several_ranks_are_measured_together(tmp_path, monkeypatch):
    with opened(tmp_path, run="one") as whole:
        tell(whole, 0)
    other = opened(tmp_path, Rank, run="two")
    monkeypatch.setattr(Local, "others", (other,))
    with opened(tmp_path, run="two") as first:
        tell(other, 0, own=slice(4, 6), policy_loss=2.0)
        tell(first, 0, own=slice(0, 4), policy_loss=4.0)
        other.close()
    assert_alike(whole.folder, first.folder, "step", "turn", "turn_step", "trajectory")
    losses = [row["policy_loss"] for row in read(first.folder, "minibatch")]
    assert losses == [3.0, 3.0]  # the mean over ranks of their sums
    assert not list((first.folder / "parts").glob("*/*"))


def test_a_rank_that_does_not_come_costs_its_rows_and_is_an_event(tmp_path, monkeypatch):
    monkeypatch.setattr("sorl.recording.scribe.RANKS_WAIT", 0.05)
    monkeypatch.setattr(Local, "others", (opened(tmp_path, Rank, run="r"),))
    with opened(tmp_path, run="r") as book:
        tell(book, 0)
    assert [row["kind"] for row in read(book.folder, "event")] == ["rank_missing"]
    assert read(book.folder, "step")[0]["updates"] == 2


def test_ratio_clip_and_weights_follow_from_the_clip_that_was_told_and_without_one_are_null(tmp_path):
    old = torch.zeros(2, 4)
    mask = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0]])
    moved = torch.tensor([[0.5, -0.5, 9.0, 0.1], [0.5, 0.0, 0.0, 0.0]])
    for name, clip in (("told", Clip(0.8, 1.2)), ("unknown", None)):
        with opened(tmp_path, run=name, clip=clip) as book:
            book.rollouts(0, [0.3, 0.7])
            book.update(0, log_prob=moved, log_prob_old=old, mask=mask, advantages=torch.tensor([1.0, -1.0]))
    told, unknown = (read(tmp_path / "e" / name, "minibatch")[0] for name in ("told", "unknown"))
    assert told["clip_frac"] == 0.25  # of 4 tokens one is above the range with A > 0
    assert told["out_of_range_frac"] == 0.75
    assert unknown["clip_frac"] is None
    assert unknown["unit_ratio_mean"] is None
    assert unknown["entropy"] is None
    assert told["approx_kl"] == unknown["approx_kl"] == pytest.approx(-(0.5 - 0.5 + 0.1 + 0.5) / 4)
    turns = read(tmp_path / "e" / "told", "turn")
    found = [(row["trajectory"], row["turn_index"], row["n_tokens"]) for row in turns]
    assert found == [(0, 1, 2), (0, 2, 1), (1, 1, 1)]
    shares = np.array([row["gradient_share"] for row in turns])
    assert shares == pytest.approx(
        np.array([np.exp(-0.5), np.exp(0.1), np.exp(0.5)]) / np.exp([-0.5, 0.1, 0.5]).sum()
    )
    step = read(tmp_path / "e" / "told", "step")[0]
    assert (step["success"], step["reward"]) == (0.5, 0.5)  # no success was told: the mean reward stands in
    assert read(tmp_path / "e" / "told", "trajectory")[0]["success"] is None


def test_levels_of_the_clip_pool_the_ratio_over_turn_or_sequence(tmp_path):
    moved = torch.tensor([[0.2, 0.4, 0.0, 0.9]])
    for level, expected in (("turn", [0.3, 0.9]), ("sequence", [0.5, 0.5])):
        with opened(tmp_path, run=level, clip=Clip(level=level)) as book:
            book.rollouts(0, [1.0])
            book.update(0, log_prob=moved, log_prob_old=0 * moved, mask=[[1, 1, 0, 1]], advantages=[1.0])
        found = read(book.folder, "minibatch")[0]
        assert [found["unit_ratio_min"], found["unit_ratio_max"]] == pytest.approx(np.exp(expected))


def test_prompts_move_the_tokens_of_an_update_to_their_place_in_the_transcript(tmp_path):
    words = [["a", "b", "c", "d"], ["e", "f"]]
    with opened(tmp_path, tokens=2) as book:
        book.rollouts(
            0, [1.0, 0.0], prompts=[["q"], ["q", "?"]], responses=words, group=[0, 0], answer=["d", None]
        )
        x = torch.tensor([[-1.0, -2.0, -3.0, -4.0], [-5.0, -6.0, 0.0, 0.0]])
        mask = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0]])
        book.update(0, log_prob=x, log_prob_old=x, mask=mask, advantages=[1.0, -1.0], entropy=-x)
    rows = {row["trajectory"]: row for row in read(book.folder, "token")}
    assert rows[0]["token"] == ["q", "a", "b", "c", "d"]
    assert rows[0]["log_prob"] == [None, -1.0, None, -3.0, -4.0]
    assert rows[0]["turn_index"] == [0, 1, 0, 2, 2]
    assert rows[1]["token"] == ["q", "?", "e", "f"]
    assert rows[1]["entropy"] == [None, None, 5.0, 6.0]
    first = read(book.folder, "trajectory")[0]
    assert [first[k] for k in ("n_turns", "n_tokens", "n_observation_tokens", "answer")] == [2, 3, 1, "d"]
    stored = batches.read(book.folder, 0)
    assert stored.texts[int(stored.tokens[1, 1])] == "?"
    assert stored.response.tolist() == [[False, True, True, True, True], [False, False, True, True, False]]
    assert stored.updates[0].log_prob[1].tolist() == [0, 0, -5, -6, 0]
    assert stored.log_prob_behaviour is None


def test_detail_is_thinned_out_except_around_an_alarm(tmp_path):
    keep = BatchesSettings(before=2, last=3)
    with opened(tmp_path, every=5, batches=keep) as book:
        for step in range(16):
            tell(book, step, seed=1, end=False)
            book.update(step, update=1, policy_loss=float("nan") if step == 8 else 0.0)
            book.end(step)
    kept = {row["step"] for row in read(book.folder, "turn")}
    alarms = {row["step"] for row in read(book.folder, "event") if row["severity"] != "info"}
    around = {s for a in alarms for s in range(a - 2, a + 3) if 0 <= s < 16}
    assert 8 in alarms
    assert kept == {0, 5, 10, 15} | around
    assert kept != set(range(16))
    assert [row["step"] for row in read(book.folder, "step")] == list(range(16))


def test_an_event_that_the_trainer_tells_is_a_row(tmp_path):
    with opened(tmp_path) as book:
        tell(book, 0)
        book.event(0, "rollback", "the weights of update 4 are back")
    (event,) = [row for row in read(book.folder, "event") if row["kind"] == "rollback"]
    assert (event["step"], event["severity"]) == (0, "warning")
    assert event["message"] == "the weights of update 4 are back"


def test_a_share_of_the_trajectories_is_whole_prompt_groups_and_the_rewards_are_all_there(tmp_path):
    with opened(tmp_path, trajectories=3) as book:
        for step in range(12):
            tell(book, step)
    seen = {}
    for row in read(book.folder, "turn"):
        seen.setdefault(row["step"], set()).add(row["trajectory"])
    # groups are (0, 1), (2, 3), (4, 5)
    assert all({t ^ 1 for t in found} == found for found in seen.values())
    assert 1 <= np.mean([len(found) for found in seen.values()]) <= 5
    assert all(row["reward"] == 0.5 for row in read(book.folder, "step"))


def test_more_than_the_memory_allows_is_left_out_with_one_warning_and_an_event(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "sorl.recording"), opened(tmp_path, memory_mb=0) as book:
        for step in range(3):
            tell(book, step)
    assert len([r for r in caplog.records if "left out" in r.message]) == 1
    assert read(book.folder, "minibatch") == []


def test_a_mistake_in_a_call_is_one_warning_and_never_an_exception(tmp_path, caplog):
    x = torch.zeros(2, 3)
    with caplog.at_level(logging.WARNING, "sorl.recording"), opened(tmp_path) as book:
        book.rollouts(0, [1.0, 0.0], group=[0])
        for _ in range(2):
            book.update(0, log_prob=x, log_prob_old=x, mask=x[:, :2], advantages=x)
            book.update(0, log_prob=x, log_prob_old=x, mask=x, advantages=x, gradnorm=1.0)
    text = "\n".join(r.message for r in caplog.records)
    assert text.count("update() could not be recorded") == 1
    assert "rollouts() could not be recorded: ValueError: 2 rewards, but {'group': 1}" in text


def test_a_run_is_recorded_by_one_process_and_a_second_start_gets_a_name_of_its_own(tmp_path):
    with opened(tmp_path) as first, opened(tmp_path) as second, opened(tmp_path) as third:
        assert [second.run_id, third.run_id] == [f"{first.run_id}-g2", f"{first.run_id}-g3"]
        with pytest.raises(InputError, match="is being recorded by another process"):
            opened(tmp_path, run=first.run_id, resume=True)
    with pytest.raises(InputError, match="resume=True"):
        tell(opened(tmp_path, run=first.run_id), 0)
    with pytest.raises(InputError, match="is no name of a folder"):
        opened(tmp_path, experiment="../e")


def test_a_resumed_run_goes_on_where_it_was_and_nothing_is_doubled(tmp_path):
    with opened(tmp_path, run="r") as book:
        for step in range(4):
            tell(book, step, rewards=(1.0,) * ROWS)
    with opened(tmp_path, run="r", resume=True) as book:
        for step in range(2, 6):
            tell(book, step, rewards=(1.0,) * ROWS)
    assert [row["step"] for row in read(book.folder, "step")] == list(range(6))
    turns = [(r["step"], r["epoch"], r["trajectory"], r["turn_index"]) for r in read(book.folder, "turn")]
    assert len(turns) == len(set(turns))
    assert [row["step"] for row in book.scribe.recorder.history] == list(range(6))
    assert read(book.folder, "run")[-1]["steps"] == 6


def test_a_full_disk_keeps_the_small_tables_in_memory_and_drops_the_rest(tmp_path, monkeypatch):
    with opened(tmp_path) as book:
        tell(book, 0)
        assert wait_until(lambda: len(read(book.folder, "step")) == 1)
        monkeypatch.setattr(SegmentWriter, "refused", True)
        tell(book, 1)
        assert wait_until(lambda: len(read(book.folder, "step")) == 2)
        monkeypatch.undo()
    assert [row["step"] for row in read(book.folder, "step")] == [0, 1]
    assert {row["step"] for row in read(book.folder, "turn")} == {0}


PLAIN = """
    book = Ledger(runs, experiment="e", algorithm="grpo", clip=Clip(), run=run, resume=first > 0)
    x = torch.zeros(4, 6)
    for step in range(first, 10**6):
        book.rollouts(step, [1.0, 0.0] * 2, group=[0, 0, 1, 1])
        for u in range(2):
            book.update(
                step, epoch=u, log_prob=x, log_prob_old=x, mask=x + 1, advantages=x[:, 0], grad_norm=1.0
            )
        book.end(step)
        ended(step)
"""
TRL = """
    class Endless(FakeGRPO):
        def _maybe_log_save_evaluate(self, *told, **more):
            if self._step % 8 == 0:
                ended(first + self._step // 8 - 1)

    trainer = Endless()
    trainer.micro = 500 * trainer.micro
    trainer.told["rollouts"] = 500 * rollouts
    trainer.state.global_step = 8 * first
    book = record(trainer, runs, experiment="e", run=run, resume=first > 0)
    trainer.train()
"""
START = """
    import sys, time, torch
    from pathlib import Path
    from tests.trainers.fake_trl import FakeGRPO
    from sorl.trainers.trl import record
    from sorl.recording import Clip, Ledger
    runs, run = sys.argv[1:]
    rollouts = FakeGRPO().told["rollouts"]
    checkpoint = Path(runs) / f"{run}.step"  # of every seventh step
    first = int(checkpoint.read_text()) if checkpoint.is_file() else 0

    def ended(step):
        if step % 7 == 0:
            checkpoint.with_suffix(".new").write_text(str(step + 1))
            checkpoint.with_suffix(".new").replace(checkpoint)
        print(step, book._process.pid, time.time(), flush=True)
        time.sleep(0.05)
"""


def trainer(folder, run, text=PLAIN):
    command = [sys.executable, "-c", textwrap.dedent(START) + textwrap.dedent(text), str(folder), run]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline().split()
    assert line, process.stderr.read()
    return process, int(line[1])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_two_trainers_in_one_folder_killed_again_and_again_lose_two_seconds_and_double_nothing(
    tmp_path, times
):
    for _ in range(times):
        both = {run: trainer(tmp_path, run, text)[0] for run, text in (("plain", PLAIN), ("trl", TRL))}
        time.sleep(3)
        for run, process in both.items():
            process.kill()
            killed = time.time()
            lines = [line.split() for line in process.stdout if len(line.split()) == 3]
            process.wait()
            assert wait_until(lambda run=run: not held(tmp_path / "e" / run), 120)  # the recorder is done
            kept = {row["step"] for row in read(tmp_path / "e" / run, "step")}
            assert {int(step) for step, _, at in lines if float(at) < killed - 2} <= kept
    for run in both:
        folder = tmp_path / "e" / run
        for name in ("step", "minibatch", "trajectory", "turn", "turn_step"):
            keys = [tuple(row[key] for key in table(name).key) for row in read(folder, name)]
            assert len(keys) == len(set(keys)) > 0, name
        steps = sorted(row["step"] for row in read(folder, "step"))
        assert steps == list(range(len(steps)))
        assert {row["status"] for row in read(folder, "run")} == {"running"}


def test_a_dead_recorder_never_stops_training_and_says_so_once(tmp_path):
    process, scribe = trainer(tmp_path, "r")
    os.kill(scribe, signal.SIGKILL)
    for _ in range(20):
        process.stdout.readline()
    assert process.poll() is None
    process.terminate()
    assert process.communicate()[1].count("training goes on") == 1


def test_the_recorder_starts_without_torch_and_without_what_reads_the_rows():
    heavy = "torch transformers pyarrow duckdb pandas streamlit sorl.objective sorl.measures"
    code = f"import sys, sorl.recording; print([m for m in {heavy.split()!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_half_precision_is_widened_and_what_the_trainer_changes_later_is_not_seen():
    half = torch.tensor([1.5], dtype=torch.bfloat16)
    kept = ledger._host(half)
    own = torch.tensor([1.0])
    copied = ledger._host(own)
    own += 1
    assert ledger._numpy(kept).tolist() == [1.5]
    assert ledger._numpy(copied).tolist() == [1.0]
