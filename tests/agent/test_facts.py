from __future__ import annotations

from collections import Counter

import pytest

from workbench.agent.tokenizer import ENTITIES, RELATIONS
from workbench.agent.worlds.facts import Facts
from workbench.spec import InputError, WorldSettings

GOLDEN = ("who is the neighbour of the cousin of the partner of greta ?", "linda", 14912227099857610690)


def test_a_question_depends_on_its_index_alone(world: Facts) -> None:
    stream = world.questions("train", 3, 0, 50)
    assert world.questions("train", 3, 17, 5) == stream[17:22]
    assert [q.id for q in stream] == list(range(50))
    assert world.questions("train", 4, 0, 50) != stream


def test_questions_are_the_same_in_every_process(world: Facts) -> None:
    question = world.questions("train", 0, 0, 1)[0]
    assert (question.text, question.gold, question.seed) == GOLDEN


def test_train_and_eval_share_no_question_text(world: Facts) -> None:
    train = {q.text for seed in range(3) for q in world.questions("train", seed, 0, 3000)}
    evaluation = {q.text for seed in range(3) for q in world.questions("eval", seed, 0, 1000)}
    assert len(train) > 3000
    assert len(evaluation) > 500
    assert not train & evaluation


def test_train_and_eval_share_no_knowledge_base(world: Facts) -> None:
    train = {q.seed for q in world.questions("train", 0, 0, 2000)}
    evaluation = {q.seed for q in world.questions("eval", 0, 0, 2000)}
    assert len(train) == len(evaluation) == 2000
    assert {s & 1 for s in train} == {0}
    assert {s & 1 for s in evaluation} == {1}


def test_about_a_tenth_of_the_one_hop_questions_is_held_out() -> None:
    world = Facts(WorldSettings(hops=(1.0, 0.0, 0.0)))
    held_out = {q.text for q in world.questions("eval", 0, 0, 4000)}
    trained = {q.text for q in world.questions("train", 0, 0, 8000)}
    assert len(held_out) + len(trained) == 400
    assert 20 <= len(held_out) <= 60


def test_hops_come_in_the_asked_proportions(world: Facts) -> None:
    for split in ("train", "eval"):
        count = Counter(len(q.chain) for q in world.questions(split, 0, 0, 4000))
        for hops, share in ((1, 0.2), (2, 0.4), (3, 0.4)):
            assert count[hops] / 4000 == pytest.approx(share, abs=0.03)


def test_a_chain_repeats_no_relation_and_reads_backwards_in_the_question(world: Facts) -> None:
    for q in world.questions("train", 0, 0, 200):
        assert len(set(q.chain)) == len(q.chain)
        phrase = " ".join(f"the {r} of" for r in reversed(q.chain))
        assert q.text == f"who is {phrase} {q.start} ?"


def test_following_the_facts_leads_to_the_gold_answer() -> None:
    world = Facts(WorldSettings(top_k=1, noise=0.0))
    for q in world.questions("eval", 0, 0, 100):
        at = q.start
        for relation in q.chain:
            fact = world.search(q, f"{at} {relation}", turn=1)
            assert fact is not None
            assert fact.split()[:2] == [at, relation]
            assert fact.split()[3] == "."
            assert fact.split()[2] != at
            at = fact.split()[2]
        assert at == q.gold
        assert world.score(q, at) == 1.0


def test_answers_are_spread_over_the_entities(world: Facts) -> None:
    count = Counter(q.gold for q in world.questions("train", 0, 0, 4000))
    assert set(count) == set(ENTITIES)
    assert max(count.values()) < 160  # 100 expected; five standard deviations are 50


@pytest.mark.parametrize(
    "query", ["alice", "alice rival boris", "rival alice", "alice boris", "zzz rival", "", "alice <pad>"]
)
def test_a_query_that_is_not_an_entity_and_a_relation_cannot_be_read(world: Facts, query: str) -> None:
    assert world.search(world.questions("train", 0, 0, 1)[0], query, turn=1) is None


def test_words_outside_a_smaller_world_are_unknown_to_it() -> None:
    world = Facts(WorldSettings(entities=5, relations=3))
    question = world.questions("train", 0, 0, 1)[0]
    assert world.search(question, f"{ENTITIES[4]} {RELATIONS[2]}", 1) is not None
    assert world.search(question, f"{ENTITIES[5]} {RELATIONS[0]}", 1) is None
    assert world.search(question, f"{ENTITIES[0]} {RELATIONS[3]}", 1) is None


def test_an_empty_retriever_returns_nothing() -> None:
    world = Facts(WorldSettings(top_k=0))
    assert world.search(world.questions("train", 0, 0, 1)[0], "alice rival", turn=1) == ""


def test_a_world_too_small_for_a_split_says_what_to_set() -> None:
    world = Facts(WorldSettings(entities=4, relations=2, hops=(1.0, 0.0, 0.0)))
    with pytest.raises(InputError, match=r"world\.entities or world\.relations"):
        world.questions("eval", 0, 0, 1)
