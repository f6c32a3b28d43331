"""What is kept of how a log was read."""

import json
from pathlib import Path

from sorl.importing.logs import read
from sorl.spec.reading import Reading


def test_a_reading_survives_json() -> None:
    reading = Reading(
        rows=3,
        left_out=1,
        warnings=("w",),
        trainer="verl",
        reward_metric="critic/score/mean",
        options={"slots.kl.beta": ("use_kl_loss", False), "learn.policy.lr": ("actor.optim.lr", 1e-6)},
        candidates={"step.entropy": ("my_entropy",)},
    )
    assert Reading.from_json(reading.to_json()) == reading


def test_a_reading_of_an_older_version_is_loaded() -> None:
    older = {"rows": 3, "left_out": 0, "warnings": [], "notes": []}
    assert Reading.from_json(json.dumps(older)) == Reading(3, 0)


def test_a_reading_with_a_table_of_another_kind_is_none() -> None:
    wrong = {"rows": 3, "left_out": 0, "warnings": [], "notes": [], "options": [1], "candidates": 3}
    assert Reading.from_json(json.dumps(wrong)) is None


def write_log(path: Path, **metrics: float) -> Path:
    rows = [json.dumps({"step": step} | metrics) for step in range(30)]
    path.write_text("\n".join(rows))
    return path


def test_a_run_keeps_its_reward_and_the_options_of_its_trainer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"actor_rollout_ref": {"actor": {"use_kl_loss": False, "kl_loss_coef": 0.1, "optim": {"lr": 2}}}}
        )
    )
    reading = read(write_log(tmp_path / "a.jsonl", **{"critic/score/mean": 0.5})).reading
    assert reading is not None
    assert reading.trainer == "verl"
    assert reading.reward_metric == "critic/score/mean"
    assert reading.options["learn.policy.lr"] == ("actor_rollout_ref.actor.optim.lr", 2)
    assert reading.options["slots.kl.beta"] == ("actor_rollout_ref.actor.use_kl_loss", False)


def test_columns_that_are_not_read_have_candidates(tmp_path: Path) -> None:
    metrics = {"reward": 0.5, "agent_mean_entropy_nats": 1.0, "my_kl_estimate": 0.1, "entropy_std": 1.0}
    reading = read(write_log(tmp_path / "a.jsonl", **metrics)).reading
    assert reading is not None
    assert reading.candidates == {
        "step.entropy": ("agent_mean_entropy_nats",),
        "step.kl_ref": ("my_kl_estimate",),
    }
