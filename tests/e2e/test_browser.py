"""From the Overview to the token that did it, by clicking, in a real browser."""

import json
from collections.abc import Iterator
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from sorl.app.page import title
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.app.kinds import KEPT, KINDS, write_kinds
from tests.e2e import browser as web
from tests.store.fixture import write_grid

pytestmark = web.MARKS
PPO = 1  # its place among the arms: grpo, ppo, so-grpo, st-ppo


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    runs = tmp_path_factory.mktemp("browser")
    write_grid(runs)
    sync(runs)
    with web.served(runs) as url:
        yield url


@pytest.fixture
def page() -> Iterator[web.Page]:
    """A page on which no script, no request and nothing in the console fails."""
    with web.browser() as opened:
        found = web.new_page(opened)
        errors = web.complaints(found)
        yield found
        assert not errors


def query(page: web.Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_every_screen_opens_without_a_complaint_and_clicks_lead_to_the_culprit_token(address, page):
    for name in web.ENDS:
        web.visit(page, f"{address}/{name}", name)
        assert page.locator("[data-testid=stTopNavLink][aria-current=page]").inner_text() == title(name)
    web.visit(page, address, "overview")

    for kind in ("PNG", "SVG"):
        with page.expect_download() as saved:
            page.get_by_role("button", name=kind).click()
        assert saved.value.suggested_filename == f"sorl-demo-grid.{kind.lower()}"
        assert saved.value.path().stat().st_size > 5_000

    web.open_run(page, "ppo-s0-aaaa0000")
    assert query(page)["run"] == ["ppo-s0-aaaa0000"]
    assert "The fall began after step 15" in page.inner_text(".sorl-answer")

    marks = page.locator(".sorl-marks").first
    marks.focus()
    page.keyboard.press("End")
    for _ in range(20):
        if "alarm at step 12" in marks.inner_text():
            break
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(200)
    page.keyboard.press("Enter")
    web.settle(page, "episode", "**/episode?**step=12**")
    page.go_back()
    web.settle(page, "run", "**/run?**")

    web.go(page, "Compare", "compare")
    assert page.get_by_text("Each line is one run").or_(page.get_by_text("for each line")).is_visible()

    web.drag(page, "curves", 9.6, 20.3)
    web.settle(page, "compare", "**/compare?**range=10..20")

    web.go(page, "Collapse", "collapse")
    assert page.get_by_text("Survival: runs not yet collapsed").is_visible()

    web.go(page, "Turns", "turns")
    web.drag(page, "turns", 10.6, 16.4)  # of 10..20
    web.settle(page, "turns", "**/turns?**range=11..16**")
    web.click_cell(page, "turns", [PPO, 12 - 11, 3], opens="**/turns?**cell=ppo&cell=12&cell=3")
    page.get_by_text("ppo, turn 3, step 12:").wait_for()

    page.locator(".sorl-listing tr", has_text="kept").first.get_by_role("link").click()
    web.settle(page, "episode", "**/episode?**")
    # the one with the largest weight; arrow keys lead to the others
    page.locator(".sorl-token[tabindex='0']").focus()
    page.keyboard.press("Home")
    first = page.evaluate("document.activeElement.ariaLabel")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.ariaLabel") != first
    tip = page.evaluate("getComputedStyle(document.activeElement, '::after').content")
    assert "log-ratio" in tip
    assert "gradient weight" in tip

    page.go_back()
    web.settle(page, "turns", "**/turns?**")
    assert "cell" in query(page)


def test_a_dropped_log_is_diagnosed_and_filed_and_opens_in_run(address, page, tmp_path):
    log = tmp_path / "<b>theirs.jsonl"
    rows = []
    for step in range(60):
        is_down = step >= 40
        reward = 0.05 if is_down else 0.2 + 0.008 * step
        cut = 1.0 if is_down else 0.02
        rows.append({"step": step, "reward": reward, "completions/clipped_ratio": cut, "<i>x": 1.0})
    log.write_text("\n".join(map(json.dumps, rows)))
    web.visit(page, f"{address}/imports", "imports")
    page.locator("input[type=file]").set_input_files(log)
    page.get_by_text("Answers run into the token limit").first.wait_for()
    page.locator(".st-key-evidence .main-svg").first.wait_for()
    page.get_by_label("Experiment").fill("theirs")
    page.get_by_role("button", name="File this run").click()
    page.get_by_text("Filed 1 run in").wait_for()
    page.locator(".sorl-links a", has_text="theirs-").first.click()
    web.settle(page, "run", "**/run?experiment=theirs**")
    assert page.get_by_text("Answers run into the token limit").first.is_visible()


def test_every_opening_and_every_choice_is_one_step_back(address, page):
    def entries():
        page.wait_for_timeout(2_000)  # what is written late would be seen
        return int(page.evaluate("history.length"))

    def steps(deed, says):
        before = entries()
        deed()
        page.wait_for_url(lambda url: says in url)
        return entries() - before

    def back(screen, says=lambda _: True):
        page.go_back()
        page.wait_for_url(lambda url: says(parse_qs(urlsplit(url).query)))
        web.settle(page, screen)
        page.wait_for_timeout(2_000)
        assert says(query(page)), "the step back was undone"

    def more():
        page.get_by_role("button", name="More").click()

    def on_overview(said):
        return said["experiment"] == ["demo"] and not {"run", "arm"} & said.keys()

    for deed, says in (
        (lambda: page.goto(address), "/?experiment=demo"),
        (lambda: web.go(page, "Compare", "compare"), "/compare?experiment=demo&group=arm&arm="),
        (lambda: (more(), page.get_by_role("radio", name="single").click()), "seeds=single"),
        (lambda: web.drag(page, "curves", 9.6, 20.3), "range=10..20"),
        (lambda: web.go(page, "Overview", "overview"), "?experiment=demo"),
        (lambda: web.open_run(page, "ppo-s0-aaaa0000"), "/run?experiment=demo&run=ppo-s0"),
    ):
        assert steps(deed, says) == 1, says

    back("overview", on_overview)
    back("compare", lambda said: said["range"] == ["10..20"])
    back("compare", lambda said: "range" not in said and said["seeds"] == ["single"])
    more()
    assert page.locator(".st-key-range").inner_text().split()[:3] == ["Steps", "0", "29"]
    back("compare", lambda said: said["seeds"] == ["band"])
    back("overview", on_overview)

    web.visit(page, f"{address}/sql", "sql")
    before = entries()
    there = page.url
    page.locator(".st-key-saved input").click()
    page.get_by_role("option").nth(3).click()
    page.wait_for_url(lambda url: url != there)
    assert entries() - before == 1

    web.visit(page, f"{address}/glossary", "glossary")
    box = page.get_by_label("Search")
    assert steps(lambda: box.press_sequentially("clip", delay=300), "find=clip") == 0, "a letter is no step"


def test_a_large_answer_is_saved_whole(address, page, tmp_path):
    rows = 316_000
    query = urlencode({"sql": f"SELECT range AS n, range / 7 AS share FROM range({rows})"})
    with page.expect_websocket() as connection:
        web.visit(page, f"{address}/sql?{query}", "sql")
    with page.expect_download() as waited:
        page.get_by_role("button", name="CSV", exact=True).first.click()
    waited.value.save_as(tmp_path / "answer.csv")
    lines = (tmp_path / "answer.csv").read_text().splitlines()
    assert len(lines) == rows + 1
    assert lines[-1].startswith(f"{rows - 1},")
    # On a slow connection the browser comes for it later: after some looks for new rows, of several messages
    # each.
    for _ in range(30):
        connection.value.wait_for_event("framereceived")
    assert page.request.get(waited.value.url).status == 200


_CULPRIT = """
WITH place AS (SELECT * FROM token WHERE run_id = $run AND step = $step AND trajectory = $trajectory)
SELECT (SELECT arg_max(s.step, grad_norm_max) FROM step s JOIN run r USING (run_id)
        WHERE run_id = $run AND s.step BETWEEN onset_low AND onset_high) AS spike,
       (SELECT arg_max(trajectory, gradient_share) FROM trajectory
        WHERE run_id = $run AND step = $step) AS heaviest,
       (SELECT arg_max(epoch, gradient_share) FROM turn
        WHERE run_id = $run AND step = $step AND trajectory = $trajectory) AS epoch,
       worst_epoch, list_transform(worst_gradient_weight, lambda w: abs(coalesce(w, 0))) AS weights FROM place
"""


def test_two_clicks_lead_from_the_overview_to_the_token_with_most_of_the_gradient_of_every_kind_of_run(
    tmp_path, page
):
    write_kinds(tmp_path)
    ask = Reader(tmp_path)
    with web.served(tmp_path) as url:
        for name in KINDS:
            web.visit(page, url, "overview")
            web.open_run(page, name)  # the first click
            found = page.locator(".sorl-finding").get_by_role("link", name="episode", exact=True)
            if name == "imported":
                assert found.count() == 0, "a link leads to what was recorded"
                continue
            found.first.click()  # the second
            web.settle(page, "episode", "**/episode?**")
            said = query(page)
            run = said["run"][0]
            step = int(said["step"][0])
            trajectory = int(said["trajectory"][0])
            answer = ask.rows(_CULPRIT, {"run": run, "step": step, "trajectory": KEPT[name]})
            truth = dict(zip(answer.columns, answer.rows[0], strict=True))
            assert (run, trajectory) == (name, truth["heaviest"])
            assert step == (truth["spike"] if truth["spike"] is not None else step)
            if trajectory != KEPT[name]:  # its tokens were not kept, which is said with those that were
                assert page.get_by_text("its tokens were not kept").is_visible()
                continue
            assert (said["epoch"], truth["worst_epoch"]) == (["worst"], truth["epoch"])
            boxed = page.locator(".sorl-transcript .sorl-heaviest")
            assert boxed.count() == 1, name
            at = truth["weights"].index(max(truth["weights"]))
            assert f"token {at}, id" in (boxed.get_attribute("aria-label") or ""), name
            assert boxed.is_visible()
