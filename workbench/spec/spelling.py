"""How the tokens of a vocabulary are spelled: back from a tokenizer's pieces into what a person reads.

Three kinds of vocabulary are told apart. Byte-level ones (GPT-2, Llama 3, Qwen) write every byte as one
printable character, a space as Ġ. SentencePiece ones write a space as ▁ and other bytes as <0x0A>.
Vocabularies of whole words need a space between two tokens.
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum

_UNKNOWN = "\u25ca"  # stands for a token without a text
# Bytes that stand for themselves in a byte-level vocabulary; the others follow from 256 on.
_PRINTABLE_BYTES = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHER_BYTES = [byte for byte in range(256) if byte not in set(_PRINTABLE_BYTES)]
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE_BYTES} | {
    chr(256 + place): byte for place, byte in enumerate(_OTHER_BYTES)
}
_BYTE_LEVEL_SPACE = "\u0120"
_BYTE_LEVEL_NEWLINE = "\u010a"
_PIECE_SPACE = "\u2581"
_PIECE_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


class Spelling(Enum):
    """Kind of a vocabulary."""

    BYTE_LEVEL = "byte-level"
    PIECES = "SentencePiece"
    WORDS = "whole words"
    PLAIN = "plain text"

    @classmethod
    def of(cls, tokens: Iterable[str]) -> "Spelling":
        """Tell the kind of the vocabulary that `tokens` are from; the more tokens, the surer."""
        tokens = list(tokens)
        whole = "".join(tokens)
        if _BYTE_LEVEL_SPACE in whole or _BYTE_LEVEL_NEWLINE in whole:
            return cls.BYTE_LEVEL
        if any(token.startswith(_PIECE_SPACE) for token in tokens):
            return cls.PIECES
        if any(map(str.isspace, whole)):
            return cls.PLAIN
        return cls.WORDS

    def texts(self, tokens: Sequence[str]) -> list[str]:
        """Return one text a token, which joined are the text of all; half a character is a mark."""
        if self is Spelling.PLAIN:
            return list(tokens)
        if self is Spelling.WORDS:
            return [*tokens[:1], *(f" {token}" for token in tokens[1:])]
        return [self.text([token]) for token in tokens]

    def text(self, tokens: Sequence[str]) -> str:
        """Return the text of all tokens; characters that are spread over several tokens are whole."""
        if self is Spelling.PLAIN:
            return "".join(tokens)
        if self is Spelling.WORDS:
            return " ".join(tokens)
        parts: list[str] = []
        waiting = b""  # bytes that may go on in the next token
        for token in tokens:
            data = self._bytes(token)
            if data is not None:
                waiting += data
                continue
            parts += [_decoded(waiting), token]
            waiting = b""
        return "".join([*parts, _decoded(waiting)])

    def _bytes(self, token: str) -> bytes | None:
        """Return the bytes of a token; None of an added token, which is spelled as it is."""
        if self is Spelling.BYTE_LEVEL:
            return bytes(map(BYTE_OF.__getitem__, token)) if BYTE_OF.keys() >= set(token) else None
        if single := _PIECE_BYTE.fullmatch(token):
            return bytes.fromhex(single[1])
        return token.replace(_PIECE_SPACE, " ").encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def spelled(tokens: Sequence[str | None]) -> list[str]:
    """Return one text a token (None: a lozenge), which joined are the text of all."""
    known = [_UNKNOWN if token is None else token for token in tokens]
    return Spelling.of(known).texts(known)
