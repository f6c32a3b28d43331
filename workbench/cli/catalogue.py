"""`sorl algorithms`, `sorl diagnostics`: what is declared, as a list or one by one; two algorithms compared."""

import textwrap
from dataclasses import asdict

from typer import Argument

from workbench.algorithms import ALGORITHMS, NOT_YET, by_family, differences, measured, resolve
from workbench.cli.shared import LISTING
from workbench.cli.tables import document, echo, show
from workbench.diagnostics import CATALOGUE
from workbench.diagnostics.declare import in_words
from workbench.grid.cell import choice, choices
from workbench.objective import KINDS
from workbench.spec import InputError, nearest


def algorithms(
    names: list[str] | None = Argument(None, metavar="[NAME | diff A B]", help="One to show, or two to compare."),
    form: str = LISTING,
) -> None:
    """List the algorithms, show the slots of one, or the slots in which two differ."""
    if not names:
        show([{
            "family": family, "algorithm": a.name, "title": a.title,
            "differs from": f"{base} in {', '.join(differences(ALGORITHMS[base], a))}" if base else "-",
            "critic": "yes" if a.critic else "no", "rollouts a prompt": a.group_size,
            "experimental": "yes" if a.experimental else "", "paper": a.paper,
        } for family, members in by_family() for a in members for base in [a.differs_from]], form)  # fmt: skip
    elif names[0] == "diff":
        if len(names) != 3:
            raise InputError("diff compares two algorithms: sorl algorithms diff ppo st-ppo")
        a, b = resolve(names[1]), resolve(names[2])
        found = differences(a, b)
        if found or form == "json":
            columns = ("slot", a.name, b.name)
            show([dict(zip(columns, (slot, *choices(pair)), strict=True)) for slot, pair in found.items()], form)
        else:
            echo(f"{a.name} and {b.name} are the same algorithm.")
    elif len(names) == 1:
        one = resolve(names[0])
        if form != "json":
            echo(f"{one.title}\n{one.formula}\n{one.paper}")
            echo(f"Claimed: {one.claim}\nMeasured: {measured().get(one.name, NOT_YET)}")
            echo(f"Experimental: {one.experimental}\n" if one.experimental else "")
        show([{"slot": slot, "choice": choice(getattr(one, slot))} for slot in KINDS], form)
    else:
        raise InputError(f"name one algorithm; to compare two: sorl algorithms diff {names[0]} {names[1]}")


def diagnostics(name: str | None = Argument(None, help="One diagnostic; default: all."), form: str = LISTING) -> None:
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
        show([{
            "diagnostic": d.name, "table": d.table, "unit": d.unit.value or "-",
            "alarm": in_words(d.alarm) if d.alarm else "-", "meaning": d.description.split(". ")[0].rstrip("."),
        } for d in chosen], form)  # fmt: skip
        return
    for i, d in enumerate(chosen):
        echo(("\n" if i else "") + f"{d.name} ({d.level})\n{textwrap.fill(d.description, 110)}")
        facts = {
            "column": f"{d.table}.{d.name} ({d.sql_type})", "unit": d.unit.value or "none", "formula": d.formula,
            "source": d.source, "alarm": f"{in_words(d.alarm)}: {d.alarm.reason}" if d.alarm else f"none: {d.no_alarm}",
        }  # fmt: skip
        for key, value in facts.items():
            echo(f"  {key:8} {value}")
