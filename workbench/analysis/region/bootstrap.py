"""Boundaries and areas of a landscape under draws of its seeds, the same draws for every series."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import pandas as pd

from workbench.analysis.region.boundary import Boundary, Counts, boundary, heights

RESAMPLES = 2_000  # 5 seeds can be drawn in 126 ways
Edges = Mapping[float, Sequence[Boundary | None]]  # condition y -> the boundary in each way of drawing


@dataclass(frozen=True)
class Draws:
    """Seeds drawn with replacement: how often each came in each way to draw, (W, S), and the way of each draw, (D,)."""

    seeds: tuple[int, ...]
    times: np.ndarray
    way: np.ndarray

    @classmethod
    def of(cls, seeds: Sequence[int]) -> Draws:
        """2,000 draws of as many seeds as there are; the random stream is fixed."""
        n = len(seeds)
        drawn = np.random.default_rng(0).multinomial(n, [1 / n] * n, size=RESAMPLES)
        times, way = np.unique(drawn, axis=0, return_inverse=True)
        return cls(tuple(seeds), times, way.ravel())

    @classmethod
    def once(cls, seeds: Sequence[int]) -> Draws:
        """Every seed once: what was recorded."""
        return cls(tuple(seeds), np.ones((1, len(seeds))), np.zeros(1, int))


def edges(runs: pd.DataFrame, draws: Draws) -> Edges:
    """The boundary of each column in each way of drawing; None where no run of the column was drawn."""
    place = {seed: i for i, seed in enumerate(draws.seeds)}
    found: dict[float, list[Boundary | None]] = {}
    for y in sorted(runs["y"].unique()):
        column = runs[runs["y"] == y]
        tried = sorted(column["x"].unique())
        judged = np.zeros((len(tried), len(place)))
        fell = np.zeros_like(judged)
        at = ([tried.index(x) for x in column["x"]], [place[int(seed)] for seed in column["seed"]])
        np.add.at(judged, at, 1)
        np.add.at(fell, at, column["collapsed"].to_numpy(float))
        logs = [math.log2(x) for x in tried]
        found[float(y)] = [
            boundary({x: Counts(float(k), float(n)) for x, k, n in zip(logs, fallen, whole, strict=True)})
            for fallen, whole in zip(draws.times @ fell.T, draws.times @ judged.T, strict=True)
        ]
    return found


def positions(found: Edges, draws: Draws, name: str) -> dict[float, np.ndarray]:
    """Condition y -> log2 of the boundary in each draw, (D,), anywhere between the tried values beside it.

    Where the seeds agree, 0 of 5 here and 5 of 5 there, resampling them changes nothing, and yet the boundary may lie
    anywhere between: each draw takes a place there at random (`name` makes the places of each series its own). NaN
    where no run of the column was drawn; beyond what was tried it is the last value tried.
    """
    made: dict[float, np.ndarray] = {}
    for y, ways in found.items():
        stream = np.random.default_rng(crc32(f"{name} {y:g}".encode()))
        ends = np.array([_ends(edge) for edge in ways])[draws.way]  # (D, 2)
        made[y] = ends[:, 0] + stream.random(len(ends)) * (ends[:, 1] - ends[:, 0])
    return made


def _ends(edge: Boundary | None) -> tuple[float, float]:
    if edge is None:
        return math.nan, math.nan
    return (edge.at, edge.at) if edge.low is None or edge.high is None else (edge.low, edge.high)


def areas(placed: Mapping[float, np.ndarray], low: float, high: float) -> np.ndarray | None:
    """The area below the boundaries of each draw, (D,), in doublings x doublings; None below two columns."""
    if len(placed) < 2:
        return None
    order = sorted(placed)
    width = np.stack([np.clip(placed[y], math.log2(low), math.log2(high)) - math.log2(low) for y in order])
    return np.asarray(np.trapezoid(width, heights(order), axis=0))


def interval(values: np.ndarray | None, draws: Draws, level: float = 0.95) -> tuple[float, float] | None:
    """Percentile interval over the draws; None for a single seed, whose spread is not known."""
    known = np.array([]) if values is None else values[~np.isnan(values)]
    if len(draws.seeds) < 2 or not len(known):
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
