"""The world of facts: its questions, its ranked retriever, and the player whose episodes a warm start imitates."""

from collections import Counter

import pytest

from workbench.agent.demonstrations import demonstrations
from workbench.agent.tokenizer import ENTITIES, RELATIONS
from workbench.agent.worlds.facts import Facts, Knowledge, ranked
from workbench.spec import InputError, WarmStartSettings, WorldSettings

GOLDEN = ("who is the neighbour of the cousin of the partner of greta ?", "linda", 14912227099857610690)
KNOWLEDGE = Knowledge(seed=5, entities=40, relations=10)


def test_a_question_depends_on_its_index_alone(world: Facts) -> None:
    stream = world.questions("train", 3, 0, 50)
    assert world.questions("train", 3, 17, 5) == stream[17:22]
    assert [q.id for q in stream] == list(range(50))
    assert world.questions("train", 4, 0, 50) != stream
    question = world.questions("train", 0, 0, 1)[0]
    assert (question.text, question.gold, question.seed) == GOLDEN, "the same in every process"


def test_train_and_eval_share_no_question_text_and_no_knowledge_base(world: Facts) -> None:
    train = [q for seed in range(3) for q in world.questions("train", seed, 0, 3000)]
    evaluation = [q for seed in range(3) for q in world.questions("eval", seed, 0, 1000)]
    texts = [{q.text for q in split} for split in (train, evaluation)]
    assert len(texts[0]) > 3000
    assert len(texts[1]) > 500
    assert not texts[0] & texts[1]
    assert ({q.seed & 1 for q in train}, {q.seed & 1 for q in evaluation}) == ({0}, {1})
    assert len({q.seed for q in train + evaluation}) == 12_000


def test_about_a_tenth_of_the_one_hop_questions_is_held_out() -> None:
    world = Facts(WorldSettings(hops=(1.0, 0.0, 0.0)))
    held_out = {q.text for q in world.questions("eval", 0, 0, 4000)}
    assert len(held_out | {q.text for q in world.questions("train", 0, 0, 8000)}) == 400
    assert 20 <= len(held_out) <= 60


def test_hops_come_in_the_asked_proportions(world: Facts) -> None:
    for split in ("train", "eval"):
        count = Counter(len(q.chain) for q in world.questions(split, 0, 0, 4000))
        for hops, share in ((1, 0.2), (2, 0.4), (3, 0.4)):
            assert count[hops] / 4000 == pytest.approx(share, abs=0.03)


def test_a_chain_repeats_no_relation_and_reads_backwards_in_the_question(world: Facts) -> None:
    for q in world.questions("train", 0, 0, 200):
        assert len(set(q.chain)) == len(q.chain)
        assert q.text == f"who is {' '.join(f'the {r} of' for r in reversed(q.chain))} {q.start} ?"


def test_following_the_facts_leads_to_the_gold_answer() -> None:
    world = Facts(WorldSettings(top_k=1, noise=0.0))
    for q in world.questions("eval", 0, 0, 100):
        at = q.start
        for relation in q.chain:
            entity, by, found, stop = str(world.search(q, f"{at} {relation}", turn=1)).split()
            assert (entity, by, stop) == (at, relation, ".")
            assert found != at
            at = found
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


def test_a_smaller_world_knows_fewer_words_and_says_where_it_is_too_small() -> None:
    world = Facts(WorldSettings(entities=5, relations=3))
    question = world.questions("train", 0, 0, 1)[0]
    assert world.search(question, f"{ENTITIES[4]} {RELATIONS[2]}", 1) is not None
    for unknown in (f"{ENTITIES[5]} {RELATIONS[0]}", f"{ENTITIES[0]} {RELATIONS[3]}"):
        assert world.search(question, unknown, 1) is None
    without = Facts(WorldSettings(top_k=0))
    assert without.search(without.questions("train", 0, 0, 1)[0], "alice rival", turn=1) == ""
    with pytest.raises(InputError, match=r"world\.entities or world\.relations"):
        Facts(WorldSettings(entities=4, relations=2, hops=(1.0, 0.0, 0.0))).questions("eval", 0, 0, 1)


@pytest.mark.parametrize("top_k", range(6))
def test_the_exact_fact_is_first_and_the_rest_share_one_of_its_keys(top_k: int) -> None:
    for entity in range(40):
        facts = ranked(KNOWLEDGE, entity, 3, turn=1, top_k=top_k, noise=0.0)
        assert len(facts) == len(set(facts)) == top_k
        assert facts[:1] == [(entity, 3)][:top_k]
        assert all((e == entity) != (r == 3) for e, r in facts[1:])


def test_both_kinds_of_distractor_come_second_and_a_tiny_world_returns_what_it_has() -> None:
    shares_entity = [ranked(KNOWLEDGE, e, r, 1, 2, 0.0)[1][0] == e for e in range(40) for r in range(10)]
    assert 0.4 < sum(shares_entity) / 400 < 0.6
    facts = ranked(Knowledge(1, entities=4, relations=2), 0, 0, turn=1, top_k=5, noise=0.0)
    assert sorted(facts) == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)]


def test_noise_shuffles_that_share_of_the_lists_the_same_way_each_time() -> None:
    moved = 0
    for turn in range(2000):
        noisy = ranked(KNOWLEDGE, 7, 2, turn, top_k=2, noise=0.2)
        assert noisy == ranked(KNOWLEDGE, 7, 2, turn, top_k=2, noise=0.2)
        assert sorted(noisy) == sorted(ranked(KNOWLEDGE, 7, 2, turn, 2, 0.0))
        moved += noisy[0] != (7, 2)
    assert 0.07 < moved / 2000 < 0.13  # half of the shuffles of two leave them in place


def test_facts_differ_between_knowledge_bases_and_never_point_to_themselves() -> None:
    other = Knowledge(seed=6, entities=40, relations=10)
    keys = [(e, r) for e in range(40) for r in range(10)]
    assert all(KNOWLEDGE.target(e, r) != e for e, r in keys)
    assert sum(KNOWLEDGE.target(e, r) == other.target(e, r) for e, r in keys) < 30  # 10 expected by chance


def test_a_player_is_right_as_often_as_its_noise_lets_it(world: Facts) -> None:
    episodes = demonstrations(world, 3000, WarmStartSettings().noise, seed=0)
    assert 0.63 < sum(e.success for e in episodes) / 3000 < 0.73, "by default two thirds"
    assert 0.88 < sum(e.valid_turns for e in episodes) / sum(e.turns for e in episodes) < 0.96
    assert {s for e in episodes for s in e.turn_status} == {"search", "answer", "invalid"}
    assert all(
        e.success and e.valid_turns == e.turns == e.searches + 1 for e in demonstrations(world, 300, 0.0, seed=0)
    )
    assert sum(e.success for e in demonstrations(world, 1000, 1.0, seed=0)) < 50  # 1 in 39 of those who answer


def test_demonstrations_are_addressed_by_index_and_use_training_questions_that_no_run_draws(world: Facts) -> None:
    episodes = demonstrations(world, 40, 0.3, seed=1)
    assert demonstrations(world, 10, 0.3, seed=1, start=20) == episodes[20:30]
    assert demonstrations(world, 40, 0.3, seed=2) != episodes
    shown = demonstrations(world, 1000, 0.1, seed=0)
    assert not {q.text for q in world.questions("eval", 0, 0, 1000)} & {e.question for e in shown}
    drawn = [(q.text, q.gold) for q in world.questions("train", 0, 0, 1000)]
    assert sum(a == b for a, b in zip(drawn, [(e.question, e.gold) for e in shown], strict=True)) < 10
