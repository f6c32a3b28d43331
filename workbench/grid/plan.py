"""The plan of a grid before it runs: how long it takes, and what sets its arms apart."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from workbench.grid.cell import Cell, differing, short
from workbench.grid.config import Grid
from workbench.grid.run import workers_for
from workbench.spec import InputError, RunSettings

# Seconds for 64 episodes of the default world and policy, one thread of a 2-core Xeon with AVX-512, two runs side by
# side. Only the proportions matter once a run was recorded.
ROLLOUT = 0.13
UPDATE = 0.085  # one epoch of the policy
CRITIC = 0.085  # one epoch of the critic
SECOND_BACKWARD = 0.10  # one more backward for the clipping bias, where an algorithm needs it at every update
WARM_STEP = 0.11  # one step of the warm start with a batch of 64
START = 6.0  # imports, loading, last checkpoint
_PACES = """
    SELECT config, seconds / steps AS pace FROM run WHERE status = 'finished' AND steps > 0 AND seconds > 0
    AND versions->>'$.machine' = ? ORDER BY ended_at DESC LIMIT 50
"""


class Needs(NamedTuple):
    """What an iteration of an algorithm takes, beyond its settings."""

    critic: bool = True
    second_backward: bool = False
    passes: float = 1.0  # updates of a minibatch
    draws: float = 1.0  # rounds of sampling


NeedsOf = Callable[[RunSettings], Needs]


@dataclass(frozen=True)
class Estimate:
    """Wall time of the cells that are left, and where the figure comes from."""

    seconds: float
    workers: int
    recorded: int  # finished runs that gave the pace; 0 = the documented rough cost

    @property
    def basis(self) -> str:
        """The origin of the figure, to be printed with it."""
        if self.recorded:
            return f"pace of {self.recorded} finished runs on this machine"
        return "no run recorded yet: a rough cost per iteration, right within a factor of two or so"


def rough(settings: RunSettings, needs: Needs) -> float:
    """Seconds an iteration by the constants of this file, on a machine that was never measured."""
    learn, size = settings.learn, 1.0
    if settings.model is None:
        size = max(1.0, _weights(settings.policy) / _weights(RunSettings().policy))
    always = needs.second_backward or learn.clip_bias_every == 1
    share = 1.0 if always else 1.0 / learn.clip_bias_every if learn.clip_bias_every else 0.0
    update = UPDATE + CRITIC * needs.critic + SECOND_BACKWARD * share
    return size * learn.episodes / 64 * (needs.draws * ROLLOUT + learn.epochs * needs.passes * update)


def _weights(policy: Any) -> float:
    return float(policy.layers * (4 * policy.hidden**2 + 3 * policy.hidden * policy.mlp))


def estimate(
    cells: Sequence[Cell],
    needs: NeedsOf,
    paces: Sequence[float] = (),
    workers: int | None = None,
    warm_starts: Sequence[RunSettings] = (),
) -> Estimate:
    """Wall time of `cells` and of the warm starts that are not made yet.

    `paces` are the times of an iteration of recorded runs, as multiples of the rough cost.
    """
    pace, count = median(paces) if paces else 1.0, workers_for(cells, workers)

    def training(settings: RunSettings) -> float:
        seconds = pace * rough(settings, needs(settings)) * settings.planned_iterations
        return seconds if settings.stop.seconds is None else min(seconds, settings.stop.seconds)

    each = [START + training(cell.settings) for cell in cells]
    warm = pace * sum(WARM_STEP * s.warmstart.steps * s.warmstart.batch / 64 for s in warm_starts)
    # The longest cell may come last and leave the other workers idle: never below it.
    seconds = warm + max([sum(each) / count, *each]) if each else 0.0
    return Estimate(seconds, count, len(paces))


def paces(runs: Path, needs: NeedsOf) -> Iterator[float]:
    """How long an iteration took in each finished run of this kind of machine, as a multiple of its rough cost."""
    if not (runs / "sorl.duckdb").is_file():
        return
    from workbench.store.reader import Reader

    frame = Reader(runs).query(_PACES, [f"{platform.system()} {platform.machine()}"])
    for config, pace in zip(frame["config"], frame["pace"], strict=True):
        try:
            settings = RunSettings.model_validate_json(config)
            yield float(pace) / rough(settings, needs(settings))
        except (ValueError, InputError):
            continue  # a run of another version of sorl: its settings may no longer exist


def time_of(cells: Sequence[Cell], runs: Path, needs: NeedsOf, workers: int | None) -> Estimate:
    """Wall time of `cells` on this machine, by what `runs` has recorded."""
    from workbench.learn.warmstart import key, made

    settings = {key(cell.settings): cell.settings for cell in cells}
    missing = [found for found in settings.values() if not made(found, runs / ".cache")]
    return estimate(cells, needs, list(paces(runs, needs)), workers, missing)


def arm_rows(grid: Grid, status: dict[str, str]) -> list[dict[str, str]]:
    """Return one row per arm: its algorithm, seeds and finished runs, and every setting that not all arms share."""
    settings = differing({cell.arm: cell.settings for cell in grid.cells})
    settings.pop("algorithm", None)  # the arm's label and the table of slots say it
    rows = []
    for arm in grid.arms:
        cells = [cell for cell in grid.cells if cell.arm == arm]
        row = {
            "arm": arm,
            "kind": "control" if cells[0].control else "crossed",
            "algorithm": cells[0].algorithm,
            "seeds": " ".join(str(cell.seed) for cell in cells),
            "finished": f"{sum(status[cell.run_id] == 'finished' for cell in cells)}/{len(cells)}",
        }
        rows.append(row | {short(key): _in_words(values[arm]) for key, values in settings.items()})
    return rows


def choices(slots: Sequence[Any]) -> list[str]:
    """Each choice of one slot in a line: its kind, and the options that are not the default or not the same in all."""
    kinds: dict[str, list[Any]] = {}
    for slot in slots:
        kinds.setdefault(slot.kind, []).append(slot)

    def varying(same: Sequence[Any]) -> set[str]:
        return {f.name for f in fields(same[0]) if len({repr(getattr(slot, f.name)) for slot in same}) > 1}

    return [choice(slot, varying(kinds[slot.kind])) for slot in slots]


def choice(slot: Any, wanted: Collection[str] | None = None) -> str:
    """A slot's choice in a line: its kind and its options (with `wanted`, only these and those off their default)."""
    shown = [f for f in fields(slot) if wanted is None or f.name in wanted or getattr(slot, f.name) != f.default]
    return " ".join([slot.kind, *(f"{f.name}={_in_words(getattr(slot, f.name))}" for f in shown)])


def _in_words(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
