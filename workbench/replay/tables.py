"""The tables of a replay: by update, by turn index, by turn of a trajectory, by token. None = not measured.

Their columns are declared once, for the answers, the docs and the app.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sorl.spec import Column
from sorl.store.batches import StoredBatch

Columns = Mapping[str, np.ndarray]  # of one length
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Played:
    """What one algorithm would have done in one update: scalars of the loss, sums by trajectory and turn."""

    algorithm: str
    update: int
    scalars: Mapping[str, float | None]
    cells: Columns  # trajectory, turn_index, and what `folded` keeps


@dataclass(frozen=True)
class Replay:
    """The answers of a stored step; `reasons` says why an algorithm has none."""

    stored: StoredBatch
    own: str
    played: tuple[Played, ...]
    reasons: Mapping[str, str]
    advantage_gap: float | None  # max |A re-estimated - A trained on| of the algorithm that ran
    tokens: Mapping[tuple[str, int], Columns]  # of the requested trajectory, by label and update

    @property
    def is_own_known(self) -> bool:
        """Whether the algorithm that ran is known, and is not only a stand-in."""
        return "ratio" not in self.stored.meta.get("undeclared", ())

    @property
    def caveats(self) -> list[str]:
        """What the trainer did not tell, and what the answers take in its place."""
        absent = self.stored.absent
        told = [sentence for name, sentence in _STAND_INS.items() if name in absent]
        if not self.is_own_known:
            told.append(f"The trainer's algorithm is not known; {self.own} stands first in its place.")
        return told


_STAND_INS = {
    "log_prob": (
        "The log-probs of the policy at its updates are not known: every algorithm answers for the first"
        " update, before the weights move."
    ),
    "log_prob_old": "The trainer's old log-probs are not known: those of the sampler stand in for them.",
    "advantages": "The advantages that were trained on are not known.",
    "score": "The rewards are not known, so no algorithm can make its own advantages.",
}
_WHO = (
    Column(
        "algorithm", "VARCHAR", "Name of the algorithm, or of the variant; the one that ran stands first."
    ),
    Column("own", "BOOLEAN", "True for the algorithm that ran."),
)
_UPDATE = Column(
    "update", "BIGINT", "Optimizer update of the step, from 0; NULL: all updates that were asked for."
)
_TRAJECTORY = Column("trajectory", "BIGINT", "Index of the trajectory in the batch of its step.")
_TURN = Column("turn_index", "BIGINT", "Turn of the trajectory, from 1.")
_N = Column("n_tokens", "BIGINT", "Trained tokens.")
_SHARES = (
    Column("gradient_share", "DOUBLE", "sum |d loss / d log-prob| here, over that of the whole."),
    Column("unit_ratio_mass_frac", "DOUBLE", "sum w here, over that of the whole; w as in unit_ratio_mean."),
)
_RATIOS = (
    Column("ratio_max", "DOUBLE", "Largest token ratio r = exp(log pi - log pi_old)."),
    Column(
        "unit_ratio_mean",
        "DOUBLE",
        "<w>_m, w the ratio that entered the surrogate (token, turn or sequence).",
    ),
    Column("unit_ratio_max", "DOUBLE", "max w."),
    Column("unit_ratio_min", "DOUBLE", "min w."),
    Column("approx_kl", "DOUBLE", "<-(log pi - log pi_old)>_m, nats."),
)
_CLIPS = (
    Column("clip_frac", "DOUBLE", "Share of tokens whose gradient the clip stopped, by either bound."),
    Column("clip_low_frac", "DOUBLE", "Share stopped by the lower bound."),
    Column("clip_high_frac", "DOUBLE", "Share stopped by the upper bound."),
    Column("dual_clip_frac", "DOUBLE", "Share whose loss the dual clip bounded."),
    Column(
        "out_of_range_frac",
        "DOUBLE",
        "Share of tokens whose r lies outside the bounds, whatever the sign of A.",
    ),
)
_LOSS = (
    Column("policy_loss", "DOUBLE", "The surrogate, aggregated; over several updates the mean."),
    Column("kl_loss", "DOUBLE", "What the KL term adds to the loss."),
    Column("penalty", "DOUBLE", "What the stabiliser adds to the loss."),
    Column(
        "stabiliser_ratio", "DOUBLE", "Largest rho = c / n that an RMS stabiliser judged; NULL without one."
    ),
    Column("stabiliser_factor", "DOUBLE", "Mean factor on the loss; NULL where there is none."),
    Column("clipped_rms", "DOUBLE", "c, RMS of r A over the tokens out of range."),
    Column("unclipped_rms", "DOUBLE", "n, RMS of r A over the others."),
)
GRADIENT = (
    Column("grad_norm", "DOUBLE", "||g||, the true gradient of the policy's loss; NULL without --gradients."),
    Column("clip_bias_norm", "DOUBLE", "||C||, the true clipping bias; likewise."),
    Column("gradient_cosine", "DOUBLE", "Cosine of g with that of the algorithm that ran; likewise."),
)
SUMMARY = (
    *_WHO,
    _UPDATE,
    Column("source", "VARCHAR", "replayed, or logged: what the trainer itself wrote down then."),
    *_LOSS,
    *_RATIOS,
    Column(
        "ess_frac",
        "DOUBLE",
        "(sum r)^2 / (n sum r^2): effective sample size of the token ratios, as a share.",
    ),
    Column("unit_ess_frac", "DOUBLE", "The same of w."),
    *_CLIPS,
    Column("weight_abs", "DOUBLE", "sum |d loss / d log-prob|: how hard the loss pulls on the log-probs."),
    *GRADIENT,
    Column("reason", "VARCHAR", "Why there is no answer; NULL where there is one."),
)
TURNS = (
    *_WHO,
    _UPDATE,
    _TURN,
    _N,
    Column("advantage", "DOUBLE", "Mean advantage."),
    *_RATIOS,
    *_CLIPS,
    Column("factor", "DOUBLE", "Mean factor of the stabiliser."),
    *_SHARES,
)
CULPRITS = (
    *_WHO,
    Column("rank", "BIGINT", "Place by gradient_share, from 1."),
    _TRAJECTORY,
    *TURNS[3:],
)
TOKENS = (
    *_WHO,
    _UPDATE,
    _TRAJECTORY,
    Column("position", "BIGINT", "Position in the trajectory's tokens, the prompt's included, from 0."),
    _TURN,
    Column("token_id", "BIGINT", "Vocabulary id."),
    Column("token", "VARCHAR", "Its text; NULL where the batch was stored without."),
    Column("log_ratio", "DOUBLE", "log pi - log pi_old, nats."),
    Column("unit_ratio", "DOUBLE", "w of the token."),
    Column("advantage", "DOUBLE", "A of the token."),
    Column("factor", "DOUBLE", "Factor of the stabiliser on it."),
    Column("clipped", "BOOLEAN", "The clip stopped its gradient."),
    Column("weight", "DOUBLE", "d loss / d log-prob: below 0 the update makes the token likelier."),
)
TABLES = {"summary": SUMMARY, "turns": TURNS, "culprits": CULPRITS, "tokens": TOKENS}
LOGGED = frozenset(c.name for c in (*_LOSS, *GRADIENT))  # columns of the summary that a trainer logs

# Kept of the tokens of a turn: sums and extremes.
SUMS = (
    "n_tokens",
    "log_ratio",
    "ratio",
    "ratio_squared",
    "unit",
    "unit_squared",
    "low",
    "high",
    "out",
    "dual",
    "factor",
    "advantage",
    "weight",
    "weight_abs",
)
HIGHEST = ("ratio_high", "unit_high")
LOWEST = ("ratio_low", "unit_low")
_MEANS = {
    "advantage": "advantage",
    "unit_ratio_mean": "unit",
    "clip_low_frac": "low",
    "clip_high_frac": "high",
    "dual_clip_frac": "dual",
    "out_of_range_frac": "out",
    "factor": "factor",
}
_EXTREMES = {"ratio_max": "ratio_high", "unit_ratio_max": "unit_high", "unit_ratio_min": "unit_low"}


def folded(columns: Columns, keys: Sequence[str] = ()) -> Columns:
    """Return one row for each value of `keys` (without any: one), sorted: sums and extremes, NaN where one is
    NaN.
    """
    runs = _runs(columns, keys)  # tokens of a turn are adjacent, so few rows are left to sort
    if not keys:
        return runs
    order = np.lexsort([runs[key] for key in reversed(keys)])
    return _runs({name: x[order] for name, x in runs.items()}, keys)


def _runs(columns: Columns, keys: Sequence[str]) -> Columns:
    """Consecutive rows with equal keys as one row."""
    begins = np.zeros(len(columns["ratio"]), bool)
    begins[:1] = True
    for key in keys:
        begins[1:] |= columns[key][1:] != columns[key][:-1]
    starts = np.flatnonzero(begins)
    found = {key: columns[key][starts] for key in keys}
    for names, reduce in ((SUMS, np.add), (HIGHEST, np.maximum), (LOWEST, np.minimum)):
        for name in names:
            found[name] = (reduce.reduceat(columns[name], starts) if len(starts) else columns[name]).astype(
                float
            )
    return found


def rows_of(columns: Columns) -> Rows:
    """Return the rows as mappings of plain numbers."""
    values = zip(*(x.tolist() for x in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def _table(columns: Sequence[Column], rows: Iterable[Mapping[Any, Any]]) -> Rows:
    """Rows with exactly these columns; what a row lacks is None."""
    names = [column.name for column in columns]
    return [_only(row, names) for row in rows]


def _only(row: Mapping[Any, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row.get(name) for name in names}


def measures(cell: Mapping[Any, Any], whole: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the measured columns of a row of `folded`; `whole` is what shares are taken of."""
    n = cell["n_tokens"]

    def effective(name: str) -> float | None:
        squares = cell[f"{name}_squared"]
        return min(1.0, cell[name] ** 2 / (n * squares)) if squares else None

    def share(name: str) -> float | None:
        return cell[name] / whole[name] if whole[name] else None

    return {
        "ess_frac": effective("ratio"),
        "unit_ess_frac": effective("unit"),
        "n_tokens": int(n),
        **{name: cell[column] / n for name, column in _MEANS.items()},
        **{name: cell[column] for name, column in _EXTREMES.items()},
        "approx_kl": -cell["log_ratio"] / n,
        "clip_frac": (cell["low"] + cell["high"]) / n,
        "weight_abs": cell["weight_abs"],
        "gradient_share": share("weight_abs"),
        "unit_ratio_mass_frac": share("unit"),
    }


