import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from tests.agent.fakes import SMALL, build
from workbench.agent.demonstrations import demonstrations
from workbench.agent.episode import collate
from workbench.agent.tokenizer import VOCABULARY, build_tokenizer
from workbench.agent.worlds.facts import Facts
from workbench.spec import WorldSettings


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.fixture(scope="session")
def world() -> Facts:
    return Facts(WorldSettings())


@pytest.fixture(scope="session")
def apprentice(world: Facts) -> Qwen2ForCausalLM:
    """A policy that has half learned the protocol: its episodes search, answer, go wrong and differ in length."""
    model = build(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(60):
        batch = collate(demonstrations(world, 16, 0.3, seed=0, start=16 * step), pad_id=0)
        labels = batch.tokens.masked_fill(~batch.mask, -100)
        loss = model(batch.tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.fixture(scope="session")
def spelling() -> PreTrainedTokenizerFast:
    """A tokenizer of single characters, and of ">.": every tag is many tokens, as with those of published models."""
    letters = ["<pad>", "<eos>", "<unk>", ">.", *sorted(set(" ".join(VOCABULARY[3:])))]
    backend = Tokenizer(WordLevel({c: i for i, c in enumerate(letters)}, unk_token="<unk>"))
    backend.pre_tokenizer = Split(Regex(r">\.|."), "isolated")
    backend.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
