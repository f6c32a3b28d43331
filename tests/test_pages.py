"""The pages that people read: short, with an example near the top, links that resolve, commands that run."""

import re
import shlex
from pathlib import Path

import pytest

from sorl.store import example
from tests.cli.command import done

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
ALL_PAGES = [*PAGES, *sorted((ROOT / "docs" / "results").glob("*.md"))]
MAX_WORDS = 1500  # written by hand: neither generated nor in a block of code
TWO_SCREENS = 60  # lines
GENERATED = re.compile(r"\]\]\] *-->.*?<!-- \[\[\[end\]\]\]", re.DOTALL)
COMMENT = re.compile(r"<!--.*?(-->|\Z)", re.DOTALL)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def written_by_hand(text: str) -> str:
    """A page without its generated blocks, comments and fenced code."""
    for part in (GENERATED, COMMENT, FENCE):
        text = part.sub("", text)
    return text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_at_most_1500_words_written_by_hand(page: Path) -> None:
    assert len(written_by_hand(page.read_text()).split()) <= MAX_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_first_example_comes_within_two_screens(page: Path) -> None:
    lines = page.read_text().splitlines()
    examples = [i for i, line in enumerate(lines) if line.startswith(("```", "    ", "| ", "- `", "!["))]
    assert not lines or examples[0] < TWO_SCREENS


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), target


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Markdown viewers make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {text.strip().replace(" ", "-") for text in words}


def test_the_readme_has_at_most_a_hundred_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def readme_commands() -> list[str]:
    """The commands of the README's indented blocks that read the example."""
    lines = re.findall(r"^    (sorl .+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    commands = [line.partition("#")[0].strip() for line in lines]
    return [
        line
        for line in commands
        if line.split()[1] in ("ls", "compare", "diagnose", "sql") and "LOG" not in line
    ]


@pytest.mark.parametrize("command", readme_commands())
def test_a_command_of_the_readme_runs_on_the_example(command: str) -> None:
    _, *words = shlex.split(command)
    assert done("--runs", str(example.runs_folder()), *words)
