import pytest
from transformers import PreTrainedTokenizerFast

from tests.agent.fakes import ScriptedEngine
from workbench.agent.episode import Episode
from workbench.agent.protocol import parse
from workbench.agent.tokenizer import Codec
from workbench.agent.worlds import Question
from workbench.agent.worlds.facts import Facts
from workbench.spec import WorldSettings

SEARCH = "<think> got alice need rival </think> <search> alice rival </search>"


def play(tokenizer: PreTrainedTokenizerFast, world: Facts, *turns: str) -> tuple[Episode, Question]:
    question = world.questions("train", 0, 0, 1)[0]
    return ScriptedEngine(tokenizer, lambda _: turns).rollout(world, [question], [4])[0], question


@pytest.mark.parametrize(
    ("turn", "action"),
    [
        (SEARCH, ("search", "alice rival")),
        ("<answer> alice </answer>", ("answer", "alice")),
        ("<search>alice</search>", ("search", "alice")),
        ("<answer> alice <search> boris rival </search>", ("search", "boris rival")),
        *(
            (turn, ("invalid", ""))
            for turn in ("<search> alice </answer>", "<answer> </answer>", "alice </search>", "")
        ),
    ],
)
def test_a_turn_is_read_by_its_tags(turn: str, action: tuple[str, str]) -> None:
    assert parse(turn) == action


def test_an_episode_alternates_turns_and_information(tokenizer: PreTrainedTokenizerFast) -> None:
    world = Facts(WorldSettings(noise=0.0, top_k=1))
    gold = world.questions("train", 0, 0, 1)[0].gold
    answer = f"<think> got {gold} done </think> <answer> {gold} </answer>"
    episode, question = play(tokenizer, world, SEARCH, answer)
    codec = Codec(tokenizer)
    information = f"<information> {world.search(question, 'alice rival', 1)} </information>"
    assert codec.decode(episode.tokens) == " ".join([question.text, SEARCH, information, answer])
    written = [t for t, w in zip(episode.tokens, episode.written, strict=True) if w]
    assert codec.decode(written) == f"{SEARCH} {answer}"
    assert episode.log_prob == [-1.0 if w else 0.0 for w in episode.written]
    assert episode.prompt_length == len(codec.encode(question.text))
    assert (episode.turn_status, episode.turns) == (["search", "answer"], 2)
    assert (episode.searches, episode.valid_turns, episode.written[-1]) == (1, 2, True)
    assert (episode.answer, episode.reward, episode.success, episode.ended) == (gold, 1.0, True, "answer")
    assert (episode.question_id, episode.group, episode.gold) == (question.id, 4, gold)


@pytest.mark.parametrize(
    "bad", ["<search> alice </search>", "alice </answer>", "<think> got <eos>", "<answer> </answer>"]
)
def test_a_malformed_turn_is_told_so_and_the_episode_goes_on(tokenizer, world, bad):
    episode, question = play(tokenizer, world, bad, "<answer> nobody </answer>")
    text = Codec(tokenizer).decode(episode.tokens)
    assert text == f"{question.text} {bad} <information> invalid </information> <answer> <unk> </answer>"
    assert (episode.turn_status, episode.valid_turns, episode.success) == (["invalid", "answer"], 1, False)


def test_a_turn_that_never_closes_is_cut_and_the_last_turn_gets_no_information(tokenizer, world):
    episode, _ = play(tokenizer, world, "who " * 20, "<answer> alice </answer>")
    assert episode.turn_status == ["invalid", "answer"]
    assert sum(episode.written) == world.max_turn_tokens + 3
    episode, _ = play(tokenizer, world, *[SEARCH] * 9)
    assert (episode.ended, episode.turns, episode.searches) == ("max_turns", 6, 6)
    assert (episode.answer, episode.reward, episode.written[-1]) == (None, 0.0, True)


def test_an_episode_that_is_broken_off_ends_with_what_the_policy_wrote(tokenizer, world):
    episode, question = play(tokenizer, world, SEARCH)
    assert episode.ended == "max_tokens"
    assert Codec(tokenizer).decode(episode.tokens) == f"{question.text} {SEARCH}"
    assert len(episode.tokens) == len(episode.written) == len(episode.log_prob)
    assert play(tokenizer, world)[0].tokens == Codec(tokenizer).encode(question.text)


def test_the_f1_reward_is_an_option_and_success_stays_exact(tokenizer: PreTrainedTokenizerFast) -> None:
    world = Facts(WorldSettings(reward="f1"))
    episode, _ = play(tokenizer, world, f"<answer> {world.questions('train', 0, 0, 1)[0].gold} who </answer>")
    assert (episode.reward, episode.success) == (pytest.approx(2 / 3), False)
