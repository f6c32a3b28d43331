"""Everything that a mouse can open or point at is reached, named and opened by keyboard; all text can be
read.
"""

import fcntl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sorl.spec.files import lock_file
from sorl.store.sync import sync
from tests.app.conftest import write_searched
from tests.e2e import browser as web
from tests.e2e.screenshots import VIEWS, drop_log
from tests.store.fixture import write_experiment, write_grid, write_segment, write_status

pytestmark = web.MARKS
# What has the focus: its name, and whether it was here before.
_FOCUSED = """
() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const ids = one.getAttribute('aria-labelledby')?.split(' ');
  const labels = ids?.map(id => document.getElementById(id)?.textContent);
  const words = [one.ariaLabel, ...labels ?? [], ...Array.from(one.labels ?? [], label => label.textContent),
    one.textContent, one.title, one.placeholder, one.querySelector?.('[aria-label], title')?.outerHTML];
  const seen = one.wasSeen ?? false;
  one.wasSeen = true;
  return { name: words.find(text => text?.trim()) ?? '', seen, html: one.outerHTML.slice(0, 200) };
}
"""
# What can be clicked or focused and is seen, but never had the focus. Of a group that arrow keys lead through
# one did.
_MISSED = """
() => [...document.querySelectorAll(
    '.stMainBlockContainer :is(a[href], button, input, textarea, [tabindex="0"])')]
  .filter(one => !one.wasSeen && one.checkVisibility({ opacityProperty: true, visibilityProperty: true })
    && !one.disabled && one.tabIndex >= 0 && one.role !== 'radio' && !one.closest('[aria-hidden="true"]'))
  .map(one => one.outerHTML.slice(0, 200))
"""
# Texts with too little contrast to their ground (4.5, of icons and swatches 3); texts of a figure on each
# other or cut.
_UNREADABLE = """
() => {
  const rgba = text => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a)];
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = parts => parts.map(v => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  const walker = document.createTreeWalker(document.querySelector('.stApp'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    const words = walker.currentNode.textContent.trim();
    const box = node.getBoundingClientRect();
    const drawn = node instanceof SVGElement;
    const own = getComputedStyle(node);
    const skipped = node.closest('script, style, title, [disabled], .katex-mathml, .sorl-marks, .hoverlayer');
    if (!words || skipped || !box.width || own.visibility === 'hidden') continue;
    const layers = [];
    let share = drawn ? +own.fillOpacity : 1;
    for (let up = node; up; up = up.parentElement) {
      share *= +getComputedStyle(up).opacity;
      const thumb = up.querySelector(':scope > [data-testid="stSliderThumbValue"]'); // stands above it
      if (!(up instanceof SVGElement) && !thumb) layers.unshift(rgba(getComputedStyle(up).backgroundColor));
    }
    const ink = rgba(drawn ? own.fill : own.color);
    const ground = layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
    const seen = over([...ink.slice(0, 3), ink[3] * share], ground);
    const [low, high] = [seen, ground].map(light).sort((a, b) => a - b);
    const least = words === '■' || node.dataset.testid === 'stIconMaterial' ? 3 : 4.5;
    const contrast = (high + 0.05) / (low + 0.05); // none at all: it is hidden until it is pointed at
    if (!node.closest('.textpoint') && contrast > 1.01 && contrast < least) {
      found.push(`${words.slice(0, 60)} has contrast ${contrast.toFixed(2)}`);
    }
  }
  for (const figure of document.querySelectorAll('.js-plotly-plot, .sorl-drawing')) {
    const frame = figure.getBoundingClientRect();
    const texts = [...figure.querySelectorAll('text:not(.hoverlayer *)')]
      .filter(text => text.textContent.trim())
      .map(text => [text.textContent.slice(0, 40), text.getBoundingClientRect()])
      .filter(([, box]) => box.width);
    texts.forEach(([words, a], i) => {
      if (a.left < frame.left - 1 || a.right > Math.max(frame.right, frame.left + figure.scrollWidth) + 1) {
        found.push(`${words} is cut`);
      }
      for (const [others, b] of texts.slice(i + 1)) {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 2 && tall > 4) found.push(`${words} lies on ${others}`);
      }
    });
  }
  const page = document.querySelector('[data-testid="stMain"]');
  if (page.scrollWidth > page.clientWidth) found.push('the page is wider than the screen');
  return found;
}
"""
# What is wrong with the signs of what scrolls sideways: a fade at the side where more is hidden, and words
# above. Of a table of Streamlit its frame has the fade.
_UNSIGNED = """
() => {
  const all = [...document.querySelectorAll('.stMainBlockContainer, .stMainBlockContainer :not(svg *)')];
  const told = all.filter(one => getComputedStyle(one, '::before').content.includes('Scroll sideways'));
  const faded = new Set(all.filter(one => getComputedStyle(one).maskImage.includes('gradient')));
  const wide = all.filter(one => one.scrollWidth - one.clientWidth > 1
    && ['auto', 'scroll'].includes(getComputedStyle(one).overflowX));
  const boxes = wide.map(one => one.closest('[data-testid="stDataFrameResizable"]') ?? one);
  const over = words => boxes.some(box => words.contains(box));
  const name = one => `${one.tagName} ${one.className} ${one.scrollWidth} in ${one.clientWidth}`;
  return [
    ...boxes.filter(one => !faded.has(one)).map(one => `no fade: ${name(one)}`),
    ...boxes.filter(one => !told.some(words => words.contains(one))).map(one => `no words: ${name(one)}`),
    ...[...faded].filter(one => !boxes.includes(one)).map(one => `a fade for nothing: ${name(one)}`),
    ...told.filter(one => !over(one)).map(one => `words for nothing: ${name(one)}`),
  ];
}
"""
_TOLD = """
window.told = [];
window.Notification = class { constructor(title, about) { window.told.push([title, about.body]); } };
window.Notification.permission = 'default';
window.Notification.requestPermission = async () => { window.Notification.permission = 'granted'; };
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with the grid of the other tests and a region."""
    folder = tmp_path_factory.mktemp("access")
    write_grid(folder)
    write_searched(folder)
    sync(folder)
    return folder


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with web.served(runs) as url:
        yield url


