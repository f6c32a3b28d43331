from __future__ import annotations

from urllib.parse import parse_qs, urlencode

from hypothesis import given
from hypothesis import strategies as st

from workbench.app.selection import between, many, one, written


def test_an_allowed_value_is_taken_and_nothing_is_said() -> None:
    assert one("x", ["tokens"], ["step", "tokens"], "step") == ("tokens", [])


def test_an_unknown_value_gives_the_default_and_a_note_that_quotes_it() -> None:
    assert one("x", ["tokenz"], ["step", "tokens"], "step") == ("step", ["x = 'tokenz'"])


def test_unknown_values_among_many_are_left_out_and_told() -> None:
    assert many("arm", ["ppo", "<b>", "ppo", "grpo"], ["grpo", "ppo"], ["grpo"]) == (["ppo", "grpo"], ["arm = '<b>'"])


def test_a_flood_of_values_is_one_note() -> None:
    _, notes = many("arm", ["x" * 10_000] * 5_000, ["ppo"], ["ppo"])
    assert len(notes) == 4
    assert notes[3] == "4997 more values of arm"
    assert all(len(note) < 80 for note in notes)


def test_a_range_outside_or_upside_down_is_ignored() -> None:
    for text in ("9..3", "a..b", "", "5", "40..50", "-9..-3", "1..2..3", "9" * 9999 + "..1"):
        found, notes = between("range", [text], 0, 35)
        assert (found, len(notes)) == ((0, 35), 1), text


def test_a_range_that_reaches_outside_is_cut() -> None:
    assert between("range", ["-5..10"], 0, 35) == ((0, 10), [])


@given(st.integers(-1000, 1000), st.integers(0, 1000))
def test_a_range_survives_the_way_through_an_address(first: int, length: int) -> None:
    address = urlencode({"range": written(first, first + length)})
    assert between("range", parse_qs(address)["range"], -2000, 3000) == ((first, first + length), [])


@given(st.lists(st.text(min_size=1), min_size=1, unique=True))
def test_arms_of_any_name_survive_the_way_through_an_address(arms: list[str]) -> None:
    address = urlencode({"arm": arms}, doseq=True, errors="surrogatepass")
    read = parse_qs(address, errors="surrogatepass", max_num_fields=None)["arm"]
    assert many("arm", read, arms, []) == (arms, [])
