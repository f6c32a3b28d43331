"""Scripted episodes in the world of real facts: a player who asks for one hop after the other and errs at a rate."""

from __future__ import annotations

from workbench.agent.draws import Stream, draw
from workbench.agent.episode import Episode
from workbench.agent.protocol import Dialogue
from workbench.agent.tokenizer import Codec
from workbench.agent.worlds import Question
from workbench.agent.worlds.atlas import Atlas, spaced

_TRAVEL, _STREAM = 23, 24


def travels(world: Atlas, n: int, noise: float, seed: int, start: int = 0) -> list[Episode]:
    """Episodes start .. start + n - 1 of the stream `seed`, on training questions that no run draws.

    In each turn the player errs in form with probability `noise` (a malformed turn, which is told `invalid` and
    repeated, or an answer before its time) and, independently, in content with probability `noise` (a query about
    something else, or a wrong answer), which nothing repairs.
    """
    codec = Codec(world.tokenizer())
    questions = world.questions("train", draw(_STREAM, seed), start, n)
    return [_play(world, codec, question, noise, Stream(_TRAVEL, seed, question.id)) for question in questions]


def _play(world: Atlas, codec: Codec, question: Question, noise: float, stream: Stream) -> Episode:
    dialogue = Dialogue(world, codec, question, group=question.id)
    at, step = question.start, 0
    while dialogue.ended is None:
        relation = question.chain[step] if step < len(question.chain) else None
        text, query = _turn(world, at, relation, noise, stream)
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


def _turn(
    world: Atlas, at: str, relation: str | None, noise: float, stream: Stream
) -> tuple[str, tuple[str, str] | None]:
    """Text of the next turn, and the query in it that the player believes in (None when there is none)."""
    premature = False
    if stream.uniform() < noise:
        premature = stream.below(4) == 0
        if not premature:
            return _malformed(at, relation, stream), None
    wrong = stream.uniform() < noise
    if relation is None or premature:
        answer = world.subjects[stream.below(len(world.subjects))] if wrong else at
        return f"<think> got {at} done </think> <answer> {answer} </answer>", None
    if wrong and stream.below(2):
        at = world.subjects[stream.below(len(world.subjects))]
    elif wrong:
        relation = world.relations[stream.below(len(world.relations))]
    return f"<think> got {at} need {relation} </think> <search> {relation} of {at} </search>", (at, relation)


def _malformed(at: str, relation: str | None, stream: Stream) -> str:
    need = f"need {relation}" if relation is not None else "done"
    return (
        f"<think> got {at} {need} </think> <search> </search>",
        f"<think> got {at} {need} </think> <search> {at} </answer>",
        f"<think> got {at} {need} </think> </answer>",
        f"<think> got {at} {need} </search>",
    )[stream.below(4)]
