"""What an arm is by its settings, so that claims find the arms they compare without their names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.analysis.results import Results
from workbench.analysis.runs import replicate

OPTIMISER = ("learn.policy.", "slot.clip.")  # what an ordinary cure changes: step size, its norm, the clip itself
CREDIT = ("slot.advantage.", "critic", "group_size", "learn.group_size")  # what tells a critic from group advantages
OFF_POLICY = ("learn.epochs", "learn.staleness")
RATIO, STABILISER = ("slot.ratio.",), ("slot.stabilise.",)


@dataclass(frozen=True)
class Design:
    """An arm with its settings by dotted key; those of its algorithm's slots as slot.SLOT.OPTION."""

    arm: str
    settings: Mapping[str, Any]

    @property
    def ratio(self) -> str:
        """The unit over which ratios are pooled: token, turn, placebo, ..."""
        return str(self.settings.get("slot.ratio.level"))

    @property
    def stabilised(self) -> bool:
        """Whether a normalisation may shrink its updates."""
        return self.settings.get("slot.stabilise.kind") != "none"

    @property
    def reading(self) -> str:
        """Which reading of the paper's turn ratio and normalisation ran, in words; empty where there is but one.

        The authors' fork divides by the RMS of the ratios where it exceeds tau; equations 7 and 8 of the paper are
        known from a description; a note has arithmetic turn ratios and a KL term times the clip fraction.
        """
        kind, tau = self.settings.get("slot.stabilise.kind"), self.settings.get("slot.stabilise.tau")
        over = f", rho > {tau:g}" if isinstance(tau, (int, float)) else ""
        known = {
            "None": "",
            "none": "",
            "rms_batch": f"authors' fork: RMS of the batch{over}",
            "rms_seq": f"authors' fork: RMS of each sequence{over}",
            "rms_turn": f"RMS of each turn{over}",
            "cnorm": "equations 7 and 8 as described",
            "kl_clipfrac": "KL times clip fraction, of a note",
            "adv_norm": "advantages whitened when clipped",
            "subtract": "clipping bias subtracted",
        }
        arithmetic = self.ratio == "turn" and self.settings.get("slot.ratio.mean") == "arithmetic"
        parts = (known.get(str(kind), str(kind)), "arithmetic turn ratios, of a note" if arithmetic else "")
        return "; ".join(part for part in parts if part)

    @property
    def critic(self) -> bool:
        """Whether its advantages come from a critic."""
        return bool(self.settings.get("critic"))

    @property
    def reuse(self) -> tuple[bool, bool]:
        """Whether rollouts are used for several epochs, and whether they are stale."""
        return self.settings.get("learn.epochs", 1) > 1, self.settings.get("learn.staleness", 0) > 0

    @property
    def off_policy(self) -> bool:
        """Whether rollouts are reused or stale."""
        return any(self.reuse)

    def differs(self, other: Design) -> set[str]:
        """The keys in which the two differ."""
        mine, theirs = self.settings, other.settings
        return {key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)}

    def only_in(self, other: Design, keys: Sequence[str]) -> bool:
        """Whether the two differ, and in nothing but `keys` (a key, or the beginning of one that ends in a dot)."""
        changed = self.differs(other)
        return bool(changed) and all(any(c == k or (k[-1] == "." and c.startswith(k)) for k in keys) for c in changed)


def settings(config: str | None, slots: str | None) -> dict[str, Any]:
    """The settings of a run as a Design has them; empty where the run does not say (logs of another trainer)."""
    try:
        flat = replicate(config)
        parts = json.loads(slots) if isinstance(slots, str) else {}
    except (ValueError, AttributeError, TypeError):
        return {}
    if not flat or not parts:
        return {}
    own = {key: value for key, value in flat.items() if key.split(".")[0] not in ("algorithm", "slots")}
    for name, options in parts.pop("slots", {}).items():
        own |= {f"slot.{name}.{option}": value for option, value in options.items()}
    return own | parts


def designs(runs: pd.DataFrame) -> list[Design]:
    """The arms whose settings are known, in the order of their names."""
    first = runs.sort_values(["arm", "run_id"]).drop_duplicates("arm")
    found = [Design(str(r["arm"]), settings(r["config"], r["slots"])) for r in first.to_dict(orient="records")]
    return [design for design in found if design.settings]


def pairs(arms: Sequence[Design], keys: Sequence[str]) -> Iterator[tuple[Design, Design]]:
    """Every ordered pair of arms that differ in nothing but `keys`."""
    return ((a, b) for a in arms for b in arms if a.only_in(b, keys))


def pooled(experiments: Sequence[Results]) -> pd.DataFrame:
    """The runs of several experiments as those of one: arms of equal settings are one arm, under the first's name.

    A seed that an arm has twice counts once, the first time. An arm whose name is taken by other settings carries the
    name of its experiment behind its own.
    """
    if len(experiments) == 1:
        return experiments[0].runs
    names: dict[str, str] = {}  # settings -> arm
    parts = []
    for found in experiments:
        runs, renamed = found.runs, {}
        for arm, rows in runs.groupby("arm", sort=False):
            known = settings(rows["config"].iloc[0], rows["slots"].iloc[0])
            key = json.dumps(known, sort_keys=True) if known else f"{found.experiment} {arm}"
            if key not in names:
                taken = str(arm) in names.values()
                names[key] = f"{arm} ({found.experiment})" if taken else str(arm)
            renamed[arm] = names[key]
        parts.append(runs.assign(arm=runs["arm"].map(renamed)))
    return pd.concat(parts, ignore_index=True).drop_duplicates(["arm", "seed"], ignore_index=True)
