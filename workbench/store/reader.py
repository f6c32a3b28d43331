"""Hardened read-only queries, one SELECT at a time; saved queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from threading import Timer, local
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sorl.spec import InputError, nearest
from sorl.store import connect
from sorl.store.schema import titled

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from duckdb import DuckDBPyConnection, Statement

T = TypeVar("T")
Parameters = Sequence[Any] | dict[str, Any] | None

QUERIES = Path(__file__).parent / "queries"
_BATCH = 2048  # rows read at once: as many as DuckDB makes at once
_WAIT = 10.0  # seconds for a writer to finish; a sync takes far less
_TIME_LIMIT = 60.0
_QUERY_ONLY = (
    "only one SELECT (WITH, FROM, VALUES, SHOW, DESCRIBE, SUMMARIZE, PIVOT ... IN, EXPLAIN) may be asked"
)


class Answer(NamedTuple):
    """The rows of a question as Python values: NULL is None, NaN is NaN; `cut` says that the row limit cut it
    off.
    """

    columns: list[str]
    rows: list[tuple[Any, ...]]
    cut: bool = False


class Excerpt(NamedTuple):
    """The rows that were read; `cut` says that there are more."""

    table: pa.Table
    cut: bool


class Cancel:
    """Stops a question from another thread: call it."""

    def __init__(self) -> None:
        self.asked = False
        self.interrupt: Callable[[], object] = bool  # of the connection that has the question

    def __call__(self) -> None:
        """Stop the question, which then raises InputError; one that has its answer stays as it is."""
        import duckdb

        self.asked = True
        with suppress(duckdb.ConnectionException):  # closed
            self.interrupt()


class Reader:
    """Asks the index database of a runs folder; opens it for each question, or once for a block of
    `together`.
    """

    def __init__(self, runs: Path, *, wait: float = _WAIT, seconds: float = _TIME_LIMIT) -> None:
        """`wait` limits the waiting for a writer, `seconds` the running time of a question."""
        self.runs = Path(runs)
        self.wait = wait
        self.seconds = seconds
        # of each thread: `open`, inside a block of `together`, and whether it is `kept` open
        self._few = local()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Keep the database open for this thread's queries in the block: opening is slower than most; writers
        wait.
        """
        if hasattr(self._few, "open"):
            yield
            return
        try:
            with ExitStack() as self._few.open:
                yield
        finally:
            self._few.__dict__.clear()

    def query(self, sql: str, parameters: Parameters = None) -> pd.DataFrame:
        """The answer as a DataFrame (NULL and NaN of a number column are both NaN there; `rows` keeps them
        apart).

        Raises InputError for anything but one SELECT, for a mistake in it, for a question that runs too long,
        and connect.Busy for a database that stays locked.
        """
        return self._ask(sql, lambda c, asked: c.execute(asked, parameters).df())

    def rows(self, sql: str, parameters: Parameters = None, *, limit: int | None = None) -> Answer:
        """Return the answer as Python values, at most `limit` rows; raises as `query` does."""

        def fetch(connection: DuckDBPyConnection, asked: Statement) -> Answer:
            connection.execute(asked, parameters)
            names = [column[0] for column in connection.description or []]
            found = connection.fetchall() if limit is None else connection.fetchmany(limit + 1)
            return Answer(names, found[:limit], cut=limit is not None and len(found) > limit)

        return self._ask(sql, fetch)

    def excerpt(
        self,
        sql: str,
        parameters: Parameters = None,
        *,
        rows: float = math.inf,
        size: float = math.inf,
        cancel: Cancel | None = None,
    ) -> Excerpt:
        """Return the first `rows` rows as an Arrow table, of about `size` bytes at most; raises as `query`
        does.
        """

        def fetch(connection: DuckDBPyConnection, asked: Statement) -> Excerpt:
            import duckdb

            try:
                # streams; execute would make every row first
                found = connection.sql(asked, params=parameters)
            except duckdb.Error:
                connection.execute(asked, parameters)  # says the same with the line in question
                raise
            return _first_rows(found.to_arrow_reader(_BATCH), rows, size)

        return self._ask(sql, fetch, cancel or Cancel())

    def _ask(
        self, sql: str, fetch: Callable[[DuckDBPyConnection, Statement], T], cancel: Cancel | None = None
    ) -> T:
        import duckdb

        path = connect.database(self.runs)
        if not path.exists():
            raise InputError(f"no database '{path}' yet: `sorl sync` builds it from the run folders")
        with connect.reader(self.runs, self.wait) as connection:
            if hasattr(self._few, "open") and not hasattr(self._few, "kept"):
                with suppress(connect.Busy):  # then the next question opens it again
                    self._few.kept = self._few.open.enter_context(connect.reader(self.runs, 0.0))
            statement = _one_select(connection, sql)
            stop = Timer(self.seconds, connection.interrupt)
            stop.daemon = True
            stop.start()
            try:
                if cancel is not None:
                    cancel.interrupt = connection.interrupt
                    if cancel.asked:
                        raise duckdb.InterruptException
                return fetch(connection, statement)
            except duckdb.InterruptException:
                if cancel is not None and cancel.asked:
                    raise InputError("cancelled") from None
                words = "ask for fewer runs or steps (WHERE run_id = ...), or allow more time"
                raise InputError(f"stopped after {self.seconds:g} s: {words}") from None
            except (
                duckdb.IOException,
                duckdb.SerializationException,
                duckdb.InternalException,
                duckdb.FatalException,
            ):
                raise  # the file is damaged
            # Arrow passes on as an OSError what happens after the first rows
            except (duckdb.Error, OSError) as error:
                raise InputError(_words(error)) from None
            finally:
                stop.cancel()


