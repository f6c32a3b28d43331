"""`sorl compare` over recorded runs: what it prints and what it exports."""

import csv
import io
from pathlib import Path

import pandas as pd
import pytest

from sorl.spec import RunSettings
from tests.cli.command import STEPS, done, fell, record, sorl, told
from tests.store.fixture import Shape, write_experiment, write_run, write_segment, write_status

SHAPE = Shape(steps=30, trajectories=2, turns=2, epochs=1)
HOSTILE = 'a & b_50% {\\x} | "q", <b>\n[2]'


@pytest.fixture
def demo(runs: Path) -> Path:
    """Three arms of five seeds: all of ppo collapse, two of a hostile name, none of st-ppo; a tie and an
    early end.
    """
    write_experiment(runs, "demo")
    for seed, onset in enumerate([10, 12, 12, 16, 20]):
        fell(runs, "ppo", seed, onset)
    for seed, onset in enumerate([12, 30]):
        fell(runs, HOSTILE, seed, onset, steps=onset + 6)
    for seed in (2, 3, 4):
        record(
            runs,
            HOSTILE,
            seed,
            **({"steps": 16, "status": "interrupted", "outcome": None} if seed == 4 else {}),
        )
    for seed in range(5):
        record(runs, "st-ppo", seed)
    return runs


def exported(runs: Path, folder: Path) -> pd.DataFrame:
    file = folder / "survival.csv"
    result = done("compare", "demo", "--export", file, "--format", "json", runs=runs)
    assert f"wrote {file}" in result.stderr
    return pd.read_csv(file)


def test_the_export_names_each_run_its_time_and_whether_it_collapsed(demo, tmp_path):
    rows = exported(demo, tmp_path)
    assert list(rows) == ["run_id", "arm", "seed", "time", "event"]
    arms = {arm: list(zip(g["time"], g["event"], strict=True)) for arm, g in rows.groupby("arm")}
    hostile = [(12, 1), (30, 1), (36, 0), (36, 0), (16, 0)]
    assert arms == {"ppo": [(t, 1) for t in (10, 12, 12, 16, 20)], "st-ppo": [(36, 0)] * 5, HOSTILE: hostile}


@pytest.mark.parametrize("form", ["table", "md", "latex"])
def test_every_format_has_every_arm_in_every_part(demo, form):
    text = done("compare", "demo", "--format", form, "--against", "ppo", runs=demo).stdout
    assert text.count("st-ppo") >= 3
    assert "not estimable: no collapse in st-ppo" in text
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == (3 if form == "latex" else 0)
    escaped = {"md": ("### Time to collapse", r"\x} \| "), "latex": (r"a \& b\_50\% \{\textbackslash{}x\}",)}
    assert all(words in text for words in escaped.get(form, ()))


def test_csv_and_json_have_every_arm_and_null_where_nothing_is_estimable(demo):
    of_json = {row["arm"]: row for row in told("compare", "demo", "--against", "ppo", runs=demo)}
    text = done("compare", "demo", "--format", "csv", "--against", "ppo", runs=demo).stdout
    assert text.startswith("arm,algorithm,runs,n,judged,recovered,falling,mild,not_risen,peak,peak_low")
    of_csv = {row["arm"]: row for row in csv.DictReader(io.StringIO(text))}
    for rows, null in ((of_json, None), (of_csv, "")):
        assert set(rows) == {"ppo", HOSTILE, "st-ppo"}
        assert rows["st-ppo"]["hazard_ratio"] == null
        assert float(rows["ppo"]["rmst"]) == 14
        # Area under S by hand: 5/5 to 12, 4/5 to 30 (one left at 16: 3 at risk), 2/3 of that to 36.
        mean = 12 + 0.8 * 18 + 0.8 * 2 / 3 * 6
        found = [float(rows[HOSTILE][name]) for name in ("horizon", "rmst", "rmst_difference")]
        assert found == pytest.approx([STEPS, mean, mean - 14])
    rows = told("compare", "demo", "--against", "st-ppo", runs=demo)
    assert {row["arm"]: row["reference"] for row in rows} == {
        "ppo": "st-ppo",
        HOSTILE: "st-ppo",
        "st-ppo": None,
    }


def test_a_run_that_is_too_short_is_no_zero_of_one_and_one_arm_alone_is_compared_with_nothing(runs):
    write_experiment(runs, "demo")
    record(runs, "ppo", 0, steps=6, outcome=None)
    alone = done("compare", "demo", runs=runs).stdout
    assert ("Against" in alone, "Time to collapse" in alone) == (False, True)
    record(runs, "st-ppo", 0)
    text = done("compare", "demo", runs=runs).stdout
    ppo = next(line for line in text.splitlines() if line.startswith("ppo"))
    assert "0/1" not in ppo
    assert "Finished, but too short for the collapse rule: ppo 1." in text
    assert "ppo 1 of 1 (after 6 of 36 steps)" in text
    assert "too few seeds to tell" in text
    row = told("compare", "demo", runs=runs)[0]
    assert (row["collapsed"], row["judged"], row["watched"], row["events"]) == (None, 0, 1, 0)


