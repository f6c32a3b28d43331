"""`sorl ls`: experiments and runs."""

from collections.abc import Sequence

from typer import Argument, Context, Option

from sorl.cli.shared import current, experiments
from sorl.cli.tables import echo, note, print_table
from sorl.spec import COLLAPSED
from sorl.store.segments import doing_of
from sorl.store.text import shortened

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
    SELECT run_id, arm, seed, status, outcome, steps, collapse_step, peak_success, final_success, seconds,
           started_at
    FROM run WHERE experiment = $experiment AND ($all OR run_id IN (SELECT run_id FROM cell))
    ORDER BY arm, seed, run_id
"""


def ls(
    ctx: Context,
    experiment: str | None = Argument(None, help="List only this experiment."),
    everything: bool = Option(False, "--all", help="Include runs that `sorl run --fresh` replaced."),
) -> None:
    """List the experiments with their runs, or one experiment with `sorl ls EXPERIMENT`."""
    reader = current(ctx.obj)
    experiments(reader, experiment)
    listed = reader.rows(_EXPERIMENTS, {"all": everything, "collapsed": list(COLLAPSED)})
    if not listed.rows:
        note(f"no runs in '{ctx.obj}' yet: `sorl run FILE.toml` trains a grid")
    for name, question, *counts in listed.rows:
        if experiment not in (None, name):
            continue
        echo(f"{name}: {_counts_in_words(counts, listed.columns[2:])}")
        if question:
            echo(shortened(question))
        runs = reader.rows(_RUNS, {"experiment": name, "all": everything})
        print_table(runs.columns, runs.rows)
        for run_id in (row[0] for row in runs.rows if row[3] == "running"):
            if doing := doing_of(ctx.obj, name, run_id):
                echo(f"{run_id}: {doing}")
        echo()


def _counts_in_words(counts: Sequence[int], names: Sequence[str]) -> str:
    """`18 runs, 18 finished, 3 collapsed`; after the first two, counts of 0 are left out."""
    words = [f"{count} {name}" for count, name in zip(counts, names, strict=True)]
    return ", ".join(word for place, word in enumerate(words) if place < 2 or counts[place])
