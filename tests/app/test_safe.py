from __future__ import annotations

import html
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.app.conftest import HOSTILE
from workbench.app.safe import figure_text, html_text, markdown_text, visible, wrapped


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def read(source: str) -> _Tags:
    parser = _Tags()
    parser.feed(source)
    parser.close()
    return parser


@pytest.mark.parametrize("text", HOSTILE)
def test_html_shows_the_text_and_makes_no_element(text: str) -> None:
    parsed = read(html_text(text))
    assert (parsed.tags, parsed.text) == ([], visible(text))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_figure_reads_no_tag_no_formula_and_no_placeholder(text: str) -> None:
    shown = figure_text(text)
    assert not set("<>$%{}") & set(shown)
    assert html.unescape(shown) == visible(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_the_text_and_no_markup(text: str) -> None:
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parseInline(markdown_text(text))[0].children
    assert {token.type for token in tokens or []} <= {"text", "text_special"}
    assert "".join(token.content for token in tokens or []).replace("\u2060", "") == visible(text)


def test_markdown_leaves_no_shortcode_for_streamlit_to_find() -> None:
    assert ":material" not in markdown_text(":material/home:").replace("\\", "")
    assert ":red[" not in markdown_text(":red[x]").replace("\\", "")


def test_control_and_direction_marks_become_visible() -> None:
    assert visible("a\x1b[31m\u202eb\nc\td") == "a\ufffd[31m\ufffdb\nc\td"


@given(st.text(), st.integers(8, 60))
def test_a_wrapped_text_loses_no_word_and_exceeds_no_line(text: str, width: int) -> None:
    lines = wrapped(text, width).split("<br>")
    assert all(len(html.unescape(line)) <= width for line in lines)
    assert "".join(html.unescape("".join(lines)).split()) == "".join(visible(text).split())
