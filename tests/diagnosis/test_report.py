"""The sentences of a report on the log of another trainer: each number is computed again from the log, and no
two sentences contradict each other.
"""

import re
from collections.abc import Callable
from itertools import chain

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sorl.collapse.unsized import UnsizedWatch
from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.finding import Diagnosis
from sorl.diagnosis.log import Log
from sorl.diagnosis.rank import in_order
from sorl.diagnosis.report import as_dict, markdown, text
from sorl.diagnosis.sentences import headline
from sorl.diagnosis.trainers import trainers
from sorl.spec.reading import Reading
from tests.diagnosis.test_scalars import LOGS, SICK, SOUND, Columns, made

N = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
# A number with the steps that it is the median or mean of.
LEVEL = re.compile(
    rf"(?P<value>{N})(?P<unit> %| nats a token| tokens)? "
    rf"\((?:(?P<how>median|mean) of steps (?P<first>\d+) to (?P<last>\d+)|step (?P<only>\d+))\)"
)
# What else may be a number: steps and counts, and what is checked by a test of its own.
OTHER = re.compile(
    rf"clearly from step \d+ on|since step \d+|first in step \d+|in (?:all|the only) [\d,]+ rows?"
    rf"|[\d,]+ of (?:the last )?[\d,]+ rows|in [\d,]+ rows|99 % of all rows they are at most \d+"
    rf"|by {N} standard errors|ends {N} standard errors"
    rf"|vary by {N}|at most {N} nats|never above {N}|is {N} in all [\d,]+ rows|is {N} in"
    rf"|of groups of {N} rollouts|at least {N} %|groups of {N} are assumed"
    rf"|moves the reward by {N}|by {N}|NaN or Inf in step \d+"
    rf"|in \d+ steps the gradient norm is {N} to {N} times|is {N} nats a token in the first step"
    r"|where it should be 0"
    rf"|the gradient norm is {N} to {N}|in runs that learn it is rarely above 100"
    r"|drops after step \d+(?: \(95 %: \d+ to \d+, if it drops at once\))?; the fall is certain at step \d+"
)


def imported(columns: Columns, **reading: object) -> Log:
    """These columns as the log of another trainer, with the verdict that an import gives it."""
    steps = np.arange(len(next(iter(columns.values()))))
    tables: dict[str, pd.DataFrame] = {}
    for table in ("step", "minibatch"):
        kept = {key.split(".", 1)[1]: value for key, value in columns.items() if key.startswith(table)}
        tables[table] = pd.DataFrame({"step": steps, **kept})
    tables["step"]["success"] = tables["step"]["reward"]
    watch = UnsizedWatch()
    for step, score in zip(steps.tolist(), tables["step"]["success"].tolist(), strict=True):
        watch.step(step, {"success": score})
    fields = {"rows": len(steps), "left_out": 0, "trainer": "TRL", "reward_metric": "reward"} | reading
    return Log(
        "made",
        lambda table, step: tables.get(table, pd.DataFrame()),
        {},
        watch.verdict.columns(),
        reading=Reading(**fields),  # type: ignore[arg-type]
    )


def is_in_log(level: re.Match[str], log: Log) -> bool:
    """Whether a column of the log has this median or mean over these steps."""
    first, last = (int(level[part] or level["only"]) for part in ("first", "last"))
    value = float(level["value"].replace(",", ""))
    for table in ("step", "minibatch"):
        frame = log.table(table)
        rows = frame[(frame["step"] >= first) & (frame["step"] <= last)]
        for column in rows.columns:
            own = rows[column].to_numpy(float)
            own = own[np.isfinite(own)]
            if not len(own):
                continue
            number = float(own.mean() if level["how"] == "mean" else np.median(own))
            number *= 100 if level["unit"] == " %" else 1
            shown = f"{number:.0f}" if abs(number) >= 1000 else f"{number:.3g}"
            if float(shown) == value:
                return True
    return False


