"""Every identity has its proof on the page: what it says, how it can be innocent, what to do."""

import re
from pathlib import Path

import pytest

from sorl.audit import IDENTITIES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "identities.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", IDENTITIES)
def test_an_identity_says_all_that_a_reader_needs(name: str) -> None:
    one = IDENTITIES[name]
    assert all((one.must, one.formula, one.means, one.innocent, one.change))
    for sentence in (one.innocent, one.change):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert all(len(part.split()) <= 30 for part in re.split(r"[.:] ", sentence))
    assert one.page == f"docs/identities.md#{name}"
    assert f"\n## {name}\n" in PAGE
    assert one.innocent in PAGE
    assert one.change in PAGE


def test_the_page_is_in_the_site_and_linked_from_the_audit() -> None:
    assert "docs/identities.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "](identities.md)" in (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
