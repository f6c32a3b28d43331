"""PPO and its relatives: advantages from a critic."""

from sorl.objective import Algorithm, Pool
from sorl.objective.advantage import Bilevel, Gae, TurnGae
from sorl.objective.aggregate import TokenMean, TurnMeanGlobal
from sorl.objective.clip import Ppo
from sorl.objective.select import Uncertain

PPO = Algorithm(
    name="ppo",
    title="Token PPO",
    summary="Token PPO: the base that everything else is a difference to.",
    paper="https://arxiv.org/abs/1707.06347",
    formula=r"L = \frac{1}{N}\sum_{i,t} m_{it} \max(-A_{it} r_{it}, -A_{it}\,\mathrm{clip}(r_{it}))",
    differs_from=None,
    advantage=Gae(gamma=1.0, lam=1.0, skip_obs=True, whiten="m"),  # 1, 1: Search-R1; over policy tokens: verl
    ratio=Pool("token"),
    clip=Ppo(low=0.2, high=0.2, dual=None),  # Search-R1; verl adds a dual clip of 3
    aggregate=TokenMean(),  # Search-R1 and verl; counts of the minibatch as verl
    claim="the baseline; Search-R1 reports it slower and more stable than GRPO",
)

TURN_PPO = PPO.but(
    name="turn-ppo",
    title="Turn-PPO",
    summary="Turn-PPO as in 2511.20718: one ratio a turn, advantages still per token.",
    paper="https://arxiv.org/abs/2511.20718",
    formula=(
        r"r_{it} \to w_{ik} = \exp\big(\tfrac{1}{n_{ik}} \sum_{s \in k} \log r_{is}\big),\ t \in"
        r" \text{turn } k"
    ),
    ratio=Pool("turn", mean="geometric", grad="shared"),  # and a token gate: the authors' development fork
    experimental=(
        "of 2511.20718 this is the authors' development fork, not the paper's text, which could not be read:"
        " geometric turn ratios, token advantages; a note on the paper has arithmetic ratios and A_k = R_k -"
        " V(s_k)"
    ),
    claim="more stable than token PPO on 7B search agents; overlapping error bars in its own figure 3a",
)

TURN_PPO_MDP = PPO.but(
    name="turn-ppo-mdp",
    title="Turn-PPO (turn MDP)",
    summary="Turn-PPO as in 2512.17008: a turn is one action, with its own value, advantage, ratio and clip.",
    paper="https://arxiv.org/abs/2512.17008",
    formula=r"L = \frac{1}{\sum_i K_i}\sum_{i,k} \max(-A_{ik} w_{ik}, -A_{ik}\,\mathrm{clip}(w_{ik}))",
    advantage=TurnGae(gamma=0.99, lam=0.9),
    ratio=Pool("turn", mean="geometric"),
    clip=Ppo(gate="unit"),
    aggregate=TurnMeanGlobal(),
    experimental="whether the paper takes the product or the geometric mean of a turn is not known to us",
    claim="GRPO crashes on long reasoning, token PPO is better, turn PPO best (WebShop, Sokoban)",
)

STARPO = PPO.but(
    name="starpo",
    title="StarPO",
    summary="StarPO (RAGEN) with a critic: bi-level GAE, between turns and inside each.",
    paper="https://arxiv.org/abs/2504.20073",
    formula=r"A_{it}: \text{ GAE between turns } (\gamma_H = 0.95) \text{, then inside each turn}",
    advantage=Bilevel(gamma=1.0, lam=1.0, gamma_turn=0.95),  # the defaults of its code
    claim="a framework: names the echo trap, in which rewards, entropy and diversity fall together",
)

STARPO_S = STARPO.but(
    name="starpo-s",
    title="StarPO-S",
    summary=(
        "StarPO-S: StarPO on the prompts whose rollouts disagree most, with a wider upper clip and no KL"
        " term."
    ),
    formula=r"\text{StarPO on the quarter of the prompts with the largest } \mathrm{std}_g R",
    clip=Ppo(low=0.2, high=0.28),
    # its code has no filter by default; this is the recipe of its text
    select=Uncertain("top_k", share=0.25),
    claim="delays or prevents the echo trap",
)
