from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.app.spelling import BYTE_OF, spelled

_CHARACTER = {byte: character for character, byte in BYTE_OF.items()}


def byte_level(text: str) -> list[str]:
    """A text as a byte-level vocabulary writes it: one token, bytes as printable characters."""
    return ["".join(_CHARACTER[byte] for byte in text.encode())]


def test_whole_words_get_a_space_between_them() -> None:
    assert spelled(["<think>", "got", "emil"]) == ["<think>", " got", " emil"]


def test_byte_level_tokens_get_their_spaces_and_lines_back() -> None:
    assert "".join(spelled(["Hello", "Ġworld", "Ċ", "<|im_end|>"])) == "Hello world\n<|im_end|>"


@given(st.text(min_size=1))
def test_any_text_survives_the_byte_level_alphabet(text: str) -> None:
    assert "".join(spelled([*byte_level(f" {text}")])) == f" {text}"


def test_half_a_character_becomes_a_mark_and_breaks_nothing() -> None:
    assert spelled(["Ġa", "Ã"]) == [" a", "\ufffd"]


def test_sentencepiece_blocks_are_spaces_and_its_bytes_are_bytes() -> None:
    assert spelled(["▁got", "▁em", "il", "<0x0A>", "<0xZZ>"]) == [" got", " em", "il", "\n", "<0xZZ>"]


def test_pieces_with_their_own_white_space_are_left_alone() -> None:
    assert spelled(["got", " emil", "."]) == ["got", " emil", "."]


def test_a_token_without_a_text_is_still_there() -> None:
    assert spelled([None, None]) == ["◊", " ◊"]


def test_an_added_token_outside_the_alphabet_is_kept_as_it_is() -> None:
    assert spelled(["Ġa", "<|终|>"]) == [" a", "<|终|>"]


@pytest.mark.parametrize("tokens", [[], [""], ["", None]])
def test_nothing_is_one_text_a_token(tokens: list[str | None]) -> None:
    assert len(spelled(tokens)) == len(tokens)
