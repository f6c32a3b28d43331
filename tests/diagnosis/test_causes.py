"""Each cause is found where it was planted, from the step on at which it was, and not in a healthy log."""

import numpy as np
import pandas as pd
import pytest

from sorl.audit import Check
from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.log import SIGNALS
from sorl.learn.faults import FAULTS
from tests.diagnosis.logs import AT, ROWS, STEPS, healthy, log, tokens

TAGS = ("</search>", "<answer>", "</answer>", "</think>")


def late(table, column, value, since=AT, until=STEPS):
    """Plant a value in a column from a step on (up to another), or what a function makes of those rows."""

    def plant(tables):
        frame = tables[table]
        rows = frame["step"].between(since, until)
        frame.loc[rows, column] = value(frame[rows]) if callable(value) else value
        if column == "reward":
            groups = frame.groupby(["step", "prompt_group"])
            frame["advantage"] = frame["reward"] - groups["reward"].transform("mean")

    return plant


def rewritten(**columns):
    """Plant in the transcripts from step AT on what functions of a transcript make of its columns."""

    def plant(tables):
        rows = tables["token"].to_dict("records")
        for row in (row for row in rows if row["step"] >= AT):
            row.update({name: of(row) for name, of in columns.items()})
        tables["token"] = pd.DataFrame(rows)

    return plant


def scored(behaviour):
    """Plant log-probs of the sampler from step AT on."""
    return lambda tables: tokens(tables, lambda t, old, draw: behaviour(t, old, draw) if t >= AT else old)


def every(*planters):
    def plant(tables):
        for planter in planters:
            planter(tables)

    return plant


def tempered(t, old, draw):
    p = np.exp(old)
    heat = 1.4
    return np.log(p ** (1 / heat) / (p ** (1 / heat) + (1 - p) ** (1 / heat)))


def one_token(tables):
    updates = tables["minibatch"]
    updates.loc[2 * AT, ["mismatch", "mismatch_max"]] = [12.0 / updates["tokens"][2 * AT], 12.0]
    ids = {"step": AT, "trajectory": [0, 3, 3], "turn_index": [1, 1, 2]}
    tables["turn"] = pd.DataFrame(ids | {"mismatch": [1e-7, 1e-7, 1.3]})


def repeated(tables):
    tables["step"].loc[AT, "batch_hash"] = 1000 + AT - 1


def shrunken(tables):
    weight = np.where(tables["step"]["step"] < AT, 0.98, 0.06)
    tables["step"]["correction_scale"] = weight


def long_ones_dropped(tables):
    rows = tables["trajectory"]
    rows["rollout_step"] = rows["step"]
    is_dropped = (rows["step"] >= AT) & (rows["n_turns"] > 4) & (rows["trajectory"] % 2 == 0)
    rows.loc[is_dropped, "advantage"] = np.nan
    rows.loc[is_dropped, "rollout_step"] -= 9


def set_back(tables):
    """Three steps whose questions are those of the three before a resume."""
    rows = tables["trajectory"]
    again = rows["step"].between(AT, AT + 2)
    names = (rows["step"] - 3).astype(str) + "-" + rows["prompt_group"].astype(str)
    rows.loc[again, "question"] = "q" + names[again]
    resumed = {"step": AT, "kind": "resumed", "severity": "info", "message": "the same command"}
    tables["event"] = pd.DataFrame([resumed])


def without_critic(tables):
    del tables["minibatch"]["value_loss"]


def shuffled(rows):
    order = np.random.default_rng(3).permutation(ROWS)
    return rows["advantage"].to_numpy().reshape(-1, ROWS)[:, order].ravel()


def by_lot(rows):
    wrong = np.random.default_rng(5).uniform(size=len(rows)) < 0.3
    return np.where(wrong, 1.0 - rows["success"], rows["success"])


