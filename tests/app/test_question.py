from __future__ import annotations

import random
import string
import zlib
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.app.question import LONGEST, read, written
from workbench.store.reader import saved

DEFAULT = "SELECT 1"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400))
def test_any_question_survives_the_way_through_an_address(text: str) -> None:
    address = written(text)
    assert address is not None
    assert read([address], DEFAULT) == (text, [])


@pytest.mark.parametrize("query", saved(), ids=lambda q: q.name)
def test_a_saved_question_is_readable_in_the_address(query: object) -> None:
    assert written(query.sql) == query.sql  # type: ignore[attr-defined]


def test_a_long_question_is_packed_and_comes_back() -> None:
    text = "\n".join(f"SELECT avg(ratio_geo) AS ratio_{i} FROM turn WHERE step = {i} UNION ALL" for i in range(200))
    address = written(text)
    assert address is not None
    assert len(address) < 6_000 < len(text)
    assert address.isascii()
    assert read([address], DEFAULT) == (text, [])


def test_a_text_that_looks_packed_comes_back_as_it_was() -> None:
    assert read([str(written("packed:AAAA"))], DEFAULT) == ("packed:AAAA", [])


def test_a_question_too_long_for_any_address_says_so() -> None:
    noise = random.Random(0)
    assert written("".join(noise.choices(string.printable, k=LONGEST))) is None


def test_nothing_given_is_the_default() -> None:
    assert read([], DEFAULT) == (DEFAULT, [])


@pytest.mark.parametrize(
    "given",
    [
        "packed:", "packed:!!!", "packed:AAAA", "packed:eJw", "packed:\ud800", "x" * (LONGEST + 1),
        "packed:" + urlsafe_b64encode(zlib.compress(b"x" * 10**8)).decode(),  # 100 MB in 100 kB
        "packed:" + urlsafe_b64encode(zlib.compress(b"\xff\xfe")).decode(),
        "packed:" + urlsafe_b64encode(zlib.compress(b"SELECT 1")[:-3]).decode(),
    ],
    ids=["empty", "no base64", "no zlib", "cut", "surrogate", "too long", "bomb", "no text", "without its end"],
)  # fmt: skip
def test_what_cannot_be_read_is_the_default_and_a_note(given: str) -> None:
    assert read([given], DEFAULT) == (DEFAULT, ["sql, which is cut off or too long"])
