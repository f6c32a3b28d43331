import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from workbench.agent.tokenizer import build_tokenizer
from workbench.learn import networks
from workbench.learn.networks import Critic, linear_head, log_probs, passes, token_log_probs
from workbench.spec import PolicySettings

TOKENIZER = build_tokenizer()
TOKENS = torch.randint(3, len(TOKENIZER), (3, 7), generator=torch.Generator().manual_seed(0))
ALL = 1 << 40  # more logits than there are: they are made at once


@pytest.fixture
def model() -> torch.nn.Module:
    return networks.create(PolicySettings(hidden=16, layers=2, heads=2, mlp=16), TOKENIZER, seed=0)


@pytest.fixture
def critic(model: torch.nn.Module) -> Critic:
    made = Critic(model)
    torch.nn.init.normal_(made.head.weight)
    return made


def test_log_probs_are_those_of_a_softmax_over_the_vocabulary_at_the_position_before(model):
    log_prob, entropy = log_probs(model, TOKENS, temperature=0.7)
    p = torch.softmax(model(input_ids=TOKENS[:, :-1]).logits.double() / 0.7, -1)
    chosen = p.gather(-1, TOKENS[:, 1:, None])[..., 0].log()
    torch.testing.assert_close(log_prob[:, 1:].double(), chosen, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy[:, 1:].double(), -(p * p.log()).sum(-1), rtol=0, atol=1e-5)
    assert (log_prob[:, 0] == 0).all()


def test_padding_on_the_right_changes_no_log_prob_and_no_value(model, critic):
    padded = torch.nn.functional.pad(TOKENS, (0, 5), value=TOKENIZER.pad_token_id)
    torch.testing.assert_close(log_probs(model, padded)[0][:, :7], log_probs(model, TOKENS)[0])
    torch.testing.assert_close(critic(padded)[:, :7], critic(TOKENS))


def test_a_value_does_not_see_the_token_that_it_is_the_baseline_of(critic):
    changed = TOKENS.clone()
    changed[:, 3] = 3 + (TOKENS[:, 3] - 2) % (len(TOKENIZER) - 3)
    before, after = critic(TOKENS), critic(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_the_critic_starts_from_the_policys_weights_and_predicts_nothing(model):
    critic = Critic(model)
    for a, b in zip(model.base_model.parameters(), critic.backbone.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a is not b
    assert (critic(torch.full((1, 4), 5)) == 0).all()


@pytest.mark.parametrize("elements", [1, 71 * 5, 71 * 17])
def test_parts_of_any_size_give_the_log_probs_and_gradients_of_all_logits_at_once(model, elements):
    def results(elements):
        model.zero_grad()
        log_prob, entropy = log_probs(model, TOKENS, 0.7, grad_entropy=True, elements=elements)
        (log_prob.sin().sum() + entropy.cos().sum()).backward()
        return [log_prob, entropy, *[p.grad.clone() for p in model.parameters() if p.grad is not None]]

    for part, whole in zip(results(elements), results(ALL), strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-5, atol=1e-5)


def test_logits_are_made_only_where_they_are_wanted(model):
    where = torch.rand(3, 7, generator=torch.Generator().manual_seed(1)) < 0.4
    wanted = where & (torch.arange(7) > 0)
    assert wanted.any()
    for found, whole in zip(log_probs(model, TOKENS, where=where, elements=1), log_probs(model, TOKENS), strict=True):
        torch.testing.assert_close(found, torch.where(wanted, whole, 0))
    none, _ = log_probs(model, TOKENS, where=torch.zeros_like(where), elements=1)
    assert (none == 0).all()
    none.sum().backward()  # a batch without a trained token still has a graph


@pytest.mark.parametrize("bias", [False, True])
def test_the_gradient_is_that_of_finite_differences(bias):
    torch.manual_seed(0)
    head = torch.nn.Linear(3, 7, bias=bias).double()
    hidden, targets = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.tensor([0, 6, 3, 3, 1])
    inputs = (hidden, *head.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: token_log_probs(x, head, targets, 0.7, elements=14), inputs)


def test_a_head_with_more_to_it_than_a_linear_layer_keeps_all_its_logits():
    torch.manual_seed(0)
    size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8,
            "num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.5}  # fmt: skip
    capped = Gemma2ForCausalLM(Gemma2Config(**size, final_logit_softcapping=0.5)).eval()
    scaled = CohereForCausalLM(CohereConfig(**size, logit_scale=0.1)).eval()
    tokens = torch.randint(50, (2, 6))
    for model in (capped, scaled):
        assert linear_head(model) is None
        torch.testing.assert_close(log_probs(model, tokens, elements=1), log_probs(model, tokens))
    plain = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)).eval()
    assert linear_head(plain) is plain.lm_head


def test_in_bfloat16_parts_are_what_autocast_makes_of_the_whole(model):
    with torch.autocast("cpu", torch.bfloat16):
        part, whole = (log_probs(model, TOKENS, elements=n)[0] for n in (71 * 5, ALL))
    assert part.dtype == torch.float32
    torch.testing.assert_close(part, whole, rtol=0, atol=0.05)
    assert not torch.allclose(part, log_probs(model, TOKENS)[0], rtol=0, atol=1e-5)


def test_passes_keep_to_their_budget_and_take_every_row_once():
    length = torch.tensor([5, 90, 30, 30, 31, 7, 6])
    parts = passes(length, 64)
    assert [part.tolist() for part in parts] == [[1], [4, 2], [3, 5], [6, 0]]
    for part in parts:
        assert len(part) == 1 or len(part) * int(length[part].max()) <= 64
