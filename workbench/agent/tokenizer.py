"""Text and tokens: the embedded vocabulary, the wording of prompts and observations, the codec, spans and
sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from sorl.batch import Batch

PAD = "<pad>"
EOS = "<eos>"
UNKNOWN = "<unk>"
TAGS = (
    "<think>",
    "</think>",
    "<search>",
    "</search>",
    "<information>",
    "</information>",
    "<answer>",
    "</answer>",
)
WORDS = ("who", "is", "the", "of", "?", ".", "got", "need", "done", "invalid")
RELATIONS = (
    "mentor",
    "rival",
    "neighbour",
    "teacher",
    "cousin",
    "doctor",
    "partner",
    "landlord",
    "barber",
    "captain",
)
ENTITIES = (
    "alice",
    "boris",
    "clara",
    "diego",
    "elena",
    "felix",
    "greta",
    "hugo",
    "irene",
    "jonas",
    "karin",
    "louis",
    "maria",
    "nadia",
    "oscar",
    "petra",
    "quinn",
    "rosa",
    "simon",
    "tanja",
    "ulrich",
    "vera",
    "walter",
    "xenia",
    "yusuf",
    "zelda",
    "amir",
    "bella",
    "carlos",
    "doris",
    "emil",
    "flora",
    "gabor",
    "helga",
    "ivan",
    "julia",
    "kofi",
    "linda",
    "mateo",
    "nora",
)
VOCABULARY = (PAD, EOS, UNKNOWN, *TAGS, *WORDS, *RELATIONS, *ENTITIES)


def build_tokenizer(words: Sequence[str] = (*WORDS, *RELATIONS, *ENTITIES)) -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer: one id a word, ids in the order of `VOCABULARY`; the tags are ordinary
    words.
    """
    ids = {word: i for i, word in enumerate((PAD, EOS, UNKNOWN, *TAGS, *words))}
    backend = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
    backend.pre_tokenizer = WhitespaceSplit()
    fast: Any = PreTrainedTokenizerFast
    special = {"pad_token": PAD, "eos_token": EOS, "unk_token": UNKNOWN}
    return fast(tokenizer_object=backend, **special, clean_up_tokenization_spaces=False)


class Wording(NamedTuple):
    """The words around a question and an observation."""

    prompt: str  # holds {question}
    information: str  # holds {found}
    invalid: str  # read after an action that could not be read
    chat: bool  # put the prompt into the tokenizer's chat template


WORDINGS = {
    "plain": Wording(  # for a policy that has learned the protocol
        "{question}",
        " <information> {found} </information> ",
        " <information> invalid </information> ",
        False,
    ),
    # Word for word as PeterGriffinJin/Search-R1: make_prefix of scripts/data_process/nq_search.py, and
    # execute_predictions of search_r1/llm_agent/generation.py.
    "search-r1": Wording(
        "Answer the given question. You must conduct reasoning inside <think> and </think> first every time"
        " you get new information. After reasoning, if you find you lack some knowledge, you can call a"
        " search engine by <search> query </search> and it will return the top searched results between"
        " <information> and </information>. You can search as many times as your want. If you find no further"
        " external knowledge needed, you can directly provide the answer inside <answer> and </answer>,"
        " without detailed illustrations. For example, <answer> Beijing </answer>. Question: {question}\n",
        "\n\n<information>{found}</information>\n\n",
        "\nMy previous action is invalid. If I want to search, I should put the query between <search> and"
        " </search>. If I want to give the final answer, I should put the answer between <answer> and"
        " </answer>. Let me try again.\n",
        True,
    ),
}


