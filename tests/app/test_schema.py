from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.conftest import HOSTILE
from tests.app.test_safe import read
from workbench.app.data import Store
from workbench.app.schema import columns_html, hint
from workbench.diagnostics import CATALOGUE
from workbench.spec import TABLES, InputError
from workbench.store.reader import Reader
from workbench.store.schema import views


def mistake(runs: Path, question: str) -> str:
    with pytest.raises(InputError) as found:
        Reader(runs).rows(question)
    return str(found.value)


def test_every_table_and_view_is_listed_with_its_grain(grid: Path) -> None:
    found = Store(grid).query("tables").set_index("name")
    assert set(found.index) == {t.name for t in TABLES} | set(views())
    assert found.loc["turn", "grain"] == "One row per run, step, epoch, trajectory and turn: the turn ledger."


def test_every_column_has_its_definition_those_of_views_too(grid: Path) -> None:
    columns = Store(grid).query("columns").set_index(["table", "name"])
    for d in CATALOGUE:
        assert d.description in columns.loc[(d.table, d.name), "description"]
    assert "exp(mean delta" in columns.loc[("culprit", "ratio_geo"), "description"]


def test_a_column_of_another_table_is_told_with_its_tables(grid: Path) -> None:
    columns = Store(grid).query("columns")
    assert hint(mistake(grid, "SELECT grad_norm FROM step"), columns) == "grad_norm is a column of minibatch."
    for table in ("step.", "s."):
        told = hint(mistake(grid, f"SELECT {table}grad_norm FROM step {table[:-1]}"), columns)
        assert told == "grad_norm is a column of minibatch."


def test_a_column_that_nobody_has_is_told_with_those_named_nearly_so(grid: Path) -> None:
    told = hint(mistake(grid, "SELECT ratio_gio FROM run"), Store(grid).query("columns"))
    assert told.startswith("There is ratio_geo (")


def test_a_mistake_of_another_kind_has_no_hint(grid: Path) -> None:
    columns = Store(grid).query("columns")
    for question in ("SELECT FROM", "SELECT * FROM runn", "SELECT 'a'::INT", "SELECT zzzzzzzz FROM run"):
        assert hint(mistake(grid, question), columns) == ""


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_columns_stay_text(grid: Path, text: str) -> None:
    columns = Store(grid).query("columns").head(2).assign(name=text, description=text)
    assert set(read(columns_html(columns)).tags) <= {"div", "p", "b", "span", "br"}
