import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from workbench.agent.tokenizer import build_tokenizer
from workbench.learn import networks
from workbench.learn.networks import Critic, linear_head, token_log_probs
from workbench.spec import PolicySettings

TOKENIZER = build_tokenizer()


def network() -> torch.nn.Module:
    return networks.create(PolicySettings(hidden=16, layers=2, heads=2, mlp=16), TOKENIZER, seed=0)


def test_log_probs_are_those_of_a_softmax_over_the_vocabulary_at_the_position_before() -> None:
    model, tokens = network(), torch.randint(3, len(TOKENIZER), (3, 7), generator=torch.Generator().manual_seed(0))
    log_prob, entropy = networks.log_probs(model, tokens, temperature=0.7)
    p = torch.softmax(model(input_ids=tokens).logits.double() / 0.7, -1)
    for b in range(3):
        for t in range(1, 7):
            row = p[b, t - 1]
            torch.testing.assert_close(log_prob[b, t].double(), row[tokens[b, t]].log(), rtol=0, atol=1e-5)
            torch.testing.assert_close(entropy[b, t].double(), -(row * row.log()).sum(), rtol=0, atol=1e-5)
    assert (log_prob[:, 0] == 0).all()


def test_padding_on_the_right_changes_no_log_prob_and_no_value() -> None:
    model = network()
    critic = Critic(model)
    torch.nn.init.normal_(critic.head.weight)
    tokens = torch.randint(3, len(TOKENIZER), (2, 6), generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(tokens, (0, 5), value=TOKENIZER.pad_token_id)
    torch.testing.assert_close(networks.log_probs(model, padded)[0][:, :6], networks.log_probs(model, tokens)[0])
    torch.testing.assert_close(critic(padded)[:, :6], critic(tokens))


def test_a_value_does_not_see_the_token_that_it_is_the_baseline_of() -> None:
    critic = Critic(network())
    torch.nn.init.normal_(critic.head.weight)
    tokens = torch.randint(3, len(TOKENIZER), (1, 6), generator=torch.Generator().manual_seed(2))
    changed = tokens.clone()
    changed[0, 3] = 3 + (tokens[0, 3] - 2) % (len(TOKENIZER) - 3)
    before, after = critic(tokens), critic(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_the_critic_starts_from_the_policys_weights_and_predicts_nothing() -> None:
    model = network()
    critic = Critic(model)
    for a, b in zip(model.base_model.parameters(), critic.backbone.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a is not b
    assert (critic(torch.full((1, 4), 5)) == 0).all()


SIZE = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8,
        "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip


def both(model: torch.nn.Module, tokens: torch.Tensor, elements: int, **how: object) -> tuple[torch.Tensor, ...]:
    model.zero_grad()
    log_prob, entropy = networks.log_probs(model, tokens, 0.7, grad_entropy=True, elements=elements, **how)
    (log_prob.sin().sum() + entropy.cos().sum()).backward()
    return (log_prob.detach(), entropy.detach(), *[p.grad.clone() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("elements", [1, 71 * 5, 71 * 17])
def test_parts_of_any_size_give_the_log_probs_and_gradients_of_all_logits_at_once(elements: int) -> None:
    model, tokens = network(), torch.randint(3, 71, (3, 7), generator=torch.Generator().manual_seed(0))
    for part, whole in zip(both(model, tokens, elements), both(model, tokens, 1 << 40), strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-5, atol=1e-5)


def test_logits_are_made_only_where_they_are_wanted() -> None:
    model, tokens = network(), torch.randint(3, 71, (3, 7), generator=torch.Generator().manual_seed(0))
    where = torch.rand(3, 7, generator=torch.Generator().manual_seed(1)) < 0.4
    log_prob, entropy = networks.log_probs(model, tokens, where=where, elements=1)
    whole, spread = networks.log_probs(model, tokens)
    assert where[:, 1:].any()
    wanted = where & (torch.arange(7) > 0)
    torch.testing.assert_close(log_prob, torch.where(wanted, whole, 0))
    torch.testing.assert_close(entropy, torch.where(wanted, spread, 0))
    none, _ = networks.log_probs(model, tokens, where=torch.zeros_like(where), elements=1)
    assert (none == 0).all()
    none.sum().backward()  # a batch without a trained token still has a graph


@pytest.mark.parametrize("bias", [False, True])
def test_the_gradient_is_that_of_finite_differences(bias: bool) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(3, 7, bias=bias).double()
    hidden, targets = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.tensor([0, 6, 3, 3, 1])

    def both_of(hidden: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return token_log_probs(hidden, head, targets, 0.7, elements=14)

    assert torch.autograd.gradcheck(both_of, (hidden, *head.parameters()))


def test_a_head_with_more_to_it_than_a_linear_layer_keeps_all_its_logits() -> None:
    torch.manual_seed(0)
    capped = Gemma2ForCausalLM(Gemma2Config(**SIZE, final_logit_softcapping=0.5, initializer_range=0.5)).eval()
    scaled = CohereForCausalLM(CohereConfig(**SIZE, logit_scale=0.1, initializer_range=0.5)).eval()
    tokens = torch.randint(50, (2, 6))
    for model in (capped, scaled):
        assert linear_head(model) is None
        torch.testing.assert_close(networks.log_probs(model, tokens, elements=1), networks.log_probs(model, tokens))
    plain = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)).eval()
    assert linear_head(plain) is plain.lm_head


def test_in_bfloat16_parts_are_what_autocast_makes_of_the_whole() -> None:
    model, tokens = network(), torch.randint(3, 71, (3, 7), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        part, whole = (networks.log_probs(model, tokens, elements=n)[0] for n in (71 * 5, 1 << 40))
    assert part.dtype == torch.float32
    torch.testing.assert_close(part, whole, rtol=0, atol=0.05)
    assert not torch.allclose(part, networks.log_probs(model, tokens)[0], rtol=0, atol=1e-5)
