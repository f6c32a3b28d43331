"""Logs of other trainers as tables of ours: what their names and settings mean, and their diagnosis."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.report import text
from sorl.importing import logs, names
from sorl.importing.logs import imported, log_of, read
from sorl.importing.rows import Rows
from sorl.measures import CATALOGUE
from sorl.recording.segments import schema_of
from sorl.spec import TABLES, InputError, RunSettings
from sorl.spec.files import leaves

STEPS = 60


def verl() -> list[dict[str, float]]:
    """A run that learns, whose gradient leaps at step 40 and whose score then falls to nothing."""
    draw = np.random.default_rng(0)
    return [
        {
            "training/global_step": step,
            "critic/score/mean": 0.02 if step > 40 else 0.2 + 0.01 * step + draw.normal(0, 0.01),
            "actor/grad_norm": 40.0 if step in (40, 41) else 0.4 + draw.uniform(0, 0.1),
            "actor/entropy": 0.8 - 0.005 * step,
            "actor/ppo_kl": 0.001,
            "actor/pg_clipfrac": 0.01,
            "perf/throughput": 900.0,
        }
        for step in range(1, STEPS + 1)
    ]


WRITE: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "json": lambda frame, path: path.write_text(json.dumps({"log_history": frame.to_dict("records")})),
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path),
}


@pytest.mark.parametrize("kind", WRITE)
@pytest.mark.parametrize("named", [True, False])
def test_a_log_in_any_kind_of_file_gets_the_same_diagnosis_whatever_it_is_called(tmp_path, kind, named):
    path = tmp_path / (f"log.{kind}" if named else "log")
    WRITE[kind](pd.DataFrame(verl()), path)
    said = diagnose(read(path))
    assert said.log.onset == 40
    assert said.log.run["outcome"] == "collapsed"
    assert (said.findings[0].cause.name, said.findings[0].clue.step) == ("step_size", 40)
    assert "stale_weights" in said.unanswered


LINES = '{"step": 1, "reward": 0.5, "entropy": 0.75}\n{"step": 2, "reward": 0.25, "entropy": 0.5}\n'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("comma.csv", "step,reward,entropy\n1,0.5,0.75\n2,0.25,0.5\n"),
        ("semicolon.csv", "step;reward;entropy\n1;0,5;0,75\n2;0,25;0,5\n"),
        ("semicolon_and_point.csv", "step;reward;entropy\n1;0.5;0.75\n2;0.25;0.5\n"),
        ("tab.csv", "step\treward\tentropy\n1\t0.5\t0.75\n2\t0.25\t0.5\n"),
        ("tab.tsv", "step\treward\tentropy\n1\t0.5\t0.75\n2\t0.25\t0.5\n"),
        ("nested.jsonl", LINES.replace(' "reward', ' "data": {"reward').replace("}", "}}")),
        ("cut_off.jsonl", LINES + '{"step": 3, "entr'),
        ("lines.jsonl", LINES),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_log_is_read_whatever_parts_its_cells_nested_cut_off_by_a_kill_and_in_utf_16(
    tmp_path, name, text, encoding
):
    (tmp_path / name).write_bytes(text.encode(encoding))
    log = read(tmp_path / name)
    assert log.series("step", "success").to_dict() == {1: 0.5, 2: 0.25}
    assert log.series("step", "entropy").to_dict() == {1: 0.75, 2: 0.5}


def test_of_a_log_of_too_many_steps_every_so_many_th_is_read_and_its_name_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "STEPS", 500)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"step": {i}, "entropy": {i / 8}}}\n' for i in range(501)))
    log = read(path)
    assert log.series("step", "entropy").head(3).to_dict() == {0: 0.0, 2: 0.25, 4: 0.5}
    assert log.name == "log.jsonl (one in 2 of its 501 steps)"


def test_a_nan_is_counted_in_its_step_and_named_but_not_where_a_table_is_padded_with_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.jsonl"
    rows = [{"step": i, "reward": 0.5, "grad_norm": "nan" if i > 20 else 0.3} for i in range(30)]
    path.write_text(
        "".join(
            json.dumps(row | {"eval_reward": 0.5 if i % 5 == 4 else "nan"}) + "\n"
            for i, row in enumerate(rows)
        )
    )
    found = diagnose(read(path)).findings
    assert [(f.cause.name, f.clue.step) for f in found] == [("not_finite", 21)]
    rows[21:] = []
    path.write_text("".join(json.dumps(row | {"eval_reward": "nan"}) + "\n" for row in rows))
    assert not diagnose(read(path)).findings


def test_a_nan_is_an_event_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "reward": 0.5, "kl": 1}\n{"step": 2, "reward": 0.5, "kl": NaN}\n')
    assert read(path).events("non_finite")[["step", "diagnostic"]].to_numpy().tolist() == [[2, "kl_ref"]]


def test_every_name_leads_to_one_column_that_exists() -> None:
    declared = {f"{d.table}.{d.name}" for d in CATALOGUE} | {
        f"{t.name}.{c.name}" for t in TABLES for c in t.columns
    }
    assert set(names.NAMES) <= declared
    for column, known in names.NAMES.items():
        assert {names.place(name.replace("*", "x"))[0] for name in known} == {column}


# As the trainers write them, with the prefixes of their trackers.
LOGGED = {
    "minibatch.policy_loss": "actor/pg_loss@sum",
    "step.kl_ref": "train/kl",
    "step.response_tokens": "train/completions/mean_length",
    "minibatch.value_loss": "train/critic_loss",
    "step.entropy": "policy/policy_entropy ppo_actor/update/entropy/avg",
    "step.clip_frac": "policy/loss_metrics/clip_ratio",
    "minibatch.mismatch": "policy/rollout_train_logprobs_abs_diff_mean",
    "minibatch.lr": "train/lr-pg_0",
    "minibatch.grad_norm": "ppo_actor/update/grad_norm",
    "step.reward": "ppo_actor/task_reward/avg",
    "step.heldout_success": (
        "eval-rollout/task_reward/avg eval/math500/all/solver/avg@8 "
        "val-core/openai/gsm8k/reward/mean@1 val/test_score/nq val-env/sokoban/success eval/eval_math_pass1"
    ),
    "step.turns": "train/agg/all/solver/num_turns/mean",
    "step.truncated_frac": "train/wiki-search/all/solver/is_truncated/mean",
    "step.failed_group_frac": "env/all/by_group/frac_all_bad",
    "step.solved_group_frac": "batch/solver/fractions/too_easy",
    "step.out_of_range_frac": "actor/ppo_ratio_clipfrac@sum",
    None: (
        "eval/loss eval_runtime val-core/openai/gsm8k/reward/best@8/mean response_length/max "
        "train/baseline_reward/pct_1 reward_std/max"
    ),
}


@pytest.mark.parametrize(("column", "metrics"), LOGGED.items())
def test_a_metric_is_known_by_the_name_that_its_trainer_gives_it(column: str | None, metrics: str) -> None:
    for metric in metrics.split():
        found = names.place(metric)
        assert (found and found[0]) == column, metric


def test_of_several_names_of_a_column_the_first_of_the_table_counts_in_any_order() -> None:
    for metrics in (["actor/entropy_loss", "actor/entropy"], ["actor/entropy", "actor/entropy_loss"]):
        assert names.chosen(metrics) == {"step.entropy": "actor/entropy"}
    assert names.chosen(["rollout/raw_reward", "eval/aime"])["step.heldout_success"] == "eval/aime"
    assert "step.heldout_success" not in names.chosen(["reward", "eval/aime"])


def test_unknown_metrics_keep_their_names_and_parts_of_the_reward_are_told() -> None:
    row = {
        "step": 1,
        "reward": 1,
        "step.entropy": 2,
        "rewards/format_reward/mean": 3,
        "perf/MFU": 4,
        "perf MFU": 5,
    }
    row |= {"kl=ref": 6, "<script>alert(1)</script>": 7, "9 lives": 8, "step.run_id": 9, "字": 1}
    run = imported(Rows("log").extend([row]), {})
    assert run.read == {"step.reward": "reward", "step.entropy": "step.entropy"}
    assert [*run.kept] == [
        "reward_part_format_reward",
        "perf_mfu",
        "perf_mfu_2",
        "kl_ref_2",
        "script_alert_1_script",
        "_9_lives",
        "step_run_id",
        "metric",
    ]


def test_of_a_kl_that_trl_may_have_weighted_by_the_ratio_the_import_says_so() -> None:
    rows = [{"step": 1, "reward": 1, "kl": 0.1, "frac_reward_zero_std": 0}]
    for config, said in (({}, True), ({"args.use_bias_correction_kl": "False"}, False)):
        run = imported(Rows("log").extend(rows), config)
        assert run.read["step.kl_ref"] == "kl"
        remark = run.reading.remarks.get("step.kl_ref", "")
        assert remark.startswith("kl: recent TRL weights each token of it") is said
    assert not imported(Rows("log").extend([{"kl": 0.1}]), {}).reading.remarks


def test_nan_that_never_ends_is_told_also_of_a_short_log_and_of_a_metric_without_a_column() -> None:
    rows = [{"step": i, "reward": 0.1, "loss": 0.1, "advantages_mean": "nan"} for i in range(3)]
    rows += [{"step": i, "reward": 0.1, "loss": "nan", "advantages_mean": "nan"} for i in (3, 4)]
    found = imported(Rows("log").extend(rows), {}).reading.not_finite
    assert [(part.metric, part.count, part.first_step) for part in found] == [
        ("advantages_mean", 5, 0),
        ("loss", 2, 3),
    ]


def test_a_metric_that_a_table_was_padded_with_is_not_told_as_nan() -> None:
    rows = [{"step": i, "reward": 0.1, "loss": "nan" if i < 3 else 0.1, "eval/x": "nan"} for i in range(9)]
    assert not imported(Rows("log").extend(rows), {}).reading.not_finite


def test_the_success_rate_that_is_judged_is_named_and_not_the_reward() -> None:
    rows = [{"step": i, "env/reward": 0.1 * i, "env/success_once": 0.5} for i in range(20)]
    said = text(diagnose(log_of(imported(Rows("log").extend(rows), {}), Path("log"))))
    assert "success rate: env/success_once): " in said
    assert "the success rate is 0.5" in said
    assert "reward: env/reward" not in said


def test_rows_without_a_step_are_said_to_be_numbered() -> None:
    rows = [{"reward": 0.1 * i} for i in range(20)]
    said = text(diagnose(log_of(imported(Rows("log").extend(rows), {}), Path("log"))))
    assert "20 rows, numbered 0 to 19" in said
    assert "steps 0 to 19, reward" not in said


def test_a_name_with_a_space_is_quoted_in_the_option_that_maps_it() -> None:
    rows = [{"step": i, "reward": 0.1 * i, "Seq. Length": 100} for i in range(20)]
    said = text(diagnose(log_of(imported(Rows("log").extend(rows), {}), Path("log"))))
    assert "--map 'response_tokens=Seq. Length'" in said


def test_the_error_of_sampler_and_trainer_is_no_kl_to_the_reference() -> None:
    for metric in ("gen_kl_error", "Generation KL Error"):
        place = names.place(metric)
        assert place is not None
        assert place[0] == "step.mismatch_kl"


@given(st.lists(st.text(), unique=True, max_size=30))
def test_columns_of_unknown_metrics_never_meet(metrics: list[str]) -> None:
    taken = [*schema_of("step").names]
    for metric in metrics:
        taken.append(names.own_column(metric, taken))
    assert len({name.lower() for name in taken}) == len(taken)
    assert all(name.replace("_", "a").isalnum() and name.isascii() for name in taken)


def test_of_very_many_unknown_metrics_the_first_are_kept_and_the_rest_is_told(monkeypatch: Any) -> None:
    monkeypatch.setattr(logs, "KEPT", 2)
    run = imported(Rows("log").extend([{"reward": 1, "a": 1, "b": 1, "c": 1}]), {})
    assert (list(run.kept), run.left) == (["a", "b"], ["c"])


CONFIGURED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "learning_rate": 1e-6,
            "max_grad_norm": 0.2,
            "beta": 0.04,
            "num_generations": 8,
            "num_iterations": 2,
            "lr_scheduler_type": "cosine",
            "warmup_ratio": 0.1,
            "epsilon": 0.2,
            "epsilon_high": 0.28,
            "max_steps": -1,
            "seed": 3,
        },
        {
            "learn.policy.lr": 1e-6,
            "learn.policy.max_grad_norm": 0.2,
            "slots.kl.beta": 0.04,
            "learn.group_size": 8,
            "learn.epochs": 2,
            "learn.policy.schedule": "cosine",
            "learn.policy.warmup_share": 0.1,
            "slots.clip.low": 0.2,
            "slots.clip.high": 0.28,
            "seed": 3,
        },
    ),
    (
        {
            "actor_rollout_ref": {
                "actor": {
                    "optim": {"lr": 1e-6},
                    "grad_clip": 1.0,
                    "use_kl_loss": False,
                    "kl_loss_coef": 0.5,
                    "clip_ratio": 0.2,
                },
                "rollout": {"n": 5},
            },
            "critic": {"optim": {"lr": 1e-5}},
            "algorithm": {"kl_ctrl": {"kl_coef": 0.001}, "use_kl_in_reward": True},
            "data": {"max_response_length": 512},
        },
        {
            "learn.policy.lr": 1e-6,
            "learn.policy.max_grad_norm": 1.0,
            "slots.kl.beta": 0.001,
            "slots.clip.low": 0.2,
            "slots.clip.high": 0.2,
            "learn.group_size": 5,
            "learn.critic.lr": 1e-5,
            "world.max_response_tokens": 512,
        },
    ),
    (
        {"use_kl_loss": False, "kl_loss_coef": 0.1, "clip_grad": 0.0},
        {"slots.kl.beta": 0.0, "learn.policy.max_grad_norm": None},
    ),
    (
        {"max_grad_norm": "None", "learning_rate": "1e-06", "max_head_offpolicyness": "4"},
        {"learn.policy.max_grad_norm": None, "learn.policy.lr": 1e-6, "learn.staleness": 4},
    ),
    ({"learning_rate": [1, 2], "seed": {"a": 1}, "beta": "x" * 999}, {"slots.kl.beta": "x" * 200}),
]


@pytest.mark.parametrize(("config", "settings"), CONFIGURED)
def test_a_configuration_is_told_in_settings_of_ours(
    config: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert names.settings(dict(leaves(config))) == settings


def test_settings_that_we_have_too_have_our_names() -> None:
    ours = {key for key, _ in leaves(RunSettings().model_dump(), ("slots",))} | {*RunSettings.model_fields}
    only_theirs = {
        "learn.policy.schedule",
        "learn.policy.warmup_steps",
        "learn.policy.warmup_share",
        "world.max_response_tokens",
        "slots.clip.low",
        "slots.clip.high",
        "slots.kl.beta",
    }
    assert set(names.SETTINGS) - ours == only_theirs


def test_of_a_folder_every_log_is_read_and_what_is_none_is_left_out(tmp_path: Path) -> None:
    for name in ("a.jsonl", "deep/er/b.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("step,reward\n1,1\n" if name.endswith("csv") else '{"reward": 1}\n')
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("hello")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert [source.path.name for source in logs.sources(tmp_path)] == ["a.jsonl", "b.csv"]
    with pytest.raises(InputError, match="holds no known log"):
        logs.sources(empty)


def test_of_the_checkpoints_of_trl_the_last_has_the_log(tmp_path: Path) -> None:
    for step in (5, 10):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        rows = [{"step": i, "reward": 1.0} for i in range(step)]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows, "max_steps": 20}))
    (source,) = logs.sources(tmp_path)
    (run,) = source.runs()
    assert (run.name, len(run.steps), run.settings) == (tmp_path.name, 10, {"iterations": 20})
