"""The vocabulary of the workbench: levels, units, alarms, diagnostics, checks, tables and the settings of a run.

Nothing of ours is imported here and nothing heavy either: every room may read this file, and the command line and the
app start on it without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

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
# The fair-comparison guard


@dataclass(frozen=True)
class Check:
    """A check of the fair-comparison guard: what it flags, what it only notes (a difference, printed), and why.

    `seen`: by `sorl plan` from the settings (plan), by the trainer before its first step (start) or after each one
    (step), or from what the runs of an experiment recorded (compare). What is flagged is an event of `kind`.
    """

    name: str
    seen: Literal["plan", "start", "step", "compare"]
    severity: Literal["info", "warning", "critical"]  # of what is flagged
    flags: str
    notes: str
    reason: str

    @property
    def kind(self) -> str:
        """Kind of the event that a violation is."""
        return f"guard_{self.name}"


RATIO_TOLERANCE = 1e-3  # nats; float32 rounding gave 3e-6 at most in 500 first updates, a clip range is 0.2

GUARD: tuple[Check, ...] = (
    Check(
        "idle_ratio",
        "plan",
        "warning",
        "arms whose ratio is 1 in every update (one epoch, one minibatch, old log-probs of the policy itself) and "
        "whose updates are then the same",
        "an arm of that kind without such a partner",
        "a ratio of 1 is never clipped, so arms that differ in ratio, clip or stabiliser may be one arm, run twice",
    ),
    Check(
        "normaliser",
        "plan",
        "warning",
        "arms that differ in the advantage or the aggregation, though their algorithms declare the same one, and in "
        "something else as well, with no third arm that differs in one of the two only",
        "algorithms that declare different advantages or aggregations",
        "both scale every gradient as a learning rate does, so the other difference cannot be told from theirs",
    ),
    Check(
        "compute",
        "plan",
        "info",
        "",
        "different numbers of rollouts, questions, optimizer updates or trained tokens, planned and as recorded",
        "an arm that trains more has more chances to learn and to collapse",
    ),
    Check(
        "task",
        "plan",
        "info",
        "",
        "arms that do not share the world, the policy network or model, its prompt, or the warm start",
        "their success is not on one scale",
    ),
    Check("seeds", "plan", "info", "", "different numbers of seeds", "intervals of unequal width invite unequal trust"),
    Check(
        "mask",
        "start",
        "critical",
        "on a synthetic batch, tokens that the policy did not write carry a gradient, or the loss changes with them "
        "while the log-probs of the written ones stay; the run ends as failed",
        "",
        "a loss on prompts, observations or padding trains the agent to imitate its retriever",
    ),
    Check(
        "token_identity",
        "step",
        "critical",
        "a trained row that is not the prompt, the sampled turns and the observations, token for token, or whose turn "
        "ids are not the sampler's turns",
        "",
        "text that was decoded and encoded again has other tokens, and their ratios are not those of the samples",
    ),
    Check(
        "first_ratio",
        "step",
        "warning",
        f"a log-ratio beyond {RATIO_TOLERANCE:g} nats in the first update of a step whose old log-probs are those of "
        "the policy itself",
        "",
        "before the first update policy and old policy are the same, so another ratio is a defect of the trainer",
    ),
    Check(
        "stuck_batch",
        "step",
        "warning",
        "a step that trains on the very tokens of an earlier one (epochs of one step are meant and are not flagged)",
        "",
        "a queue that hands out a batch twice is staleness that no setting asked for",
    ),
    Check(
        "questions",
        "compare",
        "warning",
        "arms with one seed, task, number of episodes and group size that trained on different questions or in another "
        "order, or two seeds of such arms that trained on the same ones",
        "",
        "seeds pair the arms, and are replicates, only if they reach them",
    ),
)


def check(name: str) -> Check:
    """The check `name` of the guard; KeyError for one that does not exist."""
    return {c.name: c for c in GUARD}[name]


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
_WRITTEN = Column("written_at", "TIMESTAMP", "When the row was written (UTC).")

TABLES: tuple[Table, ...] = (
    Table(
        "experiment",
        "One row per experiment: a grid file and its question.",
        ("experiment",),
        (
            Column("experiment", "VARCHAR", "Name of the experiment: the stem of its TOML file."),
            Column("question", "VARCHAR", "The question that the grid asks, as its author wrote it."),
            Column("toml", "VARCHAR", "The grid file as it was run."),
            _WRITTEN,
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
            Column(
                "reason",
                "VARCHAR",
                "Why the run failed, was interrupted or ended before its last iteration; NULL otherwise.",
            ),
            Column("outcome", "VARCHAR", "healthy, mild, collapsed, no_learning or diverged; NULL while undecided."),
            Column("collapse_step", "BIGINT", "Onset of the collapse (step); NULL without one."),
            Column("detection_step", "BIGINT", "First step at which the collapse rule holds; NULL without one."),
            Column(
                "peak_success",
                "DOUBLE",
                "Highest smoothed success of the run; of one that never came up to its start and lost it, the start.",
            ),
            Column("final_success", "DOUBLE", "Mean success of the last ten steps."),
            Column("steps", "BIGINT", "Steps that the run has completed."),
            Column("started_at", "TIMESTAMP", "When training began (UTC)."),
            Column("ended_at", "TIMESTAMP", "When the run ended (UTC); NULL while it runs."),
            Column("seconds", "DOUBLE", "Wall time of training so far, summed over resumed sessions."),
            Column(
                "versions", "VARCHAR", "Versions of python, torch, transformers and sorl, and the machine, as JSON."
            ),
            Column(
                "generation",
                "BIGINT",
                "Which time the cell was started from nothing, from 1; --fresh begins the next, and the newest counts.",
            ),
            Column("attempt", "BIGINT", "Which attempt this is, from 1; each resume and each retry is one more."),
            _WRITTEN,
        ),
        latest_wins=True,
    ),
    Table("step", "One row per run and training iteration.", ("run_id", "step"), (_RUN, _STEP, _WRITTEN)),
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
                "data",
                "VARCHAR",
                "Name of the held-out data: a world (-no-search: with an empty retriever), a benchmark or a file.",
            ),
            Column("episodes", "BIGINT", "Held-out questions asked."),
            Column("success", "DOUBLE", "Share of questions answered exactly (fraction)."),
            Column("success_low", "DOUBLE", "Lower end of the 95 % Clopper-Pearson interval."),
            Column("success_high", "DOUBLE", "Upper end of the 95 % Clopper-Pearson interval."),
            Column("turns", "DOUBLE", "Mean turns per episode."),
            Column("metric", "VARCHAR", "What success means: exact match or choice accuracy; NULL: the world's own."),
            Column("f1", "DOUBLE", "Mean F1 with the best gold answer; NULL where it was not taken."),
            Column("f1_low", "DOUBLE", "Lower end of its 95 % percentile bootstrap interval over questions."),
            Column("f1_high", "DOUBLE", "Upper end of its 95 % percentile bootstrap interval over questions."),
            _WRITTEN,
        ),
        latest_wins=True,  # `sorl eval` typed again replaces its row
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
                "What happened: collapse, mild, recovered, alarm, non_finite, format_collapse, retriever_down, "
                "segment_corrupt, "
                "guard_*, stale_weights; of its process: resumed, retried, interrupted, hang, out_of_memory, killed, "
                "failed.",
            ),
            Column("severity", "VARCHAR", "info, warning or critical."),
            Column("diagnostic", "VARCHAR", "Diagnostic that showed it; empty where none did."),
            Column("value", "DOUBLE", "Its value at the event."),
            Column("threshold", "DOUBLE", "The threshold that it crossed; NULL without one."),
            Column("message", "VARCHAR", "The event in a sentence."),
            _WRITTEN,
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
            Column("alarm_when", "VARCHAR", "The alarm goes off above or below its value; NULL without one."),
            Column("alarm_value", "DOUBLE", "Value of the trip-wire, or its multiple of the run's own baseline."),
            Column(
                "alarm_baseline_points",
                "BIGINT",
                "The baseline is the median of the run's first so many points; NULL where the value is absolute.",
            ),
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
            _WRITTEN,
        ),
    ),
)


@dataclass(frozen=True)
class Rollup:
    """A table that sync makes of another one, so that a curve over many runs need not read every row.

    Each numeric measured column of `source` is here a STRUCT over the rows of a block of `width` steps: n (finite
    values), broken (NaN or Inf), total, low, high, and log (sum of ln max(value, e^-20), of ratios only). A block has
    more than one row where a run was resumed inside it.
    """

    name: str
    source: str
    width: int
    keys: tuple[str, ...] = ()  # columns of `source` that are told apart, besides the run

    @property
    def grain(self) -> str:
        """What a row is."""
        each = "".join(f", {key}" for key in self.keys)
        return f"One row per run{each} and block of {self.width} steps: roll-up of {self.source}, filled by sync."

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that are not measured."""
        keys = [_TURN] if "turn_index" in self.keys else []
        return (
            _RUN, *keys,
            Column("block", "BIGINT", f"step // {self.width}."),
        )  # fmt: skip


