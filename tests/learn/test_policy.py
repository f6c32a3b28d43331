import torch

from workbench.agent.tokenizer import build_tokenizer
from workbench.learn import networks
from workbench.learn.networks import Critic
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