@pytest.fixture(scope="module")
def opened() -> Iterator[web.Browser]:
    with web.browser() as found:
        yield found


def place(address: str, screen: str, **more: str) -> str:
    experiment = "searched" if screen == "region" else "demo"
    return f"{address}/{screen}?experiment={experiment}" + "".join(
        f"&{key}={value}" for key, value in more.items()
    )


def visit_example(page: web.Page, address: str, screen: str, runs: Path) -> None:
    """Open a screen over the shipped example, with something to see on it."""
    path = "" if screen == "overview" else screen
    web.visit(page, f"{address}/{path}?{VIEWS[screen]}", screen)
    if screen == "imports":
        drop_log(page, runs, runs)
    page.wait_for_timeout(700)


def unsigned(page: web.Page) -> list[str]:
    """What is wrong with the signs of what scrolls; a figure that has just been drawn gets its sign soon."""
    for _ in range(40):
        page.wait_for_timeout(500)
        found = page.evaluate(_UNSIGNED)
        if not found:
            break
    return found


def violations(page: web.Page) -> list[str]:
    """What axe-core finds on a page that is serious or critical, with the element and what to mend."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'sorl[test]'")
    found = axe.Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    told = []
    for one in found:
        if one["impact"] in ("serious", "critical"):
            told += [f"{one['id']}: {node['html'][:200]}: {node['failureSummary']}" for node in one["nodes"]]
    return told


@pytest.mark.parametrize("screen", web.ENDS)
def test_tab_leads_to_everything_that_can_be_clicked_and_it_has_a_name(
    screen: str, address: str, opened: web.Browser
):
    page = web.new_page(opened)
    web.visit(page, place(address, screen), screen)
    cells = ("<canvas", '<td role="gridcell"')  # what has the focus in a table of Streamlit
    for _ in range(1_000):
        page.keyboard.press("Tab")
        found = page.evaluate(_FOCUSED)
        # Tab goes cell by cell there
        if found is None or (found["seen"] and not found["html"].startswith(cells)):
            break
        # its cells are read aloud from a table that comes with the focus
        if found["html"].startswith("<canvas"):
            page.locator("canvas [role=gridcell]").first.wait_for(state="attached")
        else:
            assert found["name"] or "dvn-scroller" in found["html"], f"no name: {found['html']}"
    assert page.evaluate(_MISSED) == []
    page.close()


def test_enter_opens_every_kind_of_mark(address: str, opened: web.Browser) -> None:
    page = web.new_page(opened)

    def on(figure: str, opens: str, key: str = "ArrowRight") -> str:
        """Go from mark to mark of a figure until Enter opens an address like this; return what is read aloud
        of it.
        """
        for _ in range(40):
            marks = page.locator(f".st-key-{figure} .sorl-marks")
            marks.focus()
            page.keyboard.press(key)
            read = (
                f"document.querySelector('.st-key-{figure} .sorl-marks [aria-live]')?.textContent.length > 5"
            )
            page.wait_for_function(read, timeout=20_000)  # it is read aloud
            page.wait_for_timeout(250)
            said = marks.locator("[aria-live]").inner_text()
            page.keyboard.press("Enter")
            with suppress(web.Late):  # a mark may open something else
                page.wait_for_url(lambda url: opens in url, timeout=15_000)
                return said
        raise AssertionError(f"no mark of {figure} opens {opens}: {page.url}")

    web.visit(page, place(address, "overview"), "overview")
    cell = page.locator(".st-key-grid a[data-key]").first
    cell.focus()
    assert "seed" in str(cell.get_attribute("aria-label"))
    page.keyboard.press("Enter")
    web.settle(page, "run", "**/run?**")

    web.visit(page, place(address, "overview"), "overview")
    page.locator("[data-testid=stDataFrame] canvas").first.focus()
    for key in ("ArrowDown", "Shift+Space"):
        page.keyboard.press(key)
    page.wait_for_url("**picked=**")
    page.get_by_role("link", name="Compare the curves of these runs").press("Enter")
    page.wait_for_url("**/compare?**runs=**")

    for screen, figure, opens in (
        ("run", "career", "/episode?"),
        ("turns", "turns", "cell="),
        ("episode", "peaks", "step="),
        ("episode", "ranking", "trajectory="),
        ("collapse", "timeline", "/episode?"),
        ("region", "region-0", "/compare?"),
    ):
        web.visit(page, place(address, screen), screen)
        on(figure, opens, "End" if screen == "run" else "ArrowRight")

    web.visit(page, place(address, "compare"), "compare")
    marks = page.locator(".st-key-curves .sorl-marks")
    marks.focus()
    page.keyboard.press("End")
    page.wait_for_timeout(250)
    assert "at" in marks.locator("[aria-live]").inner_text()
    entry = page.locator(".st-key-curves .legend .traces").first
    entry.focus()
    assert str(entry.get_attribute("aria-label")).startswith("Show ")
    page.keyboard.press("Enter")
    drawn = "document.querySelector('.st-key-curves .js-plotly-plot')._fullData"
    page.wait_for_function(f"{drawn}.some(trace => trace.visible === 'legendonly')")
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_contrast_and_none_is_cut_or_lies_on_another(
    theme: str, address: str, opened: web.Browser
):
    page = web.new_page(opened, theme)
    for screen in web.ENDS:
        web.visit(page, place(address, screen), screen)
        for width in (400, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 900})
            web.settle(page, screen)
            page.wait_for_timeout(700)
            assert page.evaluate(_UNREADABLE) == [], (screen, width)
    page.close()


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_serious_on_any_screen_whatever_is_opened_on_it(
    theme: str, width: int, example_address: str, example_runs: Path, opened: web.Browser
):
    page = web.new_page(opened, theme)
    page.set_viewport_size({"width": width, "height": 900})
    for screen in web.ENDS:
        visit_example(page, example_address, screen, example_runs)
        for summary in page.locator("summary").all():
            summary.click()
        page.get_by_role("button", name="More" if screen == "compare" else "Saved views", exact=True).click()
        page.wait_for_timeout(700)
        assert violations(page) == [], screen
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_scrolls_sideways_on_a_phone_says_so_and_nothing_else_does(
    theme: str, example_address: str, example_runs: Path, opened: web.Browser
):
    page = web.new_page(opened, theme)
    page.set_viewport_size({"width": 390, "height": 900})
    for screen in web.ENDS:
        visit_example(page, example_address, screen, example_runs)
        for summary in page.locator("summary").all():
            summary.click()
        page.wait_for_timeout(700)
        assert unsigned(page) == [], screen
    page.close()


def test_long_formulas_and_rollouts_side_by_side_say_that_they_scroll(
    example_address: str, opened: web.Browser
):
    page = web.new_page(opened)
    page.set_viewport_size({"width": 390, "height": 900})
    group = "episode?experiment=quickstart&run=grpo-s0-29291ae1&step=0&trajectory=16&view=group"
    for place, wide in (("glossary?part=algorithms", ".katex-display"), (group, ".sorl-columns-wide")):
        page.goto(f"{example_address}/{place}")
        page.locator(f"{wide}[data-sorl-more=right]").first.wait_for()
        assert unsigned(page) == [], place
    page.close()


def test_the_sign_goes_where_nothing_more_is_hidden(example_address: str, opened: web.Browser) -> None:
    page = web.new_page(opened)
    page.set_viewport_size({"width": 390, "height": 900})
    web.visit(page, f"{example_address}/collapse", "collapse")
    figure = page.locator(".st-key-survival > [data-sorl-more=right]")
    figure.evaluate("box => box.scrollBy(100, 0)")
    page.locator(".st-key-survival > [data-sorl-more='left right']").wait_for()
    moved = page.locator(".st-key-survival > [data-sorl-more]")
    moved.evaluate("box => box.scrollBy(9999, 0)")
    page.locator(".st-key-survival > [data-sorl-more=left]").wait_for()
    assert moved.get_attribute("tabindex") == "0"
    page.set_viewport_size({"width": 1280, "height": 900})
    moved.wait_for(state="detached")
    assert page.locator("[data-sorl-more]").count() == 0
    assert page.locator(".st-key-survival > [tabindex]").count() == 0
    page.close()


def test_a_browser_that_was_asked_tells_of_a_fall_that_begins_while_the_page_is_open(
    tmp_path: Path, opened: web.Browser
):
    folder = write_experiment(tmp_path, "demo") / "r1"

    def steps(first: int, curve: list[float]) -> None:
        several = list(range(first, first + len(curve)))
        write_segment(folder, "step", {"run_id": ["r1"] * len(curve), "step": several, "success": curve})

    steps(0, [0.6] * 8)
    write_status(folder, status="running", outcome=None, ended_at=None, collapse_step=None, peak_success=None)
    with lock_file(folder / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sync(tmp_path)
        with web.served(tmp_path) as url:
            page = web.new_page(opened)
            page.add_init_script(_TOLD)
            web.visit(page, url, "overview")
            button = page.get_by_role("button", name="Tell me in this browser when a run falls")
            button.press("Enter")
            button.wait_for(state="hidden")
            assert page.evaluate("window.told") == []
            steps(8, [0.1] * 4)
            page.wait_for_function("window.told.length")
            ((title, text),) = page.evaluate("window.told")
            page.close()
    assert title == "ppo, seed 0, of demo: falling"
    assert "below its best" in text
