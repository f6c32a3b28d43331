"""What a rollout correction, or a bound on age, takes from a batch: named where it does, and only there."""

import numpy as np
import pandas as pd
import pytest

from sorl.diagnosis.causes.correction import correction_shrinks, stale_discard_bias
from sorl.diagnosis.diagnose import diagnose
from studies.correction_and_resume import dropped, weighed
from tests.diagnosis.logs import AT, healthy, log


def scaled(*scale, gap=0.01, **run):
    step = pd.DataFrame({"step": range(len(scale)), "correction_scale": scale})
    minibatch = pd.DataFrame({"step": range(len(scale)), "mismatch": gap})
    return log({"step": step, "minibatch": minibatch}, **run)


def test_weights_of_sequences_on_forty_turns_shrink_the_batch_although_tokens_agree():
    clue = correction_shrinks.clue(log(weighed(0, "tis, sequence", 40, 0.06)))
    assert (clue.grade, clue.step) == ("sign", 0)
    assert "although each token's is near 1" in clue.says
    assert clue.evidence[0].value < 0.3


@pytest.mark.parametrize("kind", ["tis", "mis", "icepop", "mis, geometric mean"])
def test_weights_of_tokens_shrink_nothing_on_as_many_turns(kind):
    assert correction_shrinks.clue(log(weighed(0, kind, 40, 0.1))) is None


def test_short_sequences_and_single_steps_are_no_shrinking():
    assert correction_shrinks.clue(log(weighed(0, "tis, sequence", 8, 0.05))) is None
    assert correction_shrinks.clue(scaled(1, 1, 0.1, 0.1, 1, 1, 1)) is None
    assert correction_shrinks.clue(scaled(1, 1, 0.51, 0.51, 0.51, 0.51)) is None


def test_the_shrinking_begins_where_it_lasts_and_says_how_much():
    clue = correction_shrinks.clue(scaled(1, 1, 0.1, 1, 0.25, 0.25, 0.25, 0.25))
    assert (clue.step, clue.severity) == (4, None)
    assert "4.0 times less" in clue.says


def test_one_logged_step_is_enough_as_nemo_rl_logs_it():
    step = pd.DataFrame({"step": [1], "sampling_importance_ratio": [0.0596]})
    clue = correction_shrinks.clue(log({"step": step}))
    assert clue.evidence[0].column == "step.sampling_importance_ratio"
    assert "16.8 times less" in clue.says


def test_where_sampler_and_trainer_really_differ_it_is_a_pattern():
    assert correction_shrinks.clue(scaled(*[0.1] * 6, gap=0.4)).grade == "pattern"


def test_it_is_critical_only_where_the_run_learned_nothing():
    assert correction_shrinks.clue(scaled(*[0.1] * 6, outcome="no_learning")).severity == "critical"
    assert correction_shrinks.clue(scaled(*[0.1] * 6, outcome="healthy")).severity is None


def test_long_trajectories_that_keep_least_are_told():
    tables = weighed(0, "tis, sequence", 40, 0.06)
    rows = pd.DataFrame({"step": np.repeat(range(12), 32), "trajectory": np.tile(range(32), 12)})
    rows["n_tokens"] = 100 * (1 + rows["trajectory"])
    rows["correction_mean"] = 10 / rows["n_tokens"]
    assert (
        "the longest third of the trajectories keeps"
        in correction_shrinks.clue(log(tables | {"trajectory": rows})).says
    )


def test_of_our_own_runs_without_a_correction_the_question_does_not_arise():
    said = diagnose(log(healthy()), [correction_shrinks])
    assert not said.findings
    assert not said.unanswered
    logged = pd.DataFrame({"step": range(20), "reward": 0.5})
    assert diagnose(log({"step": logged}), [correction_shrinks]).unanswered


@pytest.mark.parametrize("by", ["rows by chance", "groups by chance", "rows by reward, of any age"])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_dropped_by_chance_or_on_purpose_is_no_bias(by, seed):
    assert stale_discard_bias.clue(log(dropped(seed, by, 0.2))) is None


@pytest.mark.parametrize(
    ("by", "words"), [("long rows", "tokens where the kept have"), ("failed rows", "a reward of")]
)
def test_what_is_dropped_as_too_old_is_compared_with_the_kept(by, words):
    clue = stale_discard_bias.clue(log(dropped(0, by, 0.2)))
    assert words in clue.says
    assert "within a prompt group" in clue.says


def test_groups_that_were_dropped_as_a_whole_are_compared_within_a_step():
    clue = stale_discard_bias.clue(log(dropped(1, "long groups", 0.25)))
    assert "within a step" in clue.says


def test_a_mask_that_silences_the_long_ones_is_a_bias_as_well():
    tables = healthy()
    rows = tables["trajectory"]
    rows["correction_mean"] = np.where((rows["step"] >= AT) & (rows["n_turns"] > 4), 0.0, 1.0)
    clue = stale_discard_bias.clue(log(tables))
    assert "the mask of the correction" in clue.says
    assert clue.step == AT


def test_few_dropped_rows_and_unmeasured_ones_say_nothing():
    tables = dropped(1, "long rows", 0.01)
    assert stale_discard_bias.clue(log(tables)) is None
    tables = dropped(1, "long rows", 0.2)
    rows = tables["trajectory"]
    rows.loc[rows["advantage"].isna(), "n_tokens"] = np.nan  # sampling of a dump left them out
    assert stale_discard_bias.clue(log(tables)) is None
