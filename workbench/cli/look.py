"""`sorl ls`, `sorl show RUN`, `sorl sql`: experiments and runs, one run with its events, the tables of the database."""

import json
from pathlib import Path
from typing import Any

from typer import Argument, Context, Option

from workbench.cli.shared import OUTPUT, RUN, current, experiments, find, one_of
from workbench.cli.tables import as_text, cell, echo, note, print_table, records, save, save_parquet
from workbench.spec import COLLAPSED, TABLES, InputError, RunSettings, nearest
from workbench.spec.files import from_json, leaves
from workbench.spec.vocabulary import cause
from workbench.store.reader import saved as saved_queries
from workbench.store.reader import saved_query
from workbench.store.text import log_of, tail

_EXPERIMENTS = """
    SELECT experiment, any_value(question) AS question, count(*) AS runs,
           count(*) FILTER (status = 'finished') AS finished,
           count(*) FILTER (status = 'running') AS running,
           count(*) FILTER (status IN ('failed', 'interrupted')) AS stopped,
           count(*) FILTER (list_contains($collapsed, outcome)) AS collapsed,
           count(*) FILTER (outcome = 'falling') AS "falling at the end"
    FROM run LEFT JOIN experiment USING (experiment)
    WHERE $all OR run_id IN (SELECT run_id FROM cell)
    GROUP BY experiment ORDER BY max(started_at) DESC NULLS FIRST, experiment
"""
_RUNS = """
    SELECT run_id, arm, seed, status, outcome, steps, collapse_step, peak_success, final_success, seconds, started_at
    FROM run WHERE experiment = $experiment AND ($all OR run_id IN (SELECT run_id FROM cell))
    ORDER BY arm, seed, run_id
"""
_FACTS = (
    "experiment", "algorithm", "arm", "seed", "generation", "attempt", "status", "reason", "outcome", "collapse_step",
    "detection_step", "peak_success", "final_success", "steps", "started_at", "ended_at", "seconds", "config_hash",
    "versions",
)  # fmt: skip
_ALL, _KINDS = 20, 40  # events that are all listed; kinds of more, of which the first is
_EVENTS = f"""
    SELECT step, max(step) OVER kinds AS last, count(*) OVER kinds AS n, count(*) OVER () AS total,
           severity, kind, diagnostic, value, threshold, message
    FROM event WHERE run_id = ? WINDOW kinds AS (PARTITION BY severity, kind, diagnostic)
    QUALIFY total <= {_ALL} OR row_number() OVER (PARTITION BY severity, kind, diagnostic ORDER BY step) = 1
    ORDER BY step NULLS FIRST, severity, kind LIMIT {_KINDS}
"""
_ROWS = "SELECT table_name, count(*) AS segments, sum(rows) AS rows FROM segment WHERE run_id = ? GROUP BY 1 ORDER BY 1"
_LIMIT = 1000  # rows of a table on the terminal
_MOST = f"Most rows to return; default: {_LIMIT} for a table, all for a file."
_COUNTS = " UNION ALL ".join(f"SELECT '{t.name}' AS name, count(*) AS rows FROM \"{t.name}\"" for t in TABLES)
_TABLES = f"""
    SELECT t.table_name AS name, 'table' AS kind, counted.rows, t.column_count AS columns, t.comment AS grain
    FROM duckdb_tables() t JOIN ({_COUNTS}) AS counted ON counted.name = t.table_name WHERE NOT t.internal
    UNION ALL
    SELECT view_name, 'view', NULL, column_count, comment FROM duckdb_views() WHERE NOT internal
    ORDER BY kind, name
"""
_COLUMNS = """
    SELECT column_name AS column, data_type AS type, comment AS description
    FROM duckdb_columns() WHERE table_name = ? AND NOT internal ORDER BY column_index
"""


def ls(
    ctx: Context,
    experiment: str | None = Argument(None, help="List only this experiment."),
    everything: bool = Option(False, "--all", help="Include runs that `sorl run --fresh` replaced."),
) -> None:
    """List the experiments with their runs, or one experiment with `sorl ls EXPERIMENT`."""
    reader = current(ctx.obj)
    experiments(reader, experiment)
    found = reader.rows(_EXPERIMENTS, {"all": everything, "collapsed": list(COLLAPSED)})
    if not found.rows:
        note(f"no runs in '{ctx.obj}' yet: `sorl run FILE.toml` trains a grid")
    for name, question, *counts in found.rows:
        if experiment in (None, name):
            words = [f"{n} {word}" for n, word in zip(counts, found.columns[2:], strict=True)]
            shown = [word for word, n in zip(words, counts, strict=True) if n or word in words[:2]]
            echo(f"{name}: {', '.join(shown)}" + (f"\n{question}" if question else ""))
            answer = reader.rows(_RUNS, {"experiment": name, "all": everything})
            print_table(answer.columns, answer.rows)
            echo()


