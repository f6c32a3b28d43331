"""`sorl rescan`: apply the current collapse rule and alarms to recorded runs."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from typer import Argument, Context, Option

from sorl.cli.report import slots
from sorl.cli.shared import current, experiments, folder_of
from sorl.cli.tables import cell, note, print_table, records
from sorl.collapse.events import Event, RuleWatch, alarms
from sorl.collapse.rule import Watch
from sorl.collapse.unsized import UnsizedWatch
from sorl.grid.folder import KINDS
from sorl.learn.run import locked
from sorl.measures import CATALOGUE
from sorl.recording.recorder import TIMED
from sorl.recording.segments import append, schema_of
from sorl.spec import CollapseSettings, InputError, Level
from sorl.spec.baselines import KIND as BASELINE
from sorl.spec.files import from_json
from sorl.spec.names import refuse_outside
from sorl.store import sync as store
from sorl.store.reader import Reader

_JUDGE = "Judge and update a file of `sorl report --export`."
JUDGED = (
    "outcome",
    "collapse_step",
    "onset_low",
    "onset_high",
    "detection_step",
    "peak_success",
    "final_success",
)
_KEY = ("step", "kind", "diagnostic")  # of an event
_key = itemgetter(*_KEY)
# Kinds of events that come from the trainer, the grid or the sync, not from a rule over columns; guard_* do
# as well.
_OTHERS = {"diverged", "segment_corrupt", BASELINE, *KINDS}
_RUNS = """
    SELECT * FROM run WHERE status IN ('finished', 'failed', 'interrupted')
    AND coalesce(?, experiment) IS NOT DISTINCT FROM experiment ORDER BY run_id
"""
_GROUP = """
    SELECT count(*) // nullif(count(DISTINCT prompt_group), 0) AS size FROM trajectory
    WHERE run_id = $run AND step = (SELECT min(step) FROM trajectory WHERE run_id = $run)
"""


def rescan(
    ctx: Context,
    experiment: str | None = Argument(None, help="Only its runs; default: all."),
    files: list[Path] | None = Option(None, "--from", metavar="FILE.parquet", help=_JUDGE),
    dry: bool = Option(False, "--dry-run", help="Print the changes without writing them."),
) -> None:
    """Apply the current collapse rule and alarms to recorded runs and append the new verdicts."""
    if files:
        for file in files:
            _rescan_file(file, dry)
        return
    reader = current(ctx.obj)
    experiments(reader, experiment)
    changes: list[tuple[str, str]] = []
    count = 0
    for row in _rows(reader, _RUNS, [experiment]):
        run = {"run": row["run_id"]}
        steps = _rows(reader, "SELECT * FROM step WHERE run_id = $run ORDER BY step", run)
        if not steps:
            continue  # a run whose rows are gone keeps the verdict of when they were there
        count = count + 1
        try:
            change = _judge_again(reader, row, steps)
            # fails where the folder is gone, or the run was resumed: its trainer judges it
            if change.words and not dry:
                _append_verdict(ctx.obj, row, change)
        except InputError as error:
            note(f"skipped: {error}")
            continue
        if change.words:
            changes.append((row["run_id"], "; ".join(change.words)))
    if changes and not dry:
        store.sync(ctx.obj)
    _report(changes, count, dry)


def _rows(reader: Reader, sql: str, parameters: Any) -> list[dict[str, Any]]:
    return records(*reader.rows(sql, parameters)[:2])


class _Change(NamedTuple):
    """What the present rules say of a run, and how that differs from what is recorded."""

    words: list[str]  # empty: nothing differs
    verdict: dict[str, Any]
    events: list[dict[str, Any]]  # the new ones, and without a severity those that they withdraw


def _judge_again(reader: Reader, row: dict[str, Any], steps: list[dict[str, Any]]) -> _Change:
    run = {"run": row["run_id"]}
    recorded = _rows(reader, "SELECT * FROM event WHERE run_id = $run ORDER BY step", run)
    verdict, events = judged(row, steps, recorded, _rows(reader, _GROUP, run)[0]["size"])
    by_rules = (e for e in recorded if e["kind"] not in _OTHERS and not e["kind"].startswith("guard_"))
    after = _by_key(map(asdict, events))
    before = _by_key(by_rules)
    words = [
        *changed(row, verdict),
        *_kinds_in_words("new", after.keys() - before.keys()),
        *_kinds_in_words("withdrawn", before.keys() - after.keys()),
    ]
    # An event without a severity withdraws the one it replaces.
    gone = [dict(zip(_KEY, key, strict=True)) for key in before if key not in after]
    return _Change(words, verdict, [*after.values(), *gone])


def _by_key(events: Iterable[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {_key(event): event for event in events}


def _kinds_in_words(title: str, keys: Iterable[Any]) -> list[str]:
    """`new: 2 alarm, 1 mild`; nothing without an event."""
    kinds = Counter(kind for _, kind, _ in sorted(keys))
    return [f"{title}: {', '.join(f'{n} {kind}' for kind, n in kinds.items())}"] if kinds else []


def _append_verdict(runs: Path, row: dict[str, Any], change: _Change) -> None:
    """Append the new row of a run and its new events."""
    folder = folder_of(runs, row["run_id"])
    refuse_outside(runs, folder)
    names = [name for name in schema_of("run").names if name != "written_at"]
    judged_row = {name: (row | change.verdict).get(name) for name in names}
    with locked(folder):
        append(folder, folder.name, "run", judged_row)
        if change.events:
            append(folder, folder.name, "event", _columns(change.events))


def _columns(events: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Events by column."""
    columns = {}
    for field in fields(Event):
        columns[field.name] = [event.get(field.name) for event in events]
    return columns


