from __future__ import annotations

import tomllib

import tomli_w

from workbench.algorithms import ALGORITHMS, measured
from workbench.algorithms.dictionary import dictionary
from workbench.app.declared import declared
from workbench.diagnostics.notation import SYMBOLS, collapse_rule
from workbench.objective import KINDS


def test_the_copy_says_what_the_declarations_say() -> None:
    """`make docs` renews it."""
    notation = [{"symbol": symbol, "meaning": meaning} for symbol, meaning in SYMBOLS]
    present = dictionary(measured()) | {"collapse_rule": collapse_rule(), "notation": notation}
    assert declared() == tomllib.loads(tomli_w.dumps(present))


def test_every_algorithm_and_every_kind_of_every_slot_is_in_it() -> None:
    assert [a["name"] for a in declared()["algorithm"]] == list(ALGORITHMS)
    found = {(k["slot"], k["kind"]) for k in declared()["kind"]}
    assert found == {(slot, kind) for slot, kinds in KINDS.items() for kind in kinds}
    assert all(k["definition"] for k in declared()["kind"])


def test_an_algorithm_differs_from_its_base_in_the_slots_that_it_says() -> None:
    every = {a["name"]: {s["slot"]: s for s in a["slot"]} for a in declared()["algorithm"]}
    for a in declared()["algorithm"]:
        if a["differs_from"]:
            base = every[a["differs_from"]]
            assert a["differs_in"] == [slot for slot in base if every[a["name"]][slot] != base[slot]]
