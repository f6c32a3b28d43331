"""`sorl fork`: arms against unchanged children within parents, and one clear line for what
cannot be forked.
"""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.algorithms import resolve
from sorl.analysis import forks
from sorl.cli.children import ARMS, arms_of, rung
from sorl.cli.interventions import arms_file, intervene, removal
from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.finding import Clue, Diagnosis, Finding
from sorl.diagnosis.log import Log, of_run
from sorl.grid.cell import expand
from sorl.grid.fork import allowed
from sorl.learn.checkpoint import checkpoints
from sorl.learn.run import locked, settings_of
from sorl.spec import RunSettings
from sorl.store.reader import Reader
from studies import forks as study
from tests.cli.command import done, refused, told
from tests.learn.tiny import merged, train


@pytest.fixture
def parent(new_run, cache):
    """A trained run in a runs folder of its own, with a checkpoint every second step."""
    folder = new_run(iterations=6, record={"ladder": 2})
    assert train(folder, cache) == 0
    return folder


def test_a_run_is_forked_planned_and_compared_with_unchanged_children(parent, tmp_path):
    runs = parent.parent.parent
    words = f"fork {parent.name} --at 3 --arm no-critic --arm learn.epochs=1 --draws 2 --steps 2".split()
    assert "Power: with 2 draws" in done(*words, "--plan", runs=runs).output
    assert not list(runs.glob("fork-*"))
    text = done(*words, runs=runs).output
    assert f"Forks of {parent.name} at 3, from step 2 on" in text
    assert f"The tree of {parent.name}: sorl app, then /run?experiment=tiny&run={parent.name}" in text
    for name in ("unchanged", "no-critic", "learn.epochs=1", "no change can be seen to save it"):
        assert name in text
    again = done(*words, "--format", "json", runs=runs).output
    assert '"2/2"' not in again
    assert "6 cells, 6 already finished" in again
    experiment = f"fork-{parent.name}-at-2"
    for words in (("compare", experiment), ("report", experiment, "--format", "md")):
        text = done(*words, runs=runs).output
        assert "no change can be seen to save it" in text
        assert re.search(r"unchanged +(\| )?1 +(\| )?0/2 +(\| )?oo", text)
        assert "no replicates" not in text, "that they share their parent's queue is what forks are"
    rows = study.add(runs, tmp_path / "forks.parquet", "tiny")
    assert rows["arm"].value_counts(dropna=False).tolist() == [2, 2, 2, 1]
    assert rows.loc[rows["arm"].notna(), "parent"].eq(parent.name).all()
    assert len(study.add(runs, tmp_path / "forks.parquet", "tiny")) == len(rows)  # nothing twice


def not_forked(parent, says, *options):
    runs = parent.parent.parent
    refused(says, "fork", parent.name, *(options or ("--at", 4)), runs=runs)
    assert not [*runs.glob("fork-*"), *runs.glob(".cache/forks/*")]


