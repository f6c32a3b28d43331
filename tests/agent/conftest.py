import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from tests.agent.fakes import SMALL, build, imitate
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
    shown = (collate(demonstrations(world, 16, 0.3, seed=0, start=16 * step), pad_id=0) for step in range(60))
    return imitate(build(SMALL), ((batch.tokens, batch.tokens.masked_fill(~batch.mask, -100)) for batch in shown))


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
