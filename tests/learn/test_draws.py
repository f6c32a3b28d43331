"""Rollouts that are drawn again until their prompt groups disagree, and the sentences of what was written."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.learn.tiny import TINY
from workbench.agent.episode import Episode
from workbench.agent.tokenizer import Sentences, build_tokenizer
from workbench.agent.worlds.facts import Facts
from workbench.learn.checks import synthetic
from workbench.learn.faults import Fault
from workbench.learn.rollouts import Sampler
from workbench.objective.select import DynamicSampling, KeepAll
from workbench.spec import RunSettings

SETTINGS = RunSettings.model_validate(TINY | {"learn": {"episodes": 16, "minibatches": 2}})


@dataclass
class Scripted:
    """An engine whose group g of draw n succeeds as told: both outcomes, or the same for all."""

    mixed: list[set[int]]
    asked: list[list[int]] = field(default_factory=list)

    def rollout(self, world: Any, questions: Any, groups: list[int], stream: Any) -> list[Any]:
        self.asked.append([q.id for q in questions])
        mixed = self.mixed[len(self.asked) - 1]
        return [
            self._episode(q, g, i % 2 == 0 and g in mixed)
            for i, (q, g) in enumerate(zip(questions, groups, strict=True))
        ]

    def _episode(self, question: Any, group: int, success: bool) -> Episode:
        return Episode(
            question_id=question.id, group=group, tokens=[1, 2], written=[False, True], log_prob=[0.0, -1.0],
            prompt_length=1, question="", gold="", answer=None, reward=float(success), success=success,
            ended="answer", turns=1, searches=0, valid_turns=1, stretches=[[1], [2]],
        )  # fmt: skip


def sampler(engine: Scripted, select: Any) -> Sampler:
    return Sampler(SETTINGS, Facts(SETTINGS.world), engine, 4, select, Fault(SETTINGS))  # type: ignore[arg-type]


def test_without_a_rule_a_rollout_is_one_draw():
    engine = Scripted([set()])
    rollout = sampler(engine, KeepAll()).rollout(3, 3)
    assert (len(engine.asked), rollout.sampled, rollout.rejected) == (1, 16, None)
    assert rollout.first is rollout.episodes


def test_groups_without_a_signal_are_replaced_by_groups_of_further_questions():
    engine = Scripted([{0, 2}, {1, 2, 3}])
    rollout = sampler(engine, DynamicSampling()).rollout(3, 3)
    first, second = engine.asked
    assert not set(first) & set(second), "further questions are others"
    assert [e.question_id for e in rollout.first] == first, "the first draw is kept for what is measured"
    assert [e.question_id for e in rollout.episodes] == [*first[:4], *first[8:12], *second[4:12]]
    assert [e.group for e in rollout.episodes] == [i // 4 for i in range(16)]
    assert [e.group for e in rollout.first] == [i // 4 for i in range(16)]
    assert rollout.sampled == 32


def test_what_the_last_draw_could_not_replace_stays_and_is_not_trained_on():
    engine = Scripted([{0}, set(), set(), {3}])
    select = DynamicSampling(tries=4)
    rollout = sampler(engine, select).rollout(0, 0)
    assert rollout.sampled == 64
    rewards = torch.tensor([e.reward for e in rollout.episodes])
    kept = select.keep(rewards, torch.tensor([e.group for e in rollout.episodes]))
    assert kept.tolist() == [True] * 8 + [False] * 8


def test_a_rollout_is_the_same_whenever_it_is_drawn():
    engines = [Scripted([{0}, {1, 2, 3}]) for _ in range(2)]
    a, b = (sampler(engine, DynamicSampling()).rollout(5, 2) for engine in engines)
    assert engines[0].asked == engines[1].asked
    assert a.episodes == b.episodes


def test_a_full_first_draw_is_taken_as_it_is():
    engine = Scripted([{0, 1, 2, 3}])
    rollout = sampler(engine, DynamicSampling()).rollout(0, 0)
    assert (rollout.sampled, rollout.rejected) == (16, None)


def test_a_sentence_ends_at_its_mark_and_with_its_turn():
    tokenizer = build_tokenizer()
    stop, word = tokenizer.convert_tokens_to_ids(["?", "alice"])
    made = synthetic(1, len(tokenizer)).batch
    tokens = torch.full_like(made.tokens, word)
    written = made.mask[0].nonzero().flatten()
    tokens[0, written[0]] = stop
    found = Sentences(tokenizer).of(replace(made, tokens=tokens))
    turn = made.turn
    assert torch.equal(found[1:], turn[1:]), "a turn without a mark is one sentence"
    assert found[0][written].tolist() == [1, 2, 3, 3, 3]
    assert torch.all(found[~made.mask] == 0)
