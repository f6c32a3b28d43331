"""`sorl diagnostics`: every measured column, or one of them with its formula, source and alarm."""

import textwrap
from dataclasses import asdict

from typer import Argument

from sorl.cli.shared import LISTING
from sorl.cli.tables import document, echo, show
from sorl.measures import CATALOGUE
from sorl.measures.declare import in_words
from sorl.spec import InputError, nearest


def diagnostics(
    name: str | None = Argument(None, help="One diagnostic; default: all."), form: str = LISTING
) -> None:
    """List the measured columns, or show one: unit, levels, formula, source and alarm."""
    chosen = [d for d in CATALOGUE if name is None or d.name == name]
    if not chosen:
        known = {d.name: None for d in CATALOGUE}
        every = f"`sorl diagnostics` lists all {len(known)}"
        raise InputError(f"no diagnostic '{name}'{nearest(str(name), known)}; {every}")
    if form == "json":
        echo(document([asdict(d) for d in chosen]), nl=False)
        return
    if name is None:
        show(
            [
                {
                    "diagnostic": d.name,
                    "table": d.table,
                    "unit": d.unit.value or "-",
                    "alarm": in_words(d.alarm) if d.alarm else "-",
                    "meaning": d.description.split(". ")[0].rstrip("."),
                }
                for d in chosen
            ],
            form,
        )
        return
    for i, d in enumerate(chosen):
        echo(("\n" if i else "") + f"{d.name} ({d.level})\n{textwrap.fill(d.description, 110)}")
        facts = {
            "column": f"{d.table}.{d.name} ({d.sql_type})",
            "unit": d.unit.value or "none",
            "formula": d.formula,
            "source": d.source,
            "alarm": f"{in_words(d.alarm)}: {d.alarm.reason}" if d.alarm else f"none: {d.no_alarm}",
        }
        for key, value in facts.items():
            echo(f"  {key:8} {value}")
