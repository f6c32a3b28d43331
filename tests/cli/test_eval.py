"""`sorl eval` on a run that was never trained: its checkpoint is the untrained policy, its questions are
ours.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from scipy.stats import beta

from sorl.agent.tokenizer import build_tokenizer
from sorl.agent.worlds.dataset import Dataset, Item
from sorl.learn import networks
from sorl.learn.evaluate import summary
from sorl.recording.segments import append
from sorl.spec import RetrieverSettings, RunSettings, WorldSettings
from tests.agent.data.test_dataset import FLASHRAG, MEDQA, jsonl
from tests.agent.fakes import ScriptedEngine
from tests.cli.command import done, refused, told

POLICY = {"hidden": 16, "layers": 1, "heads": 2, "mlp": 16}
WORLD = {"max_turns": 2, "max_turn_tokens": 6}
SETTINGS = RunSettings(policy=POLICY, world=WORLD, warmstart={"steps": 1, "batch": 2})
RUN = "ppo-s0-abc"


@pytest.fixture
def run(runs: Path) -> Path:
    """The folder of a run with checkpoints of steps 0 and 20."""
    folder = runs / "mine" / RUN
    tokenizer = build_tokenizer()
    for step in (0, 20):
        made = folder / "checkpoints" / f"{step:06d}"
        networks.create(SETTINGS.policy, tokenizer, seed=step).save_pretrained(
            made / "policy", safe_serialization=True
        )
        (made / "progress.json").write_text(json.dumps({"step": step}))
    (folder / "config.toml").write_text(tomli_w.dumps(SETTINGS.model_dump(mode="json", exclude_none=True)))
    row = {"experiment": "mine", "algorithm": "ppo", "arm": "ppo", "seed": 0, "status": "finished"}
    append(folder, RUN, "run", row)
    return folder


def test_a_row_of_the_database_for_each_data_set_and_step(run, runs, tmp_path, monkeypatch):
    monkeypatch.setenv("SORL_CACHE", str(tmp_path))
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "contents": "Lima is the capital of Peru."}')
    result = done(
        "eval", "ppo", "--data", jsonl(tmp_path / "mine.jsonl", FLASHRAG), "--corpus", corpus, runs=runs
    )
    assert "2 rows of" in result.stderr
    assert "4 of 4 questions" in result.stderr
    medqa = jsonl(tmp_path / "medqa.jsonl", MEDQA)
    for _ in range(2):  # typed twice it is still one row
        done("eval", RUN, "--data", medqa, "--no-search", "--step", 0, runs=runs)
    query = "SELECT step, data, episodes, metric, success, f1 IS NULL AS no_f1 FROM evaluation ORDER BY step"
    assert [list(row.values()) for row in told("sql", query, runs=runs)] == [
        [0, "medqa-no-search", 3, "choice accuracy", 0.0, True],
        [20, "mine", 4, "exact match", 0.0, False],
    ]


def test_mistakes_are_named(run, runs, tmp_path):
    questions = str(jsonl(tmp_path / "mine.jsonl", FLASHRAG))
    for line, says in (
        ("--data hotpot", "did you mean 'hotpotqa'"),
        ("--data FILE", "name some: --corpus FILE.jsonl or --retriever URL"),
        ("--data FILE --no-search --step 7", "no checkpoint of step 7; there is: 0, 20"),
        ("--data FILE --corpus x --retriever http://x/", "both name a retriever"),
        ("--data FILE --corpus nowhere.jsonl", "no corpus file 'nowhere.jsonl'"),
        ("--data FILE --retriever http://127.0.0.1:9/", "start it (sorl retriever serve"),
    ):
        refused(says, "eval", RUN, *line.replace("FILE", questions).split(), runs=runs)


def test_the_summary_has_exact_intervals():
    settings = WorldSettings(
        kind="dataset", data="-", top_k=0, retriever=RetrieverSettings(kind="bm25", corpus="-")
    )
    world = Dataset(settings, items=[Item(f"q{i}?", ("alice boris", "clara")) for i in range(20)])
    said = ["clara", "alice diego", "diego", None]
    scripts = [[f"<answer> {answer} </answer>"] if answer else ["got"] * 6 for answer in said]
    engine = ScriptedEngine(build_tokenizer(), lambda q: scripts[q.id % 4])
    row = summary(world, engine.rollout(world, world.every(), range(20), torch.Generator()))
    assert (row["episodes"], row["success"], row["metric"]) == (20, 0.25, "exact match")
    assert row["success_low"] == pytest.approx(beta.ppf(0.025, 5, 16))
    assert row["success_high"] == pytest.approx(beta.ppf(0.975, 6, 15))
    assert row["f1"] == pytest.approx((1 + 0.5 + 0 + 0) / 4)
    spread = 1.96 * np.std([1, 0.5, 0, 0] * 5) / np.sqrt(20)
    assert (row["f1"] - row["f1_low"], row["f1_high"] - row["f1"]) == pytest.approx(
        (spread, spread), rel=0.25
    )
