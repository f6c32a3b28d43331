"""What the screens that compare arms open with, and the sentence of Compare."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.app.conftest import Open, value
from tests.store.fixture import Shape, write_grid, write_run
from workbench.app.experiments import default_arms
from workbench.app.screens.compare import default_metrics, seen
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync


def runs(**onsets: list[int | None]) -> pd.DataFrame:
    """Arms `algorithm_condition`, each with the onset of its runs."""
    rows = [
        {"arm": arm, "algorithm": arm.split("_")[0], "seed": seed, "collapse_step": onset, "onset_low": onset,
         "outcome": "healthy"}
        for arm, steps in onsets.items() for seed, onset in enumerate(steps)
    ]  # fmt: skip
    return pd.DataFrame(rows).astype({"collapse_step": "Int64", "onset_low": "Int64"})


def alarms(*rows: tuple[str, int, int, float]) -> pd.DataFrame:
    found = pd.DataFrame(list(rows), columns=["alarm", "before", "first", "lead_median"])
    return found.assign(collapsed=3, steady=2, false_alarms=1)


def test_few_arms_are_all_shown_and_of_many_one_collapsed_and_one_healthy_of_each_algorithm() -> None:
    assert default_arms(runs(b=[None], a=[3])) == ["b", "a"]
    each = runs(
        ppo_1=[None, None], ppo_2=[4, None], ppo_3=[4, 5], ppo_4=[3, 6],
        st_1=[None], st_2=[None, None], st_3=[None], so_1=[None, 5, 6], so_2=[None],
    )  # fmt: skip
    assert default_arms(each, most=5) == ["ppo_1", "ppo_3", "st_2", "so_1", "so_2"]
    rare = runs(ppo_1=[6, None, None], ppo_2=[None, None, None], turn=[None], s=[None], st=[None], grpo=[None], so=[9])
    assert default_arms(rare, most=6) == ["ppo_1", "ppo_2", "turn", "s", "st", "so"], "a rare collapse is shown"


def test_success_stands_first_and_then_what_warned_before_most_collapses() -> None:
    told = alarms(("entropy", 0, 0, 0.0), ("kl_k3", 2, 0, 5.0), ("ratio_max", 3, 2, 2.0))
    charted = ["step.success", "step.entropy", "step.kl_k3", "step.ratio_max", "step.grad_norm_max"]
    usual = ["step.success", "step.grad_norm_max", "step.absent", "step.entropy"]
    found = ["step.success", "step.ratio_max", "step.kl_k3", "step.grad_norm_max"]
    assert default_metrics(told, charted, usual) == found
    assert default_metrics(pd.DataFrame(), charted, usual) == ["step.success", "step.grad_norm_max", "step.entropy"]


def test_the_sentence_names_what_collapsed_what_did_not_and_which_alarm_came_first() -> None:
    told = alarms(("a", 1, 1, 9.0), ("kl_k3", 2, 2, 1.0))
    assert seen(runs(ppo=[17, 20, None], st=[None]), told) == (
        "Collapsed: ppo in 2 of 3 (onset at step 17 to 20). Did not: st. First alarm: kl_k3, 1 step before the onset "
        "in 2 of 3, and in 1 of 2 that did not collapse."
    )
    assert seen(runs(ppo=[3]), told.assign(false_alarms=2)).endswith(
        "No alarm told them apart: kl_k3 was first, and went off in all 2 runs that did not collapse."
    )
    assert seen(runs(ppo=[None]), pd.DataFrame()) == "None of these runs collapsed."
    assert seen(runs(ppo=[3]), pd.DataFrame()).endswith("No alarm went off before an onset.")


def test_a_bare_address_opens_the_newest_experiment_with_a_collapse(
    tmp_path: Path, open_screen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.app.page._PATIENCE", 30.0)
    small = Shape(trajectories=2, turns=3, epochs=1, steps_per_segment=30)
    write_grid(tmp_path, "fell", small)
    write_run(tmp_path, "young", "later", shape=small, seed=9)
    sync(tmp_path, CATALOGUE)
    for screen, newest in (("overview", "young"), ("compare", "fell"), ("turns", "fell"), ("collapse", "fell")):
        assert value(open_screen(screen, tmp_path), "experiment") == newest
