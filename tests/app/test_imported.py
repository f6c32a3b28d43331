"""A run that another trainer logged: every screen opens, and what needs turns says in a sentence what to
record.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from sorl.app.page import SCREENS
from tests.app.conftest import HOSTILE, Open, assert_literal
from tests.cli.command import done


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of TRL, of which one collapses; the names of their unknown metrics are hostile."""
    folder = tmp_path_factory.mktemp("imported")
    draw = np.random.default_rng(0)
    for seed, falls in enumerate((True, False)):
        rows = [
            {
                "step": i,
                "reward": draw.normal(0.05 if falls and i > 40 else 0.2 + 0.008 * i, 0.01),
                "kl": 0.001 * i,
                "entropy": 0.8 - 0.005 * i,
                "grad_norm": float("nan") if falls and i == 50 else 0.5,
                "completions/mean_length": 200.0,
                "learning_rate": 1e-6,
                **dict.fromkeys(HOSTILE, 1.0),
            }
            for i in range(1, 61)
        ]
        (log := folder / "logs" / f"grpo-s{seed}").mkdir(parents=True)
        lines = [json.dumps(row) for row in rows]
        lines[10:10] = [f"{HOSTILE[0]} no JSON"] * (12 if falls else 1)
        (log / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
        (log / "config.json").write_text('{"max_grad_norm": 0.2, "num_generations": 8}')
    done("import", folder / "logs", runs=folder / "runs")
    done("sync", runs=folder / "runs")
    return folder / "runs"


SAYS = {
    "overview": "Collapsed: grpo in 1 of 2 (onset near step 40)",
    "turns": "this screen needs",
    "episode": "this screen needs",
    "replay": "has no stored batch, which this screen needs",
    "region": "No region search yet",
}


@pytest.mark.parametrize("name", SCREENS)
def test_every_screen_opens_on_an_imported_run_or_says_what_to_record(
    name: str, imported: Path, open_screen: Open
):
    assert SAYS.get(name, "") in " ".join(assert_literal(open_screen(name, imported)).split())


@pytest.mark.parametrize(("seed", "lost", "rows"), [(0, 12, 72), (1, 1, 61)])
def test_the_screen_of_a_run_says_how_much_of_its_log_is_missing(
    seed: int, lost: int, rows: int, imported: Path, open_screen: Open
) -> None:
    (folder,) = (imported / "imported").glob(f"grpo-s{seed}-*")
    shown = " ".join(assert_literal(open_screen("run", imported, run=folder.name)).split())
    assert f"{lost} of {rows} rows left out: not a JSON object, first in line 11." in shown
