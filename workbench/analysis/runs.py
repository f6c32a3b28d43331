"""The runs of an experiment, one row each: which of them are replicates, and their settings by dotted key."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import pandas as pd

from sorl.spec import COLLAPSED, InputError, nearest
from sorl.spec.files import from_json, leaves

if TYPE_CHECKING:
    from sorl.store.reader import Reader

# Two readings of what it takes to survive: a run may be up only because it never learned.
NOT_DEAD = "not dead"
KEPT = "learned and kept it"

# Of a run in training, table `run` knows neither the steps nor a collapse since the last time it began:
# others do. Half of the peak is where a collapse begins; the two last steps on either side of it say since
# when a run is where.
_RUNS = """
    SELECT run_id, arm, algorithm, seed, status, reason, outcome, collapse_step, onset_low, onset_high,
           coalesce(detected, detection_step) AS detected, peak_success, final_success,
           forked_at, greatest(coalesce(run.steps, 0), coalesce(seen.steps, 0)) AS steps,
           CASE WHEN status = 'running' THEN spent ELSE seconds END AS seconds,
           first_success, last_success, last_low, last_high,
           TRY(CAST(config->>'$.iterations' AS BIGINT)) AS planned, config,
           TRY(json_merge_patch(config, '{{"seed": null}}')) AS seedless
    FROM run
    LEFT JOIN (
        SELECT run_id, max(step) + 1 AS steps, avg(success) FILTER (step < 5) AS first_success,
               arg_max(success, step) AS last_success,
               sum(coalesce(seconds_total, 0) + coalesce(seconds_record, 0))
                   FILTER (seconds_total IS NOT NULL) AS spent,
               max(step) FILTER (isfinite(success) AND success < peak_success / 2) AS last_low,
               max(step) FILTER (isfinite(success) AND success >= peak_success / 2) AS last_high
        FROM step LEFT JOIN (SELECT run_id, peak_success FROM run) USING (run_id) GROUP BY run_id
    ) AS seen USING (run_id)
    LEFT JOIN (
        SELECT run_id, min(step) AS detected FROM event WHERE kind = 'collapse' GROUP BY run_id
    ) USING (run_id)
    {where} ORDER BY seed, coalesce(started_at, TIMESTAMP '9999-01-01'), run_id
"""
_UPDATES = """
    SELECT run_id, avg(clip_frac) AS clip_frac,
           median(grad_norm) AS grad_norm_median, max(grad_norm) AS grad_norm_max
    FROM minibatch WHERE run_id IN (SELECT run_id FROM run WHERE experiment = ?) GROUP BY run_id
"""


def runs(reader: "Reader", experiment: str, run_ids: Sequence[str] | None = None) -> pd.DataFrame:
    """Return `outcomes` with the columns of `with_updates`."""
    return with_updates(reader, experiment, outcomes(reader, experiment, run_ids))


def with_updates(reader: "Reader", experiment: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Add clip_frac (mean over a run's updates), grad_norm_median and grad_norm_max to `frame`, by run_id."""
    return frame.merge(reader.query(_UPDATES, [experiment]), on="run_id", how="left")


def outcomes(reader: "Reader", experiment: str, run_ids: Sequence[str] | None = None) -> pd.DataFrame:
    """Return one row per run of the experiment (of `run_ids`), the newest start of each cell; InputError if
    unknown.

    Arms of one name whose configurations differ get a suffix: they are not replicates. `planned`: configured
    steps; `detected`: the step at which a collapse was first reported; first_success: mean of the first five
    steps; last_success: of the last measured step; last_low, last_high: the last step below half of the peak,
    and not below.
    """
    frame = reader.query(_RUNS.format(where="WHERE experiment = ?"), [experiment])
    if frame.empty:
        known = list(reader.query("SELECT DISTINCT experiment FROM run ORDER BY 1")["experiment"])
        listed = f"; there is: {', '.join(known)}" if known else "; nothing was run yet: `sorl run FILE.toml`"
        raise InputError(f"no experiment '{experiment}'{nearest(experiment, known)}{listed}")
    if run_ids is not None:
        frame = frame[frame["run_id"].isin(list(run_ids))]
    frame = newest(frame)
    arms = frame["arm"].copy()
    # A thousand runs have few configurations apart from their seeds: each of these is parsed once.
    for arm, texts in frame["seedless"].groupby(frame["arm"], sort=False):
        variants: list[dict[str, Any]] = []
        for text in texts.unique():
            if (own := replicate(text)) not in variants:
                variants.append(own)
            if number := variants.index(own):
                first = variants[0]
                changes = ", ".join(
                    f"{k} = {own.get(k)}" for k in {**first, **own} if first.get(k) != own.get(k)
                )
                arms[texts.index[texts == text]] = f"{arm} #{number + 1}: {changes}"
    return frame.drop(columns="seedless").assign(arm=arms)


def every_run(reader: "Reader") -> pd.DataFrame:
    """Return the runs of all experiments, without what the optimizer updates looked like."""
    return newest(reader.query(_RUNS.format(where=""))).drop(columns="seedless")


def newest(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop the runs that a later start of the same cell (its name with -g2, -g3, ...) replaces."""
    name = frame["run_id"].str.extract(r"^(.*?)(?:-g(\d+))?$")
    start = name[1].astype(float).fillna(1)
    last = start.groupby([name[0], frame["arm"], frame["seed"]], dropna=False).transform("max")
    return frame[start == last]


def survived(outcome: pd.Series, survival: str = NOT_DEAD) -> pd.Series:
    """Return which judged runs survived: all without a collapse, or with KEPT only those that learned and
    kept it.
    """
    return outcome == "healthy" if survival == KEPT else ~outcome.isin(COLLAPSED)


def flat(table: dict[str, Any]) -> dict[str, Any]:
    """Return nested tables as dotted keys, without those that are empty."""
    return {key: value for key, value in leaves(table) if value != {}}


def settings_of(config: Any) -> dict[str, Any]:
    """Return the settings of column `run.config` by dotted key; none where it holds no JSON table (other
    trainers).
    """
    return flat(nested(config))


def nested(text: Any) -> dict[str, Any]:
    """Return the JSON table of column `run.config`; {} where it holds none (other trainers)."""
    try:
        table = from_json(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return table if isinstance(table, dict) else {}


def replicate(config: str | None) -> dict[str, Any]:
    """Return the settings, by dotted key, that replicates share: all but the seed, the cosmetic and the
    collapse rule.

    A learning rate that follows another arm's run of the same seed (`match`) differs from seed to seed by
    design, and so does what a guard changed.
    """
    from sorl.spec import COSMETIC

    settings = settings_of(config)
    own = {"seed", *COSMETIC} | ({"learn.policy.lr"} if settings.get("match") else set())
    left_out = ["collapse."]
    if settings.get("guard.changes"):
        left_out += ["fork.", "guard.done"]
        own.update(chain(*settings["guard.changes"]))
    return {
        key: value
        for key, value in settings.items()
        if key not in own and not key.startswith(tuple(left_out))
    }


def settings(config: str | None, slots: str | None) -> dict[str, Any]:
    """Return the settings of an arm, those of its slots as slot.SLOT.OPTION; {} for the logs of other
    trainers.
    """
    own = replicate(config)
    parts = nested(slots)
    if not own or not parts:
        return {}
    chosen = {f"slot.{key}": value for key, value in leaves(parts.pop("slots", {}))}
    return (
        {key: v for key, v in own.items() if key.split(".")[0] not in ("algorithm", "slots")} | chosen | parts
    )
