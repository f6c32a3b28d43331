"""The causes that a diagnosis looks for, one family a file."""

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

CAUSES: tuple[Cause, ...] = tuple(
    found
    for module in (sampler, mismatch, batch, correction, resume, world, learning, policy, outcome)
    for found in vars(module).values()
    if isinstance(found, Cause)
)