def cut_at_two_turns(tables):
    rows = tables["trajectory"]
    long = (rows["step"] >= AT) & (rows["n_turns"] > 2)
    rows.loc[long, ["n_turns", "n_tokens", "n_searches", "n_observation_tokens"]] = [2, 18, 2, 28]
    rows.loc[long, "ended"] = "max_turns"
    rows.loc[long, "answer"] = None
    tables["step"]["truncated_frac"] = (rows["ended"] != "answer").groupby(rows["step"]).mean().to_numpy()


def flagged(tables):
    late("step", "token_mismatches", 3)(tables)
    message = "3 trained trajectories are not what was sampled, first in trajectory 5, turn 2"
    tables["event"] = pd.DataFrame({"step": [AT], "kind": ["guard_token_identity"], "message": [message]})


def leaks(inside):
    """The mask covers what stands inside <information>, or the prompt but for its first token."""

    def leaky(row):
        first = row["trained"].index(True)
        return [m or (i > first if inside else 0 < i < first) for i, m in enumerate(row["trained"])]

    return every(rewritten(trained=leaky), flagged)


def paid_by_the_row_before(tables):
    moved = (
        tables["trajectory"].groupby("step")["success"].transform(lambda part: np.roll(part.to_numpy(), 1))
    )
    late("trajectory", "reward", lambda rows: moved.astype(float)[rows.index])(tables)


def words(row):
    """The transcript with other words between the tags of its observations."""
    read = (
        (i >= 6 and not trained) and "information" not in word for i, (word, trained) in enumerate(_seen(row))
    )
    return [
        f"other{i}" if other else word for i, (word, other) in enumerate(zip(row["token"], read, strict=True))
    ]


def _seen(row):
    return zip(row["token"], row["trained"], strict=True)


def doubled(row):
    return [2.0 * x for x in row["log_prob_behaviour"]]


def rerouted(share, nats=0.015):
    """Of a mixture: from AT on this share of the sampler's experts are others, and log-probs differ by
    `nats`.
    """
    return every(
        scored(lambda t, old, draw: old + draw.normal(0, nats, 40)),
        lambda tables: tables["minibatch"].insert(0, "route_mismatch_frac", 0.0),
        late("minibatch", "route_mismatch_frac", share),
    )


PLANTED = {
    "stale_weights": scored(lambda t, old, draw: old + draw.normal(0, 0.02 * (t - AT + 1), 40)),
    "temperature": scored(tempered),
    "low_precision": scored(lambda t, old, draw: old + draw.normal(0, 0.01, 40)),
    "temperature_hidden": rewritten(log_prob_old=doubled, log_prob_behaviour=doubled),
    "route_mismatch": rerouted(0.25),
    "observation_leak": leaks(inside=True),
    "prompt_leak": leaks(inside=False),
    "padding_leak": every(flagged, late("minibatch", "tokens", lambda rows: rows["tokens"] + 70)),
    "turn_shift": every(rewritten(trained=lambda row: [False, *row["trained"][:-1]]), flagged),
    "retokenised": flagged,
    "retriever_junk": rewritten(token=words),
    "turn_cut": every(
        rewritten(
            trained=lambda row: [m and w not in TAGS and i % 20 != 19 for i, (w, m) in enumerate(_seen(row))]
        ),
        late("step", "valid_action_frac", 0.1),
    ),
    "reward_shifted": paid_by_the_row_before,
    "staleness": late("step", "staleness", lambda rows: rows["step"] - AT + 1.0),
    "batch_reused": repeated,
    "inconsistent_record": rewritten(trained=lambda row: [*row["trained"], True]),
    "corrupt_log_prob": one_token,
    "wrong_groups": every(without_critic, late("trajectory", "advantage", shuffled)),
    "reward_format": late("trajectory", "reward", lambda rows: rows["answer"].notna().astype(float)),
    "reward_inverted": late("trajectory", "reward", lambda rows: 1.0 - rows["success"]),
    "reward_noise": late("trajectory", "reward", by_lot),
    "retriever_empty": late("trajectory", "n_observation_tokens", lambda rows: 2 * rows["n_searches"]),
    "retriever_failing": late("step", "retrieval_failed_frac", 0.5),
    "retriever_slow": late("step", "seconds_retrieval", 2.0),
    "truncated": cut_at_two_turns,
    "learning_rate": late("minibatch", "lr", 1.0),
    "clipping_off": late("minibatch", "grad_norm_after", 3.0),
    "critic_diverges": every(late("minibatch", "value_loss", 3.0), late("step", "explained_variance", -4.0)),
    "reference_wrong": late("step", "kl_ref", lambda rows: 0.4 + 0.001 * rows["step"]),
    "entropy_bonus": late("step", "entropy", lambda rows: 0.2 + 0.1 * (rows["step"] - AT + 1)),
    "not_finite": late("minibatch", "non_finite", 1.0),
    "correction_shrinks": shrunken,
    "stale_discard_bias": long_ones_dropped,
    "resume_skip": set_back,
}
OF_LOGS = {"zero_gradient", "unscaled_gradient"}  # test_scalars.py
DYNAMICS = {"off_policy", "step_size"}  # they explain a collapse: test_collapse.py
FALLBACK = {"not_sampled"}  # where no transcripts were kept
# test_gap.py
OF_OTHER_TRAINERS = {"version_lag", "sync_never_lands", "truncated_sampling", "other_tokens", "part_differs"}


