"""What the screens that compare arms open with where the address chooses nothing, and what is to be seen, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.app.text import number

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.cells import Turns
    from workbench.app.figures.heat import Heat

ARMS = 6
_PANELS = 4
_NAMED = 8  # arms that a sentence names


def arms(each: pd.DataFrame, most: int = ARMS) -> list[str]:
    """Up to `most` arms, in their order: of each algorithm one with a collapse, then one more with runs that stand.

    Of several the one with the most such runs, then the first. Runs that are queued or in training stand so far.
    """
    every = list(each["arm"].unique())
    if len(every) <= most:
        return every
    runs = each.assign(fell=each[["collapse_step", "onset_low"]].notna().any(axis=1)).groupby("arm", sort=False)
    table = runs.agg(algorithm=("algorithm", "first"), fell=("fell", "sum"), runs=("fell", "size"))
    table["stood"] = table["runs"] - table["fell"]
    chosen: list[str] = []
    for kind in ("fell", "stood"):
        others = table[(table[kind] > 0) & ~table.index.isin(chosen)]
        chosen += [str(mine[kind].idxmax()) for _, mine in others.groupby("algorithm", sort=False)]
    chosen = [*chosen, *(arm for arm in every if arm not in chosen)][:most]
    return sorted(chosen, key=every.index)


def metrics(alarms: pd.DataFrame, charted: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Success, the diagnostics whose alarm came before most collapses, and of the `usual` ones what there is room for.

    `alarms` as `precursors` gives them.
    """
    warned = alarms[alarms["before"] > 0].sort_values(["before", "first"], ascending=False) if len(alarms) else alarms
    first = [f"step.{name}" for name in warned["alarm"]] if len(warned) else []
    wanted = dict.fromkeys([usual[0], *first[: _PANELS - 1], *usual])
    return [metric for metric in wanted if metric in charted][:_PANELS]


def seen(runs: pd.DataFrame, alarms: pd.DataFrame) -> str:
    """Which of the chosen runs collapsed, and which alarm came first."""
    fell, down = runs[runs["collapse_step"].notna()], runs[runs["outcome"] == "falling"]
    ended = [f"{arm} in {len(mine)} of {(runs['arm'] == arm).sum()}" for arm, mine in down.groupby("arm", sort=False)]
    fading = f" Falling at the end, too late for the collapse rule: {_listed(ended)}." if ended else ""
    if fell.empty:
        return f"None of these runs collapsed.{fading}"
    parts = []
    for arm, mine in fell.groupby("arm", sort=False):
        low, high = int(mine["collapse_step"].min()), int(mine["collapse_step"].max())
        onset = f"onset at step {low:,}" + (f" to {high:,}" if high > low else "")
        parts.append(f"{arm} in {len(mine)} of {(runs['arm'] == arm).sum()} ({onset})")
    said = f"Collapsed: {_listed(parts)}.{fading}"
    others = [arm for arm in runs["arm"].unique() if arm not in {*fell["arm"], *down["arm"]}]
    said += f" Did not: {_listed(others)}." if others else ""
    warned = alarms[alarms["before"] > 0] if len(alarms) else alarms
    if warned.empty:
        return f"{said} No alarm went off before an onset."
    best = warned.sort_values(["first", "before", "lead_median"], ascending=False).iloc[0]
    steady = f", and in {best['false_alarms']} of {best['steady']} that stayed up" if best["steady"] else ""
    lead = f"{best['lead_median']:.3g} step{'' if best['lead_median'] == 1 else 's'} before the onset"
    return f"{said} First alarm: {best['alarm']}, {lead} in {best['before']} of {best['collapsed']}{steady}."


def farthest(view: Turns, maps: Sequence[Heat]) -> str:
    """The cell farthest from 1 (a ratio) or 0, before the collapse in the arms that have one, and in the others."""
    said = []
    collapsed = [part for part in maps if part.onsets]
    steady = [part for part in maps if not part.onsets]
    for group, words in ((collapsed, "before a collapse"), (steady, "without one" if collapsed else "")):
        if (found := _extreme(view, group)) is not None:
            arm, turn, step, value, ahead = found
            when = f"step {step:,}" + (f", {ahead:,} before the onset" if ahead else "")
            said.append(f"{words}{': ' if words else ''}{number(value)} in {arm}, turn {turn}, {when}")
    neutral = "1" if view.is_ratio else "0"
    return f"{view.measure.name} farthest from {neutral} {'; '.join(said)}." if said else ""


def _extreme(view: Turns, maps: Sequence[Heat]) -> tuple[str, int, int, float, int] | None:
    found: list[tuple[float, tuple[str, int, int, float, int]]] = []
    for part in maps:
        cells = part.cells.dropna(subset=["value"])
        onset = min(part.onsets, default=None)
        if onset is not None:
            cells = cells[cells["first_step"] < onset]
        for step, turn, value in cells[["first_step", "turn_index", "value"]].itertuples(index=False, name=None):
            if math.isfinite(value) and not (view.is_ratio and value <= 0):
                ahead = 0 if onset is None else round(onset - step)
                away = abs(math.log(value)) if view.is_ratio else abs(value)
                found.append((away, (part.arm, int(turn), int(step), float(value), ahead)))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _listed(words: Sequence[str]) -> str:
    shown = list(words[:_NAMED])
    return ", ".join(shown) + (f" and {len(words) - _NAMED} more arms" if len(words) > _NAMED else "")
