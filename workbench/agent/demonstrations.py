"""Demonstrations that a warm start imitates: episodes of the facts and of the atlas, solved as the protocol wants."""

from __future__ import annotations

from workbench.agent.draws import Stream, draw
from workbench.agent.episode import Episode
from workbench.agent.protocol import Dialogue
from workbench.agent.tokenizer import Codec, build_tokenizer
from workbench.agent.worlds import Question
from workbench.agent.worlds.atlas import Atlas, spaced
from workbench.agent.worlds.facts import Facts

_DEMONSTRATION, _DEMONSTRATIONS = 8, 9
_CODEC = Codec(build_tokenizer())


def demonstrations(world: Facts, n: int, noise: float, seed: int, start: int = 0) -> list[Episode]:
    """Episodes start .. start + n - 1 of the stream `seed`, on training questions that no run draws.

    In each turn the player errs in form with probability `noise` (three times in four a malformed turn, which is told
    `invalid` and repeated; otherwise an answer before its time) and, independently, in content with probability
    `noise` (a query about the wrong person or relation, or a wrong answer), which nothing repairs. At 0.1 about two
    thirds of the episodes succeed: imitation, sampled at temperature 1, stays below what the policy can do.
    """
    questions = world.questions("train", draw(_DEMONSTRATIONS, seed), start, n)
    return [_play_facts(world, question, noise, Stream(_DEMONSTRATION, seed, question.id)) for question in questions]


def _play_facts(world: Facts, question: Question, noise: float, stream: Stream) -> Episode:
    dialogue = Dialogue(world, _CODEC, question, group=question.id)
    at, step = question.start, 0
    while dialogue.ended is None:
        relation = question.chain[step] if step < len(question.chain) else None
        text, query = _turn_of_facts(world, at, relation, noise, stream)
        tokens = _CODEC.encode(text)[: world.max_turn_tokens]
        found = _find(_CODEC.decode(dialogue.turn(tokens, [0.0] * len(tokens))), query)
        if found is not None:
            at, step = found, step + 1
        elif query is not None:  # the fact is not among the results: answer with what it has
            step = len(question.chain)
    return dialogue.episode()


def _turn_of_facts(
    world: Facts, at: str, relation: str | None, noise: float, stream: Stream
) -> tuple[str, tuple[str, str] | None]:
    """Text of the next turn, and the query in it that the player believes in (None when there is none)."""
    premature = False
    if stream.uniform() < noise:
        premature = stream.below(4) == 0
        if not premature:
            return _malformed_facts(at, relation, stream), None
    wrong = stream.uniform() < noise
    if relation is None or premature:
        answer = _other(world.entities, at, stream) if wrong else at
        return f"<think> got {at} done </think> <answer> {answer} </answer>", None
    if wrong and stream.below(2):
        at = _other(world.entities, at, stream)
    elif wrong:
        relation = _other(world.relations, relation, stream)
    return f"<think> got {at} need {relation} </think> <search> {at} {relation} </search>", (at, relation)


def _malformed_facts(at: str, relation: str | None, stream: Stream) -> str:
    need = f"need {relation}" if relation is not None else "done"
    return (
        f"<think> got {at} {need} </think> <search> {at} </search>",
        f"<think> got {at} {need} </think> <search> {relation or at} {at} </search>",
        f"<think> got {at} {need} </think> </answer>",
        f"<think> got {at} {need} </search>",
    )[stream.below(4)]


def _other(words: tuple[str, ...], word: str, stream: Stream) -> str:
    """Return a word of the list that is not `word`."""
    return words[(words.index(word) + 1 + stream.below(len(words) - 1)) % len(words)]


def _find(observation: str, query: tuple[str, str] | None) -> str | None:
    """Return the object of the fact about `query` among the facts of an observation."""
    if query is None:
        return None
    words = observation.split()
    for i in range(len(words) - 2):
        if (words[i], words[i + 1]) == query:
            return words[i + 2]
    return None


_TRAVEL, _TRAVELS = 23, 24


def travels(world: Atlas, n: int, noise: float, seed: int, start: int = 0) -> list[Episode]:
    """Episodes start .. start + n - 1 of the stream `seed`, on training questions that no run draws.

    In each turn the player errs in form with probability `noise` (a malformed turn, which is told `invalid` and
    repeated, or an answer before its time) and, independently, in content with probability `noise` (a query about
    something else, or a wrong answer), which nothing repairs.
    """
    codec = Codec(world.tokenizer())
    questions = world.questions("train", draw(_TRAVELS, seed), start, n)
    return [_play_atlas(world, codec, question, noise, Stream(_TRAVEL, seed, question.id)) for question in questions]


def _play_atlas(world: Atlas, codec: Codec, question: Question, noise: float, stream: Stream) -> Episode:
    dialogue = Dialogue(world, codec, question, group=question.id)
    at, step = question.start, 0
    while dialogue.ended is None:
        relation = question.chain[step] if step < len(question.chain) else None
        text, query = _turn_of_atlas(world, at, relation, noise, stream)
        tokens = codec.encode(spaced(text))[: world.max_turn_tokens]
        observation = codec.decode(dialogue.turn(tokens, [0.0] * len(tokens)))
        if query is None:
            continue
        found = world.facts.get(query)
        if found is not None and f" {spaced(found)} " in observation and f" {spaced(query[0])} " in observation:
            at, step = found, step + 1
        else:  # not among the passages: answer with what it has
            step = len(question.chain)
    return dialogue.episode()


def _turn_of_atlas(
    world: Atlas, at: str, relation: str | None, noise: float, stream: Stream
) -> tuple[str, tuple[str, str] | None]:
    """Text of the next turn, and the query in it that the player believes in (None when there is none)."""
    premature = False
    if stream.uniform() < noise:
        premature = stream.below(4) == 0
        if not premature:
            return _malformed_atlas(at, relation, stream), None
    wrong = stream.uniform() < noise
    if relation is None or premature:
        answer = world.subjects[stream.below(len(world.subjects))] if wrong else at
        return f"<think> got {at} done </think> <answer> {answer} </answer>", None
    if wrong and stream.below(2):
        at = world.subjects[stream.below(len(world.subjects))]
    elif wrong:
        relation = world.relations[stream.below(len(world.relations))]
    return f"<think> got {at} need {relation} </think> <search> {relation} of {at} </search>", (at, relation)


def _malformed_atlas(at: str, relation: str | None, stream: Stream) -> str:
    need = f"need {relation}" if relation is not None else "done"
    return (
        f"<think> got {at} {need} </think> <search> </search>",
        f"<think> got {at} {need} </think> <search> {at} </answer>",
        f"<think> got {at} {need} </think> </answer>",
        f"<think> got {at} {need} </search>",
    )[stream.below(4)]