def _report(changes: Sequence[tuple[str, str]], runs: int, dry: bool, where: str = "") -> None:
    if changes:
        print_table(("run_id", "change"), changes)
    note(f"{where}{runs} runs judged, {len(changes)} {'would change' if dry else 'changed'}")


def _rescan_file(file: Path, dry: bool) -> None:
    """Judge the runs of a results file; times and events of survival follow from the new verdicts."""
    from sorl.analysis import results

    recorded = results.read(file)
    changes = []
    rows = recorded.table.to_pylist()
    for row in rows:
        curves = {name: row[name] for name in results.CURVES if row[name] is not None}
        steps = [_step_of(curves, i, step) for i, step in enumerate(row["step"] or [])]
        before = row | {"detection_step": row["detected"]}
        verdict, _ = judged(before, steps)
        if words := changed(before, verdict):
            changes.append((str(row["run_id"]), "; ".join(words)))
        row |= {name: value for name, value in verdict.items() if name in row} | {
            "detected": verdict["detection_step"]
        }
    _report(changes, len(rows), dry, f"{file}: ")
    if changes and not dry:
        results.write(results.judged_again(recorded, rows), file)


def _step_of(curves: Mapping[str, Sequence[Any]], place: int, step: int) -> dict[str, Any]:
    """A row of table `step` from curves."""
    return {"step": step, **{name: curve[place] for name, curve in curves.items()}}


def judged(
    run: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    recorded: Sequence[Mapping[str, Any]] = (),
    group: int | None = None,
) -> tuple[dict[str, Any], list[Event]]:
    """Return the verdict columns of table `run` and the events that the present rules see in the steps of a
    run.

    `recorded` are its events, `group` the episodes that share a prompt, where table `trajectory` has them.
    """
    watch = _watch_of(run, group)
    rules = RuleWatch(alarms(CATALOGUE))
    measured = {d.name for d in CATALOGUE if d.level is Level.STEP and not d.name.startswith(TIMED)}
    events: list[Event] = []
    for row in steps:
        measurements = {name: value for name, value in row.items() if name in measured and value is not None}
        step = int(row["step"] or 0)
        events += [*watch.step(step, measurements), *rules.step(step, measurements)]
    for event in recorded:
        if event["kind"] == "diverged":  # only the trainer saw this one: a loss that could not be used
            watch.crashed(event["step"], event["message"])
    if isinstance(watch, UnsizedWatch):
        events = sorted([*events, *watch.falls()], key=lambda event: event.step)
    # a file of results does not hold that event
    watch.diverged = watch.diverged or run["outcome"] == "diverged"
    columns = watch.verdict.columns()
    settled = run["status"] == "finished" or columns["outcome"] in ("collapsed", "diverged")
    return columns if settled else columns | {"outcome": None}, events


def _watch_of(run: Mapping[str, Any], group: int | None) -> Watch | UnsizedWatch:
    """Return the rule that judges a run, with the settings that are stored of it."""
    try:  # runs of other trainers have no configuration: the defaults judge them
        config = from_json(run["config"]) if run["config"] else {}
        rule = CollapseSettings.model_validate(config.get("collapse", {}))
        episodes = config.get("learn", {}).get("episodes")
    except (ValueError, AttributeError):
        name = run["run_id"]
        raise InputError(
            f"run '{name}': its stored configuration has no valid [collapse] or [learn]"
        ) from None
    planned = json.loads(slots(json.dumps(config)) or "{}").get("group_size")
    # One rollout a prompt for an algorithm that this version of sorl does not know.
    group = group or (planned if isinstance(planned, int) and planned > 0 else 1)
    episodes = episodes if isinstance(episodes, int) and episodes > 0 else None
    if run.get("reading"):  # an imported log
        return UnsizedWatch()
    return Watch(rule, episodes, group)


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what the verdict `new` says differently, in words."""

    def same(a: Any, b: Any) -> bool:
        floats = isinstance(a, float) and isinstance(b, float)
        return a == b or (floats and (abs(a - b) <= 1e-9 or (a != a and b != b)))

    pairs = [(name, old.get(name), new[name]) for name in JUDGED]
    return [
        f"{name} {cell(a, null='NULL')} -> {cell(b, null='NULL')}" for name, a, b in pairs if not same(a, b)
    ]
