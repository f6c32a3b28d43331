"""`sorl algorithms`: list the algorithms, show one, compare two."""

from typer import Argument

from sorl.algorithms import ALGORITHMS, NOT_YET, by_family, differences, measured, resolve
from sorl.cli.shared import LISTING
from sorl.cli.tables import echo, show
from sorl.grid.cell import choice, choices
from sorl.objective import KINDS
from sorl.spec import InputError


def algorithms(
    names: list[str] | None = Argument(
        None, metavar="[NAME | diff A B]", help="One to show, or two to compare."
    ),
    form: str = LISTING,
) -> None:
    """List the algorithms, show the slots of one, or the slots in which two differ."""
    if not names:
        show(
            [
                {
                    "family": family,
                    "algorithm": a.name,
                    "title": a.title,
                    "differs from": (
                        f"{base} in {', '.join(differences(ALGORITHMS[base], a))}" if base else "-"
                    ),
                    "critic": "yes" if a.critic else "no",
                    "rollouts a prompt": a.group_size,
                    "experimental": "yes" if a.experimental else "",
                    "paper": a.paper,
                }
                for family, members in by_family()
                for a in members
                for base in [a.differs_from]
            ],
            form,
        )
    elif names[0] == "diff":
        if len(names) != 3:
            raise InputError("diff compares two algorithms: sorl algorithms diff ppo st-ppo")
        a = resolve(names[1])
        b = resolve(names[2])
        found = differences(a, b)
        if found or form == "json":
            columns = ("slot", a.name, b.name)
            show(
                [dict(zip(columns, (slot, *choices(pair)), strict=True)) for slot, pair in found.items()],
                form,
            )
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
