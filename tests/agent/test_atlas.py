from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.agent.demonstrations import demonstrations
from workbench.agent.tokenizer import UNKNOWN, Codec
from workbench.agent.worlds import build, exact_match
from workbench.agent.worlds.atlas import CHAINS, SENTENCES, Atlas, gazetteer, spaced
from workbench.spec import WorldSettings

SETTINGS = WorldSettings(kind="atlas", max_turn_tokens=20)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Atlas]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SORL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Atlas(SETTINGS)


def test_the_corpus_has_a_passage_for_each_of_its_real_facts(world: Atlas) -> None:
    text = world.corpus.read_text(encoding="utf-8")
    assert text.count("\n") > 20_000
    assert world.facts["Peru", "capital"] == "Lima"
    assert world.facts["Japan", "currency"] == "Japanese Yen"
    assert world.facts["Mumbai", "country"] == "India"
    assert world.facts["iron", "symbol"] == "Fe"
    assert world.facts["gold", "number"] == "79"
    assert world.facts["Portuguese", "code"] == "pt"
    assert ("Switzerland", "language") not in world.facts  # it has several


def test_following_the_passages_leads_to_the_gold_answer(world: Atlas) -> None:
    reached = 0
    for q in world.questions("eval", 0, 0, 100):
        at = q.start
        for relation in q.chain:
            found = world.search(q, f"{relation} of {at}", 1)
            after = world.facts[at, relation]
            if f" {spaced(after)} " not in f" {found.text} ":
                break
            at = after
        reached += at == q.gold
    assert reached >= 97  # BM25 misses what other names crowd out


def test_train_and_eval_share_no_question_text(world: Atlas) -> None:
    train = {q.text for seed in range(3) for q in world.questions("train", seed, 0, 3000)}
    evaluation = {q.text for seed in range(3) for q in world.questions("eval", seed, 0, 1000)}
    assert len(train) > 3000
    assert len(evaluation) > 400
    assert not train & evaluation


def test_a_question_depends_on_its_index_alone(world: Atlas) -> None:
    stream = world.questions("train", 3, 0, 50)
    assert world.questions("train", 3, 17, 5) == stream[17:22]
    assert world.questions("train", 4, 0, 50) != stream


def test_hops_come_in_the_asked_proportions_and_chains_fit_their_subjects(world: Atlas) -> None:
    questions = world.questions("train", 0, 0, 4000)
    count = Counter(len(q.chain) for q in questions)
    for hops, share in ((1, 0.2), (2, 0.4), (3, 0.4)):
        assert count[hops] / 4000 == pytest.approx(share, abs=0.03)
    known = {chain for chains in CHAINS.values() for chain in chains}
    assert {q.chain for q in questions} <= known
    q = next(q for q in questions if len(q.chain) == 3)
    assert q.text == spaced(f"what is {' '.join(f'the {r} of' for r in reversed(q.chain))} {q.start} ?")


def test_the_vocabulary_covers_every_question_answer_and_wording(world: Atlas) -> None:
    codec = Codec(world.tokenizer())
    assert len(world.tokenizer()) < 2500
    texts = [q.text for q in world.questions("train", 0, 0, 2000)]
    texts += [spaced(f"{s} {o}") for (s, _), o in world.facts.items()]
    texts += [spaced(w.format(s="", o="")) for pair in SENTENCES.values() for w in pair]
    texts += [
        "<think> got need done </think> <search> of </search> <answer> </answer> <information> invalid search failed"
    ]
    for text in texts:
        assert codec.decode(codec.encode(text)) == text
    assert UNKNOWN in codec.decode(codec.encode("Ouagadougou Zzyzx"))


def test_every_gold_answer_can_be_given_in_the_vocabulary(world: Atlas) -> None:
    codec = Codec(world.tokenizer())
    for gold in set(world.facts.values()):
        assert exact_match(codec.decode(codec.encode(spaced(gold))), gold) == 1.0, gold


def test_the_player_succeeds_without_noise_and_errs_with_it(world: Atlas) -> None:
    clean, noisy = demonstrations(world, 150, 0.0, seed=1), demonstrations(world, 150, 0.3, seed=1)
    assert sum(e.success for e in clean) >= 145
    assert 20 <= sum(e.success for e in noisy) <= 110
    assert demonstrations(world, 3, 0.3, seed=1, start=7)[0].tokens == noisy[7].tokens
    statuses = Counter(status for e in noisy for status in e.turn_status)
    assert min(statuses["search"], statuses["answer"], statuses["invalid"]) > 10
    assert {s for e in clean for s in e.retrieval_status} == {"found", None}
    unread = Codec(world.tokenizer()).encode(UNKNOWN)[0]
    assert not any(t == unread for e in clean for t, w in zip(e.tokens, e.written, strict=True) if w)


def test_without_search_nothing_is_found(world: Atlas) -> None:
    without = Atlas(SETTINGS.model_copy(update={"top_k": 0}))
    assert without.search(without.questions("eval", 0, 0, 1)[0], "capital of Peru", 1) == ("", "empty", 0.0)


@pytest.mark.slow
def test_the_seed_words_the_same_facts_differently(world: Atlas, tmp_path: Path) -> None:
    facts, corpus = gazetteer(1, tmp_path)
    assert {(f.subject, f.relation): f.object for f in facts} == world.facts
    mine, theirs = (p.read_text(encoding="utf-8").splitlines() for p in (world.corpus, corpus))
    assert len(mine) == len(theirs)
    assert 0.4 < sum(a != b for a, b in zip(mine, theirs, strict=True)) / len(mine) < 0.6


def test_the_world_is_one_of_the_kinds_that_settings_name(world: Atlas) -> None:
    built = build(SETTINGS)
    assert isinstance(built, Atlas)
    assert build(SETTINGS) is built
