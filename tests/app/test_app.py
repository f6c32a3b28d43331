from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import Visit
from tests.store.processes import ROOT
from workbench.app.page import SCREENS, TITLES

CHOICE = "choose_many('arm', 'Arms', ['a', 'b', 'c'], ['a'])"


@pytest.mark.parametrize("file", ["app.py", "workbench/app/main.py"])
def test_the_app_opens_on_the_overview(file: str, grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORL_RUNS", str(grid))
    app = AppTest.from_file(str(ROOT / file), default_timeout=60).run()
    assert not app.exception
    assert app.selectbox(key="experiment").value == "demo"


@pytest.mark.parametrize("address", [None, "http://localhost", "http://localhost/overview", "http://localhost/compare"])
def test_the_overview_has_an_address_of_its_own_and_one_place_in_the_menu(address: str | None) -> None:
    script = (
        "import streamlit as st\nfrom workbench.app.main import menu\n"
        f"pages = menu({address!r})\nst.navigation(pages)\n"
        "st.session_state['pages'] = [(p.title, p.url_path, p.visibility) for p in pages]\n"
    )
    app = AppTest.from_string(script, default_timeout=60).run()
    assert not app.exception
    pages = app.session_state["pages"]
    shown = [(title, path) for title, path, visibility in pages if visibility == "visible"]
    assert [title for title, _ in shown] == [TITLES.get(name, name.capitalize()) for name in SCREENS]
    files = {file.stem for file in (ROOT / "workbench" / "app" / "screens").glob("*.py")} - {"__init__"}
    assert files == set(SCREENS), "a screen has a file of its own"
    assert shown[0][1] == ("overview" if (address or "").endswith("overview") else "")
    assert {path for _, path, _ in pages} >= {"", "overview"}


def test_a_choice_goes_along_to_the_next_screen(visit: Callable[[str], Visit]) -> None:
    # The browser asks for the next screen with the choices of this one where a look for new rows is asked for with it.
    app = visit(
        "import streamlit as st\nfrom workbench.app.url import begin, choose_many, finish\n"
        f"def one():\n    begin('one')\n    {CHOICE}\n    finish([])\n"
        f"def two():\n    begin('two')\n    {CHOICE}\n    finish([])\n"
        "pages = [st.Page(one), st.Page(two)]\n"
        "st.session_state['hashes'] = [page._script_hash for page in pages]\n"
        "st.navigation(pages).run()\n"
    )
    app.multiselect(key="arm").set_value(["c", "b"]).run()
    app._page_hash = app.session_state["hashes"][1]
    app.query_params.clear()
    app.run()
    assert app.multiselect(key="arm").value == ["c", "b"]
    assert app.query_params["arm"] == ["c", "b"]
    assert app.steps == 1, "the choice; the opening completes its address"


def test_no_screen_imports_torch() -> None:
    code = (
        "import sys\nfrom workbench.app.page import SCREENS, page\nimport workbench.app.main\n"
        "[page(name) for name in SCREENS]\nfrom workbench.analysis import compare\n"
        "print([name for name in ('torch', 'transformers', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
