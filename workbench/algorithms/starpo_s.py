"""StarPO-S: StarPO on the prompts whose rollouts disagree most, with a wider upper clip and no KL term."""

from workbench.algorithms.starpo import STARPO
from workbench.objective.clip import Ppo
from workbench.objective.select import Uncertain

STARPO_S = STARPO.but(
    name="starpo-s",
    title="StarPO-S",
    paper="https://arxiv.org/abs/2504.20073",
    formula=r"\text{StarPO on the quarter of the prompts with the largest } \mathrm{std}_g R",
    clip=Ppo(low=0.2, high=0.28),
    select=Uncertain("top_k", share=0.25),  # its code has no filter by default; this is the recipe of its text
    family="critic",
    claim="delays or prevents the echo trap",
)