def _by_label(replay: Replay) -> list[tuple[dict[str, Any], list[Played]]]:
    """Return each algorithm that has an answer with its updates, the one that ran first."""
    found: dict[str, list[Played]] = {}
    for one in sorted(replay.played, key=lambda played: played.algorithm != replay.own):
        found.setdefault(one.algorithm, []).append(one)
    return [({"algorithm": label, "own": label == replay.own}, parts) for label, parts in found.items()]


def _answers(replay: Replay) -> Iterator[tuple[dict[str, Any], int | None, list[Played]]]:
    """Yield each algorithm with all its updates (None) if there are several, and with each by its index."""
    for who, parts in _by_label(replay):
        if len(parts) > 1:
            yield who, None, parts
        for part in parts:
            yield who, part.update, [part]


def _measured(parts: Sequence[Played], *keys: str) -> Iterator[dict[str, Any]]:
    """The measured columns of several updates together, one row for each value of `keys`; none without a
    token.
    """
    joined = {}
    for name in parts[0].cells:
        joined[name] = np.concatenate([part.cells[name] for part in parts])
    for whole in rows_of(folded(joined)):
        for cell in rows_of(folded(joined, keys)):
            yield {**{key: cell[key] for key in keys}, **measures(cell, whole)}


def summary(
    replay: Replay, gradients: Mapping[tuple[str, int], Mapping[str, float | None]] | None = None
) -> Rows:
    """Return each algorithm in all updates and in each, with `gradients` by (label, update), and what was
    logged.
    """
    rows: Rows = []
    logged: Rows = []
    for who, update, parts in _answers(replay):
        taken = _mean([(gradients or {}).get((part.algorithm, part.update), {}) for part in parts])
        scalars = _mean([part.scalars for part in parts])
        found = next(_measured(parts), {})
        rows.append({**who, "update": update, "source": "replayed", **scalars, **found, **taken})
        if who["own"]:
            means = _mean([replay.stored.updates[part.update].scalars for part in parts])
            known = {name: value for name, value in means.items() if name in LOGGED}
            logged.append({**who, "update": update, "source": "logged", **known})
    rows[len(logged) : len(logged)] = logged  # below the one that ran, which stands first
    rows += [{"algorithm": label, "own": False, "reason": reason} for label, reason in replay.reasons.items()]
    return _table(SUMMARY, rows)


