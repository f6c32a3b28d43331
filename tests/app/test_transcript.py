from __future__ import annotations

import html
import math
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.conftest import HOSTILE
from workbench.app.safe import visible
from workbench.app.theme import DARK, LIGHT
from workbench.app.tint import tint
from workbench.app.transcript import LONGEST, MOST, legend, pieces, tooltip, transcript

WORST = (
    *HOSTILE, "\u202egnp.exe", "\u2066a\u2069", "a\x00b\x1b[2J", "W" * 450, "<" * 400, "</span></div><h1>x</h1>",
    '" onmouseover="alert(1)', "' style='position:fixed", "```sh\nrm -rf\n```", "\\(x\\) \\begin{x}",
    "[a](javascript:x)", "e\u0301" * 50, "שלום", "&quot;", "]]>", "<!-- x", "\u2028", "{{7*7}}", "\ufeff",
)  # fmt: skip


def episode(written: list[str], *, prompt: tuple[str, ...] = ("who", "?"), **changes: Any) -> dict[str, Any]:
    """A row of table `token`: a prompt, then one turn with these tokens."""
    tokens = [*prompt, *written]
    mask = [False] * len(prompt) + [True] * len(written)
    size = len(tokens)
    row: dict[str, Any] = {
        "token": tokens, "token_id": list(range(size)), "trained": mask, "turn_index": [int(m) for m in mask],
        **{name: [0.1 if m else None for m in mask] for name in (
            "log_prob_behaviour", "log_prob_old", "log_prob", "log_ratio", "entropy", "advantage", "value",
            "gradient_weight",
        )},
        "clipped": [False] * size,
    }  # fmt: skip
    return row | changes


def turn(index: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "turn_index": index,
        "status": "search",
        "ratio_geo": 0.5,
        "log_ratio_sum": -2.0,
        "gradient_share": 0.1,
        "epoch": 2,
    } | changes


