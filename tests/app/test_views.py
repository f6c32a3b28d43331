"""Saved views: a file of names and addresses that anybody may have written."""

from pathlib import Path

import pytest

from sorl.app import views
from sorl.app.views import FILE, View
from sorl.spec import InputError
from tests.app.conftest import HOSTILE, SMALL, Open, Patch, assert_literal, press
from tests.store.fixture import write_grid

FELL = View("what fell", "compare?experiment=demo&metric=step.success&metric=step.entropy")


def test_a_saved_view_is_read_again_and_a_second_of_its_name_replaces_it(tmp_path: Path) -> None:
    views.save(tmp_path, [FELL])
    views.save(tmp_path, [View("other", "turns?experiment=demo"), FELL._replace(address="run?run=a")])
    wanted = [View("what fell", "run?run=a"), View("other", "turns?experiment=demo")]
    assert views.read(tmp_path).views == wanted


def test_a_deleted_view_is_gone_and_the_others_stay(tmp_path: Path) -> None:
    views.save(tmp_path, [FELL, View("other", "turns?experiment=demo")])
    views.delete(tmp_path, "other")
    assert views.read(tmp_path).views == [FELL]


def test_what_was_downloaded_can_be_loaded() -> None:
    assert views.parse(views.written([FELL])).views == [FELL]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_is_kept_as_text(text: str, tmp_path: Path) -> None:
    views.save(tmp_path, [View(text, FELL.address)])
    (view,) = views.read(tmp_path).views
    assert view.address == FELL.address
    assert not set(view.name) & {"\x1b", "\u202e", "\n"}


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "//evil.example/?a",
        "https://evil.example?x",
        "compare",
        'run?a="><b>',
        "../x?a",
    ],
)
def test_an_address_that_leaves_the_app_is_no_view(address: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="address of a screen"):
        views.save(tmp_path, [View("out", address)])


@pytest.mark.parametrize(
    "text", ["not toml [", "view = 3", "[[view]]\nname = 3\naddress = 'a?b'", "[[view]]"]
)
def test_a_broken_file_is_told_and_nothing_of_it_is_shown(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    saved = views.read(tmp_path)
    assert saved.views == []
    assert FILE in saved.remark


def test_without_a_file_there_is_no_view_and_no_remark(tmp_path: Path) -> None:
    assert views.read(tmp_path) == views.Saved([])


def test_the_recorded_example_keeps_no_views(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(views, "is_example", lambda _: True)
    with pytest.raises(InputError, match="example keeps no views"):
        views.save(tmp_path, [FELL])


def test_a_screen_lists_views_and_saves_its_own_address(tmp_path: Path, open_screen: Open) -> None:
    write_grid(tmp_path, "demo", SMALL)
    (tmp_path / FILE).write_text(views.written([View(HOSTILE[0], "run?run=a"), FELL]))
    app = open_screen("compare", tmp_path, arm=["ppo"], metric=["step.success"])
    assert_literal(app)
    assert 'href="run?run=a"' in app.source
    next(box for box in app.text_input if box.label == "Save this view as").set_value("mine")
    press(app, "Save view")
    mine = views.read(tmp_path).views[-1]
    assert mine.name == "mine"
    assert mine.address.startswith("compare?")
    assert "metric=step.success" in mine.address
