"""The points at which a rule turns: a ratio exactly at its bound, the smallest batch with a variance, the last unit."""

import inspect
import pkgutil
from dataclasses import replace
from importlib import import_module

import pytest
import torch

import workbench.objective
from tests.objective.random_batches import F64
from tests.objective.worked_example import PPO, plain
from workbench.objective import KINDS, policy_loss
from workbench.objective.clip import LogClip, Ppo
from workbench.objective.stabilise import RmsBatch


def parts() -> list[type]:
    """Every dataclass of the objective."""
    names = [f"workbench.objective.{found.name}" for found in pkgutil.iter_modules(workbench.objective.__path__)]
    classes = {c for name in names for c in vars(import_module(name)).values() if inspect.isclass(c)}
    ours = [c for c in classes if c.__module__ in names and hasattr(c, "__dataclass_params__")]
    return sorted(ours, key=lambda c: c.__qualname__)


@pytest.mark.parametrize("part", parts(), ids=lambda part: part.__qualname__)
def test_no_part_of_a_declaration_can_be_changed_under_the_run_that_uses_it(part: type) -> None:
    assert "__dataclass_params__" in vars(part), "a subclass without the decorator compares and prints as its base"
    assert part.__dataclass_params__.frozen


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("beyond", [0, 1e-12])
def test_a_ratio_exactly_at_its_bound_is_inside_and_one_just_beyond_is_outside(beyond: float, advantage: float) -> None:
    old = torch.full((1, 3), -1.0, dtype=F64)
    bounds = torch.tensor([-0.25, 0.25], dtype=F64).exp().tolist()
    clip = Ppo(low=1 - bounds[0], high=bounds[1] - 1)
    assert clip.bounds == tuple(bounds)  # both differences are exact in binary
    new = old + torch.tensor([[-0.25 - beyond, 0, 0.25 + beyond]], dtype=F64)
    batch = plain(old, advantages=torch.full_like(old, advantage))
    for choice in (clip, LogClip(epsilon=0.25), LogClip(epsilon=0.25, at="unit")):
        terms = policy_loss(replace(PPO, clip=choice), batch, new).terms
        assert terms.active_low[0].tolist() == [beyond > 0 > advantage, False, False]
        assert terms.active_high[0].tolist() == [False, False, beyond > 0 and advantage > 0]
    stabilised = policy_loss(replace(PPO, clip=clip, stabilise=RmsBatch(tau=1.0)), batch, new).terms
    assert (stabilised.clipped_rms == 0, stabilised.stabiliser_factor == 1) == (not beyond, not beyond)


def test_a_ratio_exactly_at_the_dual_bound_is_not_capped() -> None:
    new = torch.tensor([[-0.5, -0.25]], dtype=F64)
    old = torch.full_like(new, -1.0)
    dual = float((new - old).exp()[0, 0])
    batch = plain(old, advantages=torch.full_like(old, -1.0))
    terms = policy_loss(replace(PPO, clip=Ppo(dual=dual)), batch, new).terms
    assert terms.dual[0].tolist() == [False, True]


# The numbers that papers and reference code start from; a change here changes what everyone's TOML means.
DEFAULTS = """
advantage gae: gamma = 1.0, lam = 1.0, skip_obs = true, whiten = m
advantage turn_gae: gamma = 0.99, lam = 0.9, whiten = none
advantage turn_mean: gamma = 1.0, lam = 1.0, skip_obs = true, whiten = m
advantage bilevel: gamma = 1.0, lam = 1.0, gamma_turn = 0.95, whiten = m
advantage grpo: eps = 1e-06
advantage mean_only:
advantage rloo:
advantage batch_z: eps = 1e-06
advantage reinforce_pp: gamma = 1.0
ratio pool: level = token, mean = geometric, grad = shared
clip ppo: low = 0.2, high = 0.2, dual = none, gate = token
clip recip: epsilon = 0.1, gate = token
clip log: epsilon = 0.4, at = token, gate = token
clip hard: low = 0.2, high = 0.2
clip soft: epsilon = 0.2
clip none:
stabilise none:
stabilise rms_batch: tau = 3.0, smooth = false, scope = micro
stabilise rms_turn: tau = 5.0, smooth = false, scope = micro
stabilise rms_seq: tau = 3.0, smooth = false
stabilise cnorm: guard = 1.0
stabilise kl_clipfrac: scope = micro, weight = 1.0, form = sequence, estimator = k3, direction = old_new
stabilise adv_norm: scope = micro, threshold = 0.2
stabilise subtract: alpha = 1.0
aggregate token_mean: scope = global
aggregate token_sum: scope = global
aggregate seq_mean_token_sum: scope = global
aggregate seq_mean_token_sum_norm: scope = global, horizon = none
aggregate seq_mean_token_mean: scope = global
aggregate turn_mean: scope = global
aggregate turn_mean_global: scope = global
kl none:
kl reward: beta = 0.001
kl loss: estimator = k3, beta = 0.001
select none:
select zero_var:
correction none:
correction tis: cap = 2.0, level = token, normalise = false
correction mis: low = 0.0, high = 2.0, level = token, normalise = false
correction icepop: low = 0.5, high = 5.0, level = token, normalise = false
"""


@pytest.mark.parametrize("line", DEFAULTS.strip().splitlines())
def test_an_option_that_is_not_set_has_its_published_default(line: str) -> None:
    choice, options = line.split(":")
    slot, kind = choice.split()
    assert ", ".join(KINDS[slot][kind]().options()) == options.strip()
