"""A grid file becomes cells, and every mistake in it is one clear message."""

import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest

from sorl.cli.plan import describe
from sorl.grid.cell import COSMETIC, config_hash, flatten, merge, settings_keys, short, slug
from sorl.grid.config import Grid, load
from sorl.grid.folder import prepare
from sorl.spec import InputError, RunSettings, settings
from tests.grid.harness import grid_file

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def grid(folder: Path, text: str, *overrides: str) -> Grid:
    return load(grid_file(folder, text, "x.toml"), overrides)


def test_axes_are_crossed_with_each_other_and_the_seeds_and_controls_only_with_the_seeds(tmp_path):
    axes = 'seeds = [0, 7]\n[axes]\nalgorithm = ["ppo", "st-ppo"]\n"learn.staleness" = [0, 8]\n'
    arm = '[[arms]]\nname = "ppo, gradient clipping"\nalgorithm = "ppo"\n"learn.policy.max_grad_norm" = 1.0'
    found = grid(tmp_path, axes + arm)
    crossed = tuple(f"{algorithm} · staleness {n}" for algorithm in ("ppo", "st-ppo") for n in (0, 8))
    assert found.arms == (*crossed, "ppo, gradient clipping")
    assert [cell.seed for cell in found.cells] == [0] * 5 + [7] * 5, (
        "every arm has its first seed before any has two"
    )
    assert [cell.control for cell in found.cells] == ([False] * 4 + [True]) * 2
    control = found.cells[4].settings
    assert control.learn.policy.max_grad_norm == 1.0
    assert control.learn.policy.lr == RunSettings().learn.policy.lr
    assert found.cells[1].settings.learn.staleness == 8
    assert [cell.settings.seed for cell in found.cells] == [cell.seed for cell in found.cells]


def test_a_partial_table_keeps_its_other_defaults_and_dotted_and_nested_keys_say_the_same(tmp_path):
    (cell,) = grid(tmp_path, "[base.learn.critic]\nlr = 0.5").cells
    assert cell.settings.learn.critic == RunSettings().learn.critic.model_copy(update={"lr": 0.5})
    alone = RunSettings.model_validate({"learn": {"critic": {"schedule": "linear"}}}).learn.critic
    assert (alone.kind, alone.lr, alone.max_grad_norm) == ("adamw", 1e-3, 1.0)
    texts = ('[base]\n"learn.staleness" = 3', "[base.learn]\nstaleness = 3", "[axes]\nlearn.staleness = [3]")
    cells = [grid(tmp_path, text).cells[0] for text in texts]
    assert all((cell.settings, cell.run_id) == (cells[0].settings, cells[0].run_id) for cell in cells)


def test_a_model_keeps_the_defaults_of_its_own_warm_start_where_a_file_names_a_part_of_it(tmp_path):
    text = '[base]\nmodel = "some/folder"\n[base.warmstart]\nsteps = 30'
    warm = grid(tmp_path, text).cells[0].settings.warmstart
    assert (warm.steps, warm.batch, warm.lr) == (30, 24, 5e-5)
    assert grid(tmp_path, '[base]\nmodel = "some/folder"').cells[0].settings.warmstart.steps == 0
    assert grid(tmp_path, "seeds = [0]").cells[0].settings.warmstart == RunSettings().warmstart


def test_a_set_option_changes_the_base_an_axis_or_the_seeds(tmp_path):
    text = (
        'seeds = [0, 1]\n[base]\niterations = 9\n[axes]\n"learn.staleness" = [0, 8]\nalgorithm = ["ppo",'
        ' "grpo"]'
    )
    found = grid(
        tmp_path, text, "iterations=3", "seeds=[5]", "axes.learn.staleness=[2]", "learn.policy.kind=adamw"
    )
    settings = [cell.settings for cell in found.cells]
    assert {(s.seed, s.iterations, s.learn.staleness, s.learn.policy.kind) for s in settings} == {
        (5, 3, 2, "adamw")
    }
    assert found.arms == ("ppo", "grpo")


