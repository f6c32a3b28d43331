"""From the settings of a run to the hooks of its fault."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedModel

from workbench.learn.faults import data, masks, rewards, samplers, training, worlds
from workbench.learn.faults.declared import check, kind
from workbench.learn.faults.fault import Fault
from workbench.learn.faults.hooks import Lab
from workbench.objective import Algorithm
from workbench.spec import RunSettings

FAULTS: Mapping[str, type[Fault]] = MappingProxyType(
    {
        "stale_weights": samplers.StaleWeights,
        "low_precision": samplers.LowPrecision,
        "temperature": samplers.Temperature,
        "temperature_hidden": samplers.TemperatureHidden,
        "retriever_empty": worlds.RetrieverEmpty,
        "retriever_slow": worlds.RetrieverSlow,
        "retriever_junk": worlds.RetrieverJunk,
        "truncated": worlds.Truncated,
        "turn_cut": worlds.TurnCut,
        "reward_format": rewards.RewardFormat,
        "reward_noise": rewards.RewardNoise,
        "reward_inverted": rewards.RewardInverted,
        "reward_shifted": rewards.RewardShifted,
        "retokenised": data.Retokenised,
        "batch_reused": data.BatchReused,
        "staleness": training.Staleness,
        "observation_leak": masks.ObservationLeak,
        "prompt_leak": masks.PromptLeak,
        "padding_leak": masks.PaddingLeak,
        "turn_shift": masks.TurnShift,
        "corrupt_log_prob": data.CorruptLogProb,
        "wrong_groups": data.WrongGroups,
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
