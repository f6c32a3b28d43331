"""How long a grid will take: a rough cost of an iteration, scaled to what runs on this machine took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from workbench.grid.cell import Cell
from workbench.grid.run import workers_for
from workbench.spec import RunSettings

# Seconds for 64 episodes of the default world and policy, one thread of a 2-core Xeon with AVX-512, two runs side by
# side. Only the proportions matter once a run was recorded.
ROLLOUT = 0.13
UPDATE = 0.085  # one epoch of the policy
CRITIC = 0.085  # one epoch of the critic
SECOND_BACKWARD = 0.10  # one more backward for the clipping bias, where an algorithm needs it at every update
WARM_STEP = 0.11  # one step of the warm start with a batch of 64
START = 6.0  # imports, loading, last checkpoint


@dataclass(frozen=True)
class Recorded:
    """A finished run: what it was and what a step of it took."""

    settings: RunSettings
    critic: bool
    second_backward: bool
    seconds_per_step: float
    passes: float = 1.0
    draws: float = 1.0


def rough(
    settings: RunSettings, critic: bool = True, second_backward: bool = False, passes: float = 1.0, draws: float = 1.0
) -> float:
    """Seconds an iteration by the constants of this file: rough, on a machine that was never measured.

    `passes`: updates that a minibatch becomes; `draws`: rounds of sampling.
    """
    learn, policy, default = settings.learn, settings.policy, RunSettings().policy
    size = max(1.0, _weights(policy) / _weights(default)) if settings.model is None else 1.0
    episodes = learn.episodes / 64
    always = second_backward or learn.clip_bias_every == 1
    share = 1.0 if always else 1.0 / learn.clip_bias_every if learn.clip_bias_every else 0.0
    update = UPDATE + CRITIC * critic + SECOND_BACKWARD * share
    return size * episodes * (draws * ROLLOUT + learn.epochs * passes * update)


def _weights(policy: object) -> float:
    hidden, layers, mlp = (getattr(policy, name) for name in ("hidden", "layers", "mlp"))
    return float(layers * (4 * hidden**2 + 3 * hidden * mlp))


@dataclass(frozen=True)
class Estimate:
    """Wall time of the cells that are left, and where the figure comes from."""

    seconds: float
    workers: int
    recorded: int  # finished runs that the pace was taken from; 0 = the documented rough cost

    @property
    def basis(self) -> str:
        """The origin of the figure, to be printed beside it."""
        if self.recorded:
            return f"pace of {self.recorded} finished runs on this machine"
        return "no run recorded yet: a rough cost per iteration, right within a factor of two or so"


def _training(settings: RunSettings, iteration: float) -> float:
    """Seconds of a run whose iterations take `iteration` seconds, within its budgets of updates and seconds."""
    seconds = iteration * settings.planned_iterations
    return seconds if settings.stop.seconds is None else min(seconds, settings.stop.seconds)


def estimate(
    cells: Sequence[Cell],
    needs: Callable[[RunSettings], tuple[bool, bool, float, float]],
    recorded: Sequence[Recorded] = (),
    workers: int | None = None,
    warm_starts: Sequence[RunSettings] = (),
) -> Estimate:
    """Wall time of `cells` and of the warm starts that are not made yet.

    `needs` says of a cell whether its algorithm has a critic, whether it needs a second backward at every update, how
    many updates it makes of a minibatch and how often it draws.
    """
    pace = (
        median(r.seconds_per_step / rough(r.settings, r.critic, r.second_backward, r.passes, r.draws) for r in recorded)
        if recorded
        else 1.0
    )
    count = workers_for(cells, workers)
    each = [START + _training(c.settings, pace * rough(c.settings, *needs(c.settings))) for c in cells]
    warm = pace * sum(WARM_STEP * s.warmstart.steps * s.warmstart.batch / 64 for s in warm_starts)
    # Longest last could idle a worker, so never below the longest cell.
    seconds = warm + max([sum(each) / count, *each]) if each else 0.0
    return Estimate(seconds, count, len(recorded))