def sentences(d: Diagnosis) -> list[str]:
    return [headline(d), *(finding.clue.says for finding in d.findings)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("cause", "i"), SICK)
def test_every_number_of_a_sentence_is_computed_again_from_the_log(cause: str, i: int, seed: int) -> None:
    log = imported(made(LOGS[cause][0][i], seed, 240))
    d = diagnose(log)
    count = 0
    for sentence in sentences(d):
        for level in LEVEL.finditer(sentence):
            assert is_in_log(level, log), (level[0], sentence)
            count += 1
        rest = OTHER.sub("", LEVEL.sub("", sentence))
        rest = rest.removeprefix("made (TRL, 240 rows, steps 0 to 239, reward: reward): ")
        assert not re.search(r"\d", rest), rest
    assert count


# From which level something changes, and since when.
SINCE = re.compile(
    rf"from {N}(?: %| nats a token| tokens)? \(\w+ of steps (?P<first>\d+) to \d+\) to"
    r" [^;]*?, clearly from step (?P<since>\d+) on"
)


@pytest.mark.parametrize(("cause", "i"), SICK)
def test_a_change_is_dated_after_the_level_that_it_starts_from(cause: str, i: int) -> None:
    for seed in range(3):
        for finding in diagnose(imported(made(LOGS[cause][0][i], seed, 240))).findings:
            for match in SINCE.finditer(finding.clue.says):
                assert int(match["first"]) <= int(match["since"]), finding.clue.says


def test_a_rise_from_a_dip_is_dated_after_the_dip() -> None:
    """Entropy begins high, falls, and explodes late: the date is that of the rise from its lowest level."""
    draw = np.random.default_rng(0)
    columns = made(LOGS["entropy_explosion"][0][1])
    t = np.linspace(0, 1, 400)
    columns["step.entropy"] = 1.2 - 0.9 * np.clip(t / 0.3, 0, 1) + 2.0 * np.clip((t - 0.7) / 0.1, 0, 1)
    columns["step.entropy"] += 0.02 * draw.normal(size=400)
    (found,) = (f for f in diagnose(imported(columns)).findings if f.cause.name == "entropy_explosion")
    assert 280 <= found.clue.step <= 300


def test_a_jump_is_dated_to_its_first_step_and_not_to_the_last_before_it() -> None:
    columns = made([])
    columns["step.truncated_frac"] = np.where(np.arange(400) < 307, 0.02, 1.0)
    columns["step.reward"] = np.where(np.arange(400) < 307, 0.6, 0.0)
    (found,) = (f for f in diagnose(imported(columns)).findings if f.cause.name == "truncation")
    assert found.clue.step == 307


def test_what_holds_from_the_start_on_says_nothing_of_before_it() -> None:
    """The reward rises from the start on, and answers are cut all the time."""
    columns = made([])
    columns["step.truncated_frac"] = np.full(400, 0.9)
    (found,) = (f for f in diagnose(imported(columns)).findings if f.cause.name == "truncation")
    assert "at the start and" in found.clue.says
    assert "after that" not in found.clue.says
    assert "no clear change" not in found.clue.says


def test_one_cause_is_the_likely_one_and_the_others_are_possible() -> None:
    columns = made([*LOGS["kl_blowup"][0][1], *LOGS["grad_explosion"][0][0]])
    told = text(diagnose(imported(columns)))
    assert told.count("likely cause") == 1
    assert "possible cause" in told
    assert "No diagnostic left its usual range" not in told


def test_critical_findings_stand_before_warnings_in_every_form() -> None:
    """A part that never pays is a sure warning; groups that are all wrong are critical."""
    draw = np.random.default_rng(0)
    paid = draw.uniform(size=120) < 0.3
    columns = {
        "step.reward": 0.1 * paid,
        "step.reward_part_form": 0.1 * paid,
        "step.reward_part_words": np.zeros(120),
        "step.reward_std": 0.2 * paid,
        "step.entropy": 0.5 + 0.01 * draw.normal(size=120),
    }
    d = diagnose(imported(columns))
    severities = [finding.severity for finding in in_order(d)]
    assert severities == sorted(severities, key=["critical", "warning", "info"].index)
    assert {"critical", "warning"} <= set(severities)
    assert [one["severity"] for one in as_dict(d)["findings"]] == severities


