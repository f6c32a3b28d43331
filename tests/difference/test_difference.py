"""What a pair of runs differs in: settings, versions, data, causes, curves, or nothing beyond chance."""

from pathlib import Path

import pandas as pd
import pytest

from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.log import Log
from sorl.difference import report
from sorl.difference.baseline import Baseline
from sorl.difference.difference import Difference, compare
from sorl.importing.logs import read
from tests.diagnosis.logs import healthy
from tests.difference.logs import SETTINGS, trl_run


def between(good: list[Log], bad: Log) -> Difference:
    return compare(Baseline.of([diagnose(log) for log in good]), diagnose(bad))


def of_trl(folder: Path, seed: int = 0, **more: object) -> Log:
    return read(trl_run(folder, seed, **more))  # type: ignore[arg-type]


def ours(name: str, seed: int, tables: dict[str, pd.DataFrame] | None = None, **settings: object) -> Log:
    known = healthy(seed) if tables is None else tables
    told = {"algorithm": "ppo", "learn.staleness": 0, "seed": seed, **settings}
    run = {"outcome": "healthy", "versions": '{"sorl": "1.0", "torch": "2.13.0"}'}
    return Log(name, lambda table, step: known.get(table, pd.DataFrame()), told, run)


def test_two_seeds_of_one_recipe_differ_in_nothing_beyond_chance(tmp_path):
    found = between([of_trl(tmp_path / "a", 0)], of_trl(tmp_path / "b", 1))
    assert (found.kind, found.name) == ("nothing", "")
    assert report.answer(found).startswith(
        "Nothing differs beyond chance: the settings that train are the same"
    )
    assert "3 good runs" in report.what_would_decide(found)


def test_a_setting_is_named_with_both_values(tmp_path):
    bad = of_trl(tmp_path / "b", 1, settings={**SETTINGS, "num_iterations": 8})
    found = between([of_trl(tmp_path / "a")], bad)
    assert (found.kind, found.name) == ("setting", "num_iterations")
    said = "num_iterations is 8 in the bad run and 2 in the good run; no other setting that trains differs."
    assert report.answer(found) == said
    assert report.what_would_decide(found) == (
        "Run the bad one again with num_iterations=2 and nothing else changed."
    )


def test_the_default_of_another_version_is_named(tmp_path):
    good = of_trl(tmp_path / "a", version="0.18.2")
    found = between([good], of_trl(tmp_path / "b", 1, version="0.19.0"))
    assert (found.kind, found.name) == ("default", "beta")
    assert report.answer(found) == (
        "No setting differs, but a default does: nobody set beta, which is 0.04 in trl 0.18.2 and 0 in trl"
        " 0.19.0."
    )


def test_a_default_is_named_with_care_where_the_settings_are_not_known(tmp_path):
    good = of_trl(tmp_path / "a", version="0.18.2", settings=None)
    found = between([good], of_trl(tmp_path / "b", 1, version="0.19.0", settings=None))
    assert found.kind == "default"
    assert report.answer(found).startswith(
        "The settings of both sides are not known. Unless it was set, beta is 0.04 in trl 0.18.2"
    )


def test_a_version_whose_defaults_are_not_known_is_said(tmp_path):
    good = of_trl(tmp_path / "a", version="0.18.2")
    found = between([good], of_trl(tmp_path / "b", 1, version="99.0"))
    (caveat,) = report.caveats(found)
    assert caveat.startswith("Note: the defaults of trl 99.0 are not known here; those of 1.")
    assert caveat in report.sentences(found)


def test_an_unknown_version_on_both_sides_has_one_set_of_defaults(tmp_path):
    good = of_trl(tmp_path / "a", version="99.0")
    assert report.caveats(between([good], of_trl(tmp_path / "b", 1, version="99.0"))) == []


def test_versions_are_named_where_their_defaults_are_the_same(tmp_path):
    good = of_trl(tmp_path / "a", version="1.11.0")
    found = between([good], of_trl(tmp_path / "b", 1, version="1.12.0"))
    assert (found.kind, found.name) == ("version", "trl")
    assert report.what_would_decide(found) == (
        "Run the bad one again with trl==1.11.0 and nothing else changed."
    )


def test_a_curve_that_parts_is_named_with_the_step_where_nothing_else_differs(tmp_path):
    bad = of_trl(
        tmp_path / "b",
        1,
        changes={"completions/mean_length": lambda step, usual: usual + 3 * max(0, step - 20)},
    )
    found = between([of_trl(tmp_path / "a")], bad)
    assert "response_tokens" in [one.column for one in found.partings]
    first = found.partings[0]
    assert 20 <= first.step <= 40


def test_without_settings_nothing_is_said_to_be_the_same(tmp_path):
    found = between([of_trl(tmp_path / "a", settings=None)], of_trl(tmp_path / "b", 1, settings=None))
    assert found.kind == "unknown"
    assert "the settings of both sides are not known" in report.answer(found)


def test_a_run_that_is_down_is_never_said_to_differ_in_nothing(tmp_path):
    falls = {"reward": lambda step, usual: usual if step < 30 else 0.02}
    good = of_trl(tmp_path / "a", changes=falls)
    found = between([good], of_trl(tmp_path / "b", 1, changes=falls))
    assert "The bad run fell at step" in report.answer(found)
    assert "1 of the 1 it is compared with" in report.answer(found)


def test_a_fall_that_only_the_bad_run_shows_is_a_difference(tmp_path):
    falls = {"reward": lambda step, usual: usual if step < 30 else 0.02}
    found = between([of_trl(tmp_path / "a")], of_trl(tmp_path / "b", 1, changes=falls))
    assert found.only_bad_fell
    assert found.kind in ("outcome", "cause")


def test_a_cause_that_only_the_bad_run_shows_is_named():
    tables = healthy(1)
    tables["minibatch"].loc[tables["minibatch"]["step"] >= 12, ["mismatch", "mismatch_max"]] = 2.0
    found = between([ours("good", 0)], ours("bad", 1, tables))
    assert found.kind == "cause"
    assert "the bad run alone shows" in report.answer(found)


def test_a_cause_that_the_good_run_shows_as_well_is_no_difference():
    tables = healthy(1)
    tables["minibatch"].loc[tables["minibatch"]["step"] >= 12, ["mismatch", "mismatch_max"]] = 2.0
    found = between([ours("good", 1, tables)], ours("bad", 1, tables))
    assert found.kind == "nothing"


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_must_read_the_same_questions(seed):
    good = healthy(0)
    bad = healthy(1)
    good["step"]["questions_hash"] = range(100, 100 + len(good["step"]))
    bad["step"]["questions_hash"] = good["step"]["questions_hash"].where(good["step"]["step"] < 7, 5)
    found = between([ours("good", 0, good)], ours("bad", seed, bad))
    if seed == 0:
        assert found.data is not None
        assert (found.kind, found.data.step) == ("data", 7)
    else:
        assert found.data is None


def test_the_whole_is_told_as_data(tmp_path):
    bad = of_trl(tmp_path / "b", 1, settings={**SETTINGS, "num_iterations": 8})
    told = report.as_dict(between([of_trl(tmp_path / "a")], bad))
    assert told["schema"] == "sorl.diff/1"
    assert told["settings"][0] == {
        "setting": "num_iterations",
        "good": "2",
        "bad": "8",
        "kind": "training",
        "default_good": None,
        "default_bad": None,
    }
