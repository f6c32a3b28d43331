import json
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sorl.analysis.results import KEY, Results, read, results, write
from sorl.spec import InputError
from tests.analysis.frames import arm, down, frame, up

RUNS = frame(arm("red", down(6)), arm("green", up(6), "turn-ppo"))
ABOUT = {"experiment": "demo", "question": "Which | of <b>both</b>?", "toml": "seeds = [0]\n"}


def made(runs: pd.DataFrame = RUNS, **about: str) -> Results:
    return results(runs, ABOUT | about, ["Note: nothing."])


def test_a_file_gives_back_what_was_written_and_any_client_reads_its_curves(tmp_path: Path) -> None:
    write(made(), tmp_path / "demo.parquet")
    found = read(tmp_path / "demo.parquet")
    assert (found.experiment, found.question, found.toml) == ("demo", ABOUT["question"], ABOUT["toml"])
    assert found.fairness == ("Note: nothing.",)
    pd.testing.assert_frame_equal(found.runs, made().runs)
    for name in (
        "run_id",
        "arm",
        "seed",
        "outcome",
        "final_success",
        "clip_frac",
        "grad_norm_max",
        "time",
        "event",
    ):
        assert found.runs[name].tolist() == RUNS[name].tolist()
    assert np.allclose(found.runs["success_curve"].iloc[3], RUNS["success_curve"].iloc[3])
    assert found.runs["collapse_step"].isna().tolist() == RUNS["collapse_step"].isna().tolist()
    rows = f"SELECT arm, unnest(success) FROM '{tmp_path}/demo.parquet'"
    counts = duckdb.sql(f"SELECT arm, count(*) FROM ({rows}) GROUP BY 1 ORDER BY 1").fetchall()
    assert counts == [("green", 240), ("red", 240)]


def about(text: bytes):
    return lambda table: table.replace_schema_metadata({KEY: text})


OTHER = json.dumps({"format": 99, "experiment": "x", "question": "x", "toml": "", "fairness": []}).encode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "no file '"),
        ("seeds = [0]", "is no Parquet file of results"),
        (Path.mkdir, "is a folder"),
        (lambda table: pa.table({"a": [1]}), "is no Parquet file of results"),
        (about(b"{"), "is no Parquet file of results"),
        (about(OTHER), "holds results in format 99, this version of sorl reads 1"),
        (
            lambda table: table.drop_columns(["seed", "success"]),
            "is no Parquet file of results ('Field \"seed\" does not exist in schema')",
        ),
        (
            lambda table: table.set_column(
                table.schema.get_field_index("seed"), "seed", pa.array(["one"] * len(table))
            ),
            "is no Parquet file of results (Failed to parse string: 'one'",
        ),
    ],
)
def test_a_wrong_file_is_one_message_that_says_how_to_make_one(change, words: str, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    if isinstance(change, str):
        file.write_text(change)
    elif change is Path.mkdir:
        file.mkdir()
    elif change is not None:
        write(made(), file)
        pq.write_table(change(pq.read_table(file)), file)
    with pytest.raises(InputError, match="sorl report EXPERIMENT --export") as caught:
        read(file)
    assert words in str(caught.value)
