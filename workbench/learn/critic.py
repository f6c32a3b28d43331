"""The critic: a network of its own with a value head, starting from the policy's weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class Critic(nn.Module):
    """V(s_t) for every token position: the policy's backbone (a copy) and a linear head that starts at zero."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(policy.base_model)
        # A zero head says "no idea" (V = 0) instead of noise of the backbone's scale.
        self.head = nn.Linear(policy.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.head.to(policy.device)

    def forward(self, tokens: Tensor) -> Tensor:
        """Values (B, T), float32; entry t is V of the state before token t is written, so it never sees token t.

        Position 0 has no state before it and is 0. Padding on the right is never seen by a real token. Values are on
        the device of `tokens`, wherever the critic is.
        """
        on = tokens.to(self.head.weight.device)
        hidden = self.backbone(input_ids=on[:, :-1], use_cache=False).last_hidden_state
        return torch.nn.functional.pad(self.head(hidden).squeeze(-1).float(), (1, 0)).to(tokens.device)
