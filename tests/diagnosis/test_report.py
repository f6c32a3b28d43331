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

from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.finding import Diagnosis
from sorl.diagnosis.log import Log
from sorl.diagnosis.report import as_dict, headline, in_order, markdown, text
from sorl.diagnosis.trainers import trainers
from sorl.diagnostics.unsized import UnsizedWatch
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
    rf"beginning in step \d+|since step \d+|first in step \d+|in (?:all|its only) [\d,]+ rows?"
    rf"|[\d,]+ of [\d,]+ rows|in [\d,]+ rows|99 % of all rows lie at \d+|by {N} standard errors"
    rf"|standard deviation of {N}|at most {N} nats|never above {N}|is {N} in all [\d,]+ rows|is {N} in"
    rf"|moves the reward by {N}|by {N}|NaN or Inf in step \d+"
    rf"|in \d+ steps the gradient norm is {N} to {N} times|is {N} nats a token in the first step"
    r"|where it should be 0|begins after step \d+(?: \(95 %: \d+ to \d+\))? and is certain at step \d+"
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
    assert "which may be it: --map entropy=ent" in found
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
