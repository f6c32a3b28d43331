from __future__ import annotations

from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.app.conftest import HOSTILE
from tests.app.test_safe import _Tags
from workbench.app.links import linked_html


class _Links(_Tags):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        self.hrefs += [value or "" for name, value in attrs if name == "href"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_run_is_a_parameter_of_its_link_and_a_literal_cell(text: str) -> None:
    found = _Links()
    found.feed(linked_html([(text, text)], [("episode?" + urlencode({"run": text}), [text, text])]))
    assert set(found.tags) <= {"div", "table", "tr", "th", "td", "a"}
    (href,) = found.hrefs
    parts = urlsplit(href)
    assert (parts.scheme, parts.netloc, parts.path) == ("", "", "episode")
    assert parse_qs(parts.query) == {"run": [text]}


@pytest.mark.parametrize("address", ["https://example.org", "javascript:alert(1)", "//example.org", "../x?run=1", ""])
def test_an_address_outside_the_app_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="no screen"):
        linked_html([("a", "")], [(address, ["1"])])
