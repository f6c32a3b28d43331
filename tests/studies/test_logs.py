"""Generated logs say in every format what was written, and answers are counted as the page says."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.unsized_curves import Tally
from sorl.importing.logs import read
from sorl.spec import InputError
from studies import Share
from studies.logs import bench, sources, truths
from studies.logs.answer import Answer, Expected, Said, has_fallen, said_of
from studies.logs.files import FORMATS, NAMINGS, Named
from studies.logs.truths import FAULTS, LEVELS, METRICS, Run

HEALTHY = Run(LEVELS[0], "white", 60)
EXPECTED = Expected(
    log="a",
    part="generated",
    split="",
    format="CSV",
    naming="own",
    truth="healthy",
    noise="white",
    rows=60,
    outcomes=("healthy",),
    causes=(),
    is_healthy=True,
    is_faulty=False,
)
READ = Said(is_read=True, steps=60, word="healthy", rule_fell=False)


def rows_of_twelve_steps() -> list[truths.Row]:
    rows = HEALTHY.rows(1)[:12]
    rows[7]["grad_norm"] = float("nan")
    return rows


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_and_naming_gives_back_every_reward_at_its_step(
    name: str, naming: str, tmp_path: Path
) -> None:
    rows = rows_of_twelve_steps()
    log = read(FORMATS[name].write(Named.under(naming, rows), tmp_path / "log"))
    rewards = log.series("step", "reward")
    assert rewards.to_dict() == {row["step"]: pytest.approx(row["reward"], rel=1e-4) for row in rows}


@pytest.mark.parametrize("truth", [LEVELS[2], LEVELS[3], FAULTS[4]], ids=lambda truth: truth.name)
def test_a_run_has_every_metric_and_is_the_same_for_the_same_number(truth: truths.Truth) -> None:
    run = Run(truth, "AR(.5)", 60)
    rows = run.rows(3)
    assert set(rows[0]) == set(METRICS)
    assert str(rows) == str(run.rows(3))  # some values are no numbers
    assert str(rows) != str(run.rows(4))


def test_levels_end_as_their_names_say() -> None:
    part = np.arange(100) / 100
    assert truths.healthy(part)[-1] > 0.65
    assert np.ptp(truths.flat(part)) == 0
    assert truths.collapsed(part)[-1] < truths.collapsed(part)[0] < truths.collapsed(part).max()
    assert truths.recovered(part)[-1] == truths.recovered(part).max() > truths.recovered(part)[50]


def test_the_runs_together_meet_every_format_under_every_naming(tmp_path: Path) -> None:
    logs = list(sources.generated_sources(tmp_path, [HEALTHY]))
    assert [log.expected.format for log in logs[::2]] == list(FORMATS)
    combinations = set()
    for index in range(len(NAMINGS)):
        for format_index, name in enumerate(FORMATS):
            for offset in sources.NAMINGS_OF_A_FORMAT:
                combinations.add((name, (index + format_index + offset) % len(NAMINGS)))
    assert len(combinations) == len(FORMATS) * len(NAMINGS)


def test_what_either_judge_accepts_is_right_under_our_names() -> None:
    first = {"outcomes": ["mild"], "healthy": True, "causes": ["gradient_spikes"]}
    second = {"outcomes": ["healthy"], "healthy": False, "causes": ["none_visible", "truncation"]}
    row = {"name": "x", "split": "develop", "format": "csv", "trainer": "trl", "rows": 9}
    row |= {"first_label": json.dumps(first), "second_label": json.dumps(second)}
    expected = sources.expected_of_judges(row)
    assert expected.outcomes == ("healthy", "mild")
    assert expected.causes == ("grad_spikes", "truncation")
    assert (expected.is_healthy, expected.is_faulty) == (False, False)


@pytest.mark.parametrize("word", ["no_learning", "no_clear_change", "saturated"])
def test_a_flat_curve_is_right_under_every_word_for_flat(word: str) -> None:
    flat = replace(EXPECTED, outcomes=("no_learning",))
    assert Answer(flat, replace(READ, word=word)).is_outcome_right
    assert not Answer(EXPECTED, replace(READ, word=word)).is_outcome_right


def test_a_log_that_is_not_read_is_wrong_and_enters_no_rate_of_alarms() -> None:
    unread = Answer(EXPECTED, Said(is_read=False))
    assert not unread.is_whole
    assert not unread.is_outcome_right
    assert bench.critical_share([unread]).n == 0
    assert bench.fall_share([unread]).n == 0


def test_undecided_is_right_of_a_short_log_alone() -> None:
    undecided = replace(READ, word=None)
    assert not Answer(EXPECTED, undecided).is_outcome_right
    assert Answer(EXPECTED, replace(undecided, steps=8)).is_outcome_right
    assert Answer(replace(EXPECTED, outcomes=("too_short",)), undecided).is_outcome_right


def test_recall_asks_the_first_finding_and_precision_the_first_that_is_no_remark() -> None:
    faulty = replace(EXPECTED, causes=("truncation",), is_faulty=True, is_healthy=False)
    remarked = replace(READ, named=("plateau", "truncation"), serious=("truncation",))
    answers = [Answer(faulty, remarked), Answer(EXPECTED, replace(READ, serious=("kl_blowup",)))]
    assert bench.recall_share(answers) == Share(0, 1)
    assert bench.precision_share(answers) == Share(1, 2)


def test_a_detector_of_rldoctor_is_right_for_any_cause_that_it_is_meant_for() -> None:
    faulty = replace(EXPECTED, causes=("truncation",), is_faulty=True)
    assert Answer(faulty, replace(READ, peer=("length_pathology",))).is_peer_right
    assert not Answer(faulty, replace(READ, peer=("kl_drift", "length_pathology"))).is_peer_right
    assert not Answer(faulty, replace(READ, peer=())).is_peer_right


def test_the_plain_rule_speaks_where_the_last_tenth_is_under_half_of_the_best() -> None:
    assert has_fallen(np.r_[np.full(50, 0.8), np.full(50, 0.3)])
    assert not has_fallen(np.r_[np.full(50, 0.8), np.full(50, 0.5)])
    assert not has_fallen(np.array([]))
    assert said_of(None) == Said(is_read=False)


def test_all_sides_are_asked_about_the_same_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {}

    def rldoctor(folder: Path) -> dict[str, tuple[str, ...]]:
        told.update({path.stem: path.read_text() for path in folder.glob("*.jsonl")})
        return dict.fromkeys(told, ("kl_drift",))

    monkeypatch.setattr(bench, "ask_rldoctor", rldoctor)
    log = sources.generated_source(tmp_path, HEALTHY, "Markdown table", "own")
    (answer,) = bench.ask([log], tmp_path)
    assert answer.is_whole
    assert answer.given.peer == ("kl_drift",)
    assert json.loads(told[answer.expected.log].splitlines()[0])["completions/mean_length"] > 0


def test_results_are_rendered_again_from_their_files_a_later_count_in_place_of_an_earlier(
    tmp_path: Path,
) -> None:
    tally = Tally("live falls", "a fall", 60, "called", 9, 10, median=4.0, ninetieth=float("inf"))
    answers = [Answer(EXPECTED, READ), Answer(replace(EXPECTED, part="real", split="develop"), READ)]
    bench.write(bench.Results(answers, [tally]), tmp_path / "first.parquet")
    bench.write(bench.Results([], [replace(tally, hits=10)]), tmp_path / "second.parquet")
    results = bench.read(tmp_path / "first.parquet")
    assert results == bench.Results(answers, [tally])
    page = bench.main(tmp_path, files=[tmp_path / "first.parquet", tmp_path / "second.parquet"])
    assert "4, never; 100 % [69.2, 100]" in page
    assert bench.NOT_ASKED in page


def test_a_file_of_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no")
    for path in (tmp_path / "text.parquet", sources.CORPUS):
        with pytest.raises(InputError) as refused:
            bench.read(path)
        assert "\n" not in str(refused.value)
