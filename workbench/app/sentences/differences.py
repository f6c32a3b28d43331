"""What Compare says of the differences between the runs that fell and the others."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from sorl.analysis.differences import FEWEST, Before, ColumnEffect, Groups, SettingShare
from sorl.analysis.stats import p_value, percent
from sorl.app.text import few
from sorl.diagnosis.standing import counted
from sorl.spec.evidence import ALPHA

MOST = 10  # rows
_SETTINGS = 5  # of these, so that measured columns have room
_SAME = 2  # settings named that divide the runs in the same way


class Row(NamedTuple):
    """A difference, in words; `column` is the measured one that a curve can show."""

    what: str
    fallen: str
    standing: str
    effect: str
    p: str
    column: str = ""

    def written(self) -> dict[str, str]:
        """Return the cells of the table by their heads."""
        return {
            "what differs": self.what,
            "runs that fell": self.fallen,
            "the others": self.standing,
            "effect": self.effect,
            "p (Holm)": self.p,
        }


def too_few_sentence(groups: Groups) -> str:
    """Say why nothing is claimed."""
    return (
        f"{counted(len(groups.fallen), 'run')} fell and {len(groups.standing)} did not: nothing is claimed"
        f" from fewer than {FEWEST} of each."
    )


def differences_sentence(
    groups: Groups, shares: Sequence[SettingShare], effects: Sequence[ColumnEffect]
) -> str:
    """Say how many settings and columns tell the runs that fell from the others beyond chance."""
    surely_set = [share for share in shares if share.corrected <= ALPHA]
    surely_measured = [effect for effect in effects if (effect.corrected or 1.0) <= ALPHA]
    start = f"{counted(len(groups.fallen), 'run')} fell and {len(groups.standing)} did not."
    if not shares and not effects:
        return f"{start} Nothing was recorded in which they could differ."
    settings = _of(len(surely_set), len(shares), "value of a setting", "values of settings")
    columns = _of(len(surely_measured), len(effects), "measured column", "measured columns")
    return f"{start} Beyond chance: {settings} and {columns}."


def _of(count: int, among: int, singular: str, plural: str) -> str:
    return f"{count or 'none'} of {among} {singular if among == 1 else plural}"


def rows_of(groups: Groups, shares: Sequence[SettingShare], effects: Sequence[ColumnEffect]) -> list[Row]:
    """Return the surest differences, settings first, at most MOST."""
    settings = [_setting_row(share, groups) for share in shares[:_SETTINGS]]
    measured = [_column_row(effect) for effect in effects[: MOST - len(settings)]]
    return [*settings, *measured]


def _setting_row(share: SettingShare, groups: Groups) -> Row:
    name = f"{share.setting} = {share.value or 'not set'}"
    if share.same:
        name += f" (the same runs: {few(share.same, _SAME, ', ', ' setting')})"
    fell = share.fallen / len(groups.fallen)
    stood = share.standing / len(groups.standing)
    return Row(
        name,
        f"{share.fallen} of {len(groups.fallen)}",
        f"{share.standing} of {len(groups.standing)}",
        f"{percent(fell)} against {percent(stood)}",
        p_value(share.corrected),
    )


def _column_row(effect: ColumnEffect) -> Row:
    chance = effect.higher
    name = effect.column
    if effect.broken:
        name += f" (NaN or Inf in {counted(effect.broken, 'run')})"
    value = chance.value or 0.0
    word = "higher" if value >= 0.5 else "lower"
    ends = [chance.low or 0.0, chance.high if chance.high is not None else 1.0]
    share = value if value >= 0.5 else 1 - value
    low, high = ends if value >= 0.5 else (1 - ends[1], 1 - ends[0])
    return Row(
        name,
        counted(effect.fallen, "run"),
        counted(effect.standing, "run"),
        f"{word} in {percent(share)} of pairs [{percent(low)}, {percent(high)}]",
        p_value(effect.corrected),
        effect.column,
    )


def about(before: Before, groups: Groups, measured: pd.DataFrame) -> str:
    """Say over which steps columns were compared, and how many runs are not in it."""
    known = set(measured["run_id"])
    lost = len([run for run in groups.fallen if run not in known])
    if before.last < before.first:
        return "The median onset is step 0: no step before it could be measured."
    lines = [
        "Settings: Fisher's exact test. Columns: mean over steps"
        f" {before.first} to {before.last}, just before the median onset, in every run, in a run that fell"
        " only until its own onset; the chance that a run that fell has the higher (or lower) value than"
        " another, with its 95 % interval; Mann-Whitney test. Clocks are left out."
    ]
    if lost:
        lines.append(
            f"{counted(lost, 'run')} that fell did so before these steps and count only for settings."
        )
    lines.append("A difference before the fall need not be its cause.")
    return " ".join(lines)