def _one_select(connection: DuckDBPyConnection, sql: str) -> Statement:
    """Return the only statement of `sql`; InputError when it is none, several, or one that does more than
    look.
    """
    import duckdb

    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise InputError(_words(error)) from None
    if len(statements) != 1:
        raise InputError(
            f"{'nothing was asked' if not statements else f'{len(statements)} statements'}: {_QUERY_ONLY}"
        )
    kind = statements[0].type
    if kind not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        name = str(kind).rpartition(".")[2]
        hint = (
            "; a PIVOT needs its values: PIVOT t ON column IN ('a', 'b') USING ..." if name == "MULTI" else ""
        )
        raise InputError(f"{name} is not a question: {_QUERY_ONLY}{hint}")
    return statements[0]


def _words(error: Exception) -> str:
    """DuckDB's message, which names the nearest table or column, without what only its developers need."""
    return "\n".join(line for line in str(error).splitlines() if line.strip() and "duckdb.org" not in line)


def _first_rows(batches: pa.RecordBatchReader, rows: float, size: float) -> Excerpt:
    """Return at most `rows` rows, and no further batch once `size` bytes are exceeded; repeated names get a
    number.
    """
    import pyarrow as pa

    parts: list[pa.RecordBatch] = []
    seen = taken = 0
    while seen <= rows and taken <= size and (batch := next(batches, None)) is not None:
        parts.append(batch)
        seen = seen + batch.num_rows
        taken = taken + batch.nbytes
    cut = seen > rows or next(batches, None) is not None
    table = pa.Table.from_batches(parts, schema=batches.schema).slice(0, min(rows, seen))
    names: list[str] = []
    for name in table.column_names:
        numbered = (f"{name}_{i}" for i in count(2))
        names.append(next(free for free in chain([name], numbered) if free not in names))
    return Excerpt(pa.Table.from_arrays([_plain(column) for column in table.columns], names=names), cut)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Make text of structs, maps, intervals and other types that Parquet or a table on a screen
    do not know.
    """
    import pyarrow as pa
    import pyarrow.types as kinds

    scalar = (
        kinds.is_boolean,
        kinds.is_integer,
        kinds.is_floating,
        kinds.is_decimal,
        kinds.is_string,
        kinds.is_timestamp,
        kinds.is_date,
        kinds.is_time,
    )
    if kinds.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if any(
        is_kind(column.type.value_type if kinds.is_list(column.type) else column.type) for is_kind in scalar
    ):
        return column
    texts: list[Any] = [None if value is None else str(value) for value in column.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


class Saved(NamedTuple):
    """A saved query."""

    name: str
    title: str
    sql: str


def saved() -> list[Saved]:
    """Return the saved queries, by name."""
    return [Saved(name, *parts) for name, parts in titled(QUERIES).items()]


def saved_query(name: str) -> Saved:
    """Return the saved query `name`; InputError with the nearest name for an unknown one."""
    known = {query.name: query for query in saved()}
    if name not in known:
        raise InputError(f"no saved query '{name}'{nearest(name, known)}; there is: {', '.join(known)}")
    return known[name]
