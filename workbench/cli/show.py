"""`sorl show RUN`: one run with its events."""

import json
from operator import itemgetter
from pathlib import Path

from typer import Context, Option

from sorl.cli.shared import RUN, current, find
from sorl.cli.tables import cell, echo, print_table, records
from sorl.spec import RunSettings
from sorl.spec.files import from_json, leaves
from sorl.spec.vocabulary import cause
from sorl.store.reader import Answer
from sorl.store.segments import doing_of
from sorl.store.text import log_of, shortened, tail

_FACTS = (
    "experiment",
    "algorithm",
    "arm",
    "seed",
    "generation",
    "attempt",
    "status",
    "reason",
    "outcome",
    "collapse_step",
    "detection_step",
    "peak_success",
    "final_success",
    "steps",
    "started_at",
    "ended_at",
    "seconds",
    "config_hash",
    "versions",
)
# events that are all listed; kinds of more, of which the first is
_ALL = 20
_KINDS = 40
_EVENTS = f"""
    SELECT step, max(step) OVER kinds AS last, count(*) OVER kinds AS n, count(*) OVER () AS total,
           severity, kind, diagnostic, value, threshold, message
    FROM event WHERE run_id = ? WINDOW kinds AS (PARTITION BY severity, kind, diagnostic)
    QUALIFY total <= {_ALL} OR row_number() OVER (PARTITION BY severity, kind, diagnostic ORDER BY step) = 1
    ORDER BY step NULLS FIRST, severity, kind, diagnostic, message LIMIT {_KINDS}
"""
_ROWS = (
    "SELECT table_name, count(*) AS segments, sum(rows) AS rows FROM segment WHERE run_id = ? GROUP BY 1"
    " ORDER BY 1"
)


def show(
    ctx: Context,
    run: str = RUN,
    config: bool = Option(False, "--config", help="Print every setting, not only the changed ones."),
    log: int | None = Option(
        None, min=0, help="Lines of console.log to print; default: 20 if the run failed."
    ),
) -> None:
    """Show one run: status, outcome, events, changed settings, and the end of its log if it failed."""
    reader = current(ctx.obj)
    with reader.together():
        run_id = find(reader, run)
        (row,) = records(*reader.rows("SELECT * FROM run WHERE run_id = ?", [run_id])[:2])
        events = reader.rows(_EVENTS, [run_id])
        recorded = reader.rows(_ROWS, [run_id])
    echo(run_id)
    for name in _FACTS:
        if row.get(name) is not None:
            echo(f"  {name:<16}{cell(row[name])}")
    if doing := doing_of(ctx.obj, str(row["experiment"]), run_id):
        echo(f"  {'doing':<16}{doing}")
    total = events.rows[0][3] if events.rows else 0
    more = (
        f", the first of each kind; all: sorl sql \"SELECT * FROM event WHERE run_id = '{run_id}' ORDER BY"
        ' step"'
    )
    echo(f"\nEvents: {total or 'none'}{more if total > _ALL else ''}")
    if events.rows:
        _print_events(events, total)
    echo("\nRecorded")
    print_table(recorded.columns, recorded.rows)
    _print_settings(row["config"], is_complete=config)
    if log is None:
        log = 20 if cause(row) else 0
    if log:
        _print_log(log_of(ctx.obj, str(row["experiment"]), run_id), log)


def _print_events(events: Answer, total: int) -> None:
    """Print the listed events; how often a kind occurred only where not all are listed."""
    places = [
        i for i, name in enumerate(events.columns) if name != "total" and (total > _ALL or i not in (1, 2))
    ]
    pick = itemgetter(*places)
    print_table(pick(events.columns), [pick(row) for row in events.rows])


def _print_settings(stored: str | None, *, is_complete: bool) -> None:
    """Print the settings of a run; those that are the defaults only if asked for."""
    echo(
        "\nConfiguration"
        if is_complete
        else "\nConfiguration, where it differs from the defaults (--config: all)"
    )
    default = {} if is_complete else dict(leaves(RunSettings().model_dump(mode="json")))
    try:
        for key, value in leaves(from_json(stored or "{}")):
            if key not in default or default[key] != value:
                echo(shortened(f"  {key} = {json.dumps(value, ensure_ascii=False)}"))
    except (ValueError, AttributeError):
        echo("  the stored configuration is not a JSON object")


def _print_log(console: Path | None, lines: int) -> None:
    echo(f"\nEnd of {console}" if console else "\nNo console.log")
    for line in tail(console)[-lines:] if console else ():
        echo(f"  {line}")