class Codec:
    """Text to ids and back for one tokenizer, in one of the `WORDINGS`; and `closers`, the ids that may end a
    turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, wording: str = "plain") -> None:
        self._tokenizer = tokenizer
        self._wording = WORDINGS[wording]
        self._ids = vocabulary = tokenizer.get_vocab()
        self._words: list[str] | None = None  # of a word-level tokenizer: the same ids, twenty times faster
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        plain = backend is not None and backend.normalizer is None and backend.decoder is None
        if (
            plain
            and isinstance(backend.model, WordLevel)
            and isinstance(backend.pre_tokenizer, WhitespaceSplit)
        ):
            self._words = sorted(vocabulary, key=vocabulary.__getitem__)
        self.eos_id: int | None = tokenizer.eos_token_id
        self.pad_id = next(i for i in (tokenizer.pad_token_id, self.eos_id, 0) if i is not None)
        # <eos>, and the closing tags where they are single tokens (`exact`), else every token with a ">".
        tags = {vocabulary.get("</search>"), vocabulary.get("</answer>")}
        self.exact = None not in tags
        closers = tags if self.exact else {i for word, i in vocabulary.items() if ">" in word}
        self.closers = frozenset(i for i in (*closers, self.eos_id) if i is not None)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, no special tokens added."""
        if self._words is None:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        unknown = self._tokenizer.unk_token_id
        return [self._ids.get(word, unknown) for word in text.split()]

    def encode_prompt(self, question: str) -> list[int]:
        """Return the ids of the prompt: the question in its wording, in the tokenizer's chat template if it
        has one.
        """
        question = question.strip()
        if not question.endswith("?"):
            question += "?"
        text = self._wording.prompt.replace("{question}", question)
        if self._wording.chat and self._tokenizer.chat_template:
            messages = [{"role": "user", "content": text}]
            chat = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            text = str(chat)
        return self.encode(text)

    def encode_observation(self, passages: str | None) -> list[int]:
        """Return the ids of what the policy reads after a turn; None is an action that could not be read."""
        if passages is None:
            return self.encode(self._wording.invalid)
        return self.encode(self._wording.information.replace("{found}", passages.strip()))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens included."""
        if self._words is None:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
        return " ".join([self._words[i] for i in ids])


SPANS = ("think", "search", "answer")  # span i + 1


class Spans:
    """Marks the spans of turns where tags are single tokens: from an opening tag to any closing tag or the
    end.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        known = tokenizer.get_vocab()
        self._opens = {known[f"<{name}>"]: i for i, name in enumerate(SPANS, 1) if f"<{name}>" in known}
        self._closes = torch.tensor([known[f"</{name}>"] for name in SPANS if f"</{name}>" in known])

    def of(self, tokens: Tensor, mask: Tensor) -> Tensor | None:
        """Span of each token, (B, T) int64: 1 think, 2 search, 3 answer, 0 none of them; None without such
        tags.
        """
        if not self._opens:
            return None
        kind = torch.zeros_like(tokens)
        for token, span in self._opens.items():
            kind[tokens == token] = span
        before = pad(mask, (1, 0))[:, :-1]
        closed = pad(torch.isin(tokens, self._closes.to(tokens.device)) & mask, (1, 0))[:, :-1]
        changes = ((kind > 0) & mask) | (mask & ~before) | closed
        place = torch.arange(tokens.shape[1], device=tokens.device)
        last = torch.where(changes, place, 0).cummax(1).values
        return torch.where(mask, kind, 0).gather(1, last) * mask


_ENDS = (".", "?", "!", "\n", "Ċ", "。", "？", "！")  # Ċ: the line feed in byte-level vocabularies


class Sentences:
    """Splits turns after every token whose text ends in `_ENDS`; no sentence reaches across an
    observation.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._ends = torch.tensor(
            sorted(i for word, i in tokenizer.get_vocab().items() if word.endswith(_ENDS))
        )

    def of(self, batch: Batch) -> Tensor:
        """Sentence of each token from 1, (B, T) int64; 0 where the policy wrote nothing."""
        mask = batch.mask
        before = pad(mask, (1, 0))[:, :-1]
        ended = pad(torch.isin(batch.tokens, self._ends), (1, 0))[:, :-1] & before
        return (mask & (~before | ended)).long().cumsum(1) * mask
