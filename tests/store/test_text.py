import json
import os
from pathlib import Path

import pytest

from sorl.store.text import log_of, plain, tail, visible


def run(runs: Path, text: str = "hello\n") -> Path:
    folder = runs / "demo" / "a"
    folder.mkdir(parents=True)
    (folder / "console.log").write_text(text)
    return folder


def test_the_log_of_a_run_is_in_its_folder_also_where_a_link_leads_to_the_runs(tmp_path):
    folder = run(tmp_path / "elsewhere")
    assert log_of(tmp_path / "elsewhere", "demo", "a") == folder / "console.log"
    assert log_of(tmp_path / "elsewhere", "demo", "b") is None
    (tmp_path / "runs").symlink_to(tmp_path / "elsewhere")
    found = log_of(tmp_path / "runs", "demo", "a")
    assert tail(found) == ["hello"]


@pytest.mark.parametrize("run_id", ["..", ".", "", "../a", "a/..", "a/../../secret", "/etc", "a\0b"])
def test_no_name_leads_out_of_the_runs_folder(tmp_path, run_id):
    run(tmp_path / "runs")
    for folder in (tmp_path, tmp_path / "runs", tmp_path / "runs" / "demo"):
        (folder / "console.log").write_text("secret")
    assert log_of(tmp_path / "runs", "demo", run_id) is None
    assert log_of(tmp_path / "runs", run_id, "a") is None


def test_a_log_that_is_a_link_or_no_file_is_not_read(tmp_path):
    (tmp_path / "secret").write_text("password")
    folder = run(tmp_path)
    (folder / "console.log").unlink()
    (folder / "console.log").symlink_to(tmp_path / "secret")
    assert log_of(tmp_path, "demo", "a") is None
    (folder / "console.log").unlink()
    os.mkfifo(folder / "console.log")  # opening it would wait for ever
    assert log_of(tmp_path, "demo", "a") is None


def test_a_log_of_any_size_is_read_from_its_end(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"x" * 200_000 + b"\n\xff\xfe the end")
    assert tail(log)[-1] == "\ufffd\ufffd the end"
    assert sum(map(len, tail(log))) <= 65536


def test_nothing_in_a_log_or_a_name_acts_on_what_shows_it():
    log = (
        "\x1b[2J\x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b(B\x9b31mred\x07\x08\r\u202etxt.exe\u2066"
        " tab\tend"
    )
    assert plain(log) == "link31mredtxt.exe tab\tend"
    name = "\x1b[2Jred\x9b31m\x08\r\u202etxt.exe\u2066\u200f\u2028\x7f\ud800\ttab\nend [bold]"
    escaped = r"\u001b[2Jred\u009b31m\u0008\u000d\u202etxt.exe\u2066\u200f\u2028\u007f\ud800"
    assert visible(name) == escaped + "\ttab\nend [bold]"
    assert visible(visible(name)) == visible(name)
    assert json.loads(visible(json.dumps([name], ensure_ascii=False))) == [name]
