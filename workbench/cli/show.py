"""`sorl show RUN`: one run with its events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.shared import echo
from workbench.spec.files import from_json, leaves

if TYPE_CHECKING:
    from workbench.store.reader import Reader

_LOG_LINES = 20
_FACTS = (
    "experiment", "algorithm", "arm", "seed", "generation", "attempt", "status", "reason", "outcome", "collapse_step",
    "detection_step", "peak_success", "final_success", "steps", "started_at", "ended_at", "seconds", "config_hash",
    "versions",
)  # fmt: skip
_EVENTS = """
    SELECT step, severity, kind, diagnostic, value, threshold, message
    FROM event WHERE run_id = ? ORDER BY step NULLS FIRST, severity, kind
"""
_ROWS = (
    "SELECT table_name, count(*) AS segments, sum(rows) AS rows FROM segment WHERE run_id = ? GROUP BY ALL ORDER BY 1"
)


def show(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id or a unique prefix of one.", show_default=False)],
    config: Annotated[bool, typer.Option("--config", help="Print every setting, not only the changed ones.")] = False,
    log: Annotated[
        int | None, typer.Option(min=0, help="Lines of console.log to print; default: 20 if the run failed.")
    ] = None,
) -> None:
    """Show one run: status, outcome, events, changed settings, and the end of its log if it failed."""
    from workbench.cli.shared import cell, current
    from workbench.cli.tables import print_table
    from workbench.spec.outcomes import cause
    from workbench.store.text import log_of, tail

    reader = current(ctx.obj)
    run_id = find(reader, run)
    answer = reader.rows("SELECT * FROM run WHERE run_id = ?", [run_id])
    row = dict(zip(answer.columns, answer.rows[0], strict=True))
    echo(run_id)
    for name in _FACTS:
        if row.get(name) is not None:
            echo(f"  {name:<16}{cell(row[name])}")
    events = reader.rows(_EVENTS, [run_id])
    echo(f"\nEvents: {len(events.rows) or 'none'}")
    if events.rows:
        print_table(events.columns, events.rows)
    recorded = reader.rows(_ROWS, [run_id])
    echo("\nRecorded")
    print_table(recorded.columns, recorded.rows)
    stored = _stored(row["config"])
    changed = stored if config else _changes(stored)
    echo("\nConfiguration" if config else "\nConfiguration, where it differs from the defaults (--config: all)")
    for key, value in leaves(changed or {}):
        echo(f"  {key} = {json.dumps(value, ensure_ascii=False)}")
    if stored is None:
        echo("  the stored configuration is not a JSON object")
    if lines := (_LOG_LINES if cause(row) else 0) if log is None else log:
        console = log_of(Path(ctx.obj), str(row["experiment"]), run_id)
        echo(f"\nEnd of {console}" if console else "\nNo console.log")
        for line in tail(console)[-lines:] if console else ():
            echo(f"  {line}")


def find(reader: Reader, name: str) -> str:
    """Return the run with this id or unique prefix; of several starts of one cell the newest.

    Raises InputError that names the candidates or the nearest run.
    """
    from workbench.spec import InputError, nearest

    runs = [row[0] for row in reader.rows("SELECT run_id FROM run ORDER BY run_id").rows]
    if name in runs:
        return name
    newest = {row[0] for row in reader.rows("SELECT run_id FROM cell").rows}
    found = [run for run in runs if run.startswith(name)]
    found = [run for run in found if run in newest] or found
    if len(found) == 1:
        return str(found[0])
    if found:
        more = f" and {len(found) - 8} more" if len(found) > 8 else ""
        raise InputError(
            f"'{name}' is the prefix of {len(found)} runs: {', '.join(found[:8])}{more}; type a longer prefix"
        )
    hint = nearest(name, runs) or "; `sorl ls` lists the runs"
    raise InputError(f"no run '{name}'{hint}")


def _stored(config: str | None) -> dict[str, Any] | None:
    """Return the stored configuration: empty if there is none, None if it is not a JSON object."""
    try:
        stored = from_json(config) if config else {}
    except ValueError:
        return None
    return stored if isinstance(stored, dict) else None


def _changes(stored: dict[str, Any] | None) -> dict[str, Any]:
    from workbench.spec import RunSettings

    given, default = dict(leaves(stored or {})), dict(leaves(RunSettings().model_dump(mode="json")))
    return {key: value for key, value in given.items() if key not in default or default[key] != value}
