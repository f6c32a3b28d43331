"""Trimmed models: the same pieces, renormalised log-probs, a tied head that stays tied."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers import models as kinds
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from sorl.agent import trim
from sorl.agent.tokenizer import Codec
from sorl.agent.worlds.facts import Facts
from sorl.learn.warmstart import tokenizer_of
from sorl.spec import InputError, WorldSettings
from tests.agent.fakes import build
from tests.learn import real_model

TEXTS = [
    "The capital of Peru is Lima.",
    "what is the currency of the country of São Paulo ?",
    "<think> got Peru need capital </think> <search> capital of Peru </search>",
    "In Zürich the official language is German. 12,345 people.",
]
CORPUS = [*TEXTS, "Lima is a city in the country Peru.", "Another text about nothing, with other words."] * 30


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """A BPE over ▁ with bytes to fall back on, and a beginning-of-text token, as Gemma and Llama 2 have."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    backend = Tokenizer(kinds.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=700, special_tokens=[*special, *bytes_], show_progress=False)
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", backend.token_to_id("<bos>"))]
    )
    return wrapped(backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")


def unigram() -> PreTrainedTokenizerFast:
    backend = Tokenizer(kinds.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=200, special_tokens=["<eos>", "<unk>"], unk_token="<unk>", show_progress=False
        ),
    )
    return wrapped(backend, eos_token="<eos>", unk_token="<unk>")


def word_piece() -> PreTrainedTokenizerFast:
    backend = Tokenizer(kinds.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[SEP]"], show_progress=False),
    )
    return wrapped(backend, unk_token="[UNK]", eos_token="[SEP]")


def wrapped(backend: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special, clean_up_tokenization_spaces=False)


MADE: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte-level BPE": real_model.tokenizer,
    "BPE with bytes": sentencepiece_like,
    "unigram": unigram,
    "word piece": word_piece,
}


@pytest.fixture(params=MADE, scope="module")
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return MADE[request.param]()


def ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def test_a_text_that_was_needed_has_the_same_pieces(tokenizer: PreTrainedTokenizerFast) -> None:
    small, old = trim.trim_tokenizer(tokenizer, trim.tokens_of_texts(TEXTS, tokenizer))
    assert len(small) == len(old) < len(tokenizer)
    for text in [*TEXTS, *(f" {text}" for text in TEXTS)]:
        assert [old[i] for i in ids(small, text)] == ids(tokenizer, text)
        assert small.convert_ids_to_tokens(ids(small, text)) == tokenizer.convert_ids_to_tokens(
            ids(tokenizer, text)
        )
    for name in ("eos_token", "pad_token", "bos_token", "unk_token"):
        assert getattr(small, name) == getattr(tokenizer, name)
        before = getattr(tokenizer, f"{name}_id")
        assert before is None or old[getattr(small, f"{name}_id")] == before
    assert [old[i] for i in small.encode(TEXTS[0])] == tokenizer.encode(TEXTS[0]), "with special tokens too"


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40))
@pytest.mark.parametrize("kind", ["byte-level BPE", "BPE with bytes"])
def test_any_text_can_still_be_written(kind: str, text: str) -> None:
    tokenizer = MADE[kind]()
    small, _ = trim.trim_tokenizer(tokenizer, trim.tokens_of_texts(TEXTS, tokenizer))
    assert small.decode(ids(small, text)) == tokenizer.decode(ids(tokenizer, text))


@settings(max_examples=60, deadline=None)
@given(order=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4), cut=st.integers(0, 30))
def test_texts_put_together_are_split_alike_if_their_tokens_were_needed(order: list[str], cut: int) -> None:
    tokenizer = sentencepiece_like()
    text = " ".join(order)[cut:]
    small, old = trim.trim_tokenizer(tokenizer, ids(tokenizer, text))
    assert [old[i] for i in ids(small, text)] == ids(tokenizer, text)


@pytest.mark.parametrize("tied", [True, False])
def test_log_probs_are_those_of_the_whole_model_given_that_a_kept_token_is_written(
    tied: bool, tmp_path: Path
) -> None:
    tokenizer = real_model.tokenizer()
    whole = build(
        vocab_size=len(tokenizer),
        tie_word_embeddings=tied,
        initializer_range=0.5,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    ).eval()
    needed = trim.tokens_of_texts(TEXTS, tokenizer)
    told = trim.trim(whole, tokenizer, needed, tmp_path / "small")
    assert (told.tokens_before, whole.get_input_embeddings().num_embeddings) == (len(tokenizer),) * 2
    small: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    fewer = tokenizer_of(tmp_path / "small")
    _, old = trim.trim_tokenizer(tokenizer, needed)
    assert told.tokens == len(old) == len(fewer) == small.config.vocab_size
    assert told.parameters == sum(p.numel() for p in small.parameters()) < told.parameters_before
    assert (small.lm_head.weight is small.model.embed_tokens.weight) == tied
    assert old[small.config.eos_token_id] == tokenizer.eos_token_id
    tokens = torch.tensor([ids(fewer, TEXTS[0])])
    with torch.no_grad():
        found = torch.log_softmax(small(tokens).logits, -1)
        everything = torch.log_softmax(whole(torch.tensor(old)[tokens]).logits, -1)[..., old]
    wanted = everything - everything.logsumexp(-1, keepdim=True)
    assert (found - wanted).abs().max() < 1e-4


def test_what_an_agent_reads_and_writes_in_a_world_is_kept() -> None:
    tokenizer = real_model.tokenizer()
    world = Facts(WorldSettings(max_turn_tokens=40))
    small, old = trim.trim_tokenizer(tokenizer, trim.tokens_of_world(world, tokenizer, "search-r1"))
    assert len(old) < 0.5 * len(tokenizer)
    before = Codec(tokenizer, "search-r1")
    after = Codec(small, "search-r1")
    for question in world.questions("eval", 5, 0, 50):
        assert [old[i] for i in after.encode_prompt(question.text)] == before.encode_prompt(question.text)
    assert [old[i] for i in after.encode_observation(None)] == before.encode_observation(None)
    assert small.chat_template == tokenizer.chat_template


def test_a_tokenizer_without_a_fast_backend_is_refused() -> None:
    class Slow:
        pass

    slow: Any = Slow()
    with pytest.raises(InputError, match="Slow has no fast tokenizer"):
        trim.trim_tokenizer(slow, [])
