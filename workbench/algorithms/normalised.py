"""The surrogate normalised by the clipping bias: the algorithms of arXiv 2511.20718, and a note's reading of
it.
"""

from sorl.algorithms.critic import PPO, TURN_PPO
from sorl.algorithms.group import GRPO
from sorl.objective import Pool
from sorl.objective.advantage import TurnGae
from sorl.objective.aggregate import TurnMean
from sorl.objective.clip import Ppo
from sorl.objective.stabilise import KlClipFrac, RmsBatch, RmsSeq

S_PPO = PPO.but(
    name="s-ppo",
    title="S-PPO",
    summary="S-PPO: token PPO whose loss shrinks when the tokens out of range (C) outweigh the others (N).",
    paper="https://arxiv.org/abs/2511.20718",
    formula=(
        r"L \to L / \rho \text{ if } \rho = \mathrm{RMS}_{\mathcal C}(rA) / \mathrm{RMS}_{\mathcal N}(rA) > 3"
    ),
    stabilise=RmsBatch(tau=3.0),  # the authors' development fork, later versions (5 in an earlier one)
    experimental=(
        "of 2511.20718 this is the authors' development fork, a trigger at rho > 3; equations 7 and 8 of the"
        " paper, which could not be read, divide the gradient by |C| in what is written about them: that is"
        " `cnorm`"
    ),
    claim="prevents collapse on 7B runs, in one figure above ST-PPO",
)

ST_PPO = TURN_PPO.but(
    name="st-ppo",
    title="ST-PPO (SO-PPO)",
    summary="ST-PPO (SO-PPO in the paper's second version): turn ratios and the stabiliser of S-PPO.",
    formula=(
        r"w_{ik} \text{ of Turn-PPO, and } L \to L / \rho \text{ of S-PPO, with } \rho \text{ from token"
        r" ratios}"
    ),
    stabilise=S_PPO.stabilise,
    experimental=(
        "of 2511.20718 this is the authors' development fork, turn ratios and the trigger at rho > 3 of token"
        " ratios; a note on the paper gives SO-PPO another objective (arithmetic turn ratios, A_k = R_k -"
        " V(s_k), a mean over turns, lambda clipfrac KL(theta || old) taken off; our `kl_clipfrac` has KL(old"
        " || theta)): the alias is of the name"
    ),
    claim="prevents collapse on 7B runs, with a lower clip fraction",
)

SO_GRPO = GRPO.but(
    name="so-grpo",
    title="SO-GRPO",
    summary="SO-GRPO: GRPO with turn ratios, each sequence's loss shrunk by its own stabiliser.",
    paper="https://arxiv.org/abs/2511.20718",
    formula=r"w_{ik} \text{ of Turn-PPO, and } L_i \to L_i / \rho_i \text{ if } \rho_i > 3",
    # the fork runs it at token, turn or sequence level; which one the paper reports is not known
    ratio=TURN_PPO.ratio,
    stabilise=RmsSeq(tau=3.0),
    experimental=(
        "of 2511.20718 this is the authors' development fork, outcome rewards and a trigger at rho_i > 3 in "
        "each sequence; a note on the paper normalises turn-level rewards in the group instead"
    ),
    claim="added in the paper's second version as the group-relative member of the pair",
)

SO_PPO_NOTE = ST_PPO.but(
    name="so-ppo-note",
    title="SO-PPO (a note's objective)",
    summary=(
        "SO-PPO as in a note on 2511.20718: turn credit, arithmetic turn ratios, a KL term that clipping"
        " scales."
    ),
    formula=r"\bar w_{ik} = \tfrac{1}{n_{ik}} \sum_{s \in k} r_{is},\ A_{ik} = R_{ik} - V(s_{ik}),\ "
    r"L + \lambda\, \mathbb{E}_i[f_i\, \mathrm{KL}_i(\theta \| \mathrm{old})],\ f_i \text{ the share out of"
    r" range}",
    advantage=TurnGae(gamma=1.0, lam=1.0),  # R_k is the return from turn k on
    ratio=Pool("turn", mean="arithmetic"),
    clip=Ppo(gate="unit"),
    aggregate=TurnMean(),
    stabilise=KlClipFrac(direction="new_old", scope="global"),
    experimental=(
        "of 2511.20718 this is a note's objective, not the authors' development fork; lambda = 1 and the "
        "estimator of the KL (weighted k3) are our choice, as the note names none"
    ),
    claim="the paper's second version under its own name, by a note: more stable than token PPO",
)
