"""Shared by the verbs: options, the synced database, experiments and runs by name."""

from pathlib import Path
from typing import Any

from typer import Argument, Option

from sorl.cli.tables import note
from sorl.spec import InputError, nearest
from sorl.spec.files import MIB, from_toml, read_text
from sorl.store.connect import Busy, Full, database
from sorl.store.reader import Reader
from sorl.store.segments import run_folders
from sorl.store.sync import SyncReport, sync

_NAMED = 10  # of what a sync left out


def one_of(name: str, *allowed: str, default: str | None = None, more: str = "") -> Any:
    """Return an option that takes one of the words `allowed`; another word is an error that names the
    nearest.
    """

    def check(value: str | None) -> str | None:
        if value is not None and value not in allowed:
            raise InputError(
                f"{name} '{value}' is unknown{nearest(value, allowed)}; allowed: {', '.join(allowed)}"
            )
        return value

    return Option(default, name, help=f"{', '.join(allowed[:-1])} or {allowed[-1]}{more}.", callback=check)


def number(
    default: float | None, name: str, *, least: float, most: float, why: str, what: str, unit: str = ""
) -> Any:
    """Return an option that takes a number of `least` to `most`; the error for a larger one says `why`.

    What is multiplied by it (memory, processes, days) would fail later, and with less to read.
    """

    def check(value: float | None) -> float | None:
        if value is not None and not value <= most:  # NaN too
            raise InputError(f"{name} {value:,} is over {most:,}, the most: {why}")
        return value

    return Option(default, name, metavar=unit or None, min=least, help=what, callback=check)


def workers_option(what: str = "Runs at a time; default: one core for each thread of a run.") -> Any:
    """Return the option --workers."""
    return number(None, "--workers", least=1, most=1024, why="each is a process", what=what)


MOST_DRAWS = 1000  # children of an arm
RUN = Argument(..., metavar="RUN", help="A run id or a unique prefix of one.")
GRID_FILE = Argument(..., metavar="FILE.toml", help="Grid file.")
_SET = "Change a setting of every cell, e.g. learn.staleness=0; also seeds=[0]. Repeatable."
CHANGES = Option(None, "--set", metavar="KEY=VALUE", help=_SET)
ARMS = Option(None, "--arm", metavar="NAME", help="Only this arm of the file. Repeatable.")
_NOTIFY = (
    "Post to this webhook when a run collapses, is falling, diverges or fails, e.g. https://ntfy.sh/TOPIC."
)
NOTIFY = Option(None, "--notify", metavar="URL", envvar="SORL_NOTIFY", help=_NOTIFY)
_MAP = "Of another trainer's log: its metric NAME is our COLUMN, e.g. reward=my_score, step=iter. Repeatable."
MAP = Option(None, "--map", metavar="COLUMN=NAME", help=_MAP)
STANDARD_INPUT = "-"  # in place of a file
LISTING = one_of("--format", "table", "md", "json", default="table")
OUTPUT = Option(None, "--output", "-o", metavar="FILE", help="Write to this file.")


def current(runs: Path, *, seconds: float = 60.0) -> Reader:
    """Return a reader of the synced database; if it is locked or its disk is full, of the rows of the last
    sync, with a note.
    """
    try:
        report = sync(runs, seconds=2.0)  # to wait for the lock
    except (Busy, Full) as error:
        if not database(runs).exists():
            raise
        note(f"not synced, showing the rows of the last sync: {error}")
    else:
        tell_of(report)
    return Reader(runs, wait=2.0, seconds=seconds)


def tell_of(report: SyncReport) -> None:
    """Say what a sync set aside and left out: the first few of each by name, the rest as a number."""
    aside = [f"corrupt segment set aside: {path}" for path in report.corrupt]
    for lines, what in ((aside, "corrupt segments set aside"), (report.skipped, "folders or files left out")):
        for line in lines[:_NAMED]:
            note(line)
        if len(lines) > _NAMED:
            note(f"and {len(lines) - _NAMED:,} more {what}, {len(lines):,} in all")


def toml_of(option: str, file: Path) -> dict[str, Any]:
    """Return the tables of the file that an option names; raises InputError where it cannot be read."""
    try:
        return from_toml(read_text(file, MIB))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {option} '{file}': {getattr(error, 'strerror', error)}") from None


def experiment_of(name: str) -> str:
    """Return the experiment that a name or the name of its grid file stands for."""
    return Path(name).stem if name.endswith(".toml") else name


def experiments(reader: Reader, wanted: str | None = None) -> list[str]:
    """Return the names of the recorded experiments. Raises InputError with the nearest name if `wanted` is
    unknown.
    """
    names = [row[0] for row in reader.rows("SELECT DISTINCT experiment FROM run ORDER BY 1").rows]
    if wanted is not None and wanted not in names:
        raise InputError(f"no experiment '{wanted}'{nearest(wanted, names)}; `sorl ls` lists them")
    return names


def find(reader: Reader, name: str) -> str:
    """Return the run with this id or unique prefix (the newest start of a cell); InputError names the
    candidates.
    """
    runs = [row[0] for row in reader.rows("SELECT run_id FROM run ORDER BY run_id").rows]
    newest = {row[0] for row in reader.rows("SELECT run_id FROM cell").rows}
    matches = [name] if name in runs else [run for run in runs if run.startswith(name)]
    matches = [run for run in matches if run in newest] or matches
    if len(matches) == 1:
        return str(matches[0])
    if not matches:
        raise InputError(f"no run '{name}'{nearest(name, runs) or '; `sorl ls` lists the runs'}")
    more = f" and {len(matches) - 8} more" if len(matches) > 8 else ""
    raise InputError(
        f"'{name}' is the prefix of {len(matches)} runs: {', '.join(matches[:8])}{more}; type a longer prefix"
    )


def run_folder(runs: Path, run: str) -> Path:
    """Return the folder of a run, given its id, a unique prefix, or the folder itself."""
    # a recorded run has no config.toml
    if (Path(run) / "config.toml").is_file() or (Path(run) / "segments").is_dir():
        return Path(run).resolve()
    return folder_of(runs, find(current(runs), run))


def folder_of(runs: Path, run_id: str) -> Path:
    """Return the folder of a recorded run. Raises InputError if it was renamed or removed."""
    for folder in run_folders(runs):
        if folder.name == run_id:
            return folder
    raise InputError(
        f"run '{run_id}' has no folder of that name in '{runs}': it was renamed or removed; restore it"
    )
