"""The registry of identities: what must hold, what a violation means, how it can be innocent, what to do.

A module of identities declares each with `@identity(...)`. Each is a page section of docs/identities.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sorl.measures.evidence import Missing
from sorl.spec import first_paragraph
from sorl.spec.evidence import FAILED, Check

PAGE = "docs/identities.md"
STEP = "step"  # an identity of a stored step: it looks at a Case
RECORDED = "recorded"  # the same, of runs of other trainers: sorl's own trainer has a closer one
TABLES = "tables"  # an identity of the rows of a run: it looks at Tables
WITNESS = "witness"  # an identity over time: it looks at WitnessTables

Look = Callable[[Any], Iterator[Check]]  # of a Case or of Tables


@dataclass(frozen=True)
class Identity:
    """A thing to check: what must be equal, and what it means where it is not."""

    name: str
    must: str
    formula: str  # both sides of it, in plain signs
    means: str  # what is wrong where it is violated
    innocent: str  # how it can be violated without a bug
    change: str  # what to do next
    look: Look
    reads: str = STEP

    @property
    def page(self) -> str:
        """The section of the docs about it."""
        return f"{PAGE}#{self.name}"

    def checks(self, subject: Any) -> list[Check]:
        """Return what it finds in a Case, in Tables or in WitnessTables. Where that is missing, or the record
        contradicts itself so that looking raises, the last check says what it needs or why.
        """
        checks: list[Check] = []
        try:
            checks += self.look(subject)
        except Missing as lack:
            checks.append(Check(missing=f"needs {lack}"))
        except Exception as error:  # noqa: BLE001 - one identity that fails must not silence the others
            checks.append(Check(missing=f"{FAILED}{type(error).__name__}: {error}"))
        return checks

    def named(self, check: Check, step: int) -> Check:
        """Return a check of a step with the name of the identity, what a violation means and what to do."""
        return replace(check, identity=self.name, step=step, means=self.means, change=self.change)


def asked_of_steps(is_own: bool) -> list[Identity]:
    """Return the identities that look at a stored step, of sorl's own trainer or of another's run."""
    reads = (STEP,) if is_own else (STEP, RECORDED)
    return [one for one in IDENTITIES.values() if one.reads in reads]


IDENTITIES: dict[str, Identity] = {}


def identity(
    means: str, *, formula: str, innocent: str, change: str, reads: str = STEP
) -> Callable[[Look], Look]:
    """Declare a generator of checks as the identity of its name; its docstring says what must be equal."""

    def declare(look: Look) -> Look:
        name = look.__name__
        must = first_paragraph(look).rstrip(".")
        IDENTITIES[name] = Identity(name, must, formula, means, innocent, change, look, reads)
        return look

    return declare


def arrange(names: Sequence[str]) -> None:
    """Put the identities into this order; one that is not named keeps its place behind them."""
    known = [name for name in names if name in IDENTITIES]
    rest = [name for name in IDENTITIES if name not in names]
    ordered = {name: IDENTITIES[name] for name in (*known, *rest)}
    IDENTITIES.clear()
    IDENTITIES.update(ordered)
