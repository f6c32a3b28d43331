"""`sorl rescan`: apply the current collapse rule and alarms to recorded runs."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Context, Option

from workbench.cli.report import slots
from workbench.cli.shared import current, experiments, folder_of
from workbench.cli.tables import note, print_table
from workbench.diagnostics import CATALOGUE
from workbench.diagnostics.collapse import Watch
from workbench.diagnostics.rules import Event, RuleWatch, alarms
from workbench.grid.folder import KINDS
from workbench.learn.run import locked
from workbench.record.recorder import TIMED
from workbench.record.schema import schema_of
from workbench.record.segments import SegmentWriter
from workbench.spec import InputError, Level
from workbench.store.segments import now
from workbench.store.sync import sync

if TYPE_CHECKING:
    from workbench.analysis.runs import Recorded


def rescan(
    ctx: Context,
    experiment: str | None = Argument(None, help="Only its runs; default: all."),
    files: list[Path] | None = Option(
        None, "--from", metavar="FILE.parquet", help="Judge and update a file of `sorl report --export`."
    ),
    dry: bool = Option(False, "--dry-run", help="Print the changes without writing them."),
) -> None:
    """Apply the current collapse rule and alarms to recorded runs and append the new verdicts."""
    from workbench.analysis.runs import recorded

    for file in files or []:
        _rescan_file(file, dry)
    if files:
        return
    reader = current(ctx.obj)
    if experiment is not None:
        experiments(reader, experiment)
    changes = []
    runs = recorded(reader, [d.name for d in CATALOGUE if d.level is Level.STEP], experiment)
    for run in runs:
        try:
            verdict, events = judged(run)
            words = _changes(run, verdict, events)
            if words and not dry:  # fails where the folder is gone, or the run was resumed: its trainer judges it
                _append(folder_of(ctx.obj, run.run_id), run, verdict, events)
        except InputError as error:
            note(f"skipped: {error}")
            continue
        if words:
            changes.append((run.run_id, "; ".join(words)))
    if changes and not dry:
        sync(ctx.obj)
    _report(changes, len(runs), dry)


def _report(changes: Sequence[tuple[str, str]], runs: int, dry: bool, where: str = "") -> None:
    if changes:
        print_table(("run_id", "change"), changes)
    note(f"{where}{runs} runs judged, {len(changes)} {'would change' if dry else 'changed'}")


def _rescan_file(file: Path, dry: bool) -> None:
    """Judge the runs of a results file; times and events of survival follow from the new verdicts."""
    from workbench.analysis import results
    from workbench.analysis.runs import Recorded, changed

    found = results.read(file)
    changes, rows = [], found.table.to_pylist()
    for row in rows:
        curves = {name: row[name] for name in results.CURVES if row[name] is not None}
        steps = [{"step": s, **{n: c[i] for n, c in curves.items()}} for i, s in enumerate(row["step"] or [])]
        before = row | {"detection_step": row["detected"]}
        verdict, _ = judged(Recorded(before, steps, []))
        if words := changed(before, verdict):
            changes.append((str(row["run_id"]), "; ".join(words)))
        row |= {name: value for name, value in verdict.items() if name in row} | {"detected": verdict["detection_step"]}
    _report(changes, len(rows), dry, f"{file}: ")
    if changes and not dry:
        results.write(results.judged_again(found, rows), file)


def judged(run: "Recorded") -> tuple[dict[str, Any], list[Event]]:
    """Return the verdict columns of table `run` and the events that the present rules see in a recorded run."""
    planned = json.loads(slots(json.dumps(run.config)) or "{}").get("group_size")
    # One rollout a prompt for an algorithm that this version of sorl does not know.
    group = run.group or (planned if isinstance(planned, int) and planned > 0 else 1)
    watch, rules = Watch(run.settings, run.episodes, group), RuleWatch(alarms(CATALOGUE))
    events: list[Event] = []
    for row in run.steps:
        seen = {k: v for k, v in row.items() if k != "step" and v is not None and not k.startswith(TIMED)}
        step = int(row["step"] or 0)
        events += [*watch.step(step, seen), *rules.step(step, seen)]
    for event in run.events:
        if event["kind"] == "diverged":  # only the trainer saw this one: a loss that could not be used
            watch.crashed(event["step"], event["message"])
    watch.diverged = watch.diverged or run.row["outcome"] == "diverged"  # a file of results does not hold that event
    columns = watch.verdict.columns()
    settled = run.row["status"] == "finished" or columns["outcome"] in ("collapsed", "diverged")
    return columns if settled else columns | {"outcome": None}, events


def _changes(run: "Recorded", verdict: dict[str, Any], events: Sequence[Event]) -> list[str]:
    from workbench.analysis.runs import changed

    words = changed(run.row, verdict)
    now_, before = {_key(asdict(e)) for e in events}, {_key(e) for e in run.events if _by_rule(e["kind"])}
    for title, keys in (("new", now_ - before), ("withdrawn", before - now_)):
        kinds = Counter(kind for _, kind, _ in sorted(keys))
        words += [f"{title}: {', '.join(f'{n} {kind}' for kind, n in kinds.items())}"] if kinds else []
    return words


def _by_rule(kind: str) -> bool:
    # Not from the trainer, the grid or the sync.
    return kind not in ("diverged", "segment_corrupt", *(k.name for k in KINDS)) and not kind.startswith("guard_")


def _key(event: dict[str, Any]) -> tuple[int, str, str]:
    return (event["step"], event["kind"], event["diagnostic"])


def _append(folder: Path, run: "Recorded", verdict: dict[str, Any], events: Sequence[Event]) -> None:
    """Append segments of tables `run` and `event`; an event without a severity withdraws the one it replaces."""
    rows = [asdict(e) for e in events]
    kept = {_key(row) for row in rows}
    withdrawn = [_key(e) for e in run.events if _by_rule(e["kind"]) and _key(e) not in kept]
    rows += [dict(zip(("step", "kind", "diagnostic"), key, strict=True)) for key in withdrawn]
    row = {k: v for k, v in run.row.items() if k in schema_of("run").names}
    with locked(folder):
        writer = SegmentWriter(folder, flush_seconds=2.0)
        writer.append("run", {k: [v] for k, v in (row | verdict | {"written_at": now()}).items()})
        if rows:
            columns = {name: [r.get(name) for r in rows] for name in schema_of("event").names}
            writer.append("event", columns | {"run_id": [run.run_id] * len(rows), "written_at": [now()] * len(rows)})
        writer.close()
