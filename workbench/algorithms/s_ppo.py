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
    claim="prevents collapse on 7B runs, in one figure above ST-PPO",
)
