"""The README's figure: the region of the shipped results, as the report draws it; part of `make screenshots`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.e2e.browser import browser, chromium, window

RESULTS = Path("experiments/results/region_sgd.parquet")


def main(folder: Path) -> None:
    """Write `region_sgd-light.png` and `region_sgd-dark.png`."""
    from workbench.cli.report import written
    from workbench.verdict.results import read

    with tempfile.TemporaryDirectory() as place, browser() as opened:
        page_file = Path(place) / "report.html"
        page_file.write_text(written([read(RESULTS)], [], "html"), encoding="utf-8")
        for theme in ("light", "dark"):
            with window(opened, dark=theme == "dark") as page:
                page.set_viewport_size({"width": 1280, "height": 900})
                page.goto(page_file.as_uri())
                page.locator(".drawing .main-svg").first.wait_for()
                page.locator(".drawing").first.screenshot(path=folder / f"region_sgd-{theme}.png")
                print(f"{folder}/region_sgd-{theme}.png", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.e2e.headline FOLDER")
    if chromium() is None:
        sys.exit("no chromium on this machine: apt-get install chromium, or name one in SORL_CHROMIUM")
    main(Path(sys.argv[1]))
