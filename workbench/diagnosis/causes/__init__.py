"""The causes that a diagnosis looks for, one family a file."""

from collections.abc import Iterator
from types import ModuleType

from sorl.diagnosis.causes import (
    batch,
    correction,
    learning,
    mismatch,
    outcome,
    policy,
    resume,
    sampler,
    world,
)
from sorl.diagnosis.finding import Cause


def _causes_of(modules: tuple[ModuleType, ...]) -> Iterator[Cause]:
    """The causes that modules declare, in order of declaration."""
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Cause):
                yield value


CAUSES: tuple[Cause, ...] = tuple(
    _causes_of((sampler, mismatch, batch, correction, resume, world, learning, policy, outcome))
)
