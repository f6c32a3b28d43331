"""`sorl replay`: the answer in every format, and what to type where there is none."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from sorl.replay.corrections import TABLES
from sorl.replay.tables import CULPRITS, SUMMARY, TOKENS, TURNS
from sorl.store import batches
from tests.cli.command import done, refused, told
from tests.store.stored_batch import write_batch


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "demo" / "ppo-s0"
    for step in (4, 5, 9):
        write_batch(folder, step)
    return folder


def test_all_six_stand_next_to_what_was_logged(run):
    text = done("replay", run, "--step", 5, "--trajectory", 6).stdout
    assert "step 5: 2 updates in 1 epoch on 8 trajectories" in text
    assert "! its advantages, recomputed from the stored rewards, differ by up to" in text
    for name in ("ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo", "logged", "By turn"):
        assert name in text


def test_json_holds_every_table_with_null_where_nothing_was_measured(run):
    write_batch(run, 4, arrays={"values": None}, algorithm="grpo")
    found = told("replay", run, "--step", 4, "--trajectory", 6, "--algorithm", "ppo")
    assert (found["run"], found["step"], found["own"], found["updates"]) == ("ppo-s0", 4, "grpo", 2)
    assert list(found["reasons"]) == ["ppo"]
    for name, columns in (("summary", SUMMARY), ("turns", TURNS), ("culprits", CULPRITS), ("tokens", TOKENS)):
        assert [list(row) for row in found[name]] == [[c.name for c in columns]] * len(found[name])
    row = next(r for r in found["summary"] if r["algorithm"] == "ppo")
    assert row["policy_loss"] is None
    assert "critic" in row["reason"]
    assert [r["policy_loss"] for r in found["summary"] if r["source"] == "logged"] == [0.5, 0.5, 0.5]


def test_one_table_as_csv_and_parquet(run, tmp_path):
    text = done("replay", run, "--step", 9, "--format", "csv", "--table", "turns", "--update", 1).stdout
    found = told("replay", run, "--step", 9, "--tokens")
    assert found["culprits"][0]["algorithm"] == found["own"]
    assert {row["trajectory"] for row in found["tokens"]} == {found["culprits"][0]["trajectory"]}
    header, *lines = text.splitlines()
    assert header.split(",") == [c.name for c in TURNS]
    assert {line.split(",")[2] for line in lines} == {"1"}
    file = tmp_path / "x.parquet"
    done("replay", run, "--step", 9, "--format", "parquet", "--table", "summary", "-o", file)
    table = pq.read_table(file)
    assert table.column_names == [c.name for c in SUMMARY]
    assert table["reason"].null_count == table.num_rows
    assert table["grad_norm"].to_pylist().count(1.5) == 3


def test_variants_come_from_options_and_from_a_file(run, tmp_path):
    found = told("replay", run, "--step", 4, "--set", "clip.high=0.5")
    assert {r["algorithm"] for r in found["summary"]} == {"ppo", "ppo (clip 0.5)"}
    file = tmp_path / "variants.toml"
    file.write_text('[wide]\nbase = "ppo"\nratio = "turn"\nclip = { high = 5.0 }\n')
    found = told("replay", run, "--step", 4, "--variants", file)
    assert [r["algorithm"] for r in found["summary"]] == ["ppo"] * 6 + ["wide"] * 3


def test_wrong_input_is_one_message_that_says_what_to_type(run):
    for line, says in (
        ("", "name a stored step of run 'ppo-s0' with --step; stored are 4-5, 9"),
        ("--step 7", "the nearest is --step 5"),
        ("--step 4 --update 2", "no update 2; there are 0 to 1"),
        ("--step 4 --trajectory 8", "no trajectory 8; there are 0 to 7"),
        ("--step 4 --trajectory 1 --update 1", "in updates 0 of step 4 only"),
        ("--step 4 --algorithm pppo", "did you mean 'ppo'?"),
        ("--step 4 --set clip", "write it like --set clip.high=0.3"),
        ("--step 4 --set clip.hihg=1", "unknown option 'hihg'"),
        ("--step 4 --variants none.toml", "cannot read --variants"),
        ("--step 4 --format csv", "add --table"),
        ("--step 4 --format parquet --table turns", "add --output FILE.parquet"),
        ("--step 4 --table turn", "did you mean 'turns'?"),
        ("--step 4 --gradients", "record.batches.weights_mb"),
    ):
        refused(says, "replay", run, *line.split())


def test_a_corrupt_batch_is_named_and_text_of_tokens_cannot_control_the_terminal(run):
    write_batch(run, 4, text="\x1b[31mred\x1b[0m")
    assert "\x1b" not in done("replay", run, "--step", 4, "--trajectory", 0, "--algorithm", "ppo").stdout
    file = run / "batches" / "000004.safetensors"
    file.write_bytes(file.read_bytes()[:50])
    refused("cannot be read", "replay", run, "--step", 4)


def test_corrections_are_told_in_tables_of_their_own(run):
    old = batches.read(run, 4).log_prob_old
    gap = np.random.default_rng(0).normal(-0.3, 0.8, old.shape)
    write_batch(run, 4, arrays={"log_prob_behaviour": (old - gap).astype(np.float32)})
    found = told(
        "replay", run, "--step", 4, "--corrections", "--algorithm", "tis", "--set", "correction.cap=1.5"
    )
    for name, columns in TABLES.items():
        assert [list(row) for row in found[name]] == [[c.name for c in columns]] * len(found[name])
    assert found["corrections"][0]["correction"] == "tis (correction 1.5)"
    text = done("replay", run, "--step", 4, "--corrections").stdout
    assert "What each correction leaves of the batch" in text
    assert "By turn" in text
    header, *_ = done(
        "replay", run, "--step", 4, "--table", "silenced", "--format", "csv"
    ).stdout.splitlines()
    assert header.split(",") == [c.name for c in TABLES["silenced"]]
    assert "no correction changes anything" in done("replay", run, "--step", 5, "--corrections").stdout
    refused(
        "--corrections has no table turns", "replay", run, "--step", 4, "--corrections", "--table", "turns"
    )
