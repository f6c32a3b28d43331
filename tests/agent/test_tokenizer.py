from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from workbench.agent.tokenizer import ENTITIES, RELATIONS, TAGS, VOCABULARY, Codec, build_tokenizer

TEXT = "who is the rival of anna ? <think> got boris done </think> <answer> boris </answer>"
KNOWN = TEXT.replace("anna", "clara")


def test_vocabulary_is_small_complete_and_without_duplicates() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) < 100
    assert (len(ENTITIES), len(RELATIONS)) == (40, 10)
    assert set(TAGS) | set(ENTITIES) | set(RELATIONS) <= set(VOCABULARY)


def test_ids_are_the_order_of_the_vocabulary(tokenizer: PreTrainedTokenizerFast) -> None:
    assert [tokenizer.get_vocab()[word] for word in VOCABULARY] == list(range(len(VOCABULARY)))
    assert build_tokenizer().get_vocab() == tokenizer.get_vocab()


def test_saved_tokenizer_loads_through_auto_tokenizer_and_speaks_the_same(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(KNOWN).input_ids == tokenizer(KNOWN).input_ids
    assert (loaded.pad_token_id, loaded.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert loaded.decode(loaded(KNOWN).input_ids) == KNOWN


def test_decoding_keeps_the_tags_even_without_special_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.decode([*tokenizer(KNOWN).input_ids, 1, 0, 0], skip_special_tokens=True) == KNOWN


def test_codec_agrees_with_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    codec = Codec(tokenizer)
    for text in (KNOWN, TEXT, "", f" {KNOWN}\n"):
        assert codec.encode(text) == tokenizer.encode(text, add_special_tokens=False)
    assert codec.decode(codec.encode(KNOWN)) == KNOWN
    assert codec.decode(codec.encode(TEXT)) == KNOWN.replace("clara", "<unk>")


def test_turns_end_at_a_closing_tag_or_at_the_end_of_text(tokenizer: PreTrainedTokenizerFast) -> None:
    codec = Codec(tokenizer)
    assert codec.exact
    assert sorted(codec.decode([i]) for i in codec.closers) == ["</answer>", "</search>", "<eos>"]


def test_where_a_tag_is_many_tokens_any_bracket_may_close(spelling: PreTrainedTokenizerFast) -> None:
    codec = Codec(spelling)
    assert not codec.exact
    assert {codec.decode([i]) for i in codec.closers} >= {">"}
    assert codec.decode(codec.encode("<search> x </search>")).endswith("</search>")
