"""S-PPO: token PPO whose loss shrinks when the tokens out of range (C) outweigh the others (N)."""

from workbench.algorithms.ppo import PPO
from workbench.objective.stabilise import RmsBatch

S_PPO = PPO.but(
    name="s-ppo",
    title="S-PPO",
    paper="https://arxiv.org/abs/2511.20718",
    formula=r"L \to L / \rho \text{ if } \rho = \mathrm{RMS}_{\mathcal C}(rA) / \mathrm{RMS}_{\mathcal N}(rA) > 3",
    stabilise=RmsBatch(tau=3.0),  # the authors' development fork, later versions (5 in an earlier one)
    family="normalised",
    experimental="of 2511.20718 this is the authors' development fork, a trigger at rho > 3; equations 7 and 8 of the "
    "paper, which could not be read, divide the gradient by |C| in what is written about them: that is `cnorm`",
    claim="prevents collapse on 7B runs, in one figure above ST-PPO",
)
