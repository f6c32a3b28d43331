"""Demonstrations that a warm start imitates: episodes of the facts and of the atlas, solved by a script that
errs.
"""

from dataclasses import dataclass

from sorl.agent.draws import Stream, draw
from sorl.agent.episode import Episode
from sorl.agent.protocol import Dialogue
from sorl.agent.tokenizer import Codec
from sorl.agent.worlds import Question
from sorl.agent.worlds.atlas import Atlas, spaced
from sorl.agent.worlds.facts import Facts

Query = tuple[str, str]  # entity and relation


def demonstrations(
    world: Facts | Atlas, n: int, noise: float, seed: int, start: int = 0, codec: Codec | None = None
) -> list[Episode]:
    """Return episodes start .. start + n - 1 of the stream `seed`, on training questions that no run draws.

    They are written in the tokens and the wording of `codec`, by default the world's own.

    In each turn the player errs in form with probability `noise` (three times in four a malformed turn, which
    it repeats; otherwise a premature answer) and, independently, in content with probability `noise` (a query
    about something else, or a wrong answer), which nothing repairs. At 0.1 about two thirds of the episodes
    of facts succeed: imitation, sampled at temperature 1, stays below what the policy can do.
    """
    key, questions_key = (23, 24) if isinstance(world, Atlas) else (8, 9)
    codec = codec or Codec(world.tokenizer())
    questions = world.questions("train", draw(questions_key, seed), start, n)
    return [
        _Player(world, codec, noise, Stream(key, seed, question.id)).play(question) for question in questions
    ]


@dataclass
class _Player:
    world: Facts | Atlas
    codec: Codec
    noise: float
    stream: Stream

    def play(self, question: Question) -> Episode:
        dialogue = Dialogue(self.world, self.codec, question, group=question.id)
        at = question.start
        step = 0
        while dialogue.ended is None:
            relation = question.chain[step] if step < len(question.chain) else None
            text, query = self.turn(at, relation)
            tokens = self.codec.encode(spaced(text))[: self.world.max_turn_tokens]
            observation = self.codec.decode(dialogue.turn(tokens, [0.0] * len(tokens)))
            if query is not None:
                found = self.found(observation, query)
                # Without the fact among the results, answer with what there is.
                at, step = (at, len(question.chain)) if found is None else (found, step + 1)
        return dialogue.episode()

    def turn(self, at: str, relation: str | None) -> tuple[str, Query | None]:
        """Return the text of the next turn, and the query in it (None when there is none)."""
        errs = self.stream.uniform() < self.noise
        premature = errs and self.stream.below(4) == 0
        if errs and not premature:
            need = f"need {relation}" if relation is not None else "done"
            return f"<think> got {at} {need} {self.malformed(at, relation)[self.stream.below(4)]}", None
        wrong = self.stream.uniform() < self.noise
        entities = self.world.subjects if isinstance(self.world, Atlas) else self.world.entities
        if relation is None or premature:
            answer = self.other(entities, at) if wrong else at
            return f"<think> got {at} done </think> <answer> {answer} </answer>", None
        if wrong and self.stream.below(2):
            at = self.other(entities, at)
        elif wrong:
            relation = self.other(self.world.relations, relation)
        query = f"{relation} of {at}" if isinstance(self.world, Atlas) else f"{at} {relation}"
        return f"<think> got {at} need {relation} </think> <search> {query} </search>", (at, relation)

    def malformed(self, at: str, relation: str | None) -> tuple[str, ...]:
        first = "<search> </search>"
        second = f"<search> {at} </answer>"
        if isinstance(self.world, Facts):
            first = f"<search> {at} </search>"
            second = f"<search> {relation or at} {at} </search>"
        return f"</think> {first}", f"</think> {second}", "</think> </answer>", "</search>"

    def other(self, words: tuple[str, ...], word: str) -> str:
        """Draw a word of the list; in the small world of facts never `word` itself."""
        if isinstance(self.world, Atlas):
            return words[self.stream.below(len(words))]
        return words[(words.index(word) + 1 + self.stream.below(len(words) - 1)) % len(words)]

    def found(self, observation: str, query: Query) -> str | None:
        """Return the object of the fact about `query`, if it is among the results."""
        if isinstance(self.world, Atlas):
            found = self.world.facts.get(query)
            read = found is not None and all(f" {spaced(word)} " in observation for word in (found, query[0]))
            return found if read else None
        words = observation.split()
        return next((words[i + 2] for i in range(len(words) - 2) if (words[i], words[i + 1]) == query), None)
