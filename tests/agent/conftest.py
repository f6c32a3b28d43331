import pytest
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from sorl.agent.demonstrations import demonstrations
from sorl.agent.episode import collate
from sorl.agent.tokenizer import build_tokenizer
from sorl.agent.worlds.facts import Facts
from sorl.spec import WorldSettings
from tests.agent.fakes import build, imitate
from tests.learn import real_model


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.fixture(scope="session")
def world() -> Facts:
    return Facts(WorldSettings())


@pytest.fixture(scope="session")
def apprentice(world: Facts) -> Qwen2ForCausalLM:
    """A policy that has half learned the protocol: its episodes search, answer, go wrong and differ in
    length.
    """
    shown = (collate(demonstrations(world, 16, 0.3, seed=0, start=16 * step), pad_id=0) for step in range(60))
    return imitate(build(), ((batch.tokens, batch.tokens.masked_fill(~batch.mask, -100)) for batch in shown))


@pytest.fixture(scope="session")
def spelling() -> PreTrainedTokenizerFast:
    """A tokenizer in which every tag is many tokens."""
    return real_model.tokenizer()
