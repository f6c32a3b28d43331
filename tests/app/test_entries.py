from __future__ import annotations

from collections import Counter
from typing import Any

from workbench.app.entries import LEVELS, Entry, entries, search
from workbench.diagnostics import CATALOGUE
from workbench.diagnostics.declare import dictionary

COLUMNS = dictionary(CATALOGUE)
ROWS: list[dict[str, Any]] = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]


def asked(text: str) -> list[str]:
    return [e.name for e in search(entries(ROWS), text, lambda e: e.name, lambda e: e.text)]


def test_every_declared_column_is_in_exactly_one_entry() -> None:
    found = Counter((e.name, table) for e in entries(ROWS) for table in e.formulas)
    assert found == Counter((d.name, d.table) for d in CATALOGUE)


def test_every_alarm_is_told_with_its_table_and_its_reason() -> None:
    told = {(e.name, table): words for e in entries(ROWS) for table, words in e.alarms}
    assert set(told) == {(d.name, d.table) for d in CATALOGUE if d.alarm}
    assert all(d.alarm.reason in told[d.name, d.table] for d in CATALOGUE if d.alarm)


def test_tables_that_share_a_formula_are_named_together() -> None:
    kl = next(e for e in entries(ROWS) if e.name == "approx_kl")
    assert list(kl.formulas) == ["step", "minibatch", "turn_step", "turn", "trajectory"]
    assert [tables for tables, _ in kl.by_formula] == [["step", "minibatch", "turn", "trajectory"], ["turn_step"]]


def test_columns_of_one_name_that_mean_different_things_are_two_entries() -> None:
    both = [e for e in entries(ROWS) if e.name == "success"]
    assert [list(e.formulas) for e in both] == [["step"], ["trajectory"]]


def test_a_table_that_this_version_does_not_know_comes_last() -> None:
    rows = [{**ROWS[0], "name": "x", "table_name": table} for table in ("rollout", *LEVELS)]
    assert [table for e in entries(rows) for table in e.formulas] == [*LEVELS, "rollout"]


def test_the_name_itself_comes_first_then_names_like_it_then_mentions() -> None:
    assert asked("clip_frac")[0] == "clip_frac"
    assert asked("grad_norm")[:3] == ["grad_norm", "grad_norm_after", "grad_norm_max"]
    assert asked("dual clip").index("dual_clip_frac") < asked("dual clip").index("ratio_max")


def test_every_word_must_occur_whatever_its_case() -> None:
    assert asked("EFFECTIVE sample") == asked("sample effective")
    assert "ess_frac" in asked("EFFECTIVE sample")
    assert asked("effective nonsense") == []


def test_nothing_asked_is_everything_in_order() -> None:
    assert asked("  ") == [e.name for e in entries(ROWS)]


def test_an_entry_is_found_by_its_source_its_unit_and_its_alarm() -> None:
    one = Entry("x", "nats", "", "arXiv 2511.20718", {"step": "H"}, [("step", "above 3: too wide")])
    for text in ("2511.20718", "nats", "too wide", "step"):
        assert search([one], text, lambda e: e.name, lambda e: e.text) == [one]
