"""What another tool said of the same runs, as recorded by a script of `bench/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sorl.spec import InputError
from studies import Share
from studies.early_warning.corpus import Run

_LEVELS = ("SKIPPED", "OK", "INFO", "WARNING", "CRITICAL")


@dataclass(frozen=True)
class Record:
    """What rldoctor said of a run: with its whole log, with the log up to the detection, and after every
    step.
    """

    whole: str
    until_detection: str
    first_warning: int | None
    first_critical: int | None


@dataclass(frozen=True)
class Peer:
    """All that was recorded, by run, and the version that said it."""

    version: str
    records: Mapping[str, Record]


def read(file: Path) -> Peer:
    """The record of `bench/rldoctor_alarms.py`. Raises InputError for a file that is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
        version = (table.schema.metadata or {})[b"rldoctor"].decode()
        rows = table.select(["run_id", *Record.__dataclass_fields__]).to_pylist()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise InputError(f"'{file}' is no record of rldoctor: {str(error).splitlines()[0]}") from None
    return Peer(version, {row.pop("run_id"): Record(**row) for row in rows})


def share_of(flags: Sequence[bool]) -> Share:
    """How many of these are true, of how many."""
    return Share(sum(flags), len(flags))


def rates(peer: Peer, runs: Sequence[Run], level: str, how: str) -> tuple[Share, Share, Share]:
    """Healthy runs alarmed, collapses found by the step of detection, and all runs alarmed that did not
    collapse.

    At a level (WARNING, CRITICAL) or worse.

    `how`: "whole", one look at the whole log; "until_detection", of a collapsed run at its log up to there;
    "along", a look after every step.
    """
    known = [(run, peer.records[run.run_id]) for run in runs if run.run_id in peer.records]
    healthy = [_alarmed(run, record, level, how) for run, record in known if run.healthy]
    collapsed = [_alarmed(run, record, level, how) for run, record in known if run.collapsed]
    lasting = [_alarmed(run, record, level, how) for run, record in known if run.lasting]
    return share_of(healthy), share_of(collapsed), share_of(lasting)


def _alarmed(run: Run, record: Record, level: str, how: str) -> bool:
    if how == "along":
        step = record.first_warning if level == "WARNING" else record.first_critical
        return step is not None and (not run.collapsed or run.detection is None or step <= run.detection)
    return _LEVELS.index(getattr(record, how)) >= _LEVELS.index(level)
