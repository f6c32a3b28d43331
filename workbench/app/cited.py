"""From the diagnosis of an imported log to its panels: the reward, and what the findings cite."""

from collections.abc import Sequence

import numpy as np

from sorl.app.figures.evidence import Cited, Mark
from sorl.diagnosis.finding import Diagnosis
from sorl.diagnosis.rank import in_order
from sorl.diagnosis.sentences import SHOWN
from sorl.importing.logs import Imported

# It counts metrics that are NaN or infinite; the metrics themselves are drawn.
_BROKEN = "minibatch.non_finite"


def panels_of(diagnosis: Diagnosis, run: Imported) -> list[Cited]:
    """Return panels of the reward and of each metric that a finding cites, as far as they were logged."""
    marks = marks_of(diagnosis)
    reward = diagnosis.log.columns("reward")[:1]
    panels = [_panel(run, column, marks.get(column, ())) for column in dict.fromkeys([*reward, *marks])]
    return [panel for panel in panels if len(panel.steps)]


def marks_of(diagnosis: Diagnosis) -> dict[str, list[Mark]]:
    """Return the steps that the findings name, by the column in which they show."""
    findings = in_order(diagnosis)[:SHOWN]
    ranks: dict[tuple[str, int], list[int]] = {}
    for rank, finding in enumerate(findings, start=1):
        for figure in finding.clue.evidence:
            for column in _columns_of(diagnosis, figure.column):
                ranks.setdefault((column, figure.step), []).append(rank)
    marks: dict[str, list[Mark]] = {}
    for (column, step), cited_by in ranks.items():
        label = ", ".join(map(str, dict.fromkeys(cited_by)))
        severity = findings[cited_by[0] - 1].severity
        marks.setdefault(column, []).append(Mark(step, label, severity))
    return marks


def _columns_of(diagnosis: Diagnosis, column: str) -> Sequence[str]:
    """Return the columns in which a figure shows: of the count of broken metrics, these metrics."""
    reading = diagnosis.log.reading
    if column == _BROKEN and reading is not None and reading.not_finite:
        return [part.column for part in reading.not_finite]
    return [column]


def _panel(run: Imported, column: str, marks: Sequence[Mark]) -> Cited:
    """Return the panel of a column; without steps where the log has none of it."""
    table, name = column.split(".", 1)
    columns = run.tables.get(table, {})
    if name not in columns:
        return Cited("", column, np.zeros(0), np.zeros(0), np.zeros(0), marks)
    values = np.ma.masked_array(columns[name], dtype=float).filled(np.nan)
    steps = np.asarray(columns["step"])
    return Cited(_metric_of(run, column), column, steps, values, _broken_steps(run, column), marks)


def _broken_steps(run: Imported, column: str) -> np.ndarray:
    """Return the steps in which a metric was logged and is no number, since it first counts as broken."""
    table, name = column.split(".", 1)
    first = next((part.first_step for part in run.reading.not_finite if part.column == column), None)
    if first is None:
        return np.zeros(0)
    logged = np.ma.masked_array(run.tables[table][name], dtype=float)
    steps = np.asarray(run.tables[table]["step"])
    is_broken = ~np.ma.getmaskarray(logged) & ~np.isfinite(logged.filled(np.nan))
    return steps[is_broken & (steps >= first)]


def _metric_of(run: Imported, column: str) -> str:
    """Return how the log calls a column; where it has no success, the reward stands in for it."""
    name = column.split(".", 1)[1]
    stands_in = run.read.get("step.reward") if column == "step.success" else None
    return run.read.get(column) or run.kept.get(name) or stands_in or column