def test_only_the_arms_that_are_asked_for_have_cells(tmp_path):
    arms = (
        '[axes]\nalgorithm = ["ppo", "grpo"]\n[[arms]]\nname = "ppo, clipped"\n"learn.policy.max_grad_norm"'
        " = 1.0"
    )
    file = grid_file(tmp_path, f"seeds = [0, 1]\n{arms}", "x.toml")
    assert load(file, only=["ppo, clipped", "ppo"]).arms == ("ppo", "ppo, clipped")
    searched = f'kind = "region"\n{arms}\n[region]\nlow = 0.1\nhigh = 1.0'
    region = load(grid_file(tmp_path, searched, "region.toml"), only=["grpo"]).region
    assert [one.label for one in region.series] == ["grpo"]
    told = r"no arm 'grpa' in .*x.toml \(did you mean 'grpo'\?\); arms: ppo; grpo; ppo, clipped"
    with pytest.raises(InputError, match=told):
        load(file, only=["grpa"])


def test_an_algorithm_may_be_a_table_and_its_label_names_the_change(tmp_path):
    variant = {"base": "ppo", "ratio": {"level": "turn", "mean": "arithmetic"}}
    text = '[axes]\nalgorithm = ["ppo", { base = "ppo", ratio = { level = "turn", mean = "arithmetic" } }]'
    found = grid(tmp_path, text)
    assert found.arms == ("ppo", "ppo (ratio turn arithmetic)")
    assert (found.cells[1].algorithm, found.cells[1].settings.algorithm) == ("ppo", variant)
    flat = {"algorithm": variant, "learn.critic.lr": 1}
    assert flatten({"algorithm": variant, "learn": {"critic": {"lr": 1}}}) == flat


def test_the_hash_follows_every_setting_but_the_cosmetic_ones_and_the_id_the_experiment_as_well(tmp_path):
    changes = {"seed": 1}, {"iterations": 81}, {"threads": 2}
    hashes = [config_hash(RunSettings().model_copy(update=change)) for change in changes]
    assert [found == config_hash(RunSettings()) for found in hashes] == [False, False, True]
    assert set(COSMETIC) <= set(settings_keys())
    a, b = (load(grid_file(tmp_path, "", f"{name}.toml")).cells[0] for name in "ab")
    assert a.config_hash == b.config_hash
    assert a.run_id != b.run_id, "the same cell in two experiments is two runs"


@pytest.mark.parametrize(
    ("off", "on"),
    [
        ({"stop": {"updates": "none"}}, {"stop": {"after_collapse": 5}}),
        ({"learn": {"probe_every": 0}}, {"learn": {"probe_every": 4}}),
        ({"fault": "none"}, {"fault": {"kind": "turn_shift", "at_step": 3}}),
    ],
)
def test_a_setting_that_is_off_leaves_no_trace_in_the_stored_settings_and_the_hash(off, on):
    first, changed = (RunSettings.model_validate(given) for given in (off, on))
    assert first.model_dump_json() == RunSettings().model_dump_json()
    # Measured before the settings existed: a changed hash would orphan every recorded run.
    assert config_hash(first).startswith("7e9b3f6c5444e12e")
    assert config_hash(changed) != config_hash(first)
    dumped = changed.model_dump(mode="json")
    assert dumped == merge(dumped, on)
    assert dumped.get("fault") == on.get("fault"), "what is not set is left out, as TOML has no null"
    assert RunSettings.model_validate_json(changed.model_dump_json()) == changed


@pytest.mark.parametrize(
    ("name", "cells", "digest"),
    [  # of the code that trained the shipped results
        ("six_by_five", 60, "1c4c3a936910"),
        ("controls", 80, "3098386e58a8"),
        ("neighbours", 219, "a35e60bc9c77"),
        ("fault_lab", 260, "25f0fbdf9cae"),
        ("quickstart", 14, "33abc60f9f35"),
    ],
)
def test_the_cells_of_shipped_experiments_keep_their_ids(name, cells, digest):
    ids = sorted(cell.run_id for cell in load(EXPERIMENTS / f"{name}.toml").cells)
    assert len(ids) == cells
    assert hashlib.sha256("\n".join(ids).encode()).hexdigest()[:12] == digest, (
        "finished runs would be trained again"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seeds = [true]", "seeds must be a number, got [true]"),
        ("seeds = [0, false]", "seeds must be a number, got [0, false]"),
        ("[base]\niterations = true", "iterations must be a number, got true"),
        ("[base.learn.policy]\nlr = true", "lr must be a number, got true"),
        ("[base.learn]\ngroup_size = false", "group_size must be a number, got false"),
        ("[axes]\n'learn.epochs' = [1, true]", "epochs must be a number, got true"),
    ],
)
def test_true_and_false_are_no_numbers(tmp_path, text, says):
    with pytest.raises(InputError, match=re.escape(says)):
        load(grid_file(tmp_path, text))


