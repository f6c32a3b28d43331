"""The world of facts: a generated graph, questions of one to three hops, and an exact retriever over it."""

from itertools import chain, zip_longest

from transformers import PreTrainedTokenizerFast

from sorl.agent.draws import Stream, draw, uniform
from sorl.agent.tokenizer import ENTITIES, RELATIONS, build_tokenizer
from sorl.agent.worlds import Question, Retrieved, Split, World
from sorl.spec import InputError, WorldSettings

_FACT, _RANK, _NOISE, _ORDER, _QUESTION, _KNOWLEDGE, _SPLIT = range(1, 8)  # keys of the draws
_TRIES = 10_000


def _rotation(stream: Stream, n: int) -> list[int]:
    """Four distinct integers below n (fewer if n is) from a random start: as many as the
    largest top_k needs.
    """
    start = stream.below(n)
    return [(start + i) % n for i in range(min(n, 4))]


class Facts(World):
    """Multi-hop questions "who is the R2 of the R1 of E ?"; the answer is R2(R1(E)) in the episode's own
    facts.

    A hash of (E, R1, R2 ...) decides the split of a question, and the last bit of the seed of its facts is
    the split: train and eval share neither texts nor facts. Facts are fresh, so nothing can be remembered: a
    guess without a search is right about once in (entities - 1). Success has a ceiling, see `ranked`. A fact
    is a function of its key (entity, relation), in numbers, and of the question's seed.
    """

    def __init__(self, settings: WorldSettings) -> None:
        super().__init__(settings)
        self.entities = ENTITIES[: settings.entities]
        self.relations = RELATIONS[: settings.relations]
        self._entity = {word: i for i, word in enumerate(self.entities)}
        self._relation = {word: i for i, word in enumerate(self.relations)}

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the word-level tokenizer of the embedded vocabulary."""
        return build_tokenizer()

    def search(self, question: Question, query: str, turn: int) -> Retrieved | None:
        """Return ranked facts "E R X . E2 R2 X2 ." for a query "E R"; None if it is not one entity and one
        relation.
        """
        words = query.split()
        if len(words) != 2 or words[0] not in self._entity or words[1] not in self._relation:
            return None
        keys = self.ranked(question.seed, self._entity[words[0]], self._relation[words[1]], turn)
        facts = [
            (self.entities[e], self.relations[r], self.entities[self.target(question.seed, e, r)])
            for e, r in keys
        ]
        return Retrieved(" ".join(f"{subject} {relation} {end} ." for subject, relation, end in facts))

    def target(self, seed: int, entity: int, relation: int) -> int:
        """Return the entity that `relation` leads to from `entity`; never `entity` itself."""
        return (entity + 1 + draw(seed, _FACT, entity, relation) % (len(self.entities) - 1)) % len(
            self.entities
        )

    def ranked(self, seed: int, entity: int, relation: int, turn: int) -> list[tuple[int, int]]:
        """Return the keys of the `top_k` facts nearest to the query (entity, relation), best first.

        First the exact fact, then distractors that share the entity or the relation, alternately; shuffled
        with probability `noise`. It depends on the seed of the facts, the query and `turn` alone. Who copies
        the first result is right with probability 1 - noise * (1 - 1 / top_k), about 0.8 for an episode at
        the defaults.
        """
        stream = Stream(seed, _RANK, entity, relation)
        n = len(self.entities)
        m = len(self.relations)
        others = [(entity, (relation + 1 + i) % m) for i in _rotation(stream, m - 1)]
        strangers = [((entity + 1 + i) % n, relation) for i in _rotation(stream, n - 1)]
        first, second = (others, strangers) if stream.below(2) else (strangers, others)
        alternately = chain.from_iterable(zip_longest(first, second))
        facts = [(entity, relation), *(fact for fact in alternately if fact is not None)][
            : self.settings.top_k
        ]
        if len(facts) > 1 and uniform(seed, _NOISE, entity, relation, turn) < self.settings.noise:
            order = Stream(seed, _ORDER, entity, relation, turn).shuffled(len(facts))
            facts = [facts[i] for i in order]
        return facts

    def question(self, split: Split, seed: int, index: int) -> Question:
        """Return question `index` of the stream (split, seed)."""
        salt = int(split == "eval")
        stream = Stream(_QUESTION, salt, seed, index)
        entity, path = self._draw(stream, self.hops(stream.uniform()), split)
        facts = (draw(_KNOWLEDGE, seed, index) & ~1) | salt
        end = entity
        for relation in path:
            end = self.target(facts, end, relation)
        start = self.entities[entity]
        words = tuple(self.relations[r] for r in path)
        text = f"who is {' '.join(f'the {relation} of' for relation in reversed(words))} {start} ?"
        return Question(index, text, self.entities[end], facts, start, words)

    def _draw(self, stream: Stream, hops: int, split: Split) -> tuple[int, list[int]]:
        # A chain repeats no relation while there are enough: the last query then shows the position in the
        # chain.
        for _ in range(_TRIES):
            entity = stream.below(len(self.entities))
            deck = stream.shuffled(len(self.relations))
            path = [deck[i % len(deck)] for i in range(hops)]
            # A text belongs to one split for ever: the tenth of all (start, relations) whose hash says so is
            # held out.
            if (draw(_SPLIT, entity, *path) % 10 == 0) == (split == "eval"):
                return entity, path
        raise InputError(
            f"world with {len(self.entities)} entities and {len(self.relations)} relations has no {hops}-hop"
            f" question in split {split!r}; set world.entities or world.relations higher (40 and 10 are the"
            " most)"
        )
