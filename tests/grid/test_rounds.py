"""Grids whose cells depend on recorded runs: the rounds of a region, and learning rates matched run by run."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.grid.harness import Tape, put_warm_start, script, starts
from workbench.grid.config import Grid, load
from workbench.grid.folder import History, append
from workbench.grid.run import Limits, Result, run_rounds
from workbench.spec import InputError
from workbench.store.segments import now

REGION = """
kind = "region"
question = "Where does each algorithm collapse?"
seeds = [0, 1]
[base]
iterations = 2
[axes]
algorithm = ["grpo"]
"learn.staleness" = [0, 8]
[region]
low = 0.1
high = 0.8
points = 4
probes = 1
"""
MATCHED = """
question = "Is it the smaller step?"
seeds = [0, 1]
[base]
iterations = 2
learn.policy.lr = 0.2
[axes]
algorithm = ["s-ppo"]
[[arms]]
name = "ppo, matched"
algorithm = "ppo"
match = "s-ppo"
"""


def file(folder: Path, text: str, **scripts: Any) -> Path:
    path = folder / "demo.toml"
    path.write_text(text)
    script(folder, **scripts)
    put_warm_start(folder / "runs", load(path).cells[0])
    return path


def rounds(path: Path, told: list[Grid] | None = None, **options: Any) -> tuple[Grid, list[Result]]:
    runs, history = path.parent / "runs", History(path.parent / "runs", now() if options.get("fresh") else None)
    begin = ([] if told is None else told).append
    options = {"workers": 2, **options}
    return run_rounds(lambda: load(path, (), history), runs, Tape, begin, **options)


FALLS = {"grpo": {"0": 0.3, "8": 0.3}}


def test_a_region_is_searched_round_by_round_and_the_same_call_goes_on(tmp_path):
    path = file(tmp_path, REGION, falls=FALLS)
    told: list[Grid] = []
    # The first round fails at one of its runs: nothing that depends on it is begun.
    label = "grpo · staleness 0 · policy.lr 0.2"
    script(tmp_path, falls=FALLS, **{label: {"fail_at": 1}})
    grid, results = rounds(path, told, limits=Limits(retries=0))
    assert [(r.cell.arm, r.cell.seed, r.status) for r in results] == [(label, 0, "failed")]
    assert grid.region.progress.rounds == 0
    script(tmp_path, falls=FALLS)
    grid, results = rounds(path, told)
    assert {r.status for r in results} == {"finished"}
    assert not grid.region.progress.now
    probed = [(c.settings.learn.staleness, c.settings.learn.policy.lr, c.seed) for c in grid.cells]
    assert probed == [(staleness, lr, seed) for staleness in (0, 8) for seed in (0, 1) for lr in (0.2, 0.4)]
    assert len(told) > 2
    _, again = rounds(path)
    assert all(r.skipped for r in again), "a search that is over starts nothing"
    assert {starts(r.folder) for r in again if r.cell.arm != label} == {1}


def test_the_matched_arm_waits_for_its_source_and_takes_its_factor_seed_by_seed(tmp_path):
    path = file(tmp_path, MATCHED, **{"s-ppo": {"factor": 0.75}})
    known = load(path)
    assert [c.arm for c in known.cells] == ["s-ppo", "s-ppo"]
    assert [str(w) for w in known.waiting] == [f"'ppo, matched' seed {s} waits for s-ppo seed {s}" for s in (0, 1)]
    grid, results = rounds(path)
    assert not grid.waiting
    matched = [r.cell for r in results if r.cell.arm == "ppo, matched"]
    assert [(c.seed, c.settings.learn.policy.lr, c.settings.match) for c in matched] == [
        (s, 0.15, "s-ppo") for s in (0, 1)
    ]
    _, again = rounds(path)
    assert all(r.skipped for r in again)
    assert {r.cell.run_id for r in again} == {r.cell.run_id for r in results}
    history, cell = History(tmp_path / "runs"), known.cells[0]
    assert history.factor(cell) == 0.75
    assert history.past(replace(cell, generation=7)) == history.past(cell), "the newest start, asked with any"
    assert History(tmp_path / "runs", since=now()).past(cell) is None, "only those that ended since"


def test_an_arm_of_another_experiment_is_followed_past_bad_folders_or_asked_for(tmp_path):
    (tmp_path / "other").mkdir()
    path = file(tmp_path, MATCHED.replace('match = "s-ppo"', 'match = "other/s-ppo"'))
    waiting = load(path, (), History(tmp_path / "runs")).waiting
    assert "waits for other/s-ppo seed 0; train it with `sorl run experiments/other.toml`" in str(waiting[0])
    hurt = tmp_path / "runs" / "other"
    for name, told in (("text", "{"), ("a list", "[]"), ("deep", "[" * 10**5)):
        (hurt / name).mkdir(parents=True)
        (hurt / name / "run.json").write_text(told)
    source = hurt / "s-ppo-s0"
    (source / "segments" / "minibatch").mkdir(parents=True)
    (source / "run.json").write_text('{"arm": "s-ppo", "seed": 0}')
    append(source, "run", {"run_id": source.name, "status": "finished", "written_at": now()})
    for number, factor in enumerate((["text"], [0.5, None, 0.75])):
        pq.write_table(pa.table({"stabiliser_factor": factor}), source / f"segments/minibatch/{number:06d}.parquet")
    os.mkfifo(source / "segments" / "minibatch" / "000002.parquet")
    grid = load(path, (), History(tmp_path / "runs"))
    assert [str(w).split(";")[0] for w in grid.waiting] == ["'ppo, matched' seed 1 waits for other/s-ppo seed 1"]
    (matched,) = (c for c in grid.cells if c.arm == "ppo, matched")
    assert matched.settings.learn.policy.lr == 0.2 * 0.625


@pytest.mark.parametrize(
    ("text", "old", "new", "told"),
    [
        (MATCHED, 'match = "s-ppo"', 'match = "s-pppo"', "no arm of this file (did you mean 's-ppo'?)"),
        (MATCHED, 'match = "s-ppo"', 'match = "ppo, matched"', "is matched itself"),
        (REGION, "[region]", "[region]\nalong = 'learn.policy.lrr'", "did you mean 'learn.policy.lr'?"),
        (REGION, "[region]", "[region]\nalong = 'learn.staleness'", "an axis at once"),
        (REGION, "[region]", "[[arms]]\nname = 'a'\nlearn.policy.lr = 0.1\n[region]", "which is searched; delete it"),
        (REGION, "[region]", "[[arms]]\nname = 'a'\nmatch = 'grpo'\n[region]", "'match', which a region cannot have"),
        (REGION, "low = 0.1", "low = 0.9", "low = 0.9 must be below high = 0.8"),
        (REGION, "points = 4", "points = 2", "greater than or equal to 3"),
        (REGION, 'kind = "region"', 'kind = "grid"', "[region] needs kind = 'region'"),
        (REGION, REGION[REGION.index("[region]") :], "", "kind = 'region' needs a table [region]"),
        (REGION, '["grpo"]', '["grpo", "pppo"]', "did you mean 'ppo'?"),
        (REGION, "[0, 8]", "[]", "axis 'learn.staleness'"),
    ],
)
def test_a_mistake_in_a_search_or_a_match_is_named(tmp_path, text, old, new, told):
    path = tmp_path / "demo.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError) as refused:
        load(path)
    assert told in str(refused.value)


def test_controls_have_a_region_too_and_further_axes_have_columns_of_their_own(tmp_path):
    path = tmp_path / "demo.toml"
    text = REGION.replace("[region]", '"learn.epochs" = [1, 4]\n[[arms]]\nname = "ppo, clipped"\nalgorithm = "ppo"\n'
                          '"learn.policy.max_grad_norm" = 1.0\n[region]')  # fmt: skip
    path.write_text(text)
    grid = load(path)
    assert [s.label for s in grid.region.series] == ["grpo", "ppo, clipped"]
    staleness_epochs = [(c["learn.staleness"], c["learn.epochs"]) for c in grid.region.columns]
    assert staleness_epochs == [(0, 1), (8, 1), (0, 4), (8, 4)]
    assert grid.region.neighbours == (None, 0, 0, 2)
    first = " · staleness 0 · epochs 1 · policy.lr 0.2"
    assert [c.arm for c in grid.cells] == [f"grpo{first}", f"ppo, clipped{first}"]
