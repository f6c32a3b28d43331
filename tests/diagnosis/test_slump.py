"""The detector that `sorl diagnose` watches a run by."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from docs.render import ROOT
from studies.early_warning import corpus
from studies.early_warning.page import CORPUS
from tests.diagnosis.logs import healthy, log
from workbench.diagnosis.changepoint import Slump, slumped
from workbench.diagnosis.diagnose import as_dict, diagnose, markdown, text


def curve(*values: float) -> pd.Series:
    return pd.Series(values, index=np.arange(10, 10 + len(values)), dtype=float)


def test_a_slump_has_its_step_and_its_size() -> None:
    assert slumped(curve(0.5, 0.6, 0.6, 0.6, 0.1, 0.2, 0.1)) == Slump(15, pytest.approx(2 / 3))
    assert slumped(curve(0.5, 0.6, 0.6, 0.6, 0.1, 0.6, 0.5)) is None  # one point is no slump
    assert slumped(curve()) is None


def test_a_run_that_slumps_is_said_to_until_its_collapse_is_called() -> None:
    tables = healthy()
    rows = tables["step"]
    rows.loc[rows["step"] >= 21, "success"] = 0.02
    early = diagnose(log(tables))
    assert "Early warning: by step 22 success has lost" in text(early)
    assert "Early warning" in markdown(early)
    assert as_dict(early)["slump"]["step"] == 22
    called = diagnose(log(tables, collapse_step=20))
    assert "Early warning" not in text(called)
    assert "Early warning" not in text(diagnose(log(healthy())))


def test_the_shares_of_runs_that_slump_are_the_ones_that_are_named() -> None:
    runs = corpus.distinct(corpus.read(ROOT / CORPUS))
    slumps = [run for run in runs if slumped(pd.Series(run.curves["success"][0], index=run.steps)) is not None]
    assert 0.02 <= sum(run.healthy for run in slumps) / sum(run.healthy for run in runs) <= 0.1
    assert 0.15 <= sum(run.lasting for run in slumps) / sum(run.lasting for run in runs) <= 0.25
    assert sum(run.collapsed for run in slumps) >= 0.97 * sum(run.collapsed for run in runs)
