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
from workbench.learn.rollouts import Rollout, Sampler
from workbench.objective.select import DynamicSampling, KeepAll, Select
from workbench.spec import RunSettings

SETTINGS = RunSettings.model_validate(TINY | {"learn": {"episodes": 16, "minibatches": 2}})


@dataclass
class Scripted:
    """An engine whose draw n has both outcomes in the groups `mixed[n]`, and no success in the others."""

    mixed: list[set[int]]
    asked: list[list[int]] = field(default_factory=list)

    def rollout(self, world: Any, questions: Any, groups: list[int], stream: Any) -> list[Episode]:
        mixed = self.mixed[len(self.asked)]
        self.asked.append([q.id for q in questions])
        found = []
        for i, (question, group) in enumerate(zip(questions, groups, strict=True)):
            success = i % 2 == 0 and group in mixed
            found.append(Episode(
                question_id=question.id, group=group, tokens=[1, 2], written=[False, True], log_prob=[0.0, -1.0],
                prompt_length=1, question="", gold="", answer=None, reward=float(success), success=success,
                ended="answer", turns=1, searches=0, valid_turns=1, stretches=[[1], [2]],
            ))  # fmt: skip
        return found


def drawn(mixed: list[set[int]], select: Select = DynamicSampling(), number: int = 3) -> tuple[Rollout, Scripted]:
    engine: Any = Scripted(mixed)
    return Sampler(SETTINGS, Facts(SETTINGS.world), engine, 4, select, Fault(SETTINGS)).rollout(number, 3), engine


def test_a_rollout_is_one_draw_without_a_rule_and_where_every_group_has_both_outcomes():
    for rollout, engine in (drawn([set()], KeepAll()), drawn([{0, 1, 2, 3}])):
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
    rewards, group = (torch.tensor([getattr(e, name) for e in rollout.episodes]) for name in ("reward", "group"))
    assert select.keep(rewards, group).tolist() == [True] * 8 + [False] * 8


def test_a_sentence_ends_at_its_mark_and_with_its_turn():
    tokenizer = build_tokenizer()
    stop, word = tokenizer.convert_tokens_to_ids(["?", "alice"])
    made, _ = synthetic(1, len(tokenizer))
    tokens = torch.full_like(made.tokens, word)
    written = made.mask[0].nonzero().flatten()
    tokens[0, written[0]] = stop
    found = Sentences(tokenizer).of(replace(made, tokens=tokens))
    assert torch.equal(found[1:], made.turn[1:]), "a turn without a mark is one sentence"
    assert found[0][written].tolist() == [1, 2, 3, 3, 3]
    assert torch.all(found[~made.mask] == 0)
