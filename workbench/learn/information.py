"""How much the first turn of a rollout says about its prompt: mutual information of prompts and turns.

A policy that answers every prompt with the same template may keep its entropy; what it loses is this.
Source: arXiv 2604.06268 (RAGEN-2), its estimate from log-probs of every turn under every prompt of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product, takewhile

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sorl.agent.episode import Episode, collate
from sorl.learn.networks import scored
from sorl.measures.evidence import PromptInformation
from sorl.spec import ComputeSettings

PROMPTS = 8  # that are compared: 64 short rows


def measure_information(
    model: PreTrainedModel,
    episodes: Sequence[Episode],
    pad_id: int,
    temperature: float,
    compute: ComputeSettings,
) -> PromptInformation | None:
    """Return what the first turns of one rollout a prompt say about their prompts; None with fewer than two
    prompts.
    """
    chosen = first_of_each_prompt(episodes)
    if len(chosen) < 2:
        return None
    rows = [_with_prompt(turn, prompt) for turn, prompt in product(chosen, repeat=2)]
    log_prob, _ = scored(model, collate(rows, pad_id), temperature, compute)
    scores = log_prob.double().sum(1).reshape(len(chosen), len(chosen))
    return information_of(scores)


def information_of(scores: Tensor) -> PromptInformation:
    """Return the information in log-probs (P, P) of turn i (row) under prompt j (column), in nats.

    I = mean_i [ log p(z_i | x_i) - log (1/P) sum_j p(z_i | x_j) ], at most log P. Retrieval is the share of
    turns that their own prompt makes the likeliest; where n prompts do so alike, each counts 1/n.
    """
    size = len(scores)
    own = scores.diagonal()
    information = own - torch.logsumexp(scores, 1) + math.log(size)
    best = scores >= scores.max(1, keepdim=True).values - 1e-9
    retrieved = best.diagonal().double() / best.sum(1)
    return PromptInformation(float(information.mean()), float(retrieved.mean()))


def first_of_each_prompt(episodes: Sequence[Episode]) -> list[Episode]:
    """Return the first rollout of each different prompt that wrote anything, at most PROMPTS of them."""
    found: dict[tuple[int, ...], Episode] = {}
    for episode in episodes:
        if any(episode.written[episode.prompt_length :]):
            found.setdefault(tuple(episode.tokens[: episode.prompt_length]), episode)
    return list(found.values())[:PROMPTS]


def _with_prompt(turn: Episode, prompt: Episode) -> Episode:
    """Return the first turn of one rollout behind the prompt of another."""
    start = turn.prompt_length
    size = len(list(takewhile(bool, turn.written[start:])))
    prefix = prompt.tokens[: prompt.prompt_length]
    written = [False] * len(prefix) + [True] * size
    return replace(
        turn,
        tokens=[*prefix, *turn.tokens[start : start + size]],
        written=written,
        log_prob=[0.0] * len(written),
        prompt_length=len(prefix),
        routes=None,
    )