def planted(*planters, seed=0):
    """The tables of a healthy run with causes, by their names, or whatever else is planted."""
    tables = healthy(seed)
    every(*(PLANTED.get(one, one) for one in planters))(tables)
    return tables


def names(tables, settings=None, **run):
    return [f.cause.name for f in diagnose(log(tables, settings, **run)).findings]


def test_every_cause_is_planted_here_or_explains_a_collapse_and_has_the_name_of_its_fault():
    known = {cause.name for cause in CAUSES if not cause.scalar}  # the others: test_scalars.py
    assert set(PLANTED) | DYNAMICS | FALLBACK | OF_OTHER_TRAINERS | OF_LOGS == known
    assert set(FAULTS) <= known


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_found_in_a_healthy_log(seed):
    assert names(healthy(seed), outcome="healthy") == []


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("seed", range(2))
def test_a_planted_cause_is_named_first_and_dated(name, seed):
    found = diagnose(log(planted(name, seed=seed))).findings
    assert found, "nothing was found"
    assert found[0].cause.name == name
    assert AT <= found[0].clue.step <= AT + 2
    assert found[0].clue.says
    if name == "corrupt_log_prob":
        assert (found[0].clue.trajectory, found[0].clue.turn) == (3, 2)


@pytest.mark.parametrize("name", PLANTED)
def test_a_cause_whose_columns_are_not_logged_is_unanswered_and_not_denied(name):
    tables = planted(name)
    cause = next(cause for cause in CAUSES if cause.name == name)
    for needed in cause.needs:
        for table, column in (name.split(".") for name in SIGNALS.get(needed, (needed,))):
            tables[table] = tables[table].drop(columns=column, errors="ignore")
        said = diagnose(log(tables), [cause])
        assert not said.findings
        assert needed in said.unanswered.get(name, ()) or not cause.arises(log(tables))


def recomputed(**gaps):
    return [
        Check(identity, 15, gap=gap, tolerance=1.0, logged=gap, expected=0.0)
        for identity, gap in gaps.items()
    ]


@pytest.mark.parametrize(
    ("name", "broken"), [("reference_wrong", "reference_log_probs"), ("temperature_hidden", "sampling")]
)
def test_an_audit_proves_the_cause_that_is_the_violation_of_an_identity(name, broken):
    checks = recomputed(behaviour_log_probs=0.0, **{broken: 9.0})
    (found,) = diagnose(log(healthy()), checks=checks).findings
    assert (found.cause.name, found.clue.grade, found.clue.step) == (name, "proof", 15)
    assert broken in found.clue.says
    seen = diagnose(log(planted(name)), checks=checks).findings[0]
    assert (seen.cause.name, seen.clue.grade) == (name, "proof")
    assert AT <= seen.clue.step <= AT + 2  # what the log shows earlier still dates it
    del (tables := healthy())["step"]["kl_ref"], tables["token"]["entropy"]
    said = diagnose(log(tables), checks=checks)
    assert [f.cause.name for f in said.findings] == [name]
    assert name not in said.unanswered


