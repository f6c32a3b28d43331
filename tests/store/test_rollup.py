from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.store.contents import one
from tests.store.fixture import write_dictionary, write_segment, write_status
from workbench.diagnostics import CATALOGUE
from workbench.spec import ROLLUPS
from workbench.store.reader import Reader
from workbench.store.sync import forget, sync

NAN = float("nan")


def write(folder: Path, first: int, last: int, status: str = "queued") -> None:
    """Steps [first, last) of a run with two turns each: values that no two rows share, some missing, some no number."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "segments" / "diagnostic").exists():
        write_dictionary(folder)
    write_status(folder, status=status)
    steps = list(range(first, last))
    grad = [NAN if s == 40 else None if s % 7 == 0 else s / 3 for s in steps]
    write_segment(folder, "step", {"run_id": [folder.name] * len(steps), "step": steps, "grad_norm_max": grad})
    pairs = [(s, t) for s in steps for t in (1, 2)]
    write_segment(
        folder, "turn_step",
        {"run_id": [folder.name] * len(pairs), "step": [s for s, _ in pairs], "turn_index": [t for _, t in pairs],
         "ratio_geo": [(1 + s) / (100 * t) for s, t in pairs], "n_turns": [8] * len(pairs)},
    )  # fmt: skip


def rolled(runs: Path, run_id: str, table: str = "step") -> int:
    return int(one(runs, "SELECT rolled_to FROM span WHERE run_id = ? AND table_name = ?", run_id, table))


def blocks(runs: Path) -> list[tuple[Any, ...]]:
    found = [("", *row) for row in Reader(runs).rows("FROM span ORDER BY ALL").rows]
    for rollup in ROLLUPS:
        measured = "grad_norm_max" if rollup.source in ("step", "minibatch") else "ratio_geo"
        keys = ", ".join(("run_id", *rollup.keys, "block"))
        asked = f"SELECT {keys}, {measured}.* FROM {rollup.name} ORDER BY {keys}"
        if rollup.source != "minibatch":
            found += [(rollup.name, *row) for row in Reader(runs).rows(asked).rows]
    return found


def written(row: tuple[Any, ...]) -> str:
    """A row to twelve digits: sums depend on the order of their terms in the last ones."""
    return " ".join(f"{value:.12g}" if isinstance(value, float) else str(value) for value in row)


def test_blocks_hold_the_counts_sums_and_extremes_of_their_rows(tmp_path: Path) -> None:
    write(tmp_path / "demo" / "a", 0, 600, "finished")
    sync(tmp_path, CATALOGUE)
    reader = Reader(tmp_path)
    for rollup in ROLLUPS:
        if rollup.source == "minibatch":
            continue
        column = "grad_norm_max" if rollup.source == "step" else "ratio_geo"
        turn = "".join(f"{key}, " for key in rollup.keys)
        finite = f"FILTER (isfinite({column}))"
        told = reader.rows(
            f"SELECT {turn}step // {rollup.width} AS block, "
            f"count(*) {finite}, count(*) FILTER (NOT isfinite({column})), "
            f"sum({column}) {finite}, min({column}) {finite}, max({column}) {finite} "
            f"FROM {rollup.source} GROUP BY ALL ORDER BY ALL"
        )
        found = reader.rows(
            f"SELECT {turn}block, {column}.n, {column}.broken, {column}.total, {column}.low, {column}.high "
            f"FROM {rollup.name} ORDER BY ALL"
        )
        assert len(found.rows) == -(-600 // rollup.width) * (2 if rollup.keys else 1)
        for a, b in zip(found.rows, told.rows, strict=True):
            assert a == pytest.approx(b, rel=1e-12)
    assert one(tmp_path, "SELECT grad_norm_max.broken FROM step_block_16 WHERE block = 2") == 1
    log = one(tmp_path, "SELECT sum(ratio_geo.log) FROM turn_step_block_64")
    assert log == pytest.approx(one(tmp_path, "SELECT sum(ln(greatest(ratio_geo, exp(-20)))) FROM turn_step"))
    assert one(tmp_path, "SELECT sum(n_turns.total) FROM turn_step_block_64") == 8 * 1200


def test_a_live_run_is_rolled_up_in_whole_blocks_and_a_short_one_never(tmp_path: Path) -> None:
    write(tmp_path / "demo" / "live", 0, 500)
    write(tmp_path / "demo" / "short", 0, 100, "finished")
    sync(tmp_path, CATALOGUE)
    assert rolled(tmp_path, "live") == rolled(tmp_path, "short") == 0
    write(tmp_path / "demo" / "live", 500, 525)
    sync(tmp_path, CATALOGUE)
    assert rolled(tmp_path, "live") == rolled(tmp_path, "live", "turn_step") == 512
    write(tmp_path / "demo" / "live", 525, 530, "finished")
    sync(tmp_path, CATALOGUE)
    assert rolled(tmp_path, "live") == 530
    assert one(tmp_path, "SELECT sum(grad_norm_max.n) FROM step_block_64") == one(
        tmp_path, "SELECT count(*) FROM step WHERE isfinite(grad_norm_max) AND run_id = 'live'"
    )


def test_a_run_that_goes_on_after_its_end_has_the_block_at_its_former_end_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "demo" / "a"
    for first, last in ((0, 530), (530, 700)):  # 530 is inside a block of every width
        write(folder, first, last, "finished")
        sync(tmp_path, CATALOGUE)
    for rollup in ROLLUPS:
        measured = "grad_norm_max" if rollup.source == "step" else "ratio_geo"
        if rollup.source == "minibatch":
            continue
        asked = f"SELECT sum({measured}.n), sum({measured}.total), count(*) FROM {rollup.name}"
        told = f"SELECT count({measured}), sum({measured}) FROM {rollup.source} WHERE isfinite({measured})"
        *found, rows = Reader(tmp_path).rows(asked).rows[0]
        assert found == pytest.approx(list(Reader(tmp_path).rows(told).rows[0]), rel=1e-12)
        assert rows == -(-700 // rollup.width) * (2 if rollup.keys else 1)


def test_a_deleted_database_gets_the_same_roll_ups_again(tmp_path: Path) -> None:
    folder = tmp_path / "demo" / "a"
    for first, last in ((0, 520), (520, 700), (700, 1100)):
        write(folder, first, last, "finished" if last == 1100 else "queued")
        sync(tmp_path, CATALOGUE)
    grown = blocks(tmp_path)
    (tmp_path / "sorl.duckdb").unlink()
    sync(tmp_path, CATALOGUE)
    rebuilt = blocks(tmp_path)
    assert len(grown) > 100
    assert [written(row) for row in grown] == [written(row) for row in rebuilt]


def test_rows_of_a_step_that_is_rolled_up_already_are_not_lost(tmp_path: Path) -> None:
    folder = tmp_path / "demo" / "a"
    write(folder, 100, 700, "finished")
    sync(tmp_path, CATALOGUE)
    write(folder, 0, 100, "finished")  # the log of another trainer may come in any order
    sync(tmp_path, CATALOGUE)
    assert one(tmp_path, "SELECT sum(ratio_geo.n) FROM turn_step_block_64") == 1400
    assert one(tmp_path, "SELECT first_step FROM span WHERE table_name = 'step'") == 0


def test_forgotten_and_deleted_runs_leave_no_blocks(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / "demo" / name, 0, 600, "finished")
    sync(tmp_path, CATALOGUE)
    forget(tmp_path, "a")
    assert one(tmp_path, "SELECT list(DISTINCT run_id) FROM step_block_64") == ["b"]
    assert one(tmp_path, "SELECT list(DISTINCT run_id) FROM span") == ["b"]
    sync(tmp_path, CATALOGUE)
    assert one(tmp_path, "SELECT count(DISTINCT run_id) FROM step_block_64") == 2


def test_a_database_from_before_the_roll_ups_gets_them(tmp_path: Path) -> None:
    import duckdb

    write(tmp_path / "demo" / "a", 0, 600, "finished")
    sync(tmp_path, CATALOGUE)
    before = blocks(tmp_path)
    with duckdb.connect(str(tmp_path / "sorl.duckdb")) as connection:
        for name in ("span", *(rollup.name for rollup in ROLLUPS)):
            connection.execute(f"DROP TABLE {name}")
        connection.execute("CREATE TABLE step_block (run_id VARCHAR, block BIGINT)")  # the only width that there was
        connection.execute("DROP MACRO sorl_schema")
    sync(tmp_path, CATALOGUE)
    assert blocks(tmp_path) == before
    assert one(tmp_path, "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'step_block'") == 0
