"""docs/code.md names what is on the disk: the tree, and the places to start reading."""

import re

from docs.generate.tree import IN_FULL, NUCLEUS, ROOT

PAGE = (ROOT / "docs" / "code.md").read_text()
TREE = PAGE[PAGE.index("## The tree") :].split("```")[1]


def test_the_tree_names_every_folder_and_every_file_of_four_rooms() -> None:
    named = re.findall(r"^ *(?:workbench/)?([\w./]+?)/? +\S.*$", TREE, re.MULTILINE)
    modules = [p for p in (ROOT / "workbench").rglob("*.py") if "__pycache__" not in p.parts]
    folders = {p.parent.name for p in modules} - {"workbench"}
    assert folders <= set(named)
    for room in IN_FULL:
        files = {p.name for p in (ROOT / "workbench" / room).rglob("*.py") if not p.name.startswith("__")}
        assert files <= set(named), f"{room}: a file without a docstring, or `make docs` is due"
    here = {p.name for p in (*modules, *ROOT.iterdir())} | folders
    assert set(named) <= here


def test_the_places_to_start_reading_exist_and_are_named() -> None:
    for name in NUCLEUS:
        assert (ROOT / "workbench" / name).exists()
        assert name.rsplit("/", 1)[-1] in PAGE
