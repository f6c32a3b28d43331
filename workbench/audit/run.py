"""The audit of a run: its stored steps checked one after another, evidence pooled over them, and the first
step at which an identity breaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sorl.audit.cache import CheckCache
from sorl.audit.declaration import declaration_of
from sorl.audit.identities import DEVIATIONS
from sorl.audit.registry import IDENTITIES, Identity, asked_of_steps
from sorl.spec import InputError
from sorl.spec.evidence import Check
from sorl.store import batches
from sorl.store.batches import StoredBatch

if TYPE_CHECKING:
    from sorl.audit.case import Case

POOLED = ("sampling", "independence")  # identities whose gap is a deviation from chance, in standard ones
HINT = 2.5  # deviations of the pooled evidence, from which more stored steps are looked at


def audit(
    folder: Path, steps: Iterable[int], names: Sequence[str] = (), unread: dict[int, str] | None = None
) -> Iterator[Check]:
    """Check the identities of stored steps of a run, each as soon as it is known.

    An identity that holds in all of a step's updates is one check of it: the one with the largest gap. After
    the steps come the evidence pooled over them, then each violated identity once more at the first stored
    step that violates it, with the last one before it that does not.

    Raises InputError for a folder or a step that there is not, and for a damaged one: with `unread`, that
    one's reason is put there, and the others go on.
    """
    stored = StoredRun(folder, unread)
    wanted = [name for name in stored.asked if not names or name in names]
    checks: list[Check] = []  # of single steps
    for step in steps:
        for check in stored.checks(step, wanted):
            checks.append(check)
            yield check
    yield from stored.pooled(checks, wanted)
    yield from stored.first_broken(checks)


class StoredRun:
    """The stored steps of a run; a step is checked once, however often it is asked for."""

    def __init__(self, folder: Path, unread: dict[int, str] | None = None) -> None:
        self.folder = folder
        self.declared = declaration_of(folder)
        self.asked = [one.name for one in asked_of_steps(is_own=self.declared.own_settings is not None)]
        self.known = batches.steps(folder)
        self.unread = unread
        self.cache = CheckCache(folder, self.declared)
        self._known_checks: dict[int, dict[str, list[Check]]] = {}  # by step and identity
        self._read = lru_cache(maxsize=self.declared.staleness + 3)(self._batch)

    def checks(self, step: int, names: Sequence[str]) -> Iterator[Check]:
        """Yield the checks of a step; none of a damaged one whose reason is kept."""
        if step not in self._known_checks:
            self._known_checks[step] = self.cache.load(step)
        done = self._known_checks[step]
        missing = [name for name in names if name not in done]
        case = self._case(step) if missing else None
        if missing and case is None:
            return
        for name in names:
            if case is not None and name in missing:
                done[name] = _checked(IDENTITIES[name], case)
            yield from done[name]
        if missing:
            self.cache.save(step, done)

    def _case(self, step: int) -> Case | None:
        batch = self._read(step)
        if batch is None and self.unread is not None and step in self.unread:
            return None
        # What recomputes imports torch and transformers, which takes seconds: only where a check is not kept.
        import torch

        from sorl.audit.case import Case

        torch.set_num_threads(1)
        return Case(batch or batches.read(self.folder, step), self.declared, self._read)

    def _batch(self, step: int) -> StoredBatch | None:
        try:
            return batches.read(self.folder, step, weights=True) if step in self.known else None
        except InputError as error:
            if self.unread is None:
                raise
            self.unread[step] = str(error)
            return None

    def pooled(self, checks: Sequence[Check], names: Sequence[str]) -> Iterator[Check]:
        """Yield the evidence of several steps together, where no single one is enough.

        Deviations z_t from chance with weights w_t are sum(w z) / sqrt(sum(w^2)) together, which grows with
        the square root of the number of steps. Where they hint at something, all stored steps are looked at.
        """
        for name in POOLED:
            own = [check for check in checks if check.identity == name and not check.missing]
            if name not in names or len(own) < 2 or any(check.violated for check in own):
                continue
            if abs(_together(own)) > HINT:
                states = [self._state(step, name) for step in self.known]
                own = [state for state in states if state is not None]
            yield pooled_evidence(sorted(own, key=lambda check: check.step))

    def first_broken(self, checks: Sequence[Check]) -> Iterator[Check]:
        """Yield each identity that a step violates at the first stored step that does, by bisection."""
        violated: dict[str, Check] = {}
        for check in sorted(checks, key=lambda check: check.step):
            if check.violated:
                violated.setdefault(check.identity, check)
        for name, check in violated.items():
            states = {c.step: c for c in checks if c.identity == name and not c.missing}
            located = self._bisected(check, states)
            if located is not check:
                yield located

    def _bisected(self, broken: Check, states: dict[int, Check]) -> Check:
        """Return the first check that is violated, if the identity holds before some step and not after."""
        earlier = [step for step in self.known if step < broken.step]
        holds: int | None = max((step for step in states if step < broken.step), default=None)
        open_steps = [step for step in earlier if holds is None or step > holds]
        if holds is None and open_steps:
            begin = self._state(open_steps.pop(0), broken.identity)
            if begin is not None and begin.violated:
                return begin
            holds = None if begin is None else begin.step
        while open_steps:
            middle = open_steps[len(open_steps) // 2]
            state = self._state(middle, broken.identity)
            if state is None:
                open_steps.remove(middle)
            elif state.violated:
                broken = state
                open_steps = [step for step in open_steps if step < middle]
            else:
                holds = middle
                open_steps = [step for step in open_steps if step > middle]
        return broken if holds is None else replace(broken, holds_until=holds)

    def _state(self, step: int, name: str) -> Check | None:
        """Return the check of an identity in a step; None where it could not be checked."""
        return next((check for check in self.checks(step, [name]) if not check.missing), None)


def _checked(identity: Identity, case: Case) -> list[Check]:
    """Return the first violation, else the closest shave; and what could not be checked."""
    checks = identity.checks(case)
    measured = [check for check in checks if not check.missing]
    broken = next((check for check in measured if check.violated), None)
    reported = []
    if measured:
        reported.append(broken or max(measured, key=lambda check: check.tolerance_share))
    lacking = [check for check in checks if check.missing]
    if lacking and not broken:
        reported.append(lacking[-1])
    return [identity.named(check, case.stored.step) for check in reported]


def _together(checks: Sequence[Check]) -> float:
    """Return the deviation of several steps together."""
    weight = math.sqrt(sum(check.weight**2 for check in checks))
    return sum(check.weight * check.logged for check in checks) / weight if weight else 0.0


def pooled_evidence(checks: Sequence[Check]) -> Check:
    """Return the evidence from the step on from which it is largest: a fault begins somewhere and stays."""
    starts = range(len(checks) - 1)
    begin = max(starts, key=lambda start: abs(_together(checks[start:])))
    deviation = _together(checks[begin:])
    says = f"the {len(checks) - begin} stored steps from it on together; no single one is enough"
    is_violated = abs(deviation) > DEVIATIONS
    return replace(
        checks[begin],
        gap=abs(deviation),
        tolerance=DEVIATIONS,
        logged=deviation,
        expected=0.0,
        says=says if is_violated else "",
        is_pooled=True,
    )


def chosen(known: Sequence[int], around: Iterable[int], staleness: int = 0, most: int = 6) -> list[int]:
    """Choose the steps to audit: those nearest to alarms and onset (`around`), then some spread over the run.

    Steps whose next step and whose sampling policy are stored as well come first: more can be checked of
    them.
    """
    stored = set(known)
    best = [s for s in known if s + 1 in stored and max(0, s - staleness) in stored] or list(known)
    near = [min(best, key=lambda other: abs(other - step)) for step in around if best]
    spread = [best[i] for i in np.linspace(0, len(best) - 1, min(most, len(best))).astype(int)]
    return sorted(list(dict.fromkeys([*near, *spread]))[:most])
