"""Logs of other trainers: every kind of file, what their names mean, and what is said of a broken one."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.diagnosis import foreign
from workbench.diagnosis.diagnose import diagnose
from workbench.diagnosis.foreign import NAMES, read
from workbench.diagnostics.collapse import judge as rule
from workbench.spec import TABLES, InputError

STEPS = 60


def judge(scores, steps):
    return rule(scores, steps=steps).columns()


def verl() -> list[dict[str, float]]:
    """A run that learns, whose gradient leaps at step 40 and whose score then falls to nothing."""
    draw = np.random.default_rng(0)
    return [
        {
            "training/global_step": step,
            "critic/score/mean": 0.02 if step > 40 else 0.2 + 0.01 * step + draw.normal(0, 0.01),
            "actor/grad_norm": 40.0 if step in (40, 41) else 0.4 + draw.uniform(0, 0.1),
            "actor/entropy": 0.8 - 0.005 * step, "actor/ppo_kl": 0.001, "actor/pg_clipfrac": 0.01,
            "perf/throughput": 900.0,
        }
        for step in range(1, STEPS + 1)
    ]  # fmt: skip


WRITE = {
    "jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "json": lambda frame, path: path.write_text(json.dumps({"log_history": frame.to_dict("records")})),
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path),
}


@pytest.mark.parametrize("kind", WRITE)
def test_a_log_in_any_kind_of_file_gets_the_same_diagnosis(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"log.{kind}"
    WRITE[kind](pd.DataFrame(verl()), path)
    said = diagnose(read(path, judge))
    assert said.onset == 40
    assert said.log.run["outcome"] == "collapsed"
    assert (said.findings[0].cause.name, said.findings[0].clue.step) == ("step_size", 40)
    assert "stale_weights" in said.unanswered


def test_every_name_leads_to_a_column_that_exists() -> None:
    from workbench.diagnostics import CATALOGUE

    declared = {f"{d.table}.{d.name}" for d in CATALOGUE} | {f"{t.name}.{c.name}" for t in TABLES for c in t.columns}
    assert set(NAMES.values()) <= declared


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("log.jsonl", "", "holds no rows"),
        ("log.jsonl", '{"step": 1}\nnot json\n{"step": 2}\n', "line 2"),
        ("log.jsonl", "[1, 2]\n[3]\n", "line 1"),
        ("log.jsonl", '{"step": 1, "my/own": 2}\n', "no metric that is known"),
        ("log.json", '{"a": 1}', "log_history"),
        ("log.json", "{", "cannot be read as json"),
        ("log.parquet", "PAR1 no", "cannot be read as parquet"),
        ("log.csv", "", "cannot be read as csv"),
        ("log.txt", "step 1", ".jsonl"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, content: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=says):
        read(path, judge)


LINES = '{"step": 1, "reward": 0.5, "entropy": 0.75}\n{"step": 2, "reward": 0.25, "entropy": 0.5}\n'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("comma.csv", "step,reward,entropy\n1,0.5,0.75\n2,0.25,0.5\n"),
        ("semicolon.csv", "step;reward;entropy\n1;0,5;0,75\n2;0,25;0,5\n"),
        ("semicolon_and_point.csv", "step;reward;entropy\n1;0.5;0.75\n2;0.25;0.5\n"),
        ("tab.csv", "step\treward\tentropy\n1\t0.5\t0.75\n2\t0.25\t0.5\n"),
        ("tab.tsv", "step\treward\tentropy\n1\t0.5\t0.75\n2\t0.25\t0.5\n"),
        ("nested.jsonl", LINES.replace(' "reward', ' "data": {"reward').replace("}", "}}")),
        ("cut_off.jsonl", LINES + '{"step": 3, "entr'),
        ("lines.jsonl", LINES),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_log_is_read_whatever_parts_its_cells_nested_cut_off_by_a_kill_and_in_utf_16(
    tmp_path: Path, name: str, text: str, encoding: str
) -> None:
    (tmp_path / name).write_bytes(text.encode(encoding))
    log = read(tmp_path / name, judge)
    assert log.series("step", "success").to_dict() == {1: 0.5, 2: 0.25}
    assert log.series("step", "entropy").to_dict() == {1: 0.75, 2: 0.5}


def test_of_a_log_of_more_steps_than_are_judged_every_so_many_th_is_read_and_its_name_says_so(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"step": {i}, "entropy": {i / 8}}}\n' for i in range(foreign.STEPS + 1)))
    log = read(path, judge)
    assert log.series("step", "entropy").head(3).to_dict() == {0: 0.0, 2: 0.25, 4: 0.5}
    assert log.name == f"log.jsonl (one in 2 of its {foreign.STEPS + 1:,} steps)"
    path.write_text('{"entropy": 0}\n' * (foreign.ROWS + 1))
    with pytest.raises(InputError, match="more than 300,000 rows"):
        read(path, judge)


def test_a_row_whose_step_is_infinite_or_no_number_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    steps = ("1e999", '"x"', "9" * 400, "1e300", "3")
    path.write_text("".join(f'{{"step": {step}, "entropy": 0.5}}\n' for step in steps))
    assert read(path, judge).series("step", "entropy").to_dict() == {3: 0.5}
