"""The worked numbers of the neighbours on the batch of eleven tokens, and what their rules do at their edges."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import pad

from tests.algorithms.ragged import ragged
from tests.objective.worked_example import DELTA, F64, MASK, OLD, A, R, batch, gradient, loss, plain, run
from workbench.algorithms import ALGORITHMS, resolve
from workbench.batch import Batch
from workbench.objective import policy_loss, prepare
from workbench.objective.aggregate import SeqMeanTokenMean, TokenMean, TurnMean, TurnMeanGlobal
from workbench.objective.clip import Bapo, Gamma, SgClip, TvMask
from workbench.objective.kl import Lld, PositiveLow
from workbench.objective.ratio import Guard
from workbench.objective.rollout_correction import IcePop, Tis
from workbench.objective.schedule import MeanKL, NoStop, ReverseTurns, TrajectoryKL
from workbench.objective.select import Uncertain

BEHAVIOUR = OLD - torch.tensor([[0, 0.1, -0.2, 50, 50, 1, 0.05, 0], [0, 0.3, 50, -0.1, 0, 0.9, -0.4, 0]], dtype=F64)


def near(x):
    return pytest.approx(x, abs=1e-6)


def test_gspo_token_differs_from_gspo_only_where_advantages_vary():
    wide, token = (replace(ALGORITHMS[name], clip=ALGORITHMS["grpo"].clip) for name in ("gspo", "gspo-token"))
    assert gradient(wide, R) == near([-0.109856] * 5 + [0.035565] * 6)
    assert gradient(token, R) == near(gradient(wide, R))
    assert loss(wide, A) == near(loss(token, A))
    assert gradient(wide, A) != near(gradient(token, A))


def test_vespo_weights_and_its_fold_of_the_sampler():
    weights = run(ALGORITHMS["vespo"], R).terms.token_loss / (-R * (OLD + DELTA))
    assert weights[0, 0].item() == near(0.423169)
    assert weights[1, 0].item() == near(0.197211)
    folded = loss(ALGORITHMS["vespo"], R, log_prob_behaviour=BEHAVIOUR)
    assert folded != near(0.131203)
    unfolded = replace(ALGORITHMS["vespo"], clip=Gamma(against="old"))
    assert loss(unfolded, R, log_prob_behaviour=BEHAVIOUR) == near(0.131203)


@pytest.mark.parametrize(
    ("term", "expected"),
    [(Lld(weight=1.0), 0), (Lld(weight=1.0, gate="turn"), 0.027273), (Lld(gate="turn"), 0.2 * 0.027273),
     (PositiveLow(weight=1.0), 0.07), (PositiveLow(weight=1.0, threshold=0.8), 0.06)],
)  # fmt: skip
def test_the_terms_of_llds_and_sapo_search(term, expected):
    assert float(run(replace(ALGORITHMS["grpo"], kl=term), R).terms.kl_loss) == near(expected)


def test_sapo_search_pushes_on_the_first_update_only_with_threshold_one():
    zero = torch.zeros_like(A)
    for threshold, expected in ((1.0, -0.1 / 5), (0.8, 0.0)):
        term = replace(ALGORITHMS["sapo-search"], kl=PositiveLow(weight=0.1, threshold=threshold))
        assert gradient(term, zero + torch.tensor([[0.0], [-1e-12]], dtype=F64), zero)[:5] == near([expected] * 5)


def test_bapo_share_is_met_at_the_start():
    ratio, advantages = torch.where(MASK, DELTA.exp(), 0), torch.where(MASK, R, 0)
    assert Bapo(low=0.8, high=1.2).found(ratio, advantages) == (0.8, 1.2)
    good = (ratio[0][MASK[0]].clamp(max=1.2)).sum()
    bad = 0.5 * ratio[1][MASK[1]].clamp(min=0.8).sum()
    assert (float(good), float(bad)) == (near(5.017420), near(3.100984))


def test_bapo_raises_the_lower_bound_first_and_then_the_upper_one():
    advantages = torch.tensor([1.0, -1.0], dtype=F64)
    for clip, ratio, bounds in (
        (Bapo(share=0.5), 5.0, (0.6, 1.2)),  # 1.2 against 0.6
        # raising the floor makes the bad side heavier, so the search ends at the upper bound's end
        (Bapo(share=0.7), 1.7, (0.9, 3.0)),
        (Bapo(share=0.65, low_max=0.6), 9.0, (0.6, 1.2)),
        (Bapo(share=0.72, low_max=0.6), 9.0, (0.6, 1.55)),
    ):
        assert clip.found(torch.tensor([ratio, 0.1], dtype=F64), advantages) == pytest.approx(bounds)
    assert Bapo().found(torch.zeros(0, dtype=F64), torch.zeros(0, dtype=F64)) == (0.6, 1.2)


def test_tis_and_icepop_on_the_sampler_of_the_example():
    made = batch(R, log_prob_behaviour=BEHAVIOUR)
    assert float(Tis().weights(made)[MASK].mean()) == near(1.172744)
    for correction, hit in ((Tis(), 2.0), (IcePop(low=0.5, high=2.0), 0.0)):
        terms = policy_loss(replace(ALGORITHMS["tis"], correction=correction), made, OLD + DELTA).terms
        assert torch.equal(terms.correction[MASK], torch.where(terms.corrected, hit, (OLD - BEHAVIOUR).exp())[MASK])
        assert terms.corrected is not None
        assert terms.corrected[MASK].nonzero().flatten().tolist() == [3, 9]
        assert terms.correction[MASK][[3, 9]].tolist() == [hit, hit]
    raw = Tis(cap=None)
    assert float(raw.weights(made)[MASK].max()) == near(math.e)
    assert not raw.acts(made).any()


def by_probability(old: list[float], behaviour: list[float], advantages: list[float]) -> Batch:
    p, mu = torch.tensor([[old], [behaviour]], dtype=F64).log()
    return plain(p, log_prob_behaviour=mu, advantages=torch.tensor([advantages], dtype=F64))


def test_dppo_takes_mask_and_ratio_against_the_sampler():
    made, new = by_probability([0.5, 0.4], [0.6, 0.8], [1.0, -1.0]), torch.tensor([[0.75, 0.5]], dtype=F64)

    def weights(**options):
        """d loss / d log-prob, two tokens averaged, and which tokens lost it."""
        leaf = new.log().requires_grad_()
        out = policy_loss(replace(ALGORITHMS["dppo"], clip=TvMask(**options)), made, leaf)
        (found,) = torch.autograd.grad(out.loss, leaf)
        return (-2 * found[0] * made.advantages[0]).tolist(), out.terms.ratio[0].tolist()

    # p_theta - mu = .15 and -.3, p_theta - p_old = .25 and .1, theta / mu = 1.25 and .625, theta / old = 1.5 and 1.25
    assert weights() == (near([1.25, 0]), near([1.25, 0.625]))
    assert weights(against="recompute") == (near([0, 0.625]), near([1.25, 0.625]))
    assert weights(against="old") == (near([0, 1.25]), near([1.5, 1.25]))
    assert weights(cap=1.2) == (near([1.2, 0]), near([1.25, 0.625]))
    assert ALGORITHMS["dppo"].clip == TvMask()


def test_cispo_bounds_as_trl_has_them():
    trl = replace(ALGORITHMS["cispo"], clip=SgClip(low=1.0, high=4.0))
    terms = run(trl, R, torch.where(MASK, 3.0, DELTA)).terms
    assert terms.out_of_range[MASK].all(), "every weight is clamped"
    assert not terms.active_high.any(), "and no gradient stopped"
    low = run(trl, R, torch.where(MASK, -3.0, DELTA)).terms
    assert not low.out_of_range.any()


def test_a_guard_by_position_centres_the_tokens_of_an_eighth_and_leaves_one_alone():
    entering = Guard(bins="position").entering(torch.where(MASK, DELTA, 0), batch(R))[MASK]
    place = torch.tensor([0, 1, 3, 4, 6, 0, 1, 2, 4, 5, 6])  # 5 and 6 policy tokens
    for eighth in place.unique():
        there, alone = place == eighth, eighth in (2, 3, 5)
        assert float(entering[there].mean()) == near(float(DELTA[MASK][there]) if alone else 0)


@pytest.mark.parametrize("moved", [0.0, 39.0])
def test_reinforce_has_the_gradient_of_the_log_prob_whatever_the_ratio(moved):
    assert gradient(ALGORITHMS["reinforce"], A, DELTA + moved) == near((-A[MASK] / 11).tolist())


def test_dr_grpo_divides_by_the_tokens_that_an_episode_may_have_and_never_by_the_width_of_a_batch():
    by_sixteen = ALGORITHMS["dr-grpo"].within(8)
    assert loss(by_sixteen, R) == near(-0.119777)
    made = batch(R)
    wide = replace(made, **{n: pad(x, (0, 20)) for n, x in vars(made).items() if x is not None and x.dim() == 2})
    assert float(policy_loss(by_sixteen, wide, pad(OLD + DELTA, (0, 20))).loss) == near(-0.119777)
    assert loss(ALGORITHMS["dr-grpo"].within(84), R) == near(-0.119777 * 8 / 84)
    given = resolve("dr-grpo", {"aggregate": {"horizon": 4.0}}).within(84)
    assert loss(given, R) == near(-0.119777 * 2)
    with pytest.raises(ValueError, match="needs a horizon"):
        loss(ALGORITHMS["dr-grpo"], R)
    assert loss(replace(by_sixteen, aggregate=TokenMean()), R) == near(-0.174221)
    assert loss(replace(by_sixteen, aggregate=SeqMeanTokenMean()), R) == near(-0.243327)


def groups(scores: list[list[float]]) -> Batch:
    rows = [(g, s) for g, each in enumerate(scores) for s in each]
    n = len(rows)
    return replace(batch().rows(torch.zeros(n, dtype=torch.long)), group=torch.tensor([g for g, _ in rows]),
                   score=torch.tensor([s for _, s in rows], dtype=F64), advantages=None)  # fmt: skip


SCORES = [[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_the_uncertainty_filter_keeps_the_groups_that_disagree_most():
    made = groups(SCORES)

    def kept(**options) -> list[int]:
        keep = Uncertain(**options).keep(made.score, made.group)
        return sorted({int(g) for g in made.group[keep]})

    assert kept() == [0]
    assert kept(share=0.5) == [0, 2]
    assert kept(share=1.0) == [0, 2]  # groups without spread are never kept
    assert kept(mode="top_p", share=0.5) == [0]
    assert kept(mode="top_p", share=0.9) == [0, 2]
    for equal in (groups([[1, 1], [0, 0]]), groups([[1], [0]])):
        assert not Uncertain().keep(equal.score, equal.group).any()


def test_early_stops():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    moved = torch.tensor([[-1.0, -2.0, 99.0], [-3.0, 99.0, 99.0]])
    epoch = [(moved, mask)]
    assert not NoStop().reached(epoch)
    assert MeanKL(1.3).reached(epoch)  # the mean is 2
    assert not MeanKL(1.34).reached(epoch)
    assert not MeanKL(1.3).skips(moved, mask)
    assert TrajectoryKL(2.9).skips(moved, mask)  # 3 and 3
    assert TrajectoryKL(2.9).skips(-moved, mask), "whichever way the policy moved"
    assert not TrajectoryKL(3.0).skips(moved, mask)
    assert not TrajectoryKL(0.1).skips(moved * torch.tensor([[1.0], [-1.0]]), mask), "the signs of trajectories cancel"
    assert not TrajectoryKL(2.9).reached(epoch)


# Turns updated one after the other, the last first.


def test_the_mean_of_a_group_and_the_whitening_are_those_of_the_sequences_that_have_the_turn():
    """Two groups of three; rewards 1, 0, 0 and 1, 1, 0; turn 2 exists in the first two sequences of each group.

    Turn 1: 2/3, -1/3, -1/3, 1/3, 1/3, -2/3 over their std sqrt(4/15). Turn 2: 1/2, -1/2, 0, 0 over sqrt(1/6).
    Turn 3 exists once: it is its own mean.
    """
    three, two, one = [1, 0, 1, 0, 1], [1, 0, 1, 0, 0], [1, 0, 0, 0, 0]
    mask = torch.tensor([three, two, one, two, two, one]).bool()
    made = plain(torch.zeros(6, 5, dtype=torch.float64), mask, group=torch.tensor([0, 0, 0, 1, 1, 1]),
                 score=torch.tensor([1.0, 0, 0, 1, 1, 0]))  # fmt: skip
    found = prepare(ALGORITHMS["seeupo"], made).advantages
    assert found is not None
    thirds = torch.tensor([2, -1, -1, 1, 1, -2]) / 3 / (4 / 15) ** 0.5
    assert found[:, 0].tolist() == pytest.approx(thirds.tolist())
    assert found[:, 2].tolist() == pytest.approx([0.5 * 6**0.5, -0.5 * 6**0.5, 0, 0, 0, 0])
    assert found[:, 4].tolist() == [0] * 6


@pytest.mark.parametrize("aggregate", [TurnMean(), TurnMeanGlobal()])
def test_a_part_counts_the_turns_that_it_has_and_not_their_index(aggregate):
    made, new = ragged(3)
    made = prepare(ALGORITHMS["seeupo"], made)
    part = next(ReverseTurns().parts(made, lambda part: part.log_prob_old))
    algorithm = replace(ALGORITHMS["turn-ppo"], aggregate=aggregate)
    renumbered = replace(part, turn_id=part.mask.long())
    a, b = (policy_loss(algorithm, x, new[part.trajectory]).loss for x in (part, renumbered))
    assert torch.allclose(a, b)
