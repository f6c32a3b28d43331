from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.conftest import HOSTILE, Open, html
from tests.app.test_safe import read
from tests.store.fixture import Shape, write_dictionary, write_run
from workbench.algorithms import ALGORITHMS, differences
from workbench.app.safe import html_text
from workbench.diagnostics import CATALOGUE
from workbench.objective import KINDS
from workbench.spec import Diagnostic, Level, Unit
from workbench.store.sync import sync

SMALL = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=12)


def test_every_diagnostic_has_its_unit_definition_source_and_alarm(grid: Path, open_screen: Open) -> None:
    shown = html(open_screen("glossary", grid))
    for d in CATALOGUE:
        assert f">{d.name}</a>" in shown
        assert html_text(d.description) in shown
        assert d.alarm is None or html_text(d.alarm.reason) in shown
    assert '<a href="https://arxiv.org/abs/2504.20073" rel="noopener noreferrer" target="_blank">' in shown


def test_an_entry_has_an_address_that_opens_on_it(grid: Path, open_screen: Open) -> None:
    app = open_screen("glossary", grid, part="diagnostics", find="grad_norm")
    shown = html(app)
    assert shown.index('href="glossary?part=diagnostics&amp;find=grad_norm"') < shown.index("find=grad_norm_max")
    assert "find=entropy" not in shown
    assert app.text_input(key="find").value == "grad_norm"


def test_what_is_typed_is_in_the_address(grid: Path, open_screen: Open) -> None:
    app = open_screen("glossary", grid)
    assert "find" not in app.query_params
    app.text_input(key="find").set_value("critic value").run()
    assert app.query_params["find"] in ("critic value", ["critic value"])
    assert "value_error" in html(app)


def test_every_algorithm_shows_its_formula_its_slots_and_what_it_differs_in(grid: Path, open_screen: Open) -> None:
    app = open_screen("glossary", grid, part="algorithms")
    assert not app.exception
    assert [element.value for element in app.latex] == [f"$$\n{a.formula}\n$$" for a in ALGORITHMS.values()]
    shown = html(app)
    assert "Differs from grpo in ratio and stabilise." in shown
    assert shown.count('class="sorl-changed"') == sum(
        len(differences(ALGORITHMS[a.differs_from], a)) for a in ALGORITHMS.values() if a.differs_from
    )


def test_an_algorithm_is_found_by_its_other_name(grid: Path, open_screen: Open) -> None:
    app = open_screen("glossary", grid, part="algorithms", find="so-ppo")
    assert len(app.latex) == 2
    assert "ST-PPO (SO-PPO)" in html(app)
    assert "SO-PPO (a note" in html(app)


def test_every_kind_of_every_slot_is_explained(grid: Path, open_screen: Open) -> None:
    shown = html(open_screen("glossary", grid, part="slots"))
    for kind in (kind for kinds in KINDS.values() for kind in kinds):
        assert f"<code>{kind}</code>" in shown


def test_the_collapse_rule_is_spelled_out(grid: Path, open_screen: Open) -> None:
    app = open_screen("glossary", grid, part="collapse")
    assert any("**Onset.**" in element.value for element in app.markdown)


def test_nothing_found_is_said_and_the_parts_say_how_much_they_hold(grid: Path, open_screen: Open) -> None:
    app = open_screen("glossary", grid, find="zero_var")
    assert html_text("Nothing here holds 'zero_var'.") in html(app)
    assert app.get("button_group")[0].options[1:3] == ["Algorithms 0", "Slots 1"]


def test_a_database_without_runs_explains_everything(tmp_path: Path, open_screen: Open) -> None:
    sync(tmp_path)
    assert ">grad_norm</a>" in html(open_screen("glossary", tmp_path))
    app = open_screen("glossary", tmp_path, part="algorithms")
    assert len(app.latex) == len(ALGORITHMS)


@pytest.mark.parametrize("find", ["", " ".join(HOSTILE), "x" * 100_000], ids=["nothing", "hostile", "long"])
def test_hostile_searches_and_hostile_dictionaries_stay_text(tmp_path: Path, open_screen: Open, find: str) -> None:
    folder = write_run(tmp_path, "demo", "a", shape=SMALL)
    write_dictionary(
        folder, [Diagnostic(f"d{i}", Level.STEP, Unit.NONE, text, text, text) for i, text in enumerate(HOSTILE)]
    )
    sync(tmp_path)
    app = open_screen("glossary", tmp_path, find=find)
    assert not app.exception
    allowed = {"p", "span", "i", "b", "style", "div", "a", "sub", "sup"}
    for element in app.get("html"):
        if element.proto.unsafe_allow_javascript:  # completes the address
            assert element.proto.body.count("<") == len(("<script>", "</script>"))
        else:
            assert set(read(element.proto.body).tags) <= allowed
    if not find:
        assert all(html_text(text) in html(app) for text in HOSTILE)
