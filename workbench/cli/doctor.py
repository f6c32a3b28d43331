"""`sorl doctor`: check the installation and the runs folder; each problem comes with the command that fixes
it.
"""

import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from typer import Context, Exit

from sorl.cli.tables import echo
from sorl.grid.process import cores
from sorl.spec import InputError
from sorl.store import connect
from sorl.store.reader import Reader
from sorl.store.segments import held, run_folders

_NEEDED = ("duckdb", "pandas", "pyarrow", "pydantic", "typer")
_OPTIONAL = (
    "torch",
    "transformers",
    "scipy",
    "lifelines",
    "streamlit",
    "plotly",
    "vllm",
    "ray",
    "trl",
    "verl",
)
# bytes: a grid of the default size records well under 1 GB
_LOW_DISK = 5e9
_NO_DISK = 0.5e9
_FOREIGN = "SELECT DISTINCT run_id FROM segment WHERE status = 'foreign'"
_CORRUPT = "SELECT run_id, file FROM segment WHERE status = 'corrupt' ORDER BY ALL"
Checks = Iterator[tuple[str, ...]]  # ok, warn or fail; what was found; the command that fixes it


def doctor(ctx: Context) -> None:
    """Check versions, processor, disk, runs folder, database and segments. Exit code 1: something must be
    fixed.
    """
    failed = False
    for checks in (packages(), machine(), folder(ctx.obj), database(ctx.obj)):
        for state, finding, *command in checks:
            failed |= state == "fail"
            echo("\n      -> ".join([f"{state:<5} {finding}", *command]))
    if failed:
        raise Exit(1)


def packages() -> Checks:
    """Check Python and the packages that training and the app need."""
    versions: dict[str, str] = {}
    for name in ("sorl", *_NEEDED, *_OPTIONAL):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
        if name in _NEEDED and name not in versions:
            yield "fail", f"{name} is missing", f"pip install {name}"
    ours = versions.get("sorl", "not installed, run from a checkout")
    yield "ok", f"python {platform.python_version()}, sorl {ours}"
    yield "ok", _with_versions(_NEEDED, versions)
    yield "ok", f"optional: {_with_versions(_OPTIONAL, versions) or 'none'}"
    for extra, what, names in (
        ("app", "the web app", ("streamlit", "plotly")),
        ("train", "training", ("torch", "transformers", "scipy")),
    ):
        if not {*names} <= set(versions):
            yield "warn", f"{what} is not installed", f"pip install 'sorl[{extra}]'"


def _with_versions(names: Iterable[str], versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in names if name in versions)


def machine() -> Checks:
    """Check the cores that this process may use; report the thread count and the device of torch."""
    count = cores()
    load = os.getloadavg()[0]
    threads = os.environ.get("OMP_NUM_THREADS", "not set (each run sets its own)")
    yield "ok", f"{count} cores, OMP_NUM_THREADS {threads}"
    if load > 1.5 * count:
        yield "warn", f"load {load:.1f} on {count} cores: runs will be slow", "sorl run FILE.toml --workers 1"
    try:
        import torch
    except ImportError:
        return
    if torch.cuda.is_available():
        yield "ok", f"torch sees {torch.cuda.device_count()} GPU: {torch.cuda.get_device_name(0)}"
    else:
        yield "ok", "torch trains on the CPU (no CUDA device), which is enough for the default world"


def folder(runs: Path) -> Checks:
    """Check the free space where runs are written, and that the runs folder can be written."""
    place = next((p for p in (runs.absolute(), *runs.absolute().parents) if p.exists()), Path("/"))
    free = shutil.disk_usage(place).free
    words = f"{free / 1e9:.1f} GB free at '{place}'"
    if free < _NO_DISK:
        yield "fail", words, "free some space, or put runs elsewhere: --runs DIR or SORL_RUNS=DIR"
    elif free < _LOW_DISK:
        yield "warn", words, "sorl sql --saved storage shows what uses the space"
    else:
        yield "ok", words
    if not runs.exists():
        yield "warn", f"no runs folder '{runs}' yet", "sorl run FILE.toml makes it"
    elif not runs.is_dir():
        yield "fail", f"'{runs}' is not a folder", "choose another: --runs DIR"
    elif os.access(runs, os.R_OK | os.W_OK | os.X_OK):
        yield "ok", f"runs folder '{runs.absolute()}' can be written"
    else:
        yield "fail", f"runs folder '{runs}' cannot be written", f"chmod u+rwx '{runs}'"


def database(runs: Path) -> Checks:
    """Check that the database opens, that segments are whole, and the folders of runs."""
    index = connect.database(runs)
    if not index.exists():
        if runs.is_dir():
            yield "ok", f"no database '{index}' yet; `sorl sync` builds it"
        return
    reader = Reader(runs, wait=1.0)
    try:
        corrupt = reader.rows(_CORRUPT).rows
        foreign = {row[0] for row in reader.rows(_FOREIGN).rows}
        recorded = reader.rows("SELECT run_id, status, experiment FROM run").rows
    except connect.Busy as busy:
        yield "warn", str(busy), "close it, or wait: runs do not need the database"
        return
    except InputError as error:
        yield "fail", str(error), f"rm '{index}' && sorl sync"
        return
    names = {row[2] for row in recorded}
    states = {row[0]: row[1] for row in recorded}
    yield (
        "ok",
        f"database '{index}': {len(recorded)} runs in {len(names)} experiments, not in use by a writer",
    )
    for run_id, file in corrupt:
        lost = "its rows are lost; `sorl run FILE.toml --fresh` trains the run again"
        yield "warn", f"corrupt segment of run '{run_id}': {file}", lost
    if not corrupt:
        yield "ok", "no corrupt segments"
    yield from folders_of_runs(runs, states, foreign)


def folders_of_runs(runs: Path, states: dict[str, str], foreign: set[str]) -> Checks:
    """Check that every run folder has rows of its own in the database, and that no run stopped before its
    end.
    """
    places = [(place, states.get(place.name)) for place in run_folders(runs)]
    for place, status in places:
        if place.name in foreign:
            copied = f"folder '{place}' was copied or renamed: it holds rows of another run, left out"
            yield "warn", copied, "remove the copy, or give the folder the name of its run back"
        elif status is None:
            yield "warn", f"folder '{place}' has no rows in the database", "sorl sync"
    dead = [place for place, status in places if status in ("running", "interrupted") and not held(place)]
    for place in dead:
        words = f"run '{place.name}' of '{place.parent.name}' stopped before its end"
        yield "warn", words, f"resume: sorl run experiments/{place.parent.name}.toml"
    if not dead:
        yield "ok", "no stale runs"
