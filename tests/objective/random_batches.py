"""Random batches and random pipelines for the properties, in float64."""

from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.objective.worked_example import PPO
from workbench.batch import Batch
from workbench.objective import Algorithm, Pool
from workbench.objective import aggregate as agg
from workbench.objective import clip as clips
from workbench.objective import kl as kls
from workbench.objective import rollout_correction as corrections
from workbench.objective import stabilise as stab
from workbench.objective.ratio import placebo_turns

F64 = torch.float64

RATIOS = [
    *(Pool(level, mean, grad) for level in ("token", "turn", "sequence", "sentence", "placebo")
      for mean in ("geometric", "arithmetic", "product") for grad in ("shared", "token")),
    Pool("none"),
]  # fmt: skip
PESSIMISTIC = [
    clips.Ppo(), clips.Ppo(gate="unit"), clips.Ppo(low=0.1, high=0.3, dual=3.0), clips.Ppo(dual=1.5, gate="unit"),
    clips.Recip(), clips.Recip(gate="unit"), clips.LogClip(), clips.LogClip(at="unit"), clips.LogClip(gate="unit"),
]  # fmt: skip
CLIPS = [*PESSIMISTIC, clips.Hard(), clips.Soft(), clips.NoClip()]
FACTORS = [stab.NoStabiliser(), stab.RmsBatch(), stab.RmsBatch(tau=1.0, smooth=True), stab.RmsTurn(tau=1.5),
           stab.RmsSeq(), stab.RmsSeq(tau=1.0), stab.CNorm(), stab.Subtract()]  # fmt: skip
STABILISERS = [*FACTORS, stab.KlClipFrac(), stab.KlClipFrac(form="batch", estimator="k2"), stab.AdvNorm(threshold=0.1)]
MEANS = [agg.TokenMean(), agg.SeqMeanTokenSum(), agg.SeqMeanTokenSumNorm(horizon=9.0), agg.SeqMeanTokenMean(),
         agg.TurnMean(), agg.TurnMeanGlobal()]  # fmt: skip
AGGREGATES = [*MEANS, agg.TokenSum()]
LOSS_KLS = [kls.LossKL(name, 0.1) for name in ("k1", "k2", "k3", "k1+", "k3+", "abs")]
KLS = [kls.NoKL(), *LOSS_KLS]
LEVELS = ("token", "seq_prod", "seq_geo_filter")
CORRECTIONS = [corrections.NoCorrection(), corrections.Tis(), corrections.Tis(level="seq_prod", normalise=True)] + [
    kind(level=level, normalise=normalise)
    for kind in (corrections.Mis, corrections.IcePop) for level in LEVELS for normalise in (False, True)
]  # fmt: skip


def algorithms(ratios=RATIOS, clip=CLIPS, stabilise=STABILISERS, aggregate=AGGREGATES, kl=KLS, correction=CORRECTIONS):
    """Pipelines with any choice of the given ones in each slot."""
    pick = st.sampled_from
    slots = {"ratio": pick(ratios), "clip": pick(clip), "stabilise": pick(stabilise), "aggregate": pick(aggregate)}
    slots |= {"kl": pick(kl), "correction": pick(correction)}
    return st.fixed_dictionaries(slots).map(lambda chosen: replace(PPO, **chosen))


def pure_algorithms(**slots) -> st.SearchStrategy[Algorithm]:
    """Pipelines whose loss is proportional to the advantage: no KL term and no penalty."""
    return algorithms(**{"kl": KLS[:1], "stabilise": FACTORS, **slots})


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


def poisoned(x: Tensor, mask: Tensor, garbage: float) -> Tensor:
    """`x` with garbage off the mask."""
    return torch.where(mask, x, garbage)


def per_token(batch: Batch) -> dict[str, Tensor]:
    """The float tensors of the batch with a token axis."""
    names = ("log_prob_behaviour", "log_prob_old", "log_prob_ref", "values", "advantages")
    return {name: getattr(batch, name) for name in names}
