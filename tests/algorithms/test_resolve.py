"""From what a TOML file says to an algorithm, and what a user is told about a mistake."""

import math
from dataclasses import fields

import pytest

from workbench.algorithms import ALGORITHMS, differences, resolve
from workbench.objective import KINDS
from workbench.objective.advantage import Gae, TurnGae
from workbench.objective.aggregate import SeqMeanTokenSumNorm, TurnMean
from workbench.objective.clip import LogClip, Ppo
from workbench.objective.ratio import Guard, Pool
from workbench.objective.stabilise import CNorm, RmsBatch
from workbench.spec import InputError


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_name_is_the_algorithm(name):
    assert resolve(name) is ALGORITHMS[name]
    assert resolve({"base": name}) == ALGORITHMS[name]


def test_a_table_changes_options_of_its_base():
    table = {"base": "ppo", "ratio": {"level": "turn", "mean": "arithmetic"}, "clip": {"dual": 3.0}}
    made = resolve(table)
    assert made.ratio == Pool("turn", "arithmetic")
    assert made.clip == Ppo(dual=3.0)
    assert made.name == "ppo"
    assert set(differences(ALGORITHMS["ppo"], made)) == {"ratio", "clip"}
    assert table["base"] == "ppo"  # what was given is left as it was


def test_slots_change_whatever_algorithm_runs():
    made = resolve("st-ppo", {"stabilise": {"tau": 5}, "aggregate": "turn_mean"})
    assert made.stabilise == RmsBatch(tau=5.0)
    assert isinstance(made.stabilise.tau, float)
    assert made.aggregate == TurnMean()
    assert made.ratio == ALGORITHMS["st-ppo"].ratio


def test_slots_come_after_the_table():
    assert resolve({"base": "ppo", "clip": {"low": 0.1}}, {"clip": {"low": 0.3, "high": 0.4}}).clip == Ppo(0.3, 0.4)


def test_a_new_kind_starts_from_its_own_defaults():
    assert resolve("s-ppo", {"stabilise": {"kind": "cnorm"}}).stabilise == CNorm()
    assert resolve("s-ppo", {"stabilise": {"kind": "cnorm", "guard": 0.5}}).stabilise == CNorm(guard=0.5)
    assert resolve("ppo", {"clip": {"kind": "log", "at": "unit"}}).clip == LogClip(at="unit")
    assert resolve("ppo", {"advantage": "turn_gae"}).advantage == TurnGae()


def test_the_same_kind_keeps_the_options_that_are_not_named():
    base = {"base": "ppo", "clip": {"low": 0.1, "high": 0.3}}
    assert resolve(base, {"clip": {"kind": "ppo", "dual": 2.0}}).clip == Ppo(0.1, 0.3, 2.0)
    assert resolve(base, {"clip": "ppo"}).clip == Ppo(0.1, 0.3)


def test_a_level_alone_is_a_ratio():
    assert resolve("ppo", {"ratio": "sequence"}).ratio == Pool("sequence")
    assert resolve("ppo", {"ratio": {"kind": "pool", "grad": "token"}}).ratio == Pool(grad="token")
    assert resolve("ppo", {"ratio": "guard"}).ratio == Guard()
    assert resolve("grpo-guard", {"ratio": "turn"}).ratio == Guard("turn")


def test_none_is_spelled_out_because_toml_has_no_null():
    base = {"base": "ppo", "clip": {"dual": 3}, "aggregate": {"kind": "seq_mean_token_sum_norm", "horizon": 64}}
    assert resolve(base).aggregate == SeqMeanTokenSumNorm(horizon=64.0)
    assert resolve(base, {"clip": {"dual": "none"}}).clip == Ppo()
    assert resolve(base, {"aggregate": {"horizon": "none"}}).aggregate == SeqMeanTokenSumNorm()
    assert resolve(base, {"clip": {"dual": None}}).clip == Ppo()


@pytest.mark.parametrize("slot", list(KINDS))
def test_every_kind_can_be_chosen_by_name_and_by_its_own_options(slot):
    for kind, choice in KINDS[slot].items():
        options = {f.name: getattr(choice(), f.name) for f in fields(choice)}
        assert getattr(resolve("ppo", {slot: {"kind": kind, **options}}), slot) == choice()


