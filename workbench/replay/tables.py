"""The tables of a replay: by update, by turn index, by turn of a trajectory, by token. None = not measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.replay.cells import HIGHEST, LOWEST, SUMS, Cells
from workbench.replay.columns import CULPRITS, LOGGED, SUMMARY, TOKENS, TURNS
from workbench.replay.play import Played, Replay
from workbench.spec import Column


@dataclass(frozen=True)
class Table:
    """Columns and rows, as an answer of the store has them."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    @classmethod
    def of(cls, columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> Table:
        """From rows by name; what a row does not say is None."""
        names = tuple(c.name for c in columns)
        return cls(names, [tuple(row.get(name) for name in names) for row in rows])

    def records(self) -> list[dict[str, Any]]:
        """One mapping a row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def grouped(parts: Sequence[Cells], *keys: str) -> dict[tuple[int, ...], dict[str, float]]:
    """Cells of several updates, added up (extremes: the extreme) by `keys`; () is all of them. Sorted by key."""
    known, columns = _added(parts, keys)
    return dict(_chosen(known, columns, range(len(known))))


def _added(parts: Sequence[Cells], keys: Sequence[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The values of `keys` that occur, a row each, and the columns of their cells."""
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    size = len(joined["turn"])
    known, place = np.zeros((min(size, 1), 0), np.int64), np.zeros(size, np.int64)
    if keys:
        known, place = np.unique(np.stack([joined[key] for key in keys], 1), axis=0, return_inverse=True)
        place = place.reshape(-1)
    columns = {name: np.bincount(place, joined[name], len(known)) for name in SUMS}
    for names, worst, higher in ((HIGHEST, -np.inf, np.maximum), (LOWEST, np.inf, np.minimum)):
        for name in names:
            columns[name] = np.full(len(known), worst)
            with np.errstate(invalid="ignore"):  # NaN stays NaN
                higher.at(columns[name], place, joined[name])
    return known, columns


def _chosen(
    known: np.ndarray, columns: Mapping[str, np.ndarray], rows: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], dict[str, float]]]:
    """The groups of `rows`, each as its key and its cell."""
    for row in rows:
        yield tuple(int(k) for k in known[row]), {name: float(column[row]) for name, column in columns.items()}


def measures(cell: Mapping[str, float], whole: Mapping[str, float]) -> dict[str, Any]:
    """The measured columns of a group of cells; `whole` is what shares are taken of."""
    n = cell["n_tokens"]
    return {
        "ess_frac": _effective(n, cell["ratio"], cell["ratio_squared"]),
        "unit_ess_frac": _effective(n, cell["unit"], cell["unit_squared"]),
        "n_tokens": int(n),
        "advantage": cell["advantage"] / n,
        "ratio_max": cell["ratio_high"],
        "unit_ratio_mean": cell["unit"] / n,
        "unit_ratio_max": cell["unit_high"],
        "unit_ratio_min": cell["unit_low"],
        "approx_kl": cell["kl"] / n,
        "clip_frac": (cell["low"] + cell["high"]) / n,
        "clip_low_frac": cell["low"] / n,
        "clip_high_frac": cell["high"] / n,
        "dual_clip_frac": cell["dual"] / n,
        "out_of_range_frac": cell["out"] / n,
        "factor": cell["factor"] / n,
        "weight_abs": cell["weight_abs"],
        "gradient_share": _share(cell["weight_abs"], whole["weight_abs"]),
        "unit_ratio_mass_frac": _share(cell["unit"], whole["unit"]),
    }


def _effective(n: float, total: float, squares: float) -> float | None:
    return min(1.0, total**2 / (n * squares)) if squares else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _by_label(replay: Replay) -> dict[str, list[Played]]:
    """The updates of each algorithm that has an answer, the one that ran first."""
    found: dict[str, list[Played]] = {}
    for one in sorted(replay.played, key=lambda played: not played.own):
        found.setdefault(one.algorithm, []).append(one)
    return found


