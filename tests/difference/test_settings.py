"""Which settings differ, and what a version's default stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.difference.defaults import ABSENT, defaults_of
from sorl.difference.settings import Configuration, kind_of, setting_differences


def trl(version: str = "", **settings: object) -> Configuration:
    return Configuration(settings, "TRL", version)


def named(good: list[Configuration], bad: Configuration) -> list[str]:
    return [one.name for one in setting_differences(good, bad)]


@pytest.mark.parametrize(
    ("version", "option", "default"),
    [
        ("0.18.2", "beta", 0.04),
        ("0.19.0", "beta", 0.0),
        ("0.17.0", "temperature", 0.9),
        ("0.18.0", "temperature", 1.0),
        ("0.21.0", "loss_type", "bnpo"),
        ("1.16.0", "loss_type", "dapo"),
        ("0.16.3", "beta", 0.04),
    ],
)
def test_a_default_is_that_of_the_version(version, option, default):
    known = defaults_of("TRL")
    assert known is not None
    assert known.at(version)[option] == default


def test_verl_lost_its_entropy_bonus_with_0_4():
    known = defaults_of("verl")
    assert known is not None
    option = "actor_rollout_ref.actor.entropy_coeff"
    assert (known.at("0.3.0.post1")[option], known.at("0.4.1")[option]) == (0.001, 0)


def test_no_version_and_one_older_than_all_that_were_read_have_no_known_default():
    known = defaults_of("TRL")
    assert known is not None
    assert known.at("0.1.0") == known.at("not a version") == {}
    assert known.is_newer_than_read("99.0")
    assert not known.is_newer_than_read("0.18.2")
    assert defaults_of("slime") is None


def test_a_default_that_nobody_set_differs_with_the_version():
    (found,) = setting_differences([trl("0.18.2", learning_rate=1e-6)], trl("0.19.0", learning_rate=1e-6))[:1]
    assert found.name == "beta"
    assert found.is_of_versions
    assert (found.good, found.bad) == (0.04, 0.0)
    assert (found.default_good, found.default_bad) == ("trl 0.18.2", "trl 0.19.0")


def test_a_default_that_one_side_set_is_no_matter_of_versions():
    found = setting_differences([trl("0.18.2", beta=0.0)], trl("0.19.0", learning_rate=1e-6))
    assert "beta" not in [one.name for one in found]


def test_an_option_that_only_one_version_has_says_nothing_where_nobody_set_it():
    assert "epsilon" not in named([trl("0.15.0", learning_rate=1e-6)], trl("0.25.0", learning_rate=1e-6))
    assert "epsilon" in named([trl("0.15.0", learning_rate=1e-6)], trl("0.25.0", epsilon=0.3))


def test_what_one_side_leaves_out_may_be_any_default_where_the_version_is_not_known():
    assert named([trl(learning_rate=1e-6, beta=0.04)], trl(learning_rate=1e-6)) == []
    assert named([trl(learning_rate=1e-6, beta=0.3)], trl(learning_rate=1e-6)) == ["beta"]


def test_numbers_are_compared_by_value_and_nothing_is_nothing():
    good = Configuration({"lr": 1e-6, "clip": None, "use_kl": False, "name": "a"})
    bad = Configuration({"lr": "1e-06", "clip": "", "name": "a"})
    assert setting_differences([good], bad) == []


def test_true_and_group_scale_rewards_alike():
    assert named([trl(scale_rewards=True)], trl(scale_rewards="group")) == []
    assert named([trl(scale_rewards=True)], trl(scale_rewards="none")) == ["scale_rewards"]


def test_a_value_that_any_good_run_has_is_no_difference():
    good = [Configuration({"lr": 1.0}), Configuration({"lr": 2.0})]
    assert setting_differences(good, Configuration({"lr": 2.0})) == []


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("learn.staleness", "training"),
        ("learn.old_log_prob", "training"),
        ("algorithm", "training"),
        ("actor_rollout_ref.rollout.name", "training"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "training"),
        ("use_transport", "training"),
        ("record.batches.mb", "observing"),
        ("threads", "observing"),
        ("evaluation.every", "observing"),
        ("save_steps", "observing"),
        ("trainer.test_freq", "observing"),
        ("vllm_gpu_memory_utilization", "observing"),
        ("seed", "identity"),
        ("data.seed", "identity"),
        ("trainer.experiment_name", "identity"),
        ("output_dir", "identity"),
        ("transformers_version", "identity"),
    ],
)
def test_a_key_says_what_it_is_for(key, kind):
    assert kind_of(key) == kind


def test_what_trains_comes_first_and_what_was_set_before_what_was_not():
    good = trl("0.18.2", learning_rate=1e-6, output_dir="a", save_steps=5)
    bad = trl("0.19.0", learning_rate=1e-5, output_dir="b", save_steps=7)
    assert named([good], bad)[:2] == ["learning_rate", "beta"]
    assert named([good], bad)[-1] == "output_dir"


def test_nothing_is_compared_with_a_log_that_says_nothing():
    assert setting_differences([Configuration({})], Configuration({"lr": 1})) == []
    assert setting_differences([Configuration({"lr": 1})], Configuration({})) == []


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8))
TABLES = st.dictionaries(st.text("abc.", min_size=1, max_size=6), VALUES, max_size=8)


@given(TABLES, TABLES)
def test_a_run_never_differs_from_itself_and_differences_go_both_ways(first, second):
    assert setting_differences([Configuration(first)], Configuration(first)) == []
    there = setting_differences([Configuration(first)], Configuration(second))
    back = setting_differences([Configuration(second)], Configuration(first))
    assert {(d.name, repr(d.good)) for d in there} == {(d.name, repr(d.bad)) for d in back}


def test_what_is_not_set_reads_so():
    assert repr(ABSENT) == "not set"