def test_runs_in_training_count_for_as_long_as_they_were_seen_up(runs, tmp_path):
    write_experiment(runs, "demo")
    fell(runs, "ppo", 0, 10)
    for seed, steps in ((1, 9), (2, 20)):
        folder = record(runs, "ppo", seed, steps=0, status="running", outcome=None)
        write_segment(folder, "step", {"step": range(steps)})
    write_segment(
        folder, "event", {"step": 17, "kind": "collapse", "severity": "critical", "diagnostic": "success"}
    )
    record(runs, "ppo", 3, steps=0, status="queued", outcome=None)
    rows = exported(runs, tmp_path)
    assert rows[["seed", "time", "event"]].values.tolist() == [[0, 10, 1], [1, 9, 0], [2, 17, 1]]


def test_crossed_algorithms_are_also_compared_over_all_conditions(runs):
    write_experiment(runs, "demo")
    for algorithm, staleness, final in (("ppo", 0, 0.8), ("ppo", 8, 0.2), ("grpo", 0, 0.7), ("grpo", 8, 0.6)):
        for seed in (0, 1):
            settings = RunSettings(
                algorithm=algorithm, iterations=36, seed=seed, learn={"staleness": staleness}
            )
            row = {
                "algorithm": algorithm,
                "final_success": final + 0.02 * seed,
                "config": settings.model_dump_json(),
            }
            record(
                runs, f"{algorithm}, staleness {staleness}", seed, f"{algorithm}-{staleness}-{seed}", **row
            )
    text = done("compare", "demo", runs=runs).stdout
    part = text[text.index("Over the conditions that all algorithms share") :].splitlines()[4:6]
    assert sorted(line.split()[:4] for line in part) == [
        ["grpo", "2", "4", "0.66"],
        ["ppo", "2", "4", "0.51"],
    ]


@pytest.fixture
def arms(runs: Path) -> Path:
    """Two recorded arms of one seed with the steps of real runs."""
    write_experiment(runs, "demo")
    for arm in ("ppo", "st-ppo"):
        folder = write_run(runs, "demo", f"{arm}-s0", shape=SHAPE, algorithm=arm, seed=0)
        config = RunSettings(algorithm=arm, iterations=SHAPE.steps).model_dump_json()
        write_status(folder, algorithm=arm, arm=arm, config=config, steps=SHAPE.steps)
    return runs


def test_questions_that_differ_and_what_a_trainer_flagged_are_warnings(arms):
    assert "Warning" not in done("compare", "demo", runs=arms).stdout
    for name, questions in (("ppo-s0", 1), ("st-ppo-s0", 2)):
        write_segment(arms / "demo" / name, "step", {"step": SHAPE.steps, "questions_hash": questions})
    event = {"step": 3, "kind": "guard_token_identity", "severity": "critical"}
    write_segment(
        arms / "demo" / "st-ppo-s0", "event", event | {"message": "row 5\x1b[2J\nNote: all is well"}
    )
    for form in ("table", "md"):
        text = done("compare", "demo", "--format", form, runs=arms).stdout
        seen = f"with seed 0, from step {SHAPE.steps} on"
        assert f"Warning: ppo and st-ppo trained on different questions {seen}." in text
        one_line = "Warning: st-ppo, seed 0, step 3: row 5\\u001b[2J\\nNote: all is well."
        assert one_line in text, "no controls"
    assert "Warning" not in done("compare", "demo", "--format", "csv", runs=arms).stdout


def test_settings_of_another_version_cannot_be_checked_and_missing_ones_need_no_check(arms):
    for config, says in (
        (
            '{"learn": {"gone": 1}}',
            "Note: the settings of 2 of 2 runs (ppo-s0, st-ppo-s0) cannot be read, or are of another version",
        ),
        (None, ""),
    ):
        for arm in ("ppo", "st-ppo"):
            write_status(
                arms / "demo" / f"{arm}-s0", algorithm=arm, arm=arm, config=config, steps=SHAPE.steps
            )
        text = done("compare", "demo", runs=arms).stdout
        assert says in text
        assert ("Warning" in text, "Note" in text) == (False, bool(says))


BROKEN = ("{", '"x"', "[1]", "null", '{"fork": 3}', '{"fork": {"run": "a", "seed": 9}}', '{"a":' * 500)


@pytest.mark.parametrize("config", BROKEN, ids=range(len(BROKEN)))
def test_a_stored_configuration_that_is_none_of_ours_is_named_and_the_other_runs_go_on(runs, config):
    record(runs, "ppo", 0, config=config)
    record(runs, "ppo", 1)
    fell(runs, "grpo", 0, 12)
    for line in (
        "report demo --format md",
        "compare demo",
        "rescan --dry-run",
        "show p3-s0",
        "diagnose demo",
    ):
        result = sorl(*line.split(), runs=runs)
        assert result.exception is None or isinstance(result.exception, SystemExit), (line, result.exception)
    for line in ("report demo --format md", "compare demo"):
        assert "the settings of 1 of 3 runs (p3-s0) cannot be read" in done(*line.split(), runs=runs).stdout
