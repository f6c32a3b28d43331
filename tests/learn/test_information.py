import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sorl.agent.episode import Episode
from sorl.learn import information
from sorl.learn.information import first_of_each_prompt, information_of, measure_information
from sorl.spec import ComputeSettings


def episode(prompt: list[int], *turns: list[int], group: int = 0) -> Episode:
    tokens = list(prompt)
    written = [False] * len(prompt)
    for turn in turns:
        tokens += [*turn, 9]  # 9: what the tool said
        written += [True] * len(turn) + [False]
    fields = dict.fromkeys(Episode.__dataclass_fields__)
    fields |= {"tokens": tokens, "written": written, "log_prob": [0.0] * len(tokens), "group": group}
    fields |= {"prompt_length": len(prompt), "reward": 0.0, "turn_status": [], "turn_rewards": []}
    return Episode(**fields)


@given(st.integers(2, 8), st.integers(0, 2**31))
def test_information_is_that_of_the_formula_and_at_most_the_logarithm_of_the_prompts(size: int, seed: int):
    scores = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double() * 5
    p = scores.exp().tolist()
    expected = sum(math.log(p[i][i]) - math.log(sum(p[i]) / size) for i in range(size)) / size
    found = information_of(scores)
    assert found.nats == pytest.approx(expected, abs=1e-9)
    assert found.nats <= math.log(size) + 1e-12
    assert found.retrieved == sum(max(row) == row[i] for i, row in enumerate(p)) / size


def test_a_template_carries_no_information_and_is_retrieved_by_chance():
    found = information_of(torch.full((4, 4), -3.0, dtype=torch.float64))
    assert (found.nats, found.retrieved) == (pytest.approx(0.0), 0.25)


def test_one_rollout_of_each_prompt_is_compared_and_none_that_wrote_nothing():
    rollouts = [episode([1], [5]), episode([1], [6]), episode([2]), episode([3], [7])]
    assert [one.tokens for one in first_of_each_prompt(rollouts)] == [[1, 5, 9], [3, 7, 9]]
    many = [episode([prompt], [5]) for prompt in range(20)]
    assert len(first_of_each_prompt(many)) == information.PROMPTS


def test_first_turns_are_scored_behind_every_prompt(monkeypatch):
    seen = {}

    def scored(model, batch, temperature, compute):
        seen.update(tokens=batch.tokens.tolist(), mask=batch.mask.tolist())
        return torch.where(batch.mask, batch.tokens[:, :1].float() * -1.0, 0.0), None

    monkeypatch.setattr(information, "scored", scored)
    rollouts = [episode([1], [5, 6], [8]), episode([2, 4], [7])]
    found = measure_information(None, rollouts, 0, 1.0, ComputeSettings())
    assert seen["tokens"] == [[1, 5, 6, 0], [2, 4, 5, 6], [1, 7, 0, 0], [2, 4, 7, 0]]
    assert seen["mask"] == [
        [False, True, True, False],
        [False, False, True, True],
        [False, True, False, False],
        [False, False, True, False],
    ]
    assert found == information_of(torch.tensor([[-2.0, -4.0], [-1.0, -2.0]], dtype=torch.float64))


def test_one_prompt_tells_nothing():
    assert measure_information(None, [episode([1], [5])] * 3, 0, 1.0, ComputeSettings()) is None
