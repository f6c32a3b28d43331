"""The examples of CONTRIBUTING.md run, section by section."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from sorl.agent.episode import Episode
from sorl.algorithms import ALGORITHMS, differences, resolve
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.log import Log
from sorl.importing import formats
from sorl.importing.logs import read
from sorl.learn.faults import declare
from sorl.measures.tokens import Tokens
from sorl.objective import KINDS, prepare
from sorl.spec import FaultSettings, Level, RunSettings
from sorl.store.sync import sync
from tests.app.conftest import visit
from tests.measures.shared_batch import random_evidence
from tests.objective.batches import ragged, solved
from tests.store.fixture import Shape, write_run

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


def examples(title: str, language: str = "python") -> list[str]:
    """The blocks of the section with this title."""
    section = re.split(r"^## ", TEXT.split(f"## {title}\n", 1)[1], flags=re.MULTILINE)[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def run(title: str) -> dict[str, Any]:
    """The names that the first example of a section defines."""
    names: dict[str, Any] = {}
    exec(examples(title)[0], names)
    return names


def test_a_new_algorithm_is_a_short_declaration_that_trains_and_the_same_as_a_line_of_a_grid() -> None:
    made = run("Add an algorithm")["TURN_GSPO"]
    assert (made.name in ALGORITHMS, made.differs_from) == (False, "gspo")
    assert set(differences(ALGORITHMS["gspo"], made)) == {"ratio", "clip"}
    batch, new = ragged(0)
    found = resolve("turn-gspo", known={**ALGORITHMS, "turn-gspo": made})
    _, gradient = solved(found, prepare(found, batch), new)
    assert torch.isfinite(gradient).all()
    assert gradient.any()
    line = resolve(tomllib.loads(examples("Add an algorithm", "toml")[0])["algorithm"])
    assert all(getattr(line, slot) == getattr(made, slot) for slot in KINDS)


def test_a_new_log_format_is_read_and_diagnosed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(formats, "FORMATS", [*formats.FORMATS])
    run("Read a new log format")
    file = tmp_path / "run.log"
    file.write_text(
        "".join(f"step={i} reward={0.5 if i < 9 else 0.0} actor/entropy=1.2 mine=3\n" for i in range(30))
    )
    log = read(file)
    assert log.table("step")["entropy"].tolist() == [1.2] * 30
    assert log.table("step")["success"].tolist()[8:10] == [0.5, 0.0]
    assert log.onset == 8


def test_a_new_diagnostic_is_a_column_with_an_alarm_and_a_number() -> None:
    made = run("Add a diagnostic")["entropy_high_frac"]
    update, step = made.diagnostics()
    assert (update.level, step.level, update.alarm) == (Level.UPDATE, Level.STEP, None)
    assert step.alarm.points == 3
    tokens = Tokens(random_evidence(3, 4, 2))
    (found,) = made(tokens, tokens.by_update)
    assert found == pytest.approx((tokens.entropy > 2).mean())


@pytest.mark.parametrize(("level", "found"), [(0.3, True), (0.6, False)])
def test_a_new_cause_is_found_where_its_trace_is(level: float, found: bool) -> None:
    cause = run("Add a cause")["length_drift"]
    success = [0.3] * 12 + [level] * 12
    rows = pd.DataFrame({"step": range(24), "success": success, "response_tokens": [40.0] * 12 + [90.0] * 12})
    said = diagnose(Log("a", lambda table, step: rows if table == "step" else pd.DataFrame()), [cause])
    assert [f.cause.name for f in said.findings] == ["length_drift"] * found
    bare = diagnose(Log("a", lambda table, step: rows.drop(columns="success")), [cause])
    assert bare.unanswered == {"length_drift": ["step.success"]}


def test_a_new_fault_changes_what_its_hook_gets_and_leaves_its_trace(monkeypatch: Any) -> None:
    monkeypatch.setattr(declare, "FAULTS", dict(declare.FAULTS))
    run("Add a fault")
    assert declare.FAULTS["reward_lost"].hook in declare.HOOKS
    settings = RunSettings(fault=FaultSettings(kind="reward_lost", at_step=0))
    one = Episode(0, 0, [1], [True], [0.0], 0, "?", "a", "a", 1.0, True, "answer", 1, 0, 1)
    bug = declare.Fault(settings)
    paid = [e.reward for e in bug("episodes", [one] * 10, 3)]
    assert sorted(paid) == [0.0] * 3 + [1.0] * 7
    assert paid == [e.reward for e in bug("episodes", [one] * 10, 3)]


def test_a_new_screen_draws_the_runs_of_an_experiment(tmp_path: Path, monkeypatch: Any) -> None:
    runs = tmp_path / "runs"
    write_run(runs, "demo", "ppo-s0", shape=Shape(steps=12, trajectories=2, turns=2, epochs=1))
    sync(runs)
    monkeypatch.setenv("SORL_RUNS", str(runs))
    app = visit(f"{examples('Add a screen')[0]}\n\nlength()\n")
    assert "Mean number of steps" in app.source
    assert "<td>12</td>" in app.source
