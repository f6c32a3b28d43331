"""The judged runs of an experiment of kind region, and the rectangle that its file searches."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.analysis.runs import flat, newest, replicate
from workbench.spec import COLLAPSED, UNDECIDED, GridFile, InputError, RegionSettings

if TYPE_CHECKING:
    from workbench.store.reader import Reader

_RUNS = """
    SELECT run_id, arm, algorithm, seed, status, outcome, final_success, seconds, started_at, config
    FROM run WHERE experiment = ? ORDER BY started_at NULLS LAST, run_id
"""


@dataclass(frozen=True)
class Landscape:
    """`runs` has one row a judged run.

    series (arm without its point), algorithm, slice (what further numeric axes say, else empty), y (condition, 0 where
    no axis is numeric), x (value of the searched setting), seed, collapsed (bool), final (success), seconds. Runs that
    were falling at their end are in `fading`, with the same columns: they count neither way, see `with_fading`.
    """

    runs: pd.DataFrame
    settings: RegionSettings
    across: str | None  # setting of the conditions; None without one
    planned: int  # seeds of a point beside the boundary
    left_out: int = 0  # runs with other settings: the file was edited since
    unjudged: int = 0  # finished, but too short for the collapse rule
    fading: pd.DataFrame = field(default_factory=pd.DataFrame)

    def with_fading(self) -> Landscape:
        """The region if every run that was falling at its end had collapsed."""
        down = self.fading.assign(collapsed=True)
        return replace(self, runs=pd.concat([self.runs, down], ignore_index=True), fading=self.fading.iloc[:0])

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Every (series, slice), in the order of their first runs."""
        return list(dict.fromkeys(zip(self.runs["series"], self.runs["slice"], strict=True)))

    def part(self, series: str, piece: str) -> pd.DataFrame:
        """The runs of one series in one slice."""
        return self.runs[(self.runs["series"] == series) & (self.runs["slice"] == piece)]


def region_file(reader: Reader, experiment: str) -> GridFile | None:
    """The recorded grid file of an experiment of kind region; None for any other experiment."""
    found = reader.query("SELECT toml FROM experiment WHERE experiment = ?", [experiment])
    return region_of(None if found.empty else found["toml"].iloc[0])


def region_of(text: object) -> GridFile | None:
    """The grid file of this text if it is of kind region; None for any other text."""
    if not isinstance(text, str) or "region" not in text:
        return None
    try:
        document = tomllib.loads(text)
        file = GridFile.model_validate({**document, "axes": flat(document.get("axes", {}))})
    except (tomllib.TOMLDecodeError, ValueError, AttributeError):
        return None  # of another version, or of another trainer
    return file if file.kind == "region" else None


def landscape(reader: Reader, experiment: str) -> Landscape:
    """The region of an experiment; InputError where it is none, or has no run that can be judged yet."""
    file = region_file(reader, experiment)
    if file is None or file.region is None:
        raise InputError(f"'{experiment}' is no experiment of kind region")
    return from_runs(newest(reader.query(_RUNS, [experiment])), file, experiment)


def from_runs(frame: pd.DataFrame, file: GridFile, experiment: str) -> Landscape:
    """The region from a row a run in the order of their starts; InputError where no run can be judged yet."""
    assert file.region is not None
    frame = frame[frame["config"].notna()]
    keys = [key for key, values in file.axes.items() if _numeric(values)]
    runs, left_out = _same_settings(frame, file, keys)
    over = runs[runs["status"] == "finished"]
    judged = over[over["outcome"].notna()]
    if judged.empty:
        raise InputError(f"no run of '{experiment}' can be judged yet; `sorl run` it, or wait for its first round")
    across, further = (keys[0], keys[1:]) if keys else (None, [])
    several = sum(len(file.axes[key]) > 1 for key in keys)
    settings = [flat(json.loads(config)) for config in judged["config"]]
    rows = pd.DataFrame(
        {
            "run_id": judged["run_id"].to_list(),
            "series": [arm.rsplit(" · ", several + 1)[0] for arm in judged["arm"]],
            "algorithm": judged["algorithm"].to_list(),
            "slice": [_slice(s, [k for k in further if len(file.axes[k]) > 1]) for s in settings],
            "y": [float(s[across]) if across else 0.0 for s in settings],
            "x": [float(s[file.region.along]) for s in settings],
            "seed": judged["seed"].to_list(),
            "collapsed": judged["outcome"].isin(COLLAPSED).to_list(),
            "falling": judged["outcome"].isin(UNDECIDED).to_list(),
            "final": judged["final_success"].to_list(),
            "seconds": judged["seconds"].fillna(0.0).to_list(),
        }
    )
    order = {name: i for i, name in enumerate(_series_order(file))}
    rows = rows.sort_values(
        ["series", "slice", "y", "x", "seed"], ignore_index=True, kind="stable",
        key=lambda c: c.map(lambda name: order.get(name, len(order))) if c.name == "series" else c,
    )  # fmt: skip
    down = rows.pop("falling").astype(bool)
    return Landscape(
        rows[~down].reset_index(drop=True), file.region, across, len(file.seeds), left_out, len(over) - len(judged),
        rows[down].reset_index(drop=True),
    )  # fmt: skip


def _numeric(values: list[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _series_order(file: GridFile) -> list[str]:
    return [*(a for a in file.axes.get("algorithm", []) if isinstance(a, str)), *(arm.name for arm in file.arms)]


def _slice(settings: Mapping[str, Any], keys: list[str]) -> str:
    return ", ".join(f"{key.rsplit('.', 1)[-1]} {settings[key]:g}" for key in keys)


def _same_settings(frame: pd.DataFrame, file: GridFile, keys: list[str]) -> tuple[pd.DataFrame, int]:
    """The runs whose common settings are those of the newest run, and how many others there are."""
    if frame.empty:
        return frame, 0
    assert file.region is not None
    apart = {*file.axes, *keys, file.region.along, *(k for arm in file.arms for k in flat(arm.model_extra or {}))}
    common = [
        json.dumps({k: v for k, v in replicate(config).items() if not _under(k, apart)}, sort_keys=True)
        for config in frame["config"]
    ]
    begun = frame["started_at"].notna().to_numpy()
    last = common[int(begun.nonzero()[0][-1])] if begun.any() else common[-1]
    same = [c == last for c in common]
    return frame[same], len(frame) - sum(same)


def _under(key: str, parents: set[str]) -> bool:
    return any(key == parent or key.startswith(f"{parent}.") for parent in parents)
