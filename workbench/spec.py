"""The vocabulary of the workbench: levels, units, alarms, diagnostics, tables and the settings of a run.

Nothing of ours is imported here and nothing heavy either: every room may read this file, and the command line and the
app start on it without torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

# ---------------------------------------------------------------------------------------------------------------------
# Errors


class InputError(ValueError):
    """A mistake of the user: the message names the thing, what is allowed, what to type. Exit code 2, no traceback."""


# ---------------------------------------------------------------------------------------------------------------------
# Diagnostics


class Level(StrEnum):
    """The grain at which a quantity is measured; each level is one table of the store."""

    TOKEN = "token"
    TURN = "turn"
    TURN_STEP = "turn_step"
    TRAJECTORY = "trajectory"
    UPDATE = "update"
    STEP = "step"
    RUN = "run"

    @property
    def table(self) -> str:
        """Name of the table whose rows have this grain (an optimizer update is a row of `minibatch`)."""
        return "minibatch" if self is Level.UPDATE else self.value


class Unit(StrEnum):
    """The unit of a measured quantity, as axes and tooltips print it."""

    NATS = "nats"
    RATIO = "ratio"
    FRACTION = "fraction"
    REWARD = "reward"
    NORM = "norm"
    COUNT = "count"
    TOKENS = "tokens"
    SECONDS = "s"
    BYTES = "bytes"
    NONE = ""


@dataclass(frozen=True)
class Alarm:
    """A trip-wire on one diagnostic: `value` is crossed in direction `when` at `points` consecutive points.

    With `relative = "baseline"` the threshold is `value` times the median of the run's own first `warmup` points,
    because absolute thresholds do not carry from one model to another; `reason` says where the mark comes from.
    """

    when: Literal["above", "below"]
    value: float
    reason: str
    points: int = 1
    relative: Literal["", "baseline"] = ""
    warmup: int = 10
    severity: Literal["info", "warning", "critical"] = "warning"


@dataclass(frozen=True)
class Diagnostic:
    """A declared measurement: its name is the column, its level the table, its description the tooltip."""

    name: str
    level: Level
    unit: Unit
    formula: str
    source: str
    description: str
    alarm: Alarm | None = None
    sql_type: Literal["DOUBLE", "BIGINT", "BOOLEAN", "VARCHAR"] = "DOUBLE"

    @property
    def table(self) -> str:
        """Name of the table that holds this diagnostic's column."""
        return self.level.table


# ---------------------------------------------------------------------------------------------------------------------
# Tables


@dataclass(frozen=True)
class Column:
    """A column that identifies or describes a row (measured columns are diagnostics, not listed here)."""

    name: str
    type: str
    description: str


@dataclass(frozen=True)
class Table:
    """One table of the store: its grain in a sentence, its key, and the columns that are not diagnostics."""

    name: str
    grain: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    latest_wins: bool = False  # a later row with the same key replaces an earlier one (status changes)


_RUN = Column("run_id", "VARCHAR", "Identity of the run: arm, seed and the hash of its resolved configuration.")
_STEP = Column(
    "step", "BIGINT", "Training iteration, from 0; the iteration that trained on the row, not the one that sampled it."
)
_TRAJECTORY = Column("trajectory", "BIGINT", "Index of the trajectory in the batch of its step.")
_TURN = Column(
    "turn_index", "BIGINT", "Turn of the trajectory, from 1: a maximal stretch of tokens that the policy wrote."
)
_AT = Column("at", "TIMESTAMP", "When the row was written (UTC).")

