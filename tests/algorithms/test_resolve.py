"""From what a TOML file says to an algorithm, and what a user is told about a mistake."""

import math
from copy import deepcopy
from dataclasses import fields

import pytest

from sorl.algorithms import ALGORITHMS, differences, resolve
from sorl.objective import KINDS
from sorl.objective.advantage import Gae, TurnGae
from sorl.objective.aggregate import SeqMeanTokenSumNorm, TurnMean
from sorl.objective.clip import LogClip, Ppo
from sorl.objective.ratio import Guard, Pool
from sorl.objective.select import ReverseTurns
from sorl.objective.stabilise import CNorm, RmsBatch
from sorl.spec import InputError


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_name_is_the_algorithm(name):
    assert resolve(name) is ALGORITHMS[name]
    assert resolve({"base": name}) == ALGORITHMS[name]


SET = {"base": "ppo", "clip": {"low": 0.1, "high": 0.3}}
NORM = {"kind": "seq_mean_token_sum_norm", "horizon": 64}


@pytest.mark.parametrize(
    ("algorithm", "slots", "made"),
    [
        ({"base": "ppo", "ratio": {"level": "turn", "mean": "arithmetic"}}, {}, Pool("turn", "arithmetic")),
        ("st-ppo", {"stabilise": {"tau": 5}}, RmsBatch(tau=5.0)),
        ("st-ppo", {"aggregate": "turn_mean"}, TurnMean()),
        # slots come after the table
        ({"base": "ppo", "clip": {"low": 0.1}}, {"clip": {"low": 0.3, "high": 0.4}}, Ppo(0.3, 0.4)),
        # a new kind starts from its own defaults
        ("s-ppo", {"stabilise": {"kind": "cnorm"}}, CNorm()),
        ("s-ppo", {"stabilise": {"kind": "cnorm", "guard": 0.5}}, CNorm(guard=0.5)),
        ("ppo", {"clip": {"kind": "log", "at": "unit"}}, LogClip(at="unit")),
        ("ppo", {"advantage": "turn_gae"}, TurnGae()),
        ("grpo", {"schedule": "reverse_turns"}, ReverseTurns()),
        # the same kind keeps the options that are not named
        (SET, {"clip": {"kind": "ppo", "dual": 2.0}}, Ppo(0.1, 0.3, 2.0)),
        (SET, {"clip": "ppo"}, Ppo(0.1, 0.3)),
        # a level alone is a ratio
        ("ppo", {"ratio": "sequence"}, Pool("sequence")),
        ("ppo", {"ratio": {"kind": "pool", "grad": "token"}}, Pool(grad="token")),
        ("ppo", {"ratio": "guard"}, Guard()),
        ("grpo-guard", {"ratio": "turn"}, Guard("turn")),
        # TOML has no null: it is spelled out
        ({"base": "ppo", "aggregate": NORM}, {}, SeqMeanTokenSumNorm(horizon=64.0)),
        ({"base": "ppo", "aggregate": NORM}, {"aggregate": {"horizon": "none"}}, SeqMeanTokenSumNorm()),
        ({"base": "ppo", "clip": {"dual": 3}}, {"clip": {"dual": "none"}}, Ppo()),
        ({"base": "ppo", "clip": {"dual": 3}}, {"clip": {"dual": None}}, Ppo()),
        ("ppo", {"advantage": {"skip_obs": False, "whiten": "a"}}, Gae(skip_obs=False, whiten="a")),
    ],
)
def test_what_a_file_says_is_the_choice_of_its_slot_and_nothing_else_changes(algorithm, slots, made):
    before = deepcopy((algorithm, slots))
    base = algorithm["base"] if isinstance(algorithm, dict) else algorithm
    found = resolve(algorithm, slots)
    slot = next(s for s, kinds in KINDS.items() if type(made) in kinds.values())
    choice = getattr(found, slot)
    assert choice == made
    assert set(differences(ALGORITHMS[base], found)) <= {slot}
    assert found.name == base
    assert all(type(getattr(choice, f.name)) is type(getattr(made, f.name)) for f in fields(made)), "5 is 5.0"
    assert (algorithm, slots) == before


