"""Folders: which files are runs, which files together are one, and which are passed over."""

import json
from pathlib import Path

import pytest

from sorl.importing import loose
from sorl.importing.logs import Imported, logs, sources
from sorl.spec import InputError
from tests.cli.damaged_logs import message, tensorboard, varint


def events(path: Path, steps: range, *tags: str) -> None:
    records = [message(3, b"brain.Event:2")]
    for step in steps:
        for tag in tags or ("reward", "loss"):
            value = message(1, tag.encode()) + varint(2 << 3 | 5) + b"\0\0\0\x3f"
            records.append(message(2, step) + message(5, message(1, value)))
    path.write_bytes(tensorboard(records))


def runs_in(folder: Path) -> list[Imported]:
    runs: list[Imported] = []
    for source in sources(folder):
        runs += source.runs()
    return runs


def steps_of_runs(folder: Path) -> list[int]:
    return [len(run.steps) for run in runs_in(folder)]


def test_event_files_that_begin_alike_are_runs(tmp_path: Path) -> None:
    for number in range(22):
        events(tmp_path / f"events.out.tfevents.17000{number:02}.host.{number}.0", range(30 + number))
    names = [run.name for run in runs_in(tmp_path)]
    assert len(set(names)) == 22
    assert names[3] == "1700003.host.3.0"


def test_event_files_that_continue_each_other_are_one_run(tmp_path: Path) -> None:
    for number, steps in enumerate([range(1, 131), range(101, 200), range(200, 300)]):
        events(tmp_path / f"events.out.tfevents.17000{number}.host.{number}.0", steps)
    assert steps_of_runs(tmp_path) == [299]


def test_two_runs_of_which_one_was_resumed_are_two(tmp_path: Path) -> None:
    for number, steps in enumerate([range(1, 61), range(1, 41), range(61, 90)]):
        events(tmp_path / f"events.out.tfevents.17000{number}.host.{number}.0", steps)
    assert steps_of_runs(tmp_path) == [89, 40]


def test_event_files_with_other_metrics_belong_to_the_run(tmp_path: Path) -> None:
    events(tmp_path / "events.out.tfevents.1.host.1.0", range(1, 40))
    events(tmp_path / "events.out.tfevents.2.host.1.1", range(1, 40), "eval_reward")
    assert steps_of_runs(tmp_path) == [39]


def records(steps: int) -> list[dict[str, float]]:
    return [{"step": step, "reward": step / steps, "grad_norm": 1.0} for step in range(steps)]


def test_json_with_records_is_read_and_other_json_passed_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps(records(30), indent=1))
    others = {
        "config.json": {"learning_rate": 0.1, "num_generations": 4},
        "tokenizer.json": {"added_tokens": [{"id": 0}, {"id": 1}, {"id": 2}], "model": {"vocab": {"a": 1}}},
        "package.json": {"name": "x", "version": "1"},
        "answers.json": [{"question": "?", "score": 1.0, "length": 3} for _ in range(20)],
        "broken.json": "",
    }
    for name, content in others.items():
        (tmp_path / name).write_text(json.dumps(content) if content else '[{"step": 1, ')
    (tmp_path / "requirements.txt").write_text("torch==2.0\nnumpy==1.0\n")
    (tmp_path / "notes.txt").write_text("reward: 3\nlr = 1\n")
    (tmp_path / "server.log").write_text("\n".join(f"queue: {n}, load: 0.{n}" for n in range(50)))
    refused: list[str] = []
    found = sources(tmp_path, refused)
    assert [source.path.name for source in found] == ["metrics.json"]
    assert refused == []


@pytest.mark.parametrize("name", ["slurm-1.out", "console.txt", "train.log"])
def test_a_console_is_read_whatever_it_says_first(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size, bytes_read in (("_WHOLE", 10_000), ("_BEGINNING", 5000), ("_END", 2000)):
        monkeypatch.setattr(loose, size, bytes_read)
    noise = "INFO loading weights of a layer\n" * 1000
    lines = "".join(f"{{'loss': 0.1, 'reward': {step / 40}, 'kl': 0.0}}\n" for step in range(40))
    (tmp_path / name).write_text(noise + lines)
    assert steps_of_runs(tmp_path) == [40]


def test_a_bad_file_does_not_stop_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\x00" * 100)
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, records(30))))
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and nothing more")
    (tmp_path / "d.csv").write_text("no,table\n")
    refused: list[str] = []
    assert [log.name for log in logs(tmp_path, refused)] == ["b.jsonl"]
    assert len(refused) == 3


def test_a_folder_without_logs_says_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"of \*\.json.*3 steps or more of known metrics"):
        sources(tmp_path)