def show(
    ctx: Context,
    run: str = RUN,
    config: bool = Option(False, "--config", help="Print every setting, not only the changed ones."),
    log: int | None = Option(None, min=0, help="Lines of console.log to print; default: 20 if the run failed."),
) -> None:
    """Show one run: status, outcome, events, changed settings, and the end of its log if it failed."""
    reader = current(ctx.obj)
    with reader.together():
        run_id = find(reader, run)
        (row,) = records(*reader.rows("SELECT * FROM run WHERE run_id = ?", [run_id])[:2])
        events, recorded = reader.rows(_EVENTS, [run_id]), reader.rows(_ROWS, [run_id])
    echo(run_id)
    for name in _FACTS:
        if row.get(name) is not None:
            echo(f"  {name:<16}{cell(row[name])}")
    total = events.rows[0][3] if events.rows else 0
    more = f", the first of each kind; all: sorl sql \"SELECT * FROM event WHERE run_id = '{run_id}' ORDER BY step\""
    echo(f"\nEvents: {total or 'none'}{more if total > _ALL else ''}")
    if events.rows:
        shown = [i for i, name in enumerate(events.columns) if name != "total" and (total > _ALL or i not in (1, 2))]
        print_table([events.columns[i] for i in shown], [[row[i] for i in shown] for row in events.rows])
    echo("\nRecorded")
    print_table(recorded.columns, recorded.rows)

    echo("\nConfiguration" if config else "\nConfiguration, where it differs from the defaults (--config: all)")
    default = {} if config else dict(leaves(RunSettings().model_dump(mode="json")))
    try:
        for key, value in leaves(from_json(row["config"] or "{}")):
            if key not in default or default[key] != value:
                echo(f"  {key} = {json.dumps(value, ensure_ascii=False)}")
    except (ValueError, AttributeError):
        echo("  the stored configuration is not a JSON object")

    lines = log if log is not None else 20 if cause(row) else 0
    if lines:
        console = log_of(ctx.obj, str(row["experiment"]), run_id)
        echo(f"\nEnd of {console}" if console else "\nNo console.log")
        for line in tail(console)[-lines:] if console else ():
            echo(f"  {line}")


def sql(
    ctx: Context,
    query: str | None = Argument(None, metavar="[SELECT ... | TABLE]", help="A statement, or a table to describe."),
    saved: str | None = Option(None, metavar="NAME", help="Run a saved query."),
    form: str = one_of("--format", "table", "csv", "json", "parquet", default="table"),
    output: Path | None = OUTPUT,
    limit: int | None = Option(None, min=1, help=_MOST),
    seconds: float = Option(60.0, min=0.001, help="Stop the query after this many seconds."),
) -> None:
    """Run a read-only SQL query. Without one, list the tables; with a table's name, list its columns."""
    if form == "parquet" and output is None:
        raise InputError("--format parquet writes a binary file: add --output FILE.parquet")
    if query is not None and saved is not None:
        raise InputError("both a query and --saved were given; give only one")
    text = saved_query(saved).sql if saved is not None else _TABLES if query is None else query
    parameters: list[Any] | None = None
    reader = current(ctx.obj, seconds=seconds)
    if query is not None and (name := query.strip()).isidentifier():
        names = [row[0] for row in reader.rows(_TABLES).rows]
        if name not in names:
            raise InputError(f"no table '{name}'{nearest(name, names)}; `sorl sql` lists them")
        text, parameters = _COLUMNS, [name]
    if form == "parquet" and output is not None:
        save_parquet(reader.excerpt(text, parameters).table, output)
        return
    on_terminal = form == "table" and output is None
    answer = reader.rows(text, parameters, limit=limit or (_LIMIT if on_terminal else None))
    if on_terminal:
        print_table(answer.columns, answer.rows, null="NULL")
    else:
        save(as_text(answer.columns, answer.rows, "json" if form == "json" else "csv"), output)
    if answer.cut:
        note(f"only the first {len(answer.rows):,} rows; --limit N shows more, --output FILE --format csv writes all")
    if query is None and saved is None and on_terminal:
        echo("\nSaved queries (sorl sql --saved NAME)")
        width = max(len(one.name) for one in saved_queries())
        for one in saved_queries():
            echo(f"  {one.name.ljust(width)}  {one.title}")