def test_every_number_among_the_settings_takes_no_truth_value():
    inner = [kind for kind in vars(settings).values() if isinstance(kind, type)]
    for table in (kind for kind in inner if issubclass(kind, settings.Settings)):
        for name, field in table.model_fields.items():
            if set(re.findall(r"\w+", str(field.annotation))) & {"int", "float"} and name != "base":
                with pytest.raises(ValueError, match=f"{name} must be a number, got true"):
                    table.model_validate({name: True})


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda p: p.stem)
def test_every_experiment_plans_and_no_check_of_the_guard_flags_it(path, tmp_path, capsys):
    found = load(path)
    describe(found, tmp_path)
    text = capsys.readouterr().out
    assert all(arm in text for arm in found.arms)
    assert f"{len(found.cells)} cells" in text
    assert "Warning" not in text
    assert not list(tmp_path.iterdir()), "plan writes nothing"


def test_the_resolved_configuration_reads_back_exactly_even_where_something_is_switched_off(tmp_path):
    text = '[base.learn]\nvalue_clip = "none"\ncritic.max_grad_norm = "none"\n[base.slots.clip]\nhigh = 0.3'
    (cell,) = grid(tmp_path, text).cells
    assert (cell.settings.learn.value_clip, cell.settings.learn.critic.max_grad_norm) == (None, None)
    folder = prepare(tmp_path / "runs", cell)
    back = RunSettings.model_validate(tomllib.loads((folder / "config.toml").read_text()))
    assert back == cell.settings
    assert json.loads((folder / "run.json").read_text())["config_hash"] == config_hash(back)


