"""What differs between the runs that fell and those that did not: settings first, then what was measured.

A setting comes before the outcome, so its share in either group is tested exactly. A measured column may
follow from the fall, so only steps before the onset count, and the same steps in every run.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from sorl.analysis.stats import Estimate, chance_higher, fisher_exact, holm

if TYPE_CHECKING:
    from sorl.store.reader import Reader

FEWEST = 3  # runs of a group below which nothing is claimed
STEPS = 10  # before the median onset
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CLOCKS = ("updates", "tokens_trained")  # they grow with the steps, whatever happens
_IDENTITY = ("seed", "run_id")


class Groups(NamedTuple):
    """The runs that fell and those that did not, by their ids; a run that has not ended stands so far."""

    fallen: list[str]
    standing: list[str]

    @property
    def are_enough(self) -> bool:
        """Whether each group has enough runs to say anything."""
        return min(len(self.fallen), len(self.standing)) >= FEWEST


class SettingShare(NamedTuple):
    """How many runs of either group have a value of a setting."""

    setting: str
    value: str
    fallen: int
    standing: int
    p: float  # Fisher's exact test
    corrected: float  # Holm, over all values that were tested
    same: tuple[str, ...] = ()  # other settings whose values divide the runs in the same way


class ColumnEffect(NamedTuple):
    """Whether a measured column is higher in the runs that fell, before they did."""

    column: str
    higher: Estimate  # chance that a run that fell has the higher value, ties half
    fallen: int  # runs with a value
    standing: int
    broken: int  # runs with a value that is NaN or Inf in these steps
    corrected: float | None  # Holm, over all columns


class Before(NamedTuple):
    """The steps before the median onset, [first, last], over which columns are compared."""

    first: int
    last: int


def split(run_ids: Sequence[str], onsets: Sequence[float]) -> Groups:
    """Divide runs by whether they have an onset (NaN: none)."""
    fallen = [run for run, onset in zip(run_ids, onsets, strict=True) if not math.isnan(onset)]
    return Groups(fallen, [run for run in run_ids if run not in set(fallen)])


def setting_shares(settings: pd.DataFrame, groups: Groups) -> list[SettingShare]:
    """Return the values of `settings` (a row a run, by run_id) by how surely they divide the groups."""
    fell = settings.index.isin(groups.fallen)
    shares = [_share(names, mask, fell) for mask, names in _divisions(settings, fell)]
    corrected = holm([share.p for share in shares])
    known = [share._replace(corrected=float(p or 0.0)) for share, p in zip(shares, corrected, strict=True)]
    return sorted(known, key=lambda share: share.p)


def _divisions(settings: pd.DataFrame, fell: np.ndarray) -> list[tuple[np.ndarray, list[tuple[str, str]]]]:
    """Return each way in which values divide the runs, with the settings and values that divide them so."""
    names: dict[bytes, list[tuple[str, str]]] = {}
    masks: dict[bytes, np.ndarray] = {}
    for setting in settings.columns.difference(list(_IDENTITY), sort=False):
        values = settings[setting]
        for value in values.unique():
            mask = (values == value).to_numpy()
            if mask.all() or _is_mirrored(values, mask, fell):
                continue
            names.setdefault(mask.tobytes(), []).append((str(setting), str(value)))
            masks[mask.tobytes()] = mask
    return [(masks[key], names[key]) for key in masks]


def _share(names: Sequence[tuple[str, str]], mask: np.ndarray, fell: np.ndarray) -> SettingShare:
    setting, value = names[0]
    fallen = int(mask[fell].sum())
    standing = int(mask[~fell].sum())
    p = fisher_exact(fallen, int(fell.sum()), standing, int((~fell).sum()))
    same = tuple(f"{name} = {text}" for name, text in names[1:])
    return SettingShare(setting, value, fallen, standing, p, p, same)


def _is_mirrored(values: pd.Series, has_value: np.ndarray, fell: np.ndarray) -> bool:
    """Whether a value says the same as the other one of its setting: of two, the more common among the fallen
    is named.
    """
    if values.nunique() != 2:
        return False
    return bool(has_value[fell].mean() < has_value[~fell].mean())


def steps_before(onsets: Sequence[float]) -> Before:
    """Return the steps before the median of the known onsets; the last is behind the first where there is
    none.
    """
    known = [onset for onset in onsets if not math.isnan(onset)]
    median = int(np.floor(np.median(known)))
    return Before(max(0, median - STEPS), median - 1)


def measured_before(
    reader: "Reader", runs: Mapping[str, float], before: Before, columns: Sequence[str]
) -> pd.DataFrame:
    """Return run_id, column, mean of its finite values and the count of its others, a row a run and column.

    `runs`: run_id -> its onset, NaN of one that stood; from its onset on a run is left out.
    """
    known = reader.query("SELECT column_name FROM duckdb_columns() WHERE table_name = 'step'")["column_name"]
    names = [name for name in columns if _NAME.fullmatch(name) and name in set(known)]
    if not names or before.last < before.first:
        return pd.DataFrame(columns=["run_id", "name", "mean", "broken"])
    cast = ", ".join(f'CAST("{name}" AS DOUBLE) AS "{name}"' for name in names)
    ends = [before.last if math.isnan(onset) else min(before.last, int(onset) - 1) for onset in runs.values()]
    return reader.query(
        f"""
        WITH chosen AS (SELECT unnest($runs) AS run_id, unnest($ends) AS last_step),
        wide AS (SELECT run_id, step, {cast} FROM step JOIN chosen USING (run_id)
                 WHERE step BETWEEN $first AND last_step)
        SELECT run_id, name, avg(value) FILTER (isfinite(value)) AS mean,
               count(*) FILTER (NOT isfinite(value)) AS broken
        FROM (UNPIVOT wide ON COLUMNS(* EXCLUDE (run_id, step)) INTO NAME name VALUE value)
        GROUP BY ALL ORDER BY ALL
        """,
        {"runs": list(runs), "ends": ends, "first": before.first},
    )


def column_effects(measured: pd.DataFrame, groups: Groups) -> list[ColumnEffect]:
    """Return the columns of `measured_before` by how surely they tell the groups apart; those with too few
    runs are left out.
    """
    effects = []
    for name, rows in measured.groupby("name", sort=False):
        known = rows.dropna(subset=["mean"])
        fallen = known.loc[known["run_id"].isin(groups.fallen), "mean"].tolist()
        standing = known.loc[known["run_id"].isin(groups.standing), "mean"].tolist()
        is_constant = len({*fallen, *standing}) < 2
        if min(len(fallen), len(standing)) < FEWEST or is_constant:
            continue
        broken = int((rows["broken"] > 0).sum())
        effect = chance_higher(fallen, standing)
        effects.append(ColumnEffect(str(name), effect, len(fallen), len(standing), broken, None))
    corrected = holm([effect.higher.p for effect in effects])
    known_effects = [effect._replace(corrected=p) for effect, p in zip(effects, corrected, strict=True)]
    return sorted(known_effects, key=_rank)


def comparable_columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the columns of table `step` that can be compared: numbers, but no clocks and no fingerprints."""
    return [
        str(row["name"])
        for row in rows
        if row["table_name"] == "step"
        and row["sql_type"] in ("DOUBLE", "BIGINT")
        and row["unit"] != "seconds"
        and row["name"] not in _CLOCKS
        and not str(row["name"]).endswith("_hash")
    ]


def _rank(effect: ColumnEffect) -> tuple[float, float]:
    p = effect.higher.p
    return (1.0 if p is None else p, -abs((effect.higher.value or 0.5) - 0.5))
