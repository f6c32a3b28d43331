"""How often the attribution is right: planted faults against the turn and the span that were named, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.diagnosis.score import stored

SAME_SPAN = 0.5  # of the tokens of both spans together, that they must share
CLIP = 0.18  # ln 1.2, nats: a weaker fault moves no ratio out of the usual clip range


@dataclass(frozen=True)
class Case:
    """A batch with a fault in one turn (`kind` empty: without) and what was named first."""

    kind: str
    strength: float  # nats a token
    policy: str
    sampler: str
    turns: int  # of the trajectory
    turn: int
    tokens: int  # of the fault
    right_turn: bool  # trajectory and turn
    overlap: float  # tokens in both spans / tokens in either
    stands_out: bool  # the first one, by the rule's own measure
    named: int  # turns that stand out
    mass_rank: bool | None = None  # view culprit has the turn first by ratio mass
    gradient_rank: bool | None = None
    drift_rank: bool | None = None

    @property
    def visible(self) -> bool:
        """A fault that can move a ratio out of the clip range."""
        return bool(self.kind) and self.strength >= CLIP

    @property
    def right_span(self) -> bool:
        """The right turn, and a span that shares at least half of the tokens of both."""
        return self.right_turn and self.overlap >= SAME_SPAN


def wilson(k: int, n: int) -> str:
    """`k/n = share [low, high]`, the 95 % interval of Wilson (1927)."""
    from scipy.stats import binomtest

    if not n:
        return "-"
    interval = binomtest(k, n).proportion_ci(0.95, method="wilson")
    return f"{k}/{n} = {100 * k / n:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _counted(cases: Sequence[Case], right: Callable[[Case], bool | None]) -> str:
    return wilson(sum(bool(right(case)) for case in cases), len(cases))


def page(cases: Sequence[Case]) -> str:
    """Markdown: the rates over all, by what was planted and how strongly, and of batches without a fault."""
    faulty = [case for case in cases if case.kind]
    visible, weak = ([case for case in faulty if case.visible is seen] for seen in (True, False))
    clean = [case for case in cases if not case.kind]
    lines = ["| faults | right turn first | right span | first one stands out |", "| --- | --- | --- | --- |"]
    lines += [_row("all that can leave the clip range", visible), _row("too weak for that, counted apart", weak)]
    lines += _rows(visible, lambda c: c.kind, lambda c: f"`{c.kind}`")
    lines += _rows(faulty, lambda c: c.strength, lambda c: f"{c.strength:g} nats a token")
    lines += _rows(visible, lambda c: c.policy, lambda c: f"policy: {c.policy}")
    lines += _rows(visible, lambda c: c.sampler, lambda c: f"sampler: {c.sampler}")
    lines += _rows(visible, lambda c: c.turns, lambda c: f"of {c.turns} turn{'s' * (c.turns > 1)}")
    lines += ["", "| view `culprit` alone | right turn first |", "| --- | --- |"]
    for rank in ("drift_rank", "mass_rank", "gradient_rank"):
        lines.append(f"| `{rank}` | {_counted(visible, attrgetter(rank))} |")
    wrong = [case for case in visible if not case.right_turn]
    lines += [
        "",
        f"Of the {len(wrong)} wrong turns in the first row, {sum(case.stands_out for case in wrong)} were said to "
        f"stand out. Of batches without a fault, one was in {_counted(clean, lambda c: c.stands_out)}.",
    ]
    return "\n".join(lines)


def _rows(cases: Sequence[Case], key: Callable[[Case], Any], name: Callable[[Case], str]) -> list[str]:
    """One row per value of `key`, in order."""
    groups: dict[Any, list[Case]] = {}
    for case in sorted(cases, key=key):
        groups.setdefault(key(case), []).append(case)
    return [_row(name(group[0]), group) for group in groups.values()]


def _row(name: str, cases: Sequence[Case]) -> str:
    cells = (
        _counted(cases, lambda c: c.right_turn), _counted(cases, lambda c: c.right_span),
        _counted(cases, lambda c: c.stands_out),
    )  # fmt: skip
    return f"| {name} | {' | '.join(cells)} |"


def write(cases: Sequence[Case], path: Path) -> None:
    """The cases as a small Parquet file, from which anybody can count again."""
    pd.DataFrame([asdict(case) for case in cases]).to_parquet(path, index=False)


def read(path: Path) -> list[Case]:
    """The cases of such a file. Raises InputError for a file that is none."""
    return [Case(**row) for row in stored(path, [f.name for f in fields(Case)], "planted faults")]
