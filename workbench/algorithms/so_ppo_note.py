"""SO-PPO as a note on 2511.20718 has it: turn credit, arithmetic turn ratios, a KL term that clipping switches on."""

from workbench.algorithms.st_ppo import ST_PPO
from workbench.objective import Pool
from workbench.objective.advantage import TurnGae
from workbench.objective.aggregate import TurnMean
from workbench.objective.clip import Ppo
from workbench.objective.stabilise import KlClipFrac

SO_PPO_NOTE = ST_PPO.but(
    name="so-ppo-note",
    title="SO-PPO (a note's objective)",
    formula=r"\bar w_{ik} = \tfrac{1}{n_{ik}} \sum_{s \in k} r_{is},\ A_{ik} = R_{ik} - V(s_{ik}),\ "
    r"L + \lambda\, \mathbb{E}_i[f_i\, \mathrm{KL}_i(\theta \| \mathrm{old})],\ f_i \text{ the share out of range}",
    advantage=TurnGae(gamma=1.0, lam=1.0),  # R_k is the return from turn k on
    ratio=Pool("turn", mean="arithmetic"),
    clip=Ppo(gate="unit"),
    aggregate=TurnMean(),
    stabilise=KlClipFrac(direction="new_old", scope="global"),
    experimental="of 2511.20718 this is a note's objective, not the authors' development fork; lambda = 1 and the "
    "estimator of the KL (weighted k3) are our choice, as the note names none",
    claim="the paper's second version under its own name, by a note: more stable than token PPO",
)
