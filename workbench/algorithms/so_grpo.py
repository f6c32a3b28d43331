"""SO-GRPO: GRPO with turn ratios, each sequence's loss shrunk by its own stabiliser."""

from workbench.algorithms.grpo import GRPO
from workbench.algorithms.turn_ppo import TURN_PPO
from workbench.objective.stabilise import RmsSeq

SO_GRPO = GRPO.but(
    name="so-grpo",
    title="SO-GRPO",
    paper="https://arxiv.org/abs/2511.20718",
    formula=r"w_{ik} \text{ of Turn-PPO, and } L_i \to L_i / \rho_i \text{ if } \rho_i > 3",
    ratio=TURN_PPO.ratio,  # the fork runs it at token, turn or sequence level; which one the paper reports is not known
    stabilise=RmsSeq(tau=3.0),
    family="normalised",
    experimental="of 2511.20718 this is the authors' development fork, outcome rewards and a trigger at rho_i > 3 in "
    "each sequence; a note on the paper normalises turn-level rewards in the group instead",
    claim="added in the paper's second version as the group-relative member of the pair",
)
