"""docs/walk.md: at most twelve stops, each a file of the repository and five of its lines as they are."""

import re

import pytest

from docs.generate.tree import ROOT
from docs.generate.walk import LINES, STOPS, Stop, quoted_lines

PAGE = (ROOT / "docs" / "walk.md").read_text(encoding="utf-8")


def test_the_walk_has_at_most_twelve_stops_in_different_files() -> None:
    assert len(STOPS) <= 12
    assert len({stop.file for stop in STOPS}) == len(STOPS)
    assert len(re.findall(r"^## \d+\. ", PAGE, re.MULTILINE)) == len(STOPS)


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.file)
def test_a_stop_quotes_five_lines_of_its_file(stop: Stop) -> None:
    source = (ROOT / stop.file).read_text(encoding="utf-8")
    lines = quoted_lines(stop)
    assert len(lines) == LINES
    assert all(line.strip() in source for line in lines)
    assert "\n".join(lines) in PAGE


def test_a_stop_whose_line_is_gone_is_named() -> None:
    with pytest.raises(ValueError, match=r"workbench/batch.py has 0 lines that begin with 'never there'"):
        quoted_lines(Stop("workbench/batch.py", "never there", "", ""))


def test_the_walk_begins_with_a_question_and_ends_with_a_picture() -> None:
    assert STOPS[0].file.endswith(".toml")
    assert STOPS[-1].file.startswith("workbench/app/figures/")