class _Page(HTMLParser):
    """What a browser makes of it: the elements, their attributes, and the text by class of its innermost element."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.tips: list[str] = []
        self.stack: list[str] = []
        self.texts: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.attributes |= set(given)
        self.stack.append(given.get("class") or tag)
        if "data-tip" in given:
            self.tips.append(given["data-tip"] or "")

    def handle_endtag(self, tag: str) -> None:
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append((self.stack[-1] if self.stack else "", data))


def page(source: str) -> _Page:
    found = _Page()
    found.feed(source)
    found.close()
    assert found.stack == []
    return found


def show(row: dict[str, Any], *turns: dict[str, Any]) -> _Page:
    return page(transcript(row, turns or [turn()], LIGHT))


@pytest.mark.parametrize("text", WORST)
def test_hostile_tokens_are_shown_literally_wherever_they_stand(text: str) -> None:
    row = episode([text, "x", text], prompt=(text, "?"))
    found = show(row, turn(status=text))
    assert set(found.tags) <= {"div", "span", "b", "p"}
    assert found.attributes <= {"class", "style", "data-tip"}
    said = "".join(data for _, data in found.texts).replace("↵\n", "\n")
    assert said.count(visible(text).strip(" ")) >= 3


@given(st.lists(st.text(), min_size=1, max_size=8))
def test_every_trained_token_is_one_element_with_its_text(written: list[str]) -> None:
    found = show(episode(written, prompt=("Ġ",)))
    assert len(found.tips) == len(written)
    assert set(found.tags) <= {"div", "span", "b", "p"}


def test_what_was_only_read_is_apart_and_has_no_tint_and_no_numbers() -> None:
    row = episode(["<search>", "x", "</search>", "<information>", "y", "</information>"])
    row["trained"] = [False, False, True, True, True, False, False, False]
    row["turn_index"] = [0, 0, 1, 1, 1, 0, 0, 0]
    source = transcript(row, [turn()], LIGHT)
    parts = source.split('<div class="sorl-part ')[1:]
    assert [part.split('"')[0] for part in parts] == ["sorl-read", "sorl-written", "sorl-read"]
    assert all("not trained on" in part and "data-tip" not in part for part in (parts[0], parts[2]))
    assert "information" in parts[2]


def kinds(row: dict[str, Any]) -> list[tuple[str, int, str]]:
    texts = [f" {token}" for token in row["token"]]
    return [
        (piece.kind, piece.turn, "".join(texts[piece.first : piece.end]).strip())
        for piece in pieces(texts, row["trained"], row["turn_index"])
    ]


def test_a_turn_is_split_into_thinking_searching_and_answering() -> None:
    row = episode(["<think>", "a", "b", "</think>", "<search>", "c", "</search>", "d", "<answer>", "e", "</answer>"])
    assert kinds(row) == [
        ("prompt", 0, "who ?"), ("think", 1, "<think> a b </think>"), ("search", 1, "<search> c </search>"),
        ("text", 1, "d"), ("answer", 1, "<answer> e </answer>"),
    ]  # fmt: skip


def test_a_tag_that_is_cut_into_tokens_still_begins_its_part() -> None:
    texts = ["a", " <", "sea", "rch", ">", "x", "</", "search", ">", " b"]
    found = pieces(texts, [True] * 10, [1] * 10)
    assert [(p.kind, "".join(texts[p.first : p.end])) for p in found] == [
        ("text", "a"), ("search", " <search>x</search>"), ("text", " b"),
    ]  # fmt: skip


def test_a_part_that_is_never_closed_ends_with_its_turn_or_with_the_next_tag() -> None:
    assert kinds(episode(["<think>", "a", "</search>"]))[1:] == [("think", 1, "<think> a </search>")]
    assert kinds(episode(["<think>", "a", "<answer>", "b"]))[1:] == [
        ("think", 1, "<think> a"),
        ("answer", 1, "<answer> b"),
    ]


def test_information_that_the_policy_made_up_is_told_from_what_it_was_given() -> None:
    source = transcript(episode(["<information>", "lie", "</information>"]), [turn()], LIGHT)
    assert "information, made up" in source
    assert source.count("not trained on") == 1


def test_a_token_has_the_tint_of_its_log_ratio_and_keeps_its_numbers_ready() -> None:
    row = episode(["a", "b"])
    row["log_ratio"] = [None, None, -8.405, 0.0]
    row["clipped"] = [False, False, True, False]
    source = transcript(row, [turn()], LIGHT)
    ground, ink = tint(-8.405, LIGHT)
    first, second = source.split('<span class="sorl-token')[1:]
    assert f"background:{ground};color:{ink}" in first
    assert first.startswith(" sorl-clipped")
    assert "style" not in second.split(">")[0]
    for words in ("log-ratio -8.4 nats, ratio 0.000224", "log-prob new 0.1, old 0.1, behaviour 0.1", "clipped: yes"):
        assert words in html.unescape(first)


def test_the_token_with_the_largest_gradient_is_marked_once() -> None:
    row = episode(["a", "b", "c"])
    row["gradient_weight"] = [None, 9.0, 0.1, -0.5, 0.2]  # of a prompt in the log of another trainer
    tokens = transcript(row, [turn()], LIGHT).split('<span class="sorl-token')[1:]
    assert ["sorl-heaviest" in token for token in tokens] == [False, True, False]


def test_nan_is_marked_and_null_is_a_dash() -> None:
    row = episode(["a", "b"])
    row["log_ratio"] = [None, None, math.nan, None]
    tokens = transcript(row, [turn()], LIGHT).split('<span class="sorl-token')[1:]
    assert ["sorl-broken" in token for token in tokens] == [True, False]
    assert "log-ratio NaN nats, ratio NaN" in tokens[0]
    assert "log-ratio – nats, ratio –" in tokens[1]


def test_an_episode_that_no_update_trained_on_is_shown_without_numbers() -> None:
    row = {"token": ["a", "b"], "token_id": [1, 2], "trained": None, "turn_index": None, "log_ratio": None}
    found = show(row)
    assert not found.tips
    assert "not trained on" in "".join(text for _, text in found.texts)


def test_tokens_without_texts_keep_their_place_and_their_ids() -> None:
    row = episode(["a", "b"], token=None)
    assert "◊" in transcript(row, [turn()], LIGHT)
    assert "id 3" in "\n".join(tooltip(3, row))


def test_the_heading_of_a_turn_says_what_it_did_and_how_far_it_moved() -> None:
    source = html.unescape(transcript(episode(["a"]), [turn(status="invalid", gradient_share=None)], LIGHT))
    for words in (
        "<b>Turn 1</b>",
        "invalid",
        "ratio 0.5",
        "sum of log-ratios -2 nats",
        "– of its update's gradient in epoch 2",
    ):
        assert words in source


def test_an_endless_episode_is_cut_and_says_so() -> None:
    source = transcript(episode(["a"] * (MOST + 500), prompt=()), [turn()], LIGHT)
    assert f"The first {MOST:,} of {MOST + 500:,} tokens." in source
    assert source.count("data-tip") == MOST


def test_lists_that_are_too_short_break_nothing() -> None:
    row = episode(["a", "b", "c"], trained=[False, False, True], turn_index=[0], log_ratio=[], clipped=[True])
    assert "sorl-token" in transcript(row, [], LIGHT)


def test_line_breaks_are_seen() -> None:
    assert "a↵\n" in transcript(episode(["a\n", "b"]), [turn()], LIGHT)


def test_the_legend_names_its_ends_and_its_marks() -> None:
    for palette in (LIGHT, DARK):
        said = "".join(text for _, text in page(legend(palette)).texts)
        for words in (
            "tokens in the last epoch: log-ratio (nats)",
            "≤ -10",
            "≥ 10",
            "clipped",
            "largest gradient",
            "NaN or Inf",
        ):
            assert words in said
        assert palette.diverging[0] in legend(palette)


def test_a_token_that_no_vocabulary_has_is_cut_and_says_so() -> None:
    source = transcript(episode(["W" * 20_000]), [turn()], LIGHT)
    assert len(source) < 5_000
    assert f"… and {20_000 - LONGEST:,} characters" in source
