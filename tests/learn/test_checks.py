"""The mask self-test finds what it is there for; token identity: what was sampled is what is trained, or the
check says where not.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sorl.agent.demonstrations import demonstrations
from sorl.agent.episode import Episode, collate
from sorl.agent.tokenizer import Sentences, build_tokenizer
from sorl.agent.worlds.facts import Facts
from sorl.algorithms import ALGORITHMS
from sorl.batch import Batch, turn_ids
from sorl.learn import checks, networks
from sorl.learn.checks import Checksums, checksums, fingerprint, mismatches, synthetic
from sorl.learn.faults import Fault
from sorl.learn.rollout import Rollout
from sorl.learn.rollouts import Sampler
from sorl.objective import advantage
from sorl.objective.aggregate import Normaliser, TokenMean
from sorl.objective.kl import LossKL
from sorl.objective.select import DynamicSampling, Select
from sorl.spec import PolicySettings, RunSettings, WorldSettings
from tests.learn.tiny import TINY, rows, train

TOKENIZER = build_tokenizer()
PAD = TOKENIZER.pad_token_id
PPO = ALGORITHMS["ppo"]


@pytest.fixture
def network() -> Any:
    return networks.create(PolicySettings(hidden=16, layers=2, heads=2, mlp=16), TOKENIZER, seed=0)


@pytest.mark.parametrize("group_size", [1, 2, 8])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_named_algorithm_passes_with_any_group_size(name, group_size, network):
    assert checks.problem(ALGORITHMS[name].within(84), group_size, network, PAD) == ""


def test_the_synthetic_batch_has_every_kind_of_token_and_is_the_same_at_every_call():
    batch, kind = synthetic(2)
    again, _ = synthetic(2)
    assert torch.equal(batch.tokens, again.tokens)
    assert torch.equal(batch.log_prob_old, again.log_prob_old)
    assert set(kind.unique().tolist()) == set(checks.KINDS)
    assert torch.equal(batch.response, kind >= checks.WRITTEN)
    assert batch.group.unique().tolist() == [0, 1]


def test_the_self_test_neither_draws_from_the_global_stream_nor_changes_the_network(network):
    before = [p.clone() for p in network.parameters()]
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    checks.problem(PPO, 1, network, PAD)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert all(p.grad is None for p in network.parameters())


class KlOfTheResponse(LossKL):
    """A KL term over the whole response, as one whose mask was built from the attention mask."""

    kind: ClassVar[str] = "leaky"

    def in_loss(self, batch: Batch, log_prob: Tensor, counts: Normaliser) -> Tensor:
        return (torch.where(batch.response, log_prob, 0)).sum() / counts.tokens


class CountsTokens(TokenMean):
    """A mean that divides by a number which depends on observations and padding."""

    kind: ClassVar[str] = "counting"

    def weights(self, batch: Batch, counts: Normaliser) -> Tensor:
        return batch.mask / batch.tokens.flip(1).cumsum(1).amax().to(batch.log_prob_old.dtype)


class Bidirectional(torch.nn.Module):
    """A network whose every prediction sees the whole row, padding included."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.get_input_embeddings = network.get_input_embeddings

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        out = self.network(input_ids=input_ids, use_cache=use_cache)
        out.logits = out.logits + out.logits.mean(1, keepdim=True)
        return out


def of_the_response(*arguments: Any) -> Batch:
    batch = collate(*arguments)
    return replace(batch, mask=batch.response)


def everywhere(batch: Batch, mask: Any) -> Tensor:
    return torch.ones_like(batch.mask)


@pytest.mark.parametrize(
    ("algorithm", "wrapped", "patch", "said"),
    [
        (
            replace(PPO, kl=KlOfTheResponse("k1", 0.1)),
            None,
            None,
            "loss of 'ppo' has a gradient at observations",
        ),
        (
            replace(PPO, aggregate=CountsTokens()),
            None,
            None,
            "changes with tokens that the policy did not write",
        ),
        (
            PPO,
            None,
            (checks, "collate", of_the_response),
            "not what the policy wrote: it has observations in it",
        ),
        (
            PPO,
            None,
            (advantage, "positions", everywhere),
            "critic's loss has a gradient at padding and observations",
        ),
        (PPO, Bidirectional, None, "when only the padding after them changes"),
    ],
    ids=["the loss", "its divisor", "the mask", "the critic", "the network"],
)
def test_what_depends_on_tokens_not_written_is_found(algorithm, wrapped, patch, said, network, monkeypatch):
    if patch:
        monkeypatch.setattr(*patch)
    assert said in checks.problem(algorithm, 1, wrapped(network) if wrapped else network, PAD)
    if patch and patch[0] is advantage:
        assert checks.problem(ALGORITHMS["grpo"], 2, network, PAD) == "", "it has no critic"


