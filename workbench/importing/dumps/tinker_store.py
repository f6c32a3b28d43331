"""The SQLite store of tinker-cookbook's capture, read without writing and forward only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sorl.importing.dumps.files import LONGEST_LINE, decoded
from sorl.spec import InputError

STORE = "capture.sqlite"
FIRST_BYTES = b"SQLite format 3\x00"
SCOPE = ("run_id", "run_attempt", "split", "iteration", "group_idx", "traj_idx", "purpose")
JSON_COLUMNS = ("prompt_tokens", "sampled_tokens", "logprobs", "metadata")
OTHERS = ("sampling_session_id", "seq_id", "sample_idx", "policy_version")
COLUMNS = ("cursor", *SCOPE, *OTHERS, *JSON_COLUMNS)


class CaptureStore:
    """Table `wire_rows` of a store, one row a sampled sequence."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._cursor = -1  # of the last row that was read

    def is_store(self) -> bool:
        """Whether the file is there and is SQLite's."""
        if not self.file.is_file():
            return False
        with self.file.open("rb") as handle:
            return handle.read(len(FIRST_BYTES)) == FIRST_BYTES

    def newest_run(self) -> str | None:
        """The run that was written to last; None where nothing was."""
        with closing(self._connection()) as connection:
            row = self._first(connection, "SELECT run_id FROM wire_rows ORDER BY cursor DESC LIMIT 1")
        return None if row is None else str(row[0])

    def has_other_runs(self, run: str | None) -> bool:
        """Whether other runs were captured into the store."""
        with closing(self._connection()) as connection:
            statement = "SELECT 1 FROM wire_rows WHERE run_id <> ? LIMIT 1"
            return self._first(connection, statement, run) is not None

    def records(self, run: str | None) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield what came of a run since the last call: records as in the files of a capture, and bytes."""
        statement = (
            f"SELECT {', '.join(COLUMNS)} FROM wire_rows WHERE cursor > ? AND run_id = ? ORDER BY cursor"
        )
        with closing(self._connection()) as connection:
            try:
                for values in connection.execute(statement, (self._cursor, run)):
                    row = dict(zip(COLUMNS, values, strict=True))
                    self._cursor = row["cursor"]
                    size = sum(len(row[name]) for name in JSON_COLUMNS if isinstance(row[name], str))
                    yield self._record(row), size
            except sqlite3.Error as error:
                raise InputError(f"'{self.file}' cannot be read: {error}") from None

    def _connection(self) -> sqlite3.Connection:
        address = f"{self.file.absolute().as_uri()}?mode=ro"
        try:
            connection = sqlite3.connect(address, uri=True)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_LINE)
            connection.execute("PRAGMA trusted_schema = OFF")  # no code that the file brings along
        except sqlite3.Error as error:
            raise InputError(f"'{self.file}' cannot be read: {error}") from None
        return connection

    def _first(self, connection: sqlite3.Connection, statement: str, *values: object) -> Any:
        try:
            return connection.execute(statement, values).fetchone()
        except sqlite3.Error as error:
            raise InputError(f"'{self.file}' cannot be read: {error}") from None

    def _record(self, row: dict[str, Any]) -> dict[str, Any]:
        columns = {name: self._decoded(row, name) for name in JSON_COLUMNS}
        metadata = {} if columns["metadata"] is None else columns["metadata"]
        if not isinstance(metadata, dict):
            raise InputError(f"'{self.file}', row {row['cursor']}: metadata is no JSON object")
        sample = {
            "tokens": columns["sampled_tokens"],
            "logprobs": columns["logprobs"],
            "stop_reason": metadata.get("stop_reason"),
        }
        return {
            "scope": {name: row[name] for name in SCOPE if row[name] is not None},
            "sampling_session_id": row["sampling_session_id"],
            "seq_id": row["seq_id"],
            "sample_idx": row["sample_idx"],
            "num_samples": metadata.get("num_samples", 1),
            "model_path": row["policy_version"],
            "sampling_params": metadata.get("sampling_params"),
            "prompt_tokens": columns["prompt_tokens"],
            "samples": [sample],
        }

    def _decoded(self, row: dict[str, Any], name: str) -> Any:
        if row[name] is None:
            return None
        try:
            return decoded(row[name].encode())
        except (ValueError, AttributeError, RecursionError):
            raise InputError(f"'{self.file}', row {row['cursor']}: {name} is no JSON") from None
