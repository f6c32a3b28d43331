"""The README's figures: the regions of the shipped results, as the report draws them; part of `make screenshots`."""

from __future__ import annotations

import sys
import tempfile
from itertools import product
from pathlib import Path

from tests.e2e.browser import browser, chromium, window

RESULTS = Path("experiments/results")
REGIONS = ("region_sgd", "region_adamw")


def main(folder: Path) -> None:
    """Write `NAME-light.png` and `NAME-dark.png` of each region."""
    from workbench.analysis.results import read
    from workbench.cli.report import written

    with tempfile.TemporaryDirectory() as place, browser() as opened:
        page_file = Path(place) / "report.html"
        for name, theme in product(REGIONS, ("light", "dark")):
            page_file.write_text(written([read(RESULTS / f"{name}.parquet")], [], "html"), encoding="utf-8")
            with window(opened, dark=theme == "dark") as page:
                page.set_viewport_size({"width": 1280, "height": 900})
                page.goto(page_file.as_uri())
                page.locator(".drawing .main-svg").first.wait_for()
                page.locator(".drawing").first.screenshot(path=folder / f"{name}-{theme}.png")
                print(f"{folder}/{name}-{theme}.png", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.e2e.headline FOLDER")
    if chromium() is None:
        sys.exit("no chromium on this machine: apt-get install chromium, or name one in SORL_CHROMIUM")
    main(Path(sys.argv[1]))
