"""The page on related work quotes figures of other pages; they must still stand there."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
QUOTED = {
    "results/early-warning.md": r"\d+ % \[\d+, \d+\]|745 runs",
    "findings.md": r"(?<=from )\.\d\d(?= to)|(?<=to )\.\d\d(?= in all)",
}


def test_every_quoted_figure_stands_on_the_page_that_is_linked():
    page = " ".join((DOCS / "related-work.md").read_text().split())
    page = page.replace("745 of our runs", "745 runs")
    for source, pattern in QUOTED.items():
        assert source in page
        figures = re.findall(pattern, page)
        assert len(figures) >= 2
        for figure in figures:
            assert figure in (DOCS / source).read_text(), f"{figure} is not in {source}"
