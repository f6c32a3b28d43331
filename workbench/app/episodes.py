"""What screen Episode asks of the store: the signal of a run, the trajectories of a step, the tokens of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from workbench.app.figures.run import Signal
from workbench.app.safe import html_text
from workbench.app.wording import word

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.data import Store
    from workbench.app.diagnostics import Diagnostics

SIGNALS = ("grad_norm_max", "ratio_max", "ess_frac_min")  # the first that a run has is where one begins to look
RANKS = {"gradient": "gradient_share", "ratio mass": "ratio_mass", "log-ratio": "worst_log_ratio"}
WORST = "worst"  # instead of an epoch: the one in which the trajectory had most of the gradient
_POINTS = 1_000
Row = dict[str, Any]


@dataclass(frozen=True)
class Watched:
    """A run, the steps it has done, and one signal of it."""

    run: Mapping[Any, Any]
    steps: int
    signal: Signal
    lowest: bool

    @property
    def spike(self) -> int:
        """The step to begin at: the first that is no number, else the most extreme one.

        In a run that collapsed it is looked for up to the onset; without a measured step it is the last.
        """
        points = self.signal.points
        if broken := [int(step) for step in points["broken_step"].dropna()]:
            return min(broken)
        known = points.dropna(subset=["value"])
        before = known if self.signal.onset is None else known[known["step"] <= self.signal.onset]
        known = (before if len(before) else known).sort_values("value", ascending=self.lowest, kind="stable")
        return int(known["step"].iloc[0]) if len(known) else max(0, self.steps - 1)


def first_run(each: pd.DataFrame) -> str:
    """Where one begins to look: the first run that collapsed, else the first."""
    fell = each.loc[each[["collapse_step", "onset_low"]].notna().any(axis=1), "run_id"]
    return str(fell.iloc[0] if len(fell) else each["run_id"].iloc[0])


def run_words(row: Mapping[Any, Any]) -> str:
    """How a list names a run: `ppo, seed 3: collapsed at 17`."""
    fell = row["collapse_step"]
    how = row["outcome"] if isinstance(row["outcome"], str) else row["status"]
    return f"{row['arm']}, seed {row['seed']}: {how}" + (f" at {fell:.0f}" if fell == fell and fell is not None else "")


def answered(row: Row) -> str:
    """What became of a trajectory, as HTML."""
    answer, gold, ended = (html_text(word(row[name])) for name in ("answer", "gold", "ended"))
    return (
        f'<div class="sorl-episode"><p class="sorl-question">{html_text(word(row["question"]))}</p>'
        f'<p class="sorl-answer">Trajectory {row["trajectory"]}: answered <b>{answer}</b>, expected <b>{gold}</b>; '
        f"ended by {ended}.</p></div>"
    )


def choices(known: Diagnostics, **place: str) -> dict[str, str]:
    """Every choice of the screen for an episode at `place`: experiment, run, step and, where it is known, trajectory.

    An address that says them all stays as it is when it is opened, so that one step back leaves the screen.
    """
    return place | {"signal": signals(known)[0], "rank": next(iter(RANKS)), "epoch": WORST}


def address(known: Diagnostics, **place: str) -> str:
    """The link to an episode."""
    return "episode?" + urlencode(choices(known, **place))


def culprit(store: Store, run: str, step: int) -> dict[str, str]:
    """Run, step and the trajectory with most of its gradient, as parts of an address."""
    rows = ranked(store.records("ranking", run=run, step=step), next(iter(RANKS.values())))
    return {"run": run, "step": str(step)} | ({"trajectory": str(rows[0]["trajectory"])} if rows else {})


def missing(trajectory: int, here: Sequence[int], link: Callable[[int], str]) -> str:
    """Why there is no transcript, as HTML: only sampled trajectories keep tokens, in this step those of `here`."""
    links = ", ".join(f'<a href="{html_text(link(other))}">{other}</a>' for other in here)
    instead = f"of this step it kept {links}" if here else "nor any of this step"
    words = f"The run did not keep the tokens of trajectory {trajectory}; {instead}."
    return f'<p class="sorl-note sorl-episode">{words}</p>'


def worst_epoch(turns: Sequence[Row]) -> int | None:
    """The epoch in which a turn had the largest share of its update's gradient; NaN is worse than any number."""
    measured = [turn for turn in turns if turn["gradient_share"] is not None]

    def size(turn: Row) -> float:
        share = float(turn["gradient_share"])
        return math.inf if math.isnan(share) else share

    return max(measured, key=size)["epoch"] if measured else max((turn["epoch"] for turn in turns), default=None)


def signals(known: Diagnostics) -> list[str]:
    """The columns of a step, those that spike first."""
    found = [known.rows[m]["name"] for m in known.charted if known.rows[m]["table_name"] == "step"]
    return sorted(found, key=lambda name: SIGNALS.index(name) if name in SIGNALS else len(SIGNALS))


def watched(store: Store, known: Diagnostics, run: Mapping[Any, Any], name: str) -> Watched:
    """A signal of a run in at most a thousand points, each the most extreme of its steps."""
    row = known.rows[f"step.{name}"]
    lowest = row["alarm_when"] == "below"
    ids = [run["run_id"]]
    last = store.query("extent", runs=ids, origins=[0])["last"].fillna(0).iloc[0]
    width = math.ceil((int(last) + 1) / _POINTS)
    points = store.query("peaks", run=ids[0], column=name, first=0, width=width, lowest=lowest)
    events = store.query("events", runs=ids, origins=[0])
    onset = run["collapse_step"]
    signal = Signal(
        name, row["unit"] or "", str(row["formula"] or row["description"] or ""), points,
        events[(events["kind"] == "alarm") & (events["diagnostic"] == name)], list(kept(store, ids[0])),
        None if onset != onset or onset is None else float(onset),
    )  # fmt: skip
    return Watched(run, int(last) + 1, signal, lowest)


def kept(store: Store, run: str) -> dict[int, list[int]]:
    """Step -> the trajectories whose tokens were kept there."""
    return {row["step"]: row["trajectories"] for row in store.records("kept", run=run)}


def ranked(rows: Sequence[Row], by: str) -> list[Row]:
    """The trajectories of a step, the largest first by column `by`: NaN before any number, NULL last."""

    def size(row: Row) -> tuple[int, float]:
        value = row[by]
        if value is None:
            return 2, 0.0
        return (0, 0.0) if math.isnan(value) else (1, -abs(value))

    return sorted(rows, key=size)


def shown(rows: Sequence[Row], chosen: int | None, most: int) -> list[Row]:
    """The first `most`, and the chosen one in the last place where it is not among them."""
    first = list(rows[:most])
    other = [row for row in rows[most:] if row["trajectory"] == chosen]
    return [*first[: most - 1], *other] if other else first


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The ranking as a table, for the export."""
    import pandas as pd

    return pd.DataFrame(rows)
