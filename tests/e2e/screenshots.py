"""Pictures of every screen and of the README's figures, light and dark, over the shipped example."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

from sorl.analysis.results import read
from sorl.cli.report import written
from sorl.store import example
from sorl.store.reader import Reader
from tests.e2e.browser import ENDS, NO_CHROMIUM, browser, chromium, new_page, served, settle

WIDTHS = (1280, 1920)
# Screen -> query of its address; without one a screen opens with a collapsed run where there is one.
VIEWS = dict.fromkeys(ENDS, "") | {
    "compare": "arm=ppo&arm=s-ppo&arm=st-ppo",
    "conversations": "words=need+rival",
    "glossary": "find=clip_bias",
}
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
# the place of the figure in the report
FIGURES = {"region_sgd": 0, "region_adamw": 0, "rise_and_fall/counted": 1}
FELL = "ppo-s0-7c0dfe63"  # of the example
VERL = {  # column -> metric
    "step": "step",
    "success": "critic/score/mean",
    "entropy": "actor/entropy",
    "clip_frac": "actor/pg_clipfrac",
    "approx_kl": "actor/ppo_kl",
    "grad_norm_max": "actor/grad_norm",
    "response_tokens": "response_length/mean",
}
_TALLEST = 4000  # pixels of a picture
_LARGE = 280_000  # bytes
_HEIGHT = "document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight"
# Plotly lays a figure out again a moment after its width has changed.
_FITS = """
() => [...document.querySelectorAll('.js-plotly-plot')].every(
  e => Math.abs(e.querySelector('.main-svg').getBoundingClientRect().width - e.clientWidth) < 2)
"""


def shoot(page: Page, screen: str, file: Path, width: int) -> None:
    """A picture of the whole screen, however tall it is; a large one keeps 256 colours."""
    page.set_viewport_size({"width": width, "height": 800})
    settle(page, screen)
    page.wait_for_function(_FITS)
    for _ in range(3):  # a table grows once it is in view
        height = page.evaluate(_HEIGHT)
        page.set_viewport_size({"width": width, "height": max(600, min(_TALLEST, height))})
        settle(page, screen)
        page.wait_for_function(_FITS)
    page.screenshot(path=file)
    with Image.open(file) as opened:
        picture = opened.convert("RGB")
    picture.save(file, optimize=True)
    if file.stat().st_size > _LARGE:
        picture.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(file, optimize=True)


def drop_log(page: Page, runs: Path, place: Path) -> None:
    """Drop a log on Import: a collapsed run of the example, under the names that verl gives its metrics."""
    columns = ", ".join(f'{ours} AS "{theirs}"' for ours, theirs in VERL.items())
    rows = Reader(runs).query(f"SELECT {columns} FROM step WHERE run_id = $run ORDER BY step", {"run": FELL})
    log = place / "verl.jsonl"
    rows.to_json(log, orient="records", lines=True)
    page.locator("input[type=file]").set_input_files(log)
    page.get_by_text("to copy").wait_for()


def example_with_regions(runs: Path) -> None:
    """Fill a runs folder with the shipped example, and with the results that the screen Region shows."""
    shutil.copytree(example.runs_folder(), runs, dirs_exist_ok=True)
    run_command(["--runs", str(runs), "sync", "--from", str(RESULTS / "region_sgd.parquet")])


def run_command(words: list[str]) -> None:
    """`sorl WORDS` in a process of its own."""
    subprocess.run([sys.executable, str(ROOT / "cli.py"), *words], check=True, stdout=subprocess.DEVNULL)


def main(runs: Path, folder: Path) -> None:
    """Write `SCREEN-THEME-WIDTH.png` for every screen, theme and width, and `RESULTS-THEME.png` of shipped
    results.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with served(runs) as address, browser() as opened, tempfile.TemporaryDirectory() as place:
        for theme in ("light", "dark"):
            page = new_page(opened, theme)
            for name, choices in VIEWS.items():
                page.goto(f"{address}/{'' if name == 'overview' else name}?{choices}")
                if name == "imports":
                    settle(page, name)
                    drop_log(page, runs, Path(place))
                for width in WIDTHS:
                    shoot(page, name, folder / f"{name}-{theme}-{width}.png", width)
                print(f"{folder}/{name}-{theme}-*.png", flush=True)
            page.set_viewport_size({"width": 1280, "height": 900})
            for name, nth in FIGURES.items():
                report = Path(place) / "report.html"
                report.write_text(written([read(RESULTS / f"{name}.parquet")], [], "html"), encoding="utf-8")
                page.goto(report.as_uri())
                drawing = page.locator(".drawing").nth(nth)
                drawing.scroll_into_view_if_needed()
                drawing.locator("svg:visible").first.wait_for()
                drawing.screenshot(path=folder / f"{name.partition('/')[0]}-{theme}.png")
                print(f"{folder}/{name}-{theme}.png", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.e2e.screenshots FOLDER")
    if chromium() is None:
        sys.exit(NO_CHROMIUM)
    with tempfile.TemporaryDirectory() as scratch:
        example_with_regions(Path(scratch))
        main(Path(scratch), Path(sys.argv[1]))
