"""The GPU benchmark on a CPU, at sizes at which only its form can be looked at."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench import gpu
from bench.gpu import Bench, Part, Report, Row

CPU = torch.device("cpu")


def tiny(folder: Path) -> Bench:
    return Bench(CPU, is_tiny=True, folder=folder, until=float("inf"))


def test_a_part_that_fails_or_lacks_a_package_says_so_and_the_next_one_goes_on(tmp_path: Path) -> None:
    def broken(_: Bench) -> Iterator[Row]:
        yield {"speed": 1.0}
        raise RuntimeError("out of luck")

    def lacking(_: Bench) -> Iterator[Row]:
        import no_such_package

        yield {"never": no_such_package}

    def whole(_: Bench) -> Iterator[Row]:
        yield {"speed": 2.0}

    report = Report(tmp_path / "gpu.json")
    parts = [Part("broken", 1, broken), Part("lacking", 1, lacking), Part("whole", 1, whole)]
    gpu.run_parts(parts, tiny(tmp_path), report, end=float("inf"))
    kept = json.loads(report.file.read_text())
    assert [part["ended"] for part in kept.values()] == [
        "failed: RuntimeError: out of luck",
        "not run: No module named 'no_such_package'",
        "complete",
    ]
    assert kept["broken"]["rows"] == [{"speed": 1.0}]


def test_a_part_ends_with_its_time_and_its_rows_are_on_the_disk_before(tmp_path: Path) -> None:
    report = Report(tmp_path / "gpu.json")

    def endless(bench: Bench) -> Iterator[Row]:
        yield {"row": 0}
        assert json.loads(report.file.read_text())["endless"]["ended"] == "cut off"
        bench.until = 0.0
        while True:
            yield {"row": 1}

    gpu.run_parts([Part("endless", 1, endless)], tiny(tmp_path), report, end=float("inf"))
    kept = json.loads(report.file.read_text())["endless"]
    assert (kept["ended"], len(kept["rows"])) == ("stopped: its time is over", 2)


@pytest.mark.parametrize("shape", gpu.SHAPES, ids=lambda shape: shape.name)
def test_a_shape_has_about_as_many_parameters_as_its_name_says(shape: gpu.Shape) -> None:
    vocabulary = gpu.TRIMMED if shape.name == "110M" else shape.full_vocabulary
    with torch.device("meta"):
        count = gpu.count_parameters(shape.build(vocabulary, torch.device("meta")))
    millions = {"110M": 110, "0.5B": 500, "1.5B": 1500}[shape.name]
    assert count / 1e6 == pytest.approx(millions, rel=0.06)


def test_episodes_train_on_written_tokens_of_ragged_rows() -> None:
    episodes = gpu.make_episodes(6, 64, 100)
    assert len(set(episodes.length.tolist())) > 1
    assert episodes.mask.any(1).all()
    assert not (episodes.mask & ~episodes.response).any()
    assert (episodes.advantages[~episodes.mask] == 0).all()


def test_one_step_by_sorl_is_the_step_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = gpu.TINY_SHAPES[1]
    episodes = gpu.make_episodes(4, 24, shape.full_vocabulary)
    ours = gpu.take_step(shape, episodes, CPU, "float32")
    again = gpu.take_step(shape, episodes, CPU, "float32")
    assert gpu.differences(again, ours, episodes.mask)["log_prob_max_nats"] == 0
    monkeypatch.setattr(gpu, "why_not_sorl", lambda: "not here")
    plain = gpu.differences(gpu.take_step(shape, episodes, CPU, "float32"), ours, episodes.mask)
    assert plain["log_prob_max_nats"] < 1e-5
    assert plain["loss_relative"] < 1e-4
    assert plain["gradient_relative"] < 1e-4


def test_pieces_of_weights_are_put_together_in_the_order_of_their_names(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    for name, content in (("weights.01", b"lo"), ("weights.00", b"hel")):
        (model / name).write_bytes(content)
    joined = gpu.join_parts(model, str(model / "weights.*"), tmp_path / "out")
    assert sorted(path.name for path in joined.iterdir()) == ["config.json", "model.safetensors"]
    assert (joined / "model.safetensors").read_bytes() == b"hello"


def test_a_machine_without_a_gpu_is_told_how_to_try_the_script(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--device cpu --tiny"):
        gpu.main([str(tmp_path)])
    with pytest.raises(SystemExit, match="no part sped"):
        gpu.main([str(tmp_path), "--device", "cpu", "--only", "sped"])


@pytest.mark.slow
def test_all_parts_run_on_a_cpu(tmp_path: Path) -> None:
    gpu.main([str(tmp_path), "--device", "cpu", "--tiny", "--minutes", "3"])
    parts = json.loads((tmp_path / "gpu.json").read_text())
    assert list(parts) == [part.name for part in gpu.PARTS]
    assert all(part["rows"] for part in parts.values())
    assert {part["ended"] for part in parts.values()} <= {"complete", "stopped: its time is over"}
    assert parts["ledger"]["rows"][0]["is_recording"]
    assert any("success" in row for row in parts["experiment"]["rows"])
