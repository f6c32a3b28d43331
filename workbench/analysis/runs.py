"""The runs of an experiment, one row each, and which of them are replicates: the same settings but for the seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.spec import COLLAPSED, COSMETIC, InputError, nearest
from workbench.spec.files import leaves

if TYPE_CHECKING:
    from workbench.store.reader import Reader

# Two readings of what it takes to survive: a run may be up only because it never learned.
NOT_DEAD, KEPT = "not dead", "learned and kept it"

# Of a run in training, table `run` knows neither the steps nor a collapse since the last time it began: others do.
_RUNS = """
    SELECT run_id, arm, algorithm, seed, status, reason, outcome, collapse_step, onset_low, onset_high,
           coalesce(detected, detection_step) AS detected, peak_success, final_success,
           greatest(coalesce(run.steps, 0), coalesce(seen.steps, 0)) AS steps,
           TRY(CAST(config->>'$.iterations' AS BIGINT)) AS planned, config,
           TRY(json_merge_patch(config, '{{"seed": null}}')) AS seedless
    FROM run
    LEFT JOIN (SELECT run_id, max(step) + 1 AS steps FROM step GROUP BY run_id) AS seen USING (run_id)
    LEFT JOIN (SELECT run_id, min(step) AS detected FROM event WHERE kind = 'collapse' GROUP BY run_id) USING (run_id)
    {where} ORDER BY seed, coalesce(started_at, TIMESTAMP '9999-01-01'), run_id
"""
_UPDATES = """
    SELECT run_id, avg(clip_frac) AS clip_frac, median(grad_norm) AS grad_norm_median, max(grad_norm) AS grad_norm_max
    FROM minibatch WHERE run_id IN (SELECT run_id FROM run WHERE experiment = ?) GROUP BY run_id
"""


def runs(reader: Reader, experiment: str, run_ids: Sequence[str] | None = None) -> pd.DataFrame:
    """Return one row per run as `outcomes` has it, with what its optimizer updates looked like; raises as that does."""
    return with_updates(reader, experiment, outcomes(reader, experiment, run_ids))


def with_updates(reader: Reader, experiment: str, frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` (run_id) with clip_frac (mean over a run's updates), grad_norm_median and grad_norm_max.

    Reads every update of the experiment: no roll-up holds a median.
    """
    return frame.merge(reader.query(_UPDATES, [experiment]), on="run_id", how="left")


def outcomes(reader: Reader, experiment: str, run_ids: Sequence[str] | None = None) -> pd.DataFrame:
    """Return one row per run of the experiment (of `run_ids` where given): settings, status, outcome, success.

    Arms of the same name whose configurations differ get a suffix: they are not replicates. Of a cell
    that was started over, only the newest start counts: it is one seed. `steps` is how many steps are done, `planned`
    how many the configuration asks for, `detected` the step at which a collapse was first reported.
    Raises InputError for an experiment that the store does not know.
    """
    frame = reader.query(_RUNS.format(where="WHERE experiment = ?"), [experiment])
    if frame.empty:
        known = list(reader.query("SELECT DISTINCT experiment FROM run ORDER BY 1")["experiment"])
        listed = f"; there is: {', '.join(known)}" if known else "; nothing was run yet: `sorl run FILE.toml`"
        raise InputError(f"no experiment '{experiment}'{nearest(experiment, known)}{listed}")
    if run_ids is not None:
        frame = frame[frame["run_id"].isin(list(run_ids))]
    return _split(newest(frame))


def every_run(reader: Reader) -> pd.DataFrame:
    """Return the runs of all experiments, without what the optimizer updates looked like."""
    return newest(reader.query(_RUNS.format(where=""))).drop(columns="seedless")


def newest(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the runs that a later start of the same cell (its name with -g2, -g3, ...) replaces."""
    name = frame["run_id"].str.extract(r"^(?P<cell>.*?)(?:-g(?P<start>\d+))?$")
    start = name["start"].astype(float).fillna(1)
    last = start.groupby([name["cell"], frame["arm"], frame["seed"]], dropna=False).transform("max")
    return frame[start == last]


def _split(frame: pd.DataFrame) -> pd.DataFrame:
    """Runs that share an arm's name but not its settings are different arms."""
    # Seeds aside a thousand runs have few configurations, and reading one takes as long as all the rest for a run.
    told = {text: json.dumps(replicate(text), sort_keys=True) for text in frame["seedless"].unique()}
    frame = frame.assign(settings=[told[text] for text in frame["seedless"]])
    for arm, rows in frame.groupby("arm", sort=False):
        variants = list(dict.fromkeys(rows["settings"]))
        for number, variant in enumerate(variants[1:], start=2):
            changed = (frame["arm"] == arm) & (frame["settings"] == variant)
            frame.loc[changed, "arm"] = f"{arm} #{number}: {_changes(variants[0], variant)}"
    return frame.drop(columns=["settings", "seedless"])


def replicate(config: str | None) -> dict[str, Any]:
    """The settings, by dotted key, that runs must share to be replicates: all but the seed and the cosmetic ones.

    A learning rate that follows another arm's run of the same seed (`match`) differs from seed to seed by design. How a
    run is judged does not tell runs apart either: `sorl rescan` judges all of them by one rule.
    """
    settings = settings_of(config)
    own = {"seed", *COSMETIC} | ({"learn.policy.lr"} if settings.get("match") else set())
    return {key: value for key, value in settings.items() if key not in own and not key.startswith("collapse.")}


def survived(outcome: pd.Series, survival: str = NOT_DEAD) -> pd.Series:
    """Whether judged runs survived: all that did not collapse, or with KEPT those alone that learned and kept it."""
    return outcome == "healthy" if survival == KEPT else ~outcome.isin(COLLAPSED)


def settings_of(config: Any) -> dict[str, Any]:
    """The settings of column `run.config` by dotted key; none where it holds no JSON table, as of other trainers."""
    try:
        told = json.loads(config) if isinstance(config, str) else {}
    except ValueError:
        return {}
    return flat(told) if isinstance(told, dict) else {}


def _changes(one: str, other: str) -> str:
    a, b = json.loads(one), json.loads(other)
    return ", ".join(f"{key} = {b.get(key)}" for key in {**a, **b} if a.get(key) != b.get(key))


def flat(table: dict[str, Any]) -> dict[str, Any]:
    """Return nested tables as dotted keys, without those that are empty."""
    return {key: value for key, value in leaves(table) if value != {}}
