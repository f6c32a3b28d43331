import pytest
import torch

from workbench.agent.draws import Stream, draw, uniform
from workbench.agent.engines import NonFinite
from workbench.agent.engines.hf import sample


def test_tokens_come_as_often_as_their_probability_says() -> None:
    probability = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.15, 0.05, 0.0])
    logits = probability.log().expand(40_000, -1)
    token, log_prob = sample(logits, 1.0, torch.Generator().manual_seed(0), greedy=False, position=0)
    share = torch.bincount(token, minlength=7) / len(token)
    assert (share - probability).abs().max() < 0.012  # five standard errors
    assert (share[probability == 0] == 0).all()
    torch.testing.assert_close(log_prob, probability.log()[token])


def test_temperature_sharpens_the_draw_and_its_log_prob() -> None:
    logits = torch.tensor([[0.0, 1.0]]).expand(20_000, -1)
    token, log_prob = sample(logits, 0.5, torch.Generator().manual_seed(0), greedy=False, position=0)
    expected = torch.log_softmax(torch.tensor([0.0, 2.0]), 0)
    assert token.float().mean() == pytest.approx(expected[1].exp().item(), abs=0.012)
    torch.testing.assert_close(log_prob, expected[token])


def test_greedy_takes_the_most_likely_and_needs_no_luck() -> None:
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    token, log_prob = sample(torch.tensor([[1.0, 3.0, 2.0]]), 1.0, generator, greedy=True, position=0)
    assert token.tolist() == [1]
    torch.testing.assert_close(log_prob, torch.log_softmax(torch.tensor([1.0, 3.0, 2.0]), 0)[1:2])
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("greedy", [True, False])
def test_a_row_without_a_distribution_is_named_and_minus_infinity_rules_a_token_out(bad: float, greedy: bool) -> None:
    logits = torch.zeros(5, 4)
    logits[2, 1] = bad
    with pytest.raises(NonFinite, match="1 of 5 rows at token 17"):
        sample(logits, 1.0, torch.Generator(), greedy, position=17)
    token, log_prob = sample(torch.tensor([[float("-inf"), 0.0]]), 1.0, torch.Generator(), False, position=0)
    assert (token.tolist(), log_prob.tolist()) == ([1], [0.0])


def test_draws_are_the_same_in_every_process_uniform_and_uncorrelated() -> None:
    assert draw(1, 2, 3) == 7702586659592502839
    assert draw(1, 2, 3) != draw(1, 3, 2) != draw(1, 2)
    u = torch.tensor([uniform(7, i) for i in range(20_000)], dtype=torch.float64)
    assert u.mean().item() == pytest.approx(0.5, abs=0.01)
    assert u.var().item() == pytest.approx(1 / 12, abs=0.003)
    assert abs(torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1].item()) < 0.03


def test_a_stream_shuffles_fairly() -> None:
    first = torch.bincount(torch.tensor([Stream(3, i).shuffled(5)[0] for i in range(5000)]), minlength=5)
    assert (first / 5000 - 0.2).abs().max() < 0.03
    assert sorted(Stream(1).shuffled(30)) == list(range(30))