def test_rows_without_a_spread_are_counted_as_rows_and_not_as_groups() -> None:
    spread = np.where(np.arange(60) % 4 == 0, 0.3, 0.0)
    columns = {"step.reward": np.where(spread > 0, 0.25, 0.0), "step.reward_std": spread}
    (found,) = (f for f in diagnose(imported(columns)).findings if f.cause.name == "groups_too_hard")
    assert "all rollouts have one reward in 6 of the last 8 rows" in found.clue.says
    assert "share of groups" not in found.clue.says


def test_the_least_share_of_idle_groups_says_which_size_is_assumed() -> None:
    columns = {
        "step.reward": np.full(60, 0.03) + 1e-3 * (np.arange(60) % 2),
        "step.entropy": np.full(60, 0.5),
    }
    (found,) = (f for f in diagnose(imported(columns)).findings if f.cause.name == "groups_too_hard")
    end = float(np.median(columns["step.reward"][-6:]))
    share = 100 * (end**8 + (1 - end) ** 8)
    assert f"at least {share:.3g} % then have one reward for all rollouts (groups of 8 are" in found.clue.says


def test_a_curve_of_zeros_neither_grows_nor_shrinks() -> None:
    zeros = np.zeros(50)
    columns = {
        "step.reward": zeros,
        "step.response_tokens": zeros,
        "step.kl_ref": zeros,
        "step.entropy": zeros,
        "minibatch.grad_norm": zeros,
        "minibatch.value_loss": zeros,
    }
    d = diagnose(imported(columns))
    assert [finding.cause.name for finding in d.findings] == ["groups_too_hard"]
    assert "the reward is 0 (mean of steps 0 to 11), and the same in every row" in headline(d)


def of_reward(values: np.ndarray) -> str:
    return headline(diagnose(imported({"step.reward": values})))


def test_a_change_far_beyond_its_noise_is_given_no_number_of_standard_errors() -> None:
    clean = of_reward(np.minimum(0.8, 0.2 + 0.01 * np.arange(120)))
    assert "far beyond its noise" in clean
    assert "standard errors" not in clean


def test_a_score_that_still_falls_at_its_end_is_said_to_and_one_that_fell_and_stays_is_not() -> None:
    draw = np.random.default_rng(0)
    t = np.arange(260)
    learned = 0.2 + 0.5 * np.minimum(1, t / 100)
    sinks = learned - 0.35 * np.clip((t - 200) / 60, 0, 1) + 0.05 * draw.normal(size=260)
    drops = np.where(t < 200, learned, 0.1) + 0.02 * draw.normal(size=260)
    assert of_reward(sinks).endswith(", still falling.")
    assert "falls from" in of_reward(drops)
    assert "still falling" not in of_reward(drops)


def test_a_mild_fall_says_since_when() -> None:
    draw = np.random.default_rng(0)
    t = np.arange(200)
    mild = of_reward(0.2 + 0.5 * np.minimum(1, t / 80) - 0.15 * (t > 150) + 0.03 * draw.normal(size=200))
    assert re.search(r"A mild fall: .*Its level drops after step 1(49|5\d)\b", mild)


def test_an_end_below_the_start_is_said_to_be_a_sign_of_a_fall_where_it_is_no_clear_one() -> None:
    for seed in range(20):
        draw = np.random.default_rng(seed)
        values = 0.5 - 0.002 * np.arange(60) + 0.1 * draw.normal(size=60)
        log = imported({"step.reward": values})
        gain, error = log.unsized.drift
        told = headline(diagnose(log))
        if log.run["outcome"] in ("no_learning", "no_clear_change"):
            sign = f"ends {-gain / error:.1f} standard errors lower than it began: a sign of a fall, no proof"
            assert (sign in told) == (gain < -2 * error), told


