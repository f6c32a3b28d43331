"""Count how often `sorl diagnose` names perturbed routers, and how often wrongly: `python -m studies.routes
[RUNS]`.

The runs are those of experiments/moe_lab.toml; without a runs folder the shipped cases are counted again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sorl.store.reader import Reader
from studies import Share
from studies.diagnosis import Case, cases, confusion, read, write

FAULT = "route_mismatch"
LABELLED = ("moe_lab",)
SHIPPED = Path(__file__).parents[1] / "experiments" / "results" / "diagnosis" / "moe_lab.parquet"


def named_first(found: Sequence[Case]) -> Share:
    """Runs with perturbed routers in which they are named first."""
    faulty = [case for case in found if case.fault == FAULT]
    return Share(sum(case.named[:1] == (FAULT,) for case in faulty), len(faulty))


def named_wrongly(found: Sequence[Case]) -> Share:
    """Runs of mixtures without perturbed routers, other faults among them, in which they are named at all."""
    others = [case for case in found if case.fault != FAULT]
    return Share(sum(FAULT in case.named for case in others), len(others))


def page(found: Sequence[Case]) -> str:
    """Return both shares and what was named first of what."""
    shares = f"named first: {named_first(found)}\nnamed where they are not: {named_wrongly(found)}"
    return f"{shares}\n\n{confusion(found).to_string()}"


if __name__ == "__main__":
    counted = list(cases(Reader(Path(sys.argv[1])), LABELLED)) if sys.argv[1:] else list(read(SHIPPED))
    if sys.argv[1:]:
        write(counted, SHIPPED)
    print(page(counted))
