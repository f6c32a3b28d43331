"""`sorl import` of token dumps: what each trainer's own code wrote becomes a run that every verb works on."""

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sorl.cli import import_dumps
from sorl.cli.import_dumps import DumpImporter
from sorl.importing.dumps.find import dumps_in, readers
from sorl.importing.dumps.tinker_summaries import TinkerSummaries
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.cli.command import done, refused, sorl

SAMPLES = Path(__file__).parents[1] / "importing" / "dumps" / "samples"
FOLDERS = sorted(str(dump.folder.relative_to(SAMPLES)) for dump in dumps_in(SAMPLES))
WITHOUT_BATCHES = {"verl/v1", "verl/legacy"}  # texts and scores, no tokens


def asked(runs: Path, query: str) -> list[tuple[Any, ...]]:
    sync(runs)
    return [tuple(row) for row in Reader(runs).rows(query).rows]


def test_every_reader_has_a_sample():
    alone = {TinkerSummaries}  # where there is a capture as well, that is read
    assert {type(dump) for dump in dumps_in(SAMPLES)} == {*readers()} - alone
    assert TinkerSummaries.is_in(SAMPLES / "tinker" / "files")


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_dump_of_a_trainer_is_imported_diagnosed_audited_and_replayed(folder, runs):
    text = done("import", SAMPLES / folder, runs=runs).stdout
    ((run_id, steps, trainer),) = asked(runs, "SELECT run_id, steps, versions->>'$.trainer' FROM run")
    assert f"of {trainer}, " in text
    assert steps >= 1
    ((rows,),) = asked(runs, "SELECT count(*) FROM trajectory")
    assert rows >= steps
    (diagnosis,) = json.loads(done("diagnose", run_id, "--format", "json", runs=runs).stdout)
    assert not [one for one in diagnosis["findings"] if one["severity"] == "critical"]
    assert "No identity is violated" in done("audit", run_id, runs=runs).stdout
    if folder in WITHOUT_BATCHES:
        refused("no stored batches", "replay", run_id, runs=runs)
        return
    ((step,),) = asked(runs, "SELECT max(step) FROM token")
    assert "algorithm is not known" in done("replay", run_id, "--step", step, runs=runs).stdout
    ((turns,),) = asked(runs, "SELECT count(*) FROM turn")
    assert turns


def test_a_second_import_reads_nothing_again(runs):
    done("import", SAMPLES / "nemo_rl", runs=runs)
    again = done("import", SAMPLES / "nemo_rl", runs=runs).stdout
    assert "0 steps" in again
    assert asked(runs, "SELECT count(*) FROM step") == [(3,)]


def test_a_dump_that_grows_is_followed_step_by_step(runs, tmp_path, monkeypatch):
    folder = tmp_path / "logs"
    folder.mkdir()
    monkeypatch.setattr(import_dumps, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(import_dumps, "LOOK_SHARE", 0.0)
    shutil.copy(SAMPLES / "nemo_rl" / "train_data_step1.jsonl", folder)
    shutil.copy(SAMPLES / "nemo_rl" / "train_data_step2.jsonl", folder)
    importer = DumpImporter(dumps_in(folder), runs / "imported")
    assert importer.look(is_live=True) == 1, "the newest file may still be written"
    assert asked(runs, "SELECT status, steps FROM run") == [("running", 1)]

    def stop(found: threading.Event) -> None:
        shutil.copy(SAMPLES / "nemo_rl" / "train_data_step3.jsonl", folder)
        while importer.runs[0].steps < 2:
            time.sleep(0.02)
        found.set()

    found = threading.Event()
    threading.Thread(target=stop, args=(found,), daemon=True).start()
    look = importer.look

    def look_or_end(**told: Any) -> int:
        if found.is_set():
            raise KeyboardInterrupt
        return look(**told)

    monkeypatch.setattr(importer, "look", look_or_end)
    importer.follow()
    monkeypatch.undo()
    importer.look()
    importer.close()
    assert asked(runs, "SELECT status, steps FROM run") == [("finished", 3)]


def test_two_processes_do_not_import_one_dump(runs):
    first = DumpImporter(dumps_in(SAMPLES / "nemo_rl"), runs / "imported")
    refused("another process imports", "import", SAMPLES / "nemo_rl", runs=runs)
    first.close()


def test_a_damaged_file_costs_the_steps_from_it_on(runs, tmp_path):
    folder = shutil.copytree(SAMPLES / "nemo_rl", tmp_path / "logs")
    (folder / "train_data_step2.jsonl").write_text("{}\n")
    result = sorl("import", folder, runs=runs)
    assert result.exit_code == 2
    assert "train_data_step2.jsonl" in result.stderr
    assert asked(runs, "SELECT status, steps FROM run") == [("finished", 1)]


def test_a_dump_without_a_readable_step_leaves_no_run(runs, tmp_path):
    folder = shutil.copytree(SAMPLES / "nemo_rl", tmp_path / "logs")
    (folder / "train_data_step1.jsonl").write_text("{}\n")
    refused("train_data_step1.jsonl", "import", folder, runs=runs)
    assert not [*(runs / "imported").iterdir()]


def test_a_tokenizer_without_a_dump_is_a_mistake(runs, tmp_path):
    (tmp_path / "log.csv").write_text("step,reward\n0,0.5\n1,0.5\n2,0.5\n")
    refused("holds no token dump", "import", tmp_path, "--tokenizer", tmp_path, runs=runs)


def test_a_folder_that_has_no_tokenizer_is_named(runs, tmp_path):
    says = f"no tokenizer in '{tmp_path}'"
    refused(says, "import", SAMPLES / "nemo_rl", "--tokenizer", tmp_path, runs=runs)


def test_a_tokenizer_gives_the_texts_of_the_tokens(runs, tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {f"w{number}": number for number in range(5000)} | {"?": 5000}
    Tokenizer(WordLevel(words, unk_token="?")).save(str(tmp_path / "tokenizer.json"))
    done("import", SAMPLES / "nemo_rl", "--tokenizer", tmp_path, runs=runs)
    ((token, number),) = asked(runs, "SELECT token[1], token_id[1] FROM token LIMIT 1")
    assert token == f"w{number}"