def test_a_reward_that_another_finding_doubts_is_healthy_by_its_reward_alone() -> None:
    d = diagnose(imported(made(LOGS["component_dominates"][0][1])))
    assert d.log.run["outcome"] == "healthy"
    assert "Healthy by its reward alone" in headline(d)


def test_a_run_that_fell_has_no_plateau() -> None:
    t = np.arange(300)
    draw = np.random.default_rng(1)
    reward = 0.2 + 0.5 * np.minimum(1, t / 80) - 0.3 * np.clip((t - 250) / 50, 0, 1)
    d = diagnose(imported({"step.reward": reward + 0.03 * draw.normal(size=300)}))
    assert d.log.run["outcome"] in ("mild", "collapsed")
    assert "plateau" not in {finding.cause.name for finding in d.findings}


def test_spikes_are_said_to_be_as_large_as_they_are() -> None:
    columns = made([])
    columns["minibatch.grad_norm"][[90, 180, 270]] *= 60
    (found,) = (f for f in diagnose(imported(columns)).findings if f.cause.name == "grad_spikes")
    least, most = map(float, re.findall(r"is ([\d.]+) to ([\d.]+) times", found.clue.says)[0])
    norm = pd.Series(columns["minibatch.grad_norm"])
    times = norm / norm.rolling(25, center=True, min_periods=5).median()
    largest = times.nlargest(3)
    assert (least, most) == pytest.approx((largest.min(), largest.max()), rel=0.01)


OPPOSITES = (
    ("entropy falls", "entropy rises"),
    ("answers grow", "answers shrink"),
    ("all right", "all wrong"),
    ("near the highest reward", "near the lowest reward"),
    ("the gradient norm grows", "the gradient norm from"),
    ("next to no token is clipped", "the share of tokens that are clipped"),
    ("the reward falls after that", "the reward rises all the same"),
)


@given(
    st.sampled_from(SICK + [(f"-{cause}", i) for cause, i in SOUND]), st.sampled_from(SICK), st.integers(0, 9)
)
@settings(max_examples=60, deadline=None)
def test_no_two_sentences_of_a_report_contradict_each_other(
    base: tuple[str, int], other: tuple[str, int], seed: int
) -> None:
    first = LOGS[base[0].removeprefix("-")][base[0].startswith("-")][base[1]]
    columns = made([*first], seed, 240)
    t = np.linspace(0, 1, 240)
    for change in LOGS[other[0]][0][other[1]]:
        try:
            change(columns, t, np.random.default_rng(seed))
        except KeyError:
            return  # the one took away what the other changes
    d = diagnose(imported(columns))
    for says, denies in OPPOSITES[:-1]:
        whole = " ".join(sentences(d))
        assert not (says in whole and denies in whole), (says, denies)
    whole = text(d)
    is_critical = any(finding.severity == "critical" for finding in d.findings)
    assert not (is_critical and ": Healthy: " in whole)
    assert not (d.findings and "Nothing found" in whole)
    fell = d.log.run["outcome"] in ("collapsed", "recovered", "diverged", "mild")
    assert not (fell and "Nothing found" in whole)


def test_at_most_three_findings_are_told_in_full_and_the_rest_by_name() -> None:
    columns = made([*LOGS["kl_blowup"][0][1], *LOGS["truncation"][0][0], *LOGS["entropy_explosion"][0][0]])
    for change in (*LOGS["grad_explosion"][0][0], *LOGS["length_hacking"][0][1]):
        change(columns, np.linspace(0, 1, 400), np.random.default_rng(0))
    d = diagnose(imported(columns))
    whole = text(d)
    assert len(d.findings) > 3
    assert len(re.findall(r"^\d\. ", whole, re.M)) == 3
    rest = in_order(d)[3].cause.name
    assert f"Also: {rest} (" in whole
    assert len(re.findall(r"^\d\. ", markdown(d), re.M)) == 3
    assert len(as_dict(d)["findings"]) == len(d.findings)


