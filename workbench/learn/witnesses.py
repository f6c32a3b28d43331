"""The witnesses of our own trainer: what the networks of a step were, and what it was trained on."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain
from typing import Any

from torch import nn

from sorl.agent.engines import Engine
from sorl.learn.checks import Checksums
from sorl.learn.update import Learner
from sorl.recording.recorder import Recorder
from sorl.recording.witness import Witness, as_columns


class Witnesses:
    """Looks at policy and critic at both ends of a step, at sampler and reference when they are used."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.trained = {"policy": list(learner.policy.named_parameters())}
        if learner.critic is not None:
            self.trained["critic"] = list(learner.critic.named_parameters())
        self.witnesses = {name: Witness(name) for name in (*self.trained, "reference", "sampler")}
        for name, optimizer in learner.optimizers.items():
            self.witnesses[name].watch(optimizer)
        self.started_at = datetime.now(UTC).replace(tzinfo=None)
        self._shared_of: int | None = None  # step that a sampler claims which has the policy's own tensors
        self._passes = learner.backward_passes

    def start(self) -> None:
        """Look at the networks that the step is about to train."""
        for witness in self.witnesses.values():
            witness.forget()
        for name, named in self.trained.items():
            self.witnesses[name].start(named)
        self._shared_of = None
        self._passes = self.learner.backward_passes

    def sampler(self, engine: Engine | None, of_step: int) -> None:
        """Look at the weights that a rollout came from; an engine that does not show them has no rows."""
        held = getattr(engine, "held", None)
        if held is None:
            return
        named = list(held())
        own = dict(self.trained["policy"])
        if all(own.get(name) is tensor for name, tensor in named):
            self._shared_of = of_step  # the numbers are the policy's
        else:
            self.witnesses["sampler"].start(named, of_step)

    def reference(self, network: nn.Module) -> None:
        """Look at the network that the KL term is taken to."""
        self.witnesses["reference"].start(network.named_parameters())

    def finish(self) -> None:
        """Look at the networks that the step has trained."""
        for name, named in self.trained.items():
            self.witnesses[name].finish(named)

    def record(self, recorder: Recorder, step: int, checksums: Checksums) -> None:
        """Write the rows of the step."""
        rows = {name: witness.rows() for name, witness in self.witnesses.items()}
        if self._shared_of is not None:
            rows["sampler"] = [of_sampler(row, self._shared_of) for row in rows["policy"]]
        every = list(chain.from_iterable(rows.values()))
        recorder.rows("witness", {"step": step, "started_at": self.started_at, **as_columns(every)})
        batch = {
            "trajectories": checksums.trajectories,
            "sampled_checksum": checksums.sampled,
            "trained_checksum": checksums.trained,
            "micro_batches": self.learner.backward_passes - self._passes,
        }
        recorder.rows("witness_batch", {"step": step, **batch})


# What a sampler's row has of the policy whose tensors it shares.
_SHARED = (
    "layer",
    "parameters",
    "sampled",
    "dtype",
    "weight_norm",
    "fingerprint_start",
    "fingerprint_bfloat16",
    "fingerprint_norm",
)


def of_sampler(row: dict[str, Any], of_step: int) -> dict[str, Any]:
    """The policy's row as that of a sampler which has the very same tensors."""
    shared = {name: row[name] for name in _SHARED}
    return shared | {"network": "sampler", "of_step": of_step}
