"""`sorl algorithms`: what there is, what one consists of, how two differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.tables import check_format, show
from workbench.cli.text import echo
from workbench.spec import InputError

if TYPE_CHECKING:
    import pandas as pd

    from workbench.objective import Algorithm

_FORMATS = ("table", "md", "json")


def algorithms(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME | diff A B]", help="One algorithm, or diff and two of them.", show_default=False),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="table, md or json.")] = "table",
) -> None:
    """List the algorithms, show the slots of one, or the slots in which two differ."""
    check_format(form, _FORMATS)
    show_algorithms(names or [], form)


def show_algorithms(names: list[str], form: str = "table") -> None:
    """Print the listing for no name, the slots for one, the difference for `diff A B`."""
    from workbench.algorithms import resolve

    if not names:
        show(_listing(), form)
    elif names[0] == "diff":
        if len(names) != 3:
            raise InputError("diff compares two algorithms; write: sorl algorithms diff ppo st-ppo")
        _show_difference(resolve(names[1]), resolve(names[2]), form)
    elif len(names) == 1:
        _show_one(resolve(names[0]), form)
    else:
        raise InputError(f"one algorithm at a time; to compare two write: sorl algorithms diff {names[0]} {names[1]}")


def _listing() -> pd.DataFrame:
    import pandas as pd

    from workbench.algorithms import ALGORITHMS, differences
    from workbench.algorithms.dictionary import by_family

    rows = []
    for family, members in by_family():
        for algorithm in members:
            base = ALGORITHMS[algorithm.differs_from] if algorithm.differs_from else None
            rows.append(
                {
                    "family": family,
                    "algorithm": algorithm.name,
                    "title": algorithm.title,
                    "differs from": f"{base.name} in {', '.join(differences(base, algorithm))}" if base else "-",
                    "critic": "yes" if algorithm.critic else "no",
                    "rollouts a prompt": algorithm.group_size,
                    "experimental": "yes" if algorithm.experimental else "",
                    "paper": algorithm.paper,
                }
            )
    return pd.DataFrame(rows)


def _show_one(algorithm: Algorithm, form: str) -> None:
    import pandas as pd

    from workbench.cli.plan import choice
    from workbench.objective import KINDS

    if form != "json":
        echo(f"{algorithm.title}\n{algorithm.formula}\n{algorithm.paper}")
        echo(f"Claimed: {algorithm.claim}\nMeasured: {_measured(algorithm.name)}")
        echo(f"Experimental: {algorithm.experimental}\n" if algorithm.experimental else "")
    show(pd.DataFrame([{"slot": slot, "choice": choice(getattr(algorithm, slot))} for slot in KINDS]), form)


def _measured(name: str) -> str:
    from workbench.algorithms import measured
    from workbench.algorithms.dictionary import NOT_YET

    return measured().get(name, NOT_YET)


def _show_difference(a: Algorithm, b: Algorithm, form: str) -> None:
    import pandas as pd

    from workbench.algorithms import differences
    from workbench.cli.plan import choices

    rows = [
        {"slot": slot, **dict(zip((a.name, b.name), choices(pair), strict=True))}
        for slot, pair in differences(a, b).items()
    ]
    if not rows and form != "json":
        echo(f"{a.name} and {b.name} are the same algorithm.")
        return
    show(pd.DataFrame(rows, columns=["slot", a.name, b.name]), form)
