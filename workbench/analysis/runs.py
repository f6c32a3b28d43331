"""The runs of an experiment, one row each, which of them are replicates, and arms by their settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from pydantic import ValidationError

from workbench.spec import COLLAPSED, COSMETIC, CollapseSettings, InputError, nearest
from workbench.spec.files import from_json, leaves

if TYPE_CHECKING:
    from workbench.analysis.results import Results
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
    """`frame` (run_id) with clip_frac (mean over a run's updates), grad_norm_median and grad_norm_max."""
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
    frame = newest(frame)
    # Seeds aside a thousand runs have few configurations, and reading one takes as long as all the rest for a run.
    keys = {text: json.dumps(replicate(text), sort_keys=True) for text in frame["seedless"].unique()}
    own = pd.Series([keys[text] for text in frame["seedless"]], frame.index, dtype=object)
    arms = frame["arm"].copy()
    for arm, variants in own.groupby(frame["arm"], sort=False):
        first, *others = variants.unique()
        for number, variant in enumerate(others, start=2):
            a, b = json.loads(first), json.loads(variant)
            changes = ", ".join(f"{key} = {b.get(key)}" for key in {**a, **b} if a.get(key) != b.get(key))
            arms[variants.index[variants == variant]] = f"{arm} #{number}: {changes}"
    return frame.drop(columns="seedless").assign(arm=arms)


def every_run(reader: Reader) -> pd.DataFrame:
    """Return the runs of all experiments, without what the optimizer updates looked like."""
    return newest(reader.query(_RUNS.format(where=""))).drop(columns="seedless")


def newest(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the runs that a later start of the same cell (its name with -g2, -g3, ...) replaces."""
    name = frame["run_id"].str.extract(r"^(?P<cell>.*?)(?:-g(?P<start>\d+))?$")
    start = name["start"].astype(float).fillna(1)
    last = start.groupby([name["cell"], frame["arm"], frame["seed"]], dropna=False).transform("max")
    return frame[start == last]


def survived(outcome: pd.Series, survival: str = NOT_DEAD) -> pd.Series:
    """Whether judged runs survived: all that did not collapse, or with KEPT those alone that learned and kept it."""
    return outcome == "healthy" if survival == KEPT else ~outcome.isin(COLLAPSED)


# Settings


def flat(table: dict[str, Any]) -> dict[str, Any]:
    """Return nested tables as dotted keys, without those that are empty."""
    return {key: value for key, value in leaves(table) if value != {}}


def settings_of(config: Any) -> dict[str, Any]:
    """The settings of column `run.config` by dotted key; none where it holds no JSON table, as of other trainers."""
    return flat(_table(config))


def _table(text: Any) -> dict[str, Any]:
    try:
        table = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return table if isinstance(table, dict) else {}


def replicate(config: str | None) -> dict[str, Any]:
    """The settings, by dotted key, that runs must share to be replicates: all but the seed and the cosmetic ones.

    A learning rate that follows another arm's run of the same seed (`match`) differs from seed to seed by design. How a
    run is judged does not tell runs apart either: `sorl rescan` judges all of them by one rule.
    """
    settings = settings_of(config)
    own = {"seed", *COSMETIC} | ({"learn.policy.lr"} if settings.get("match") else set())
    return {key: value for key, value in settings.items() if key not in own and not key.startswith("collapse.")}


def settings(config: str | None, slots: str | None) -> dict[str, Any]:
    """Return the settings of a run as a Design has them; empty where the run does not say (logs of another trainer)."""
    own, parts = replicate(config), _table(slots)
    if not own or not parts:
        return {}
    slotted = parts.pop("slots", {})
    chosen = {f"slot.{slot}.{name}": value for slot, options in slotted.items() for name, value in options.items()}
    return {key: v for key, v in own.items() if key.split(".")[0] not in ("algorithm", "slots")} | chosen | parts


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

    @property
    def reading(self) -> str:
        """Which reading of the paper's turn ratio and normalisation ran, in words; empty where there is but one.

        The authors' fork divides by the RMS of the ratios where it exceeds tau; equations 7 and 8 of the paper are
        known from a description; a note has arithmetic turn ratios and a KL term times the clip fraction.
        """
        kind, tau = str(self.settings.get("slot.stabilise.kind")), self.settings.get("slot.stabilise.tau")
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
        parts = (known.get(kind, kind), "arithmetic turn ratios, of a note" if arithmetic else "")
        return "; ".join(part for part in parts if part)

    def fits(self, wanted: Mapping[str, Any]) -> bool:
        """Whether it has these properties: `{"ratio": "turn", "stabilised": False}`."""
        return all(getattr(self, name) == value for name, value in wanted.items())

    def agrees(self, other: Design, keys: Sequence[str]) -> bool:
        """Whether both have the same value of these keys."""
        return all(self.settings.get(key) == other.settings.get(key) for key in keys)

    def only_in(self, other: Design, keys: Sequence[str]) -> bool:
        """Whether the two differ, and in nothing but `keys` (a key, or the beginning of one that ends in a dot)."""
        mine, theirs = self.settings, other.settings
        changed = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]
        return bool(changed) and all(any(c == k or (k[-1] == "." and c.startswith(k)) for k in keys) for c in changed)


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
        renamed = {}
        for arm, rows in found.runs.groupby("arm", sort=False):
            known = settings(rows["config"].iloc[0], rows["slots"].iloc[0])
            key = json.dumps(known, sort_keys=True) if known else f"{found.experiment} {arm}"
            own = f"{arm} ({found.experiment})" if arm in names.values() else str(arm)
            renamed[arm] = names.setdefault(key, own)
        parts.append(found.runs.assign(arm=found.runs["arm"].map(renamed)))
    return pd.concat(parts, ignore_index=True).drop_duplicates(["arm", "seed"], ignore_index=True)


# Recorded runs, to judge them again

JUDGED = ("outcome", "collapse_step", "onset_low", "onset_high", "detection_step", "peak_success", "final_success")


@dataclass(frozen=True)
class Recorded:
    """A run as the database has it: its row, its rows of table `step` in order, and its events."""

    row: dict[str, Any]
    steps: list[dict[str, float | None]]
    events: list[dict[str, Any]]
    group: int | None = None  # episodes that share a prompt, as table `trajectory` has them; None where it has none

    @property
    def run_id(self) -> str:
        """Identity of the run."""
        return str(self.row["run_id"])

    @property
    def config(self) -> dict[str, Any]:
        """Its configuration; empty where it has none, as of other trainers. Raises InputError where it is no table."""
        try:
            table = from_json(self.row["config"]) if self.row["config"] else {}
        except ValueError:
            table = None
        if not isinstance(table, dict):
            raise InputError(f"run '{self.run_id}': its stored configuration is no JSON table")
        return table

    @property
    def settings(self) -> CollapseSettings:
        """The collapse rule that the run was configured with; the defaults where it does not say."""
        try:
            return CollapseSettings.model_validate(self.config.get("collapse", {}))
        except ValidationError:
            raise InputError(f"run '{self.run_id}': its stored configuration has a [collapse] that is none") from None

    @property
    def episodes(self) -> int | None:
        """Episodes behind each point of the curve; None where the configuration does not say."""
        learn = self.config.get("learn")
        episodes = learn.get("episodes") if isinstance(learn, dict) else None
        return episodes if isinstance(episodes, int) and episodes > 0 else None


def recorded(reader: Reader, columns: Sequence[str], experiment: str | None = None) -> list[Recorded]:
    """Every run (of `experiment`) that is over and has steps, with `columns` of these; unknown columns are left out."""

    def rows(sql: str, *parameters: Any) -> list[dict[str, Any]]:
        answer = reader.rows(sql, list(parameters))
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]

    found = []
    over = "status IN ('finished', 'failed', 'interrupted') AND coalesce(?, experiment) IS NOT DISTINCT FROM experiment"
    for row in rows(f"SELECT * FROM run WHERE {over} ORDER BY run_id", experiment):
        run = row["run_id"]
        steps = rows("SELECT * FROM step WHERE run_id = ? ORDER BY step", run)
        if steps:  # a run whose rows are gone keeps the verdict of when they were there
            (group,) = rows(
                "SELECT count(*) // nullif(count(DISTINCT prompt_group), 0) AS size FROM trajectory WHERE run_id = ? "
                "AND step = (SELECT min(step) FROM trajectory WHERE run_id = ?)",
                run,
                run,
            )
            known = [{name: step[name] for name in ("step", *columns) if name in step} for step in steps]
            events = rows("SELECT * FROM event WHERE run_id = ? ORDER BY step", run)
            found.append(Recorded(row, known, events, group["size"]))
    return found


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what the verdict says differently now, in words."""

    def word(value: Any) -> str:
        return "NULL" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, float) and isinstance(b, float):
            return abs(a - b) <= 1e-9 or (a != a and b != b)
        return bool(a == b)

    return [f"{n} {word(old.get(n))} -> {word(new[n])}" for n in JUDGED if not same(old.get(n), new[n])]
