from __future__ import annotations

from workbench.agent.demonstrations import demonstrations
from workbench.agent.worlds.facts import Facts
from workbench.spec import WarmStartSettings


def test_by_default_two_thirds_of_the_demonstrations_succeed(world: Facts) -> None:
    episodes = demonstrations(world, 3000, WarmStartSettings().noise, seed=0)
    assert 0.63 < sum(e.success for e in episodes) / 3000 < 0.73
    valid = sum(e.valid_turns for e in episodes) / sum(e.turns for e in episodes)
    assert 0.88 < valid < 0.96
    assert {s for e in episodes for s in e.turn_status} == {"search", "answer", "invalid"}


def test_a_player_without_noise_is_always_right(world: Facts) -> None:
    episodes = demonstrations(world, 300, 0.0, seed=0)
    assert all(e.success and e.valid_turns == e.turns == e.searches + 1 for e in episodes)


def test_a_player_who_only_errs_is_right_by_chance_only(world: Facts) -> None:
    assert sum(e.success for e in demonstrations(world, 1000, 1.0, seed=0)) < 50  # 1 in 39 of those who answer


def test_demonstrations_are_addressed_by_index(world: Facts) -> None:
    episodes = demonstrations(world, 40, 0.3, seed=1)
    assert demonstrations(world, 10, 0.3, seed=1, start=20) == episodes[20:30]
    assert demonstrations(world, 40, 0.3, seed=2) != episodes


def test_demonstrations_use_training_questions_that_no_run_draws(world: Facts) -> None:
    evaluation = {q.text for q in world.questions("eval", 0, 0, 1000)}
    shown = demonstrations(world, 1000, 0.1, seed=0)
    assert not evaluation & {e.question for e in shown}
    drawn = [(q.text, q.gold) for q in world.questions("train", 0, 0, 1000)]
    assert sum(a == b for a, b in zip(drawn, [(e.question, e.gold) for e in shown], strict=True)) < 10
