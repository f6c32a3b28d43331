"""What happens in a generated log, as rows of metrics under the names of `studies.scalar_logs.trainers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from bench.unsized_curves import NOISE, autoregressive
from studies.scalar_logs import corpus
from studies.scalar_logs.corpus import Case
from studies.scalar_logs.variants import ACCEPTED, VARIANTS

Row = dict[str, float]
Draw = Callable[[np.random.Generator, int], np.ndarray]

METRICS = ("step", "reward", "entropy", "kl", "grad_norm", "loss", "lr", "length", "truncated")
LENGTHS = (60, 200, 700)  # rows
FLAT = ("no_learning", "no_clear_change", "saturated")  # words for a curve that does not change


def heavy_tailed(rng: np.random.Generator, steps: int) -> np.ndarray:
    """Student's t with three degrees of freedom, of deviation 1."""
    return rng.standard_t(3, steps) / np.sqrt(3)


NOISES: dict[str, Draw] = {
    "white": partial(autoregressive, correlation=0.0),
    "AR(.5)": partial(autoregressive, correlation=0.5),
    "AR(.9)": partial(autoregressive, correlation=0.9),
    "t(3)": heavy_tailed,
}


def healthy(part: np.ndarray) -> np.ndarray:
    """It learns, faster at first."""
    return 0.2 + 0.5 * (1 - np.exp(-4 * part))


def flat(part: np.ndarray) -> np.ndarray:
    """It learns nothing."""
    return np.full_like(part, 0.4)


def collapsed(part: np.ndarray) -> np.ndarray:
    """It learns, and loses more than it had learned after three fifths of the run."""
    return np.interp(part, [0, 0.4, 0.6, 0.65], [0.2, 0.7, 0.7, 0.1])


def recovered(part: np.ndarray) -> np.ndarray:
    """It falls in the middle of the run and comes back."""
    return np.interp(part, [0, 0.3, 0.45, 0.5, 0.65, 0.8], [0.2, 0.7, 0.7, 0.1, 0.1, 0.7])


@dataclass(frozen=True)
class Truth:
    """What happens in a log, and what is right to say of it."""

    name: str
    outcomes: tuple[str, ...] = ()  # words that are right; none: the outcome is not counted
    causes: tuple[str, ...] = ()  # names of the cause that are right; none: the cause is not counted
    level: Callable[[np.ndarray], np.ndarray] | None = None  # of the reward, by the part of the run
    variant: str = ""  # of `studies.scalar_logs`, where a fault is simulated

    @property
    def is_healthy(self) -> bool:
        """Whether nothing goes wrong."""
        return self.name == "healthy"


LEVELS = (
    Truth("healthy", ("healthy",), level=healthy),
    Truth("flat", FLAT, level=flat),
    Truth("collapsed", ("collapsed",), level=collapsed),
    Truth("recovered", ("recovered",), level=recovered),
)


def _fault(cause: str, variant: str) -> Truth:
    return Truth(cause, causes=ACCEPTED[cause], variant=f"{cause}/{variant}")


FAULTS = (
    _fault("entropy_collapse", "from_the_middle"),
    _fault("truncation", "grows_into_it"),
    _fault("kl_blowup", "from_the_middle"),
    _fault("length_collapse", "from_the_middle"),
    _fault("non_finite", "weights_are_lost"),
)


@dataclass(frozen=True)
class Run:
    """A truth with its noise and length; both are drawn where a fault is simulated."""

    truth: Truth
    noise: str = ""
    length: int = 0

    def rows(self, number: int) -> list[Row]:
        """The rows of the run; every number gives others."""
        if self.truth.level is None:
            return fault_rows(self.truth.variant, number)
        rng = np.random.default_rng([number, self.length, list(NOISES).index(self.noise)])
        return level_rows(self.truth.level, NOISES[self.noise], self.length, rng)


def all_runs() -> Iterator[Run]:
    """Yield every level in every noise and length, and every fault."""
    for truth in LEVELS:
        for noise in NOISES:
            for length in LENGTHS:
                yield Run(truth, noise, length)
    for truth in FAULTS:
        yield Run(truth)


def level_rows(
    level: Callable[[np.ndarray], np.ndarray], noise: Draw, length: int, rng: np.random.Generator
) -> list[Row]:
    """A reward of that level, next to metrics of a run in which nothing else goes wrong."""
    part = np.arange(length) / length
    columns = {
        "step": np.arange(1, length + 1),
        "reward": level(part) + NOISE * noise(rng, length),
        "entropy": (0.9 - 0.35 * part) * np.exp(0.05 * noise(rng, length)),
        "kl": (0.002 + 0.03 * part) * np.exp(0.1 * noise(rng, length)),
        "grad_norm": 0.5 * np.exp(0.2 * noise(rng, length)),
        "loss": 0.01 * noise(rng, length),
        "lr": np.full(length, 1e-6),
        "length": (300 + 30 * part) * np.exp(0.03 * noise(rng, length)),
        "truncated": 0.02 * np.exp(0.1 * noise(rng, length)),
    }
    series = [columns[name].tolist() for name in METRICS]
    return [dict(zip(METRICS, values, strict=True)) for values in zip(*series, strict=True)]


def fault_rows(variant: str, number: int) -> list[Row]:
    """A simulated run with a fault, of the half of seeds that no rule was worked out on."""
    return [_metrics_of(row) for row in _simulated(variant, 2 * number + 1)]


def _metrics_of(row: Row) -> Row:
    return {name: row[name] for name in METRICS}


@cache
def _simulated(variant: str, seed: int) -> list[Row]:
    _, rows, _ = corpus.draw(Case(VARIANTS[variant], seed))
    return rows
