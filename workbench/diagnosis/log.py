"""A log as the diagnosis reads it: the tables of one run, loaded on demand, and its settings."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sorl.analysis.runs import settings_of
from sorl.collapse.unsized import UnsizedCurve
from sorl.diagnosis.changepoint import Curve, Departure, Outcome
from sorl.spec import InputError
from sorl.spec.evidence import Removal
from sorl.spec.reading import Reading
from sorl.store import batches
from sorl.store.batches import StoredBatch

if TYPE_CHECKING:
    from sorl.store.reader import Reader

Load = Callable[[str, int | None], pd.DataFrame]  # table, a step or None for all of them
HIDDEN = "fault"  # the label of an injected fault: a diagnosis that read it would prove nothing
ORDER = {
    "minibatch": ("step", "update"),
    "turn": ("step", "epoch", "trajectory", "turn_index"),
    "turn_step": ("step", "turn_index"),
    "trajectory": ("step", "trajectory"),
    "token": ("step", "trajectory"),
}

# What a cause may ask for by a name of its own: the columns that can stand for it, the best first.
SIGNALS = {
    "reward": ("step.reward", "step.success"),
    "clip fraction": ("step.clip_frac", "step.corrected_frac"),
    "KL": ("step.kl_ref", "step.approx_kl"),
    "critic": ("minibatch.value_loss", "step.explained_variance"),
    "answer length": (
        "step.response_tokens",
        "step.ppo_actor_seq_len_avg",
        "step.env_all_ac_tokens_per_turn",
    ),
    "sampler mismatch": ("minibatch.mismatch", "step.mismatch_kl"),
    # the last one is NeMo-RL's, of the weights before or after the clamp
    "correction weight": (
        "step.correction_scale",
        "minibatch.correction_mean",
        "step.sampling_importance_ratio",
    ),
    "order of the data": ("trajectory.sample", "trajectory.question"),
}
# Columns that keep the name they have in the log of another trainer.
EVALUATION = re.compile(r"(eval|val|test|validation)_.*(acc|reward|score|success|pass|avg|mean)")
PART = "reward_part_"

# What the recorder calls the trainer that it runs in, and `trainers.toml`.
RECORDED_TRAINERS = {
    "trl": "TRL",
    "verl": "verl",
    **{name: name for name in ("NeMo-RL", "prime-rl", "SkyRL", "slime")},
    "tinker-cookbook": "tinker",
}
# What is read of the tables with long rows.
COLUMNS = {
    "trajectory": (
        "step",
        "trajectory",
        "prompt_group",
        "rollout_step",
        "sample",
        "question",
        "answer",
        "ended",
        "reward",
        "success",
        "advantage",
        "n_turns",
        "n_tokens",
        "n_searches",
        "n_observation_tokens",
        "valid_turn_frac",
        "gradient_share",
        "correction_mean",
        "gap",
    ),
    "token": (
        "step",
        "trajectory",
        "token",
        "trained",
        "log_prob_behaviour",
        "log_prob_old",
        "log_prob",
        "entropy",
    ),
}


@dataclass
class Log:
    """What was logged of one run. A table that nobody logged is empty, a column that nobody logged absent or
    all NULL.

    `settings` are dotted keys (`learn.staleness`), empty where nothing is known of them. Of a run that fell:
    `onset`, the step at which the fall began that it collapsed in or ended in; `fallen_by`, the last step
    that it may have begun after (95 %): what shows later is no cause of it; `certain`, the step by which it
    is. None of a run that did not.
    """

    name: str
    load: Load
    settings: Mapping[str, Any] = field(default_factory=dict)
    # row of table `run`: status, outcome, collapse_step, ...
    run: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None  # of the run, with its stored batches
    # cause -> how forks of the run do without it
    tests: Mapping[str, Removal] = field(default_factory=dict)
    reading: Reading | None = None  # how the log of another trainer was read

    def __post_init__(self) -> None:
        self.table = cache(self._table)
        self.curve = cache(self._curve)
        self.settings = {k: v for k, v in self.settings.items() if k.split(".")[0] != HIDDEN}
        self.onset = self.first_known("collapse_step", "onset_low")
        self.fallen_by = self.first_known("onset_high", "collapse_step", "onset_low")
        self.certain = self.first_known("detection_step", "onset_high", "collapse_step")

    def _table(self, name: str) -> pd.DataFrame:
        """Return the rows of a table in the order of its key."""
        found = self.load(name, None)
        order = [key for key in ORDER.get(name, ("step",)) if key in found]
        return found.sort_values(order, ignore_index=True) if order else found

    def transcripts(self, *columns: str) -> pd.DataFrame:
        """Step and these columns of the kept transcripts that have all of them: no update trains on some of a
        run.
        """
        frame = self.table("token")
        wanted = ["step", *columns]
        return (frame if set(wanted) <= {*frame} else pd.DataFrame(columns=wanted))[wanted].dropna(
            ignore_index=True
        )

    @cached_property
    def rescored(self) -> pd.Index:
        """Steps with old log-probs of a later policy than the sampler: a mismatch may be what it has learned.

        On stale rollouts, or where the turns are trained one after the other: by then there are more updates
        a step than epochs times minibatches, each turn with old log-probs of its own.
        """
        age = self.series("step", "staleness")
        updates = self.series("minibatch", "epoch", "count")
        epochs, minibatches = (self.settings.get(f"learn.{name}") for name in ("epochs", "minibatches"))
        if (
            isinstance(epochs, int)
            and isinstance(minibatches, int)
            and (updates > epochs * minibatches).any()
        ):
            return age.index
        kept = self.settings.get("learn.old_log_prob") in ("rollout", "behaviour")
        return age.index[:0] if kept else age.index[age > 0]

    def batch(self, step: int) -> StoredBatch | None:
        """Return the training batch of a step; None where it was not kept, or cannot be read."""
        with suppress(InputError):
            if self.folder is not None and step in batches.steps(self.folder):
                return batches.read(self.folder, step)
        return None

    def measured(self, table: str, *columns: str) -> bool:
        """Return whether every one of the columns has a value somewhere."""
        frame = self.table(table)
        return all(name in frame and bool(frame[name].notna().any()) for name in columns)

    def series(self, table: str, column: str, how: str = "mean") -> pd.Series:
        """Return one value a step, indexed by the step, of several rows of a step by `how`; empty if not
        logged.
        """
        frame = self.table(table)
        if column not in frame or "step" not in frame:
            return pd.Series(dtype=float, name=f"{table}.{column}")
        values = pd.to_numeric(frame[column], errors="coerce").astype(float).set_axis(frame["step"])
        return (
            (values if table == "step" else values.groupby(level=0).agg(how))
            .dropna()
            .rename(f"{table}.{column}")
        )

    def first_above(
        self, table: str, column: str, mark: float, usual: float = 0.0, how: str = "max"
    ) -> Departure | None:
        """Return the first step at which a column (of several rows `how`) is above a mark."""
        above = self.series(table, column, how).loc[lambda series: series > mark]
        return (
            None
            if above.empty
            else Departure(str(above.name), int(above.index[0]), float(above.iloc[0]), usual)
        )

    def columns(self, name: str) -> list[str]:
        """Return the measured `table.column` that a name stands for: a column itself, or one of SIGNALS."""
        found = list(SIGNALS.get(name, (name,)))
        logged = map(str, self.table("step"))
        if name == "evaluation":
            found = [
                "step.heldout_success",
                *(f"step.{column}" for column in logged if EVALUATION.match(column)),
            ]
        elif name == "reward parts":
            found = [f"step.{column}" for column in logged if column.startswith(PART)]
        return [column for column in found if self.measured(*column.split(".", 1))]

    def _curve(self, name: str) -> Curve | None:
        """Return a column or signal as a curve of means, of evaluations the longest; None where it has few
        points.
        """
        found = [Curve.of(column, self.series(*column.split(".", 1))) for column in self.columns(name)]
        curves = [curve for curve in found if curve is not None]
        return max(curves, key=len) if name == "evaluation" and curves else next(iter(curves), None)

    @cached_property
    def ledger(self) -> bool:
        """Whether our recorder wrote it, with rows of turns: no log of scalars."""
        return any(not self.table(name).empty for name in ("trajectory", "turn_step", "token"))

    @cached_property
    def parts(self) -> dict[str, Curve]:
        """The parts of the reward by name, each times its weight in the reward: least squares; 1 of too few
        points.
        """
        named = {column.split(PART, 1)[1]: self.curve(column) for column in self.columns("reward parts")}
        curves = {part: curve for part, curve in named.items() if curve is not None}
        reward = self.curve("reward")
        if len(curves) < 2 or reward is None:
            return curves
        rows = pd.DataFrame(
            {part: curve.series for part, curve in curves.items()} | {"": reward.series}
        ).dropna()
        if len(rows) < 10 * len(curves):
            return curves
        known = np.column_stack([rows[list(curves)], np.ones(len(rows))])
        weights = np.linalg.lstsq(known, rows[""].to_numpy(), rcond=None)[0].clip(min=0)
        scaled = zip(curves.items(), weights, strict=False)  # the last weight is that of the constant
        return {
            part: Curve(curve.column, curve.steps, weight * curve.values) for (part, curve), weight in scaled
        }

    @property
    def counts_episodes(self) -> bool:
        """Whether it is known how many episodes are behind the score of a step, and so its noise."""
        return "learn.episodes" in self.settings or (self.ledger and self.measured("step", "success"))

    @cached_property
    def unsized(self) -> UnsizedCurve:
        """The score as the verdict on logs of unknown noise sees it."""
        score = self.series("step", "success")
        return UnsizedCurve(score.tolist(), score.index.tolist())

    @cached_property
    def is_recorded(self) -> bool:
        """Whether another trainer made the run, and our recorder or an import wrote the ledger."""
        with suppress(ValueError, LookupError, TypeError):
            return self.ledger and bool(json.loads(self.run["versions"])["trainer"])
        return False

    @cached_property
    def trainer(self) -> str:
        """Another trainer that the run is of, as `trainers.toml` spells it; empty where none is known."""
        if self.reading is not None:
            return self.reading.trainer
        with suppress(ValueError, LookupError, TypeError):
            return RECORDED_TRAINERS[json.loads(self.run["versions"])["trainer"]]
        return ""

    @property
    def score_name(self) -> str:
        """What the score is called: reward, where the log of another trainer has no success of its own."""
        score = self.series("step", "success")
        if score.empty:
            return "reward"
        is_reward = self.reading is not None and score.equals(self.series("step", "reward"))
        return "reward" if is_reward else "success"

    def outcome(self, since: int) -> Outcome | None:
        """What the reward does from a step on; None where none is logged."""
        return None if (reward := self.curve("reward")) is None else Outcome.of(reward, since)

    @cached_property
    def logged(self) -> list[pd.Series]:
        """The steps of the rows of `step` and of `minibatch`, where there are any."""
        frames = (self.table(name) for name in ("step", "minibatch"))
        return [frame["step"] for frame in frames if len(frame) and "step" in frame]

    @property
    def steps(self) -> int:
        """How many steps were logged."""
        return max((steps.nunique() for steps in self.logged), default=0)

    @property
    def span(self) -> int:
        """From the first step to the last."""
        return int(np.ptp(np.concatenate(self.logged))) if self.logged else 0

    @property
    def critical(self) -> tuple[tuple[int, str], ...]:
        """(step, kind) of its critical events, without the collapse itself."""
        events = self.table("event").reindex(columns=["severity", "kind", "step"]).dropna()
        grave = events[(events["severity"] == "critical") & ~events["kind"].isin(("collapse", "alarm"))]
        return tuple(zip(grave["step"].astype(int).tolist(), grave["kind"].astype(str), strict=True))

    def first_known(self, *names: str) -> int | None:
        """Return the first of these columns of table `run` that has a value."""
        found = (self.run.get(name) for name in names)
        return next((int(value) for value in found if value is not None and not pd.isna(value)), None)

    def events(self, kind: str) -> pd.DataFrame:
        """Return the events of a kind, in order."""
        frame = self.table("event")
        return frame[frame["kind"] == kind] if "kind" in frame else frame


def of_run(reader: "Reader", run_id: str, runs: Path | None = None) -> Log:
    """The log of a run of the store, which has been asked for and exists; its stored batches lie below
    `runs`.
    """
    known = reader.rows("SELECT * FROM run WHERE run_id = ?", [run_id])
    row = dict(zip(known.columns, known.rows[0], strict=True))
    settings = settings_of(row.get("config"))

    def load(table: str, step: int | None) -> pd.DataFrame:
        named = ", ".join(f"'{name}'" for name in COLUMNS.get(table, ()))
        columns = f"COLUMNS(lambda c: c IN ({named}))" if named else "*"  # of those that exist
        where, given = ("", {}) if step is None else (" AND step = $step", {"step": step})
        return reader.query(
            f'SELECT {columns} FROM "{table}" WHERE run_id = $run{where}', {"run": run_id, **given}
        )

    found = {}
    if reader.rows("SELECT 1 FROM run WHERE parent = ? LIMIT 1", [run_id]).rows:
        from sorl.analysis.forks import tests  # its statistics need what the core lacks (scipy)

        found = tests(reader, run_id)
    folder = None if runs is None else batches.folder_of(runs, str(row["experiment"]), run_id)
    reading = Reading.from_json(row.get("reading"))
    return Log(run_id, load, settings, row, folder, found, reading)
