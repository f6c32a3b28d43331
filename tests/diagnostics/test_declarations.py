"""The catalogue: complete, unique, importable without torch, and rendered into the docs."""

import subprocess
import sys

import pytest

from docs.render import diagnostics as page
from workbench.diagnostics import CATALOGUE
from workbench.diagnostics.collapse import COLLAPSE_REASONS
from workbench.diagnostics.declare import diagnostic, dictionary
from workbench.diagnostics.rules import HARD
from workbench.spec import CollapseSettings, Level, Unit, table

PROMISED = {
    "step": "success reward entropy approx_kl explained_variance valid_action_frac",
    "minibatch": "grad_norm clip_frac out_of_range_frac clip_bias_norm ratio_max ess_frac",
    "turn": "n_tokens ratio_geo ratio_arith log_ratio_sum ratio_max clip_frac approx_kl entropy advantage",
}


@pytest.mark.parametrize(("name", "column"), [(t, c) for t, names in PROMISED.items() for c in names.split()])
def test_promised_columns_exist(name, column):
    assert (name, column) in {(d.table, d.name) for d in CATALOGUE}


def test_no_column_is_declared_twice_or_shadows_an_identity_column():
    columns = [(d.table, d.name) for d in CATALOGUE]
    assert len(set(columns)) == len(columns)
    for name in {d.table for d in CATALOGUE}:
        identity = {c.name for c in table(name).columns}
        assert not identity & {d.name for d in CATALOGUE if d.table == name}


def test_every_diagnostic_says_what_it_is():
    for d in CATALOGUE:
        assert len(d.description) > 10, d.name
        assert d.formula, d.name
        assert d.source, d.name
        assert d.description.rstrip().endswith("."), d.name


def test_what_has_no_alarm_says_why_and_what_has_one_does_not():
    for d in CATALOGUE:
        assert (d.alarm is None) == bool(d.no_alarm), d.name
        assert d.no_alarm in page(), d.name
        assert d.alarm is None or d.level is Level.STEP, d.name  # only rows of table step are watched


def test_fractions_are_named_so_and_nothing_else_is():
    for d in CATALOGUE:
        if d.name.endswith("_frac"):
            assert d.unit is Unit.FRACTION, d.name


def test_a_diagnostic_without_a_docstring_or_a_word_about_its_alarm_is_refused():
    with pytest.raises(TypeError, match="docstring"):
        list(diagnostic(Level.UPDATE, Unit.NONE, "x", "test")(lambda v: None).diagnostics())

    def described(v):
        """It is described."""

    with pytest.raises(TypeError, match="alarm"):
        list(diagnostic(Level.STEP, Unit.NONE, "x", "test")(described).diagnostics())
    (entry,) = diagnostic(Level.STEP, Unit.NONE, "x", "test", no_alarm="no mark")(described).diagnostics()
    assert entry.no_alarm == "no mark"


def test_the_catalogue_and_the_page_need_no_torch():
    code = (
        "import sys, workbench.diagnostics, docs.render as r, workbench.diagnostics.collapse;"
        "r.diagnostics(); sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_page_names_every_column_setting_and_hard_event():
    text = page()
    for d in CATALOGUE:
        assert f"| `{d.name}` |" in text
    for rule in HARD:
        assert f"`{rule.kind}`" in text
    assert set(COLLAPSE_REASONS) == set(CollapseSettings.model_fields)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.replace(r"\|", "").count("|") in (3, 4, 5, 6) for line in rows)


def test_the_dictionary_has_the_columns_of_its_table():
    rows = dictionary(CATALOGUE)
    assert set(rows) == {c.name for c in table("diagnostic").columns}
    assert {len(v) for v in rows.values()} == {len(CATALOGUE)}
    alarm = dict(zip(rows["name"], rows["alarm"], strict=True))
    assert alarm["grad_norm_max"].startswith("warning when above 10 x the median")


def test_the_dictionary_has_alarms_as_numbers_too():
    rows = dictionary(CATALOGUE)
    by_name = {
        key: (when, value, points)
        for key, when, value, points in zip(
            zip(rows["name"], rows["level"], strict=True), rows["alarm_when"], rows["alarm_value"],
            rows["alarm_baseline_points"], strict=True,
        )
    }  # fmt: skip
    assert by_name["grad_norm_max", "step"] == ("above", 10.0, 10)
    assert by_name["ess_frac_min", "step"] == ("below", 0.3, None)
    assert by_name["success", "step"] == (None, None, None)
