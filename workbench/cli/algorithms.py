"""`sorl algorithms`: list the algorithms, show one, compare two."""

from typing import Any

from typer import Argument

from sorl.algorithms import ALGORITHMS, NOT_YET, by_family, differences, measured, resolve
from sorl.cli.shared import LISTING
from sorl.cli.tables import echo, show
from sorl.grid.cell import choice, choices
from sorl.objective import KINDS, Algorithm
from sorl.spec import InputError


def algorithms(
    names: list[str] | None = Argument(
        None, metavar="[NAME | diff A B]", help="One to show, or two to compare."
    ),
    form: str = LISTING,
) -> None:
    """List the algorithms, show the slots of one, or the slots in which two differ."""
    if not names:
        show(_rows(), form)
    elif names[0] == "diff":
        if len(names) != 3:
            raise InputError("diff compares two algorithms: sorl algorithms diff ppo st-ppo")
        _show_differences(resolve(names[1]), resolve(names[2]), form)
    elif len(names) == 1:
        _show_algorithm(resolve(names[0]), form)
    else:
        raise InputError(f"name one algorithm; to compare two: sorl algorithms diff {names[0]} {names[1]}")


def _rows() -> list[dict[str, Any]]:
    """A row an algorithm, family by family."""
    rows = []
    for family, members in by_family():
        rows += [_row(family, algorithm) for algorithm in members]
    return rows


def _row(family: str, algorithm: Algorithm) -> dict[str, Any]:
    base = algorithm.differs_from
    changed = ", ".join(differences(ALGORITHMS[base], algorithm)) if base else ""
    return {
        "family": family,
        "algorithm": algorithm.name,
        "title": algorithm.title,
        "differs from": f"{base} in {changed}" if base else "-",
        "critic": "yes" if algorithm.critic else "no",
        "rollouts a prompt": algorithm.group_size,
        "experimental": "yes" if algorithm.experimental else "",
        "paper": algorithm.paper,
    }


def _show_differences(first: Algorithm, second: Algorithm, form: str) -> None:
    """Print a row for each slot in which two algorithms differ."""
    differing = differences(first, second)
    if not differing and form != "json":
        echo(f"{first.name} and {second.name} are the same algorithm.")
        return
    columns = ("slot", first.name, second.name)
    rows = [(slot, *choices(pair)) for slot, pair in differing.items()]
    show([dict(zip(columns, row, strict=True)) for row in rows], form)


def _show_algorithm(algorithm: Algorithm, form: str) -> None:
    """Print what an algorithm is, what is claimed and measured of it, and its slots."""
    if form != "json":
        echo(f"{algorithm.title}\n{algorithm.formula}\n{algorithm.paper}")
        echo(f"Claimed: {algorithm.claim}\nMeasured: {measured().get(algorithm.name, NOT_YET)}")
        echo(f"Experimental: {algorithm.experimental}\n" if algorithm.experimental else "")
    show([{"slot": slot, "choice": choice(getattr(algorithm, slot))} for slot in KINDS], form)
