"""Which sequences of a step are trained on at all (select), and the score that advantages are made of (shaping).

Selection, dynamic sampling and what is recorded look at the outcome reward itself, before the shaping.
"""

from typing import ClassVar, Literal

from workbench.batch import Batch
from workbench.objective.advantage import compare
from workbench.objective.slot import NonNegative, Positive, Share, Slot, Tries
from workbench.tensors import Tensor, torch


class Select(Slot, kind="none"):  # and base of the selections
    """Every sequence."""

    group_size: ClassVar[int] = 1  # rollouts a prompt that the rule needs, 1 = any number

    @property
    def rounds(self) -> int:
        """How often a rollout is drawn at most until it has enough groups that `keep` accepts."""
        return 1

    def keep(self, score: Tensor, group: Tensor) -> Tensor | None:
        """Sequences to train on, (B,) bool, before the advantages are made; None = all."""
        return None

    def after(self, batch: Batch) -> Tensor | None:
        """Sequences to train on, (B,) bool, once the advantages are there; None = all."""
        return None


class ZeroVariance(Select, kind="zero_var"):
    """Drop prompt groups whose rewards are all equal: they carry no group-relative signal (RAGEN, 2504.20073).

    Their tokens leave the loss mask, so they enter no mean either. A group of one has no variance to judge and stays.
    """

    def keep(self, score: Tensor, group: Tensor) -> Tensor:
        return compare(score, group)[1] > 0  # the std of a group of one is taken as 1


class DynamicSampling(ZeroVariance, kind="dynamic_sampling"):
    """Draw again for every prompt group whose rewards are all equal, then drop those that still are: DAPO, 2503.14476.

    A rollout is filled up with further questions in at most `tries` rounds (verl stops after 10); what is missing then
    is made up of groups without a signal, whose tokens leave the loss mask.
    """

    tries: Tries = 4

    @property
    def rounds(self) -> int:
        return self.tries


class Uncertain(Select, kind="uncertain"):
    """Keep the prompt groups whose rewards spread most: StarPO-S's uncertainty filter, RAGEN 2504.20073.

    `top_k`: the share of the groups with the largest in-group std (at least one); `top_p`: in falling order of the std
    until their sum reaches share times the sum over all groups, less 0.01 (0.9 in RAGEN's code). Groups of one have no
    spread, and without any spread everything is dropped.
    """

    group_size: ClassVar[int] = 8
    mode: Literal["top_k", "top_p"] = "top_k"
    share: Share = 0.25

    def keep(self, score: Tensor, group: Tensor) -> Tensor:
        _, index, size = torch.unique(group, return_inverse=True, return_counts=True)
        score, zeros = score.double(), torch.zeros_like(size, dtype=torch.float64)
        centred = score - (zeros.scatter_add(0, index, score) / size)[index]
        spread = (zeros.scatter_add(0, index, centred.square()) / (size - 1).clamp(min=1)).sqrt()
        spread = torch.where(spread > 1e-9, spread, 0)
        order = spread.argsort(descending=True, stable=True)
        if self.mode == "top_k":
            chosen = order[: max(1, int(self.share * len(order)))]
        else:
            reached = spread[order].cumsum(0) >= self.share * spread.sum() - 0.01
            chosen = order[: int((~reached).sum()) + 1]
        kept = torch.zeros_like(spread, dtype=torch.bool)
        kept[chosen] = True
        return (kept & (spread > 0)).index_select(0, index)


class LargeAdvantage(Select, kind="large_advantage"):
    """Drop sequences of which no token has |A| >= `threshold`: LOOP, 2502.01600."""

    threshold: NonNegative = 0.01

    def after(self, batch: Batch) -> Tensor:
        return torch.where(batch.mask, batch.need("advantages"), 0).abs().amax(1) >= self.threshold


class Shaping(Slot, kind="outcome"):  # and base of the shapings
    """The outcome reward as it is."""

    def score(self, batch: Batch) -> Tensor:
        """Score of each sequence, (B,)."""
        return batch.score


class Overlong(Shaping, kind="overlong"):
    """The outcome less a penalty for length: DAPO, 2503.14476.

    0 while the policy wrote at most `limit` - `margin` tokens, then linear down to -1 at `limit` and beyond. The
    paper's numbers are for long reasoning: in a world of short episodes give others, or nothing is ever penalised.
    """

    limit: Positive = 20480
    margin: float = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0 < self.margin <= self.limit, "margin", "a number of tokens in (0, limit]")

    def score(self, batch: Batch) -> Tensor:
        length = batch.mask.sum(1).to(batch.score.dtype)
        return batch.score + ((self.limit - self.margin - length) / self.margin).clamp(-1, 0)
