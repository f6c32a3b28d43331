"""Names of metrics: known by their words, given with --map, or only candidates."""

import json
from pathlib import Path

import pytest

from sorl.importing.logs import Imported, sources
from sorl.importing.mapping import AS_LOGGED, NameMap
from sorl.importing.names import place
from sorl.spec import InputError

STEPS = 30


def log_of(folder: Path, *metrics: str, scale: float = 1.0) -> Path:
    """A log in which every metric rises to `scale`."""
    rows = [dict.fromkeys(metrics, scale * (step + 1) / STEPS) for step in range(STEPS)]
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def read_run(path: Path, mapping: NameMap = AS_LOGGED) -> Imported:
    return next(sources(path, mapping=mapping)[0].runs())


@pytest.mark.parametrize(
    ("metric", "column"),
    [
        ("Performance/train_win_rate_percent", "step.success"),
        ("Loss/policy", "minibatch.policy_loss"),
        ("charts/episodic_return", "step.reward"),
        ("rollout/ep_rew_mean", "step.reward"),
        ("losses/approx_kl", "step.approx_kl"),
        ("train/clip_fraction", "step.clip_frac"),
        ("mean_training_reward", "step.reward"),
        ("meanReward", "step.reward"),
        ("eval/mean_reward", "step.heldout_success"),
        ("pass@1", "step.success"),
        ("mean_completion_tokens", "step.response_tokens"),
        ("objective/scores", "step.reward"),
    ],
)
def test_the_words_of_a_name_decide(metric: str, column: str) -> None:
    known = place(metric)
    assert known is not None
    assert known[0] == column


@pytest.mark.parametrize(
    "metric",
    ["pass@8", "reward_max", "token_accuracy", "gsm8k/reward", "value_score", "step:1 - reward", "loss"],
)
def test_names_of_other_things_decide_nothing(metric: str) -> None:
    assert place(metric) is None


def test_a_given_name_comes_before_a_known_one(tmp_path: Path) -> None:
    run = read_run(log_of(tmp_path, "reward", "mine", "iter_no"), NameMap.of(["reward=mine"]))
    assert run.read == {"step.reward": "mine"}
    assert run.reading.reward_metric == "mine"


def test_the_step_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("tick,step,reward\n" + "\n".join(f"{10 * n},{n // 2},0.5" for n in range(STEPS)))
    run = read_run(path, NameMap.of(["step=tick"]))
    assert run.steps[-1] == 10 * (STEPS - 1)


def test_a_column_may_be_given_with_its_table_or_without(tmp_path: Path) -> None:
    path = log_of(tmp_path, "a", "b", "c")
    run = read_run(path, NameMap.of(["step.kl_ref=a", "response_tokens=b", "lr = c"]))
    assert run.read == {"step.kl_ref": "a", "step.response_tokens": "b", "minibatch.lr": "c"}


def test_a_given_name_is_found_in_a_table_within_a_text(tmp_path: Path) -> None:
    path = tmp_path / "console.txt"
    rows = "\n".join(f"| {n} | {n / 30:.3f} |" for n in range(STEPS))
    path.write_text(f"Starting the run now\n| tick | zork |\n|---|---|\n{rows}\n")
    assert read_run(path, NameMap.of(["reward=zork", "step=tick"])).read == {"step.reward": "zork"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rewrad=a", "did you mean 'reward'"),
        ("reward", "is no COLUMN=NAME"),
        ("=a", "is no COLUMN=NAME"),
        ("reward=", "is no COLUMN=NAME"),
    ],
)
def test_a_map_of_another_form_is_refused(words: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        NameMap.of([words])


def test_an_unknown_metric_is_refused_with_the_nearest_and_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"did you mean 'zork'\?.*it has: zork, other"):
        read_run(log_of(tmp_path, "zork", "other"), NameMap.of(["reward=zonk"]))


def test_a_log_without_a_reward_names_what_may_be_it(tmp_path: Path) -> None:
    run = read_run(log_of(tmp_path, "loss", "zork_score_x"))
    assert run.reading.candidates["step.reward"] == ("zork_score_x",)
    assert (
        "no reward found; candidates: zork_score_x. To use one: --map reward=zork_score_x"
        in run.reading.notes
    )


def test_a_log_of_unknown_names_is_read_and_names_its_metrics(tmp_path: Path) -> None:
    run = read_run(log_of(tmp_path, "zork", "blip"))
    assert set(run.kept) == {"zork", "blip"}
    assert "no reward found; the metrics are: zork, blip" in run.reading.notes


def test_a_log_without_a_series_of_numbers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"name": "a", "zork": 1}\n{"name": "b", "zork": null}\n')
    with pytest.raises(InputError, match="no metric that is known here"):
        read_run(path)


def test_a_percentage_becomes_a_share(tmp_path: Path) -> None:
    run = read_run(log_of(tmp_path, "Performance/train_win_rate_percent", scale=80.0))
    assert run.tables["step"]["success"].max() == pytest.approx(0.8)
    assert "Performance/train_win_rate_percent: a percentage, read as a share of 1" in run.reading.notes


def test_a_share_that_is_called_a_percentage_stays(tmp_path: Path) -> None:
    run = read_run(log_of(tmp_path, "win_rate_percent", scale=0.8))
    assert run.tables["step"]["success"].max() == pytest.approx(0.8)


def test_an_entropy_that_is_logged_as_a_loss_changes_its_sign(tmp_path: Path) -> None:
    run = read_run(log_of(tmp_path, "train/entropy_loss", scale=-2.0))
    assert run.tables["step"]["entropy"].max() == pytest.approx(2.0)
