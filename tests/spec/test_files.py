"""Files and texts that anybody may have written: regular files only, so large, so deep."""

import math
import os
import socket
from pathlib import Path

import pytest

from sorl.spec import InputError
from sorl.spec.files import DEPTH, from_json, from_toml, open_file, read_text


def test_a_file_of_text_is_read_in_utf_8_with_or_without_its_mark_and_in_utf_16(tmp_path):
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"):
        (tmp_path / "a").write_bytes("a = 'é'\n".encode(encoding))
        assert read_text(tmp_path / "a", 99) == "a = 'é'\n"


def test_a_file_that_is_too_large_or_no_text_is_refused_by_name(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert len(read_text(tmp_path / "a", 100)) == 100
    with pytest.raises(InputError, match=r"a' is larger than"):
        read_text(tmp_path / "a", 99)
    (tmp_path / "a").write_bytes(b"ab\xff")
    with pytest.raises(InputError, match=r"a' is not UTF-8 text \(byte 2\)"):
        read_text(tmp_path / "a", 99)


def test_what_is_no_regular_file_is_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for place in ("pipe", "loop", "socket", ".", "nowhere", "n" * 300, "a\0b"):
            with pytest.raises(OSError, match=r".+"):
                open_file(tmp_path / place)
    with pytest.raises(OSError, match="device"):
        open_file(Path("/dev/zero"))


@pytest.mark.parametrize("levels", [DEPTH, DEPTH + 1, 10_000])
def test_nesting_is_allowed_to_a_depth(levels):
    texts = (
        (from_json, "[" * levels + "]" * levels),
        (from_toml, "a = " + "[" * (levels - 1) + "]" * (levels - 1)),
    )
    for parse, text in texts:
        if levels == DEPTH:
            parse(text)
        else:
            with pytest.raises(ValueError, match=f"nested more than {DEPTH} deep"):
                parse(text)


def test_brackets_in_a_text_are_no_nesting():
    assert from_json('["' + "[" * 999 + '"]') == ["[" * 999]
    assert len(from_json("[" + "{}," * 999 + "{}]")) == 1000


def test_numbers_in_json_are_what_a_float_or_infinity_can_say():
    assert from_json(f"[{2**64}, 1e999, -{'9' * 400}, {'9' * 5000}]") == [
        2**64,
        math.inf,
        -math.inf,
        math.inf,
    ]


def test_whole_numbers_in_toml_have_64_bits_and_keys_a_few_parts():
    assert from_toml(f"a = {2**63 - 1}\nb = {-(2**63)}") == {"a": 2**63 - 1, "b": -(2**63)}
    for number in (2**63, "9" * 5000):
        with pytest.raises(ValueError, match="more than 64 bits"):
            from_toml(f"a = [{{b = {number}}}]")
    with pytest.raises(ValueError, match="a key of more than"):
        from_toml(".".join("a" * 100) + " = 1")
