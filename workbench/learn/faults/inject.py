"""From the settings of a run to the hooks of its fault."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedModel

from workbench.learn.faults import sampling, training
from workbench.learn.faults.declared import check, kind
from workbench.learn.faults.hooks import Lab
from workbench.learn.faults.sampling import Fault
from workbench.objective import Algorithm
from workbench.spec import RunSettings

FAULTS: Mapping[str, type[Fault]] = MappingProxyType(
    {
        "stale_weights": sampling.StaleWeights,
        "low_precision": sampling.LowPrecision,
        "temperature": sampling.Temperature,
        "temperature_hidden": sampling.TemperatureHidden,
        "retriever_empty": sampling.RetrieverEmpty,
        "retriever_slow": sampling.RetrieverSlow,
        "retriever_junk": sampling.RetrieverJunk,
        "truncated": sampling.Truncated,
        "turn_cut": sampling.TurnCut,
        "reward_format": sampling.RewardFormat,
        "reward_noise": sampling.RewardNoise,
        "reward_inverted": sampling.RewardInverted,
        "reward_shifted": sampling.RewardShifted,
        "retokenised": training.Retokenised,
        "batch_reused": training.BatchReused,
        "staleness": training.Staleness,
        "observation_leak": training.ObservationLeak,
        "prompt_leak": training.PromptLeak,
        "padding_leak": training.PaddingLeak,
        "turn_shift": training.TurnShift,
        "corrupt_log_prob": training.CorruptLogProb,
        "wrong_groups": training.WrongGroups,
        "learning_rate": training.LearningRate,
        "clipping_off": training.ClippingOff,
        "critic_diverges": training.CriticDiverges,
        "entropy_bonus": training.EntropyBonus,
        "reference_wrong": training.ReferenceWrong,
    }
)


def inject(run: RunSettings, algorithm: Algorithm, policy: PreTrainedModel, tokenizer: Any) -> Lab:
    """The lab of a run: empty without `[fault]`. Raises InputError for a fault that cannot happen to the run."""
    if run.fault is None:
        return Lab()
    check(run, algorithm)
    declared = kind(run.fault.kind)
    return Lab(FAULTS[declared.name](run, run.fault, policy, tokenizer), run.fault, declared.lead)