def test_tokens_of_log_probs_that_are_not_the_policys_prove_no_hidden_temperature():
    (found,) = diagnose(log(healthy()), checks=recomputed(behaviour_log_probs=9.0, sampling=9.0)).findings
    assert found.cause.name == "audit.behaviour_log_probs"
    assert found.clue.says.endswith("; violated too: `sampling`")
    # not checked has not passed
    (found,) = diagnose(log(healthy()), checks=recomputed(sampling=9.0)).findings
    assert found.cause.name == "audit.sampling"


def test_the_label_of_an_injected_fault_cannot_be_read():
    assert not [key for key in log({}, {"fault.kind": "mask", "fault.at_step": 3}).settings if "fault" in key]


def test_without_transcripts_the_broken_identity_is_named_all_the_same():
    tables = planted("turn_shift")
    del tables["token"]
    found = diagnose(log(tables)).findings[0]
    assert (found.cause.name, found.clue.trajectory, found.clue.turn) == ("not_sampled", 5, 2)


@pytest.mark.parametrize("nats", [0.01, 0.2])
def test_routes_that_differ_no_more_than_the_log_probs_are_no_fault_of_the_routers(nats):
    assert "route_mismatch" not in names(planted(rerouted(3 * nats, nats)))


def rounded(tables):
    # from the first step on: it never agreed
    tokens(tables, lambda t, old, draw: old + draw.normal(0, 0.01, 40))


# of two updates a step
TURN_BY_TURN = {"learn.epochs": 1, "learn.minibatches": 1, "learn.old_log_prob": "rollout"}


@pytest.mark.parametrize(
    ("planter", "cause", "plain", "asked"),
    [
        ("reward_noise", "reward_noise", {}, {"world.reward": "f1"}),
        ("wrong_groups", "wrong_groups", {}, {"slots.kl.kind": "reward"}),
        (rounded, "low_precision", {}, {"engine.dtype": "bfloat16"}),  # and not called stale
        (rounded, "low_precision", {}, {"compute.dtype": "bfloat16"}),
        (
            late("minibatch", "mismatch_max", 3.0, 1),
            "corrupt_log_prob",
            TURN_BY_TURN | {"learn.epochs": 2},
            TURN_BY_TURN,
        ),
    ],
)
def test_what_the_settings_ask_for_is_no_fault_and_is_one_where_they_do_not(planter, cause, plain, asked):
    assert names(planted(planter), plain) == [cause]
    assert not names(planted(planter), asked)


def test_a_critic_may_give_equal_rewards_different_advantages():
    assert not names(planted("wrong_groups", late("minibatch", "value_loss", 0.1, 0)))


@pytest.mark.parametrize(
    "since",
    [late("step", "kl_k3", 0.3), late("step", "kl_ref", 0.02, AT + 5, AT + 5)],
    ids=["the policy has moved as far", "near again: it was a batch"],
)
def test_a_distance_that_the_policy_or_a_batch_explains_is_no_wrong_reference(since):
    assert "reference_wrong" not in names(planted("reference_wrong", since))


@pytest.mark.parametrize(("distance", "found"), [(0.0, False), (0.3, True)])
def test_what_the_first_step_has_moved_is_no_wrong_reference(distance, found):
    tables = planted(late("step", "kl_ref", 0.15, 0, 0))
    tables["minibatch"]["kl_ref"] = [distance, 0.3] * STEPS
    assert ("reference_wrong" in names(tables)) is found


def test_a_question_that_a_batch_has_twice_has_two_groups_of_its_own():
    tables = planted(without_critic)
    rows = tables["trajectory"]
    since = rows["step"] >= AT
    # the question of the group before, drawn once more
    again = since & rows["prompt_group"].isin(range(1, 12, 2))
    rows.loc[again, "question"] = (
        "q" + rows["step"].astype(str) + "-" + (rows["prompt_group"] - 1).astype(str)
    )
    assert rows[since].groupby(["step", "question"]).size().max() == 4
    assert "wrong_groups" not in names(tables)


