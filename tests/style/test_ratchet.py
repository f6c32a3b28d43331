"""The ratchet sees each habit, tells it from what only looks like it, and lets counts fall but never rise."""

import pytest

from tests.style.ratchet import (
    HABITS,
    MAX_BODY,
    MAX_NAMES,
    complaints,
    count_habits,
    habits_of_source,
    read_limits,
    write_limits,
)

LONG_BODY = "def f():\n" + "    call(1234567890)\n" * (MAX_BODY // 16 + 1)
MANY_NAMES = "def f():\n" + "".join(f"    name_{i} = {i}\n" for i in range(MAX_NAMES + 1))
CASES = {
    "long_line": "x = 'a' " + "+ 'a' " * 30,
    "formatter_off": "x = 1  # fmt" + ": skip",
    "long_body": LONG_BODY,
    "many_names": MANY_NAMES,
    "many_parameters": "def f(a, b, c, d, e, f, g, h, i): ...",
    "double_assignment": "a, b = 1, 2",
    "walrus_in_comprehension": "[y for x in xs if (y := f(x))]",
    "nested_comprehension": "[x for row in rows for x in row]",
    "nested_conditional": "x = a if p else b if q else c",
    "text_times_truth": "x = 'text' * (n > 1)",
    "bare_tuple": "def f() -> tuple[int, int, str]: ...",
    "vague_name": "def found(): ...",
}
HARMLESS = (
    "a, b = b, a",
    "a, b = pair",
    "a, b = call()",
    "for a, b in pairs: pass",
    "[f(x) for x in xs if x]",
    "x = a if p else b",
    "x = 'text' * n",
    "def f() -> tuple[int, ...]: ...",
    "def f() -> tuple[int, int]: ...",
    "def f():\n    def found(): ...",
    "def _found(): ...",
    "link = 'https://example.org/" + "a" * 120 + "'",
    '"""' + "A long docstring.\n" * 100 + '"""\n',
)


@pytest.mark.parametrize("kind", HABITS)
def test_each_habit_is_seen_in_its_example(kind: str) -> None:
    assert kind in count_habits(habits_of_source(CASES[kind]))


@pytest.mark.parametrize("source", HARMLESS)
def test_what_only_looks_like_a_habit_is_none(source: str) -> None:
    assert count_habits(habits_of_source(source)) == {}


def test_a_count_that_rises_is_named_with_its_place() -> None:
    habits = {"a.py": habits_of_source("a, b = 1, 2\nc, d = 3, 4\n")}
    risen, loose = complaints(habits, {"a.py": {"double_assignment": 1}})
    assert risen[0].startswith("a.py: 2 x double_assignment, allowed 1")
    assert "line 2" in risen[2]
    assert loose == []


def test_a_new_file_is_allowed_nothing() -> None:
    risen, _ = complaints({"new.py": habits_of_source("a, b = 1, 2")}, {})
    assert risen


def test_a_count_that_falls_asks_for_a_lower_limit() -> None:
    risen, loose = complaints({}, {"a.py": {"double_assignment": 1}})
    assert risen == []
    assert loose == ["a.py: double_assignment 1 -> 0"]


def test_limits_are_written_and_read_back(tmp_path) -> None:
    limits = {"a.py": {"long_body": 2, "vague_name": 1}, "b/c.py": {"bare_tuple": 3}}
    write_limits(limits, tmp_path / "limits.toml")
    assert read_limits(tmp_path / "limits.toml") == limits
