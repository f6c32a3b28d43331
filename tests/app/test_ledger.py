from __future__ import annotations

import math
from typing import Any

import pytest

from tests.app.conftest import HOSTILE
from tests.app.test_safe import read
from workbench.app.diagnostics import Diagnostics
from workbench.app.ledger import ledger


def known(*names: str, **changes: str) -> Diagnostics:
    row = {"table_name": "turn", "unit": "ratio", "formula": "exp(mean delta)", "description": "A ratio."} | changes
    return Diagnostics({f"turn.{name}": row | {"name": name} for name in names})


def turns(**columns: list[Any]) -> list[dict[str, Any]]:
    size = len(next(iter(columns.values())))
    columns = {"gradient_share": [0.1] * size} | columns
    return [{"turn_index": i + 1} | {name: values[i] for name, values in columns.items()} for i in range(size)]


def test_null_is_a_dash_and_nan_is_nan() -> None:
    source = ledger(turns(ratio_geo=[None, math.nan, 0.5]), known("ratio_geo"))
    assert ">–<" in source
    assert 'sorl-broken">NaN<' in source
    assert ">0.5<" in source


def test_a_name_says_its_definition_and_its_unit() -> None:
    source = ledger(turns(ratio_geo=[1.0]), known("ratio_geo"))
    assert 'title="exp(mean delta) — A ratio."' in source
    assert '<span class="sorl-unit">ratio</span>' in source


@pytest.mark.parametrize(("shares", "worst"), [([0.1, 0.3, 0.2], 2), ([0.1, math.nan, 0.9], 2), ([None, 0.1, None], 2)])
def test_the_turn_with_most_of_the_gradient_stands_out(shares: list[float | None], worst: int) -> None:
    source = ledger(turns(gradient_share=shares), known("gradient_share"))
    assert f'<th class="sorl-worst">turn {worst}</th>' in source


def test_no_turn_stands_out_where_nothing_was_measured() -> None:
    assert "sorl-worst" not in ledger(turns(gradient_share=[None, None]), known("gradient_share"))


def test_a_column_that_these_rows_do_not_have_is_a_row_of_dashes() -> None:
    assert ledger(turns(ratio_geo=[1.0, 1.0]), known("mismatch")).count(">–<") == 2


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_statuses_and_definitions_stay_text(text: str) -> None:
    source = ledger(turns(status=[text]), known("status", unit=text, formula=text, description=text))
    assert set(read(source).tags) <= {"div", "table", "tr", "th", "td", "span"}