# Sync fills it together with the roll-ups: neither has segments of its own.
SPAN = Table(
    "span",
    "One row per run and table with roll-ups: the steps that are recorded, and those that are rolled up.",
    ("run_id", "table_name"),
    (
        _RUN,
        Column("table_name", "VARCHAR", "step, minibatch or turn_step."),
        Column("first_step", "BIGINT", "First recorded step."),
        Column("last_step", "BIGINT", "Last recorded step."),
        Column("rolled_to", "BIGINT", "Steps below it are rolled up; later rows are read as they are."),
    ),
)
ROLLUPS: tuple[Rollup, ...] = (
    Rollup("step_block", "step", 16),
    Rollup("minibatch_block", "minibatch", 16),
    Rollup("turn_step_block", "turn_step", 4),
    Rollup("turn_index_block", "turn_step", 16, keys=("turn_index",)),
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


def _without_defaults(settings: Settings, told: dict[str, Any], *names: str) -> dict[str, Any]:
    """`told`, what `settings` serialise to, less those of `names` that are at their default."""
    fields = type(settings).model_fields
    for name in names:
        if getattr(settings, name) == fields[name].default:
            told.pop(name, None)
    return told


class RetrieverSettings(Settings):
    """What answers the searches of the worlds atlas and dataset; docs/data.md."""

    kind: Literal["memory", "bm25", "dense", "http"] = "memory"  # memory: the world's own facts or passages
    corpus: str | None = None  # JSON lines {"id", "contents"}; bm25 and dense
    model: str = "intfloat/e5-base-v2"  # embedding model; dense
    url: str | None = None  # a server of Search-R1's protocol; http
    timeout: Positive = 10.0  # seconds of a request; http
    retries: Natural = 3  # of a request that failed; http
    batch: Count = 64  # queries a request; http

    @model_validator(mode="after")
    def _has_its_place(self) -> RetrieverSettings:
        if self.kind in ("bm25", "dense") and self.corpus is None:
            raise ValueError(f'retriever.kind = "{self.kind}" needs retriever.corpus = "FILE.jsonl"')
        if self.kind == "http" and self.url is None:
            raise ValueError('retriever.kind = "http" needs retriever.url = "http://127.0.0.1:8000/retrieve"')
        return self


class WorldSettings(Settings):
    """The task: a generated knowledge base, real facts (atlas), or the questions of a data set."""

    kind: Literal["facts", "atlas", "dataset"] = "facts"
    seed: Natural = 0  # wording of the passages; atlas
    data: str | None = None  # a file or a benchmark's name; dataset
    data_split: str | None = None  # of a benchmark; None = the one that papers report; dataset
    eval_data: str | None = None  # held-out questions; None = a tenth of `data`; dataset
    retriever: RetrieverSettings = RetrieverSettings()
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

    @model_validator(mode="after")
    def _retriever_fits(self) -> WorldSettings:
        if self.kind == "facts" and self.retriever != RetrieverSettings():
            raise ValueError('world.kind = "facts" answers its own queries; world.retriever is for atlas and dataset')
        if self.kind == "dataset" and self.retriever.kind == "memory":
            raise ValueError('world.kind = "dataset" has no passages of its own: set world.retriever.kind')
        return self

    @model_serializer(mode="wrap")
    def _without_what_facts_lack(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what only other worlds have where it is not set: a world of facts is the same as before them."""
        told: dict[str, Any] = handler(self)
        for name in ("seed", "data", "data_split", "eval_data", "retriever"):
            if getattr(self, name) == WorldSettings.model_fields[name].default:
                told.pop(name, None)
        return told


class PolicySettings(Settings):
    """The policy network of a run without `model`: a fresh transformers decoder of this size, warm-started."""

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

    kind: Literal["hf", "vllm"] = "hf"  # by transformers in the trainer's own process, or by vLLM beside it
    temperature: Positive = 1.0
    dtype: Literal["float32", "bfloat16"] = "float32"
    cache_gib: Positive = 1.0  # vLLM's key-value cache
    sync_tolerance: Positive | None = None  # nats, of vLLM's sync check; None = 1e-4 in float32, 0.5 in bfloat16

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what only vLLM reads where it is not set."""
        return _without_defaults(self, handler(self), "cache_gib", "sync_tolerance")


class OptimizerSettings(Settings):
    """SGD or AdamW of one network."""

    kind: Literal["sgd", "adamw"] = "sgd"
    lr: Positive = 0.15
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # SGD only
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9  # AdamW only
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999  # AdamW only
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    max_grad_norm: Positive | None = None  # clip the global gradient norm; None = off, the norm is logged all the same


class ComputeSettings(Settings):
    """Where the networks are trained, and what bounds the memory that it takes; docs/models.md."""

    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU where torch sees one
    dtype: Literal["float32", "bfloat16"] = "float32"  # of matrix products; weights and optimizer are float32
    gradient_checkpointing: bool = False  # hold one layer's activations at a time, compute the others again
    micro_batch_tokens: Count | None = None  # tokens a pass, padding counted; None = by sequences, learn.micro_batch


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
    probe_every: Natural = 0  # gradient noise, agreement and tag probabilities every n updates; 0 = never

    @model_serializer(mode="wrap")
    def _without_a_probe_that_is_off(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `probe_every` out where it is off: such a run is the same run as before there was a probe."""
        told: dict[str, Any] = handler(self)
        if not self.probe_every:
            told.pop("probe_every", None)
        return told


class EvaluationSettings(Settings):
    """Held-out questions, never trained on."""

    every: Natural = 20  # iterations; 0 = only at the end
    episodes: Count = 256
    greedy: bool = False


BATCH_FOLDER = "batches"  # of a run's folder: one safetensors file a stored step
BATCH_FORMAT = 1  # version of those files; a reader refuses a higher one


class BatchesSettings(Settings):
    """The black box: of which steps the whole training batch stays on the disk."""

    last: Annotated[Natural, Field(description="the newest steps")] = 16
    every: Annotated[Natural, Field(description="every n-th step as well, from 0; 0 = none")] = 20
    before: Annotated[
        Natural,
        Field(
            description="steps before each alarm, warning or collapse, and on either side of the step at which a "
            "collapse began"
        ),
    ] = 8
    mb: Annotated[Natural, Field(description="megabytes that all of them may take together; 0 = keep none")] = 256
    weights_mb: Annotated[
        Natural,
        Field(description="weights of the step's start go with its batch up to so many megabytes; 0 = never"),
    ] = 4

    @model_validator(mode="after")
    def _is_still_there(self) -> BatchesSettings:
        if self.mb and self.before >= self.last:
            raise ValueError(
                f"before = {self.before} steps cannot be kept of an event when only the last {self.last} are there; "
                f"set last = {self.before + 1} or more"
            )
        return self


class RecordSettings(Settings):
    """What is written down. The turn ledger is complete by default."""

    turns: Fraction = 1.0  # share of trajectories whose turns are recorded
    tokens: Natural = 2  # trajectories a step with every token recorded
    flush_seconds: Annotated[float, Field(gt=0.0, le=2.0)] = 1.0
    checkpoint_every: Natural = 20  # iterations; 0 = only at the end
    batches: BatchesSettings = BatchesSettings()

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the black box out where it is at its default: it changes no number of a run."""
        return _without_defaults(self, handler(self), "batches")


# Settings that change how a run is carried out and never what it computes: a run is the same run without them.
COSMETIC = (
    "threads", "record.flush_seconds", "record.checkpoint_every",
    *(f"record.batches.{name}" for name in BatchesSettings.model_fields),
)  # fmt: skip


class CollapseSettings(Settings):
    """The collapse rule (docs/diagnostics.md gives each threshold's reason)."""

    window: Count = 5
    baseline: Count = 5
    severe: Fraction = 0.5
    mild: Fraction = 0.2
    points: Count = 5
    sigmas: Positive = 3.0


class StopSettings(Settings):
    """When training ends before its last iteration; looked at between two iterations, all off by default."""

    after_collapse: Annotated[
        Natural | None,
        Field(description="so many iterations beyond the one in which the collapse rule first held"),
    ] = None
    updates: Annotated[Count | None, Field(description="so many optimizer updates")] = None
    tokens: Annotated[Count | None, Field(description="so many trained tokens, each epoch counted")] = None
    seconds: Annotated[
        Positive | None,
        Field(description="so much wall time of training, all sessions of a resumed run together"),
    ] = None


class FaultSettings(Settings):
    """A bug that is injected on purpose; docs/faults.md lists the kinds."""

    kind: Annotated[str, Field(min_length=1)]
    at_step: Natural  # the first iteration with it
    until_step: Count | None = None  # the first iteration without it again; None = to the end
    turn: Count | None = None  # the turn that it concerns, where it concerns turns; None = any
    strength: float | None = None  # its one number; None = the default of its kind

    @model_validator(mode="after")
    def _lasts(self) -> FaultSettings:
        if self.until_step is not None and self.until_step <= self.at_step:
            raise ValueError(f"until_step = {self.until_step} must be above at_step = {self.at_step}")
        return self

    @model_serializer(mode="wrap")
    def _only_what_is_set(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not set: TOML has no null."""
        return _without_defaults(self, handler(self), "until_step", "turn", "strength")


class RunSettings(Settings):
    """Everything that defines one run: what is hashed, stored and shown by `sorl plan`."""

    algorithm: str | dict[str, Any] = "ppo"
    seed: Natural = 0
    iterations: Count = 80
    slots: dict[str, Any] = Field(default_factory=dict)  # changes to slots of whatever algorithm runs
    model: str | None = None  # a folder or a name on the Hugging Face hub; None = `policy`, warm-started
    prompt: Literal["auto", "plain", "search-r1"] = "auto"  # auto: Search-R1's for a `model`, else the plain question
    world: WorldSettings = WorldSettings()
    policy: PolicySettings = PolicySettings()
    warmstart: WarmStartSettings = WarmStartSettings()
    engine: EngineSettings = EngineSettings()
    learn: LearnSettings = LearnSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    record: RecordSettings = RecordSettings()
    collapse: CollapseSettings = CollapseSettings()
    stop: StopSettings = StopSettings()
    compute: ComputeSettings = ComputeSettings()
    match: Annotated[
        str | None,
        Field(
            min_length=1,
            description="arm, or EXPERIMENT/ARM, whose run of the same seed gives the mean stabiliser factor that the "
            "policy's learning rate is multiplied by",
        ),
    ] = None
    fault: FaultSettings | None = None  # inject a bug from some iteration on
    threads: Count = 1

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is off: a run without stop rules is the same run as before there were any."""
        return _without_defaults(self, handler(self), "stop", "match", "compute", "model", "prompt", "fault")

    @property
    def wording(self) -> Literal["plain", "search-r1"]:
        """How questions and observations are put: an own policy has learned the plain way, others are told how."""
        if self.prompt == "auto":
            return "plain" if self.model is None else "search-r1"
        return self.prompt

    @property
    def planned_iterations(self) -> int:
        """Iterations of the whole run: as many as were asked for, or as its budget of updates allows."""
        if self.stop.updates is None:
            return self.iterations
        return min(self.iterations, math.ceil(self.stop.updates / (self.learn.epochs * self.learn.minibatches)))

    def starts_at_one(self, lag: int) -> bool:
        """Whether the ratio of the first update on rollouts of `lag` iterations ago is 1 by construction.

        Not in bfloat16, where the same pass over another split of the batch rounds to other log-probs.
        """
        if self.compute.dtype != "float32":
            return False
        if self.learn.old_log_prob == "behaviour":
            return lag == 0 and self.engine.dtype == "float32"
        return lag == 0 or self.learn.old_log_prob == "update"

    @property
    def ratio_is_one(self) -> bool:
        """Whether every update sees ratio 1 by construction: one update a rollout, by its own old log-probs."""
        once = self.learn.epochs == 1 and self.learn.minibatches == 1
        return once and self.starts_at_one(self.learn.staleness)

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
        if learn.micro_batch is not None and self.compute.micro_batch_tokens is not None:
            raise ValueError("learn.micro_batch and compute.micro_batch_tokens split the same minibatch; keep one")
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


class RegionSettings(Settings):
    """The search of an experiment of kind region."""

    along: Annotated[str, Field(description="setting along which the boundary is searched, on a log scale")] = (
        "learn.policy.lr"
    )
    low: Annotated[Positive, Field(description="lowest value")]
    high: Annotated[Positive, Field(description="highest value")]
    points: Annotated[
        int, Field(ge=3, le=65, description="values from low to high, both included, evenly spaced on the log scale")
    ] = 9
    probes: Annotated[Count, Field(description="seeds with which a value is first tried")] = 2
    search: Annotated[
        Literal["adaptive", "full"],
        Field(description="adaptive: bisect; full: every value with every seed, to hold the search against"),
    ] = "adaptive"
    runs: Annotated[Count | None, Field(description="budget: so many runs in all")] = None
    minutes: Annotated[Positive | None, Field(description="budget: so many minutes of training, all runs added up")] = (
        None
    )

    @property
    def lattice(self) -> tuple[float, ...]:
        """The values, rounded to three digits: low (high / low)^(i / (points - 1))."""
        step = (self.high / self.low) ** (1 / (self.points - 1))
        return tuple(float(f"{self.low * step**i:.3g}") for i in range(self.points))

    @model_validator(mode="after")
    def _values_differ(self) -> RegionSettings:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low:g} must be below high = {self.high:g}")
        if len(set(self.lattice)) < self.points:
            raise ValueError(f"{self.points} points from {self.low:g} to {self.high:g} are not apart at three digits")
        return self


class GridFile(Settings):
    """A grid file: the question, the seeds, what is common, what is crossed, and the named controls."""

    kind: Literal["grid", "region"] = "grid"
    question: Annotated[str, Field(min_length=8)]
    seeds: Annotated[list[Natural], Field(min_length=1)] = [0]
    base: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    arms: list[Arm] = Field(default_factory=list)
    region: RegionSettings | None = None

    @model_validator(mode="after")
    def _a_region_has_its_table(self) -> GridFile:
        if (self.kind == "region") != (self.region is not None):
            told = "kind = 'region' needs a table [region]" if self.region is None else "[region] needs kind = 'region'"
            raise ValueError(f"{told}; docs/regions.md shows a file")
        return self


def nearest(word: str, allowed: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest allowed name, or an empty string when none is close."""
    from difflib import get_close_matches

    match = get_close_matches(word, list(allowed), n=1)
    return f" (did you mean '{match[0]}'?)" if match else ""
