from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.analysis.frames import arm, down, frame, up
from workbench.analysis.claims import hypotheses, summary, verdicts
from workbench.analysis.results import KEY, SIGNALS, Results, read, results, write
from workbench.analysis.runs import pooled
from workbench.spec import InputError

RUNS = frame(arm("red", down(6)), arm("green", up(6), "turn-ppo"))
ABOUT = {"experiment": "demo", "question": "Which | of <b>both</b>?", "toml": "seeds = [0]\n"}


def made(runs: pd.DataFrame = RUNS, **about: str) -> Results:
    return results(runs, ABOUT | about, ["Note: nothing."])


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    write(made(), tmp_path / "demo.parquet")
    found = read(tmp_path / "demo.parquet")
    assert (found.experiment, found.question, found.toml) == ("demo", ABOUT["question"], ABOUT["toml"])
    assert found.fairness == ("Note: nothing.",)
    pd.testing.assert_frame_equal(found.runs, made().runs)
    for name in ("run_id", "arm", "seed", "outcome", "final_success", "clip_frac", "grad_norm_max", "time", "event"):
        assert found.runs[name].tolist() == RUNS[name].tolist()
    assert np.allclose(found.runs["success_curve"].iloc[3], RUNS["success_curve"].iloc[3])
    assert found.runs["collapse_step"].isna().tolist() == RUNS["collapse_step"].isna().tolist()


def test_verdicts_from_the_file_are_those_from_the_runs(tmp_path: Path) -> None:
    write(made(), tmp_path / "demo.parquet")
    for words in (summary, hypotheses):
        told = words(verdicts(read(tmp_path / "demo.parquet").runs))
        pd.testing.assert_frame_equal(told, words(verdicts(made().runs)))


def test_any_client_reads_the_curves(tmp_path: Path) -> None:
    import duckdb

    write(made(), tmp_path / "demo.parquet")
    rows = f"SELECT arm, unnest(success) FROM '{tmp_path}/demo.parquet'"
    assert duckdb.sql(f"SELECT arm, count(*) FROM ({rows}) GROUP BY 1 ORDER BY 1").fetchall() == [
        ("green", 240),
        ("red", 240),
    ]


def test_a_file_from_before_a_signal_was_kept_has_it_as_null(tmp_path: Path) -> None:
    write(made(), tmp_path / "demo.parquet")
    table = pq.read_table(tmp_path / "demo.parquet")
    old = table.select([name for name in table.column_names if name not in SIGNALS])
    pq.write_table(old.replace_schema_metadata(table.schema.metadata), tmp_path / "old.parquet")
    found = read(tmp_path / "old.parquet")
    assert found.runs["kl_k3_curve"].isna().all()
    pd.testing.assert_frame_equal(found.runs, made().runs)


def other_parquet(file: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), file)


def other_format(file: Path) -> None:
    about = {"format": 99, "experiment": "x", "question": "x", "toml": "", "fairness": []}
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({KEY: json.dumps(about).encode()}), file)


def without_a_column(file: Path) -> None:
    write(made(), file)
    table = pq.read_table(file)
    pq.write_table(table.drop_columns(["seed", "success"]), file)


def with_another_type(file: Path) -> None:
    write(made(), file)
    table = pq.read_table(file)
    at = table.schema.get_field_index("seed")
    pq.write_table(table.set_column(at, "seed", pa.array(["one"] * len(table))), file)


def broken_words(file: Path) -> None:
    write(made(), file)
    pq.write_table(pq.read_table(file).replace_schema_metadata({KEY: b"{"}), file)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda file: None, "no file '"),
        (lambda file: file.write_text("seeds = [0]"), "is no Parquet file of results"),
        (lambda file: file.mkdir(), "is a folder"),
        (other_parquet, "is a Parquet file, but not one of results"),
        (broken_words, "is a Parquet file, but not one of results"),
        (other_format, "holds results in format 99, this version of sorl reads 1"),
        (without_a_column, "lacks the columns seed, success"),
        (with_another_type, "has a column of another type"),
    ],
)
def test_a_wrong_file_is_one_message_that_says_how_to_make_one(make, words: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "x.parquet"
    make(file)
    with pytest.raises(InputError, match="sorl report EXPERIMENT --export") as caught:
        read(file)
    assert words in str(caught.value)


def test_equal_arms_of_two_experiments_are_one_and_equal_names_of_different_arms_are_two() -> None:
    one = made(frame(arm("red", down(3)), arm("green", up(3), "turn-ppo")))
    other = made(frame(arm("scarlet", down(5)), arm("green", up(5), "s-ppo")), experiment="more")
    runs = pooled([one, other])
    assert runs.groupby("arm")["seed"].count().to_dict() == {"red": 5, "green": 3, "green (more)": 5}
    # A seed that both have counts once, as the first experiment recorded it.
    assert runs[runs["arm"] == "red"]["run_id"].tolist() == ["red-s0", "red-s1", "red-s2", "scarlet-s3", "scarlet-s4"]
    pd.testing.assert_frame_equal(pooled([one]), one.runs)
