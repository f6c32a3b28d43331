"""Two arms, seed by seed: how often they collapse, or by what factor a measurement differs.

`more` is the arm in which the claim expects more (collapses, clipping, growth): an effect in the claim's direction is a
difference above 0 or a factor above 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.results import Results
from workbench.analysis.runs import KEPT, NOT_DEAD, replicate, survived
from workbench.analysis.stats import Paired, clopper_pearson, fisher_exact, paired_mean, paired_proportions
from workbench.spec import UNDECIDED

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
        """Return the keys in which the two differ."""
        mine, theirs = self.settings, other.settings
        return {key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)}

    def only_in(self, other: Design, keys: Sequence[str]) -> bool:
        """Whether the two differ, and in nothing but `keys` (a key, or the beginning of one that ends in a dot)."""
        changed = self.differs(other)
        return bool(changed) and all(any(c == k or (k[-1] == "." and c.startswith(k)) for k in keys) for c in changed)


def settings(config: str | None, slots: str | None) -> dict[str, Any]:
    """Return the settings of a run as a Design has them; empty where the run does not say (logs of another trainer)."""
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
    """Return the arms whose settings are known, in the order of their names."""
    first = runs.sort_values(["arm", "run_id"]).drop_duplicates("arm")
    found = [Design(str(r["arm"]), settings(r["config"], r["slots"])) for r in first.to_dict(orient="records")]
    return [design for design in found if design.settings]


def pairs(arms: Sequence[Design], keys: Sequence[str]) -> Iterator[tuple[Design, Design]]:
    """Return every ordered pair of arms that differ in nothing but `keys`."""
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


MIN_SEEDS = 5  # nothing is said of fewer
COLLAPSE, FACTOR = "collapse", "factor"


@dataclass(frozen=True)
class Control:
    """An arm that offers another explanation: its own collapses with their 95 % interval, of as many seeds."""

    arm: str
    collapsed: int
    n: int
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """One tested hypothesis of a claim; effect, interval and test are None below MIN_SEEDS.

    effect: collapses of `more` minus those of `less` as shares of runs, or the factor of `more` over `less`; in_favour
    counts the seeds on the claim's side of none; counts: collapses of `more` and of `less`. smallest_p: what the test
    gives where `less` does all that the claim expects of it; deviation: of the log factors, in nats; left_out: seeds
    that one arm has and no pair could use.
    """

    measure: str
    more: str
    less: str
    seeds: int
    told: str = ""
    counts: tuple[int, int] | None = None
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    in_favour: int = 0
    p: float | None = None
    smallest_p: float | None = None
    deviation: float | None = None
    left_out: int = 0
    controls: tuple[Control, ...] = field(default=())
    reading: str = ""  # which reading of the paper ran


def finished(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the finished runs, one per arm and seed: of several the first that was judged."""
    over = runs[runs["status"] == "finished"]
    over = over.assign(undecided=over["outcome"].isna()).sort_values(["undecided", "run_id"])
    return over.drop_duplicates(["arm", "seed"]).drop(columns="undecided")


def judged(runs: pd.DataFrame, survival: str = NOT_DEAD) -> pd.DataFrame:
    """Return the finished runs that can be called survivors or not, with `dead`; one per arm and seed.

    A run that never learned cannot fall: it is no evidence of either, nor is one that is too short for the rule or was
    falling at its end. With KEPT, a run that never learned or lost some of it is no survivor.
    """
    over = finished(runs)
    neither = UNDECIDED if survival == KEPT else ("no_learning", *UNDECIDED)
    over = over[over["outcome"].notna() & ~over["outcome"].isin(neither)]
    return over.assign(dead=~survived(over["outcome"], survival))


def collapses(over: pd.DataFrame, more: str, less: str) -> Comparison:
    """Compare collapses on the seeds that both arms have; `over` as `judged` gives it.

    The test is Fisher's, which passes over the pairing: where seeds make runs alike it only errs on the safe side, and
    an exact test within pairs could not reach 0.05 below six seeds whatever happens.
    """
    dead = {arm: dict(zip(rows["seed"], rows["dead"], strict=True)) for arm, rows in over.groupby("arm")}
    one, other = dead.get(more, {}), dead.get(less, {})
    seeds = sorted(set(one) & set(other))
    n, left_out = len(seeds), len(set(one) ^ set(other))
    if n < MIN_SEEDS:
        return Comparison(COLLAPSE, more, less, n, left_out=left_out)
    falls = [(bool(one[s]), bool(other[s])) for s in seeds]
    first, second = falls.count((True, False)), falls.count((False, True))
    a, b = sum(f for f, _ in falls), sum(s for _, s in falls)
    found = paired_proportions(falls.count((True, True)), first, second, falls.count((False, False)))
    return Comparison(
        COLLAPSE, more, less, n, f"{a}/{n} against {b}/{n}", (a, b), found.value, found.low, found.high, first,
        fisher_exact(a, n, b, n), fisher_exact(a, n, 0, n), left_out=left_out,
    )  # fmt: skip


