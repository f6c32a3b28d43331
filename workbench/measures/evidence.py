"""What the learner hands over to be measured: the optimizer updates of a step, its fresh rollouts, its
timings.

Axes: U updates of one step, B sequences of an update, T token positions, N trajectories of a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, chain, compress
from typing import Any, Self

import numpy as np

from sorl.tensors import Tensor


class Missing(LookupError):
    """Something was not handed over; what is computed of it is not measured (NULL)."""


class Known:
    """Evidence whose fields raise Missing where they are None, so that no measure can take NULL
    for a value.
    """

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        if (value := getattr(self._of, name)) is None:
            raise Missing(name)
        return value

    def __len__(self) -> int:
        return len(self._of)


@dataclass(frozen=True)
class Evidence:
    """The optimizer updates of one step, stacked: what each update saw at its start, detached.

    Entries where `mask` is false may hold anything. Log-probs are nats. `ratio`, `active_low`, `active_high`,
    `out_of_range`, `dual` and `factor` come from the objective; `gradient_weight` is d loss / d log_prob.
    What is None was not measured, and so is what is computed from it.

    `scalars` holds one value per update, None where it was not measured: grad_norm (before clipping),
    grad_norm_after, critic_grad_norm, clip_bias_norm, clip_bias_ratio, clip_bias_cosine, policy_loss,
    kl_loss, value_loss, stabiliser_ratio, stabiliser_factor, clipped_rms, unclipped_rms, lr, non_finite (a
    count), expert_load_max, and those of the probe.
    """

    epoch: Tensor  # (U,) int64
    rollout_step: Tensor  # (U,) int64
    trajectory: Tensor  # (U, B) int64, -1 = padding row
    mask: Tensor  # (U, B, T) bool
    turn: Tensor  # (U, B, T) int64, 1..K where mask
    log_prob: Tensor | None = None  # (U, B, T) at the start of the update
    log_prob_old: Tensor | None = None  # (U, B, T)
    advantages: Tensor | None = None  # (U, B, T)
    log_prob_behaviour: Tensor | None = None  # (U, B, T)
    ratio: Tensor | None = None  # (U, B, T) pooled ratio of the surrogate
    active_low: Tensor | None = None  # (U, B, T) bool, gradient stopped by the lower bound
    active_high: Tensor | None = None  # (U, B, T) bool, gradient stopped by the upper bound
    out_of_range: Tensor | None = None  # (U, B, T) bool, token ratio outside the bounds
    dual: Tensor | None = None  # (U, B, T) bool, dual clip
    factor: Tensor | None = None  # (U, B, T) stabiliser factor
    entropy: Tensor | None = None  # (U, B, T)
    gradient_weight: Tensor | None = None  # (U, B, T)
    # (U, B, T) share of layers: sampler and old policy take other experts
    route_mismatch: Tensor | None = None
    route_shift: Tensor | None = None  # (U, B, T) share of layers: old and present policy take other experts
    router_entropy: Tensor | None = None  # (U, B, T)
    score: Tensor | None = None  # (U, B)
    group: Tensor | None = None  # (U, B)
    log_prob_ref: Tensor | None = None  # (U, B, T)
    span: Tensor | None = None  # (U, B, T) int64, 1 think, 2 search, 3 answer, 0 none of them
    correction: Tensor | None = None  # (U, B, T) weight of the rollout correction
    corrected: Tensor | None = None  # (U, B, T) bool, the weight was capped or set to 0
    values: Tensor | None = None  # (U, B, T) critic at the start of the update
    values_old: Tensor | None = None  # (U, B, T) critic that made the advantages
    returns: Tensor | None = None  # (U, B, T)
    target: Tensor | None = None  # (U, B, T) bool, the critic has a target there; None = at every token
    value_clip: float | None = None  # width of the value clip, None = off
    scalars: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    @classmethod
    def stack(cls, updates: Sequence[Self]) -> Self:
        """Stack updates along U, padded with masked positions and rows; what one update lacks (None) all
        lack.
        """
        rows = max(update.mask.shape[1] for update in updates)
        width = max(update.mask.shape[2] for update in updates)

        def joined(name: str) -> Tensor | None:
            parts = [getattr(u, name) for u in updates]
            if any(part is None for part in parts):
                return None
            shape = (rows, width)[: parts[0].dim() - 1]
            stacked = parts[0].new_full((sum(map(len, parts)), *shape), -1 if name == "trajectory" else 0)
            start = 0
            for part in parts:
                stacked[start : start + len(part), *(slice(0, n) for n in part.shape[1:])] = part.detach()
                start += len(part)
            return stacked

        tensors = {f.name: joined(f.name) for f in fields(cls) if f.name not in ("value_clip", "scalars")}
        names = dict.fromkeys(chain.from_iterable(update.scalars for update in updates))
        scalars = {name: _joined_scalars(updates, name) for name in names}
        return replace(updates[0], **tensors, scalars=scalars)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Rollouts:
    """Episodes as columns: entry i of every field speaks of trajectory i; arrays are (N,).
    None: not known.
    """

    reward: np.ndarray | None
    group: np.ndarray  # prompt group
    rollout_step: np.ndarray  # iteration whose policy sampled the trajectory
    success: np.ndarray | None = None  # bool
    turns: np.ndarray | None = None
    searches: np.ndarray | None = None
    valid_turns: np.ndarray | None = None
    response_tokens: np.ndarray | None = None  # tokens that the policy wrote
    observation_tokens: np.ndarray | None = None  # tokens after the prompt that the world wrote
    truncated: np.ndarray | None = None  # bool, the episode ended without an answer
    answered: np.ndarray | None = None  # bool
    tokens: Sequence[Sequence[int]] | None = None  # ids of each trajectory, prompt and observations included
    written: Sequence[Sequence[Sequence[int]]] | None = None  # token ids of each turn of each trajectory
    # turn in which the policy wrote each of `tokens`, 0 of one that it only read; None: not known
    token_turn: Sequence[np.ndarray | None] | None = None
    turn_status: Sequence[Sequence[str]] | None = None  # search, answer or invalid, per turn
    question: Sequence[str] | None = None
    gold: Sequence[str] | None = None
    answer: Sequence[str | None] | None = None
    ended: Sequence[str] | None = None
    # Of rollouts with several training rows: the rollout of each row, the row that it branches off (masked:
    # none), and how many tokens at its beginning are those of that row.
    rollout: np.ndarray | None = None
    parent: np.ndarray | None = None
    shared_tokens: np.ndarray | None = None
    sample: np.ndarray | None = None  # the trainer's own number of the sample, in the order of its data
    # Per turn, None where no retriever was asked; empty where the sampler does not say.
    retrieval_status: Sequence[Sequence[str | None]] = ()  # found, empty or failed
    retrieval_seconds: Sequence[Sequence[float | None]] = ()

    @classmethod
    def of(cls, episodes: Sequence[Any], rollout_step: int | Sequence[int]) -> Self:
        """Return the columns of the agent's `episodes`, sampled by the policy of `rollout_step` (one, or one
        each).
        """
        dtypes = {
            "success": bool,
            "reward": float,
            **dict.fromkeys(("group", "turns", "searches", "valid_turns"), int),
        }
        lists = ("tokens", "turn_status", "question", "gold", "answer", "ended")
        columns: dict[str, Any] = {}
        for name in (*dtypes, *lists):
            columns[name] = [getattr(episode, name) for episode in episodes]
        columns |= {name: np.array(columns[name], dtype) for name, dtype in dtypes.items()}
        written = [stretches(e.tokens, e.written) for e in episodes]
        response = np.array([sum(map(len, turns)) for turns in written], dtype=np.int64)
        return cls(
            **columns,
            rollout_step=np.broadcast_to(np.asarray(rollout_step, dtype=np.int64), (len(episodes),)),
            response_tokens=response,
            observation_tokens=np.array([len(e.tokens) - e.prompt_length for e in episodes], dtype=np.int64)
            - response,
            truncated=np.array([e.ended != "answer" for e in episodes], dtype=bool),
            answered=np.array([e.answer is not None for e in episodes], dtype=bool),
            written=written,
            token_turn=[number_turns(np.asarray(e.written, dtype=bool)) for e in episodes],
            retrieval_status=[getattr(e, "retrieval_status", ()) for e in episodes],
            retrieval_seconds=[getattr(e, "retrieval_seconds", ()) for e in episodes],
        )

    def __len__(self) -> int:
        return len(self.group)

    @cached_property
    def repetition(self) -> np.ndarray | None:
        """1 - #{distinct 4-grams} / #{4-grams} of the tokens that the policy wrote, (N,); masked below 4
        tokens.
        """
        if self.written is None:
            return None
        texts = [np.fromiter(chain.from_iterable(turns), np.int64) for turns in self.written]
        distinct = np.array([distinct_ngrams(text) for text in texts])
        total = np.array([len(text) - 3 for text in texts])
        return np.ma.array(1.0 - distinct / np.maximum(total, 1), mask=total < 1)

    @cached_property
    def duplicates(self) -> np.ndarray | None:
        """Turns that say exactly what an earlier turn of the trajectory said, (N,)."""
        if self.written is None:
            return None
        return np.array(
            [len(turns) - len(set(map(tuple, turns))) for turns in self.written], dtype=np.float64
        )


def distinct_ngrams(tokens: np.ndarray, n: int = 4) -> int:
    """How many different stretches of n tokens there are in a text."""
    if len(tokens) < n:
        return 0
    vocabulary, ranks = np.unique(tokens, return_inverse=True)
    keys = np.zeros(len(tokens) - n + 1, dtype=np.int64)
    for place in range(n):
        if len(vocabulary) ** (place + 1) >= 2**63:  # a text of over 55,000 different tokens, for n = 4
            keys = np.unique(keys, return_inverse=True)[1]
        keys = keys * len(vocabulary) + ranks[place : place + len(keys)]
    return len(np.unique(keys))


def count_stretches(written: np.ndarray) -> int:
    """How many maximal stretches of true entries there are: the turns of a mask."""
    return int(np.count_nonzero(np.diff(written.astype(np.int8), prepend=0) == 1))


def stretches(tokens: Any, written: Any) -> list[list[int]]:
    """Ids of the written tokens (`written`: a flag each), one list per maximal stretch of them."""
    ids = list(compress(tokens, written))
    ends = list(accumulate(len(stretch) for stretch in bytes(written).split(b"\0") if stretch))
    return [ids[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def number_turns(written: np.ndarray) -> np.ndarray:
    """Return the turn of each token, counted from 1, 0 where `written` is false; both are (T,)."""
    begins = written & ~np.concatenate([[False], written[:-1]])
    return np.where(written, np.cumsum(begins), 0)


@dataclass(frozen=True)
class Revisits:
    """Tokens of a step whose whole past an earlier step had as well; log-probs in nats."""

    tokens: int
    sampler_shift: float | None  # mean |change| of the sampler's log-probs since then; None without a token
    trainer_shift: float | None  # the same of the trainer's
    steps: float | None  # since the earlier of them, median


@dataclass(frozen=True)
class PromptInformation:
    """What the first turns of rollouts say about their prompts."""

    nats: float  # mutual information of turns and prompts
    retrieved: float  # share of turns that their own prompt makes the likeliest


@dataclass(frozen=True)
class StepEvidence:
    """One step: its fresh rollouts, the trajectories that it trained on, its updates, and where its time
    went.

    `trained` is None when the step trained on its fresh rollouts; row i of it is `Evidence.trajectory` i.
    `seconds` may hold rollout, update, evaluation, record and total.
    """

    rollouts: Rollouts
    updates: Evidence | None = None
    trained: Rollouts | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    tokens_trained: int = 0
    episodes_sampled: int | None = None  # fresh rollouts, those of further draws included
    # success of the policy before this step, and on how many questions
    heldout: tuple[float, int] | None = None
    # whether the old log-probs are those of the policy that the first update trains
    fresh: bool | None = None
    batch_hash: int | None = None  # fingerprint of the tokens and the loss mask that went into the updates
    # nats, of the sampler's last weight sync; None where it reads the trainer's own
    sync_error: float | None = None
    memory_peak: int | None = None  # bytes
    # (trajectory, turn) where the batch is not what was sampled
    mismatches: Sequence[tuple[int, int]] | None = None
    revisits: Revisits | None = None  # None: nobody remembers earlier steps
    information: PromptInformation | None = None  # None: not measured at this step


def fingerprint(*parts: bytes) -> int:
    """Return a hash of 48 bits, which a DOUBLE holds exactly: a column with NULLs is read as one."""
    digest = blake2b(digest_size=6)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")


def _joined_scalars(updates: Sequence[Evidence], name: str) -> list[float | None]:
    """A scalar of all updates, None where an update does not have it."""
    joined: list[float | None] = []
    for update in updates:
        joined += update.scalars.get(name) or [None] * len(update.epoch)
    return joined
