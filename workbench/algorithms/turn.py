"""GRPO that treats turns apart: their credit, and whether they did anything."""

from sorl.algorithms.group import GRPO
from sorl.objective import Pool
from sorl.objective.aggregate import SeqMeanTokenMean
from sorl.objective.clip import Ppo
from sorl.objective.credit import A2TgPo, GiGpo, IgPo, MtGrpo
from sorl.objective.select import DynamicSampling, VoidTurns
from sorl.objective.trust import GainBand

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

GIGPO = GRPO.but(
    name="gigpo",
    title="GiGPO",
    summary="GiGPO: GRPO's advantage, and how a turn's return compares with other turns in the same state.",
    paper="https://arxiv.org/abs/2505.10978",
    formula=r"A_{ik} = R_i - \mathrm{mean}_g R + Q_{ik} - \mathrm{mean}_{\text{same state}} Q"
    r",\quad Q_{ik} = \sum_{l \ge k} 0.95^{l-k} r_{il}",
    advantage=GiGpo(gamma=0.95, weight=1.0, norm="mean"),
    claim="+12 points over GRPO on ALFWorld, +9 on WebShop",
)

SAMPO = GIGPO.but(
    name="sampo",
    title="SAMPO",
    summary="SAMPO of ARLArena: GiGPO's advantage with GSPO's ratio and clip, on prompts that disagree.",
    paper="https://arxiv.org/abs/2602.21534",
    formula=r"A_{ik} \text{ of GiGPO},\quad \mathrm{clip}(s_i, 0.997, 1.004),\quad \mathrm{std}_g R > 0",
    # as train_sampo.sh of WillDreamer/ARL-Arena, where `sampo` is gigpo with the loss mode gspo of verl
    ratio=Pool("sequence", mean="geometric", grad="token"),
    clip=Ppo(low=3e-3, high=4e-3),
    aggregate=SeqMeanTokenMean(),
    select=DynamicSampling(tries=3),
    claim="+25 % over GRPO on average over four agent tasks, without a collapse",
)

MT_GRPO = GRPO.but(
    name="mt-grpo",
    title="MT-GRPO",
    summary="MT-GRPO: the outcome, and the process rewards from each turn on, both against the group.",
    paper="https://arxiv.org/abs/2505.11821",
    formula=r"A_{ik} = z_g(R_i) + \sum_{l \ge k} z_{g,l}(p_{il})",
    advantage=MtGrpo(weight=1.0, baseline="reward", eps=1e-4),
    experimental=(
        "the paper has one process reward, of the first of two turns, which is here for two turns; the sum"
        " over many turns is the construction that verl issue 7244 shows to be biased"
    ),
    claim="always calls the tool, and 50 % exact matches where GRPO has 20 to 30 %",
)

MT_GRPO_FIXED = MT_GRPO.but(
    name="mt-grpo-fixed",
    title="MT-GRPO, unbiased",
    summary="MT-GRPO with one baseline a turn: the group's mean of what came from that turn on.",
    paper="https://arxiv.org/abs/2505.11821",
    formula=r"A_{ik} = z_g(R_i) + z_{g,k}\big(\textstyle\sum_{l \ge k} p_{il}\big)",
    advantage=MtGrpo(weight=1.0, baseline="return", eps=1e-4),
    experimental="verl issue 7244 announces a small fix that was not read; this one is ours",
    claim="no hidden bonus or cost for another turn (verl issue 7244)",
)

IGPO = GRPO.but(
    name="igpo",
    title="IGPO",
    summary="IGPO: each turn earns what it adds to the probability of the right answer, from there on.",
    paper="https://arxiv.org/abs/2510.14967",
    formula=r"A_{ik} = \sum_{l \ge k} \gamma^{l-k} z_g(r_{il})"
    r",\quad r_{iK} = R_i",
    advantage=IgPo(gamma=1.0),
    experimental=(
        "the paper was read in summaries, its gamma not at all; its code (GuoqingWang1/IGPO) takes off means"
        " by token position; and the process rewards are those of the world, not the gain in probability"
    ),
    claim="better than rewards of the outcome alone on seven question sets, with fewer samples",
)

A2TGPO = GRPO.but(
    name="a2tgpo",
    title="A2TGPO",
    summary="A2TGPO: process rewards against their turn index, and a clip that is as wide as they say.",
    paper="https://arxiv.org/abs/2605.06200",
    formula=r"A_{ik} = z_g(R_i) + \tfrac{1}{\sqrt{n_k}} \sum_{l \ge k} \gamma^{l-k} z_{il}"
    r",\quad \epsilon_{ik} = \epsilon\,(1 + 0.3\,(2\sigma(z_{ik}) - 1))",
    advantage=A2TgPo(gamma=1.0),
    ratio=Pool("turn", mean="geometric"),
    clip=GainBand(low=0.2, high=0.2, beta=0.3),
    experimental=(
        "read in its abstract and in a report on its code (CuSO4-Chen/A-TGPO): the map of the clip and the"
        " ratio of turns are from there; gamma, the widths and how the outcome is added are ours, and the"
        " process rewards are those of the world"
    ),
    claim="+1.75 points on multi-hop and +1.69 on single-hop questions over earlier methods",
)