@pytest.mark.parametrize(
    ("algorithm", "slots", "message"),
    [
        ("pppo", {}, r"unknown algorithm 'pppo' \(did you mean 'ppo'\?\); use one of: ppo, turn-ppo, .*, so-ppo"),
        (3, {}, "unknown algorithm 3; use one of"),
        ({"ratio": "turn"}, {}, "needs a base"),
        ({"base": "turnppo"}, {}, r"did you mean 'turn-ppo'\?"),
        ({"base": ["ppo"]}, {}, "unknown algorithm"),
        ("ppo", {"clp": {}}, r"unknown slot 'clp' of an algorithm \(did you mean 'clip'\?\); use one of: advantage, "),
        ("ppo", {"clip": "pop"}, r"unknown kind 'pop' of clip \(did you mean 'ppo'\?\); use one of: ppo, recip, log"),
        ("ppo", {"clip": {"kind": 3}}, "unknown kind 3 of clip; use one of"),
        ("ppo", {"clip": 0.2}, "clip = 0.2 is neither a table nor a kind; kinds: ppo"),
        ("ppo", {"clip": {"loww": 0.1}}, r"unknown option 'loww' of clip kind 'ppo' \(did you mean 'low'\?\); use one"),
        ("ppo", {"stabilise": {"tau": 3}}, "unknown option 'tau' of stabilise kind 'none'; it has none"),
        ("ppo", {"clip": {"low": "a"}}, "clip.low = 'a' has the wrong type; use a number"),
        ("dapo", {"select": {"tries": 1.5}}, "select.tries = 1.5 has the wrong type; use a whole number"),
        ("ppo", {"clip": {"low": True}}, "clip.low = True has the wrong type"),
        ("ppo", {"clip": {"dual": "three"}}, "clip.dual = 'three' has the wrong type"),
        ("ppo", {"advantage": {"skip_obs": 1}}, "advantage.skip_obs = 1 has the wrong type; use true or false"),
        ("ppo", {"advantage": {"whiten": "mm"}}, r"advantage.whiten = 'mm' is unknown \(did you mean 'm'\?\)"),
        ("ppo", {"advantage": {"whiten": 1}}, "advantage.whiten = 1 is unknown; use one of: none, m, a"),
        ("ppo", {"ratio": "turns"}, r"ratio.level = 'turns' is unknown \(did you mean 'turn'\?\); use one of: token"),
        ("ppo", {"clip": {"low": -0.1}}, r"clip: low = -0.1 of kind 'ppo' is out of range; use a number in \[0, 1\]"),
        ("ppo", {"stabilise": {"kind": "rms_seq", "tau": 0.5}}, "stabilise: tau = 0.5 of kind 'rms_seq'"),
    ],
)  # fmt: skip
def test_a_mistake_names_the_thing_what_is_allowed_and_the_nearest(algorithm, slots, message):
    with pytest.raises(InputError, match=message):
        resolve(algorithm, slots)


