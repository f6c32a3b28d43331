"""S-PPO: token PPO whose loss shrinks when the tokens out of range (C) outweigh the others (N)."""

from dataclasses import replace

from workbench.algorithms.ppo import PPO
from workbench.objective.stabilise import RmsBatch

S_PPO = replace(
    PPO,
    name="s-ppo",
    title="S-PPO",
    paper="https://arxiv.org/abs/2511.20718",
    formula=r"L \to L / \rho \text{ if } \rho = \mathrm{RMS}_{\mathcal C}(rA) / \mathrm{RMS}_{\mathcal N}(rA) > 3",
    differs_from="ppo",
    stabilise=RmsBatch(tau=3.0),  # the authors' development fork, later versions (5 in an earlier one)
)
