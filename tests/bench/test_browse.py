import json
import sys
from pathlib import Path

import pytest

from bench import browse, live, main, measure
from bench.browse import Browse, Crowd
from bench.crowd import Size, ensure
from bench.measure import Latency, Sample
from sorl.spec import RunSettings
from tests.store.contents import is_open

SIZE = Size(runs=25, steps=600, turns=2)
KINDS = [
    "overlay, all runs",
    "zoom, all runs",
    "zoom, six arms",
    "overlay, a row a turn",
    "zoom, a row a turn",
    "heat map, six arms",
]


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crowd") / "runs"
    ensure(folder, SIZE, lambda _: None)
    return folder


def latency(*seconds: float, of: str = "p95") -> Latency:
    return Latency("answers", 1.0, [Sample(1, s, s / 2) for s in seconds], of=of)


def test_a_bar_is_on_a_quantile_of_the_answers_by_the_clock_or_by_cpu_time() -> None:
    seen = latency(*range(1, 101))
    assert (seen.at(0.5), seen.at(0.95), seen.at(1.0), seen.at(0.95, cpu=True)) == (50, 95, 100, 47.5)
    assert latency(3.0).at(0.95) == 3.0
    assert [measure.latency_row(latency(s))["met"] for s in (0.9, 1.9, 2.1)] == ["yes", "by CPU", "no"]
    twenty = [0.5] * 19 + [9.0]
    assert (latency(*twenty).met, latency(*twenty, of="max").met) == (True, False)


def test_an_overlay_draws_every_run_a_heat_map_every_arm_and_each_leaves_the_database_closed(
    crowd: Path,
) -> None:
    known = Crowd.of(crowd)
    drawn = json.loads(browse.overlay(known, "turn_step.entropy", None, (0, 599))())
    assert sum(len({*t["customdata"]}) for t in drawn["data"] if "customdata" in t) >= len(
        known.each["arm"].unique()
    )
    maps = json.loads(browse.turns(known, "ratio_geo", (0, 599))())
    assert sum(t["type"] == "heatmap" for t in maps["data"]) == min(6, known.each["arm"].nunique())
    known.fresh()
    assert not is_open(crowd)


def test_without_browser_and_other_tools_it_says_so_and_measures_the_rest(
    crowd: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(live, "missing", lambda: "no browser here")
    monkeypatch.setattr(browse, "missing", lambda: "no other tools here")
    said: list[str] = []
    results = main.run(RunSettings(), crowd, ["browse"], 1, said.append, Browse(SIZE, crowd, requests=1))
    assert [x.name for x in results.latencies] == KINDS
    assert [line for line in said if "here" in line] == [
        "without first paint and memory: no browser here",
        "without trackio and TensorBoard: no other tools here",
    ]
    measure.show(results)
    assert "overlay, all runs" in capsys.readouterr().out
    assert len(measure.as_json(results)["latencies"]) == len(KINDS)


def test_other_tools_are_asked_n_by_n_and_one_that_dies_is_reported_with_its_last_words(
    tmp_path, monkeypatch
) -> None:
    answer = (
        "{'tool': sys.argv[1], 'version': '1', 'runs': int(n), 'points': 7, 'ready_s': 9.0, 'ready_cpu_s':"
        " 3.0, "
    )
    answer += "'again_s': 2.0, 'again_cpu_s': 1.0}"
    code = f"import json, sys\nfor n in sys.argv[6].split(','):\n    print(json.dumps({answer}))\n"
    monkeypatch.setattr(browse, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(browse, "SCRIPT", script := tmp_path / "peer.py")
    script.write_text(code)
    found = list(browse.peers(tmp_path, 100, "2,4", lambda runs: (runs / 1, runs / 2)))
    tools = [(tool, runs, runs / 2) for tool in ("trackio", "tensorboard") for runs in (2, 4)]
    assert [(p.tool, p.runs, p.ours_cpu_s) for p in found] == tools
    assert measure.peer_row(found[0])["theirs / ours"] == 3.0
    script.write_text("import sys; sys.exit('no such project')")
    with pytest.raises(RuntimeError, match="no such project"):
        list(browse.peers(tmp_path, 100, "2", lambda _: (1.0, 1.0)))
