"""`sorl diagnostics`: every measured column, or one of them with its formula, source and alarm."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from workbench.cli.shared import Listing
from workbench.cli.tables import document, echo, show
from workbench.diagnostics import CATALOGUE
from workbench.spec import InputError, nearest

if TYPE_CHECKING:
    from workbench.spec import Alarm


def diagnostics(
    name: Annotated[str | None, Argument(help="One diagnostic; default: all.")] = None, form: Listing = "table"
) -> None:
    """List the measured columns, or show one: unit, levels, formula, source and alarm."""
    import pandas as pd

    chosen = [d for d in CATALOGUE if name is None or d.name == name]
    if not chosen:
        known = list(dict.fromkeys(d.name for d in CATALOGUE))
        raise InputError(
            f"no diagnostic '{name}'{nearest(str(name), known)}; `sorl diagnostics` lists all {len(known)}"
        )
    if form == "json":
        echo(document([asdict(d) for d in chosen]), nl=False)
        return
    if name is None:
        rows = [
            {
                "diagnostic": d.name, "table": d.table, "unit": d.unit.value or "-", "alarm": alarm(d.alarm),
                "meaning": d.description.split(". ")[0].rstrip("."),
            }
            for d in chosen
        ]  # fmt: skip
        show(pd.DataFrame(rows), form)
        return
    for i, d in enumerate(chosen):
        echo(("\n" if i else "") + f"{d.name} ({d.level})\n{textwrap.fill(d.description, 110)}")
        facts = {
            "column": f"{d.table}.{d.name} ({d.sql_type})", "unit": d.unit.value or "none", "formula": d.formula,
            "source": d.source, "alarm": f"{alarm(d.alarm)}: {d.alarm.reason}" if d.alarm else f"none: {d.no_alarm}",
        }  # fmt: skip
        for key, value in facts.items():
            echo(f"  {key:8} {value}")


def alarm(trip: Alarm | None) -> str:
    """Return an alarm in words: `above 10 x baseline, 3 points`."""
    if trip is None:
        return "-"
    mark = f"{trip.when} {trip.value:g}" + (" x baseline" if trip.relative else "")
    return mark if trip.points == 1 else f"{mark}, {trip.points} points"
