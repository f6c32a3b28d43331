"""The vocabulary of the embedded world and its tokenizer, and the codec that engines speak through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from workbench.agent.wording import PLAIN, Wording

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
TAGS = (
    "<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>",
)  # fmt: skip
WORDS = ("who", "is", "the", "of", "?", ".", "got", "need", "done", "invalid")
RELATIONS = ("mentor", "rival", "neighbour", "teacher", "cousin", "doctor", "partner", "landlord", "barber", "captain")
ENTITIES = (
    "alice", "boris", "clara", "diego", "elena", "felix", "greta", "hugo", "irene", "jonas",
    "karin", "louis", "maria", "nadia", "oscar", "petra", "quinn", "rosa", "simon", "tanja",
    "ulrich", "vera", "walter", "xenia", "yusuf", "zelda", "amir", "bella", "carlos", "doris",
    "emil", "flora", "gabor", "helga", "ivan", "julia", "kofi", "linda", "mateo", "nora",
)  # fmt: skip
VOCABULARY = (PAD, EOS, UNKNOWN, *TAGS, *WORDS, *RELATIONS, *ENTITIES)


def build_tokenizer(words: Sequence[str] = (*WORDS, *RELATIONS, *ENTITIES)) -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer: one id a word, ids in the order of `VOCABULARY`, words split at white space.

    The tags are ordinary words: `decode(..., skip_special_tokens=True)` keeps them, only <pad>, <eos>, <unk> go.
    """
    backend = Tokenizer(
        WordLevel({word: i for i, word in enumerate((PAD, EOS, UNKNOWN, *TAGS, *words))}, unk_token=UNKNOWN)
    )
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer: Any = PreTrainedTokenizerFast
    built: PreTrainedTokenizerFast = tokenizer(
        tokenizer_object=backend, pad_token=PAD, eos_token=EOS, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )
    return built


class Codec:
    """Text to ids and back for one tokenizer, and which ids may end a turn.

    For a word-level tokenizer both directions are a table, some twenty times faster than a call of the tokenizer;
    ids are the same. `closers` are the ids after which the text of a turn can have come to its end: the closing tags
    where they are single tokens, otherwise every token with a ">" (the text then decides), and <eos>.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, wording: Wording = PLAIN) -> None:
        self._tokenizer, self._wording = tokenizer, wording
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._words: list[str] | None = None
        if backend is not None and _splits_words(backend):
            vocabulary = tokenizer.get_vocab()
            self._words = sorted(vocabulary, key=vocabulary.__getitem__)
            self._ids: dict[str, int] = {word: i for i, word in enumerate(self._words)}
        self.pad_id = int(_first(tokenizer.pad_token_id, tokenizer.eos_token_id, 0))
        self.eos_id: int | None = tokenizer.eos_token_id
        self.exact, self.closers = self._closing_ids()

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, no special tokens added."""
        if self._words is None:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        unknown = self._tokenizer.unk_token_id
        return [self._ids.get(word, unknown) for word in text.split()]

    def asked(self, question: str) -> list[int]:
        """Ids of the prompt: the question as the wording puts it, in the tokenizer's chat template if it has one."""
        text = self._wording.asked(question)
        if self._wording.chat and self._tokenizer.chat_template:
            said = [{"role": "user", "content": text}]
            text = str(self._tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True))
        return self.encode(text)

    def observed(self, found: str | None) -> list[int]:
        """Ids of what the policy reads after a turn; None is an action that could not be read."""
        return self.encode(self._wording.observed(found))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        if self._words is None:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
        return " ".join([self._words[i] for i in ids])

    def _closing_ids(self) -> tuple[bool, frozenset[int]]:
        vocabulary = self._tokenizer.get_vocab()
        tags = {vocabulary.get("</search>"), vocabulary.get("</answer>")}
        exact = None not in tags
        ids = {i for i in tags if i is not None} if exact else {i for word, i in vocabulary.items() if ">" in word}
        return exact, frozenset(ids if self.eos_id is None else ids | {self.eos_id})


def _splits_words(backend: Tokenizer) -> bool:
    plain = backend.normalizer is None and backend.decoder is None
    return plain and isinstance(backend.model, WordLevel) and isinstance(backend.pre_tokenizer, WhitespaceSplit)


def _first(*candidates: int | None) -> int:
    return next(c for c in candidates if c is not None)