NEEDS_BASE = {"gain_band": "a2tgpo"}  # kinds that read what only this algorithm's advantage says


@pytest.mark.parametrize("slot", list(KINDS))
def test_every_kind_can_be_chosen_by_name_and_by_its_own_options(slot):
    for kind, choice in KINDS[slot].items():
        options = {f.name: getattr(choice(), f.name) for f in fields(choice)}
        base = NEEDS_BASE.get(kind, "ppo")
        assert getattr(resolve(base, {slot: {"kind": kind, **options}}), slot) == choice()


@pytest.mark.parametrize(
    ("algorithm", "slots", "message"),
    [
        (
            "pppo",
            {},
            r"unknown algorithm 'pppo' \(did you mean 'ppo'\?\); use one of: ppo, turn-ppo, .*, so-ppo",
        ),
        (3, {}, "unknown algorithm 3; use one of"),
        ({"ratio": "turn"}, {}, "needs a base"),
        ({"base": "turnppo"}, {}, r"did you mean 'turn-ppo'\?"),
        ({"base": ["ppo"]}, {}, "unknown algorithm"),
        (
            "ppo",
            {"clp": {}},
            r"unknown slot 'clp' of an algorithm \(did you mean 'clip'\?\); use one of: advantage, ",
        ),
        (
            "ppo",
            {"clip": "pop"},
            r"unknown kind 'pop' of clip \(did you mean 'ppo'\?\); use one of: ppo, recip, log",
        ),
        ("ppo", {"clip": {"kind": 3}}, "unknown kind 3 of clip; use one of"),
        ("ppo", {"clip": 0.2}, "clip = 0.2 is neither a table nor a kind; kinds: ppo"),
        (
            "ppo",
            {"clip": {"loww": 0.1}},
            r"unknown option 'loww' of clip kind 'ppo' \(did you mean 'low'\?\); use one",
        ),
        ("ppo", {"stabilise": {"tau": 3}}, "unknown option 'tau' of stabilise kind 'none'; it has none"),
        ("ppo", {"clip": {"low": "a"}}, "clip.low = 'a' has the wrong type; use a number"),
        ("dapo", {"select": {"tries": 1.5}}, "select.tries = 1.5 has the wrong type; use a whole number"),
        ("ppo", {"clip": {"low": True}}, "clip.low = True has the wrong type"),
        ("ppo", {"clip": {"dual": "three"}}, "clip.dual = 'three' has the wrong type"),
        (
            "ppo",
            {"advantage": {"skip_obs": 1}},
            "advantage.skip_obs = 1 has the wrong type; use true or false",
        ),
        (
            "ppo",
            {"advantage": {"whiten": "mm"}},
            r"advantage.whiten = 'mm' is unknown \(did you mean 'm'\?\)",
        ),
        ("ppo", {"advantage": {"whiten": 1}}, "advantage.whiten = 1 is unknown; use one of: none, m, a"),
        (
            "ppo",
            {"ratio": "turns"},
            r"ratio.level = 'turns' is unknown \(did you mean 'turn'\?\); use one of: token",
        ),
        (
            "ppo",
            {"clip": {"low": -0.1}},
            r"clip: low = -0.1 of kind 'ppo' is out of range; use a number in \[0, 1\]",
        ),
        ("ppo", {"advantage": {"whiten": "a"}}, "m or none while skip_obs"),
        ("ppo", {"stabilise": {"kind": "rms_seq", "tau": 0.5}}, "stabilise: tau = 0.5 of kind 'rms_seq'"),
    ],
)
def test_a_mistake_names_the_thing_what_is_allowed_and_the_nearest(algorithm, slots, message):
    with pytest.raises(InputError, match=message):
        resolve(algorithm, slots)


