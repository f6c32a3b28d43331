"""The results of an experiment, from its runs or from a file: what `report` and the generated page of findings read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.analysis.results import Results


def gather(runs: Path, experiments: Sequence[str], files: Sequence[Path]) -> list[Results]:
    """The results of experiments in the runs folder, then those of files. InputError where one is not to be had."""
    from workbench.analysis.results import read

    return [*recorded(runs, experiments), *(read(file) for file in files)]


def recorded(runs: Path, experiments: Sequence[str]) -> list[Results]:
    """The results of experiments in the runs folder, the database brought up to date first."""
    from workbench.analysis import results
    from workbench.cli import fairness
    from workbench.cli.compare import in_file_order
    from workbench.cli.database import current
    from workbench.grid.guard import lines

    if not experiments:
        return []
    reader = current(runs)
    found = []
    for name in experiments:
        order = partial(in_file_order, file=runs / name / "experiment.toml")
        frame, about = results.collect(reader, name, slots, order)
        found.append(results.results(frame, about, lines(fairness.recorded(reader, frame))))
    return found


@lru_cache(maxsize=4096)
def slots(config: str) -> str | None:
    """What a configuration (JSON) resolves to: its slots with their options, its critic, its group size, as JSON.

    None for an algorithm that this version of sorl does not know, as in logs of another trainer. Nothing else of the
    configuration is looked at, so that runs of another version keep their slots.
    """
    from workbench.algorithms import resolve
    from workbench.objective import KINDS
    from workbench.spec import InputError

    try:
        settings = json.loads(config)
        algorithm = resolve(settings["algorithm"], settings["slots"])
        group_size = settings["learn"]["group_size"]
    except (ValueError, KeyError, TypeError, InputError):
        return None
    parts = {slot: {"kind": getattr(algorithm, slot).kind, **asdict(getattr(algorithm, slot))} for slot in KINDS}
    own = {"critic": algorithm.critic, "group_size": group_size or algorithm.group_size}
    return json.dumps({"slots": parts, **own}, sort_keys=True)
