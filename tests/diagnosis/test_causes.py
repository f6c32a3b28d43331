"""Each cause is found where it was planted, from the step on at which it was, and not in a healthy log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.diagnosis.logs import AT, ROWS, healthy, log, tokens
from workbench.diagnosis.causes import CAUSES
from workbench.diagnosis.diagnose import diagnose
from workbench.learn.faults.declared import KINDS

Tables = dict[str, pd.DataFrame]


def since(tables: Tables, table: str, column: str, value: object) -> None:
    frame = tables[table]
    late = frame["step"] >= AT
    frame.loc[late, column] = value(frame[late]) if callable(value) else value
    if column == "reward":
        frame["advantage"] = frame["reward"] - frame.groupby(["step", "prompt_group"])["reward"].transform("mean")


def stale(tables: Tables) -> None:
    tokens(tables, lambda t, old, draw: old + (draw.normal(0, 0.02 * (t - AT + 1), 40) if t >= AT else 0.0))


def flatter(tables: Tables) -> None:
    def tempered(t: int, old: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        p, heat = np.exp(old), 1.4
        return np.log(p ** (1 / heat) / (p ** (1 / heat) + (1 - p) ** (1 / heat))) if t >= AT else old

    tokens(tables, tempered)


def rounded(tables: Tables) -> None:
    tokens(tables, lambda t, old, draw: old + (draw.normal(0, 0.01, 40) if t >= AT else 0.0))


def one_token(tables: Tables) -> None:
    updates = tables["minibatch"]
    updates.loc[2 * AT, ["mismatch", "mismatch_max"]] = [12.0 / updates["tokens"][2 * AT], 12.0]
    tables["turn"] = pd.DataFrame(
        {"step": AT, "trajectory": [0, 3, 3], "turn_index": [1, 1, 2], "mismatch": [1e-7, 1e-7, 1.3]}
    )


def repeated(tables: Tables) -> None:
    tables["step"].loc[AT, "batch_hash"] = 1000 + AT - 1


def other_group(tables: Tables) -> None:
    tables["minibatch"] = tables["minibatch"].drop(columns="value_loss")
    late = tables["trajectory"]["step"] >= AT
    shuffled = np.random.default_rng(3).permutation(ROWS)
    rows = tables["trajectory"].loc[late, "advantage"].to_numpy().reshape(-1, ROWS)
    tables["trajectory"].loc[late, "advantage"] = rows[:, shuffled].ravel()


def pays_by_lot(tables: Tables) -> None:
    draw = np.random.default_rng(5)
    since(
        tables, "trajectory", "reward",
        lambda rows: np.where(draw.uniform(size=len(rows)) < 0.3, 1.0 - rows["success"], rows["success"]),
    )  # fmt: skip


def cut_at_two_turns(tables: Tables) -> None:
    rows = tables["trajectory"]
    long = (rows["step"] >= AT) & (rows["n_turns"] > 2)
    rows.loc[long, ["n_turns", "n_tokens", "n_searches", "n_observation_tokens"]] = [2, 18, 2, 28]
    rows.loc[long, "ended"], rows.loc[long, "answer"] = "max_turns", None
    tables["step"]["truncated_frac"] = (rows["ended"] != "answer").groupby(rows["step"]).mean().to_numpy()


def worse_critic(tables: Tables) -> None:
    since(tables, "minibatch", "value_loss", lambda rows: 3.0 + 0 * rows["step"])
    since(tables, "step", "explained_variance", -4.0)


def rewritten(tables: Tables, change: Callable[[dict[str, list[object]]], None]) -> None:
    """Change the transcripts from step AT on."""
    rows = tables["token"].to_dict("records")
    for row in rows:
        if row["step"] >= AT:
            change(row)
    tables["token"] = pd.DataFrame(rows)


def flagged(tables: Tables) -> None:
    since(tables, "step", "token_mismatches", 3)
    tables["event"] = pd.DataFrame(
        {
            "step": [AT], "kind": ["guard_token_identity"],
            "message": ["3 trained trajectories are not what was sampled, first in trajectory 5, turn 2"],
        }
    )  # fmt: skip


def leaks(inside: bool) -> Callable[[Tables], None]:
    """The mask covers what stands inside <information>, or the prompt but for its first token."""

    def plant(tables: Tables) -> None:
        def change(row: dict[str, list[object]]) -> None:
            first = row["trained"].index(True)
            row["trained"] = [m or (i > first if inside else 0 < i < first) for i, m in enumerate(row["trained"])]

        rewritten(tables, change)
        flagged(tables)

    return plant


def shifted(tables: Tables) -> None:
    rewritten(tables, lambda row: row.update(trained=[False, *row["trained"][:-1]]))
    flagged(tables)


def padded(tables: Tables) -> None:
    flagged(tables)
    since(tables, "minibatch", "tokens", lambda rows: rows["tokens"] + 70)


def drawn_hotter(tables: Tables) -> None:
    def change(row: dict[str, list[object]]) -> None:
        hotter = [2.0 * x for x in row["log_prob_behaviour"]]
        row.update(log_prob_behaviour=hotter, log_prob_old=hotter)

    rewritten(tables, change)


def off_topic(tables: Tables) -> None:
    def change(row: dict[str, list[object]]) -> None:
        inside, words = False, []
        for word in row["token"]:
            inside = (inside or word == "<information>") and word != "</information>"
            words.append(f"other{len(words)}" if inside and word != "<information>" else word)
        row["token"] = words

    rewritten(tables, change)


def short_turns(tables: Tables) -> None:
    def change(row: dict[str, list[object]]) -> None:
        row["trained"] = [m and word not in ("</search>", "<answer>", "</answer>", "</think>")
                          for m, word in zip(row["trained"], row["token"], strict=True)]  # fmt: skip
        row["trained"] = [m and (i % 20 != 19) for i, m in enumerate(row["trained"])]

    rewritten(tables, change)
    since(tables, "step", "valid_action_frac", 0.1)


def paid_by_the_row_before(tables: Tables) -> None:
    rows = tables["trajectory"]
    moved = rows.groupby("step")["success"].transform(lambda part: np.roll(part.to_numpy(), 1)).astype(float)
    since(tables, "trajectory", "reward", lambda late: moved[late.index])


PLANTED: dict[str, Callable[[Tables], None]] = {
    "stale_weights": stale,
    "temperature": flatter,
    "low_precision": rounded,
    "temperature_hidden": drawn_hotter,
    "observation_leak": leaks(inside=True),
    "prompt_leak": leaks(inside=False),
    "padding_leak": padded,
    "turn_shift": shifted,
    "retokenised": flagged,
    "retriever_junk": off_topic,
    "turn_cut": short_turns,
    "reward_shifted": paid_by_the_row_before,
    "staleness": lambda tables: since(tables, "step", "staleness", lambda rows: rows["step"] - AT + 1.0),
    "batch_reused": repeated,
    "corrupt_log_prob": one_token,
    "wrong_groups": other_group,
    "reward_format": lambda t: since(t, "trajectory", "reward", lambda rows: rows["answer"].notna().astype(float)),
    "reward_inverted": lambda t: since(t, "trajectory", "reward", lambda rows: 1.0 - rows["success"]),
    "reward_noise": pays_by_lot,
    "retriever_empty": lambda t: since(t, "trajectory", "n_observation_tokens", lambda rows: 2 * rows["n_searches"]),
    "retriever_failing": lambda tables: since(tables, "step", "retrieval_failed_frac", 0.5),
    "retriever_slow": lambda tables: since(tables, "step", "seconds_retrieval", 2.0),
    "truncated": cut_at_two_turns,
    "learning_rate": lambda tables: since(tables, "minibatch", "lr", 1.0),
    "clipping_off": lambda tables: since(tables, "minibatch", "grad_norm_after", 3.0),
    "critic_diverges": worse_critic,
    "reference_wrong": lambda t: since(t, "step", "kl_ref", lambda rows: 0.4 + 0.001 * rows["step"]),
    "entropy_bonus": lambda t: since(t, "step", "entropy", lambda rows: 0.2 + 0.1 * (rows["step"] - AT + 1)),
    "not_finite": lambda tables: since(tables, "minibatch", "non_finite", 1.0),
}
DYNAMICS = {"off_policy", "step_size"}  # they explain a collapse: test_collapse.py
FALLBACK = {"not_sampled"}  # where no transcripts were kept


def names(tables: dict[str, pd.DataFrame], settings: dict[str, Any] | None = None, **run: Any) -> list[str]:
    return [f.cause.name for f in diagnose(log(tables, settings, **run)).findings]


def test_every_cause_is_planted_here_or_explains_a_collapse_and_has_the_name_of_its_fault() -> None:
    known = {cause.name for cause in CAUSES}
    assert set(PLANTED) | DYNAMICS | FALLBACK == known
    assert {kind.name for kind in KINDS} <= known


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_found_in_a_healthy_log(seed: int) -> None:
    assert names(healthy(seed), outcome="healthy") == []


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("seed", range(2))
def test_a_planted_cause_is_named_first_and_dated(name: str, seed: int) -> None:
    tables = healthy(seed)
    PLANTED[name](tables)
    found = diagnose(log(tables)).findings
    assert found, "nothing was found"
    assert found[0].cause.name == name
    assert AT <= found[0].clue.step <= AT + 2
    assert found[0].clue.says
    if name == "corrupt_log_prob":
        assert (found[0].clue.trajectory, found[0].clue.turn) == (3, 2)


@pytest.mark.parametrize("name", PLANTED)
def test_a_cause_whose_columns_are_not_logged_is_unanswered_and_not_denied(name: str) -> None:
    tables = healthy()
    PLANTED[name](tables)
    cause = next(cause for cause in CAUSES if cause.name == name)
    for needed in cause.needs:
        table, column = needed.split(".")
        tables[table] = tables[table].drop(columns=column)
        said = diagnose(log(tables), [cause])
        assert not said.findings
        assert needed in said.unanswered[name]


def test_the_label_of_an_injected_fault_cannot_be_read() -> None:
    assert not [key for key in log({}, {"fault.kind": "mask", "fault.at_step": 3}).settings if "fault" in key]


def test_without_transcripts_the_broken_identity_is_named_all_the_same() -> None:
    tables = healthy()
    shifted(tables)
    del tables["token"]
    found = diagnose(log(tables)).findings[0]
    assert (found.cause.name, found.clue.trajectory, found.clue.turn) == ("not_sampled", 5, 2)


def test_a_graded_reward_is_no_wrong_reward() -> None:
    tables = healthy()
    pays_by_lot(tables)
    assert not names(tables, {"world.reward": "f1"})


def test_a_bf16_sampler_that_never_agreed_is_not_called_stale_and_not_blamed_where_it_was_asked_for() -> None:
    tables = healthy()
    tokens(tables, lambda t, old, draw: old + draw.normal(0, 0.01, 40))
    assert names(tables) == ["low_precision"]
    assert not names(tables, {"engine.dtype": "bfloat16"})


def test_a_critic_may_give_equal_rewards_different_advantages() -> None:
    tables = healthy()
    losses = tables["minibatch"]["value_loss"]
    other_group(tables)
    tables["minibatch"]["value_loss"] = losses
    assert not diagnose(log(tables)).findings


def test_a_question_that_a_batch_has_twice_has_two_groups_of_its_own() -> None:
    tables = healthy()
    tables["minibatch"] = tables["minibatch"].drop(columns="value_loss")
    rows = tables["trajectory"]
    late = rows["step"] >= AT
    again = late & rows["prompt_group"].isin(range(1, 12, 2))  # the question of the group before, drawn once more
    rows.loc[again, "question"] = "q" + rows["step"].astype(str) + "-" + (rows["prompt_group"] - 1).astype(str)
    assert rows[late].groupby(["step", "question"]).size().max() == 4
    assert "wrong_groups" not in names(tables)


def test_updates_that_leave_their_data_behind_are_no_hidden_temperature() -> None:
    tables = healthy()
    for displaced, found in ((np.where(tables["minibatch"]["step"] >= AT, -0.5, 0.0), False), (0.0, True)):
        rarer(tables, displaced)
        assert ("temperature_hidden" in names(tables)) is found


def test_entropy_of_a_policy_that_updates_carried_away_says_nothing_of_what_was_drawn() -> None:
    for moved, told in ((10.0, False), (0.01, True)):
        tables = healthy()
        drawn_hotter(tables)
        rows = tables["token"].to_dict("records")
        for row in rows:
            away = moved if row["step"] >= AT else 0.0
            row["log_prob"] = [x - away for x in row["log_prob_behaviour"]]
        tables["token"] = pd.DataFrame(rows)
        assert ("temperature_hidden" in names(tables)) is told


def test_a_transcript_that_no_update_trained_on_is_left_out_and_the_others_are_looked_at() -> None:
    for defect in ("temperature", "turn_cut", "retriever_junk"):
        tables = healthy()
        PLANTED[defect](tables)
        rows = tables["token"]
        first = rows.index[rows["step"] == AT][0]
        for column in set(rows.columns) - {"step", "trajectory"}:
            rows[column] = rows[column].astype(object)
            rows.at[first, column] = pd.NA  # as the database hands over a missing list
        assert defect in names(tables)


def test_what_the_policy_learned_since_the_rollout_is_no_disagreement_with_the_sampler() -> None:
    """Rollouts are stale and scored again before the step: single tokens have moved, most have not."""
    tables = healthy()
    stale = tables["step"]["step"] > 0
    tables["step"]["staleness"] = stale * 4.0
    updates = tables["minibatch"]
    late = updates["step"] > 0
    updates.loc[late, "mismatch"] = 0.01 * updates.loc[late, "step"]
    updates.loc[late, "mismatch_max"] = 3.0
    said = diagnose(log(tables, {"learn.old_log_prob": "update", "learn.staleness": 4}))
    assert not said.findings
    for cause in ("stale_weights", "temperature", "low_precision", "corrupt_log_prob"):
        assert said.unanswered[cause] == ["the trainer's log-probs of the policy that sampled"]
    assert diagnose(log({"token": tables["token"], "step": tables["step"]})).unanswered
    assert names(tables, {"learn.old_log_prob": "rollout", "learn.staleness": 4}) == ["corrupt_log_prob"]


def rarer(tables: Tables, displaced: object = 0.0) -> None:
    """Tokens with a positive advantage become rarer, by what the updates displaced or by what was drawn."""
    updates = tables["minibatch"]
    rare = np.where(updates["step"] >= AT, -0.65, -0.15)
    tables["minibatch"] = updates.assign(log_prob_positive=rare, displacement_positive=displaced)


def test_only_what_comes_before_a_collapse_is_certain_can_be_its_reason() -> None:
    tables = healthy()
    rarer(tables)
    del tables["minibatch"]["value_loss"]
    told = {"outcome": "collapsed", "collapse_step": AT - 6, "detection_step": AT - 2}
    assert "temperature_hidden" in names(tables)
    assert "temperature_hidden" not in names(tables, **told)
    assert "temperature_hidden" in names(tables, **(told | {"detection_step": AT + 2}))


def test_what_a_critic_finds_better_than_expected_was_not_rewarded_once_success_is_gone() -> None:
    tables = healthy()
    rarer(tables)
    assert "temperature_hidden" in names(tables)
    tables["step"].loc[tables["step"]["step"] >= AT, "success"] = 0.0
    assert "temperature_hidden" not in names(tables)
    del tables["minibatch"]["value_loss"]  # advantages of a group: above its mean is rewarded
    assert "temperature_hidden" in names(tables)


def test_a_spike_says_on_which_side_of_the_onset_it_is() -> None:
    tables = healthy()
    tables["minibatch"].loc[tables["minibatch"]["step"] == AT, "grad_norm"] = 40.0
    for onset, words in ((AT - 2, "2 steps after the onset"), (AT + 1, "1 steps before the onset")):
        told = {"outcome": "collapsed", "collapse_step": onset, "detection_step": AT + 4}
        said = diagnose(log(tables, {"learn.policy.max_grad_norm": None}, **told))
        (spike,) = [f.clue.says for f in said.findings if f.cause.name == "step_size"]
        assert words in spike
