"""`sorl report EXPERIMENT`: write the results of experiments as one page that works offline."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.shared import echo, runs_of
from workbench.cli.tables import check_format
from workbench.spec import InputError

if TYPE_CHECKING:
    from workbench.analysis.results import Results

FORMATS = ("html", "md")
_TABLES = ("minibatch", "step")  # of two declarations of one name, that of the step is the one that is drawn


def report(
    ctx: typer.Context,
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EXPERIMENT", help="Experiments; claims are judged on all their runs.", show_default=False
        ),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="FILE.parquet", help="Read results that --export wrote. Repeatable.", show_default=False
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="html or md.")] = "html",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: report-EXPERIMENT.html; md: stdout.",
                     show_default=False),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.parquet",
            help="Write only the run-level results, merged with those of --from, to this file.",
            show_default=False,
        ),
    ] = None,
) -> None:  # fmt: skip
    """Write a report: question, verdicts on the paper's claims, design, figures, tables and settings."""
    from workbench.cli.results import gather

    check_format(form, FORMATS)
    names = [Path(name).stem if name.endswith(".toml") else name for name in experiments or []]
    if not names and not files:
        raise InputError("name an experiment (`sorl ls` lists them), or a file: `sorl report --from FILE.parquet`")
    if form == "html" and export is None and find_spec("plotly") is None:
        raise InputError("the figures need plotly: run `pip install 'sorl[app]'`, or use `--format md`")
    found = gather(runs_of(ctx), names, files or [])
    if export is not None:
        # Files before runs: of a run that is in both, the one in the runs folder is the newer.
        _export([*found[len(names) :], *found[: len(names)]], export)
        return
    text = written(found, commands(found, names, files or []), form)
    if form == "md" and output is None:
        echo(text, nl=False)
        return
    _write(output or Path(f"report-{'-'.join(r.experiment for r in found)}.html"), text)


def written(found: Sequence[Results], lines: Sequence[str], form: str, level: int = 1) -> str:
    """Return the report as html or md; in md the title is a heading of `level`."""
    from workbench.app.report.content import report as contents

    if form == "md":
        from workbench.app.report.write import markdown

        return markdown(contents(found, {}, lines), level)
    from workbench.app.report.write import html

    return html(contents(found, _words(), lines))


def commands(found: Sequence[Results], names: Sequence[str], files: Sequence[Path]) -> list[str]:
    """Return the commands that train the experiments again and write their report."""
    train = [f"sorl run {shlex.quote(f'experiments/{one.experiment}.toml')}" for one in found if one.toml]
    report = " ".join(["sorl report", *map(shlex.quote, names), *(f"--from {shlex.quote(str(f))}" for f in files)])
    return [*train, report]


def _words() -> dict[str, tuple[str, str]]:
    """Return unit and formula of each curve, from the declarations."""
    from workbench.analysis.results import SERIES
    from workbench.diagnostics import CATALOGUE

    known = sorted((d for d in CATALOGUE if d.table in _TABLES), key=lambda d: _TABLES.index(d.table))
    return {d.name: (d.unit.value, d.formula or d.description) for d in known if d.name in SERIES}


def _export(found: Sequence[Results], file: Path) -> None:
    from workbench.analysis.results import merged, write
    from workbench.cli.shared import note

    whole = merged(found)
    write(whole, file)
    note(f"wrote {file}: {len(whole.runs)} runs")


def _write(file: Path, text: str) -> None:
    from workbench.cli.shared import note

    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write '{file}': {error.strerror or error}") from None
    note(f"wrote {file}: {len(text.encode()) / 1e6:.1f} MB")