def test_a_network_that_drops_units_at_random_is_not_blamed_for_it(network):
    for module in network.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    network.train()
    tokens = synthetic(1, len(TOKENIZER))[0].tokens
    assert not torch.equal(networks.log_probs(network, tokens)[0], networks.log_probs(network, tokens)[0])
    assert checks.problem(PPO, 1, network, PAD) == ""


def test_a_run_whose_self_test_fails_ends_before_its_first_step(new_run, cache, monkeypatch, capsys):
    folder = new_run()
    monkeypatch.setattr(advantage, "positions", everywhere)
    assert train(folder, cache) == 1
    last = rows(folder, "run").iloc[-1]
    assert (last["status"], last["steps"]) == ("failed", 0)
    assert last["reason"].startswith("mask self-test: the critic's loss has a gradient at padding")
    (event,) = rows(folder, "event").to_dict(orient="records")
    assert (event["kind"], event["severity"], event["step"]) == ("guard_mask", "critical", 0)
    assert not (folder / "segments" / "step").exists()
    assert "Traceback" not in capsys.readouterr().err


def episode(*sizes: int, first: int = 10) -> Episode:
    """An episode whose stretches have these sizes and whose tokens count up, so that no two are the same."""
    tokens = list(range(first, first + sum(sizes)))
    return checks.episode_of([tokens[sum(sizes[:i]) :][:n] for i, n in enumerate(sizes)])


EPISODES = [episode(2, 3, 2, 1), episode(3, 2), episode(1, 1, 1, 2, 3, 4, first=50)]
BATCH = collate(EPISODES, pad_id=0)
SWAPPED = BATCH.rows(torch.tensor([1, 0, 2]))


def changed(name: str, *place: int, to: int, of: Batch = BATCH) -> Batch:
    tensor = getattr(of, name).clone()
    tensor[place] = to
    made = replace(of, **{name: tensor})
    return replace(made, turn_id=turn_ids(made.mask)) if name == "mask" else made


DROPPED = changed("mask", 2, to=0)  # by the selection: it has tokens to compare and no turns


@given(st.lists(st.lists(st.integers(1, 4), min_size=2, max_size=9), min_size=1, max_size=5))
def test_whatever_episodes_are_collated_their_batch_is_what_was_sampled(sizes):
    episodes = [episode(*each) for each in sizes]
    assert mismatches(collate(episodes, pad_id=0), episodes) == []


def test_the_dialogues_of_the_embedded_world_keep_their_stretches():
    episodes = demonstrations(Facts(WorldSettings()), 32, 0.5, seed=0)
    assert mismatches(collate(episodes, pad_id=0), episodes) == []
    for one in episodes:
        assert [t for stretch in one.stretches for t in stretch] == one.tokens
        assert len(one.stretches[0]) == one.prompt_length
        assert len(one.stretches[1::2]) == one.turns


@pytest.mark.parametrize(
    ("broken", "where"),
    [
        (BATCH, []),
        (changed("tokens", 0, 0, to=99), [(0, 0)]),  # the prompt
        (changed("tokens", 0, 3, to=99), [(0, 1)]),  # the first turn
        (changed("tokens", 0, 5, to=99), [(0, 1)]),  # the observation after it
        (changed("tokens", 2, 4, to=99), [(2, 2)]),
        (changed("tokens", 2, 11, to=99), [(2, 3)]),  # the last token
        (changed("mask", 1, 2, to=1), [(1, 0)]),  # a prompt token in the loss
        (changed("mask", 0, 5, to=1), [(0, 1)]),  # an observation token in the loss
        (changed("mask", 2, 1, to=0), [(2, 1)]),  # a turn of one token left out: the turns after it move up
        (changed("mask", 1, 9, to=1), [(1, 1)]),  # padding in the loss
        (changed("length", 1, to=4), [(1, 1)]),  # cut short
        (SWAPPED, [(0, 1), (1, 0)]),  # rows are exchanged
        (DROPPED, []),
        (changed("tokens", 2, 3, to=99, of=DROPPED), [(2, 2)]),
    ],
)
def test_a_batch_that_is_not_what_was_sampled_is_named_by_trajectory_and_turn(broken, where):
    assert mismatches(broken, EPISODES) == where
    without = replace(EPISODES[2], stretches=[])
    assert mismatches(broken, [*EPISODES[:2], without]) is None, "an episode without them cannot be checked"


