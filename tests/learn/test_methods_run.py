"""Methods whose rules need something of the rollout, trained end to end: the trainer gives it to them."""

import numpy as np
import pytest

from sorl.store import batches
from tests.learn.tiny import rows

NEEDS = {
    "gigpo": "advantages",
    "a-3po": "staleness",
    "a2tgpo": "turn_score",
    "mt-grpo": "turn_reward",
    "otb": "squared_probs",
    "simpletir": "void",
}
GROUPS = {"episodes": 16, "group_size": 4, "minibatches": 2, "staleness": 2}


@pytest.mark.parametrize("name", NEEDS)
def test_a_run_has_what_its_algorithm_reads_and_keeps_it(trained, name):
    folder = trained(algorithm=name, learn=GROUPS, iterations=3)
    assert rows(folder, "run")["status"].iloc[-1] == "finished"
    stored = batches.read(folder, 2)
    kept = getattr(stored, NEEDS[name])
    if name == "a-3po":
        assert kept.tolist() == [2] * 16
        return
    assert (kept[~stored.mask_sampled] == 0).all()
    for row, turn in zip(kept, stored.turn, strict=True):
        for k in range(1, turn.max() + 1):
            assert name == "otb" or len(np.unique(row[turn == k])) == 1, "one value a turn"


def test_the_learning_rate_of_vcpo_falls_with_the_effective_sample_size(trained):
    fresh = {"episodes": 16, "group_size": 4, "staleness": 0, "epochs": 1, "minibatches": 1}
    scheduled = rows(trained(algorithm="grpo", learn=fresh, iterations=2), "minibatch")["lr"]
    on_policy = rows(trained(algorithm="vcpo", learn=fresh, iterations=2), "minibatch")["lr"]
    stale = rows(trained(algorithm="vcpo", learn=GROUPS, iterations=4), "minibatch")["lr"]
    assert (on_policy > 0.95 * scheduled.iloc[0]).all()
    assert (stale <= scheduled.iloc[0] * (1 + 1e-9)).all()
    assert stale.iloc[-1] < 0.95 * scheduled.iloc[0]


def test_the_averaged_policy_of_ppo_ewma_follows_the_policy(trained):
    told = rows(trained(algorithm="ppo-ewma", learn=GROUPS, iterations=3), "minibatch")
    assert told["log_ratio_abs_max"].iloc[0] == pytest.approx(0, abs=1e-5), "before the first update"
    assert (told["log_ratio_abs_max"].iloc[1:] > 1e-5).all()
