"""The settings of a run and of a grid file. Defaults are the vetted setting; an unknown key is an error."""

import math
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from sorl.spec.names import FolderName
from sorl.spec.upgrade import read_collapse_settings

# Upper bounds are far beyond use and within what tables, torch and threads can hold: a bad file fails early.
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Probability = Annotated[float, Field(gt=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=1e9)]
Finite = Annotated[float, Field(ge=-1e9, le=1e9)]
# such a step loses the weights at once, which a run may want to see
Rate = Annotated[float, Field(gt=0.0, le=1e30)]
Count = Annotated[int, Field(ge=1, le=10**7)]
Natural = Annotated[int, Field(ge=0, le=10**7)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Width = Annotated[int, Field(ge=1, le=2**16)]
Few = Annotated[int, Field(ge=1, le=256)]
# of an experiment or a run: a folder
Name = Annotated[str, AfterValidator(lambda text: FolderName(text, "the name"))]


class Settings(BaseModel):
    """Base of every settings table: frozen, strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    unstored: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _none_is_a_word(cls, given: Any) -> Any:
        """TOML has no null: "none" switches an optional setting off (`value_clip = "none"`)."""
        if not isinstance(given, dict):
            return given
        for key, value in given.items():
            if isinstance(value, str) and "\0" in value:
                raise ValueError(f"{key} holds a NUL character")
            field = cls.model_fields.get(key)
            if field is not None and _holds_truth(value) and _numeric(field.annotation):
                raise ValueError(f"{key} must be a number, got {str(value).lower()}")
        optional = {k for k, f in cls.model_fields.items() if type(None) in get_args(f.annotation)}
        return {k: None if k in optional and v == "none" else v for k, v in given.items()}

    @model_serializer(mode="wrap")
    def _unset_left_out(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `unstored` settings at their default: a run without a newer setting keeps its hash."""
        unset = {k for k in self.unstored if getattr(self, k) == type(self).model_fields[k].default}
        return {k: v for k, v in handler(self).items() if k not in unset}


def _holds_truth(value: Any) -> bool:
    """Whether a value is true or false, which Python takes for 1 and 0, or a list with one of them."""
    return isinstance(value, bool) or (isinstance(value, list) and any(map(_holds_truth, value)))


def _numeric(annotation: Any) -> bool:
    """Whether a type holds numbers and no truth values."""
    kinds = _plain_kinds(annotation)
    return bool(kinds & {int, float}) and not kinds & {bool, Any}


def _plain_kinds(annotation: Any) -> set[Any]:
    """The types that a type is put together from."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal or not inner:
        return {annotation}
    if get_origin(annotation) is Annotated:
        return _plain_kinds(inner[0])
    return set().union(*map(_plain_kinds, inner))


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
    def _has_its_place(self) -> Self:
        if self.kind in ("bm25", "dense") and self.corpus is None:
            raise ValueError(f'retriever.kind = "{self.kind}" needs retriever.corpus = "FILE.jsonl"')
        if self.kind == "http" and self.url is None:
            raise ValueError('retriever.kind = "http" needs retriever.url = "http://127.0.0.1:8000/retrieve"')
        return self


class WorldSettings(Settings):
    """The task: a generated knowledge base, real facts (atlas), or the questions of a data set."""

    unstored = ("seed", "data", "data_split", "eval_data", "retriever")

    kind: Literal["facts", "atlas", "dataset"] = "facts"
    seed: Seed = 0  # wording of the passages; atlas
    data: str | None = None  # a file or a benchmark's name; dataset
    data_split: str | None = None  # of a benchmark; None = the one that papers report; dataset
    eval_data: str | None = None  # held-out questions; None = a tenth of `data`; dataset
    retriever: RetrieverSettings = RetrieverSettings()
    entities: Annotated[int, Field(ge=4, le=40)] = 40
    relations: Annotated[int, Field(ge=2, le=10)] = 10
    hops: tuple[Fraction, Fraction, Fraction] = (0.2, 0.4, 0.4)  # probability of a 1, 2 and 3-hop question
    top_k: Annotated[int, Field(ge=0, le=5)] = 2  # facts returned a search; 0 = the retriever returns nothing
    noise: Fraction = 0.2  # probability that a ranked result list is shuffled
    max_turns: Few = 6
    max_turn_tokens: Annotated[int, Field(ge=4, le=2**20)] = 14
    reward: Literal["em", "f1"] = "em"

    @property
    def completion_budget(self) -> int:
        """Tokens that the policy may write in an episode."""
        return self.max_turns * self.max_turn_tokens

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if abs(sum(self.hops) - 1.0) > 1e-9:
            raise ValueError(f"hops must sum to 1, got {list(self.hops)}")
        if self.kind == "facts" and self.retriever != RetrieverSettings():
            raise ValueError(
                'world.kind = "facts" answers its own queries; world.retriever is for atlas and dataset'
            )
        if self.kind == "dataset" and self.retriever.kind == "memory":
            raise ValueError('world.kind = "dataset" has no passages of its own: set world.retriever.kind')
        return self


class PolicySettings(Settings):
    """The policy network of a run without `model`: a fresh transformers decoder of this size,
    warm-started.
    """

    unstored = ("spare_tokens", "experts", "experts_per_token", "balance")

    # AutoTokenizer forces its own class on qwen2 folders. The last three are mixtures of experts, qwen2_moe
    # with one that all tokens share.
    family: Literal["llama", "qwen3", "mixtral", "qwen3_moe", "qwen2_moe"] = "llama"
    hidden: Width = 64
    layers: Few = 2
    heads: Few = 4
    mlp: Width = 172  # of all experts together that read a token, rounded up to a multiple of 8 each
    tied: bool = False
    # of the vocabulary, which nothing uses: <spare0> and so on
    spare_tokens: Annotated[int, Field(ge=0, le=10**5)] = 0
    experts: Annotated[int, Field(ge=2, le=255)] = 8  # of a layer
    experts_per_token: Few = 2
    # weight of the load-balancing loss in the warm start
    balance: Annotated[float, Field(ge=0.0, le=1e3)] = 0.01

    @property
    def mixture(self) -> bool:
        """Whether it is a mixture of experts."""
        return self.family in ("mixtral", "qwen3_moe", "qwen2_moe")

    @model_validator(mode="after")
    def _has_experts_enough(self) -> Self:
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token = {self.experts_per_token} of experts = {self.experts}")
        return self


class WarmStartSettings(Settings):
    """Imitation on noisy scripted episodes; shared by every run with the same world, policy and
    warm start.

    A `model` has other defaults (`FOR_A_MODEL`): by default it imitates nothing.
    """

    steps: Natural = 240  # 0 for a `model`
    batch: Annotated[int, Field(ge=2, le=10**6)] = 64  # 24 for a `model`
    lr: Rate = 3e-3  # 5e-5 for a `model`
    noise: Fraction = 0.1  # probability that a scripted turn goes wrong
    seed: Seed = 0


FOR_A_MODEL = {"steps": 0, "batch": 24, "lr": 5e-5}  # defaults of its warm start


class EngineSettings(Settings):
    """How rollouts are sampled."""

    unstored = ("cache_gib", "sync_tolerance")

    kind: Literal["hf", "vllm"] = "hf"  # by transformers in the trainer's own process, or by vLLM next to it
    temperature: Positive = 1.0
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"  # auto: what compute.dtype = "auto" takes
    cache_gib: Positive = 1.0  # vLLM's key-value cache
    # nats, of vLLM's sync check; None = 1e-4 in float32, 0.5 in bfloat16
    sync_tolerance: Positive | None = None


class OptimizerSettings(Settings):
    """SGD or AdamW of one network."""

    unstored = ("schedule", "warmup")

    kind: Literal["sgd", "adamw"] = "sgd"
    lr: Rate = 0.15
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # down to 0 at the last planned update
    warmup: Natural = 0  # updates in which the learning rate climbs from 0
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # SGD only
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9  # AdamW only
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999  # AdamW only
    weight_decay: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0
    # clip the global gradient norm; None = off, the norm is logged all the same
    max_grad_norm: Positive | None = None


class CriticSettings(OptimizerSettings):
    """The critic's optimizer: AdamW with a bound unless it says otherwise."""

    kind: Literal["sgd", "adamw"] = "adamw"
    lr: Rate = 1e-3
    max_grad_norm: Positive | None = 1.0


class ComputeSettings(Settings):
    """Where the networks are trained, and what bounds the memory that it takes; docs/models.md."""

    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU where torch sees one
    # of matrix products; weights and optimizer are float32. auto: bfloat16 where it is faster on this machine
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    gradient_checkpointing: bool = False  # hold one layer's activations at a time, compute the others again
    # tokens a pass, padding counted; None = by sequences, learn.micro_batch
    micro_batch_tokens: Count | None = None


class LearnSettings(Settings):
    """The off-policy knobs and the optimisation of one iteration."""

    unstored = ("probe_every", "balance_coef", "information_every")

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
    critic: CriticSettings = CriticSettings()
    value_clip: Positive | None = 0.5
    entropy_coef: Finite = 0.0
    balance_coef: Finite = 0.0  # weight of the load-balancing loss of a mixture of experts
    clip_bias_every: Natural = 4  # true clipping bias by a second backward every n updates; 0 = never
    target_kl: Positive | None = None  # stop the epochs of a step once approx_kl exceeds 1.5 times this
    probe_every: Natural = 0  # gradient noise, agreement and tag probabilities every n updates; 0 = never
    information_every: Natural = 10  # information of turns about prompts every n iterations; 0 = never


class EvaluationSettings(Settings):
    """Held-out questions, never trained on."""

    every: Natural = 20  # iterations; 0 = only at the end
    episodes: Count = 256
    greedy: bool = False


class BatchesSettings(Settings):
    """The black box: of which steps the whole training batch stays on the disk."""

    last: Natural = Field(default=16, description="the newest steps")
    every: Natural = Field(default=20, description="every n-th step as well, from 0; 0 = none")
    before: Natural = Field(
        default=8, description="steps before each alarm, warning or collapse, and around its onset"
    )
    mb: Natural = Field(
        default=256, description="megabytes that all of them may take together; 0 = keep none"
    )
    weights_mb: Natural = Field(
        default=4, description="store a step's first weights up to so many megabytes; 0: never"
    )

    @model_validator(mode="after")
    def _is_still_there(self) -> Self:
        if self.mb and self.before >= self.last:
            raise ValueError(
                f"before = {self.before} needs last = {self.before + 1} or more, not last = {self.last}"
            )
        return self


class RecordSettings(Settings):
    """What is written down. The turn ledger is complete by default."""

    unstored = ("baseline", "batches", "ladder", "transcript_tokens", "witnesses")

    turns: Fraction = 1.0  # share of trajectories whose turns are recorded
    tokens: Natural = 2  # trajectories a step with every token recorded
    # Tokens a step whose text is kept, as whole prompt groups; 0 = none.
    transcript_tokens: Natural = 100_000
    flush_seconds: Annotated[float, Field(gt=0.0, le=2.0)] = 1.0
    checkpoint_every: Natural = 20  # iterations; 0 = only at the end
    # Iterations between the checkpoints to fork from, kept before a fall; 0 = none. Without a number 4, and
    # none for weights above batches.weights_mb: a rung of a large model and its optimizer fills a disk.
    ladder: Natural | None = None
    batches: BatchesSettings = BatchesSettings()
    # Name of a saved baseline (`sorl baseline save`): an event says where the run leaves its bands.
    baseline: Name | None = None
    witnesses: bool = True  # fingerprints of the weights and checksums of the tokens, each step


class CollapseSettings(Settings):
    """The collapse rule (docs/collapse.md has each setting's meaning and measured error rates)."""

    severe: Fraction = 0.5
    mild: Fraction = 0.2
    false_collapse: Probability = 0.01
    false_ending: Probability = 0.05

    @model_validator(mode="before")
    @classmethod
    def _read_stored(cls, stored: Any) -> Any:
        return read_collapse_settings(stored)


class StopSettings(Settings):
    """When training ends before its last iteration; looked at between two iterations, all off by default."""

    after_collapse: Natural | None = Field(
        default=None, description="so many iterations after a collapse was detected"
    )
    updates: Count | None = Field(default=None, description="so many optimizer updates")
    tokens: int | None = Field(
        default=None, ge=1, lt=2**63, description="so many trained tokens, each epoch counted"
    )
    seconds: Positive | None = Field(
        default=None, description="so much wall time of training, resumed sessions added"
    )


class ForkSettings(Settings):
    """The state that a run starts from: a checkpoint on the ladder of another run of the same runs folder."""

    experiment: Name
    run: Name  # id of the parent
    at_step: Natural  # the first iteration of the child
    seed: Seed  # of the parent: a child of the same seed goes on as the parent did


class GuardSettings(Settings):
    """What a run does about an alarm: say so, stop, or go back to a checkpoint from before it and change one
    thing.
    """

    # kinds of events, as in table `event`; `alarm:ess_frac_min` is one alarm
    on: tuple[Annotated[str, Field(min_length=1)], ...] = ("collapse",)
    do: Literal["alert", "stop", "rollback"] = "rollback"
    # settings by dotted key, one table a rollback and in this order; each stays
    changes: tuple[dict[str, Any], ...] = ()
    before: Natural = 4  # steps before the onset that the checkpoint lies, at least
    done: Natural = 0  # rollbacks that this start has behind it; the grid counts them

    @model_validator(mode="after")
    def _has_something_to_change(self) -> Self:
        if self.do == "rollback" and not self.changes:
            raise ValueError(
                'do = "rollback" needs changes, one table a rollback: changes = [{ "learn.epochs" = 1 }]'
            )
        return self


class FaultSettings(Settings):
    """A bug that is injected on purpose; docs/faults.md lists the kinds."""

    unstored = ("until_step", "turn", "strength")

    kind: Annotated[str, Field(min_length=1)]
    at_step: Natural  # the first iteration with it
    until_step: Count | None = None  # the first iteration without it again; None = to the end
    turn: Count | None = None  # the turn that it concerns, where it concerns turns; None = any
    strength: Finite | None = None  # its one number; None = the default of its kind

    @model_validator(mode="after")
    def _lasts(self) -> Self:
        if self.until_step is not None and self.until_step <= self.at_step:
            raise ValueError(f"until_step = {self.until_step} must be above at_step = {self.at_step}")
        return self


DRAW = 10_007  # between the seeds of two children of a parent: no grid has so many seeds

# Settings that change how a run is carried out and never what it computes: a run is the same run without
# them.
COSMETIC = (
    "threads",
    "record.flush_seconds",
    "record.checkpoint_every",
    "record.ladder",
    "record.witnesses",
    *(f"record.batches.{name}" for name in BatchesSettings.model_fields),
)


class RunSettings(Settings):
    """Everything that defines one run: what is hashed, stored and shown by `sorl plan`."""

    unstored = ("collapse", "stop", "match", "compute", "model", "prompt", "fault", "fork", "guard")

    algorithm: str | dict[str, Any] = "ppo"
    seed: Seed = 0
    iterations: Count = 80
    slots: dict[str, Any] = Field(default_factory=dict)  # changes to slots of whatever algorithm runs
    model: str | None = None  # a folder or a name on the Hugging Face hub; None = `policy`, warm-started
    # auto: Search-R1's for a `model`, else the plain question
    prompt: Literal["auto", "plain", "search-r1"] = "auto"
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
    # The policy's learning rate is multiplied by the mean stabiliser factor of the run of the same seed of
    # this arm.
    match: Annotated[str, Field(min_length=1)] | None = None  # an arm of the file, or EXPERIMENT/ARM
    fault: FaultSettings | None = None  # inject a bug from some iteration on
    fork: ForkSettings | None = None  # start from the state of another run; `sorl fork` writes such files
    guard: GuardSettings | None = None  # what to do about an alarm
    threads: Few = 1

    @model_validator(mode="before")
    @classmethod
    def _a_model_has_its_own_warm_start(cls, given: Any) -> Any:
        """A pretrained model imitates nothing unless it is told to, and then at a lower rate."""
        if not isinstance(given, dict) or given.get("model") in (None, "none"):
            return given
        told = given.get("warmstart", {})
        return {**given, "warmstart": FOR_A_MODEL | told} if isinstance(told, dict) else given

    @property
    def wording(self) -> Literal["plain", "search-r1"]:
        """How questions and observations are put: an own policy has learned the plain way, others read
        instructions.
        """
        if self.prompt != "auto":
            return self.prompt
        return "plain" if self.model is None else "search-r1"

    @property
    def planned_iterations(self) -> int:
        """Iterations of the whole run: as many as were asked for, or as its budget of updates allows."""
        if self.stop.updates is None:
            return self.iterations
        return min(
            self.iterations, math.ceil(self.stop.updates / (self.learn.epochs * self.learn.minibatches))
        )

    def starts_at_one(self, lag: int) -> bool:
        """Return whether the first ratio on rollouts of `lag` iterations ago is 1 by construction; bfloat16
        rounds.
        """
        if self.compute.dtype != "float32":
            return False
        if self.learn.old_log_prob == "behaviour":
            return lag == 0 and self.engine.dtype == "float32"
        return lag == 0 or self.learn.old_log_prob == "update"

    @property
    def draw(self) -> int | None:
        """Which child of its parent a forked run is: 0 has the parent's seed. None without a parent."""
        return None if self.fork is None else (self.seed - self.fork.seed) // DRAW

    @property
    def ratio_is_one(self) -> bool:
        """Whether every update sees ratio 1 by construction: one update a rollout, by its own
        old log-probs.
        """
        return self.learn.epochs == self.learn.minibatches == 1 and self.starts_at_one(self.learn.staleness)

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        learn = self.learn
        minibatch = self.learn.episodes // self.learn.minibatches
        episodes = learn.episodes, f"learn.episodes = {learn.episodes}"
        part = minibatch, f"the minibatch of {minibatch} sequences (learn.episodes / learn.minibatches)"
        for name, (whole, what) in {
            "minibatches": episodes,
            "group_size": episodes,
            "micro_batch": part,
        }.items():
            if (size := getattr(learn, name)) is not None and whole % size:
                raise ValueError(f"learn.{name} = {size} does not divide {what}")
        if learn.micro_batch is not None and self.compute.micro_batch_tokens is not None:
            raise ValueError(
                "learn.micro_batch and compute.micro_batch_tokens split the same minibatch; keep one"
            )
        return self


class Arm(Settings):
    """A named single change that is not crossed with the axes: a control."""

    # its keys are those of RunSettings, checked when resolved
    model_config = ConfigDict(extra="allow", frozen=True)

    name: Annotated[str, Field(min_length=1)]


class RegionSettings(Settings):
    """The search of an experiment of kind region."""

    along: str = Field(
        default="learn.policy.lr", description="setting whose boundary is searched, on a log scale"
    )
    low: Positive = Field(description="lowest value")
    high: Positive = Field(description="highest value")
    points: int = Field(
        default=9, ge=3, le=65, description="values from low to high, evenly spaced on the log scale"
    )
    probes: Count = Field(default=2, description="seeds with which a value is first tried")
    search: Literal["adaptive", "full"] = Field(
        default="adaptive",
        description="adaptive: bisect; full: every value with every seed, to check the search",
    )
    runs: Count | None = Field(default=None, description="budget: so many runs in all")
    minutes: Positive | None = Field(
        default=None, description="budget: so many minutes of training, all runs added up"
    )

    @property
    def lattice(self) -> tuple[float, ...]:
        """The values, rounded to three digits: low (high / low)^(i / (points - 1))."""
        step = (self.high / self.low) ** (1 / (self.points - 1))
        return tuple(float(f"{self.low * step**i:.3g}") for i in range(self.points))

    @model_validator(mode="after")
    def _values_differ(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low:g} must be below high = {self.high:g}")
        if len(set(self.lattice)) < self.points:
            raise ValueError(
                f"{self.points} points from {self.low:g} to {self.high:g} are not apart at three digits"
            )
        return self


class GridFile(Settings):
    """A grid file: the question, the seeds, what is common, what is crossed, and the named controls."""

    kind: Literal["grid", "region"] = "grid"
    question: Annotated[str, Field(min_length=8)]
    seeds: Annotated[list[Seed], Field(min_length=1, default_factory=lambda: [0])]
    base: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    arms: list[Arm] = Field(default_factory=list)
    region: RegionSettings | None = None

    @model_validator(mode="after")
    def _a_region_has_its_table(self) -> Self:
        if (self.kind == "region") != (self.region is not None):
            told = (
                "kind = 'region' needs a table [region]"
                if self.region is None
                else "[region] needs kind = 'region'"
            )
            raise ValueError(f"{told}; docs/regions.md shows a file")
        return self
