"""Forks without a cause: whether a run survives once what a diagnosis found is removed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import confirm

from sorl.cli.children import BEFORE, STEPS, applied, forkable, grid_of, time_left, train
from sorl.cli.tables import note
from sorl.grid.cell import flatten
from sorl.grid.fork import allowed
from sorl.spec import InputError, RunSettings, first_paragraph
from sorl.store.text import visible

if TYPE_CHECKING:
    from sorl.diagnosis.finding import Cause, Diagnosis

LIKELIEST = 4  # causes that are tested


def removal(cause: Cause, settings: RunSettings) -> dict[str, Any]:
    """Return what a child changes to go on without a cause or a fault; empty where no setting removes it."""
    if settings.fault is not None and settings.fault.kind == cause.name:
        return {"fault": None}
    old = flatten(settings.model_dump(mode="json"))
    return {key: value for key, value in applied(cause.without, old).items() if value != old[key]}


def intervene(
    runs: Path,
    diagnosis: Diagnosis,
    draws: int,
    *,
    yes: bool,
    steps: int = STEPS,
    causes: Sequence[Cause] | None = None,
    workers: int | None = None,
) -> bool:
    """Fork a run without each of these causes (its likeliest), once the time was agreed to; return whether it
    was.
    """
    from sorl.analysis.forks import power

    name = diagnosis.log.name
    if diagnosis.log.onset is None:
        raise InputError(f"'{name}' did not fall: there is nothing to save it from")
    children = forkable(runs, name, BEFORE)
    arms = _removals(causes or _likeliest(diagnosis), children.settings)
    if not arms:
        raise InputError(
            f"nothing that was found in '{name}' is removed by a setting; see `sorl diagnose {name}`"
        )
    grid = grid_of(runs, children, arms, draws, steps)
    time = time_left(grid.cells, runs, workers)
    note(f"{len(grid.cells)} children from step {children.step} on, {steps} steps each: {time}")
    for arm, changes in arms.items():
        settings = ", ".join(f"{key} = {value}" for key, value in changes.items() if value is not None)
        note(f"  {arm}: {settings or 'as the trainer is without the fault'}")
    note(power(draws, len(arms)))
    if not yes and not (sys.stdin.isatty() and confirm("Train them?", err=True)):
        note("Nothing was trained. Add --yes to train them.")
        return False
    train(runs, grid, workers)
    return True


def _likeliest(diagnosis: Diagnosis) -> list[Cause]:
    """Return the causes that are worth a test, the likeliest first."""
    from sorl.diagnosis.rank import in_order

    return [finding.cause for finding in in_order(diagnosis)][:LIKELIEST]


def _removals(causes: Iterable[Cause], settings: RunSettings) -> dict[str, dict[str, Any]]:
    """Return an arm for each cause that a fork can remove; of the others it is noted why not."""
    from sorl.analysis.forks import WITHOUT

    arms = dict[str, dict[str, Any]]()
    for cause in causes:
        changes = removal(cause, settings)
        arm = WITHOUT + cause.name
        try:
            allowed(arm, changes, settings)
        except InputError as error:
            changes = {}
            note(str(error))
        if changes:
            arms[arm] = changes
        else:
            note(f"not tested, as no setting removes it: {cause.name}. {cause.change}")
    return arms


def arms_file(diagnosis: Diagnosis, draws: int) -> str:
    """Return the arms to continue a run of another trainer with, as a TOML file with its reasons."""
    log = diagnosis.log
    first_step = min((finding.clue.step for finding in diagnosis.findings), default=0)
    step = first_step if log.onset is None else log.onset
    lines = [
        (
            f"# Continue {visible(log.name)} from its last checkpoint before step {step}, {draws} times"
            " each arm,"
        ),
        (
            "# each time with another seed. A cause is shown if children without it stay up and those left"
            " unchanged fall."
        ),
        "# Below are our settings, and what other trainers call them.",
        "",
        "[[arms]]",
        'name = "unchanged"',
    ]
    for cause in _likeliest(diagnosis):
        lines += ["", f"# {cause.title}. {cause.change}"]
        if cause.without:
            lines += ["[[arms]]", f'name = "without {cause.name}"']
        lines += [_setting_line(key, new, log.settings.get(key)) for key, new in cause.without.items()]
    return "\n".join(lines) + "\n"


def _setting_line(key: str, new: Any, old: Any) -> str:
    """Return a line of TOML that sets `key`; a comment where the new value needs an old one that is not
    known.
    """
    from sorl.importing.names import SETTINGS

    if callable(new) and not isinstance(old, int | float):
        return f'# "{key}": {first_paragraph(new).removeprefix("Return ")}'
    value = json.dumps(applied({key: new}, {key: old})[key])
    their_names = ", ".join(SETTINGS.get(key, ())[:3])
    return f'"{key}" = {value}  # was {visible(str(old))}; {their_names}'
