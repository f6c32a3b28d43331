"""The generated blocks of docs/schema.md and docs/cli.md; `make docs` writes them, `make check` finds stale ones."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from workbench.diagnostics import CATALOGUE
from workbench.spec import ROLLUPS, SPAN, TABLES, Rollup, Table


def schema() -> str:
    """Every table with its grain, its key and its columns; formulas and sources are on the page of diagnostics."""
    return "\n\n".join([*(_table(table) for table in (*TABLES, SPAN)), *map(_rollup, ROLLUPS)])


def commands() -> str:
    """Usage and help of every verb, in the order of `sorl --help`."""
    import typer

    from workbench.cli.main import app

    group = typer.main.get_command(app)
    context = group.make_context("sorl", [], resilient_parsing=True)
    pages = []
    for verb in group.list_commands(context):  # type: ignore[attr-defined]
        command = group.get_command(context, verb)  # type: ignore[attr-defined]
        pages.append(_verb(verb, command, command.make_context(f"sorl {verb}", [], resilient_parsing=True)))
    return "\n\n".join(pages)


def _verb(name: str, command: Any, context: Any) -> str:
    rows = []
    for parameter in command.get_params(context):
        if parameter.name == "help":
            continue
        record = parameter.get_help_record(context)
        usage, text = record if record else (parameter.human_readable_name, getattr(parameter, "help", None) or "")
        rows.append((f"`{usage}`", text))
    usage = " ".join(command.collect_usage_pieces(context))
    help_text = inspect.cleandoc(command.help or "").split("\f")[0]
    return f"## sorl {name}\n\n    sorl {name} {usage}\n\n{help_text}\n\n" + _markdown(("argument", "meaning"), rows)


def _table(table: Table) -> str:
    rows = [(f"`{c.name}`", c.type, "", c.description) for c in table.columns]
    rows += [(f"`{d.name}`", d.sql_type, d.unit.value, d.description) for d in CATALOGUE if d.table == table.name]
    key = ", ".join(f"`{name}`" for name in table.key)
    return f"## {table.name}\n\n{table.grain} Key: {key}.\n\n" + _markdown(("column", "type", "unit", "meaning"), rows)


def _rollup(rollup: Rollup) -> str:
    rows = [(f"`{c.name}`", c.type, c.description) for c in rollup.columns]
    kind = "STRUCT(n BIGINT, broken BIGINT, total, low, high, log DOUBLE)"
    told = (
        f"of `{rollup.source}`, over the rows of the block: how many are finite, how many are NaN or Inf, the sum, the "
        "lowest and the highest of the finite ones, and of ratios the sum of ln max(value, e^-20)"
    )
    rows.append(("every numeric measured column", kind, told))
    return f"## {rollup.name}\n\n{rollup.grain}\n\n" + _markdown(("column", "type", "meaning"), rows)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
