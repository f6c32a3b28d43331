"""`sorl rescan`: apply the current collapse rule and alarms to recorded runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from workbench.analysis.runs import Recorded
    from workbench.diagnostics.rules import Event


def rescan(
    ctx: typer.Context,
    experiment: Annotated[str | None, typer.Argument(help="Only its runs; default: all.", show_default=False)] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="FILE.parquet", help="Judge and update a file of `sorl report --export`.",
            show_default=False,
        ),
    ] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Print the changes without writing them.")] = False,
) -> None:  # fmt: skip
    """Apply the current collapse rule and alarms to recorded runs and append the new verdicts."""
    from workbench.analysis.runs import recorded
    from workbench.cli.replay import folder_of
    from workbench.cli.shared import current, note
    from workbench.cli.tables import print_table
    from workbench.diagnostics import CATALOGUE
    from workbench.spec import InputError, Level, nearest
    from workbench.store.sync import sync

    for file in files or []:
        _rescan_file(file, dry)
    if files:
        return
    reader = current(ctx.obj)
    names = [row[0] for row in reader.rows("SELECT DISTINCT experiment FROM run ORDER BY 1").rows]
    if experiment is not None and experiment not in names:
        raise InputError(f"no experiment '{experiment}'{nearest(experiment, names)}; `sorl ls` lists them")
    columns = [d.name for d in CATALOGUE if d.level is Level.STEP]
    changes: list[tuple[str, str]] = []
    runs = recorded(reader, columns, experiment)
    for run in runs:
        try:
            verdict, events = judged(run)
        except InputError as unreadable:
            note(f"skipped: {unreadable}")
            continue
        if not (words := _changes(run, verdict, events)):
            continue
        if not dry:
            try:
                _append(folder_of(ctx.obj, run.run_id), run, verdict, events)
            except InputError as taken:  # its folder is gone, or it was resumed since the sync: its trainer judges it
                note(f"skipped: {taken}")
                continue
        changes.append((run.run_id, "; ".join(words)))
    if changes and not dry:
        sync(ctx.obj)
    if changes:
        print_table(("run_id", "change"), changes)
    note(f"{len(runs)} runs judged, {len(changes)} {'would change' if dry else 'changed'}")


def _rescan_file(file: Path, dry: bool) -> None:
    """Judge the runs of a results file; times and events of survival follow from the new verdicts."""
    from workbench.analysis import results
    from workbench.analysis.runs import Recorded, changed
    from workbench.cli.shared import note
    from workbench.cli.tables import print_table

    found = results.read(file)
    changes, rows = [], found.table.to_pylist()
    for row in rows:
        curves = {name: row[name] for name in results.CURVES if row[name] is not None}
        steps = [{"step": s, **{n: c[i] for n, c in curves.items()}} for i, s in enumerate(row["step"] or [])]
        verdict, _ = judged(Recorded(row | {"detection_step": row["detected"]}, steps, []))
        if words := changed(row | {"detection_step": row["detected"]}, verdict):
            changes.append((str(row["run_id"]), "; ".join(words)))
        row |= {name: value for name, value in verdict.items() if name in row} | {"detected": verdict["detection_step"]}
    if changes:
        print_table(("run_id", "change"), changes)
    note(f"{file}: {len(rows)} runs judged, {len(changes)} {'would change' if dry else 'changed'}")
    if changes and not dry:
        results.write(results.judged_again(found, rows), file)


def judged(run: Recorded) -> tuple[dict[str, Any], list[Event]]:
    """Return the verdict columns of table `run` and the events that the present rules see in a recorded run."""
    from workbench.diagnostics import CATALOGUE
    from workbench.diagnostics.collapse import Watch
    from workbench.diagnostics.rules import RuleWatch, alarms
    from workbench.record.recorder import TIMED

    group = run.group or _group_of(run.config)
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


def _group_of(config: dict[str, Any]) -> int:
    """Rollouts a prompt of a configuration; 1 for an algorithm that this version of sorl does not know."""
    from workbench.cli.results import slots

    found = json.loads(slots(json.dumps(config)) or "{}").get("group_size", 1)
    return found if isinstance(found, int) and found > 0 else 1


def _changes(run: Recorded, verdict: dict[str, Any], events: Sequence[Event]) -> list[str]:
    from workbench.analysis.runs import changed

    words = changed(run.row, verdict)
    now, before = {_key(asdict(e)) for e in events}, {_key(e) for e in run.events if _judged_again(e["kind"])}
    for title, keys in (("new", now - before), ("withdrawn", before - now)):
        kinds = Counter(kind for _, kind, _ in sorted(keys))
        words += [f"{title}: {', '.join(f'{n} {kind}' for kind, n in kinds.items())}"] if kinds else []
    return words


def _judged_again(kind: str) -> bool:
    """Return whether events of this kind come from a rule over columns, not from the trainer, the grid or the sync."""
    from workbench.grid.folder import KINDS

    return kind not in ("diverged", "segment_corrupt", *(k.name for k in KINDS)) and not kind.startswith("guard_")


def _key(event: dict[str, Any]) -> tuple[int, str, str]:
    return (event["step"], event["kind"], event["diagnostic"])


def _append(folder: Path, run: Recorded, verdict: dict[str, Any], events: Sequence[Event]) -> None:
    """New segments of tables `run` and `event`; an event without a severity withdraws the one it replaces."""
    from workbench.learn.run import locked
    from workbench.record.schema import schema_of
    from workbench.record.segments import SegmentWriter
    from workbench.store.segments import now

    rows = [asdict(e) for e in events]
    kept = {_key(row) for row in rows}
    stale = [e for e in run.events if _judged_again(e["kind"]) and _key(e) not in kept]
    rows += [{**dict.fromkeys(row), **{k: row[k] for k in ("step", "kind", "diagnostic")}} for row in stale]
    row = {k: v for k, v in run.row.items() if k in schema_of("run").names}
    with locked(folder):
        writer = SegmentWriter(folder, flush_seconds=2.0)
        writer.append("run", {k: [v] for k, v in (row | verdict | {"written_at": now()}).items()})
        if rows:
            columns = {name: [r.get(name) for r in rows] for name in schema_of("event").names}
            writer.append("event", columns | {"run_id": [run.run_id] * len(rows), "written_at": [now()] * len(rows)})
        writer.close()
