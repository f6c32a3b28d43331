"""The bugs are new, each changes what is trained, and what is found of them is counted as it says."""

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from sorl.agent import worlds
from sorl.audit import IDENTITIES
from sorl.diagnosis.causes import CAUSES
from sorl.grid.cell import merge
from sorl.learn.faults import FAULTS
from sorl.spec import RunSettings
from studies.unknown_bugs import count
from studies.unknown_bugs.count import EXPECTS, FRESH, HEALTHY, VLLM, Answer, Case, page, train
from studies.unknown_bugs.healthy import configurations, drawn
from studies.unknown_bugs.kinds import Bug
from studies.unknown_bugs.second import BUGS

# One of each place in the fast suite; all of them with `make test-slow`.
_QUICK = {bug.place: bug.name for bug in reversed(BUGS.values())}.values()
_KINDS = [
    pytest.param(bug, id=bug.name, marks=() if bug.name in _QUICK else pytest.mark.slow)
    for bug in BUGS.values()
]


def test_the_bugs_are_many_none_is_the_fault_labs_and_each_says_what_a_right_answer_is() -> None:
    assert len(BUGS) >= 24
    assert not set(BUGS) & set(FAULTS)
    assert set(BUGS) == set(EXPECTS)
    causes = {cause.name for cause in CAUSES}
    for name, (identities, named) in EXPECTS.items():
        assert identities, name
        assert set(identities) <= set(IDENTITIES), name
        assert set(named) <= causes, name
    assert all(bug.story.endswith(".") for bug in BUGS.values())


def test_no_two_healthy_configurations_are_alike_even_without_their_seeds() -> None:
    fresh = [drawn(seed) for seeds in (FRESH | VLLM).values() for seed in seeds]
    for made in (configurations(), fresh):
        found = [str(sorted((key, value) for key, value in one.items() if key != "seed")) for one in made]
        assert len(set(found)) == len(found) >= 60
    assert all(RunSettings.model_validate(merge(count.TINY, one)) for one in fresh)
    assert drawn(7) == drawn(7)


def _trained(runs: Path, bug: Bug, at_step: int | None) -> dict[str, Tensor]:
    """The networks that a short run ends with."""
    case = next(
        case for case in count.cases() if case.kind == bug.name and case.algorithm == bug.algorithms[-1]
    )
    settings = merge(
        case.settings, {"iterations": 7, "evaluation": {"episodes": 1}, "learn": {"staleness": 0}}
    )
    case = Case(f"{bug.name}-{at_step}", bug.name, case.algorithm, case.seed, at_step, settings)
    train(case, runs)
    newest = max((runs / count.EXPERIMENT / case.run_id / "checkpoints").iterdir())
    files = {file.relative_to(newest): load_file(file) for file in newest.rglob("*.safetensors")}
    return {f"{file}/{name}": x for file, tensors in files.items() for name, x in tensors.items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize("bug", _KINDS)
def test_a_run_with_the_bug_ends_with_other_networks_than_one_without(bug: Bug, runs: Path) -> None:
    with_it = _trained(runs, bug, 2)
    without = _trained(runs, bug, None)
    assert any(not x.equal(without[name]) for name, x in with_it.items() if name in without)


def test_a_bug_is_gone_after_its_run(runs: Path) -> None:
    bug = BUGS["scorer_keeps_digits"]
    _trained(runs, bug, 2)
    assert worlds.exact_match("anna", "boris") == 0.0


def test_a_case_is_trained_audited_and_diagnosed_and_its_answers_survive_their_file(
    runs: Path, tmp_path: Path
) -> None:
    case = next(case for case in count.cases() if case.kind == "values_one_off")
    case = replace(case, run_id="end-to-end")
    train(case, runs)
    (found,) = count.answers(runs, [case])
    assert found.step >= (case.at_step or 0), "before the bug nothing is wrong"
    assert found.verdict in count.VERDICTS
    count.write([found], path := tmp_path / "answers.parquet")
    assert count.read(path) == [found]
    assert "| `values_one_off` | 1 |" in count.main(runs, [path])


def answer(kind: str, **changes: object) -> Answer:
    plain = Answer("u", kind, "values", False, "ppo", 1, 4, None, None, None, None, "", "", None, None, None)
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "changes"),
    [
        ("right", {"identity": "values", "step": 4}),
        ("wrong", {"identity": "values", "step": 3}),  # before the bug began
        ("wrong", {"identity": "loss", "step": 4}),
        ("wrong", {"identity": "loss", "step": 4, "cause": "learning_rate", "confidence": 0.9}),
        ("wrong", {"cause": "off_policy", "confidence": 0.5}),
        ("nothing", {"cause": "off_policy", "confidence": 0.4}),
        ("missing", {"missing": "values: the critic's weights"}),
        ("nothing", {}),
    ],
)
def test_a_verdict_asks_for_the_right_identity_after_the_bug_began_and_forgives_only_an_unsure_cause(
    verdict: str, changes: dict[str, object]
) -> None:
    assert answer("values_one_off", **changes).verdict == verdict


def test_the_page_counts_healthy_runs_apart_and_leaves_out_those_that_fell() -> None:
    healthy = [
        answer(HEALTHY, at_step=None),
        answer(HEALTHY, at_step=None, violated="loss", cause="step_size"),
    ]
    found = answer("values_one_off", identity="values", step=4)
    said = page([found, *healthy, replace(healthy[1], outcome="collapsed")])
    assert "Runs that are healthy: with a violated identity 1/2" in said
    assert "a finding of the diagnosis 1/2" in said
    assert "Left out: 1 that collapsed" in said
    assert "fresh" not in said
    for kind in FRESH | VLLM:
        assert f"Runs that are {kind}: with a violated identity 0/1" in page(
            [found, replace(healthy[0], kind=kind)]
        )