def test_names_are_short_and_unique_and_slugs_are_plain_file_names():
    names = [short(key) for key in settings_keys()]
    assert len(set(names)) == len(names)
    assert [short(key) for key in ("learn.staleness", "learn.policy.lr")] == ["staleness", "policy.lr"]
    slugs = {
        "ppo · staleness 8": "ppo-staleness-8",
        "ppo, lr/3 (Ünïcode)": "ppo-lr-3-unicode",
        "../../etc": "etc",
    }
    assert {text: slug(text) for text in slugs} == slugs


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[base.learn]\nepoch = 2", ["unknown key 'learn.epoch'", "x.toml", "did you mean 'learn.epochs'?"]),
        ("[base]\nstaleness = 2", ["unknown key 'staleness'", "did you mean 'learn.staleness'?"]),
        ("[base]\nlearn.epochs = 0", ["'learn.epochs'", "greater than or equal to 1", "got 0"]),
        ('[base]\niterations = "many"', ["'iterations'", "valid integer", "got 'many'"]),
        ("[base]\nlearn = 3", ["'learn'", "must be a table", "got 3"]),
        ("[base]\nworld.reward = 'bleu'", ["'world.reward'", "'em' or 'f1'", "got 'bleu'"]),
        ("[base]\nlearn.minibatches = 5", ["learn.minibatches = 5 does not divide learn.episodes = 64"]),
        ("[base]\nlearn.micro_batch = 5", ["learn.micro_batch = 5 does not divide the minibatch of 16"]),
        ("[base]\nlearn.group_size = 7", ["learn.group_size = 7 does not divide learn.episodes = 64"]),
        ("[base.world]\nhops = [0.5, 0.5, 0.5]", ["world: hops must sum to 1"]),
        ("[base]\nseed = 3", ["'seed'", "seeds are crossed"]),
        ("[base]\nalgorithm = 3", ["'algorithm'", "a name or a table", "got 3"]),
        ('[axes]\n"algorithm.ratio" = ["turn"]', ["unknown key 'algorithm.ratio'", "'slots.ratio'"]),
        ('[base]\n"learn.epochs" = 2\n[base.learn]\nepochs = 3', ["'learn.epochs' is given twice"]),
        ('[axes]\n"learn.epoch" = [1, 2]', ["unknown key 'learn.epoch' in [axes]", "'learn.epochs'"]),
        ('[axes]\n"learn.epochs" = []', ["axis 'learn.epochs'", "is empty"]),
        ('[axes]\n"learn.epochs" = 4', ["'axes.learn.epochs'", "must be a valid list", "got 4"]),
        ('[axes]\n"learn.epochs" = [2, 0]', ["'learn.epochs'", "got 0", "arm 'ppo · epochs 0'"]),
        ('[axes]\n"learn.epochs" = [2, 2]', ["called 'ppo · epochs 2'"]),
        ("[axes]\nseed = [1, 2]", ["'seed'", "seeds are crossed"]),
        ("seeds = []", ["'seeds'", "at least 1 item"]),
        ("seeds = [1, 1]", ["seed 1 stands twice"]),
        ("seeds = [-1]", ["'seeds.0'", "got -1"]),
        ("[[arms]]\nalgorithm = 'ppo'", ["lacks 'arms.0.name'"]),
        ("[[arms]]\nname = 'a'\n[[arms]]\nname = 'a'\niterations = 3", ["two arms", "called 'a'"]),
        (
            "[[arms]]\nname = 'a b'\n[[arms]]\nname = 'a-b'\niterations = 3",
            ["'a b' and 'a-b'", "folder name"],
        ),
        ("[[arms]]\nname = 'a'\n[[arms]]\nname = 'b'", ["arms 'a' and 'b'", "the same run"]),
        ("[[arms]]\nname = 'a'\nlearn.epoch = 2", ["unknown key 'learn.epoch' in arm 'a'", "'learn.epochs'"]),
        ("iterations = 3", ["unknown key 'iterations' at the top", "write 'base.iterations'"]),
        ("axis = {}", ["unknown key 'axis'", "did you mean 'axes'?"]),
        ("seeds = [0", ["not valid TOML", "line"]),
        ("[base]\niterations 3", ["line 3, column 12"]),
        ("[base]\nalgorithm = 'grpo'\nlearn.episodes = 12", ["groups of 8 rollouts, which do not divide"]),
        (
            "[base]\nslots.kl.kind = 'loss'",
            ["the KL term of ppo needs a reference policy; set learn.reference = true"],
        ),
        ("[base]\nalgorithm = 'grop'", ["arm 'grop': unknown algorithm 'grop' (did you mean 'grpo'?)"]),
        ("--set learn.epoch=2", ["did you mean 'learn.epochs'?"]),
        ("--set learn.epochs", ["is not key=value"]),
        ("--set learn.epochs=", ["is not key=value"]),
        ("--set learn.epochs=[1", ["not TOML"]),
        ("--set algorithm=grpo", ["is an axis"]),
        ("--set learn.epochs=0", ["greater than or equal to 1"]),
    ],
)
def test_a_mistake_in_the_file_or_a_set_option_is_one_clear_message(tmp_path, text, parts):
    overrides = [text.removeprefix("--set ")] if text.startswith("--set ") else []
    with pytest.raises(InputError) as error:
        grid(tmp_path, '[axes]\nalgorithm = ["ppo", "grpo"]' if overrides else text, *overrides)
    assert [part for part in parts if part not in str(error.value)] == []
    assert not [word for word in ("Traceback", "pydantic") if word in str(error.value)]


def test_several_mistakes_are_named_together_and_a_missing_question_or_file_with_what_to_write(tmp_path):
    with pytest.raises(
        InputError, match=r"'learn.epoch'.*\n.*'learn.episodes'|'learn.episodes'.*\n.*'learn.epoch'"
    ):
        grid(tmp_path, "[base.learn]\nepoch = 2\nepisodes = 0")
    bare = tmp_path / "quickstart.toml"
    bare.write_text("seeds = [0]")
    for path, told in (
        (bare, "lacks 'question'; write question = "),
        (
            tmp_path / "quickstrt.toml",
            r"no grid file .*quickstrt.toml \(did you mean '.*quickstart.toml'\?\)",
        ),
        (tmp_path, r"it is a folder; there is: .*quickstart.toml"),
    ):
        with pytest.raises(InputError, match=told):
            load(path)
