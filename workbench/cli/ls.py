"""`sorl ls`: experiments and runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from workbench.cli.shared import echo

_EXPERIMENTS = """
    SELECT experiment, count(*) AS runs, count(*) FILTER (status = 'finished') AS finished,
           count(*) FILTER (status = 'running') AS running,
           count(*) FILTER (status IN ('failed', 'interrupted')) AS stopped,
           count(*) FILTER (list_contains($collapsed, outcome)) AS collapsed,
           count(*) FILTER (outcome = 'falling') AS falling,
           max(started_at) AS last_start, any_value(question) AS question
    FROM run LEFT JOIN experiment USING (experiment)
    WHERE $all OR run_id IN (SELECT run_id FROM cell)
    GROUP BY experiment ORDER BY last_start DESC NULLS FIRST, experiment
"""
_RUNS = """
    SELECT run_id, arm, seed, status, outcome, steps, collapse_step, peak_success, final_success, seconds, started_at
    FROM run WHERE experiment = $experiment AND ($all OR run_id IN (SELECT run_id FROM cell))
    ORDER BY arm, seed, run_id
"""


def ls(
    ctx: typer.Context,
    experiment: Annotated[str | None, typer.Argument(help="Only this one, with its runs.", show_default=False)] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the runs that a later `sorl run --fresh` replaced.")
    ] = False,
) -> None:
    """Experiments and their runs; `sorl ls EXPERIMENT` for one of them."""
    from workbench.cli.shared import current, note
    from workbench.cli.tables import print_table
    from workbench.spec import COLLAPSED, InputError, nearest

    reader = current(ctx.obj)
    experiments = reader.rows(_EXPERIMENTS, {"all": everything, "collapsed": list(COLLAPSED)}).rows
    names = [row[0] for row in experiments]
    if experiment is not None and experiment not in names:
        listed = f"; there is: {', '.join(names)}" if names else "; no run was recorded yet"
        raise InputError(f"no experiment '{experiment}'{nearest(experiment, names)}{listed}")
    if not experiments:
        note(f"no runs in '{ctx.obj}' yet: `sorl run FILE.toml` trains a grid")
        return
    for row in experiments:
        if experiment in (None, row[0]):
            echo(_heading(row))
            answer = reader.rows(_RUNS, {"experiment": row[0], "all": everything})
            print_table(answer.columns, answer.rows)
            echo()


def _heading(row: tuple[Any, ...]) -> str:
    name, runs, finished, running, stopped, collapsed, falling, _, question = row
    counts = [f"{runs} runs", f"{finished} finished"]
    told = ((running, "running"), (stopped, "stopped"), (collapsed, "collapsed"), (falling, "falling at the end"))
    counts += [f"{n} {word}" for n, word in told if n]
    return f"{name}: {', '.join(counts)}" + (f"\n{question}" if question else "")