UNCHANGED = '[[arms]]\nname = "unchanged"\n"learn.epochs" = 1\n'
MISTAKES = {
    "--at onset-8": "did not fall: name a step",
    "--at 1": "no checkpoint at or before step 1 of its 6; there are 2, 4, 6; the nearest is --at 2",
    "--at soon": "neither a step nor onset-N",
    "--at 4 --arm grad-clp": "no arm 'grad-clp' (did you mean 'grad-clip'",
    "--at 4 --arm world.entities=9": "cannot change in the middle of a run",
    "--at 4 --arm algorithm='grpo'": "has other groups than the parent",
    "--at 4 --arms nowhere.toml": "cannot read --arms",
    "--at 4 --arms arms.toml": (
        "'unchanged' changes nothing: give the one that sets learn.epochs another name"
    ),
    "--at 40": "no checkpoint at or before step 40 of its 6; there are 2, 4, 6; the nearest is --at 6",
    "--at 4 --arm learn.group_size=8": "changes learn.group_size, which cannot change in the middle",
    "--at 4 --arm model='other'": "changes model, which cannot change in the middle",
    "--at 4 --arm learn.epoch=2": "unknown key 'learn.epoch'",
    "--at 4 --arm learn.epochs='two'": "learn.epochs",
    "--at 4 --arm x=": "--arm 'x=' is not key=value; write it like --arm learn.epochs=1",
    "--at 4 --arm learn.epochs=[": "--arm learn.epochs: the value is not TOML",
    "--at 4 --draws 1000000000": "--draws 1,000,000,000 is over 1,000, the most: every draw is a child of",
    "--at 4 --draws 1000000000 --plan": "--draws 1,000,000,000 is over 1,000, the most",
    "--at 4 --steps 1000000000000": "is over 1,000,000, the most: every child trains them",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_what_cannot_be_forked_is_said_in_a_line_and_nothing_is_written(
    parent, tmp_path, monkeypatch, options
):
    monkeypatch.chdir(tmp_path)
    Path("arms.toml").write_text(UNCHANGED)
    not_forked(parent, MISTAKES[options], *options.split())
    assert len(checkpoints(parent / "ladder")) == 3


@pytest.mark.parametrize(
    "name", ["progress.json", "policy/model.safetensors", "policy_optimizer.safetensors"]
)
def test_a_damaged_checkpoint_is_refused_by_the_name_of_its_file(parent, name):
    file = parent / "ladder" / "000004" / name
    file.write_bytes(file.read_bytes()[:-20])
    not_forked(parent, f"'{file}' cannot be read")
    file.write_bytes(b"\0" * 9)
    not_forked(parent, f"'{file}' cannot be read")


def test_a_plan_of_forks_is_json_where_json_is_asked_for(parent):
    runs = parent.parent.parent
    words = ("fork", parent.name, "--arm", "learn.epochs=1", "--draws", 2, "--plan")
    (grid,) = told(*words, "--at", 4, runs=runs)["grids"]
    assert (len(grid["cells"]), grid["experiment"]) == (4, f"fork-{parent.name}-at-4")
    plan = told(*words, "--at", 4, "--at", 2, runs=runs)
    assert [len(grid["cells"]) for grid in plan["grids"]] == [4, 4]
    assert plan["power"].startswith("Power: with 2 draws")
    assert plan["estimate"]["seconds"] > 0


def test_a_parent_that_fell_before_its_first_checkpoint_is_forked_with_a_note(parent, capsys):
    row = {"collapse_step": 1, "onset_low": None, "steps": 6}
    assert rung(parent, parent.name, "onset-8", row, settings_of(parent)) == 2
    assert "falls at step 1, before its first checkpoint" in capsys.readouterr().err


def set_in_the_database(runs, what):
    done("sync", runs=runs)
    with duckdb.connect(runs / "sorl.duckdb") as database:
        database.execute(f"UPDATE run SET {what}")


def test_a_parent_that_is_still_trained_or_of_another_version_is_not_forked(parent):
    with locked(parent):
        not_forked(parent, "is still being trained: fork it when it has ended")
    set_in_the_database(parent.parent.parent, """versions = '{"sorl": "0.0.1"}'""")
    not_forked(parent, f"was trained by sorl 0.0.1; this is {version('sorl')}: train it again to fork it")


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_every_arm_with_a_name_is_a_setting_that_a_run_has(algorithm):
    settings = RunSettings(algorithm=algorithm)
    left_out: list[str] = []
    given = arms_of(list(ARMS), None, settings, left_out)
    assert given.keys() == ARMS.keys() - ({"no-critic"} if algorithm == "grpo" else set())
    assert len(left_out) == len(ARMS) - len(given)
    for name, changes in given.items():
        table = expand(changes, name)
        RunSettings.model_validate(merged(settings.model_dump(), table))
        resolve(algorithm, table.get("slots"))


def test_what_removes_a_cause_is_a_setting_that_a_fork_may_change():
    settings = RunSettings(
        learn={"epochs": 2, "staleness": 4, "entropy_coef": 0.1}, engine={"dtype": "bfloat16"}
    )
    removed = {cause.name: removal(cause, settings) for cause in CAUSES}
    for name, changes in removed.items():
        allowed(name, changes, settings)
        RunSettings.model_validate(merged(settings.model_dump(), expand(changes, name)))
    assert {name for name, changes in removed.items() if changes} == {
        cause.name for cause in CAUSES if cause.without
    }
    assert removed["off_policy"] == {"learn.staleness": 0, "learn.epochs": 1}
    assert removal(next(cause for cause in CAUSES if cause.name == "off_policy"), RunSettings()) == {}


def test_an_injected_fault_is_removed_and_goes_on_in_every_other_child(new_run, cache):
    parent = new_run(iterations=6, record={"ladder": 2}, fault={"kind": "reward_noise", "at_step": 3})
    assert train(parent, cache) == 0
    runs = parent.parent.parent
    set_in_the_database(runs, "outcome = 'collapsed', collapse_step = 4, detection_step = 5")
    causes = [cause for cause in CAUSES if cause.name in ("reward_noise", "off_policy")]
    found = diagnose(of_run(Reader(runs), parent.name, runs))
    assert not intervene(runs, found, 2, yes=False, steps=2, causes=causes)
    assert not list(runs.glob("fork-*"))
    assert intervene(runs, found, 2, yes=True, steps=2, causes=causes)
    query = "SELECT arm, config->>'$.fault.kind' AS fault, config->>'$.learn.staleness' AS stale FROM run "
    rows = told("sql", f"{query} WHERE parent IS NOT NULL AND draw = 1 ORDER BY arm", runs=runs)
    faulty = [("unchanged", "reward_noise", "2"), ("without off_policy", "reward_noise", "0")]
    assert [tuple(row.values()) for row in rows] == [*faulty, ("without reward_noise", None, "2")]
    tested = of_run(Reader(runs), parent.name, runs).tests
    assert {name: (one.draws, one.plain_draws) for name, one in tested.items()} == {
        "reward_noise": (2, 2),
        "off_policy": (2, 2),
    }


def test_of_another_trainer_the_arms_are_a_file_with_its_names_of_the_settings():
    log = Log(
        "their run", lambda table, step: pd.DataFrame(), {"learn.policy.lr": 3e-6, "learn.staleness": 4}
    )
    clue = Clue("pattern", 0.6, 40, "it fell")
    names = ("off_policy", "kl_blowup", "reward_hacking")
    findings = tuple(Finding(cause, clue) for cause in CAUSES if cause.name in names)
    file = arms_file(Diagnosis(log, findings, (), {}), 8)
    arms = {arm.pop("name"): arm for arm in tomllib.loads(file)["arms"]}
    assert arms == {
        "unchanged": {},
        "without off_policy": {"learn.staleness": 0, "learn.epochs": 1},
        "without kl_blowup": {"learn.policy.lr": pytest.approx(1e-6)},
    }
    for words in (
        "was 4; max_staleness_steps",
        "last checkpoint before step 40, 8 times each arm",
        "The training reward rises and the evaluation falls.",
    ):
        assert words in file


def family(draws, *, saves, parents=3):
    def falls(name, draw):
        return (
            name == "unchanged" or (name == "no help" and draw % 2 == 0) or (name == "cure" and draw < saves)
        )

    rows = [
        (f"p{parent}", name, draw, falls(name, draw))
        for parent in range(parents)
        for name in ("unchanged", "cure", "no help")
        for draw in range(draws)
    ]
    frame = pd.DataFrame(rows, columns=["parent", "arm", "draw", "down"])
    return frame.assign(success=np.where(frame["down"], 0.0, 0.5), forked_at=4, until=20)


def test_a_change_that_saves_children_is_told_from_one_that_does_not():
    found = {row["arm"]: row for row in forks.effects(family(8, saves=0))}
    assert found["cure"]["saves"] == 1.0
    assert found["cure"]["holm"] < 0.001
    assert found["unchanged"]["p"] is None
    assert forks.sentence(family(8, saves=0)).startswith("Unchanged, 24 of 24 fall. cure saves 24 of 24.")
    alone = forks.sentence(family(1, saves=0, parents=1))
    assert "Undecided at this number of draws: cure (0 of 1 fall)" in alone


def test_the_pooled_difference_is_that_of_the_textbook():
    # Two strata by hand: RD = (sum (a m - b n) / N) / (sum n m / N).
    difference, low, high = forks.mantel_haenszel([(2, 10, 5, 10), (1, 4, 3, 8)])
    expected = ((2 * 10 - 5 * 10) / 20 + (1 * 8 - 3 * 4) / 12) / (100 / 20 + 32 / 12)
    assert difference == pytest.approx(expected)
    assert -1 < low < difference < high < 1


def test_of_one_parent_the_interval_is_newcombe_s():
    # Newcombe (1998), table II, method 10: 56/70 - 48/80 has [0.0524, 0.3339]; 10/10 - 0/10 has [0.6075, 1].
    assert forks.mantel_haenszel([(56, 70, 48, 80)]) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)
    assert forks.mantel_haenszel([(10, 10, 0, 10)]) == pytest.approx((1.0, 0.6075, 1.0), abs=1e-4)


@pytest.mark.parametrize(("up", "plain", "saves", "refuted"), [(8, 1, 1, 0), (0, 0, 0, 1), (5, 3, 0, 0)])
def test_a_removal_saves_refutes_or_decides_nothing(up, plain, saves, refuted):
    difference, low, high = forks.mantel_haenszel([(8 - up, 8, 8 - plain, 8)])
    tested = forks.Removal(up, 8, plain, 8, -high, -low, forks.permutation_p([(8 - up, 8, 8 - plain, 8)]))
    assert (tested.saves, tested.refuted) == (saves, refuted)
    assert f"removing it saves {up} of 8, unchanged {plain} of 8" in str(tested)
    assert difference == pytest.approx((plain - up) / 8)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4))
def test_the_permutation_is_symmetric_and_certain_of_nothing_without_a_difference(counts):
    there = [(a, 4, b, 4) for a, b in counts]
    back = [(b, 4, a, 4) for a, b in counts]
    assert forks.permutation_p(there) == pytest.approx(forks.permutation_p(back), abs=0.02)
    assert forks.permutation_p([(a, 4, a, 4) for a, _ in counts]) == 1.0
