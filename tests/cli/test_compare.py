"""`sorl compare` over recorded runs: what it prints, what it exports, and that others compute the same from that."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.store.fixture import START, write_experiment, write_segment, write_status
from workbench.spec import RunSettings

Sorl = Callable[..., Any]
HOSTILE = 'a & b_50% {\\x} | "q", <b>\n[2]'


def record(runs: Path, arm: str, seed: int, name: str = "", steps: int = 36, **columns: Any) -> Path:
    """One run as its table `run` tells it: finished and healthy after 36 of 36 steps unless `columns` say otherwise."""
    folder = runs / "demo" / (name or f"{arm[:1]}{len(arm)}-s{seed}")
    folder.mkdir(parents=True)
    config = RunSettings(iterations=36, seed=seed).model_dump_json()
    told = {"arm": arm, "seed": seed, "steps": steps, "config": config, "final_success": 0.7 + 0.01 * seed}
    write_status(folder, **(told | columns))
    return folder


def fell(runs: Path, arm: str, seed: int, onset: int, **columns: Any) -> None:
    record(runs, arm, seed, outcome="collapsed", collapse_step=onset, final_success=0.05, **columns)


@pytest.fixture
def demo(runs: Path) -> Path:
    """Three arms of five seeds: all of ppo collapse, two of a hostile name, none of st-ppo; a tie and an early end."""
    write_experiment(runs, "demo")
    for seed, onset in enumerate([10, 12, 12, 16, 20]):
        fell(runs, "ppo", seed, onset)
    for seed, onset in enumerate([12, 30]):
        fell(runs, HOSTILE, seed, onset, steps=onset + 6)
    for seed in (2, 3, 4):
        record(runs, HOSTILE, seed, **({"steps": 16, "status": "interrupted", "outcome": None} if seed == 4 else {}))
    for seed in range(5):
        record(runs, "st-ppo", seed)
    return runs


def exported(sorl: Sorl, runs: Path, folder: Path, *words: str) -> pd.DataFrame:
    file = folder / "survival.csv"
    result = sorl("compare", "demo", "--export", file, "--format", "json", *words, runs=runs)
    assert result.exit_code == 0, result.output
    assert f"wrote {file}" in result.stderr
    return pd.read_csv(file)


def test_the_export_names_each_run_its_time_and_whether_it_collapsed(sorl: Sorl, demo: Path, tmp_path: Path) -> None:
    rows = exported(sorl, demo, tmp_path)
    assert list(rows) == ["run_id", "arm", "seed", "time", "event"]
    assert len(rows) == 15
    arms = {arm: list(zip(g["time"], g["event"], strict=True)) for arm, g in rows.groupby("arm")}
    assert arms["ppo"] == [(10, 1), (12, 1), (12, 1), (16, 1), (20, 1)]
    assert arms["st-ppo"] == [(36, 0)] * 5
    assert arms[HOSTILE] == [(12, 1), (30, 1), (36, 0), (36, 0), (16, 0)]


def test_lifelines_on_the_exported_file_gives_the_same_figures(sorl: Sorl, demo: Path, tmp_path: Path) -> None:
    from lifelines import CoxPHFitter, KaplanMeierFitter
    from lifelines.statistics import logrank_test, multivariate_logrank_test
    from lifelines.utils import restricted_mean_survival_time

    rows = exported(sorl, demo, tmp_path)
    ours = {
        row["arm"]: row
        for row in json.loads(sorl("compare", "demo", "--format", "json", "--against", "ppo", runs=demo).stdout)
    }
    horizon = ours["ppo"]["horizon"]
    assert horizon == 36
    for arm, group in rows.groupby("arm"):
        fitted = KaplanMeierFitter().fit(group["time"], group["event"])
        median = fitted.median_survival_time_
        assert ours[arm]["median"] == (None if math.isinf(median) else pytest.approx(median, abs=1e-6))
        assert ours[arm]["rmst"] == pytest.approx(restricted_mean_survival_time(fitted, horizon), abs=1e-6)
    every = multivariate_logrank_test(rows["time"], rows["arm"], rows["event"])
    assert ours["ppo"]["all_logrank_chi2"] == pytest.approx(every.test_statistic, abs=1e-6)
    assert ours["ppo"]["all_logrank_p"] == pytest.approx(every.p_value, abs=1e-6)
    one, two = (rows[rows["arm"] == arm] for arm in ("ppo", HOSTILE))
    pair = logrank_test(one["time"], two["time"], one["event"], two["event"])
    assert ours[HOSTILE]["logrank_chi2"] == pytest.approx(pair.test_statistic, abs=1e-6)
    assert ours[HOSTILE]["logrank_p"] == pytest.approx(pair.p_value, abs=1e-6)
    both = pd.concat([one, two]).assign(other=lambda r: (r["arm"] == HOSTILE).astype(float))
    tight = {"precision": 1e-14, "r_precision": 1e-14}
    cox = CoxPHFitter().fit(both[["time", "event", "other"]], "time", "event", fit_options=tight)
    assert ours[HOSTILE]["hazard_ratio"] == pytest.approx(cox.hazard_ratios_["other"], abs=1e-6)
    low, high = np.exp(cox.confidence_intervals_.loc["other"])
    assert ours[HOSTILE]["hazard_ratio_low"] == pytest.approx(low, abs=1e-6)
    assert ours[HOSTILE]["hazard_ratio_high"] == pytest.approx(high, rel=1e-6)


def test_other_code_on_the_exported_file_gives_the_same_figures(sorl: Sorl, demo: Path, tmp_path: Path) -> None:
    from scipy.optimize import minimize_scalar
    from scipy.stats import CensoredData, logrank

    rows = exported(sorl, demo, tmp_path)
    found = json.loads(sorl("compare", "demo", "--format", "json", "--against", "ppo", runs=demo).stdout)
    ours = next(row for row in found if row["arm"] == HOSTILE)
    samples = [
        CensoredData(uncensored=g.loc[g["event"] == 1, "time"], right=g.loc[g["event"] == 0, "time"])
        for g in (rows[rows["arm"] == arm] for arm in ("ppo", HOSTILE))
    ]
    test = logrank(*samples)
    assert ours["logrank_chi2"] == pytest.approx(test.statistic**2, abs=1e-6)
    assert ours["logrank_p"] == pytest.approx(test.pvalue, abs=1e-6)
    both = rows[rows["arm"] != "st-ppo"]
    x, time, event = (both["arm"] == HOSTILE).to_numpy(float), both["time"].to_numpy(), both["event"].to_numpy() == 1

    def loss(beta: float) -> float:  # Efron's partial likelihood, written out
        risk, total = np.exp(beta * x), 0.0
        for at in np.unique(time[event]):
            died = event & (time == at)
            total += beta * x[died].sum()
            for tie in range(died.sum()):
                total -= math.log(risk[time >= at].sum() - tie / died.sum() * risk[died].sum())
        return -total

    best = minimize_scalar(loss, bounds=(-5, 5), options={"xatol": 1e-10})
    assert ours["hazard_ratio"] == pytest.approx(math.exp(best.x), abs=1e-6)
    # Area under S by hand: 5/5 to 12, 4/5 to 30 (one left at 16: 3 at risk), 2/3 of that to 36.
    assert ours["rmst"] == pytest.approx(12 + 0.8 * 18 + 0.8 * 2 / 3 * 6)
    assert ours["rmst_difference"] == pytest.approx(ours["rmst"] - 14)


@pytest.mark.parametrize("form", ["table", "md", "latex", "csv", "json"])
def test_every_format_tells_every_arm_in_every_part(sorl: Sorl, demo: Path, form: str) -> None:
    result = sorl("compare", "demo", "--format", form, "--against", "ppo", runs=demo)
    assert result.exit_code == 0, result.output
    text = result.stdout
    if form == "json":
        rows = {row["arm"]: row for row in json.loads(text, parse_constant=lambda name: pytest.fail(name))}
        assert set(rows) == {"ppo", HOSTILE, "st-ppo"}
        assert rows["st-ppo"]["hazard_ratio"] is None
        assert rows["ppo"]["rmst"] == 14
    elif form == "csv":
        rows = {row["arm"]: row for row in csv.DictReader(io.StringIO(text))}
        assert set(rows) == {"ppo", HOSTILE, "st-ppo"}
        assert float(rows["ppo"]["rmst"]) == 14
        assert rows["st-ppo"]["hazard_ratio"] == ""
    else:
        assert text.count("st-ppo") >= 3
        assert "not estimable: no collapse in st-ppo" in text
        assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == (3 if form == "latex" else 0)
    if form == "latex":
        assert r"a \& b\_50\% \{\textbackslash{}x\}" in text
    if form == "md":
        assert "### Time to collapse" in text
        assert r"\x} \| " in text


def test_the_reference_is_the_first_arm_or_the_one_that_is_asked_for(sorl: Sorl, demo: Path) -> None:
    rows = json.loads(sorl("compare", "demo", "--format", "json", "--against", "st-ppo", runs=demo).stdout)
    assert {row["arm"]: row["reference"] for row in rows} == {"ppo": "st-ppo", HOSTILE: "st-ppo", "st-ppo": None}
    table = sorl("compare", "demo", "--against", "st-ppo", runs=demo).stdout
    assert "Against st-ppo, p-values also with Holm's correction" in table
    result = sorl("compare", "demo", "--against", "st-pp", runs=demo)
    assert result.exit_code == 2
    assert "--against 'st-pp': demo has no such arm (did you mean 'st-ppo'?)" in result.stderr
    assert result.stdout == ""


def test_a_file_that_cannot_be_written_is_one_message(sorl: Sorl, demo: Path, tmp_path: Path) -> None:
    result = sorl("compare", "demo", "--export", tmp_path / "no" / "such.csv", runs=demo)
    assert result.exit_code == 2
    assert "cannot write --export" in result.stderr
    assert result.stdout == ""


def test_a_run_that_is_too_short_is_no_zero_of_one(sorl: Sorl, runs: Path) -> None:
    write_experiment(runs, "demo")
    record(runs, "ppo", 0, steps=6, outcome=None)
    record(runs, "st-ppo", 0)
    text = sorl("compare", "demo", runs=runs).stdout
    ppo = next(line for line in text.splitlines() if line.startswith("ppo"))
    assert "0/1" not in ppo
    assert "Finished, but too short for the collapse rule: ppo 1." in text
    assert "ppo 1 of 1 (after 6 of 36 steps)" in text
    assert "undecidable at this n" in text
    row = json.loads(sorl("compare", "demo", "--format", "json", runs=runs).stdout)[0]
    assert (row["collapsed"], row["judged"], row["watched"], row["events"]) == (None, 0, 1, 0)


def test_runs_in_training_count_for_as_long_as_they_were_seen_up(sorl: Sorl, runs: Path, tmp_path: Path) -> None:
    write_experiment(runs, "demo")
    fell(runs, "ppo", 0, 10)
    up = record(runs, "ppo", 1, steps=0, status="running", outcome=None)
    write_segment(up, "step", {"run_id": [up.name] * 9, "step": list(range(9)), "written_at": [START] * 9})
    down = record(runs, "ppo", 2, steps=0, status="running", outcome=None)
    write_segment(down, "step", {"run_id": [down.name] * 20, "step": list(range(20)), "written_at": [START] * 20})
    event = {
        "run_id": down.name, "step": 17, "kind": "collapse", "severity": "critical", "diagnostic": "success",
        "value": 0.1, "threshold": 0.4, "message": "success fell", "written_at": START,
    }  # fmt: skip
    write_segment(down, "event", {name: [value] for name, value in event.items()})
    record(runs, "ppo", 3, steps=0, status="queued", outcome=None)
    rows = exported(sorl, runs, tmp_path)
    assert dict(zip(rows["seed"], zip(rows["time"], rows["event"], strict=True), strict=True)) == {
        0: (10, 1), 1: (9, 0), 2: (17, 1),
    }  # fmt: skip


def test_of_a_cell_that_was_started_over_only_the_newest_start_counts(sorl: Sorl, runs: Path) -> None:
    write_experiment(runs, "demo")
    record(runs, "ppo", 0, name="ppo-s0-aaaa0000")
    fell(runs, "ppo", 0, 12, name="ppo-s0-aaaa0000-g2")
    record(runs, "ppo", 1, name="ppo-s1-aaaa0001")
    row = json.loads(sorl("compare", "demo", "--format", "json", runs=runs).stdout)[0]
    assert (row["runs"], row["collapsed"]) == (2, 1)


def test_one_arm_alone_is_compared_with_nothing(sorl: Sorl, runs: Path) -> None:
    write_experiment(runs, "demo")
    record(runs, "ppo", 0)
    text = sorl("compare", "demo", runs=runs).stdout
    assert "Against" not in text
    assert "Time to collapse" in text


def test_crossed_algorithms_are_also_compared_over_all_conditions(sorl: Sorl, runs: Path) -> None:
    write_experiment(runs, "demo")
    for algorithm, staleness, final in (("ppo", 0, 0.8), ("ppo", 8, 0.2), ("grpo", 0, 0.7), ("grpo", 8, 0.6)):
        for seed in (0, 1):
            settings = RunSettings.model_validate(
                {"algorithm": algorithm, "iterations": 36, "seed": seed, "learn": {"staleness": staleness}}
            )
            record(
                runs, f"{algorithm}, staleness {staleness}", seed, name=f"{algorithm}-{staleness}-{seed}",
                config=settings.model_dump_json(), algorithm=algorithm, final_success=final + 0.02 * seed,
            )  # fmt: skip
    text = sorl("compare", "demo", runs=runs).stdout
    part = text[text.index("Over the conditions that all algorithms share") :].splitlines()[4:6]
    assert sorted(line.split()[:4] for line in part) == [["grpo", "2", "4", "0.66"], ["ppo", "2", "4", "0.51"]]
    rows = json.loads(sorl("compare", "demo", "--format", "json", runs=runs).stdout)
    assert {row["arm"]: row["pooled_final_iqm"] for row in rows} == {
        "ppo, staleness 0": pytest.approx(0.51), "ppo, staleness 8": pytest.approx(0.51),
        "grpo, staleness 0": pytest.approx(0.66), "grpo, staleness 8": pytest.approx(0.66),
    }  # fmt: skip
