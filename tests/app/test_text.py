import html
from functools import partial
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from sorl.app.page import address, anchor
from sorl.app.text import figure_text, html_text, markdown_text, number, table_html, tag, visible, wrapped
from sorl.app.url import between, some_of
from tests.app.conftest import HOSTILE, Read


@pytest.mark.parametrize("text", HOSTILE)
class TestHostileText:
    def test_html_shows_the_text_and_makes_no_element(self, text: str) -> None:
        parsed = Read(html_text(text))
        assert (parsed.tags, parsed.text) == ([], visible(text))
        parsed = Read(tag("p", text, tag("b", text), css=text, title=text))
        assert (parsed.tags, parsed.attributes) == (["p", "b"], {"class", "title"})
        assert parsed.text == 2 * visible(text)

    def test_a_figure_reads_no_tag_no_formula_and_no_placeholder(self, text: str) -> None:
        shown = figure_text(text)
        assert not set("<>$%{}") & set(shown)
        assert html.unescape(shown) == visible(text)

    def test_markdown_shows_the_text_and_no_markup(self, text: str) -> None:
        parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
        tokens = parser.parseInline(markdown_text(text))[0].children or []
        assert {token.type for token in tokens} <= {"text", "text_special"}
        assert "".join(token.content for token in tokens).replace("\u2060", "") == visible(text)
        bare = markdown_text(text).replace("\\", "")
        assert not [words for words in (":material", ":red[") if words in bare], "a shortcode of Streamlit"

    def test_a_run_is_a_parameter_of_its_link_and_a_literal_cell(self, text: str) -> None:
        found = Read(table_html([(text, text)], [[anchor(text, address("episode", run=text)), text]]))
        assert set(found.tags) <= {"div", "table", "tr", "th", "td", "a"}
        (href,) = found.values("href")
        assert urlsplit(href)[:3] == ("", "", "episode")
        assert parse_qs(urlsplit(href).query) == {"run": [text]}


@pytest.mark.parametrize(
    "where", ["https://example.org", "javascript:alert(1)", "//example.org", "../x?run=1", ""]
)
def test_an_address_outside_the_app_is_refused(where: str) -> None:
    for make in (address, partial(anchor, "a")):
        with pytest.raises(ValueError, match="no screen"):
            make(where)


@given(st.text(), st.integers(8, 60))
def test_a_wrapped_text_loses_no_word_and_exceeds_no_line(text: str, width: int) -> None:
    lines = wrapped(text, width).split("<br>")
    assert all(len(html.unescape(line)) <= width for line in lines)
    assert "".join(html.unescape("".join(lines)).split()) == "".join(visible(text).split())


def test_an_unknown_value_of_the_address_gives_the_default_and_a_note_that_quotes_it() -> None:
    assert some_of("x", ["tokens", "step"], ["step", "tokens"], ["step"], 1) == (["tokens"], ["x = 'step'"])
    assert some_of("x", ["tokenz"], ["step", "tokens"], ["step"], 1) == (["step"], ["x = 'tokenz'"])
    assert some_of("arm", ["ppo", "<b>", "ppo", "grpo"], ["grpo", "ppo"], []) == (
        ["ppo", "grpo"],
        ["arm = '<b>'"],
    )
    _, notes = some_of("arm", ["x" * 10_000] * 5_000, ["ppo"], ["ppo"])
    assert (len(notes), notes[3]) == (4, "4997 more values of arm")
    assert all(len(note) < 80 for note in notes)


def test_a_range_outside_or_upside_down_is_ignored_and_one_that_reaches_outside_is_cut() -> None:
    for text in ("9..3", "a..b", "", "5", "40..50", "-9..-3", "1..2..3", "9" * 9999 + "..1"):
        found, notes = between("range", [text], 0, 35)
        assert (found, len(notes)) == ((0, 35), 1), text
    assert between("range", ["-5..10"], 0, 35) == ((0, 10), [])


@given(st.integers(-1000, 1000), st.integers(0, 1000), st.lists(st.text(min_size=1), min_size=1, unique=True))
def test_a_range_and_arms_of_any_name_survive_the_way_through_an_address(
    first: int, length: int, arms: list[str]
):
    here = {"range": f"{first}..{first + length}", "arm": arms}
    read = parse_qs(
        urlencode(here, doseq=True, errors="surrogatepass"), errors="surrogatepass", max_num_fields=None
    )
    assert between("range", read["range"], -2000, 3000) == ((first, first + length), [])
    assert some_of("arm", read["arm"], arms, []) == (arms, [])


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, "–"), (1234, "1,234"), (-0.0, "0"), (-1e-9, "-1e-09"), (0.12345, "0.123"), (float("nan"), "NaN")],
)
def test_a_number_has_three_figures_and_zero_no_sign(value: float | None, written: str) -> None:
    assert number(value) == written