@pytest.mark.parametrize(("moved", "found"), [(10.0, False), (0.01, True)])
def test_entropy_of_a_policy_that_updates_carried_away_says_nothing_of_what_was_drawn(moved, found):
    tables = planted("temperature_hidden")
    rows = tables["token"]
    away = np.where(rows["step"] >= AT, moved, 0.0)
    rows["log_prob"] = [
        list(np.subtract(x, a)) for x, a in zip(rows["log_prob_behaviour"], away, strict=True)
    ]
    assert ("temperature_hidden" in names(tables)) is found


@pytest.mark.parametrize(("kept", "found"), [(1, False), (2, True)])
def test_a_transcript_that_was_kept_for_its_gradient_says_nothing_of_what_was_drawn(kept, found):
    assert ("temperature_hidden" in names(planted("temperature_hidden"), {"record.tokens": kept})) is found


@pytest.mark.parametrize("name", ["temperature", "turn_cut", "retriever_junk"])
def test_a_transcript_that_no_update_trained_on_is_left_out_and_the_others_are_looked_at(name):
    tables = planted(name)
    rows = tables["token"]
    first = rows.index[rows["step"] == AT][0]
    for column in set(rows.columns) - {"step", "trajectory"}:
        rows[column] = rows[column].astype(object)
        rows.at[first, column] = pd.NA  # as the database hands over a missing list
    assert name in names(tables)


def test_what_the_policy_learned_since_the_rollout_is_no_disagreement_with_the_sampler():
    """Rollouts are stale and scored again before the step: single tokens have moved, most have not."""
    tables = planted(
        late("step", "staleness", 4.0, 1),
        late("minibatch", "mismatch", lambda rows: 0.01 * rows["step"], 1),
        late("minibatch", "mismatch_max", 3.0, 1),
    )
    said = diagnose(log(tables, {"learn.old_log_prob": "update", "learn.staleness": 4}))
    assert not said.findings
    for cause in ("stale_weights", "temperature", "low_precision", "corrupt_log_prob"):
        assert said.unanswered[cause] == ["the trainer's log-probs of the policy that sampled"]
    assert diagnose(log({"token": tables["token"], "step": tables["step"]})).unanswered
    assert names(tables, {"learn.old_log_prob": "rollout", "learn.staleness": 4}) == ["corrupt_log_prob"]


def rarer(displaced=0.0, critic=True):
    """A log whose tokens with a positive advantage become rarer, by what updates displaced or by what was
    drawn.
    """
    tables = healthy() if critic else planted(without_critic)
    updates = tables["minibatch"]
    rare = np.where(updates["step"] >= AT, -0.65, -0.15)
    tables["minibatch"] = updates.assign(log_prob_positive=rare, displacement_positive=displaced)
    return tables


def test_updates_that_leave_their_data_behind_are_no_hidden_temperature():
    assert "temperature_hidden" in names(rarer())
    assert "temperature_hidden" not in names(rarer(np.repeat(np.where(np.arange(24) >= AT, -0.5, 0.0), 2)))


@pytest.mark.parametrize("found", [True, False])
def test_only_what_comes_before_a_collapse_is_certain_can_be_its_reason(found):
    detection = AT + 2 if found else AT - 2
    said = names(rarer(critic=False), outcome="collapsed", collapse_step=AT - 6, detection_step=detection)
    assert ("temperature_hidden" in said) is found


@pytest.mark.parametrize("critic", [True, False])
def test_what_a_critic_finds_better_than_expected_was_not_rewarded_once_success_is_gone(critic):
    tables = rarer(critic=critic)  # without one, advantages of a group: above its mean is rewarded
    late("step", "success", 0.0)(tables)
    assert ("temperature_hidden" in names(tables)) is not critic
