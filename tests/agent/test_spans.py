"""Spans of what was written, by the tags around them."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from workbench.agent.spans import Spans
from workbench.agent.tokenizer import Codec, build_tokenizer

TOKENIZER = build_tokenizer()


def spans(text: str, written: str) -> list[int]:
    """`written` has a 1 under every token that the policy wrote."""
    tokens = torch.tensor([Codec(TOKENIZER).encode(text)])
    mask = torch.tensor([[c == "1" for c in written]])
    found = Spans(TOKENIZER).of(tokens, mask)
    assert found is not None
    return found[0].tolist()


def test_tags_belong_to_their_span_and_what_is_between_spans_to_none() -> None:
    text = "<think> done </think> done <search> done done </search> done <answer> done </answer>"
    assert spans(text, "1" * 12) == [1, 1, 1, 0, 2, 2, 2, 2, 0, 3, 3, 3]


def test_a_span_ends_with_its_turn_and_observations_are_in_none() -> None:
    assert spans("<search> done done done <think> done", "110011") == [2, 2, 0, 0, 1, 1]
    assert spans("<search> done <search> done done", "10011") == [2, 0, 0, 0, 0]  # the second tag is not its own


def test_a_malformed_turn_is_read_as_far_as_it_goes() -> None:
    assert spans("<search> done </answer> done", "1111") == [2, 2, 2, 0]
    assert spans("<think> done <search> done </search>", "11111") == [1, 1, 2, 2, 2]
    assert spans("done </search> done", "111") == [0, 0, 0]


def test_tags_of_several_tokens_have_no_spans() -> None:
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")))
    assert Spans(plain).of(torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 3, dtype=torch.bool)) is None
