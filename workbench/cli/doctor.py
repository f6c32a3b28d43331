"""`sorl doctor`: check the installation and the runs folder; each problem comes with the command that mends it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from workbench.cli.shared import echo

if TYPE_CHECKING:
    from workbench.store.reader import Reader

_NEEDED = ("torch", "transformers", "duckdb", "pandas", "pyarrow", "pydantic", "typer")
_OPTIONAL = {"streamlit": "app", "plotly": "app", "vllm": "vllm", "ray": "ray", "trl": "trl", "verl": "verl"}
_LOW_DISK, _NO_DISK = 5e9, 0.5e9  # bytes: a grid of the default size records well under 1 GB


@dataclass(frozen=True)
class Check:
    """One line of the report; `todo` is what to type."""

    state: Literal["ok", "warn", "fail"]
    what: str
    todo: str = ""


def doctor(ctx: typer.Context) -> None:
    """Check versions, processor, disk, runs folder, database and segments; exit code 1 if something must be fixed."""
    failed = False
    checks: tuple[Callable[[], Iterator[Check]], ...] = (
        versions, processor, accelerator, lambda: disk(ctx.obj), lambda: folder(ctx.obj), lambda: database(ctx.obj),
    )  # fmt: skip
    for check in checks:
        for found in check():
            failed |= found.state == "fail"
            echo(f"{found.state:<5} {found.what}" + (f"\n      -> {found.todo}" if found.todo else ""))
    if failed:
        raise typer.Exit(1)


def versions() -> Iterator[Check]:
    """Check Python and the packages that training and the app need."""
    yield Check(
        "ok", f"python {platform.python_version()}, sorl {_version('sorl') or 'not installed, run from a checkout'}"
    )
    for name in _NEEDED:
        found = _version(name)
        yield Check("ok", f"{name} {found}") if found else Check("fail", f"{name} is missing", f"pip install {name}")
    present = [f"{name} {found}" for name in _OPTIONAL if (found := _version(name))]
    missing = sorted({extra for name, extra in _OPTIONAL.items() if not _version(name)})
    yield Check("ok", f"optional: {', '.join(present) or 'none installed'}")
    if "app" in missing:
        yield Check("warn", "the web app is not installed", "pip install 'sorl[app]'")


def processor() -> Iterator[Check]:
    """Check the cores that this process may use, and the thread count that torch picks up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS")
    yield Check("ok", f"{cores} cores, OMP_NUM_THREADS {threads or 'not set (each run sets its own threads)'}")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > 1.5 * cores:
        yield Check("warn", f"load {load:.1f} on {cores} cores: runs will be slow", "sorl run FILE.toml --workers 1")


def accelerator() -> Iterator[Check]:
    """Report the device that torch trains on."""
    if not _version("torch"):
        return
    import torch

    if torch.cuda.is_available():
        yield Check("ok", f"torch sees {torch.cuda.device_count()} GPU: {torch.cuda.get_device_name(0)}")
    else:
        yield Check("ok", "torch trains on the CPU (no CUDA device), which is enough for the default world")


def disk(runs: Path) -> Iterator[Check]:
    """Check the free space where runs are written."""
    place = next((p for p in (runs.absolute(), *runs.absolute().parents) if p.exists()), Path("/"))
    free = shutil.disk_usage(place).free
    words = f"{free / 1e9:.1f} GB free at '{place}'"
    if free < _NO_DISK:
        yield Check("fail", words, "free some space, or put runs elsewhere: --runs DIR or SORL_RUNS=DIR")
    elif free < _LOW_DISK:
        yield Check("warn", words, "sorl sql --saved storage shows what takes the room")
    else:
        yield Check("ok", words)


def folder(runs: Path) -> Iterator[Check]:
    """Check that the runs folder can be written."""
    if not runs.exists():
        yield Check("warn", f"no runs folder '{runs}' yet", "sorl run FILE.toml makes it")
    elif not runs.is_dir():
        yield Check("fail", f"'{runs}' is not a folder", "choose another: --runs DIR")
    else:
        probe = runs / f".doctor-{os.getpid()}"
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            yield Check("fail", f"runs folder '{runs}' cannot be written: {error.strerror}", f"chmod u+rwx '{runs}'")
        else:
            yield Check("ok", f"runs folder '{runs.absolute()}' can be written")


def database(runs: Path) -> Iterator[Check]:
    """Check that the database opens, that segments are whole, and that no run stopped before its end."""
    from workbench.spec import InputError
    from workbench.store.connect import Busy
    from workbench.store.connect import database as index
    from workbench.store.reader import Reader

    if not runs.is_dir():
        return
    if not index(runs).exists():
        yield Check("ok", f"no database '{index(runs)}' yet; `sorl sync` builds it")
        return
    reader = Reader(runs, wait=1.0)
    try:
        counted = reader.rows(
            "SELECT count(*), count(DISTINCT experiment), (SELECT count(*) FROM segment) FROM run"
        ).rows[0]
    except Busy as busy:
        yield Check("warn", str(busy), "close it, or wait: runs do not need the database")
        return
    except InputError as error:
        yield Check("fail", str(error), f"rm '{index(runs)}' && sorl sync")
        return
    yield Check(
        "ok", f"database '{index(runs)}': {counted[0]} runs in {counted[1]} experiments, not in use by a writer"
    )
    yield from _segments(reader)
    yield from _stale(reader, runs)


def _segments(reader: Reader) -> Iterator[Check]:
    rows = reader.rows("SELECT run_id, file FROM segment WHERE status = 'corrupt' ORDER BY ALL").rows
    for run_id, file in rows:
        yield Check(
            "warn",
            f"corrupt segment of run '{run_id}': {file}",
            "its rows are lost; `sorl run FILE.toml --fresh` redoes it",
        )
    if not rows:
        yield Check("ok", "no corrupt segments")


def _stale(reader: Reader, runs: Path) -> Iterator[Check]:
    from workbench.store.segments import alive, run_folders

    states = dict(reader.rows("SELECT run_id, status FROM run").rows)
    dead = 0
    for place in run_folders(runs):
        status = states.get(place.run_id)
        if status is None:
            yield Check("warn", f"folder '{place.path}' has no rows in the database", "sorl sync")
        elif status in ("running", "interrupted") and not alive(place.path):
            dead += 1
            words = f"run '{place.run_id}' of '{place.experiment}' stopped before its end"
            yield Check("warn", words, f"resume: sorl run experiments/{place.experiment}.toml")
    if not dead:
        yield Check("ok", "no stale runs")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
