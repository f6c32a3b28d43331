"""README's tree is the tree on the disk, and the nucleus fits into an afternoon."""

import re

from docs.generate.tree import IN_FULL, NUCLEUS, ROOT, nucleus

TEXT = (ROOT / "README.md").read_text()
TREE = TEXT[
    TEXT.index("The tree, in reading order") : TEXT.index(
        "[[[end]]]", TEXT.index("The tree, in reading order")
    )
]


def test_the_tree_names_every_folder_and_every_file_of_four_rooms() -> None:
    named = re.findall(r"^ +(?:workbench/)?([\w./]+?)/? +\S.*$", TREE, re.MULTILINE)
    modules = [p for p in (ROOT / "workbench").rglob("*.py") if "__pycache__" not in p.parts]
    folders = {p.parent.name for p in modules} - {"workbench"}
    assert folders <= set(named)
    for room in IN_FULL:
        files = {p.name for p in (ROOT / "workbench" / room).rglob("*.py") if not p.name.startswith("__")}
        assert files <= set(named), f"{room}: a file without a docstring, or `make docs` is due"
    here = {p.name for p in (*modules, *ROOT.iterdir())} | folders
    assert set(named) <= here


def test_the_nucleus_is_at_most_six_thousand_lines_and_its_places_exist() -> None:
    assert 3000 < nucleus() <= 6000
    for name in NUCLEUS:
        assert (ROOT / "workbench" / name).exists()
        assert name.rsplit("/", 1)[-1] in TEXT