NAN, INF = math.nan, math.inf
OUT_OF_RANGE: dict[tuple[str, str], dict[str, list[object]]] = {
    ("advantage", "gae"): {"gamma": [-0.1, 1.1, NAN], "lam": [-0.1, 1.1], "whiten": ["a"]},
    ("advantage", "turn_mean"): {"lam": [-0.1, 1.1]},
    ("advantage", "turn_gae"): {"gamma": [-0.1, 1.1], "lam": [-0.1, 1.1]},
    ("advantage", "bilevel"): {"gamma": [-0.1, 1.1], "lam": [-0.1, 1.1], "gamma_turn": [-0.1, 1.1]},
    ("advantage", "grpo"): {"eps": [0, -1, INF, NAN]},
    ("advantage", "batch_z"): {"eps": [0, -1, INF]},
    ("advantage", "reinforce_pp"): {"gamma": [-0.1, 1.1]},
    ("clip", "ppo"): {"low": [-0.1, 1.1, NAN], "high": [-0.1, INF, NAN], "dual": [1, 0.5, INF]},
    ("clip", "recip"): {"epsilon": [-0.1, INF]},
    ("clip", "log"): {"epsilon": [-0.1, INF]},
    ("clip", "hard"): {"low": [-0.1, 1.1], "high": [-0.1, INF]},
    ("clip", "soft"): {"epsilon": [0, 1.1]},
    ("stabilise", "rms_batch"): {"tau": [0.99, INF, NAN]},
    ("stabilise", "kl_clipfrac"): {"weight": [-0.1, INF]},
    ("stabilise", "adv_norm"): {"threshold": [-0.1, 1.1]},
    ("stabilise", "cnorm"): {"guard": [0, -1, INF]},
    ("stabilise", "subtract"): {"alpha": [INF, NAN]},
    ("aggregate", "seq_mean_token_sum_norm"): {"horizon": [0, -1]},
    ("kl", "reward"): {"beta": [-0.1, INF]},
    ("kl", "loss"): {"beta": [-0.1, INF]},
    ("correction", "tis"): {"cap": [0, -1, INF]},
    ("correction", "icepop"): {"low": [-0.1, 5.0, 6.0], "high": [0.5, INF]},
    ("correction", "mis"): {"low": [-0.1, 2.0]},
    ("ratio", "guard"): {"floor": [0, -1, INF]},
    ("clip", "sg_clip"): {"low": [-0.1, 1.1], "high": [-0.1, INF]},
    ("clip", "ppo_mask"): {"low": [-0.1, 1.1], "high": [-0.1, INF]},
    ("clip", "tv_mask"): {"low": [-0.1, 1.1], "high": [-0.1, 1.1], "cap": [0.5, INF]},
    ("clip", "gamma"): {"k_positive": [0, INF], "lam_negative": [0, NAN]},
    ("clip", "soft_sigmoid"): {"tau_positive": [0, INF]},
    ("clip", "bapo"): {"low": [-0.1, 0.95], "low_max": [1.1], "high": [0.9, 3.1], "high_max": [INF], "step": [0],
                      "share": [-0.1, 1.0], "dual": [1.0]},
    ("clip", "entropy_band"): {"epsilon": [-0.1, INF], "narrowest": [1.1], "widest": [0.9]},
    ("advantage", "group_batch_z"): {"eps": [0], "limit": [0, INF]},
    ("select", "dynamic_sampling"): {"tries": [0]},
    ("select", "uncertain"): {"share": [0, 1.1]},
    ("select", "large_advantage"): {"threshold": [-0.1, INF]},
    ("kl", "lld"): {"weight": [-0.1, INF]},
    ("kl", "positive_low"): {"weight": [-0.1], "threshold": [0, INF]},
    ("shaping", "overlong"): {"limit": [0, INF], "margin": [0, 30000]},
    ("schedule", "reverse_turns"): {"epsilon": [-0.1, INF]},
    ("early_stop", "mean_kl"): {"target": [0, INF]},
    ("early_stop", "trajectory_kl"): {"limit": [0, INF]},
}  # fmt: skip


@pytest.mark.parametrize(("slot", "kind"), OUT_OF_RANGE)
def test_values_out_of_range_are_refused(slot, kind):
    for option, bad in OUT_OF_RANGE[slot, kind].items():
        for value in bad:
            with pytest.raises(InputError, match="is out of range; use "):
                resolve("ppo", {slot: {"kind": kind, option: value}})


EDGES: dict[tuple[str, str], dict[str, list[float]]] = {
    ("advantage", "gae"): {"gamma": [0, 1]},
    ("clip", "ppo"): {"low": [0, 1], "high": [0, 5], "dual": [1.01]},
    ("clip", "recip"): {"epsilon": [0, 5]},
    ("clip", "log"): {"epsilon": [0, 5]},
    ("clip", "hard"): {"low": [0, 1], "high": [0, 5]},
    ("clip", "soft"): {"epsilon": [1]},
    ("stabilise", "rms_turn"): {"tau": [1]},
    ("stabilise", "kl_clipfrac"): {"weight": [0]},
    ("stabilise", "adv_norm"): {"threshold": [0, 1]},
    ("kl", "reward"): {"beta": [0, 2]},
    ("kl", "loss"): {"beta": [0, 2]},
    ("correction", "icepop"): {"low": [0]},
    ("correction", "tis"): {"cap": [0.5]},
    ("aggregate", "seq_mean_token_sum_norm"): {"horizon": [0.5]},
    ("advantage", "grpo"): {"eps": [2.0]},
    ("advantage", "batch_z"): {"eps": [2.0]},
    ("stabilise", "cnorm"): {"guard": [0.5]},
}  # fmt: skip


@pytest.mark.parametrize(("slot", "kind"), EDGES)
def test_the_edges_of_a_range_are_allowed(slot, kind):
    for option, edges in EDGES[slot, kind].items():
        for value in edges:
            assert getattr(getattr(resolve("ppo", {slot: {"kind": kind, option: value}}), slot), option) == value


def test_whitening_over_the_response_needs_values_there():
    assert resolve("ppo", {"advantage": {"skip_obs": False, "whiten": "a"}}).advantage == Gae(
        skip_obs=False, whiten="a"
    )
    with pytest.raises(InputError, match="m or none while skip_obs"):
        resolve("ppo", {"advantage": {"whiten": "a"}})
