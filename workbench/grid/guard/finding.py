"""A finding of the guard: a violation that is flagged, or a difference that is only told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.spec import check


@dataclass(frozen=True)
class Finding:
    """What a check found, in a sentence without its full stop; `arms` are those that it speaks of."""

    check: str
    message: str
    arms: tuple[str, ...] = ()
    flagged: bool = False

    @property
    def severity(self) -> str:
        """info for a difference, the severity of the check for a violation."""
        return check(self.check).severity if self.flagged else "info"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"check": self.check, "severity": self.severity, "arms": list(self.arms), "message": self.message}


def lines(findings: Iterable[Finding]) -> list[str]:
    """The findings as lines to print: violations first."""
    ordered = sorted(findings, key=lambda finding: not finding.flagged)
    return [f"{'Warning' if finding.flagged else 'Note'}: {finding.message}." for finding in ordered]


def listed(arms: Sequence[str]) -> str:
    """Names of arms as a person lists them; one with a comma in it stands in quotes."""
    names = [f"'{arm}'" if "," in arm else arm for arm in arms]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def spread(check: str, title: str, values: Mapping[str, Any], unit: str) -> list[Finding]:
    """A note on a number that not all arms share: the commonest value, and the arms that stand out."""
    groups: dict[Any, list[str]] = {}
    for arm, value in values.items():
        groups.setdefault(value, []).append(arm)
    if len(groups) < 2:
        return []
    commonest = max(groups, key=lambda value: len(groups[value]))
    others = {value: arms for value, arms in groups.items() if value != commonest}
    told = "; ".join(f"{listed(arms)}: {value:,}" for value, arms in others.items())
    message = f"the arms had {title} ({commonest:,} {unit}, but {told})"
    return [Finding(check, message, tuple(arm for arms in others.values() for arm in arms))]
