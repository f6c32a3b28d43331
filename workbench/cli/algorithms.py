"""`sorl algorithms`: list the algorithms, show one, compare two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.shared import echo
from workbench.cli.tables import check_format, show
from workbench.spec import InputError

if TYPE_CHECKING:
    import pandas as pd

    from workbench.objective import Algorithm


def algorithms(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME | diff A B]", help="An algorithm, or diff and two algorithms.", show_default=False
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="table, md or json.")] = "table",
) -> None:
    """List the algorithms, show the slots of one, or the slots in which two differ."""
    check_format(form, ("table", "md", "json"))
    show_algorithms(names or [], form)


def show_algorithms(names: list[str], form: str = "table") -> None:
    """Print the listing for no name, the slots for one, the difference for `diff A B`."""
    from workbench.algorithms import resolve

    if not names:
        show(_listing(), form)
    elif names[0] == "diff":
        if len(names) != 3:
            raise InputError("diff compares two algorithms: sorl algorithms diff ppo st-ppo")
        _show_difference(resolve(names[1]), resolve(names[2]), form)
    elif len(names) == 1:
        _show_one(resolve(names[0]), form)
    else:
        raise InputError(f"one algorithm at a time; to compare two: sorl algorithms diff {names[0]} {names[1]}")


def _listing() -> pd.DataFrame:
    import pandas as pd

    from workbench.algorithms import ALGORITHMS, by_family, differences

    def difference(a: Algorithm) -> str:
        if a.differs_from is None:
            return "-"
        return f"{a.differs_from} in {', '.join(differences(ALGORITHMS[a.differs_from], a))}"

    return pd.DataFrame(
        {
            "family": family,
            "algorithm": a.name,
            "title": a.title,
            "differs from": difference(a),
            "critic": "yes" if a.critic else "no",
            "rollouts a prompt": a.group_size,
            "experimental": "yes" if a.experimental else "",
            "paper": a.paper,
        }
        for family, members in by_family()
        for a in members
    )


def _show_one(algorithm: Algorithm, form: str) -> None:
    import pandas as pd

    from workbench.algorithms import NOT_YET, measured
    from workbench.grid.cell import choice
    from workbench.objective import KINDS

    if form != "json":
        echo(f"{algorithm.title}\n{algorithm.formula}\n{algorithm.paper}")
        echo(f"Claimed: {algorithm.claim}\nMeasured: {measured().get(algorithm.name, NOT_YET)}")
        echo(f"Experimental: {algorithm.experimental}\n" if algorithm.experimental else "")
    show(pd.DataFrame([{"slot": slot, "choice": choice(getattr(algorithm, slot))} for slot in KINDS]), form)


def _show_difference(a: Algorithm, b: Algorithm, form: str) -> None:
    import pandas as pd

    from workbench.algorithms import differences
    from workbench.grid.cell import choices

    found = differences(a, b)
    if not found and form != "json":
        echo(f"{a.name} and {b.name} are the same algorithm.")
        return
    rows = [(slot, *choices(pair)) for slot, pair in found.items()]
    show(pd.DataFrame(rows, columns=["slot", a.name, b.name]), form)