NAN = math.nan
INF = math.inf
# options, values that are refused, edges that are allowed
RANGES: list[tuple[str, list[float], list[float]]] = [
    (
        (
            "advantage.gae.gamma advantage.gae.lam advantage.turn_mean.lam advantage.turn_gae.gamma"
            " advantage.turn_gae.lam advantage.bilevel.gamma advantage.bilevel.lam"
            " advantage.bilevel.gamma_turn advantage.reinforce_pp.gamma clip.ppo.low clip.hard.low"
            " clip.sg_clip.low clip.ppo_mask.low clip.tv_mask.low clip.tv_mask.high"
            " clip.entropy_band.narrowest stabilise.adv_norm.threshold"
        ),
        [-0.1, 1.1, NAN],
        [0, 1],
    ),
    (
        (
            "clip.ppo.high clip.recip.epsilon clip.log.epsilon clip.hard.high clip.sg_clip.high"
            " clip.ppo_mask.high clip.entropy_band.epsilon stabilise.kl_clipfrac.weight kl.reward.beta"
            " kl.loss.beta kl.lld.weight kl.positive_low.weight select.large_advantage.threshold"
            " schedule.reverse_turns.epsilon"
        ),
        [-0.1, INF, NAN],
        [0, 5],
    ),
    (
        (
            "advantage.grpo.eps advantage.batch_z.eps advantage.group_batch_z.eps"
            " advantage.group_batch_z.limit ratio.guard.floor clip.gamma.k_positive clip.gamma.lam_positive"
            " clip.gamma.k_negative clip.gamma.lam_negative clip.soft_sigmoid.tau_positive"
            " clip.soft_sigmoid.tau_negative clip.bapo.step stabilise.cnorm.guard kl.positive_low.threshold"
            " early_stop.mean_kl.target early_stop.trajectory_kl.limit"
        ),
        [0, -1, INF, NAN],
        [0.5, 2],
    ),
    (
        (
            "stabilise.rms_batch.tau stabilise.rms_turn.tau stabilise.rms_seq.tau clip.tv_mask.cap"
            " clip.entropy_band.widest"
        ),
        [0.99, INF, NAN],
        [1],
    ),
    ("clip.soft.epsilon select.uncertain.share", [0, 1.1, NAN], [1]),
    ("stabilise.subtract.alpha", [INF, NAN], [-1]),
    ("clip.ppo.dual clip.bapo.dual", [1, 0.5, INF], [1.01]),
    ("correction.tis.cap", [0, -1, INF], [0.5]),
    ("aggregate.seq_mean_token_sum_norm.horizon", [0, -1], [0.5]),
    ("correction.icepop.low", [-0.1, 5.0, 6.0], [0]),
    ("correction.icepop.high", [0.5, INF], []),
    ("correction.mis.low", [-0.1, 2.0], [0]),
    ("clip.bapo.low", [-0.1, 0.95], [0, 0.9]),
    ("clip.bapo.low_max", [1.1], [1]),
    ("clip.bapo.high", [0.9, 3.1], [1, 3]),
    ("clip.bapo.high_max", [INF], []),
    ("clip.bapo.share", [-0.1, 1.0], [0]),
    ("select.dynamic_sampling.tries", [0], [1]),
    ("shaping.overlong.limit", [0, INF], [4096]),
    ("shaping.overlong.margin", [0, 30000], [20480]),
]


@pytest.mark.parametrize(
    ("path", "refused", "allowed"), [(p, *r) for names, *r in RANGES for p in names.split()]
)
def test_values_out_of_range_are_refused_and_the_edges_of_a_range_are_allowed(path, refused, allowed):
    slot, kind, option = path.split(".")
    for value in refused:
        with pytest.raises(InputError, match="is out of range; use "):
            resolve("ppo", {slot: {"kind": kind, option: value}})
    for value in allowed:
        assert getattr(getattr(resolve("ppo", {slot: {"kind": kind, option: value}}), slot), option) == value
