"""What `run` and `plan` share: their options, and a grid file with its algorithms looked up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from workbench.grid.config import Grid
    from workbench.grid.history import History

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of every cell, e.g. learn.staleness=0; also seeds=[0]. Repeatable.",
        show_default=False,
    ),
]
Arms = Annotated[
    list[str] | None,
    typer.Option("--arm", metavar="NAME", help="Only this arm of the file. Repeatable.", show_default=False),
]


def grid_of(file: Path, overrides: Sequence[str], history: History | None = None, only: Sequence[str] = ()) -> Grid:
    """The cells of a grid file; InputError for unknown algorithms and slots, and for impossible group sizes.

    `history` holds the recorded runs, for a grid whose cells depend on them; `only` names the arms, empty = all.
    """
    from workbench.algorithms import resolve
    from workbench.grid.config import load

    return load(file, overrides, resolve, history, only)


def runs_of(ctx: typer.Context) -> Path:
    """The folder of the global option --runs."""
    return Path(ctx.obj)
