"""The worlds of facts and of the atlas: questions, retrieval, and the player whose episodes a warm start
imitates.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sorl.agent.demonstrations import demonstrations
from sorl.agent.tokenizer import ENTITIES, RELATIONS, UNKNOWN, Codec
from sorl.agent.worlds import build, exact_match
from sorl.agent.worlds.atlas import CHAINS, SENTENCES, Atlas, gazetteer, spaced
from sorl.agent.worlds.facts import Facts
from sorl.spec import InputError, WarmStartSettings, WorldSettings

GOLDEN = ("who is the neighbour of the cousin of the partner of greta ?", "linda", 14912227099857610690)
KEYS = [(entity, relation) for entity in range(40) for relation in range(10)]
ATLAS = WorldSettings(kind="atlas", max_turn_tokens=20)


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Atlas]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SORL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Atlas(ATLAS)


@pytest.fixture(params=["facts", "atlas"])
def either(request: pytest.FixtureRequest, world: Facts, atlas: Atlas) -> Facts | Atlas:
    return world if request.param == "facts" else atlas


def test_a_question_depends_on_its_index_alone(either: Facts | Atlas) -> None:
    stream = either.questions("train", 3, 0, 50)
    assert either.questions("train", 3, 17, 5) == stream[17:22]
    assert [q.id for q in stream] == list(range(50))
    assert either.questions("train", 4, 0, 50) != stream


def test_train_and_eval_share_no_question_text(either: Facts | Atlas) -> None:
    train = [q for seed in range(3) for q in either.questions("train", seed, 0, 3000)]
    evaluation = [q for seed in range(3) for q in either.questions("eval", seed, 0, 1000)]
    texts = [{q.text for q in split} for split in (train, evaluation)]
    assert len(texts[0]) > 3000
    assert len(texts[1]) > 400
    assert not texts[0] & texts[1]
    if isinstance(either, Facts):
        assert ({q.seed & 1 for q in train}, {q.seed & 1 for q in evaluation}) == ({0}, {1}), "nor facts"
        assert len({q.seed for q in train + evaluation}) == 12_000


@pytest.mark.parametrize("split", ["train", "eval"])
def test_hops_come_in_the_asked_proportions_and_chains_fit_their_questions(
    either: Facts | Atlas, split: Any
) -> None:
    questions = either.questions(split, 0, 0, 4000)
    count = Counter(len(q.chain) for q in questions)
    assert [count[hops] / 4000 for hops in (1, 2, 3)] == pytest.approx([0.2, 0.4, 0.4], abs=0.03)
    who = "who" if isinstance(either, Facts) else "what"
    assert all(len(set(q.chain)) == len(q.chain) for q in questions), "a chain repeats no relation"
    for q in questions[:500]:
        assert q.text == spaced(f"{who} is {' '.join(f'the {r} of' for r in reversed(q.chain))} {q.start} ?")
    assert who == "who" or {q.chain for q in questions} <= {
        chain for chains in CHAINS.values() for chain in chains
    }


# --- the facts


def test_questions_are_the_same_in_every_process_and_a_tenth_is_held_out(world: Facts) -> None:
    question = world.questions("train", 0, 0, 1)[0]
    assert (question.text, question.gold, question.seed) == GOLDEN
    one_hop = Facts(WorldSettings(hops=(1.0, 0.0, 0.0)))
    held_out = {q.text for q in one_hop.questions("eval", 0, 0, 4000)}
    assert len(held_out | {q.text for q in one_hop.questions("train", 0, 0, 8000)}) == 400
    assert 20 <= len(held_out) <= 60


def test_following_the_facts_leads_to_the_gold_answer() -> None:
    world = Facts(WorldSettings(top_k=1, noise=0.0))
    for q in world.questions("eval", 0, 0, 100):
        at = q.start
        for relation in q.chain:
            entity, by, found, stop = world.search(q, f"{at} {relation}", turn=1).text.split()
            assert (entity, by, stop) == (at, relation, ".")
            assert found != at
            at = found
        assert at == q.gold
        assert world.score(q, at) == 1.0


def test_a_query_that_is_not_an_entity_and_a_relation_of_the_world_cannot_be_read(world: Facts) -> None:
    small = Facts(WorldSettings(entities=5, relations=3))
    question = world.questions("train", 0, 0, 1)[0]
    for query in ("alice", "alice rival boris", "rival alice", "alice boris", "zzz rival", "", "alice <pad>"):
        assert world.search(question, query, turn=1) is None, query
    assert small.search(question, f"{ENTITIES[4]} {RELATIONS[2]}", 1) is not None
    for unknown in (f"{ENTITIES[5]} {RELATIONS[0]}", f"{ENTITIES[0]} {RELATIONS[3]}"):
        assert small.search(question, unknown, 1) is None
    assert Facts(WorldSettings(top_k=0)).search(question, "alice rival", turn=1) == ("", None, None)
    with pytest.raises(InputError, match=r"world\.entities or world\.relations"):
        Facts(WorldSettings(entities=4, relations=2, hops=(1.0, 0.0, 0.0))).questions("eval", 0, 0, 1)


def ranked(entity: int, relation: int, turn: int = 1, **settings: Any) -> list[tuple[int, int]]:
    return Facts(WorldSettings(**{"top_k": 2, "noise": 0.0} | settings)).ranked(5, entity, relation, turn)


@pytest.mark.parametrize("top_k", range(6))
def test_the_exact_fact_is_first_and_the_rest_share_one_of_its_keys(top_k: int) -> None:
    for entity in range(40):
        facts = ranked(entity, 3, top_k=top_k)
        assert len(facts) == len(set(facts)) == top_k
        assert facts[:1] == [(entity, 3)][:top_k]
        assert all((e == entity) != (r == 3) for e, r in facts[1:])


def test_both_kinds_of_distractor_come_second_and_noise_shuffles_that_share_the_same_way_each_time() -> None:
    assert 0.4 < sum(ranked(e, r)[1][0] == e for e, r in KEYS) / 400 < 0.6
    facts = ranked(0, 0, top_k=5, entities=4, relations=2)
    assert sorted(facts) == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)], "a tiny world returns what it has"
    moved = 0
    for turn in range(2000):
        noisy = ranked(7, 2, turn, noise=0.2)
        assert noisy == ranked(7, 2, turn, noise=0.2)
        assert sorted(noisy) == sorted(ranked(7, 2, turn))
        moved += noisy[0] != (7, 2)
    assert 0.07 < moved / 2000 < 0.13  # half of the shuffles of two leave them in place


def test_a_player_is_right_as_often_as_its_noise_lets_it(world: Facts) -> None:
    episodes, right = (
        demonstrations(world, n, x, seed=0) for n, x in ((3000, WarmStartSettings().noise), (300, 0.0))
    )
    assert 0.63 < sum(e.success for e in episodes) / 3000 < 0.73, "by default two thirds"
    assert 0.88 < sum(e.valid_turns for e in episodes) / sum(e.turns for e in episodes) < 0.96
    assert {s for e in episodes for s in e.turn_status} == {"search", "answer", "invalid"}
    assert all(e.success and e.valid_turns == e.turns == e.searches + 1 for e in right)
    # 1 in 39 of those who answer
    assert sum(e.success for e in demonstrations(world, 1000, 1.0, seed=0)) < 50


def test_demonstrations_are_addressed_by_index_and_use_training_questions_that_no_run_draws(
    world: Facts,
) -> None:
    episodes = demonstrations(world, 40, 0.3, seed=1)
    assert demonstrations(world, 10, 0.3, seed=1, start=20) == episodes[20:30]
    assert demonstrations(world, 40, 0.3, seed=2) != episodes
    shown = demonstrations(world, 1000, 0.1, seed=0)
    assert not {q.text for q in world.questions("eval", 0, 0, 1000)} & {e.question for e in shown}
    drawn = [(q.text, q.gold) for q in world.questions("train", 0, 0, 1000)]
    assert sum(a == b for a, b in zip(drawn, [(e.question, e.gold) for e in shown], strict=True)) < 10


# --- the atlas


def test_the_corpus_has_a_passage_for_each_of_its_real_facts(atlas: Atlas) -> None:
    assert atlas.corpus.read_text(encoding="utf-8").count("\n") > 20_000
    known = [
        ("Peru", "capital", "Lima"),
        ("Japan", "currency", "Japanese Yen"),
        ("Mumbai", "country", "India"),
        ("iron", "symbol", "Fe"),
        ("gold", "number", "79"),
        ("Portuguese", "code", "pt"),
    ]
    assert [(s, r, atlas.facts[s, r]) for s, r, _ in known] == known
    assert ("Switzerland", "language") not in atlas.facts  # it has several
    assert build(ATLAS) is build(ATLAS)
    assert isinstance(build(ATLAS), Atlas)


def test_following_the_passages_leads_to_the_gold_answer_and_without_search_nothing_is_found(
    atlas: Atlas,
) -> None:
    reached = 0
    questions = atlas.questions("eval", 0, 0, 100)
    for q in questions:
        at = q.start
        for relation in q.chain:
            found: Any = atlas.search(q, f"{relation} of {at}", 1)
            after = atlas.facts[at, relation]
            if f" {spaced(after)} " not in f" {found.text} ":
                break
            at = after
        reached += at == q.gold
    assert reached >= 97  # BM25 misses what other names crowd out
    without = Atlas(ATLAS.model_copy(update={"top_k": 0}))
    assert without.search(questions[0], "capital of Peru", 1) == ("", "empty", 0.0)


def test_the_vocabulary_covers_every_question_answer_and_wording(atlas: Atlas) -> None:
    codec = Codec(atlas.tokenizer())
    assert len(atlas.tokenizer()) < 2500
    texts = [q.text for q in atlas.questions("train", 0, 0, 2000)]
    texts += [spaced(f"{s} {o}") for (s, _), o in atlas.facts.items()]
    texts += [spaced(w.format(s="", o="")) for pair in SENTENCES.values() for w in pair]
    texts += ["<think> got need done </think> <search> of </search> <answer> </answer> invalid search failed"]
    for text in texts:
        assert codec.decode(codec.encode(text)) == text
    assert UNKNOWN in codec.decode(codec.encode("Ouagadougou Zzyzx"))
    for gold in set(atlas.facts.values()):
        assert exact_match(codec.decode(codec.encode(spaced(gold))), gold) == 1.0, gold


def test_the_player_of_the_atlas_succeeds_without_noise_and_errs_with_it(atlas: Atlas) -> None:
    clean = demonstrations(atlas, 150, 0.0, seed=1)
    noisy = demonstrations(atlas, 150, 0.3, seed=1)
    assert sum(e.success for e in clean) >= 145
    assert 20 <= sum(e.success for e in noisy) <= 110
    assert demonstrations(atlas, 3, 0.3, seed=1, start=7)[0].tokens == noisy[7].tokens
    statuses = Counter(status for e in noisy for status in e.turn_status)
    assert min(statuses["search"], statuses["answer"], statuses["invalid"]) > 10
    assert {s for e in clean for s in e.retrieval_status} == {"found", None}
    unread = Codec(atlas.tokenizer()).encode(UNKNOWN)[0]
    assert not any(t == unread for e in clean for t, w in zip(e.tokens, e.written, strict=True) if w)


@pytest.mark.slow
def test_the_seed_words_the_same_facts_differently(atlas: Atlas, tmp_path: Path) -> None:
    facts, corpus = gazetteer(1, tmp_path)
    assert {(f.subject, f.relation): f.object for f in facts} == atlas.facts
    mine, theirs = (p.read_text(encoding="utf-8").splitlines() for p in (atlas.corpus, corpus))
    assert 0.4 < sum(a != b for a, b in zip(mine, theirs, strict=True)) / len(mine) < 0.6
