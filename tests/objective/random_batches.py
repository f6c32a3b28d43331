"""Random batches and random pipelines for the properties, in float64."""

from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.objective.worked_example import PPO
from workbench.batch import Batch
from workbench.objective import Algorithm, PolicyLoss, Pool, policy_loss
from workbench.objective import advantage as adv
from workbench.objective import aggregate as agg
from workbench.objective import clip as clips
from workbench.objective import kl as kls
from workbench.objective import rollout_correction as corrections
from workbench.objective import stabilise as stab
from workbench.objective.ratio import Guard, placebo_turns

F64 = torch.float64

ADVANTAGES = [
    adv.Gae(), adv.Gae(gamma=0.9, lam=0.8, whiten="none"), adv.Gae(skip_obs=False, whiten="a"),
    adv.TurnMeanGae(lam=0.7), adv.TurnGae(), adv.TurnGae(whiten="m"), adv.Bilevel(),
    adv.Bilevel(gamma=0.9, lam=0.8, whiten="none"), adv.Grpo(), adv.MeanOnly(), adv.Rloo(), adv.BatchMean(),
    adv.BatchZ(), adv.GroupBatchZ(), adv.ReinforcePp(gamma=0.9),
]  # fmt: skip
RATIOS = [
    *(Pool(level, mean, grad) for level in ("token", "turn", "sequence", "sentence", "placebo")
      for mean in ("geometric", "arithmetic", "product") for grad in ("shared", "token")),
    Pool("none"),
]  # fmt: skip
PESSIMISTIC = [
    clips.Ppo(), clips.Ppo(gate="unit"), clips.Ppo(low=0.1, high=0.3, dual=3.0), clips.Ppo(dual=1.5, gate="unit"),
    clips.Recip(), clips.Recip(gate="unit"), clips.LogClip(), clips.LogClip(at="unit"), clips.LogClip(gate="unit"),
]  # fmt: skip
WEIGHTED = [clips.SgClip(), clips.PpoMask(), clips.Hard(), clips.Soft(), clips.TvMask(against="old"),
            clips.TvMask(against="recompute"), clips.TvMask(cap=1.5), clips.Gamma(),
            clips.Gamma(against="old")]  # fmt: skip
WHOLE = [clips.Bapo(), clips.Bapo(share=0.7, dual=None), clips.EntropyBand(), clips.EntropyBand(gate="unit")]
CLIPS = [*PESSIMISTIC, *WEIGHTED, clips.SoftSigmoid(), clips.NoClip()]  # WHOLE ones look at the micro-batch as a whole
FACTORS = [stab.NoStabiliser(), stab.RmsBatch(), stab.RmsBatch(tau=1.0, smooth=True), stab.RmsTurn(tau=1.5),
           stab.RmsSeq(), stab.RmsSeq(tau=1.0), stab.CNorm(), stab.Subtract()]  # fmt: skip
STABILISERS = [*FACTORS, stab.KlClipFrac(), stab.KlClipFrac(form="batch", estimator="k2"), stab.AdvNorm(threshold=0.1)]
MEANS = [agg.TokenMean(), agg.SeqMeanTokenSum(), agg.SeqMeanTokenSumNorm(horizon=9.0), agg.SeqMeanTokenMean(),
         agg.TurnMean(), agg.TurnMeanGlobal()]  # fmt: skip
AGGREGATES = [*MEANS, agg.TokenSum()]
GUARDS = [Guard(mode=mode, bins=bins) for mode in ("center", "full") for bins in ("turn", "position")]
KLS = [kls.NoKL(), *(kls.LossKL(name, 0.1) for name in ("k1", "k2", "k3", "k1+", "k3+", "abs")), kls.Lld(),
       kls.Lld(gate="turn"), kls.PositiveLow(), kls.RewardKL()]  # fmt: skip
LEVELS = ("token", "seq_prod", "seq_geo_filter")
CORRECTIONS = [corrections.NoCorrection(), corrections.Tis(), corrections.Tis(level="seq_prod", normalise=True)] + [
    kind(level=level, normalise=normalise)
    for kind in (corrections.Mis, corrections.IcePop) for level in LEVELS for normalise in (False, True)
]  # fmt: skip
EVERY = {"ratio": [*RATIOS, *GUARDS], "clip": [*CLIPS, *WHOLE], "stabilise": STABILISERS, "aggregate": AGGREGATES,
         "kl": KLS, "correction": CORRECTIONS}  # fmt: skip


def algorithms(**slots) -> st.SearchStrategy[Algorithm]:
    """Pipelines with any choice of the given ones in each slot, by default of all."""
    chosen = {slot: st.sampled_from(choices) for slot, choices in (EVERY | slots).items()}
    return st.fixed_dictionaries(chosen).map(lambda slots: replace(PPO, **slots))


@st.composite
def batches(draw, rows: tuple[int, int] = (1, 5), width: tuple[int, int] = (1, 14), scale: float | None = None):
    """(batch, log_prob): any mask, sequences without a policy token included; log-ratios up to a few times `scale`."""
    b, t = draw(st.integers(*rows)), draw(st.integers(*width))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    density = draw(st.sampled_from([0.3, 0.7, 1.0]))
    scale = draw(st.sampled_from([0.05, 0.4, 2.0, 30.0])) if scale is None else scale

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=F64)

    length = torch.randint(1, t + 1, (b,), generator=g)
    response = torch.arange(t) < length[:, None]
    mask = (torch.rand(b, t, generator=g) < density) & response
    old = -normal(b, t).abs()
    batch = Batch(
        tokens=torch.randint(0, 9, (b, t), generator=g),
        response=response,
        mask=mask,
        length=length,
        group=torch.randint(0, 2, (b,), generator=g),
        trajectory=torch.arange(b),
        score=torch.randint(0, 3, (b,), generator=g).to(F64) / 2,
        log_prob_behaviour=old + 0.5 * normal(b, t),
        log_prob_old=old,
        log_prob_ref=old + normal(b, t),
        values=normal(b, t),
        advantages=normal(b, t),
        sentence=torch.where(mask, torch.randint(1, 4, (b, t), generator=g), 0),
        placebo=placebo_turns(mask, g),
    )
    return batch, old + scale * normal(b, t)


def solved(algorithm: Algorithm, batch: Batch, log_prob: Tensor, **given: object) -> tuple[PolicyLoss, Tensor]:
    """The loss, detached, and its gradient with respect to the log-probs."""
    leaf = log_prob.clone().requires_grad_()
    out = policy_loss(algorithm, batch, leaf, **given)
    if out.loss.requires_grad:
        out.loss.backward(retain_graph=True)
    return replace(out, loss=out.loss.detach()), torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def poisoned(x: Tensor, mask: Tensor, garbage: float) -> Tensor:
    """`x` with garbage off the mask."""
    return torch.where(mask, x, garbage)


def per_token(batch: Batch) -> dict[str, Tensor]:
    """The float tensors of the batch with a token axis."""
    names = ("log_prob_behaviour", "log_prob_old", "log_prob_ref", "values", "advantages")
    return {name: getattr(batch, name) for name in names}
