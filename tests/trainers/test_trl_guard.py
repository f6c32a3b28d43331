"""`guard(trainer, changes)`: weights, optimizer and schedule come back, with one change; what cannot is
refused.
"""

from types import SimpleNamespace

import pytest
import torch

from sorl.spec import InputError
from sorl.trainers.trl_guard import Guard, guard

RUINED_AT = 40
UPDATES = 90


class Trainer:
    """What the guard needs of a GRPOTrainer: one weight, whose distance from 1 is what the reward lacks.

    From update RUINED_AT on a learning rate that grew by `ruin` throws the weight away.
    """

    def __init__(self, ruin: float = 1.0, lr: float = 0.1) -> None:
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(self.model.weight, 0.2)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
        self.args = SimpleNamespace(world_size=1, max_grad_norm=1.0)
        self.beta = 0.04
        self.epsilon_low = self.epsilon_high = 0.2
        self.callbacks: list = []
        self.rewards: list[float] = []
        self.weights: list[float] = []
        self.ruin = ruin
        self._buffered_inputs = "completions"

    def add_callback(self, callback) -> None:
        self.callbacks.append(callback)

    def call(self, name: str, step: int, **more) -> None:
        state = SimpleNamespace(global_step=step)
        for callback in self.callbacks:
            getattr(callback, name)(self.args, state, None, **more)

    def train(self) -> "Trainer":
        torch.manual_seed(0)
        for step in range(UPDATES):
            self._step = step
            self.call("on_step_begin", step)
            self.weights.append(float(self.model.weight.detach()))
            if step == RUINED_AT and self.ruin != 1.0:
                self.lr_scheduler.base_lrs[0] *= self.ruin
                self.optimizer.param_groups[0]["lr"] *= self.ruin
            reward = max(0.0, 1.0 - abs(float(self.model.weight.detach()) - 1.0)) + 0.02 * float(
                torch.randn(())
            )
            self.rewards.append(reward)
            self.optimizer.zero_grad()
            (self.model.weight - 1.0).pow(2).sum().backward()
            self.optimizer.step()
            self.lr_scheduler.step()
            self.call("on_log", step + 1, logs={"reward": reward, "loss": 0.0})
        return self


def guarded(changes, ruin: float = 1.0, **more) -> tuple[Trainer, Guard]:
    trainer = Trainer(ruin)
    watching = guard(trainer, changes, **{"every": 5, "before": 5, **more})
    return trainer.train(), watching


def test_a_run_that_one_change_ruins_is_rolled_back_and_recovers():
    ruined = Trainer(500.0).train()
    assert sum(ruined.rewards[-10:]) / 10 < 0.3
    trainer, watching = guarded([{"learning_rate": 0.1}], ruin=500.0)
    (back,) = watching.rollbacks
    assert back.back_to <= RUINED_AT - 5 <= back.onset <= back.alarm_step
    assert sum(trainer.rewards[-10:]) / 10 > 0.9
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_a_rollback_is_an_event_of_the_recorded_run():
    said = []
    trainer = Trainer(500.0)
    trainer.sorl_recording = SimpleNamespace(say_rollback=said.append)
    watching = guard(trainer, [{"learning_rate": 0.1}], every=5, before=5)
    trainer.train()
    (back,) = watching.rollbacks
    (words,) = said
    assert words.startswith(f"rolled back at update {back.alarm_step}: ")
    assert words.endswith(f"update {back.back_to} are back, with learning_rate = 0.1 (rollback 1 of 1)")


def test_the_weights_of_that_update_are_back_to_the_last_bit():
    trainer, watching = guarded([{"learning_rate": 0.1}], ruin=500.0)
    (back,) = watching.rollbacks
    assert trainer.weights[back.alarm_step] == trainer.weights[back.back_to]
    assert trainer._buffered_inputs is None


def test_a_rollback_waits_for_the_next_completions():
    trainer = Trainer(500.0)
    trainer.args.steps_per_generation = 4
    trainer.num_iterations = 4
    watching = guard(trainer, [{"learning_rate": 0.1}], every=5, before=5)
    took_place = []
    roll_back = watching._roll_back
    watching._roll_back = lambda due: (took_place.append(trainer._step), roll_back(due))
    trainer.train()
    assert len(took_place) == 1
    assert took_place[0] % 16 == 0


def test_a_run_that_stays_up_is_left_alone():
    trainer, watching = guarded([{"learning_rate": 0.01}])
    assert watching.rollbacks == []
    assert trainer.rewards == Trainer().train().rewards
    assert trainer._buffered_inputs == "completions"


def test_every_change_stays_and_when_all_are_used_the_run_is_left_alone():
    changes = [{"learning_rate": 50.0}, {"max_grad_norm": 0.5}]
    trainer, watching = guarded(changes, ruin=500.0)
    assert [back.change for back in watching.rollbacks] == changes[: len(watching.rollbacks)]
    assert trainer.lr_scheduler.base_lrs == [50.0]


def test_snapshots_are_copies_and_the_oldest_go():
    _, watching = guarded([{"epsilon": 0.1}], keep=3)
    assert [one.step for one in watching.snapshots] == [75, 80, 85]
    values = [float(one.weights["weight"]) for one in watching.snapshots]
    assert len(set(values)) == len(values)


def test_without_a_snapshot_from_before_the_run_goes_on_and_says_so(caplog):
    _, watching = guarded([{"learning_rate": 0.1}], ruin=500.0, before=1000)
    assert watching.rollbacks == []
    assert "no snapshot is older than update" in caplog.text


@pytest.mark.parametrize(
    ("changes", "does", "says"),
    [
        ([], {}, "needs changes"),
        ([{"num_generations": 4}], {}, "cannot change 'num_generations'"),
        ([{"learning_rat": 4}], {}, "did you mean 'learning_rate'"),
        ([{"beta": 0.1}], {"beta": 0.0}, "has loaded no reference model"),
        ([{"epsilon": 0.1}], {"is_fsdp_enabled": True}, "spread over processes"),
        ([{"epsilon": 0.1}], {"args": SimpleNamespace(world_size=2)}, "works in one process"),
    ],
)
def test_what_cannot_be_put_back_or_changed_is_refused(changes, does, says):
    trainer = Trainer()
    for name, value in does.items():
        setattr(trainer, name, value)
    with pytest.raises(InputError, match=says):
        guard(trainer, changes)
