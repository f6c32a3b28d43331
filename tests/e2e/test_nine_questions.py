"""Nine questions that a researcher asks of a collapsed grid, each answered by at most three clicks.

The answers are compared with SQL over the same runs: the shipped example, and a search over learning rates.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sorl.store.reader import Reader
from tests.e2e import browser as web
from tests.e2e.screenshots import FELL

pytestmark = web.MARKS
MOST_CLICKS = 3


class Visitor:
    """A page whose clicks are counted, beside the store that knows the answers."""

    def __init__(self, page: web.Page, address: str, runs: Path) -> None:
        self.page = page
        self.address = address
        self.store = Reader(runs)
        self.clicks = 0

    def start(self, experiment: str = "quickstart") -> None:
        """Open the first page."""
        web.visit(self.page, f"{self.address}/?experiment={experiment}", "overview")

    def click(self, locator: Any, screen: str = "") -> None:
        """Click once; where that opens a screen, until it is drawn whole."""
        self.clicks += 1
        locator.click()
        if screen:
            web.settle(self.page, screen)

    def open(self, words: str, screen: str) -> None:
        """Click a link."""
        self.click(self.page.get_by_role("link", name=words, exact=True).first, screen)

    def text(self, selector: str = '[data-testid="stMainBlockContainer"]') -> str:
        """Return the text of a part of the page, with single spaces."""
        return re.sub(r"\s+", " ", self.page.locator(selector).first.inner_text())

    def ask(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a question to the store."""
        return [tuple(row) for row in self.store.rows(sql, parameters or None).rows]


@pytest.fixture
def visitor(example_address: str, example_runs: Path) -> Iterator[Visitor]:
    """A visitor on the first page; nothing in the console fails, and no question takes a fourth click."""
    with web.browser() as opened:
        page = web.new_page(opened)
        errors = web.complaints(page)
        mine = Visitor(page, example_address, example_runs)
        mine.start()
        yield mine
        assert not errors
        assert mine.clicks <= MOST_CLICKS


def test_a_which_arm_collapsed_first_and_in_which_seeds(visitor: Visitor) -> None:
    asked = "SELECT arm, count(*), list(collapse_step ORDER BY collapse_step) FROM run"
    asked += " WHERE experiment = 'quickstart' AND collapse_step IS NOT NULL GROUP BY arm"
    ((arm, count, onsets),) = visitor.ask(asked)
    ((seeds,),) = visitor.ask(
        "SELECT count(*) FROM run WHERE experiment = 'quickstart' AND arm = $arm", arm=arm
    )
    steps = ", ".join(map(str, onsets))
    assert f"Collapsed: {arm} in {count} of {seeds} (onset at steps {steps})." in visitor.text()


def test_b_at_which_step_and_turn_the_ratio_left_one(visitor: Visitor) -> None:
    visitor.open("Turns", "turns")
    told = re.search(
        r"ppo seed 0: turn (\d+) first leaves its usual band at step (\d+), .*?, with (\S+)"
        r" \(usual: (\S+) to (\S+),",
        visitor.text(),
    )
    assert told
    turn = int(told[1])
    step = int(told[2])
    value, low, high = map(float, told.groups()[2:])
    asked = "SELECT ratio_geo FROM turn_step WHERE run_id = $run AND turn_index = $turn AND step = $step"
    ((recorded,),) = visitor.ask(asked, run=FELL, turn=turn, step=step)
    assert value == float(f"{recorded:.3g}")
    assert not low <= value <= high
    # No earlier turn of enough trajectories is outside that band by as much.
    earlier = "SELECT count(*) FROM turn_step WHERE run_id = $run AND step < $step AND turn_index = $turn"
    earlier += " AND abs(ln(ratio_geo)) >= abs(ln($value))"
    assert visitor.ask(earlier, run=FELL, step=step, turn=turn, value=value) == [(0,)]


