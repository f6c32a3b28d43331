"""The world of real facts: 1 to 3-hop questions about cities, countries and elements, over passages found by BM25."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256

from transformers import PreTrainedTokenizerFast

from workbench.agent.draws import Stream
from workbench.agent.protocol import exact_match, f1
from workbench.agent.retrievers import Retriever
from workbench.agent.retrievers.bm25 import BM25
from workbench.agent.retrievers.build import retriever_of
from workbench.agent.retrievers.lookup import FAILED, Lookups
from workbench.agent.tokenizer import WORDS, build_tokenizer
from workbench.agent.worlds import Question, Retrieved, Split
from workbench.agent.worlds.gazetteer import SENTENCES, Fact, gazetteer
from workbench.spec import InputError, WorldSettings

_QUESTION = 22
_PUNCTUATION = re.compile(r"([.,;:?!()])")
# Where a question may go from a subject of each kind; the object of one relation is the subject of the next.
CHAINS: dict[str, tuple[tuple[str, ...], ...]] = {
    "city": (
        ("country",), ("country", "capital"), ("country", "currency"), ("country", "continent"),
        ("country", "language"), ("country", "domain"),
        ("country", "currency", "code"), ("country", "language", "code"),
    ),
    "country": (
        ("capital",), ("currency",), ("continent",), ("language",), ("domain",), ("currency", "code"),
        ("language", "code"),
    ),
    "currency": (("code",),),
    "language": (("code",),),
    "element": (("symbol",), ("number",)),
}  # fmt: skip


class Atlas:
    """Questions "what is the R2 of the R1 of E ?" about facts that are the same in every episode, as in the real world.

    A question's text belongs to one split for ever: a hash of it sends one tenth to eval. Facts are shared by the
    splits, so an answer may be remembered; the evaluation without search says how much is.
    """

    def __init__(self, settings: WorldSettings, retriever: Retriever | None = None) -> None:
        self.settings = settings
        self.max_turns = settings.max_turns
        self.max_turn_tokens = settings.max_turn_tokens
        self._gazetteer = gazetteer(settings.seed)
        self.corpus = self._gazetteer.corpus
        self._lookups = Lookups(self._retriever(retriever), settings.top_k)
        self.facts = {(fact.subject, fact.relation): fact.object for fact in self._gazetteer.facts}
        self.relations = tuple(SENTENCES)
        self.subjects = tuple(dict.fromkeys(fact.subject for fact in self._gazetteer.facts))
        self._pool = _pool(self._gazetteer.facts, self.facts)

    def _retriever(self, given: Retriever | None) -> Retriever | None:
        if self.settings.top_k == 0:
            return None
        if given is not None:
            return given
        own = self.settings.retriever.kind == "memory"
        return BM25(self.corpus) if own else retriever_of(self.settings.retriever)

    def questions(self, split: Split, seed: int, start: int, n: int) -> list[Question]:
        """Questions start .. start + n - 1 of the stream (split, seed); each depends on its own index alone."""
        return [self._question(split, seed, index) for index in range(start, start + n)]

    def prompt(self, question: Question) -> str:
        """The question itself: the embedded policy has learned the protocol by imitation and needs no instructions."""
        return question.text

    def search(self, question: Question, query: str, turn: int) -> Retrieved:
        """The best `top_k` passages for the query, one after the other."""
        lookup = self._lookups(query)
        text = " ".join(spaced(passage.contents) for passage in lookup.passages)
        return Retrieved(FAILED if lookup.status == "failed" else text, lookup.status, lookup.seconds)

    def search_ahead(self, queries: Sequence[str]) -> None:
        """Ask for `queries` in one request; the next searches for them are answered from it."""
        self._lookups.ahead(queries)

    def correct(self, question: Question, answer: str) -> bool:
        """Whether `answer` is the gold answer after normalisation."""
        return exact_match(answer, question.gold) == 1.0

    def score(self, question: Question, answer: str) -> float:
        """Normalised exact match or F1 with the gold answer, as the settings say."""
        return f1(answer, question.gold) if self.settings.reward == "f1" else exact_match(answer, question.gold)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Word-level, closed: the words of everything that can be asked or answered, of the sentences and the tags.

        Other words of the corpus, names of towns that no question is about, are read as <unk>.
        """
        wordings = [wording.format(s="", o="") for pair in SENTENCES.values() for wording in pair]
        texts = [*wordings, *SENTENCES, *(f"{subject} {object_}" for (subject, _), object_ in self.facts.items())]
        known = [*WORDS, "what", *FAILED.split(), *(word for text in texts for word in spaced(text).split())]
        return build_tokenizer(tuple(dict.fromkeys(known)))

    def _question(self, split: Split, seed: int, index: int) -> Question:
        stream = Stream(_QUESTION, ("train", "eval").index(split), seed, index)
        one, two, _ = self.settings.hops
        u = stream.uniform()
        hops = 1 if u < one else 2 if u < one + two else 3
        pool = self._pool[split, hops]
        start, chain = pool[stream.below(len(pool))]
        end = start
        for relation in chain:
            end = self.facts[end, relation]
        return Question(index, text_of(start, chain), end, stream.below(1 << 53), start, chain)


def spaced(text: str) -> str:
    """`text` with its punctuation as words of its own, as the word-level tokenizer reads it."""
    return " ".join(_PUNCTUATION.sub(r" \1 ", text).split())


def text_of(start: str, chain: tuple[str, ...]) -> str:
    """The question of a chain of relations from `start`."""
    return spaced(f"what is {' '.join(f'the {relation} of' for relation in reversed(chain))} {start} ?")


def split_of(text: str) -> Split:
    """The split that a question text belongs to: eval for the tenth of all texts whose hash says so."""
    return "eval" if int.from_bytes(sha256(text.encode()).digest()[:8]) % 10 == 0 else "train"


Start = tuple[str, tuple[str, ...]]  # a subject and the relations to follow from it


def _pool(facts: list[Fact], objects: dict[tuple[str, str], str]) -> dict[tuple[Split, int], list[Start]]:
    """Every question that the facts can answer, by split and number of hops."""
    pool: dict[tuple[Split, int], list[Start]] = {}
    for subject, kind in dict.fromkeys((fact.subject, fact.kind) for fact in facts):
        for chain in CHAINS[kind]:
            end: str | None = subject
            for relation in chain:
                end = None if end is None else objects.get((end, relation))
            if end is not None:
                pool.setdefault((split_of(text_of(subject, chain)), len(chain)), []).append((subject, chain))
    missing = [key for split in ("train", "eval") for hops in (1, 2, 3) if (key := (split, hops)) not in pool]
    if missing:
        raise InputError(f"the packages of the world atlas lack facts for {missing}: pip install -U 'sorl[facts-data]'")
    return pool
