"""What each rollout correction leaves of a stored batch: weights before and after cap and mask, and who loses
its part in the gradient.

A correction multiplies the loss of a token by a number that no gradient goes through. So what is left of a
token's pull, |d loss / d log-prob|, is its pull without a correction times its weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch

from sorl.analysis.stats import holm
from sorl.analysis.strata import Shift, shift
from sorl.batch import Batch
from sorl.objective import Algorithm
from sorl.objective.kl import KL
from sorl.objective.ratio import Correction, IcePop, Mis, Tis
from sorl.replay.play import Loaded, weigh
from sorl.replay.tables import Rows
from sorl.spec import Column, InputError
from sorl.store.batches import StoredBatch, StoredUpdate

PARTS = 5  # of the tokens that the policy wrote in a trajectory
SAME = 1e-3  # between two shares, below which a correction does nothing that matters
FEWEST = 8  # units on the smaller side, without which nothing is tested
SILENCED = 0.1  # of its pull, below which a trajectory has next to no part in the update

# Asked of every batch, with the bounds that their sources name (`sorl algorithms`).
PRESETS: Mapping[str, Correction] = MappingProxyType(
    {
        "tis": Tis(),
        "mis": Mis(),
        "icepop": IcePop(),
        "tis, sequence": Tis(level="seq_prod"),
        "mis, sequence": Mis(level="seq_prod"),
        "mis, geometric mean": Mis(level="seq_geo_filter"),
    }
)

_WHO = (
    Column("correction", "VARCHAR", "Name of the correction; the one of the run stands first."),
    Column("own", "BOOLEAN", "True for the one that the run applied."),
)
_WEIGHTS = (
    Column("n_tokens", "BIGINT", "Trained tokens, of all updates that were asked for."),
    Column("omega_mean", "DOUBLE", "Mean weight before cap and mask."),
    Column("weight_mean", "DOUBLE", "Mean weight after them, divided by its mean if the correction does so."),
    Column("capped_frac", "DOUBLE", "Share of tokens whose weight the cap lowered."),
    Column("masked_frac", "DOUBLE", "Share of tokens whose weight is 0."),
    Column("gradient_left", "DOUBLE", "sum w |d loss / d log-prob| / sum |d loss / d log-prob|."),
    Column(
        "gradient_masked_frac", "DOUBLE", "The part of sum |d loss / d log-prob| that the mask takes out."
    ),
)
CORRECTIONS = (
    *_WHO,
    *_WEIGHTS,
    Column("shrinks", "DOUBLE", "1 / gradient_left: how many times smaller the batch's pull becomes."),
    Column("omega_max", "DOUBLE", "Largest weight before cap and mask."),
    Column("weight_max", "DOUBLE", "Largest weight after them."),
    Column("omega_ess_frac", "DOUBLE", "(sum w)^2 / (n sum w^2) of the weights before cap and mask."),
    Column("ess_frac", "DOUBLE", "The same of the weights after them: effective sample size as a share."),
)
TURNS = (*_WHO, Column("turn_index", "BIGINT", "Turn of the trajectory, from 1."), *_WEIGHTS)
POSITIONS = (
    *_WHO,
    Column("part", "BIGINT", f"Part of what the policy wrote, 1 to {PARTS}, by equal numbers of tokens."),
    *_WEIGHTS,
)
SILENCED_ROWS = (
    *_WHO,
    Column("silenced", "BIGINT", f"Trajectories with less than {SILENCED:g} of their pull left."),
    Column("silenced_frac", "DOUBLE", "The same as a share."),
    Column("left_shortest", "DOUBLE", "Mean share of its pull that a trajectory keeps: the shortest third."),
    Column("left_longest", "DOUBLE", "The same of the longest third."),
    Column("tokens_least", "DOUBLE", "Mean length of the half that keeps the least of its pull."),
    Column("tokens_most", "DOUBLE", "Mean length of the other half."),
    Column(
        "tokens_p", "DOUBLE", "Whether they differ: ranks within prompt groups, after Holm; NULL without."
    ),
    Column("reward_least", "DOUBLE", "Mean reward of the half that keeps the least."),
    Column("reward_most", "DOUBLE", "Mean reward of the other half."),
    Column("reward_p", "DOUBLE", "As tokens_p."),
    Column("trajectories", "VARCHAR", "The first ten silenced ones."),
)
TABLES = {
    "corrections": CORRECTIONS,
    "correction_turns": TURNS,
    "correction_positions": POSITIONS,
    "silenced": SILENCED_ROWS,
}


@dataclass(frozen=True)
class Weighed:
    """One correction on the trained tokens of all updates, a row a token: trajectory, turn_index, part,
    pull, omega, weight, capped.
    """

    label: str
    own: bool
    tokens: pd.DataFrame

    @property
    def who(self) -> dict[str, Any]:
        """The columns that name it."""
        return {"correction": self.label, "own": self.own}


def candidates(algorithms: Mapping[str, Algorithm], own: str) -> dict[str, Correction]:
    """Return the corrections to ask about: of the run, of the other algorithms, and the presets."""
    found: dict[str, Correction] = {}
    named = {label: algorithm.correction for label, algorithm in algorithms.items()}
    ordered = [(own, named[own]), *named.items(), *PRESETS.items()]
    for label, correction in ordered:
        if correction.kind != "none" and correction not in found.values():
            found[label] = correction
    return found


@torch.no_grad()
def weigh_corrections(
    stored: StoredBatch,
    algorithms: Mapping[str, Algorithm],
    own: str,
    updates: Iterable[int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[Weighed]:
    """Weigh the tokens of a stored step by every correction.

    Raises InputError where the batch has no two log-probs to compare.
    """
    if stored.log_prob_behaviour is None:
        raise InputError("a correction needs the sampler's log-probs, and this run kept none")
    if "log_prob_old" in stored.absent:
        raise InputError(
            "a correction needs the trainer's own log-probs before the updates; this run has none"
        )
    loaded = Loaded(stored, algorithms[own], dtype)
    chosen = stored.updates if updates is None else [stored.updates[index] for index in sorted(set(updates))]
    plain = [_pulled(loaded, update) for update in chosen]
    weighed = []
    for label, correction in candidates(algorithms, own).items():
        tokens = [_weighted(frame, batch, correction) for frame, batch in plain]
        is_own = correction == algorithms[own].correction
        weighed.append(Weighed(label, is_own, pd.concat(tokens, ignore_index=True)))
    return weighed


def _pulled(loaded: Loaded, update: StoredUpdate) -> tuple[pd.DataFrame, Batch]:
    """The trained tokens of an update with their pull without any correction, and its batch."""
    batch = loaded.minibatch(loaded.own, update)
    # a KL term of the loss is not weighed
    algorithm = replace(loaded.own, correction=Correction(), kl=KL())
    _, weights, _ = weigh(algorithm, batch, loaded, update)
    mask = batch.mask
    rank = mask.cumsum(1) - 1
    part = 1 + PARTS * rank // mask.sum(1, keepdim=True).clamp(min=1)
    trajectory = torch.from_numpy(loaded.stored.trajectory[update.rows])[:, None].expand_as(mask)
    pull = torch.ones_like(weights) if "advantages" in loaded.stored.absent else weights.abs()
    columns = {"trajectory": trajectory, "turn_index": batch.turn, "part": part, "pull": pull}
    return pd.DataFrame({name: x[mask].double().numpy() for name, x in columns.items()}), batch


def _weighted(tokens: pd.DataFrame, batch: Batch, correction: Correction) -> pd.DataFrame:
    """The tokens with their weights of a correction."""
    omega = correction.omega(batch)
    weights = correction.weights(batch)
    acts = correction.acts(batch)
    assert omega is not None
    assert weights is not None
    assert acts is not None
    weight = weights[batch.mask].double().numpy()
    return tokens.assign(
        omega=omega[batch.mask].double().numpy(),
        weight=weight,
        capped=acts[batch.mask].numpy() & (weight > 0),
    )


def caveats(stored: StoredBatch, own: str) -> list[str]:
    """What the trainer did not tell, and what the answers take in its place."""
    told = []
    undeclared = stored.meta.get("undeclared", ())
    if "ratio" in undeclared:
        told.append(f"The trainer's algorithm is not known: tokens pull as in the loss of {own}.")
    if "correction" in undeclared:
        told.append("Whether the trainer corrected its rollouts, and how, is not known.")
    if "advantages" in stored.absent:
        told.append("The advantages that were trained on are not known: every token pulls alike.")
    if "log_prob" in stored.absent:
        told.append("The log-probs at later updates are not known: all tokens pull as at the first one.")
    return told


def acting(whole: Rows) -> set[str]:
    """Names of the corrections that change something, by the rows of table `corrections`."""
    moved = set()
    for row in whole:
        left = row["gradient_left"]
        is_scaled = left is None or abs(left - 1) > SAME
        if is_scaled or row["masked_frac"] > 0 or row["capped_frac"] > 0:
            moved.add(row["correction"])
    return moved


def tables(weighed: Iterable[Weighed], stored: StoredBatch) -> dict[str, Rows]:
    """Return the four tables, by their names."""
    weighed = list(weighed)
    whole: Rows = []
    for one in weighed:
        row = _measures(one.tokens)
        left = row["gradient_left"]
        whole.append({**one.who, **row, **_extremes(one.tokens), "shrinks": 1 / left if left else None})
    return {
        "corrections": _ordered(whole, CORRECTIONS),
        "correction_turns": _ordered(_by(weighed, "turn_index"), TURNS),
        "correction_positions": _ordered(_by(weighed, "part"), POSITIONS),
        "silenced": _ordered(_silenced(weighed, stored), SILENCED_ROWS),
    }


def _ordered(rows: Iterable[Mapping[str, Any]], columns: Iterable[Column]) -> Rows:
    names = [column.name for column in columns]
    return [dict(zip(names, map(row.get, names), strict=True)) for row in rows]


def _by(weighed: Iterable[Weighed], key: str) -> Iterator[dict[str, Any]]:
    for one in weighed:
        for value in np.unique(one.tokens[key].to_numpy()).tolist():
            tokens = one.tokens[one.tokens[key] == value]
            yield {**one.who, key: int(value), **_measures(tokens)}


def _measures(tokens: pd.DataFrame) -> dict[str, Any]:
    """The columns of `_WEIGHTS`."""
    pull = tokens["pull"].to_numpy()
    weight = tokens["weight"].to_numpy()
    total = float(pull.sum())
    return {
        "n_tokens": len(tokens),
        "omega_mean": float(tokens["omega"].mean()),
        "weight_mean": float(weight.mean()),
        "capped_frac": float(tokens["capped"].mean()),
        "masked_frac": float((weight == 0).mean()),
        "gradient_left": float((weight * pull).sum()) / total if total else None,
        "gradient_masked_frac": float(pull[weight == 0].sum()) / total if total else None,
    }


def _extremes(tokens: pd.DataFrame) -> dict[str, Any]:
    return {
        "omega_max": float(tokens["omega"].max()),
        "weight_max": float(tokens["weight"].max()),
        "omega_ess_frac": _effective(tokens["omega"].to_numpy()),
        "ess_frac": _effective(tokens["weight"].to_numpy()),
    }


def _effective(weights: np.ndarray) -> float | None:
    """Effective sample size as a share; None where all weights are 0."""
    squares = float((weights**2).sum())
    return min(1.0, float(weights.sum()) ** 2 / (len(weights) * squares)) if squares else None


def _silenced(weighed: Iterable[Weighed], stored: StoredBatch) -> Rows:
    """Who keeps least, with p-values that are adjusted over the table."""
    rows: Rows = []
    for one in weighed:
        rows.append({**one.who, **_who_keeps_least(one.tokens, stored)})
    names = ("tokens_p", "reward_p")
    p_values: list[float | None] = []
    for row in rows:
        p_values += [row[name] for name in names]
    adjusted = iter(holm(p_values))
    for row in rows:
        for name in names:
            row[name] = next(adjusted)
    return rows


def _who_keeps_least(tokens: pd.DataFrame, stored: StoredBatch) -> dict[str, Any]:
    weighed_pull = tokens["weight"] * tokens["pull"]
    sums = tokens.assign(left=weighed_pull).groupby("trajectory")[["left", "pull"]].sum()
    size = tokens.groupby("trajectory").size()
    sums = sums[sums["pull"] > 0]  # without an advantage there is nothing to keep
    left = sums["left"] / sums["pull"]
    place = {int(number): row for row, number in enumerate(stored.trajectory)}
    at = [place[int(number)] for number in left.index]
    rows = pd.DataFrame(
        {"left": left.to_numpy(), "tokens": size[left.index].to_numpy(), "group": stored.group[at]}
    )
    is_scored = "score" not in stored.absent
    rows["reward"] = stored.score[at] if is_scored else np.nan
    is_silenced = (left < SILENCED).to_numpy()
    third = rows["tokens"].rank(pct=True)
    least = rows["left"].rank(method="first") <= len(rows) / 2
    is_equal = rows.empty or rows["left"].max() - rows["left"].min() < SAME
    compared = {
        name: None if is_equal else shift(rows[name], least, pd.Series(0, rows.index), rows["group"])
        for name in ("tokens", "reward")
    }
    return {
        "silenced": int(is_silenced.sum()),
        "silenced_frac": float(is_silenced.mean()) if len(rows) else None,
        "left_shortest": _mean(rows["left"][third <= 1 / 3]),
        "left_longest": _mean(rows["left"][third > 2 / 3]),
        **_compared("tokens", compared["tokens"]),
        **_compared("reward", compared["reward"]),
        "trajectories": " ".join(str(int(number)) for number in left.index[is_silenced][:10]) or None,
    }


def _compared(name: str, found: Shift | None) -> dict[str, float | None]:
    names = (f"{name}_least", f"{name}_most", f"{name}_p")
    is_tested = found is not None and found.chosen_units >= FEWEST
    values = (found.chosen, found.others, found.p) if found is not None and is_tested else (None,) * 3
    return dict(zip(names, values, strict=True))


def _mean(values: pd.Series) -> float | None:
    return float(values.mean()) if len(values) else None