TABLES: tuple[Table, ...] = (
    Table(
        "experiment",
        "One row per experiment: a grid file and its question.",
        ("experiment",),
        (
            Column("experiment", "VARCHAR", "Name of the experiment: the stem of its TOML file."),
            Column("question", "VARCHAR", "The question that the grid asks, as its author wrote it."),
            Column("toml", "VARCHAR", "The grid file as it was run."),
            _AT,
        ),
        latest_wins=True,
    ),
    Table(
        "run",
        "One row per run: one cell of a grid, trained once.",
        ("run_id",),
        (
            _RUN,
            Column("experiment", "VARCHAR", "Experiment that the run belongs to."),
            Column("algorithm", "VARCHAR", "Name of the algorithm (an unnamed variant carries its base's name)."),
            Column("arm", "VARCHAR", "Everything that distinguishes the cell from its neighbours except the seed."),
            Column("seed", "BIGINT", "Seed of questions, sampling and minibatch order."),
            Column("config_hash", "VARCHAR", "Hash of the resolved configuration without cosmetic keys."),
            Column("config", "VARCHAR", "Resolved configuration as JSON (query it with config->>'$.learn.staleness')."),
            Column("status", "VARCHAR", "queued, running, finished, failed or interrupted."),
            Column("reason", "VARCHAR", "Why the run failed or was interrupted; NULL otherwise."),
            Column("outcome", "VARCHAR", "healthy, mild, collapsed, no_learning or diverged; NULL while undecided."),
            Column("collapse_step", "BIGINT", "Onset of the collapse (step); NULL without one."),
            Column("detection_step", "BIGINT", "First step at which the collapse rule holds; NULL without one."),
            Column("peak_success", "DOUBLE", "Highest smoothed success of the run."),
            Column("final_success", "DOUBLE", "Mean success of the last ten steps."),
            Column("steps", "BIGINT", "Steps that the run has completed."),
            Column("started_at", "TIMESTAMP", "When training began (UTC)."),
            Column("ended_at", "TIMESTAMP", "When the run ended (UTC); NULL while it runs."),
            Column("seconds", "DOUBLE", "Wall time of training so far, summed over resumed sessions."),
            Column(
                "versions", "VARCHAR", "Versions of python, torch, transformers and sorl, and the machine, as JSON."
            ),
            _AT,
        ),
        latest_wins=True,
    ),
    Table("step", "One row per run and training iteration.", ("run_id", "step"), (_RUN, _STEP, _AT)),
    Table(
        "minibatch",
        "One row per optimizer update.",
        ("run_id", "step", "update"),
        (
            _RUN,
            _STEP,
            Column(
                "update", "BIGINT", "Optimizer update inside the step, from 0 (the ratio is 1 there on fresh rollouts)."
            ),
            Column("epoch", "BIGINT", "Pass over the batch, from 0."),
            Column(
                "rollout_step", "BIGINT", "Iteration whose policy sampled the data (staleness = step - rollout_step)."
            ),
        ),
    ),
    Table(
        "trajectory",
        "One row per trajectory that a step trained on.",
        ("run_id", "step", "trajectory"),
        (
            _RUN,
            _STEP,
            _TRAJECTORY,
            Column(
                "prompt_group",
                "BIGINT",
                "Prompt group of the trajectory (group-relative advantages compare inside it).",
            ),
            Column("rollout_step", "BIGINT", "Iteration whose policy sampled the trajectory."),
            Column("question", "VARCHAR", "The question, as the policy read it."),
            Column("gold", "VARCHAR", "The expected answer."),
            Column("answer", "VARCHAR", "The answer that the policy gave; NULL without one."),
            Column("ended", "VARCHAR", "Why the episode ended: answer, max_turns or max_tokens."),
        ),
    ),
    Table(
        "turn",
        "One row per run, step, epoch, trajectory and turn: the turn ledger.",
        ("run_id", "step", "epoch", "trajectory", "turn_index"),
        (
            _RUN,
            _STEP,
            Column("epoch", "BIGINT", "Pass over the batch, from 0."),
            _TRAJECTORY,
            _TURN,
            Column("update", "BIGINT", "Optimizer update of the step in which this turn was trained in this epoch."),
        ),
    ),
    Table(
        "turn_step",
        "One row per run, step and turn index: the roll-up of the turn ledger that charts read.",
        ("run_id", "step", "turn_index"),
        (_RUN, _STEP, _TURN),
    ),
    Table(
        "token",
        "One row per sampled trajectory of a step, with one LIST entry per token.",
        ("run_id", "step", "trajectory"),
        (
            _RUN,
            _STEP,
            _TRAJECTORY,
            Column("token", "VARCHAR[]", "Text of each token, prompt and observations included."),
            Column("token_id", "INTEGER[]", "Vocabulary id of each token."),
            Column("trained", "BOOLEAN[]", "True where the policy wrote the token (the loss mask)."),
            Column("turn_index", "INTEGER[]", "Turn of each token, 0 where it belongs to none."),
            Column("log_prob_behaviour", "DOUBLE[]", "Log-prob under the sampler (nats)."),
            Column("log_prob_old", "DOUBLE[]", "Log-prob under the proximal policy (nats)."),
            Column("log_prob", "DOUBLE[]", "Log-prob under the current policy in the last epoch (nats)."),
            Column("log_ratio", "DOUBLE[]", "log_prob - log_prob_old (nats)."),
            Column("clipped", "BOOLEAN[]", "True where the clip stopped the token's gradient in the last epoch."),
            Column("entropy", "DOUBLE[]", "Entropy of the policy's distribution at the token (nats)."),
            Column("advantage", "DOUBLE[]", "Advantage of the token."),
            Column("value", "DOUBLE[]", "Critic's value at the token; NULL without a critic."),
            Column("gradient_weight", "DOUBLE[]", "d loss / d log-prob of the token in the last epoch."),
        ),
    ),
    Table(
        "evaluation",
        "One row per run, step and data set of held-out questions.",
        ("run_id", "step", "data"),
        (
            _RUN,
            _STEP,
            Column(
                "data", "VARCHAR", "Name of the held-out data set (facts, or facts-no-search for the empty retriever)."
            ),
            Column("episodes", "BIGINT", "Held-out questions asked."),
            Column("success", "DOUBLE", "Share of questions answered exactly (fraction)."),
            Column("success_low", "DOUBLE", "Lower end of the 95 % Clopper-Pearson interval."),
            Column("success_high", "DOUBLE", "Upper end of the 95 % Clopper-Pearson interval."),
            Column("turns", "DOUBLE", "Mean turns per episode."),
        ),
    ),
    Table(
        "event",
        "One row per thing that happened to a run.",
        ("run_id", "step", "kind", "diagnostic"),
        (
            _RUN,
            _STEP,
            Column(
                "kind",
                "VARCHAR",
                "What happened: collapse, mild, recovered, alarm, non_finite, format_collapse, segment_corrupt ...",
            ),
            Column("severity", "VARCHAR", "info, warning or critical."),
            Column("diagnostic", "VARCHAR", "Diagnostic that showed it; empty where none did."),
            Column("value", "DOUBLE", "Its value at the event."),
            Column("threshold", "DOUBLE", "The threshold that it crossed; NULL without one."),
            Column("message", "VARCHAR", "The event in a sentence."),
            _AT,
        ),
        latest_wins=True,
    ),
    Table(
        "diagnostic",
        "One row per declared diagnostic and table: the dictionary of the measured columns.",
        ("name", "table_name"),
        (
            Column("name", "VARCHAR", "Name of the diagnostic and of its column."),
            Column("table_name", "VARCHAR", "Table that holds the column."),
            Column("level", "VARCHAR", "token, turn, turn_step, trajectory, update, step or run."),
            Column("unit", "VARCHAR", "Unit of the values."),
            Column("formula", "VARCHAR", "Definition."),
            Column("source", "VARCHAR", "Paper or code that the definition comes from."),
            Column("alarm", "VARCHAR", "Trip-wire in words; NULL without one."),
            Column("description", "VARCHAR", "What it tells."),
            Column("sql_type", "VARCHAR", "Type of the column."),
        ),
        latest_wins=True,
    ),
    Table(
        "segment",
        "One row per ingested (or set aside) segment file.",
        ("run_id", "table_name", "file"),
        (
            _RUN,
            Column("table_name", "VARCHAR", "Table that the segment holds rows of."),
            Column("file", "VARCHAR", "Path of the file, relative to the run's folder."),
            Column("rows", "BIGINT", "Rows ingested."),
            Column("bytes", "BIGINT", "Size of the file."),
            Column("status", "VARCHAR", "ingested or corrupt."),
            _AT,
        ),
    ),
)