def test_advice_and_what_to_log_are_told_in_the_options_of_the_trainer_with_their_present_values() -> None:
    columns = made(LOGS["entropy_collapse"][0][1])
    del columns["step.kl_ref"]
    found = text(diagnose(imported(columns, options={"learn.policy.lr": ("learning_rate", 1e-6)})))
    assert "options: in TRL: epsilon_high, entropy_coef, learning_rate (1e-06 now)" in found
    assert "the KL to the reference (no_update, reference_mismatch): to log it, set beta above 0" in found
    verl = text(diagnose(imported(columns, trainer="verl")))
    assert "in verl: actor_rollout_ref.actor.clip_ratio_high, actor_rollout_ref.actor.entropy_coeff" in verl
    unknown = text(diagnose(imported(columns, trainer="")))
    assert "options:" not in unknown
    assert "trainer not known" in unknown


def test_a_metric_under_a_name_that_is_not_known_is_named_with_the_option_that_maps_it() -> None:
    columns = made(LOGS["entropy_collapse"][0][1])
    del columns["step.entropy"]
    found = text(diagnose(imported(columns, candidates={"step.entropy": ("ent\x1b[2J",)})))
    assert "which may be it: --map 'entropy=ent" in found
    assert "\x1b" not in found


def test_each_setting_that_an_advice_names_is_known_by_the_larger_trainers() -> None:
    advised = set(chain.from_iterable(cause.options for cause in CAUSES))
    assert advised
    for name in ("TRL", "verl", "OpenRLHF", "slime", "NeMo-RL", "SkyRL", "ROLL"):
        assert {"learn.policy.lr", "slots.clip.high", "slots.kl.beta"} <= set(trainers()[name].options)
    known = set(chain.from_iterable(trainer.options for trainer in trainers().values()))
    assert advised <= known
    needs = set(chain.from_iterable(cause.needs for cause in CAUSES)) | {"ledger"}
    assert set(chain.from_iterable(trainer.logs for trainer in trainers().values())) <= needs


FLAT: dict[str, tuple[Callable[[np.random.Generator], np.ndarray], str]] = {
    "long and flat": (lambda draw: 0.3 + 0.1 * draw.normal(size=400), "no_learning"),
    "never anything": (lambda draw: np.zeros(60), "no_learning"),
    "too few to tell": (lambda draw: 0.3 + 0.1 * draw.normal(size=14), "no_clear_change"),
    "near its top": (lambda draw: np.clip(0.97 + 0.02 * draw.normal(size=200), 0, 1), "saturated"),
}


@pytest.mark.parametrize("kind", FLAT)
def test_a_flat_log_gets_the_word_for_what_its_noise_allows_to_say(kind: str) -> None:
    draw, word = FLAT[kind]
    words = []
    for seed in range(9):
        log = imported({"step.reward": draw(np.random.default_rng(seed))})
        words.append(log.run["outcome"])
    assert words.count(word) >= 6, words


def test_of_a_few_rows_it_is_said_how_many_are_needed_and_not_that_nothing_was_found() -> None:
    few = text(diagnose(imported({"step.reward": np.arange(5.0), "step.entropy": np.ones(5)})))
    assert "Undecided: 5 rows with a reward, and 12 are needed to judge." in few
    assert "Nothing found" not in few
    assert "Most causes need 8 rows to be looked for; this log has 5." in few


def test_clocks_and_counters_of_another_trainer_are_no_signals() -> None:
    columns = made(LOGS["entropy_collapse"][0][1])
    columns["step.epoch"] = np.repeat([0.0, 1.0], 200)
    columns["step.perf_cpu_memory"] = np.repeat([1.0, 99.0], 200)
    d = diagnose(imported(columns))
    assert not {"step.epoch", "step.perf_cpu_memory"} & {moved.column for moved in d.moved}
