"""GRPO that treats turns apart: their credit, and whether they did anything."""

from sorl.algorithms.group import GRPO
from sorl.objective.clip import Ppo
from sorl.objective.select import VoidTurns

SIMPLETIR = GRPO.but(
    name="simpletir",
    title="SimpleTIR",
    summary="SimpleTIR: GRPO without the rollouts that have a turn with neither a tool call nor an answer.",
    paper="https://arxiv.org/abs/2509.02479",
    formula=r"m_{it} = 0 \text{ for all } t \text{ if a turn of } i \text{ is void}",
    clip=Ppo(low=0.2, high=0.28, dual=3.0),  # the train.sh of its code
    select=VoidTurns(),
    claim="stable multi-turn training from a base model; AIME24 from 22.1 to 50.5 (Qwen2.5-7B)",
)
