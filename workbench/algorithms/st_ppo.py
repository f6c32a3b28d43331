"""ST-PPO (SO-PPO in the paper's second version): turn ratios and the stabiliser of S-PPO."""

from workbench.algorithms.s_ppo import S_PPO
from workbench.algorithms.turn_ppo import TURN_PPO

ST_PPO = TURN_PPO.but(
    name="st-ppo",
    title="ST-PPO (SO-PPO)",
    formula=r"w_{ik} \text{ of Turn-PPO, and } L \to L / \rho \text{ of S-PPO, with } \rho \text{ from token ratios}",
    stabilise=S_PPO.stabilise,
    family="normalised",
    experimental="of 2511.20718 this is the authors' development fork, turn ratios and the trigger at rho > 3 of token "
    "ratios; a note on the paper gives SO-PPO another objective (arithmetic turn ratios, A_k = R_k - V(s_k), a mean "
    "over turns, lambda clipfrac KL(theta || old) taken off; our `kl_clipfrac` has KL(old || theta)): the alias is of "
    "the name",
    claim="prevents collapse on 7B runs, with a lower clip fraction",
)
