"""Text and tokens: vocabulary, codec, spans, and how episodes become a batch."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from workbench.agent.episode import Episode, collate
from workbench.agent.tokenizer import ENTITIES, RELATIONS, TAGS, VOCABULARY, Codec, Spans

TEXT = "who is the rival of anna ? <think> got boris done </think> <answer> boris </answer>"
KNOWN = TEXT.replace("anna", "clara")


def test_vocabulary_is_small_complete_and_numbered_in_its_order(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) < 100
    assert (len(ENTITIES), len(RELATIONS)) == (40, 10)
    assert set(TAGS) | set(ENTITIES) | set(RELATIONS) <= set(VOCABULARY)
    assert [tokenizer.get_vocab()[word] for word in VOCABULARY] == list(range(len(VOCABULARY)))


def test_saved_tokenizer_loads_through_auto_tokenizer_and_speaks_the_same(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(KNOWN).input_ids == tokenizer(KNOWN).input_ids
    assert (loaded.pad_token_id, loaded.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert loaded.decode(loaded(KNOWN).input_ids) == KNOWN
    assert tokenizer.decode([*tokenizer(KNOWN).input_ids, 1, 0, 0], skip_special_tokens=True) == KNOWN, "tags are kept"


def test_codec_agrees_with_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    codec = Codec(tokenizer)
    for text in (KNOWN, TEXT, "", f" {KNOWN}\n"):
        assert codec.encode(text) == tokenizer.encode(text, add_special_tokens=False)
    assert codec.decode(codec.encode(KNOWN)) == KNOWN
    assert codec.decode(codec.encode(TEXT)) == KNOWN.replace("clara", "<unk>")


def test_turns_end_at_a_closing_tag_or_at_any_bracket_where_tags_are_many_tokens(tokenizer, spelling):
    codec, other = Codec(tokenizer), Codec(spelling)
    assert (codec.exact, other.exact) == (True, False)
    assert sorted(codec.decode([i]) for i in codec.closers) == ["</answer>", "</search>", "<eos>"]
    assert {other.decode([i]) for i in other.closers} >= {">"}
    assert other.decode(other.encode("<search> x </search>")).endswith("</search>")


@pytest.mark.parametrize(
    ("text", "written", "spans"),
    [
        # Tags belong to their span, and what is between spans to none.
        ("<think> done </think> done <search> done done </search> done <answer> done </answer>", "1" * 12,
         [1, 1, 1, 0, 2, 2, 2, 2, 0, 3, 3, 3]),
        # A span ends with its turn, and observations are in none.
        ("<search> done done done <think> done", "110011", [2, 2, 0, 0, 1, 1]),
        ("<search> done <search> done done", "10011", [2, 0, 0, 0, 0]),  # the second tag is not its own
        # A malformed turn is read as far as it goes.
        ("<search> done </answer> done", "1111", [2, 2, 2, 0]),
        ("<think> done <search> done </search>", "11111", [1, 1, 2, 2, 2]),
        ("done </search> done", "111", [0, 0, 0]),
    ],
)  # fmt: skip
def test_spans_are_read_from_tags(tokenizer, text, written, spans):
    tokens, mask = torch.tensor([Codec(tokenizer).encode(text)]), torch.tensor([[c == "1" for c in written]])
    found = Spans(tokenizer).of(tokens, mask)
    assert found is not None
    assert found[0].tolist() == spans
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")))
    assert Spans(plain).of(tokens, mask) is None, "tags of several tokens have no spans"


def episode(tokens: list[int], written: list[int], prompt_length: int, reward: float, group: int) -> Episode:
    return Episode(
        question_id=0, group=group, tokens=tokens, written=[bool(w) for w in written],
        log_prob=[-0.5 * w for w in written], prompt_length=prompt_length, question="", gold="", answer=None,
        reward=reward, success=False, ended="answer", turns=0, searches=0, valid_turns=0,
    )  # fmt: skip


def test_collate_pads_on_the_right_and_aligns_everything_with_the_tokens() -> None:
    batch = collate(
        [episode([5, 6, 7, 8, 9], [0, 0, 1, 0, 1], 2, 1.0, 7), episode([5, 4, 3], [0, 1, 1], 1, 0.25, 8)], pad_id=2
    )
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
    assert (batch.tokens.dtype, batch.mask.dtype, batch.score.dtype) == (torch.int64, torch.bool, torch.float32)