def test_a_step_of_which_the_selection_drops_every_trajectory_has_checksums_of_nothing():
    nothing = replace(BATCH, mask=torch.zeros_like(BATCH.mask))
    assert checksums(nothing, EPISODES) == Checksums(0, 0, 0)
    whole = checksums(BATCH, EPISODES)
    assert whole.trajectories == 3
    assert whole.sampled == whole.trained > 0
    dropped = checksums(DROPPED, EPISODES)
    assert dropped.trajectories == 2
    assert dropped.sampled == dropped.trained != whole.trained


def test_the_fingerprint_is_that_of_tokens_and_mask_and_of_nothing_else():
    same = replace(BATCH, score=BATCH.score + 1, log_prob_old=BATCH.log_prob_old - 1)
    padded = replace(BATCH, tokens=torch.where(BATCH.tokens == 0, 7, BATCH.tokens))
    assert fingerprint(BATCH) == fingerprint(same) == fingerprint(padded)
    others = [changed("tokens", 1, 0, to=99), changed("mask", 1, 0, to=1), SWAPPED]
    assert len({fingerprint(BATCH), *map(fingerprint, others)}) == 4
    assert 0 <= fingerprint(BATCH) < 2**48


SETTINGS = RunSettings.model_validate(TINY | {"learn": {"episodes": 16, "minibatches": 2}})


@dataclass
class Scripted:
    """An engine whose draw n has both outcomes in the groups `mixed[n]`, and no success in the others."""

    mixed: list[set[int]]
    asked: list[list[int]] = field(default_factory=list)

    def rollout(self, world: Any, questions: Any, groups: list[int], stream: Any) -> list[Episode]:
        mixed = self.mixed[len(self.asked)]
        self.asked.append([q.id for q in questions])
        won = [i % 2 == 0 and group in mixed for i, group in enumerate(groups)]
        made = [checks.episode_of([[1], [2]], group, float(w)) for group, w in zip(groups, won, strict=True)]
        return [replace(e, question_id=q.id) for e, q in zip(made, questions, strict=True)]


def drawn(
    mixed: list[set[int]], select: Select = DynamicSampling(), number: int = 3
) -> tuple[Rollout, Scripted]:
    engine: Any = Scripted(mixed)
    return (
        Sampler(SETTINGS, Facts(SETTINGS.world), engine, 4, select, Fault(SETTINGS)).rollout(number, 3),
        engine,
    )


def test_a_rollout_is_one_draw_without_a_rule_and_where_every_group_has_both_outcomes():
    for rollout, engine in (drawn([set()], Select()), drawn([{0, 1, 2, 3}])):
        assert (len(engine.asked), rollout.sampled) == (1, 16)
        assert rollout.first is rollout.episodes


def test_groups_without_a_signal_are_replaced_by_groups_of_further_questions():
    rollout, engine = drawn([{0, 2}, {1, 2, 3}])
    first, second = engine.asked
    assert not set(first) & set(second), "further questions are others"
    assert [e.question_id for e in rollout.first] == first, "the first draw is kept for what is measured"
    assert [e.question_id for e in rollout.episodes] == [*first[:4], *first[8:12], *second[4:12]]
    for episodes in (rollout.episodes, rollout.first):
        assert [e.group for e in episodes] == [i // 4 for i in range(16)]
    assert rollout.sampled == 32
    again, other = drawn([{0, 2}, {1, 2, 3}])
    assert (other.asked, again.episodes) == (engine.asked, rollout.episodes), "the same whenever it is drawn"


def test_what_the_last_draw_could_not_replace_stays_and_is_not_trained_on():
    select = DynamicSampling(tries=4)
    rollout, _ = drawn([{0}, set(), set(), {3}], select, number=0)
    assert rollout.sampled == 64
    rewards, group = (
        torch.tensor([getattr(e, name) for e in rollout.episodes]) for name in ("reward", "group")
    )
    assert select.keep(rewards, group).tolist() == [True] * 8 + [False] * 8


def test_a_sentence_ends_at_its_mark_and_with_its_turn():
    stop, word = TOKENIZER.convert_tokens_to_ids(["?", "alice"])
    made, _ = synthetic(1, len(TOKENIZER))
    tokens = torch.full_like(made.tokens, word)
    written = made.mask[0].nonzero().flatten()
    tokens[0, written[0]] = stop
    found = Sentences(TOKENIZER).of(replace(made, tokens=tokens))
    assert torch.equal(found[1:], made.turn[1:]), "a turn without a mark is one sentence"
    assert found[0][written].tolist() == [1, 2, 3, 3, 3]
    assert torch.all(found[~made.mask] == 0)
