"""The catalogue: complete, unique, importable without torch, and rendered into the docs."""

import subprocess
import sys

import pytest

from docs.generate.render import diagnostics as page
from sorl.collapse.describe import COLLAPSE_REASONS, describe_rule
from sorl.collapse.events import COMBINED, HARD
from sorl.measures import CATALOGUE
from sorl.measures.declare import diagnostic, dictionary
from sorl.spec import OUTCOMES, CollapseSettings, Level, Unit, table

PROMISED = {
    "step": "success reward entropy approx_kl explained_variance valid_action_frac",
    "minibatch": "grad_norm clip_frac out_of_range_frac clip_bias_norm ratio_max ess_frac",
    "turn": "n_tokens ratio_geo ratio_arith log_ratio_sum ratio_max clip_frac approx_kl entropy advantage",
}
NULLABLE = {  # without a critic, a correction, a trigger, a noise scale or a direction of the bias
    "minibatch": (
        "value_loss critic_grad_norm value_mae_out_of_range value_bias explained_variance value_mae "
        "vf_clip_frac corrected_frac corrected_positive_frac corrected_negative_frac correction_mean "
        "correction_scale correction_masked_frac correction_ess_frac "
        "stabiliser_ratio stabiliser_factor noise_scale clip_bias_cosine"
    ),
    "step": (
        "explained_variance corrected_frac correction_scale correction_masked_frac correction_ess_frac "
        "stabiliser_factor"
    ),
    "trajectory": "correction_mean",
    "turn": "value value_error correction_mean",
    "turn_step": "value value_error value_mae explained_variance correction_mean",
}


def test_promised_columns_exist_once_shadow_no_identity_column_and_say_where_they_can_be_null():
    said = {(d.table, d.name): d.description for d in CATALOGUE}
    assert len(said) == len(CATALOGUE)
    assert {(t, c) for t, names in PROMISED.items() for c in names.split()} <= set(said)
    assert not {(d.table, c.name) for d in CATALOGUE for c in table(d.table).columns} & set(said)
    assert all("NULL" in said[table, name] for table, names in NULLABLE.items() for name in names.split())


def test_every_diagnostic_says_what_it_is_and_why_it_has_no_alarm():
    text = page()
    for d in CATALOGUE:
        assert f"| `{d.name}` |" in text
        assert all((d.formula, d.source, len(d.description) > 10, d.description.endswith("."))), d.name
        assert (d.alarm is None) == bool(d.no_alarm), d.name
        assert d.no_alarm in text, d.name
        assert d.alarm is None or d.level is Level.STEP, d.name  # only rows of table step are watched
        assert d.unit is Unit.FRACTION or not d.name.endswith("_frac"), d.name


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
        "import sys, sorl.measures, docs.generate.render as r, sorl.collapse.describe;"
        "r.diagnostics(); sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_rule_names_every_outcome_setting_and_hard_event():
    text = describe_rule()
    assert all(f"`{rule.kind}`" in text for rule in HARD)
    assert all(f"`{word}`" in text for word in OUTCOMES)
    assert all(f"`collapse.{name}`" in text for name in CollapseSettings.model_fields)
    assert set(COLLAPSE_REASONS) == set(CollapseSettings.model_fields)


def test_the_page_names_every_combined_rule_and_its_tables_are_whole():
    text = page()
    assert all(f"| `{rule.kind}` | {rule.severity} |" in text for rule in COMBINED)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.replace(r"\|", "").count("|") in (3, 4, 5, 6) for line in rows)


def test_the_dictionary_has_the_columns_of_its_table_and_alarms_as_numbers_too():
    rows = dictionary(CATALOGUE)
    assert set(rows) == {c.name for c in table("diagnostic").columns}
    assert {len(v) for v in rows.values()} == {len(CATALOGUE)}
    columns = ("name", "level", "alarm_when", "alarm_value", "alarm_baseline_points", "alarm")
    found = {(name, level): rest for name, level, *rest in zip(*(rows[c] for c in columns), strict=True)}
    assert found["grad_norm_max", "step"][:3] == ["above", 10.0, 10]
    assert found["grad_norm_max", "step"][3].startswith("warning when above 10 x the median")
    assert found["ess_frac_min", "step"][:3] == ["below", 0.3, None]
    assert found["success", "step"] == [None] * 4