def of_factors(logs: Mapping[Any, float], more: str, less: str, told: str = "", left_out: int = 0) -> Comparison:
    """Compare by the logarithms of the factors within seeds: geometric mean, t-interval and paired t-test on logs."""
    values = [logs[seed] for seed in sorted(logs)]
    n = len(values)
    if n < MIN_SEEDS:
        return Comparison(FACTOR, more, less, n, left_out=left_out)
    found: Paired = paired_mean(values)
    effect, low, high = (math.exp(max(-500.0, min(500.0, v))) for v in (found.value, found.low, found.high))
    deviation = float(pd.Series(values).std())
    return Comparison(
        FACTOR, more, less, n, told, None, effect, low, high, sum(v > 0 for v in values), found.p, 0.0, deviation,
        left_out=left_out,
    )  # fmt: skip


def control(over: pd.DataFrame, arm: str, seeds: Sequence[Any]) -> Control | None:
    """Return the collapses of an arm on these seeds; None below MIN_SEEDS."""
    mine = over[(over["arm"] == arm) & over["seed"].isin(list(seeds))]
    if len(mine) < MIN_SEEDS:
        return None
    k = int(mine["dead"].sum())
    return Control(arm, k, len(mine), *clopper_pearson(k, len(mine)))


WINDOW = 5  # steps right before the onset, and as many before these
LEAST = 2  # values that a window needs
Row = Mapping[Hashable, Any]


def mean_between(run: Row, name: str, first: float, last: float) -> float | None:
    """Mean of the finite values of a curve in the steps [first, last); None with fewer than LEAST of them."""
    values = run.get(f"{name}_curve")
    if values is None or run.get("step") is None or np.ndim(values) == 0:
        return None
    step, values = np.asarray(run["step"], dtype=float), np.asarray(values, dtype=float)
    if len(step) != len(values):
        return None
    inside = values[(step >= first) & (step < last) & np.isfinite(values)]
    return float(inside.mean()) if len(inside) >= LEAST else None


def log_factor(over: float | None, under: float | None) -> float | None:
    """log(over / under); None unless both are measured and positive."""
    return math.log(over / under) if over is not None and under is not None and over > 0 and under > 0 else None


def growth(run: Row, name: str, onset: float) -> float | None:
    """Log of the mean over the WINDOW steps before `onset` over that of the WINDOW steps before these."""
    late = mean_between(run, name, onset - WINDOW, onset)
    return log_factor(late, mean_between(run, name, onset - 2 * WINDOW, onset - WINDOW))


def while_up(over: pd.DataFrame, name: str, more: str, less: str) -> Comparison:
    """Factor of a curve's mean in arm `more` over `less`, within seeds, over the steps before either collapses."""
    arms = {arm: {r["seed"]: r for r in rows.to_dict("records")} for arm, rows in over.groupby("arm")}
    one, other = arms.get(more, {}), arms.get(less, {})
    logs, means = {}, []
    for seed in set(one) & set(other):
        end = min(float(one[seed]["time"]), float(other[seed]["time"]))
        a, b = (mean_between(run[seed], name, 0, end) for run in (one, other))
        if (value := log_factor(a, b)) is not None:
            logs[seed] = value
            means.append((a or 0.0, b or 0.0))
    told = "{} {:.3g} against {:.3g}".format(name, *np.mean(means, axis=0)) if means else ""
    return of_factors(logs, more, less, told, len(set(one) | set(other)) - len(logs))


def before_collapse(over: pd.DataFrame, arms: Mapping[str, Design], name: str) -> Comparison | None:
    """Growth of a curve before collapses of off-policy runs, over its growth at the same steps in runs that stay up.

    The runs that stay up share seed, epochs, staleness and kind of advantage with the run that collapses; growths are
    averaged within seeds, which are the replicates. None where no run collapsed with the curve measured.
    """
    rows = [r for r in over.to_dict("records") if r["arm"] in arms and arms[r["arm"]].off_policy]
    fell = [r for r in rows if r["dead"] and not pd.isna(r["collapse_step"])]
    grown: dict[Any, list[float]] = {}
    told: list[tuple[float, float]] = []
    seeds = set()
    for run in fell:
        onset = float(run["collapse_step"])
        mine = growth(run, name, onset)
        design = arms[run["arm"]]
        seeds.add(run["seed"])
        up = [
            growth(other, name, onset)
            for other in rows
            if other["seed"] == run["seed"] and not other["dead"] and float(other["time"]) >= onset
            and _alike(arms[other["arm"]], design)
        ]  # fmt: skip
        theirs = [value for value in up if value is not None]
        if mine is not None and theirs:
            usual = sum(theirs) / len(theirs)
            grown.setdefault(run["seed"], []).append(mine - usual)
            told.append((mine, usual))
    if not fell or not any(growth(r, name, float(r["collapse_step"])) is not None for r in fell):
        return None
    words = ""
    if told:
        mine, usual = (math.exp(v) for v in np.mean(told, axis=0))
        words = f"x {mine:.3g} in {len(told)} runs, against x {usual:.3g}"
    return of_factors(
        {seed: sum(v) / len(v) for seed, v in grown.items()}, f"growth of {name} before a collapse",
        "its growth in runs that stay up", words, len(seeds - set(grown)),
    )  # fmt: skip


def _alike(a: Design, b: Design) -> bool:
    keys = ("learn.epochs", "learn.staleness", "critic", "slot.advantage.kind")
    return all(a.settings.get(key) == b.settings.get(key) for key in keys)
