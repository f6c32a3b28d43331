"""The turn ledger of a training loop of your own, with torch alone: `python examples/plain_loop.py RUNS`.

A policy of 16 tokens plays two turns: it writes three tokens, sees one back, and writes three more. It earns
1 where the last token is the one that it saw. All but the lines with `ledger` is an ordinary loop with PPO's
clip and group-relative advantages.
"""

import sys

import torch
from torch import nn

from sorl import Clip, Ledger

VOCABULARY = 16
TURN = 3
GROUPS = 8
GROUP = 8
EPOCHS = 2
MINIBATCHES = 2
MASK = torch.tensor([1] * TURN + [0] + [1] * TURN)  # the observation between the turns is not trained on


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.body = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, tokens):
        """Log-probs of every next token, (B, T, V)."""
        return self.head(self.body(self.embedding(tokens))[0]).log_softmax(-1)


def sample(policy, prompts):
    """Responses (B, 2 TURN + 1), the token that was observed in the middle of each."""
    tokens = prompts[:, None]
    for place in range(len(MASK)):
        drawn = torch.multinomial(policy(tokens)[:, -1].exp(), 1)
        seen = (prompts[:, None] * 5 + 3) % VOCABULARY
        tokens = torch.cat([tokens, drawn if MASK[place] else seen], 1)
    return tokens


def main(runs, steps=20):
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    settings = {"lr": 1e-2, "epochs": EPOCHS, "minibatches": MINIBATCHES}
    with Ledger(
        runs, experiment="plain", algorithm="grpo", settings=settings, iterations=steps, clip=Clip()
    ) as ledger:
        for step in range(steps):
            group = torch.arange(GROUPS).repeat_interleave(GROUP)
            with torch.no_grad():
                tokens = sample(policy, torch.randint(VOCABULARY, (GROUPS,))[group])
                old = policy(tokens)[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
            reward = (tokens[:, -1] == tokens[:, 1 + TURN]).float()
            by_group = reward.view(GROUPS, GROUP)
            advantages = (
                (by_group - by_group.mean(1, keepdim=True)) / (by_group.std(1, keepdim=True) + 1e-6)
            ).view(-1)
            ledger.rollouts(step, reward, group=group, prompts=tokens[:, :1], responses=tokens[:, 1:])
            for epoch in range(EPOCHS):
                for rows in torch.randperm(len(tokens)).chunk(MINIBATCHES):
                    log_probs = policy(tokens[rows])[:, :-1]
                    log_prob = log_probs.gather(2, tokens[rows, 1:, None])[..., 0]
                    ratio = (log_prob - old[rows]).exp()
                    a = advantages[rows, None]
                    mask = MASK.expand_as(log_prob)
                    loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)
                    loss = (loss * mask).sum() / mask.sum()
                    optimizer.zero_grad()
                    loss.backward()
                    norm = nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                    ledger.update(
                        step,
                        epoch=epoch,
                        log_prob=log_prob,
                        log_prob_old=old[rows],
                        mask=mask,
                        advantages=advantages[rows],
                        trajectory=rows,
                        entropy=-(log_probs.exp() * log_probs).sum(-1),
                        grad_norm=norm,
                        policy_loss=loss,
                        lr=1e-2,
                    )
                    optimizer.step()
            ledger.end(step)
    return ledger.folder


if __name__ == "__main__":
    print(main(sys.argv[1]))
