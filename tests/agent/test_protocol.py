"""Text, tokens and turns: vocabulary, codec, spans, batches, and the dialogue that keeps to the protocol."""

from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sorl.agent.episode import Episode, collate
from sorl.agent.protocol import parse
from sorl.agent.tokenizer import VOCABULARY, Codec, Spans
from sorl.agent.worlds import Question
from sorl.agent.worlds.facts import Facts
from sorl.learn.checks import episode_of
from sorl.spec import WorldSettings
from tests.agent.fakes import ScriptedEngine

TEXT = "who is the rival of anna ? <think> got boris done </think> <answer> boris </answer>"
KNOWN = TEXT.replace("anna", "clara")


def test_saved_tokenizer_loads_through_auto_tokenizer_and_speaks_the_same(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(KNOWN).input_ids == tokenizer(KNOWN).input_ids
    assert [tokenizer.get_vocab()[word] for word in VOCABULARY] == list(range(len(VOCABULARY)))
    assert (
        (loaded.pad_token_id, loaded.eos_token_id)
        == (tokenizer.pad_token_id, tokenizer.eos_token_id)
        == (0, 1)
    )
    assert loaded.decode(loaded(KNOWN).input_ids) == KNOWN
    assert tokenizer.decode([*tokenizer(KNOWN).input_ids, 1, 0, 0], skip_special_tokens=True) == KNOWN, (
        "tags are kept"
    )


def test_codec_agrees_with_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    codec = Codec(tokenizer)
    for text in (KNOWN, TEXT, "", f" {KNOWN}\n"):
        assert codec.encode(text) == tokenizer.encode(text, add_special_tokens=False)
    assert codec.decode(codec.encode(KNOWN)) == KNOWN
    assert codec.decode(codec.encode(TEXT)) == KNOWN.replace("clara", "<unk>")


def test_turns_end_at_a_closing_tag_or_at_any_bracket_where_tags_are_many_tokens(tokenizer, spelling):
    codec = Codec(tokenizer)
    other = Codec(spelling)
    assert (codec.exact, other.exact) == (True, False)
    assert sorted(codec.decode([i]) for i in codec.closers) == ["</answer>", "</search>", "<eos>"]
    assert {other.decode([i]) for i in other.closers} >= {">"}
    assert other.decode(other.encode("<search> x </search>")).endswith("</search>")


@pytest.mark.parametrize(
    ("text", "written", "spans"),
    [
        # Tags belong to their span, and what is between spans to none.
        (
            "<think> done </think> done <search> done done </search> done <answer> done </answer>",
            "1" * 12,
            [1, 1, 1, 0, 2, 2, 2, 2, 0, 3, 3, 3],
        ),
        # A span ends with its turn, and observations are in none.
        ("<search> done done done <think> done", "110011", [2, 2, 0, 0, 1, 1]),
        ("<search> done <search> done done", "10011", [2, 0, 0, 0, 0]),  # the second tag is not its own
        # A malformed turn is read as far as it goes.
        ("<search> done </answer> done", "1111", [2, 2, 2, 0]),
        ("<think> done <search> done </search>", "11111", [1, 1, 2, 2, 2]),
        ("done </search> done", "111", [0, 0, 0]),
    ],
)
def test_spans_are_read_from_tags(tokenizer, text, written, spans):
    tokens = torch.tensor([Codec(tokenizer).encode(text)])
    mask = torch.tensor([[c == "1" for c in written]])
    found = Spans(tokenizer).of(tokens, mask)
    assert found is not None
    assert found[0].tolist() == spans
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")))
    assert Spans(plain).of(tokens, mask) is None, "tags of several tokens have no spans"


def test_collate_pads_on_the_right_and_aligns_everything_with_the_tokens() -> None:
    episodes = episode_of([[5, 6], [7], [8], [9]], 7, 1.0), episode_of([[5], [4, 3]], 8, 0.25)
    batch = collate([replace(e, log_prob=[-0.5 * w for w in e.written]) for e in episodes], pad_id=2)
    for name, expected in {
        "tokens": [[5, 6, 7, 8, 9], [5, 4, 3, 2, 2]],
        "mask": [[0, 0, 1, 0, 1], [0, 1, 1, 0, 0]],
        "response": [[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]],
        "turn": [[0, 0, 1, 0, 2], [0, 1, 1, 0, 0]],
        "log_prob_behaviour": [[0, 0, -0.5, 0, -0.5], [0, -0.5, -0.5, 0, 0]],
        "log_prob_old": [[0, 0, -0.5, 0, -0.5], [0, -0.5, -0.5, 0, 0]],
        "length": [5, 3],
        "group": [7, 8],
        "trajectory": [0, 1],
        "score": [1.0, 0.25],
    }.items():
        assert getattr(batch, name).tolist() == expected, name
    assert batch.log_prob_old.data_ptr() != batch.log_prob_behaviour.data_ptr()
    assert (batch.tokens.dtype, batch.mask.dtype, batch.score.dtype) == (
        torch.int64,
        torch.bool,
        torch.float32,
    )


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
        *[
            (turn, ("invalid", ""))
            for turn in ("<search> alice </answer>", "<answer> </answer>", "alice </search>", "")
        ],
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
    information = f"<information> {world.search(question, 'alice rival', 1).text} </information>"
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
