"""Every kind of fault leaves the fingerprint of its bug from its step on, and nothing before."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.learn.lab import AT, KL, Bench, Run
from tests.learn.tiny import MakeRun, Session, assert_same_rows, train
from workbench.learn.faults import FAULTS, Kind
from workbench.learn.faults.declare import HOOKS
from workbench.learn.faults.sampling import rounded


def setting(kind: Kind) -> dict[str, Any]:
    """A run that the kind can concern."""
    return {
        "algorithm": "ppo" if kind.needs == "critic" else "grpo",
        "changes": KL if kind.needs == "reference" else {},
    }


def written(run: Run, step: int) -> int:
    return int(sum(run.seen.evidence[step].rollouts.response_tokens))


def observed(run: Run, step: int) -> int:
    return int(sum(run.seen.evidence[step].rollouts.observation_tokens))


def trained(run: Run, step: int) -> int:
    return int(run.column("minibatch", "tokens", step).sum())


def mismatch(run: Run, step: int) -> float:
    return float(run.column("turn", "mismatch", step).mean())


def test_every_fault_sits_in_a_hook_of_the_trainer() -> None:
    assert {kind.hook for kind in FAULTS.values()} == set(HOOKS)


@pytest.mark.parametrize("kind", FAULTS.values(), ids=lambda k: k.name)
def test_until_its_step_a_run_with_a_fault_is_the_run_without_one(bench: Bench, kind: Kind) -> None:
    given = setting(kind)
    healthy = bench.healthy(given["algorithm"], **given["changes"])
    faulty = bench.faulty(kind.name, **given)
    assert faulty.row(AT - 1) == healthy.row(AT - 1)
    same = [faulty.row(step) == healthy.row(step) for step in (AT, AT + 1)]
    # Slowness changes wall times only; a critic of another learning rate is first asked for its values a step later.
    assert same == {"retriever_slow": [True, True], "critic_diverges": [True, False]}.get(kind.name, [False, False])


def test_a_fault_whose_step_never_comes_changes_no_row(bench: Bench) -> None:
    for kind in ("stale_weights", "retriever_junk", "batch_reused", "observation_leak", "learning_rate"):
        assert bench.faulty(kind, at_step=100).row(3) == bench.healthy().row(3)


def test_a_fault_that_ended_leaves_the_next_step_to_the_trainer(bench: Bench) -> None:
    run = bench.faulty("temperature", strength=3.0, until_step=AT + 1)
    assert [mismatch(run, step) > 0.1 for step in (AT - 1, AT, AT + 1)] == [False, True, False]


def test_stale_weights_part_sampler_and_trainer_while_the_books_say_fresh(bench: Bench) -> None:
    run = bench.faulty("stale_weights")
    assert mismatch(run, AT - 1) < 1e-5
    assert 1e-4 < mismatch(run, AT) < mismatch(run, AT + 1)
    assert [run.row(step)["staleness"] for step in range(4)] == [0, 0, 0, 0]


def test_stale_weights_of_one_iteration_follow_at_that_distance(bench: Bench) -> None:
    frozen, late = bench.faulty("stale_weights"), bench.faulty("stale_weights", strength=1)
    assert late.row(AT) == frozen.row(AT)
    assert mismatch(late, AT + 1) != mismatch(frozen, AT + 1)


def test_rounding_to_seven_bits_is_bfloat16() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 3
    assert torch.equal(rounded(x, 7), x.bfloat16().float())
    assert (rounded(x, 3) - x).abs().max() > (rounded(x, 7) - x).abs().max() > 0


def test_low_precision_shows_as_a_mismatch_that_grows_with_the_bits_that_are_gone(bench: Bench) -> None:
    fine, coarse = bench.faulty("low_precision"), bench.faulty("low_precision", strength=3)
    assert mismatch(fine, AT - 1) < 1e-5
    assert 1e-4 < mismatch(fine, AT) < mismatch(coarse, AT)


def test_a_sampler_at_another_temperature_reports_log_probs_that_the_trainer_does_not_find(bench: Bench) -> None:
    run = bench.faulty("temperature", strength=2.0)
    assert abs(run.row(AT - 1)["mismatch_kl"]) < 1e-5
    assert run.row(AT)["mismatch_kl"] > 0.05  # samples of the sampler: its KL from the trainer


def test_a_hidden_temperature_is_seen_in_no_mismatch_but_in_tokens_less_likely_than_the_entropy_says(
    bench: Bench,
) -> None:
    run, healthy = bench.faulty("temperature_hidden", strength=2.0), bench.healthy()
    assert 0 < mismatch(run, AT) < 1e-5

    def surprise(run: Run) -> float:
        u = run.updates(AT)
        return float(-u.log_prob[u.mask].mean() - u.entropy[u.mask].mean())

    assert surprise(run) > surprise(healthy) + 0.1


def test_an_empty_retriever_leaves_observations_without_facts(bench: Bench) -> None:
    run, healthy = bench.faulty("retriever_empty"), bench.healthy()
    assert run.row(AT)["observation_frac"] < 0.7 * healthy.row(AT)["observation_frac"]
    first = bench.faulty("retriever_empty", turn=3)
    assert first.row(AT)["observation_frac"] > run.row(AT)["observation_frac"]


def test_a_slow_retriever_takes_its_time_and_changes_nothing_else(bench: Bench) -> None:
    run = bench.faulty("retriever_slow", strength=0.02)
    searches = sum(run.seen.evidence[AT].rollouts.searches)
    assert run.seen.measured[AT].step["seconds_rollout"] > 0.5 * 0.02 * searches > 0.05
    assert run.row(AT) == bench.healthy().row(AT)


def test_a_retriever_out_of_step_answers_another_query(bench: Bench) -> None:
    run, healthy = bench.faulty("retriever_junk").seen.evidence[AT], bench.healthy().seen.evidence[AT]
    same = list(zip(run.rollouts.tokens, healthy.rollouts.tokens, run.rollouts.written, strict=True))
    differing = [first != other for first, other, _ in same]
    assert sum(differing) > 8
    # The prompt and the first turn are what they were.
    assert all(a[: len(w[0])] == b[: len(w[0])] for a, b, w in same)


def test_a_cut_budget_of_turns_leaves_no_answer_and_one_of_tokens_breaks_the_format(
    bench: Bench,
) -> None:
    run = bench.faulty("truncated", strength=1)
    assert max(run.seen.evidence[AT].rollouts.turns) == 1
    assert run.row(AT)["truncated_frac"] > 0.8 > run.row(AT - 1)["truncated_frac"]
    run = bench.faulty("turn_cut", strength=3)
    assert run.column("turn", "n_tokens", AT).max() == 3
    assert run.row(AT)["valid_action_frac"] < 0.5 * run.row(AT - 1)["valid_action_frac"]


def test_a_reward_for_the_format_pays_every_answer_and_leaves_success_true(bench: Bench) -> None:
    r = bench.faulty("reward_format").seen.evidence[AT].rollouts
    assert r.reward.tolist() == (r.answered & (r.valid_turns == r.turns)).tolist()
    assert r.success.tolist() == bench.healthy().seen.evidence[AT].rollouts.success.tolist()
    assert r.reward.sum() > r.success.sum()


def test_a_noisy_reward_is_wrong_as_often_as_asked(bench: Bench) -> None:
    run = bench.faulty("reward_noise", strength=0.4)
    found = [run.seen.evidence[step].rollouts for step in (AT, AT + 1)]
    wrong = np.concatenate([r.reward != r.success for r in found])
    assert 0.15 < wrong.mean() < 0.65
    assert bench.faulty("reward_noise", strength=0.0).row(AT) == bench.healthy().row(AT)


def test_an_inverted_reward_is_minus_the_success_and_shifted_ones_are_those_of_the_row_before(bench: Bench) -> None:
    r = bench.faulty("reward_inverted").seen.evidence[AT].rollouts
    assert r.reward.tolist() == (-1.0 * r.success).tolist()
    assert r.success.any()
    r = bench.faulty("reward_shifted").seen.evidence[AT].rollouts
    assert r.reward[1:].tolist() == r.success[:-1].tolist()
    assert r.reward.tolist() != r.success.tolist()


def test_a_retokenised_turn_is_trained_on_other_tokens_than_were_sampled(bench: Bench) -> None:
    run = bench.faulty("retokenised", turn=1)
    assert [run.row(step)["token_mismatches"] for step in (AT - 1, AT)] == [0, 4]
    assert {turn for _, turn in run.seen.evidence[AT].mismatches or ()} == {1}
    assert run.events() == [("guard_token_identity", AT)]
    # The sampler's log-prob is that of another token.
    turns = run.column("turn", "turn_index", AT)
    odd = run.column("turn", "mismatch", AT)
    assert odd[turns > 1].max() < odd[turns == 1].max() / 2


def test_a_reused_batch_is_the_one_of_the_step_before(bench: Bench) -> None:
    run = bench.faulty("batch_reused")
    seen = [run.row(step)["batch_hash"] for step in range(4)]
    assert [a == b for a, b in pairwise(seen)] == [False, True, False]
    assert run.events() == [("guard_stuck_batch", AT)]


def test_a_growing_queue_ages_what_is_trained_on(bench: Bench) -> None:
    run = bench.faulty("staleness")
    assert [run.row(step)["staleness"] for step in range(4)] == [0, 0, 0, 1]
    assert run.row(AT)["questions_hash"] == bench.healthy().row(AT)["questions_hash"]


def test_leaking_observations_are_trained_on(bench: Bench) -> None:
    run = bench.faulty("observation_leak")
    assert trained(run, AT - 1) == written(run, AT - 1)
    assert trained(run, AT) == written(run, AT) + observed(run, AT)
    assert run.events() == [("guard_token_identity", AT)]
    one = bench.faulty("observation_leak", turn=2)
    assert written(one, AT) < trained(one, AT) < trained(run, AT)
    assert {turn for _, turn in one.seen.evidence[AT].mismatches or ()} == {2}


def test_a_leaking_prompt_is_trained_on_but_for_its_first_token(bench: Bench) -> None:
    run = bench.faulty("prompt_leak")
    whole = sum(map(len, run.seen.evidence[AT].rollouts.tokens))
    assert trained(run, AT) == whole - observed(run, AT) - 16


def test_leaking_padding_is_trained_on(bench: Bench) -> None:
    run, healthy = bench.faulty("padding_leak"), bench.healthy()
    extra = trained(run, AT) - written(run, AT)
    assert extra > 0
    assert trained(bench.faulty("padding_leak", strength=0.5), AT) - written(run, AT) < extra
    assert run.row(AT)["success"] == healthy.row(AT)["success"]


def test_shifted_turns_lose_their_first_token(bench: Bench) -> None:
    shifted, healthy = bench.faulty("turn_shift").updates(AT), bench.healthy().updates(AT)
    assert not (shifted.mask & healthy.mask & (healthy.turn > 0) & _first(healthy.turn)).any()
    one = bench.faulty("turn_shift", turn=2).updates(AT)
    moved = one.mask != healthy.mask
    assert moved.any()
    assert not (moved & (healthy.turn == 1)).any()


def _first(turn: torch.Tensor) -> torch.Tensor:
    return turn != torch.nn.functional.pad(turn, (1, 0))[..., :-1]


def test_a_corrupt_log_prob_is_one_ratio_out_of_proportion_in_its_turn(bench: Bench) -> None:
    run = bench.faulty("corrupt_log_prob", turn=2)
    turns, largest = run.column("turn", "turn_index", AT), run.column("turn", "ratio_max", AT)
    assert largest.max() == pytest.approx(np.exp(8), rel=0.2)
    assert (largest > 100).sum() == 1
    assert turns[largest.argmax()] == 2
    assert run.column("turn", "ratio_max", AT - 1).max() < 2


def test_wrong_groups_leave_advantages_that_do_not_add_up_to_zero_in_the_right_ones(bench: Bench) -> None:
    def bias(run: Run) -> float:
        table = run.seen.measured[AT].trajectory
        group, advantage = np.asarray(table["prompt_group"]), np.ma.getdata(table["advantage"])
        return max(abs(advantage[group == g].mean()) for g in set(group))

    run = bench.faulty("wrong_groups")
    assert bias(bench.healthy()) < 1e-6
    assert bias(run) > 0.1
    assert run.row(AT)["group_reward_std"] == bench.healthy().row(AT)["group_reward_std"]


def test_the_learning_rate_and_the_clipping_in_effect_are_logged(bench: Bench) -> None:
    run = bench.faulty("learning_rate")
    assert [set(run.column("minibatch", "lr", step)) for step in (AT - 1, AT)] == [{0.05}, {0.5}]
    run = bench.faulty("clipping_off")
    norm, after = (run.column("minibatch", name, AT) for name in ("grad_norm", "grad_norm_after"))
    assert norm.max() > 0.1
    assert (norm == after).all()
    assert run.column("minibatch", "grad_norm_after", AT - 1).max() <= 0.1


def test_a_critic_that_diverges_loses_its_value(bench: Bench) -> None:
    run, healthy = bench.faulty("critic_diverges", "ppo"), bench.healthy("ppo")
    loss = [r.column("minibatch", "value_loss", AT + 1).mean() for r in (healthy, run)]
    assert loss[1] > 2 * loss[0]
    assert set(run.column("minibatch", "lr", AT)) == {0.05}


def test_an_entropy_bonus_that_is_too_high_raises_the_entropy(bench: Bench) -> None:
    run = bench.faulty("entropy_bonus", strength=1.0)
    assert run.row(AT + 1)["entropy"] > bench.healthy().row(AT + 1)["entropy"]


def test_a_wrong_reference_is_far_away_at_once(bench: Bench) -> None:
    run = bench.faulty("reference_wrong", changes=KL)
    assert run.row(AT)["kl_ref"] > 5 * run.row(AT - 1)["kl_ref"]
    assert run.row(AT)["success"] == bench.healthy("grpo", **KL).row(AT)["success"]


def test_an_interrupted_run_with_a_fault_starts_again_and_ends_with_the_rows_of_one_that_was_not(
    new_run: MakeRun, cache: Path
) -> None:
    changes: dict[str, Any] = {"iterations": 4, "algorithm": "grpo", "evaluation": {"every": 0, "episodes": 2}}
    changes["fault"] = {"kind": "stale_weights", "at_step": 2}
    whole, parts = (new_run(name, **changes) for name in ("whole", "parts"))
    assert train(whole, cache) == 0
    session = Session(parts, cache, **changes)
    session.train(3, save=True)  # the frozen weights are in memory alone
    session.recorder.close()
    assert train(parts, cache) == 0
    assert_same_rows(whole, parts, "step", "minibatch", "turn", "trajectory")
