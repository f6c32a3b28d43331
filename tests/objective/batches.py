"""Batches in float64: the worked one of eleven policy tokens, random ones, and random pipelines for
properties.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from sorl.batch import Batch, turn_ids
from sorl.objective import Algorithm, PolicyLoss, Pool, baseline, credit, policy_loss, trust
from sorl.objective import advantage as adv
from sorl.objective import aggregate as agg
from sorl.objective import clip as clips
from sorl.objective import kl as kls
from sorl.objective import proximal as prox
from sorl.objective import select as sel
from sorl.objective import stabilise as stab
from sorl.objective.ratio import Correction, Guard, IcePop, Mis, Tis, placebo_turns

F64 = torch.float64
PPO = Algorithm("ppo", "", "", "", None, advantage=adv.Gae(), ratio=Pool(), clip=clips.Ppo())


def close(expected, rel: float = 1e-9):
    return pytest.approx(expected, rel=rel, abs=1e-12)


def plain(old: Tensor, mask: Tensor | None = None, **changes: Tensor | None) -> Batch:
    """A batch of these old log-probs (B, T), every token a policy token with advantage 1 unless changed."""
    mask = torch.ones_like(old, dtype=torch.bool) if mask is None else mask
    rows = torch.arange(len(old))
    made = Batch(mask.long(), mask, mask, mask.sum(1), 0 * rows, rows, torch.zeros(len(old)), old, old)
    return replace(made, **({"advantages": torch.ones_like(old)} | changes))


def poisoned(x: Tensor, mask: Tensor, garbage: float) -> Tensor:
    """`x` with garbage off the mask."""
    return torch.where(mask, x, garbage)


def dirtied(batch: Batch, garbage: float) -> Batch:
    """The batch with garbage off the mask in every float tensor with a token axis, and in the sentences."""
    names = ("log_prob_behaviour", "log_prob_old", "log_prob_ref", "values", "advantages", "sentence")
    known = {name: x for name in names if (x := getattr(batch, name)) is not None}
    return replace(
        batch, **{k: poisoned(x, batch.mask, 77 if k == "sentence" else garbage) for k, x in known.items()}
    )


def widened(batch: Batch, index: Tensor, extra: int) -> Batch:
    """The sequences `index` with `extra` positions of padding on the right."""
    tensors = vars(batch.rows(index)).items()
    return replace(
        batch, **{k: pad(x, (0, extra)) if x is not None and x.dim() == 2 else x for k, x in tensors}
    )


def solved(
    algorithm: Algorithm, batch: Batch, log_prob: Tensor, **given: object
) -> tuple[PolicyLoss, Tensor]:
    """The loss, detached, and its gradient with respect to the log-probs."""
    leaf = log_prob.clone().requires_grad_()
    out = policy_loss(algorithm, batch, leaf, **given)
    if out.loss.requires_grad:
        out.loss.backward(retain_graph=True)
    return replace(out, loss=out.loss.detach()), torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


# The worked batch, on which every golden number was worked out; values off the mask are deliberate garbage.

MASK = torch.tensor([[1, 1, 1, 0, 0, 1, 1, 0], [1, 1, 0, 1, 1, 1, 1, 0]], dtype=torch.bool)
OLD = torch.tensor(
    [[-1, -0.5, -2, -3, -3, -0.8, -1.2, 0], [-0.7, -1.5, -3, -0.3, -2.2, -0.9, -0.4, 0]], dtype=F64
)
DELTA = torch.tensor(
    [[0.1, -0.05, 0.7, 2, -2, -0.3, 0.02, 0], [0.25, -0.1, 2, 0.05, -1.3, 0.15, 0, 0]], dtype=F64
)
A = torch.tensor([[1, 0.8, 0.6, 9, 9, 0.5, 0.4, 0], [-0.5, -0.7, 9, -1, -1.2, 0.3, -0.6, 0]], dtype=F64)
R = torch.tensor([[1.0] * 8, [-0.5] * 8], dtype=F64)  # one advantage a sequence, as the GRPO family has


def worked(advantages: Tensor = A, **changes: Tensor | None) -> Batch:
    response = torch.tensor([[True] * 7 + [False]] * 2)
    given = {
        "response": response,
        "length": torch.tensor([7, 7]),
        "score": torch.tensor([1.0, 0.0], dtype=F64),
    }
    return plain(OLD, MASK, **(given | {"advantages": advantages} | changes))


def run(algorithm: Algorithm, advantages: Tensor = A, delta: Tensor = DELTA, **changes: Tensor) -> PolicyLoss:
    return policy_loss(algorithm, worked(advantages, **changes), OLD + delta)


def loss(algorithm: Algorithm, advantages: Tensor = A, delta: Tensor = DELTA, **changes: Tensor) -> float:
    return float(run(algorithm, advantages, delta, **changes).loss)


def gradient(algorithm: Algorithm, advantages: Tensor = A, delta: Tensor = DELTA) -> list[float]:
    """d loss / d log-prob of the eleven policy tokens, in row-major order; the others must have none."""
    _, found = solved(algorithm, worked(advantages), OLD + delta)
    assert torch.all(found[~MASK] == 0)
    return found[MASK].tolist()


def ragged(
    seed: int, groups: int = 3, size: int = 4, width: int = 14, scale: float = 0.4
) -> tuple[Batch, Tensor]:
    """(batch, new log-probs): every sequence has its own length, turns of 1 to 4 tokens and observations
    between.
    """
    g = torch.Generator().manual_seed(seed)
    b = groups * size

    def normal() -> Tensor:
        return torch.randn(b, width, generator=g, dtype=F64)

    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    mask = torch.zeros(b, width, dtype=torch.bool)
    length = []
    for i in range(b):
        t = whole(0, 2)
        end = whole(4, width)
        writes = True
        while t < end:
            n = whole(1, 4)
            mask[i, t : min(t + n, end)] = writes
            t = t + n
            writes = not writes
        length.append(end)
    old = torch.where(mask, -normal().abs() - 0.01, 0)
    batch = plain(
        old,
        mask,
        length=torch.tensor(length),
        response=torch.arange(width) < torch.tensor(length)[:, None],
        group=torch.arange(b) // size,
        tokens=torch.randint(0, 9, (b, width), generator=g),
        score=torch.randint(0, 3, (b,), generator=g).to(F64) / 2,
        log_prob_behaviour=torch.where(mask, old + 0.5 * normal(), 0),
        log_prob_ref=torch.where(mask, old + 0.3 * normal(), 0),
        values=torch.where(mask, 0.5 * normal(), 0),
        sentence=torch.where(mask, torch.randint(1, 4, (b, width), generator=g).cummax(1).values, 0),
        advantages=None,
    )
    return batch, torch.where(mask, (old + scale * normal()).clamp(max=-1e-3), 0)


ADVANTAGES = [
    adv.Gae(),
    adv.Gae(gamma=0.9, lam=0.8, whiten="none"),
    adv.Gae(skip_obs=False, whiten="a"),
    adv.TurnMeanGae(lam=0.7),
    adv.TurnGae(),
    adv.TurnGae(whiten="m"),
    adv.Bilevel(),
    adv.Bilevel(gamma=0.9, lam=0.8, whiten="none"),
    adv.Grpo(),
    adv.MeanOnly(),
    adv.Rloo(),
    adv.BatchMean(),
    adv.BatchZ(),
    adv.GroupBatchZ(),
    adv.ReinforcePp(gamma=0.9),
    credit.GiGpo(),
    credit.GiGpo(gamma=0.5, weight=2.0, norm="std"),
    credit.MtGrpo(),
    credit.MtGrpo(baseline="return"),
    credit.IgPo(gamma=0.9),
    credit.A2TgPo(gamma=0.9),
    baseline.Otb(),
    baseline.Otb(zero_tail=False),
]
RATIOS = [
    *(
        Pool(level, mean, grad)
        for level in ("token", "turn", "sequence", "sentence", "placebo")
        for mean in ("geometric", "arithmetic", "product")
        for grad in ("shared", "token")
    ),
    Pool("none"),
]
PESSIMISTIC = [
    clips.Ppo(),
    clips.Ppo(gate="unit"),
    clips.Ppo(low=0.1, high=0.3, dual=3.0),
    clips.Ppo(dual=1.5, gate="unit"),
    clips.Recip(),
    clips.Recip(gate="unit"),
    clips.LogClip(),
    clips.LogClip(at="unit"),
    clips.LogClip(gate="unit"),
]
WEIGHTED = [
    clips.SgClip(),
    clips.PpoMask(),
    clips.Hard(),
    clips.Soft(),
    clips.TvMask(against="old"),
    clips.TvMask(against="recompute"),
    clips.TvMask(cap=1.5),
    clips.Gamma(),
    clips.Gamma(against="old"),
    trust.Taper(),
    trust.Taper(cap=1.5, against="old"),
]
TRUSTED = [
    trust.SequenceMask(delta=0.05),
    trust.SequenceMask(against="behaviour"),
    trust.SequenceTrust(bound=0.3),
    trust.SequenceTrust(bound=0.3, estimator="k2", against="old"),
    trust.TvGate(low=0.1, high=0.05),
    trust.TvGate(against="old"),
    trust.Flipped(),
    trust.GainBand(beta=0.9),
]
SEARCHED = [clips.Bapo(), clips.Bapo(share=0.7, dual=None)]
# WHOLE ones look at the batch as a whole; what they share with its other micro-batches is summed for SEARCHED
WHOLE = [
    *SEARCHED,
    clips.EntropyBand(),
    clips.EntropyBand(gate="unit"),
    trust.SecondMoment(),
    trust.SecondMoment(budget=0.5, tokens="all", against="behaviour"),
]
CLIPS = [*PESSIMISTIC, *WEIGHTED, *TRUSTED, clips.SoftSigmoid(), clips.NoClip()]
STABILISERS = [
    stab.Stabiliser(),
    stab.RmsBatch(),
    stab.RmsBatch(tau=1.0, smooth=True),
    stab.RmsTurn(tau=1.5),
    stab.RmsSeq(),
    stab.RmsSeq(tau=1.0),
    stab.CNorm(),
    stab.Subtract(),
    stab.KlClipFrac(),
    stab.KlClipFrac(form="batch", estimator="k2"),
    stab.AdvNorm(threshold=0.1),
]
MEANS = [
    agg.TokenMean(),
    agg.SeqMeanTokenSum(),
    agg.SeqMeanTokenSumNorm(horizon=9.0),
    agg.SeqMeanTokenMean(),
    agg.TurnMean(),
    agg.TurnMeanGlobal(),
]
AGGREGATES = [*MEANS, agg.TokenSum()]
GUARDS = [Guard(mode=mode, bins=bins) for mode in ("center", "full") for bins in ("turn", "position")]
KLS = [
    kls.KL(),
    *(kls.LossKL(name, 0.1) for name in ("k1", "k2", "k3", "k1+", "k3+", "abs")),
    kls.Lld(),
    kls.Lld(gate="turn"),
    kls.PositiveLow(),
    kls.RewardKL(),
    kls.SamplerSquare(tau=0.1),
]
CORRECTIONS = [Correction(), Tis(), Tis(level="seq_prod", normalise=True)] + [
    kind(level=level, normalise=normalise)
    for kind in (Mis, IcePop)
    for level in ("token", "seq_prod", "seq_geo_filter")
    for normalise in (False, True)
]
SELECTS = [
    sel.Select(),
    sel.ZeroVariance(),
    sel.DynamicSampling(),
    sel.Uncertain("top_k", 1.0),
    sel.Uncertain("top_p", 0.9),
    sel.LargeAdvantage(),
    sel.VoidTurns(),
]
PROXIMALS = [prox.Proximal(), prox.Averaged(), prox.Interpolated()]
EVERY = {
    "advantage": ADVANTAGES,
    "ratio": [*RATIOS, *GUARDS],
    "clip": [*CLIPS, *WHOLE],
    "stabilise": STABILISERS,
    "aggregate": AGGREGATES,
    "kl": KLS,
    "correction": CORRECTIONS,
    "select": SELECTS,
    "shaping": [sel.Shaping(), sel.Overlong(limit=8.0, margin=4.0)],
}


def algorithms(**slots) -> st.SearchStrategy[Algorithm]:
    """Pipelines with any choice of the given ones in each slot, by default of all."""
    chosen = {slot: st.sampled_from(choices) for slot, choices in (EVERY | slots).items()}
    return st.fixed_dictionaries(chosen).map(lambda slots: replace(PPO, **slots))


@st.composite
def batches(
    draw, rows: tuple[int, int] = (1, 5), width: tuple[int, int] = (1, 14), scale: float | None = None
):
    """(batch, log_prob): any mask, sequences without a policy token included; log-ratios up to a few times
    `scale`.
    """
    b = draw(st.integers(*rows))
    t = draw(st.integers(*width))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    density = draw(st.sampled_from([0.3, 0.7, 1.0]))
    scale = draw(st.sampled_from([0.05, 0.4, 2.0, 30.0])) if scale is None else scale

    def normal() -> Tensor:
        return torch.randn(b, t, generator=g, dtype=F64)

    length = torch.randint(1, t + 1, (b,), generator=g)
    response = torch.arange(t) < length[:, None]
    mask = (torch.rand(b, t, generator=g) < density) & response
    old = -normal().abs()
    batch = plain(
        old,
        mask,
        response=response,
        length=length,
        tokens=torch.randint(0, 9, (b, t), generator=g),
        group=torch.randint(0, 2, (b,), generator=g),
        score=torch.randint(0, 3, (b,), generator=g).to(F64) / 2,
        log_prob_behaviour=old + 0.5 * normal(),
        log_prob_ref=old + normal(),
        values=normal(),
        advantages=normal(),
        sentence=torch.where(mask, torch.randint(1, 4, (b, t), generator=g), 0),
        placebo=placebo_turns(mask, g),
        squared_probs=old.exp().square() + torch.rand(b, t, generator=g, dtype=F64),
        turn_reward=((7 * turn_ids(mask) + 3 * torch.arange(b)[:, None]) % 5).to(F64) * mask,
        turn_score=torch.where(mask, normal(), 0),
        staleness=torch.randint(0, 5, (b,), generator=g),
        void=torch.rand(b, 1, generator=g).expand_as(mask) < 0.2,
    )
    return batch, old + scale * normal()