def test_c_the_text_with_the_largest_gradient_weight(visitor: Visitor) -> None:
    visitor.open("trajectory 61", "episode")
    asked = "SELECT step FROM step WHERE run_id = $run AND step BETWEEN 11 AND 12"
    asked += " ORDER BY grad_norm_max DESC LIMIT 1"
    ((step,),) = visitor.ask(asked, run=FELL)
    most = "SELECT trajectory FROM trajectory WHERE run_id = $run AND step = $step"
    most += " ORDER BY gradient_share DESC LIMIT 1"
    assert visitor.ask(most, run=FELL, step=step) == [(61,)]
    weights = "SELECT unnest(token) AS text, unnest(worst_gradient_weight) AS weight FROM token"
    weights += " WHERE run_id = $run AND step = $step AND trajectory = 61"
    ((text,),) = visitor.ask(
        f"SELECT text FROM ({weights}) ORDER BY abs(weight) DESC LIMIT 1", run=FELL, step=step
    )
    assert visitor.text(".sorl-token.sorl-heaviest") == text.strip()


def test_d_in_which_settings_two_runs_differ(visitor: Visitor) -> None:
    visitor.open("Compare", "compare")
    table = visitor.text('[data-testid="stMainBlockContainer"]').split("What differs", 1)[1]
    ratio = {"ppo": "token", "turn-ppo": "turn"}
    for arm, level in ratio.items():
        assert re.search(rf"{arm} yes gae {level} none 4 16", table), table[:400]


def test_e_what_another_algorithm_would_do_with_this_batch(visitor: Visitor) -> None:
    visitor.open("trajectory 61", "episode")
    visitor.click(visitor.page.get_by_role("link", name="Replay this batch with other algorithms"), "replay")
    visitor.page.get_by_text("effective samples").first.wait_for()
    text = visitor.text()
    for algorithm in ("turn-ppo", "s-ppo", "st-ppo"):
        assert algorithm in text


def test_f_runs_grouped_by_their_learning_rate(visitor: Visitor) -> None:
    visitor.start("region_sgd")
    visitor.open("Compare", "compare")
    visitor.click(visitor.page.get_by_label("Group by").first)
    visitor.click(visitor.page.get_by_role("option", name="learn.policy.lr", exact=True))
    visitor.page.wait_for_url("**group=learn.policy.lr**")
    web.settle(visitor.page, "compare")
    rates = {float(rate) for rate in re.findall(r"learn\.policy\.lr = (\d[\d.]*\d)", visitor.text())}
    asked = "SELECT DISTINCT CAST(json_extract(config, '$.learn.policy.lr') AS DOUBLE) FROM run"
    known = {row[0] for row in visitor.ask(f"{asked} WHERE experiment = 'region_sgd'")}
    assert rates == known


@pytest.mark.parametrize("kind", ["PNG", "SVG", "CSV"])
def test_g_a_figure_as_a_file(visitor: Visitor, kind: str) -> None:
    with visitor.page.expect_download() as saved:
        visitor.click(visitor.page.get_by_role("button", name=kind, exact=True).first)
    assert saved.value.suggested_filename.endswith(f".{kind.lower()}")
    assert saved.value.path().stat().st_size > 100


def test_h_a_link_opens_the_same_view_in_another_browser(visitor: Visitor) -> None:
    visitor.open("Turns", "turns")
    visitor.click(visitor.page.get_by_text("extreme", exact=True))
    web.settle(visitor.page, "turns")
    visitor.page.wait_for_url("**extreme**")
    said = visitor.text(".sorl-answer")
    opened = visitor.page.context.browser
    assert opened is not None
    other = web.new_page(opened)  # in a context of its own
    web.visit(other, visitor.page.url, "turns")
    assert re.sub(r"\s+", " ", other.locator(".sorl-answer").first.inner_text()) == said
    assert other.get_by_role("radio", name="extreme").is_checked()


def test_i_sql_over_the_runs_with_a_plot(visitor: Visitor) -> None:
    visitor.open("SQL", "sql")
    query = f"SELECT step, success FROM step WHERE run_id = '{FELL}' ORDER BY step"
    box = visitor.page.locator("textarea").first
    box.fill(query)
    box.press("Control+Enter")
    visitor.page.wait_for_function("() => document.querySelector('.js-plotly-plot .main-svg')")
    drawn = visitor.page.evaluate(
        "() => document.querySelector('.js-plotly-plot')._fullData.map(trace => trace.x.length)"
    )
    ((steps,),) = visitor.ask("SELECT count(*) FROM step WHERE run_id = $run", run=FELL)
    assert steps in drawn