def summary(replay: Replay, gradients: Mapping[tuple[str, int], Mapping[str, float | None]] | None = None) -> Table:
    """Each algorithm in all updates together and in each; below the one that ran, what the trainer logged then.

    `gradients`: norms and cosines of (label, update), where they were taken.
    """
    rows: list[dict[str, Any]] = []
    for label, parts in _by_label(replay).items():
        who = {"algorithm": label, "own": parts[0].own}
        several = [("replayed", p.update, p.scalars, [p.cells]) for p in parts]
        pooled = _mean([p.scalars for p in parts])
        every = ("replayed", None, pooled, [p.cells for p in parts])
        for source, update, scalars, cells in ([every] if len(parts) > 1 else []) + several:
            whole = grouped(cells).get((), {})
            found = measures(whole, whole) if whole else {}
            all_taken = [(gradients or {}).get((label, p.update), {}) for p in parts if update in (None, p.update)]
            taken = _mean(all_taken)
            rows.append({**who, "update": update, "source": source, **scalars, **found, **taken})
        if parts[0].own:
            told = [(p.update, replay.stored.updates[p.update].scalars) for p in parts]
            mean = [(None, _mean([scalars for _, scalars in told]))] if len(parts) > 1 else []
            for update, scalars in [*mean, *told]:
                known = {name: value for name, value in scalars.items() if name in LOGGED}
                rows.append({**who, "update": update, "source": "logged", **known})
    rows += [{"algorithm": label, "own": False, "reason": reason} for label, reason in replay.reasons.items()]
    return Table.of(SUMMARY, rows)


def _mean(parts: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Means over the parts; None where one of them has no value."""
    found: dict[str, float | None] = {}
    for name in parts[0]:
        known = [value for part in parts if (value := part.get(name)) is not None]
        found[name] = sum(known) / len(known) if len(known) == len(parts) else None
    return found


def turns(replay: Replay) -> Table:
    """Each algorithm and turn index, in all updates together and in each."""
    rows: list[dict[str, Any]] = []
    for label, parts in _by_label(replay).items():
        every = [(None, parts)] if len(parts) > 1 else []
        for update, some in [*every, *((p.update, [p]) for p in parts)]:
            cells = [p.cells for p in some]
            whole = grouped(cells).get((), {})
            for (turn,), cell in grouped(cells, "turn").items():
                own = {"algorithm": label, "own": some[0].own, "update": update, "turn_index": turn}
                rows.append({**own, **measures(cell, whole)})
    return Table.of(TURNS, rows)


def culprits(replay: Replay, most: int) -> Table:
    """The turns of trajectories with the largest shares of the gradient, `most` of each algorithm."""
    rows: list[dict[str, Any]] = []
    for label, parts in _by_label(replay).items():
        cells = [p.cells for p in parts]
        whole = grouped(cells).get((), {})
        known, columns = _added(cells, ("trajectory", "turn"))
        worst = _chosen(known, columns, _worst_first(columns)[:most].tolist())
        for rank, ((trajectory, turn), cell) in enumerate(worst, start=1):
            own = {"algorithm": label, "own": parts[0].own, "rank": rank, "trajectory": trajectory, "turn_index": turn}
            rows.append({**own, **measures(cell, whole)})
    return Table.of(CULPRITS, rows)


def _worst_first(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Groups by their share of the gradient, NaN before every number: such a log-prob has no gradient."""
    known = ~np.isnan(columns["weight_abs"] + columns["ratio"] + columns["unit"])
    return np.lexsort((-columns["weight_abs"], known))


def tokens(replay: Replay, trajectory: int) -> Table:
    """Every trained token of one trajectory, for each algorithm and each update that trained on it."""
    rows: list[dict[str, Any]] = []
    texts = replay.stored.texts
    for (label, update), (cut, weighed) in replay.tokens.items():
        row = int(np.flatnonzero(replay.stored.trajectory[cut.update.rows] == trajectory)[0])
        n = int(cut.columns.inside[row].sum())
        position = cut.columns.column[row, :n].tolist()
        terms, batch = weighed.terms, weighed.batch
        assert batch.advantages is not None
        clipped = (terms.active_low | terms.active_high)[row, :n]
        ids = replay.stored.tokens[int(cut.update.rows[row])][position].tolist()
        columns = (
            position, cut.turn[row, :n].tolist(), ids, [texts.get(i) for i in ids],
            (cut.log_prob[row, :n] - batch.log_prob_old[row, :n]).tolist(), terms.ratio[row, :n].tolist(),
            batch.advantages[row, :n].tolist(), terms.factor[row, :n].tolist(), clipped.tolist(),
            weighed.weight[row, :n].tolist(),
        )  # fmt: skip
        who = (label, label == replay.own, update, trajectory)
        names = tuple(c.name for c in TOKENS)
        rows += [dict(zip(names, (*who, *values), strict=True)) for values in zip(*columns, strict=True)]
    return Table.of(TOKENS, rows)
