"""Ranked retrieval over a generated knowledge base."""

from __future__ import annotations

from workbench.agent.draws import Stream, uniform
from workbench.agent.worlds.knowledge import Knowledge

_RANK, _NOISE, _ORDER = 2, 3, 4


def ranked(
    knowledge: Knowledge, entity: int, relation: int, turn: int, top_k: int, noise: float
) -> list[tuple[int, int]]:
    """The `top_k` facts nearest to the query (entity, relation), best first, as (entity, relation) keys.

    First the exact fact, then distractors that share the entity or the relation, alternately. With probability
    `noise` the list is shuffled. Everything depends on the knowledge base's seed, the query and `turn` alone, so the
    rollouts of one prompt group meet the same retriever. The order is a shortcut that a small policy takes: copying the
    first result is right with probability 1 - noise * (1 - 1 / top_k), so success has a ceiling below 1 for a policy
    that does not compare the facts with its query.
    """
    stream = Stream(knowledge.seed, _RANK, entity, relation)
    others = [(entity, (relation + 1 + i) % knowledge.relations) for i in _rotation(stream, knowledge.relations - 1)]
    strangers = [((entity + 1 + i) % knowledge.entities, relation) for i in _rotation(stream, knowledge.entities - 1)]
    first, second = (others, strangers) if stream.below(2) else (strangers, others)
    facts = [(entity, relation)]
    for i in range(max(len(first), len(second))):
        if len(facts) >= top_k:
            break
        facts += first[i : i + 1] + second[i : i + 1]
    facts = facts[:top_k]
    if len(facts) > 1 and uniform(knowledge.seed, _NOISE, entity, relation, turn) < noise:
        order = Stream(knowledge.seed, _ORDER, entity, relation, turn).shuffled(len(facts))
        facts = [facts[i] for i in order]
    return facts


def _rotation(stream: Stream, n: int) -> list[int]:
    """Four distinct integers below n (fewer if n is) from a random start: as many as the largest top_k needs."""
    start = stream.below(n)
    return [(start + i) % n for i in range(min(n, 4))]
