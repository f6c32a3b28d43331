"""The corpus of scalar logs holds what its truth table says, and its bench counts as it says."""

import json
from pathlib import Path

import pytest

from studies import Share
from studies.scalar_logs import bench, corpus, shipped, trainers
from studies.scalar_logs.bench import SIMULATED, Answer
from studies.scalar_logs.corpus import DEVELOPMENT, HELD_OUT, Case
from studies.scalar_logs.variants import ACCEPTED, HEALTHY, VARIANTS, Variant

ONE_OF_EACH = {variant.cause: variant for variant in VARIANTS.values()}
SIMPLE = [VARIANTS[name] for name in ("entropy_collapse/throughout", "healthy/noisy")]


def answer(cause: str, *named: str, peer: tuple[str, ...] | None = None) -> Answer:
    return Answer(
        SIMULATED, f"{cause}-{named}-{peer}", cause, "v", "mild", "trl", 1, HELD_OUT, 200, named, peer
    )


ANSWERS = [answer("plateau", "a", "b", peer=("c",)), answer(HEALTHY), answer("truncation", peer=())]


@pytest.mark.parametrize("variant", SIMPLE, ids=lambda v: v.name)
def test_a_variant_and_a_seed_make_the_same_log_every_time_and_another_seed_another(variant: Variant) -> None:
    first, again, other = (corpus.make(Case(variant, seed)) for seed in (3, 3, 5))
    assert trainers.lines(first.rows) == trainers.lines(again.rows)
    assert first.settings == again.settings
    assert trainers.lines(first.rows) != trainers.lines(other.rows)


@pytest.mark.parametrize("variant", ONE_OF_EACH.values(), ids=lambda v: v.name)
def test_a_log_has_the_metrics_without_which_nobody_could_see_its_cause(variant: Variant) -> None:
    log = corpus.make(Case(variant, 2))
    keys = trainers.NAMES[log.trainer]
    logged = {key for row in log.rows for key in row}
    assert any({keys.get(metric) for metric in need} <= logged for need in variant.needs)
    assert logged <= set(keys.values())
    assert len(log.rows) >= 160


def test_the_halves_share_no_log_and_each_has_every_cause_and_every_strength() -> None:
    cases = list(corpus.cases())
    assert len({case.name for case in cases}) == len(cases)
    for split in (DEVELOPMENT, HELD_OUT):
        part = [case for case in cases if case.split == split]
        assert {case.variant.cause for case in part} == {*ACCEPTED, HEALTHY}
        assert {case.strength for case in part} == set(corpus.STRENGTHS)
    seen = {case.variant.name for case in cases if case.split == DEVELOPMENT}
    assert not any(VARIANTS[name].held_out for name in seen)
    assert all(case.seed % 2 == 0 for case in cases if case.split == DEVELOPMENT)
    assert 0.2 < len({*VARIANTS} - seen) / len(VARIANTS) < 0.5


def test_the_trainers_log_what_every_cause_needs_and_settings_have_keys_of_the_same_trainers() -> None:
    for variant in VARIANTS.values():
        assert any(trainers.that_log(need) for need in variant.needs), variant.name
    assert trainers.SETTINGS.keys() == trainers.NAMES.keys()


def test_written_logs_come_with_their_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"VARIANTS": {v.name: v for v in SIMPLE}, "SEEDS": 2, "HEALTHY_SEEDS": 2}.items():
        monkeypatch.setattr(corpus, name, value)
    wanted = [case for case in corpus.cases() if case.split == DEVELOPMENT]
    assert corpus.write(tmp_path, DEVELOPMENT) == len(wanted) > 0
    header, *rows = (tmp_path / "truth.csv").read_text().splitlines()
    assert header.split(",")[:2] == ["log", "cause"]
    assert len(rows) == len(wanted)
    assert {path.stem for path in tmp_path.glob("*.jsonl")} == {case.name for case in wanted}


def test_shipped_runs_are_healthy_or_have_a_fault_whose_truth_is_known() -> None:
    runs = list(shipped.runs(bench.RESULTS))
    counts = {
        cause: sum(run.cause == cause for run in runs) for cause in (HEALTHY, "stale_data", "non_finite")
    }
    assert len(runs) == sum(counts.values())
    assert counts[HEALTHY] > 300
    assert min(counts.values()) > 5
    stale = next(run for run in runs if run.cause == "stale_data" and run.trainer == "verl")
    assert all(row[trainers.NAMES["verl"]["staleness"]] >= 4 for row in stale.rows)


def test_public_logs_have_an_address_and_a_cause_of_the_corpus() -> None:
    for line in bench.PUBLIC.read_text().splitlines():
        found = json.loads(line)
        assert found["address"].startswith("https://github.com/")
        assert found["cause"] in ACCEPTED
        assert found["rows"]


def test_a_name_is_right_by_the_mapping_of_its_side() -> None:
    assert answer("stale_data", "off_policy").right(1)
    assert not answer("stale_data", "mismatch_grows", "staleness").right(1)
    assert answer("stale_data", "mismatch_grows", "staleness").right(3)
    assert answer("truncation", peer=("plateau", "length_pathology")).right(3, peer=True)
    assert not answer("truncation", peer=("plateau", "length_pathology")).right(1, peer=True)
    assert not answer("truncation", "length_pathology").right(3), "a name of the peer is none of ours"


def test_alarms_count_healthy_logs_only_and_a_side_that_was_not_asked_has_no_rate() -> None:
    page = bench.page([answer("plateau", "plateau"), answer(HEALTHY, "plateau"), answer(HEALTHY)])
    row = next(line for line in page.splitlines() if line.startswith("| simulated, held out"))
    assert row.split(" | ")[1:] == [str(Share(1, 1)), str(Share(1, 1)), str(Share(1, 2)), "-", "-", "- |"]
    assert "rldoctor is not installed" in page
    assert "`plateau` 1" in page


def test_the_bench_asks_both_sides_about_the_same_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    def rldoctor(folder: Path) -> tuple[dict[str, tuple[str, ...]], list[Answer]]:
        return {path.stem: ("entropy_collapse",) for path in folder.glob("*.jsonl")}, []

    monkeypatch.setattr(bench, "_rldoctor", rldoctor)
    found = bench.answers([Case(variant, 0) for variant in SIMPLE], sources=(bench.ISSUES,))
    assert [a.cause for a in found[:2]] == ["entropy_collapse", HEALTHY]
    assert len(found) > 2
    assert all(a.peer == ("entropy_collapse",) for a in found)
    assert found[0].right(1, peer=True)
