"""The mask self-test finds what it is there for, and passes what is sound."""

import io
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.learn.tiny import rows
from workbench.agent.episode import collate
from workbench.agent.tokenizer import build_tokenizer
from workbench.algorithms import ALGORITHMS
from workbench.batch import Batch
from workbench.learn import checks, networks
from workbench.learn.run import run
from workbench.objective import value
from workbench.objective.aggregate import Normaliser, TokenMean
from workbench.objective.kl import LossKL
from workbench.spec import PolicySettings

TOKENIZER = build_tokenizer()
PAD = TOKENIZER.pad_token_id
PPO = ALGORITHMS["ppo"]


@pytest.fixture(scope="module")
def network() -> Any:
    return networks.create(PolicySettings(hidden=16, layers=2, heads=2, mlp=16), TOKENIZER, seed=0)


@pytest.mark.parametrize("group_size", [1, 2, 8])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_named_algorithm_passes_with_any_group_size(name: str, group_size: int, network: Any) -> None:
    assert checks.problem(ALGORITHMS[name].within(84), group_size, network, PAD) == ""


def test_the_synthetic_batch_has_every_kind_of_token_and_is_the_same_at_every_call() -> None:
    made, again = checks.synthetic(2), checks.synthetic(2)
    assert torch.equal(made.batch.tokens, again.batch.tokens)
    assert torch.equal(made.batch.log_prob_old, again.batch.log_prob_old)
    prompt = ~(made.written | made.padding | made.observed)
    for kind in (prompt, made.written, made.padding, made.observed):
        assert kind.any()
    assert torch.equal(prompt.int() + made.written.int() + made.padding.int() + made.observed.int(),
                       torch.ones_like(prompt).int())  # fmt: skip
    assert torch.equal(made.batch.response, made.written | made.observed)
    assert made.batch.group.unique().tolist() == [0, 1]


def test_the_self_test_neither_draws_from_the_global_stream_nor_changes_the_network(network: Any) -> None:
    before = [p.clone() for p in network.parameters()]
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    checks.problem(PPO, 1, network, PAD)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert all(p.grad is None for p in network.parameters())


class KlOfTheResponse(LossKL):
    """A KL term over the whole response, as one whose mask was built from the attention mask."""

    kind: ClassVar[str] = "leaky"

    def in_loss(self, batch: Batch, log_prob: Tensor, counts: Normaliser) -> Tensor:
        return (torch.where(batch.response, log_prob, 0)).sum() / counts.tokens


class CountsTokens(TokenMean):
    """A mean that divides by a number which tokens of the world and of nobody enter."""

    kind: ClassVar[str] = "counting"

    def weights(self, batch: Batch, counts: Normaliser) -> Tensor:
        return batch.mask / batch.tokens.flip(1).cumsum(1).amax().to(batch.log_prob_old.dtype)


class Bidirectional(torch.nn.Module):
    """A network whose every prediction sees the whole row, padding included."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def get_input_embeddings(self) -> Any:
        return self.network.get_input_embeddings()

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        out = self.network(input_ids=input_ids, use_cache=use_cache)
        out.logits = out.logits + out.logits.mean(1, keepdim=True)
        return out


def test_a_loss_on_observations_is_found(network: Any) -> None:
    leaky = replace(PPO, kl=KlOfTheResponse("k1", 0.1))
    assert checks.problem(leaky, 1, network, PAD) == "the loss of 'ppo' has a gradient at observations"


def test_a_loss_that_changes_with_tokens_of_the_world_is_found(network: Any) -> None:
    counting = replace(PPO, aggregate=CountsTokens())
    assert "changes with tokens that the policy did not write" in checks.problem(counting, 1, network, PAD)


def test_a_mask_of_the_whole_response_is_found(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(*arguments: Any) -> Batch:
        batch = collate(*arguments)
        return replace(batch, mask=batch.response)

    monkeypatch.setattr(checks, "collate", careless)
    assert "the loss mask is not what the policy wrote: it has observations in it" in checks.problem(
        PPO, 1, network, PAD
    )


def test_a_critic_that_learns_from_prompts_and_padding_is_found(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value, "positions", lambda batch, mask: torch.ones_like(batch.mask))
    assert (
        checks.problem(PPO, 1, network, PAD)
        == "the critic's loss has a gradient at padding and observations and prompts"
    )
    assert checks.problem(ALGORITHMS["grpo"], 2, network, PAD) == "", "it has no critic"


def test_a_network_that_reads_padding_is_found(network: Any) -> None:
    assert "when only the padding after them changes" in checks.problem(PPO, 1, Bidirectional(network), PAD)


def test_a_network_that_drops_units_at_random_is_not_blamed_for_it() -> None:
    noisy = networks.create(PolicySettings(hidden=16, layers=2, heads=2, mlp=16), TOKENIZER, seed=0)
    noisy.config.attention_dropout = 0.5
    for module in noisy.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    noisy.train()
    tokens = checks.synthetic(1, len(TOKENIZER)).batch.tokens
    assert not torch.equal(networks.log_probs(noisy, tokens)[0], networks.log_probs(noisy, tokens)[0])
    assert checks.problem(PPO, 1, noisy, PAD) == ""


@pytest.fixture
def own_signals() -> Iterator[None]:
    """A run takes SIGINT and SIGTERM for itself; here they are given back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_run_whose_self_test_fails_ends_before_its_first_step_with_an_event_and_a_reason(
    new_run: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch, own_signals: None, capsys: Any
) -> None:
    folder = new_run()
    monkeypatch.setattr(value, "positions", lambda batch, mask: torch.ones_like(batch.mask))
    assert run(folder, cache, io.StringIO()) == 1
    last = rows(folder, "run").iloc[-1]
    assert (last["status"], last["steps"]) == ("failed", 0)
    assert last["reason"].startswith("mask self-test: the critic's loss has a gradient at padding")
    (event,) = rows(folder, "event").to_dict(orient="records")
    assert (event["kind"], event["severity"], event["step"]) == ("guard_mask", "critical", 0)
    assert not (folder / "segments" / "step").exists()
    assert "Traceback" not in capsys.readouterr().err
