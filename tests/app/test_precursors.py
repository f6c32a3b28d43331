from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.app.conftest import HOSTILE
from tests.app.hostile_figures import assert_literal
from workbench.app.figures.collapse import leads
from workbench.app.precursors import precursors
from workbench.app.series import AXES
from workbench.app.store import Diagnostics
from workbench.app.theme import LIGHT, styles

KNOWN = Diagnostics({"step.grad_norm_max": {"alarm_when": "above"}, "step.ess_frac_min": {"alarm_when": "below"}})


def first_alarms() -> pd.DataFrame:
    """Four runs that collapse at 20 and two that do not; None where a run never raised the alarm."""
    steps = {
        "grad_norm_max": [18, 16, 21, None, None, None],
        "ess_frac_min": [10, None, None, None, 5, 7],
        "chi2": [18, 19, 20, None, None, None],
    }
    rows = [
        {"diagnostic": name, "run": run, "collapse_step": 20 if run < 4 else None, "step": step,
         "lead": 20 - step if step is not None and run < 4 else None}
        for name, found in steps.items() for run, step in enumerate(found)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def alarms() -> dict[str, dict[str, Any]]:
    return {row["alarm"]: row for row in precursors(first_alarms(), KNOWN).to_dict("records")}


def test_every_collapsed_run_is_counted_once_as_before_after_or_never() -> None:
    for row in alarms().values():
        assert row["before"] + row["after"] + row["never"] == row["collapsed"] == 4
    assert [alarms()["grad_norm_max"][name] for name in ("before", "after", "never")] == [2, 1, 1]


def test_an_alarm_at_the_onset_is_no_warning() -> None:
    assert alarms()["chi2"]["after"] == 1


def test_the_lead_is_the_median_of_the_runs_that_it_warned_in() -> None:
    row = alarms()["grad_norm_max"]
    assert (row["lead_median"], row["lead_low"], row["lead_high"]) == (3.0, 2.5, 3.5)


def test_who_came_first_is_counted_run_by_run() -> None:
    assert {name: row["first"] for name, row in alarms().items()} == {
        "ess_frac_min": 1, "grad_norm_max": 1, "chi2": 0,
    }  # fmt: skip


def test_a_tie_counts_for_each() -> None:
    found = first_alarms()
    found.loc[(found["diagnostic"] == "chi2") & (found["run"] == 1), ["step", "lead"]] = [16, 4]
    assert precursors(found, KNOWN).set_index("alarm")["first"].to_dict()["chi2"] == 1


def test_false_alarms_are_counted_over_the_runs_that_stayed_up() -> None:
    assert (alarms()["ess_frac_min"]["false_alarms"], alarms()["ess_frac_min"]["steady"]) == (2, 2)
    assert alarms()["grad_norm_max"]["false_alarms"] == 0


def test_the_earliest_alarm_is_on_top_and_the_direction_is_told() -> None:
    found = precursors(first_alarms(), KNOWN)
    assert found["alarm"].tolist() == ["ess_frac_min", "grad_norm_max", "chi2"]
    assert found["direction"].tolist() == ["↓", "↑", ""]


def test_an_alarm_that_never_warned_comes_last() -> None:
    late = first_alarms().query("diagnostic == 'chi2'").assign(diagnostic="late", lead=lambda f: f["lead"] - 9)
    found = precursors(pd.concat([late, first_alarms()]), KNOWN)
    assert found["alarm"].tolist()[-1] == "late"
    assert found["before"].tolist()[-1] == 0


def test_no_alarm_at_all_is_an_empty_table() -> None:
    assert precursors(first_alarms().head(0), KNOWN).empty


def draw(text: str = "ppo") -> Any:
    found = first_alarms()
    dots = found.dropna(subset=["lead"]).assign(alarm=lambda f: f["diagnostic"], arm=text, run_id=text, seed=1)
    return leads(precursors(found, KNOWN), dots, styles([(text, text)], LIGHT), LIGHT)


def test_a_dot_a_run_stands_at_its_steps_from_the_onset() -> None:
    figure = draw()
    dots = next(t for t in figure.data if t.customdata is not None and t.marker.symbol == "circle")
    assert sorted(dots.x) == [-10.0, -4.0, -2.0, -2.0, -1.0, -0.0, 1.0]
    assert figure.layout.xaxis.title.text == AXES["onset"]


def test_dots_of_one_alarm_and_one_lead_do_not_hide_each_other() -> None:
    found = first_alarms()
    found.loc[found["diagnostic"] == "grad_norm_max", ["lead"]] = 3.0
    dots = found.dropna(subset=["lead"]).assign(alarm=lambda f: f["diagnostic"], arm="ppo", run_id="r", seed=1)
    figure = leads(precursors(found, KNOWN), dots, styles([("ppo", "ppo")], LIGHT), LIGHT)
    trace = next(t for t in figure.data if t.customdata is not None and t.marker.symbol == "circle")
    places = list(zip(trace.x, trace.y, strict=True))
    assert len(set(places)) == len(places)


def test_the_counts_stand_beside_the_dots() -> None:
    texts = [a.text for a in draw().layout.annotations]
    for words in ("came<br>first", "before<br>the onset", "never", "in runs<br>that stay up", "2/4", "2/2"):
        assert words in texts


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    assert_literal(draw(text))
    found = first_alarms().assign(diagnostic=text).drop_duplicates("run")
    dots = found.dropna(subset=["lead"]).assign(alarm=text, arm="ppo", run_id="r", seed=1)
    assert_literal(leads(precursors(found, KNOWN), dots, styles([("ppo", "ppo")], LIGHT), LIGHT))
