"""Every algorithm on every update of a stored step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from workbench.objective import Algorithm
from workbench.replay.advantages import Advantages, unanswerable
from workbench.replay.cells import Cells, Stretches, of_algorithm, shared
from workbench.replay.load import Loaded
from workbench.replay.surrogate import Cut, Weighed, weigh
from workbench.spec import InputError
from workbench.store.stored import StoredBatch, StoredUpdate


@dataclass(frozen=True)
class Played:
    """What one algorithm would have done in one update: scalars of the loss, cells by trajectory and turn."""

    algorithm: str
    own: bool  # it is the one that ran
    update: int
    scalars: Mapping[str, float | None]
    cells: Cells


@dataclass(frozen=True)
class Replay:
    """The answers of a stored step; `reasons` says why an algorithm has none."""

    stored: StoredBatch
    own: str
    played: tuple[Played, ...]
    reasons: Mapping[str, str]
    advantage_gap: float | None  # max |A re-estimated - A trained on| of the algorithm that ran
    tokens: Mapping[tuple[str, int], tuple[Cut, Weighed]]  # of the updates that hold the trajectory asked for


@torch.no_grad()
def play(
    stored: StoredBatch,
    algorithms: Mapping[str, Algorithm],
    own: str,
    updates: Sequence[int] | None = None,
    trajectory: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Replay:
    """What each of `algorithms` (by label; `own` is the one that ran) would have done in each of `updates`.

    Its advantages are made by its own slot of the stored rewards, values and groups; those of `own` are the stored
    ones. Log-probs are those of the run's policy. `trajectory`: keep its tokens as well. Raises InputError for an
    update or a trajectory that the step does not have.
    """
    chosen = _chosen(stored, updates)
    if trajectory is not None and trajectory not in set(stored.trajectory.tolist()):
        raise InputError(f"step {stored.step} has no trajectory {trajectory}; there are 0 to {len(stored.tokens) - 1}")
    loaded = Loaded(stored, dtype)
    mine = algorithms[own]
    reasons = {label: unanswerable(a, mine, loaded.batch) for label, a in algorithms.items() if label != own}
    able = {label: a for label, a in algorithms.items() if not reasons.get(label)}
    advantages = Advantages(loaded, mine)
    played: list[Played] = []
    kept: dict[tuple[str, int], tuple[Cut, Weighed]] = {}
    for update in chosen:
        cuts: dict[int, tuple[Cut, Stretches, Cells]] = {}
        for label, algorithm in able.items():
            whole = advantages.batch(algorithm)
            key = whole.mask.data_ptr()  # algorithms that select alike share the very same mask
            if key not in cuts:
                cut = Cut.of(loaded, whole, update)
                at = Stretches.of(cut)
                cuts[key] = cut, at, shared(cut, at)
            cut, at, common = cuts[key]
            weighed = weigh(algorithm, cut, whole)
            played.append(
                Played(label, label == own, update.index, _scalars(weighed), of_algorithm(weighed, at, common))
            )
            if trajectory is not None and trajectory in stored.trajectory[update.rows]:
                kept[label, update.index] = cut, weighed
    gap = None if any(u.mask is not None for u in stored.updates) else advantages.gap()
    return Replay(stored, own, tuple(played), {k: v for k, v in reasons.items() if v}, gap, kept)


def _chosen(stored: StoredBatch, updates: Sequence[int] | None) -> list[StoredUpdate]:
    known = range(len(stored.updates))
    for index in updates or ():
        if index not in known:
            raise InputError(f"step {stored.step} has no update {index}; there are 0 to {len(known) - 1}")
    return [stored.updates[index] for index in (known if updates is None else sorted(set(updates)))]


def _scalars(weighed: Weighed) -> dict[str, float | None]:
    """What the trainer logs of the loss; a stabiliser that acts on the gradient has no factor here (NULL)."""
    terms = weighed.terms
    return {
        "policy_loss": float(terms.policy_loss),
        "kl_loss": float(terms.kl_loss),
        "penalty": float(terms.penalty),
        "stabiliser_ratio": terms.stabiliser_ratio,
        "stabiliser_factor": terms.stabiliser_factor,
        "clipped_rms": terms.clipped_rms,
        "unclipped_rms": terms.unclipped_rms,
    }