def _mean(parts: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Means over the parts; None where one of them has no value."""
    found: dict[str, float | None] = {}
    for name in parts[0]:
        values = (part.get(name) for part in parts)
        known = [value for value in values if value is not None]
        found[name] = sum(known) / len(known) if len(known) == len(parts) else None
    return found


def turns(replay: Replay) -> Rows:
    """Return each algorithm and turn index, in all updates together and in each."""
    found = []
    for who, update, parts in _answers(replay):
        found += [(who, update, row) for row in _measured(parts, "turn_index")]
    return _table(TURNS, ({**who, "update": update, **row} for who, update, row in found))


def culprits(replay: Replay, most: int) -> Rows:
    """Return each algorithm's `most` turns by gradient share; first those with a NaN, which has
    no gradient.
    """

    def worst_first(row: dict[str, Any]) -> tuple[bool, float]:
        broken = any(row[name] != row[name] for name in ("weight_abs", "unit_ratio_mean", "approx_kl"))
        return not broken, -row["weight_abs"]

    rows: Rows = []
    for who, parts in _by_label(replay):
        found = sorted(_measured(parts, "trajectory", "turn_index"), key=worst_first)
        rows += [{**who, "rank": rank, **row} for rank, row in enumerate(found[:most], start=1)]
    return _table(CULPRITS, rows)


def tokens(replay: Replay) -> Rows:
    """Return every trained token of the requested trajectory, for each algorithm and update that trained on
    it.
    """
    texts = replay.stored.texts
    rows: Rows = []
    for (label, update), columns in replay.tokens.items():
        answer = {"algorithm": label, "own": label == replay.own, "update": update}
        rows += [answer | _token_row(row, texts) for row in rows_of(columns)]
    return _table(TOKENS, rows)


def _token_row(row: Mapping[str, Any], texts: Mapping[int, str]) -> dict[str, Any]:
    """A token with its text, by the names of the table."""
    is_clipped = bool(row["low"] or row["high"])
    named = {"unit_ratio": row["unit"], "token": texts.get(row["token_id"]), "clipped": is_clipped}
    return {**row, **named}
