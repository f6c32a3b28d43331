"""`sorl diagnostics`: every measured column, or one of them with its formula, source and alarm."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.shared import echo
from workbench.cli.tables import check_format, show
from workbench.spec import InputError, nearest

if TYPE_CHECKING:
    from workbench.spec import Alarm, Diagnostic

_FORMATS = ("table", "md", "json")


def diagnostics(
    name: Annotated[str | None, typer.Argument(help="One diagnostic; default: all.", show_default=False)] = None,
    form: Annotated[str, typer.Option("--format", help="table, md or json.")] = "table",
) -> None:
    """List the measured columns, or show one: unit, levels, formula, source and alarm."""
    check_format(form, _FORMATS)
    show_diagnostics(name, form)


def show_diagnostics(name: str | None, form: str = "table") -> None:
    """Print the listing or one diagnostic; InputError for one that does not exist."""
    import pandas as pd

    from workbench.diagnostics import CATALOGUE

    chosen = [d for d in CATALOGUE if name is None or d.name == name]
    if not chosen:
        known = list(dict.fromkeys(d.name for d in CATALOGUE))
        raise InputError(
            f"no diagnostic '{name}'{nearest(str(name), known)}; `sorl diagnostics` lists all {len(known)}"
        )
    if form == "json":
        echo(json.dumps([asdict(d) for d in chosen], indent=2, ensure_ascii=False))
    elif name is None:
        rows = [
            {
                "diagnostic": d.name,
                "table": d.table,
                "unit": d.unit.value or "-",
                "alarm": alarm(d.alarm),
                "tells": _first_sentence(d),
            }
            for d in chosen
        ]
        show(pd.DataFrame(rows), form)
    else:
        echo("\n\n".join(_one(d) for d in chosen))


def _first_sentence(diagnostic: Diagnostic) -> str:
    return diagnostic.description.split(". ")[0].rstrip(".")


def _one(d: Diagnostic) -> str:
    rows = {
        "column": f"{d.table}.{d.name} ({d.sql_type})", "unit": d.unit.value or "none", "formula": d.formula,
        "source": d.source, "alarm": f"{alarm(d.alarm)}: {d.alarm.reason}" if d.alarm else f"none: {d.no_alarm}",
    }  # fmt: skip
    lines = [f"  {key:8} {value}" for key, value in rows.items()]
    return "\n".join([f"{d.name} ({d.level})", textwrap.fill(d.description, 110), *lines])


def alarm(trip: Alarm | None) -> str:
    """Return a trip-wire in words: `above 10 x baseline, 3 points`."""
    if trip is None:
        return "-"
    mark = f"{trip.when} {trip.value:g}" + (" x baseline" if trip.relative else "")
    return mark if trip.points == 1 else f"{mark}, {trip.points} points"
