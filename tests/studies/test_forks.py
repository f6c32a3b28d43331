"""The study of forks: a claim is a contrast of two arms within parents, and its verdict is read off the
interval.
"""

from itertools import product

import pandas as pd
import pytest

from studies.evidence import NOT_SUPPORTED, SUPPORTED, UNDECIDED
from studies.forks import Contrast, judged, lead, page

PARENTS = [
    {
        "run_id": f"p{i}",
        "algorithm": "ppo",
        "seed": i,
        "onset": 16 if i < 12 else None,
        "arm": None,
        "seconds": 30.0,
    }
    for i in range(20)
]


def born(falls):
    """Children of 12 parents at four fork points; `falls`: arm -> whether the child of parent i at a step
    fell.
    """
    return pd.DataFrame(
        [
            {
                "run_id": f"{arm}-{i}-{at}",
                "parent": f"p{i}",
                "algorithm": "ppo",
                "seed": i,
                "onset": 16,
                "forked_at": at,
                "until": at + 20,
                "arm": arm,
                "draw": 1,
                "down": down(i),
                "success": 0.4,
                "seconds": 10.0,
            }
            for arm, down in falls.items()
            for i, at in product(range(12), (4, 8, 12, 16))
        ]
    )


def verdict_of(found, arm, reference="unchanged"):
    (row,) = judged(found, [Contrast("x", "a claim", "ppo", arm, reference)])
    return row[2], row[1]


def test_a_cure_is_supported_a_useless_change_is_not_and_few_falls_decide_nothing():
    found = born({"unchanged": lambda i: i < 10, "cure": lambda i: False, "useless": lambda i: i % 12 >= 2})
    assert verdict_of(found, "cure")[0] == SUPPORTED
    assert verdict_of(found, "unchanged", "cure")[0] == NOT_SUPPORTED  # more fall: the claim is wrong
    verdict, row = verdict_of(found, "useless")
    assert verdict == NOT_SUPPORTED  # no p-value, but the interval leaves out every effect that matters
    assert row["high"] < 0.5
    few = found[found["parent"].isin(["p0", "p1"]) & found["forked_at"].eq(8)]
    assert verdict_of(few, "cure")[0] == UNDECIDED


@pytest.mark.parametrize(("forked_at", "before"), [(2, 12), (4, 12), (5, 8), (12, 4), (13, 0), (16, 0)])
def test_a_child_counts_where_its_checkpoint_lies_before_the_onset(forked_at, before):
    assert lead({"onset": 16, "forked_at": forked_at}) == before


def test_the_page_counts_parents_children_and_what_separate_runs_would_have_needed():
    children = born(
        {"unchanged": lambda i: i < 10, "turn-ratio": lambda i: False, "placebo-turns": lambda i: i < 1}
    )
    text = page(pd.concat([pd.DataFrame(PARENTS), children]))
    assert (
        "ppo: 12/20 = 60 % [36, 81] of the runs fell, 12 were forked. 144 children; 0.6 h of one core" in text
    )
    assert "| turn-ratio | 0/12 | 0/12 | 0/12 | 0/12 | 0/48 | +0.83" in text
    assert (
        "| (b) Turn-level ratios alone help | ppo: turn-ratio against unchanged | 0/48 against 40/48 |"
        in text
    )
    assert "| 12, 48 + 48 | 10 of 12, 0.002 | 0.16 | 12 an arm | supported |" in text


def test_next_to_an_arm_with_which_nobody_falls_nothing_better_can_be_shown_or_refuted():
    found = born({"unchanged": lambda i: i < 10, "cure": lambda i: False, "another": lambda i: i < 1})
    verdict, row = verdict_of(found, "another", "cure")
    assert row["high"] < 0.5
    assert verdict == UNDECIDED
