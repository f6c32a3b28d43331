"""What the shipped results say of each algorithm: counted again, and read from whatever file names it."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from docs.generate.measured import SHIPPED, measured
from sorl import algorithms
from sorl.algorithms import ALGORITHMS
from sorl.analysis import results


def filed(folder: Path, name: str, **columns: list[object]) -> None:
    """Six of the shipped runs as the results of another experiment, with other columns."""
    shipped = results.read(SHIPPED / "six_by_five.parquet")
    table = shipped.table.slice(0, 6)
    for column, values in columns.items():
        at = table.schema.get_field_index(column)
        table = table.set_column(at, column, pa.array(values, table.schema.field(at).type))
    results.write(replace(shipped, experiment=name, toml="", table=table), folder / f"{name}.parquet")


NOT_MEASURED = {
    "gigpo",
    "igpo",
    "mt-grpo",
    "mt-grpo-fixed",
    "sampo",
    "a-3po",
    "a2tgpo",
    "ppo-ewma",
    "aspo",
    "decoupled-ppo",
    "m2po",
    "opsm",
    "otb",
    "prime-rl",
    "simpletir",
    "topr",
    "trm",
    "vcpo",
}


def test_the_shipped_lines_are_the_counts_of_the_shipped_runs() -> None:
    runs = results.read(SHIPPED / "six_by_five.parquet").runs
    told = measured()
    assert algorithms.measured() == told, "make docs"
    for name in ("ppo", "grpo", "st-ppo"):
        mine = runs[(runs["algorithm"] == name) & (runs["outcome"] != "falling")]
        fell = int((mine["outcome"] == "collapsed").sum())
        assert told[name].startswith(f"`six_by_five`: {fell} of {len(mine)} runs collapsed, seeds 0"), name
        assert "; `region_sgd`: half collapse at learn.policy.lr " in told[name]
    assert "`controls`: " in told["ppo"]
    assert told["gspo"].startswith("`neighbours` (old_log_prob rollout): ")
    assert set(ALGORITHMS) - set(told) == NOT_MEASURED, "the others have their shipped result"


def test_arms_that_an_axis_splits_have_a_line_each_and_named_controls_none(tmp_path: Path) -> None:
    arms = ["gspo · old_log_prob rollout"] * 3 + [
        "gspo (clip 0.2) · old_log_prob update",
        "gspo, on-policy",
        "other",
    ]
    outcomes = ["collapsed", "healthy", "diverged", "no_learning", "collapsed", "collapsed"]
    filed(tmp_path, "neighbours", arm=arms, outcome=outcomes, seed=[0, 1, 4, 2, 0, 0])
    assert measured(tmp_path) == {
        "gspo": (
            "`neighbours` (old_log_prob rollout): 2 of 3 runs collapsed, seeds 0, 1, 4, [9, 99] %; "
            "`neighbours` (clip 0.2, old_log_prob update): 0 of 1 runs collapsed, seed 2, [0, 98] %"
        )
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"status": ["running"] * 6},
        {"outcome": [None] * 6},
        {"outcome": ["falling"] * 6},
        {"slots": ["{}"] * 6},
        {"config": [None] * 6},
    ],
    ids=lambda changes: str(next(iter(changes.items()))),
)
def test_no_file_and_runs_not_over_not_judged_or_of_another_declaration_say_nothing(changes, tmp_path):
    assert measured(tmp_path) == {}
    filed(tmp_path, "neighbours", arm=["ppo"] * 6)
    assert set(measured(tmp_path)) == {"ppo"}
    filed(tmp_path, "neighbours", arm=["ppo"] * 6, **changes)
    assert measured(tmp_path) == {}
