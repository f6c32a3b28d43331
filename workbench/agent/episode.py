"""An episode as it was sampled, and the batch that training reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from sorl.batch import Batch, turn_ids
from sorl.tensors import Tensor, torch


@dataclass
class Episode:
    """One conversation: its tokens, who wrote them, and how it ended."""

    question_id: int
    group: int
    tokens: list[int]
    written: list[bool]  # True where the policy wrote the token
    log_prob: list[float]  # under the sampler (nats), 0.0 where not written
    prompt_length: int
    question: str
    gold: str
    answer: str | None
    reward: float
    success: bool
    ended: str  # answer, max_turns or max_tokens
    turns: int
    searches: int
    valid_turns: int
    turn_status: list[str] = field(default_factory=list)  # "search", "answer" or "invalid", one a turn
    turn_rewards: list[float] = field(default_factory=list)  # process reward of each turn
    # One a turn, None where the world did not search through a retriever: found, empty or failed, and its
    # seconds.
    retrieval_status: list[str | None] = field(default_factory=list)
    retrieval_seconds: list[float | None] = field(default_factory=list)
    # Prompt, turn, observation, turn, ... as they were made: the witness that what was sampled is what is
    # trained on.
    stretches: list[list[int]] = field(default_factory=list)
    # (tokens, L k) experts of a mixture as the sampler's routers chose them; see Batch
    routes: Tensor | None = None


def collate(episodes: Sequence[Episode], pad_id: int) -> Batch:
    """Right-pad `episodes` to (B, T), T the longest; log_prob_old is the sampler's until someone recomputes
    it.
    """
    length = torch.tensor([len(e.tokens) for e in episodes])
    prompt = torch.tensor([e.prompt_length for e in episodes])
    position = torch.arange(int(length.max()))
    inside = position < length[:, None]  # (B, T)
    padded = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    log_prob = padded([torch.tensor(e.log_prob, dtype=torch.float32) for e in episodes])
    kept = [e.routes for e in episodes if e.routes is not None]
    mask = padded([torch.tensor(e.written, dtype=torch.bool) for e in episodes])
    return Batch(
        tokens=padded([torch.tensor(e.tokens) for e in episodes], padding_value=pad_id),
        mask=mask,
        response=inside & (position >= prompt[:, None]),
        length=length,
        group=torch.tensor([e.group for e in episodes]),
        trajectory=torch.arange(len(episodes)),
        score=torch.tensor([e.reward for e in episodes]),
        log_prob_behaviour=log_prob,
        log_prob_old=log_prob.clone(),
        routes_behaviour=padded(kept) if len(kept) == len(episodes) else None,
        void=_of_turns([_void(e) for e in episodes], mask, torch.bool),
        turn_reward=_of_turns([e.turn_rewards for e in episodes], mask, torch.float32),
    )


def _void(episode: Episode) -> list[bool]:
    """Return which turns had neither a search that could be made nor an answer."""
    return [status == "invalid" for status in episode.turn_status]


def _of_turns(values: Sequence[Sequence[float]], mask: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Give every token what is said of its turn, (B, T), 0 off the mask; None where a turn is left out."""
    turn = turn_ids(mask)
    if [len(row) for row in values] != turn.amax(1).tolist():
        return None
    rows = [torch.tensor([0, *row], dtype=dtype) for row in values]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).gather(1, turn)