def table(name: str) -> Table:
    """The declaration of table `name`; KeyError for a table that does not exist."""
    return {t.name: t for t in TABLES}[name]


# ---------------------------------------------------------------------------------------------------------------------
# Settings of a run. Defaults are the vetted setting; an unknown key is an error.

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


class Settings(BaseModel):
    """Base of every settings table: frozen, strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _none_is_a_word(cls, given: Any) -> Any:
        """TOML has no null: "none" switches an optional setting off (`value_clip = "none"`)."""
        if not isinstance(given, dict):
            return given
        optional = {k for k, f in cls.model_fields.items() if type(None) in get_args(f.annotation)}
        return {k: None if k in optional and v == "none" else v for k, v in given.items()}


class WorldSettings(Settings):
    """The task: a generated knowledge base with 1 to 3-hop questions."""

    kind: Literal["facts"] = "facts"
    entities: Annotated[int, Field(ge=4, le=40)] = 40
    relations: Annotated[int, Field(ge=2, le=10)] = 10
    hops: tuple[Fraction, Fraction, Fraction] = (0.2, 0.4, 0.4)  # probability of a 1, 2 and 3-hop question
    top_k: Annotated[int, Field(ge=0, le=5)] = 2  # facts returned a search; 0 = the retriever returns nothing
    noise: Fraction = 0.2  # probability that a ranked result list is shuffled
    max_turns: Count = 6
    max_turn_tokens: Annotated[int, Field(ge=4)] = 14
    reward: Literal["em", "f1"] = "em"

    @model_validator(mode="after")
    def _hops_are_a_distribution(self) -> WorldSettings:
        if abs(sum(self.hops) - 1.0) > 1e-9:
            raise ValueError(f"hops must sum to 1, got {list(self.hops)}")
        return self


class PolicySettings(Settings):
    """The policy network: a fresh transformers decoder of this size, or a checkpoint folder."""

    path: str | None = None
    family: Literal["llama", "qwen3"] = "llama"  # AutoTokenizer forces its own class on qwen2 folders
    hidden: Count = 64
    layers: Count = 2
    heads: Count = 4
    mlp: Count = 172
    tied: bool = False


class WarmStartSettings(Settings):
    """Imitation on noisy scripted episodes; shared by every run with the same world, policy and warm start."""

    steps: Natural = 240
    batch: Annotated[int, Field(ge=2)] = 64
    lr: Positive = 3e-3
    noise: Fraction = 0.1  # probability that a scripted turn goes wrong
    seed: Natural = 0


class EngineSettings(Settings):
    """How rollouts are sampled."""

    kind: Literal["hf"] = "hf"
    temperature: Positive = 1.0
    dtype: Literal["float32", "bfloat16"] = "float32"


class OptimizerSettings(Settings):
    """SGD or AdamW of one network."""

    kind: Literal["sgd", "adamw"] = "sgd"
    lr: Positive = 0.15
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # SGD only
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9  # AdamW only
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999  # AdamW only
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    max_grad_norm: Positive | None = None  # clip the global gradient norm; None = off, the norm is logged all the same


class LearnSettings(Settings):
    """The off-policy knobs and the optimisation of one iteration."""

    episodes: Count = 64
    group_size: Count | None = None  # rollouts per prompt; None = the algorithm's own
    epochs: Count = 1
    minibatches: Count = 4
    micro_batch: Count | None = None  # sequences per backward; None = the whole minibatch
    staleness: Natural = 0  # train on the rollouts of this many iterations ago
    old_log_prob: Literal["rollout", "update", "behaviour"] = "rollout"
    old_values: Literal["update", "rollout"] = "update"
    reference: bool = False  # keep the warm start as a frozen reference for KL terms
    policy: OptimizerSettings = OptimizerSettings()
    critic: OptimizerSettings = OptimizerSettings(kind="adamw", lr=1e-3, max_grad_norm=1.0)
    value_clip: Positive | None = 0.5
    entropy_coef: float = 0.0
    clip_bias_every: Natural = 4  # true clipping bias by a second backward every n updates; 0 = never
    target_kl: Positive | None = None  # stop the epochs of a step once approx_kl exceeds 1.5 times this


class EvaluationSettings(Settings):
    """Held-out questions, never trained on."""

    every: Natural = 20  # iterations; 0 = only at the end
    episodes: Count = 256
    greedy: bool = False


class RecordSettings(Settings):
    """What is written down. The turn ledger is complete by default."""

    turns: Fraction = 1.0  # share of trajectories whose turns are recorded
    tokens: Natural = 2  # trajectories a step with every token recorded
    flush_seconds: Annotated[float, Field(gt=0.0, le=2.0)] = 1.0
    checkpoint_every: Natural = 20  # iterations; 0 = only at the end


class CollapseSettings(Settings):
    """The collapse rule (docs/diagnostics.md gives each threshold's reason)."""

    window: Count = 5
    baseline: Count = 5
    severe: Fraction = 0.5
    mild: Fraction = 0.2
    points: Count = 5
    sigmas: Positive = 3.0


class RunSettings(Settings):
    """Everything that defines one run: what is hashed, stored and shown by `sorl plan`."""

    algorithm: str | dict[str, Any] = "ppo"
    seed: Natural = 0
    iterations: Count = 80
    slots: dict[str, Any] = Field(default_factory=dict)  # changes to slots of whatever algorithm runs
    world: WorldSettings = WorldSettings()
    policy: PolicySettings = PolicySettings()
    warmstart: WarmStartSettings = WarmStartSettings()
    engine: EngineSettings = EngineSettings()
    learn: LearnSettings = LearnSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    record: RecordSettings = RecordSettings()
    collapse: CollapseSettings = CollapseSettings()
    threads: Count = 1

    @model_validator(mode="after")
    def _batch_divides(self) -> RunSettings:
        learn = self.learn
        if learn.minibatches > learn.episodes:
            raise ValueError(
                f"learn.minibatches = {learn.minibatches} is larger than learn.episodes = {learn.episodes}; "
                f"use at most {learn.episodes}"
            )
        if learn.episodes % learn.minibatches:
            raise ValueError(
                f"learn.minibatches = {learn.minibatches} does not divide learn.episodes = {learn.episodes}"
            )
        if learn.group_size is not None and learn.episodes % learn.group_size:
            raise ValueError(f"learn.group_size = {learn.group_size} does not divide learn.episodes = {learn.episodes}")
        minibatch = learn.episodes // learn.minibatches
        if learn.micro_batch is not None and minibatch % learn.micro_batch:
            raise ValueError(
                f"learn.micro_batch = {learn.micro_batch} does not divide the minibatch of {minibatch} sequences "
                f"(learn.episodes / learn.minibatches)"
            )
        return self


class Arm(Settings):
    """A named single change that is not crossed with the axes: a control."""

    model_config = ConfigDict(extra="allow", frozen=True)  # its keys are those of RunSettings, checked when resolved

    name: Annotated[str, Field(min_length=1)]


class GridFile(Settings):
    """A grid file: the question, the seeds, what is common, what is crossed, and the named controls."""

    question: Annotated[str, Field(min_length=8)]
    seeds: Annotated[list[Natural], Field(min_length=1)] = [0]
    base: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    arms: list[Arm] = Field(default_factory=list)


def nearest(word: str, allowed: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest allowed name, or an empty string when none is close."""
    from difflib import get_close_matches

    match = get_close_matches(word, list(allowed), n=1)
    return f" (did you mean '{match[0]}'?)" if match else ""
