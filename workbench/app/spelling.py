"""Texts of tokens as a tokenizer's vocabulary spells them, put back into what a person reads."""

from __future__ import annotations

from collections.abc import Sequence

_BYTES = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # bytes that stand for themselves
_OTHERS = [byte for byte in range(256) if byte not in set(_BYTES)]
# Byte-level vocabularies (GPT-2, Llama 3, Qwen) write every byte as one printable character: a space is Ġ.
BYTE_OF = {chr(byte): byte for byte in _BYTES} | {chr(256 + i): byte for i, byte in enumerate(_OTHERS)}
_SPACE, _NEWLINE, _PIECE = "\u0120", "\u010a", "\u2581"


def spelled(tokens: Sequence[str | None]) -> list[str]:
    """One text a token, which joined are the text of all.

    Understands byte-level vocabularies, SentencePiece (where a lower block stands for a space) and whole words, between
    which a space is put; pieces that hold their own white space are left as they are. A token without a text (None)
    is shown as a lozenge.
    """
    texts = ["\u25ca" if token is None else token for token in tokens]
    if any(_SPACE in text or _NEWLINE in text for text in texts):
        return [_from_bytes(text) for text in texts]
    if any(text.startswith(_PIECE) for text in texts):
        return [_from_piece(text) for text in texts]
    if any(character.isspace() for text in texts for character in text):
        return texts
    return [text if place == 0 else f" {text}" for place, text in enumerate(texts)]


def _from_bytes(text: str) -> str:
    if not all(character in BYTE_OF for character in text):
        return text  # an added token, which is spelled as it is
    return bytes(BYTE_OF[character] for character in text).decode("utf-8", "replace")


def _from_piece(text: str) -> str:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes([int(text[3:5], 16)]).decode("utf-8", "replace")
        except ValueError:
            return text
    return text.replace(_PIECE, " ")
