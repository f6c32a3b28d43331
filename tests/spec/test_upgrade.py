"""Stored settings of earlier versions are read, and runs keep the names that they were stored under."""

import pytest

from sorl.spec import CollapseSettings
from sorl.spec.upgrade import with_first_collapse_rule

FIRST_RULE = {"window": 5, "baseline": 5, "severe": 0.4, "mild": 0.2, "points": 5, "sigmas": 3.0}


def test_settings_of_the_first_collapse_rule_are_read() -> None:
    assert CollapseSettings.model_validate(FIRST_RULE) == CollapseSettings(severe=0.4)


def test_a_setting_of_the_first_rule_alone_was_never_stored_and_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        CollapseSettings.model_validate({"window": 5})


def test_a_hash_counts_the_defaults_of_the_first_rule_under_their_dotted_keys() -> None:
    counted = with_first_collapse_rule({"iterations": 4, "collapse.severe": 0.5})
    assert counted == {
        "iterations": 4,
        "collapse.window": 5,
        "collapse.baseline": 5,
        "collapse.severe": 0.5,
        "collapse.mild": 0.2,
        "collapse.points": 5,
        "collapse.sigmas": 3.0,
    }
