from __future__ import annotations

import pytest

from workbench.agent.worlds.facts import Knowledge, ranked

KNOWLEDGE = Knowledge(seed=5, entities=40, relations=10)


@pytest.mark.parametrize("top_k", range(6))
def test_the_exact_fact_is_first_and_the_rest_share_one_of_its_keys(top_k: int) -> None:
    for entity in range(40):
        facts = ranked(KNOWLEDGE, entity, 3, turn=1, top_k=top_k, noise=0.0)
        assert len(facts) == len(set(facts)) == top_k
        assert facts[:1] == [(entity, 3)][:top_k]
        assert all((e == entity) != (r == 3) for e, r in facts[1:])


def test_both_kinds_of_distractor_come_second() -> None:
    second = [ranked(KNOWLEDGE, e, r, 1, 2, 0.0)[1] for e in range(40) for r in range(10)]
    shares_entity = [s[0] == e for s, e in zip(second, [e for e in range(40) for _ in range(10)], strict=True)]
    assert 0.4 < sum(shares_entity) / 400 < 0.6


def test_a_tiny_world_returns_what_it_has() -> None:
    facts = ranked(Knowledge(1, entities=4, relations=2), 0, 0, turn=1, top_k=5, noise=0.0)
    assert sorted(facts) == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)]


def test_noise_shuffles_that_share_of_the_lists_and_changes_nothing_else() -> None:
    moved = 0
    for turn in range(2000):
        noisy = ranked(KNOWLEDGE, 7, 2, turn, top_k=2, noise=0.2)
        assert sorted(noisy) == sorted(ranked(KNOWLEDGE, 7, 2, turn, 2, 0.0))
        moved += noisy[0] != (7, 2)
    assert 0.07 < moved / 2000 < 0.13  # half of the shuffles of two leave them in place


def test_the_same_query_in_the_same_turn_finds_the_same() -> None:
    for turn in range(20):
        assert ranked(KNOWLEDGE, 7, 2, turn, 3, 0.5) == ranked(KNOWLEDGE, 7, 2, turn, 3, 0.5)


def test_facts_differ_between_knowledge_bases_and_never_point_to_themselves() -> None:
    other = Knowledge(seed=6, entities=40, relations=10)
    keys = [(e, r) for e in range(40) for r in range(10)]
    assert all(KNOWLEDGE.target(e, r) != e for e, r in keys)
    same = sum(KNOWLEDGE.target(e, r) == other.target(e, r) for e, r in keys)
    assert same < 30  # 10 expected by chance
