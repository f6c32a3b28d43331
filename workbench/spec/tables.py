"""The tables of the store: their grain, their keys, and the columns that are not diagnostics."""

from dataclasses import dataclass

from sorl.spec.vocabulary import OUTCOMES


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


RUN_ID = Column(
    "run_id", "VARCHAR", "Identity of the run: arm, seed and the hash of its resolved configuration."
)
TURN_INDEX = Column(
    "turn_index", "BIGINT", "Turn of the trajectory, from 1: a maximal stretch that the policy wrote."
)
_STEP = Column(
    "step", "BIGINT", "Training iteration, from 0: the one that trained on the row, not the one that sampled."
)
_TRAJECTORY = Column("trajectory", "BIGINT", "Index of the trajectory in the batch of its step.")
_EPOCH = Column("epoch", "BIGINT", "Pass over the batch, from 0.")
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
            RUN_ID,
            Column("experiment", "VARCHAR", "Experiment that the run belongs to."),
            Column(
                "algorithm", "VARCHAR", "Name of the algorithm (an unnamed variant carries its base's name)."
            ),
            Column(
                "arm",
                "VARCHAR",
                "Everything that distinguishes the cell from its neighbours except the seed.",
            ),
            Column("seed", "BIGINT", "Seed of questions, sampling and minibatch order."),
            Column("config_hash", "VARCHAR", "Hash of the resolved configuration without cosmetic keys."),
            Column(
                "config",
                "VARCHAR",
                "Resolved configuration as JSON (query it with config->>'$.learn.staleness').",
            ),
            Column("status", "VARCHAR", "queued, running, finished, failed or interrupted."),
            Column(
                "reason", "VARCHAR", "Why the run failed, was interrupted or ended early; NULL otherwise."
            ),
            Column("outcome", "VARCHAR", f"How it ended: {', '.join(OUTCOMES)}; NULL while undecided."),
            Column(
                "collapse_step",
                "BIGINT",
                "Onset of the collapse: last step before the fall; NULL without one.",
            ),
            Column(
                "onset_low",
                "BIGINT",
                "Lower end of the onset's 95 % interval (of its fall, if falling); else NULL.",
            ),
            Column("onset_high", "BIGINT", "Upper end of that interval."),
            Column(
                "detection_step", "BIGINT", "First step at which the collapse rule holds; NULL without one."
            ),
            Column(
                "peak_success",
                "DOUBLE",
                "Highest median of five steps of success; its start, if it only lost.",
            ),
            Column("final_success", "DOUBLE", "Mean success of the last ten steps."),
            Column("steps", "BIGINT", "Steps that the run has completed."),
            Column("started_at", "TIMESTAMP", "When training began (UTC)."),
            Column("ended_at", "TIMESTAMP", "When the run ended (UTC); NULL while it runs."),
            Column("seconds", "DOUBLE", "Wall time of training so far, summed over resumed sessions."),
            Column(
                "versions",
                "VARCHAR",
                "Versions of python, torch, transformers and sorl, and the machine, as JSON.",
            ),
            Column(
                "reading",
                "VARCHAR",
                "Of an imported log: its rows, those left out and why, as JSON; NULL of other runs.",
            ),
            Column(
                "generation",
                "BIGINT",
                "How often the cell was started from nothing (--fresh); the newest counts.",
            ),
            Column("parent", "VARCHAR", "Run that it was forked from; NULL without one."),
            Column("forked_at", "BIGINT", "First step that is its own; NULL without a parent."),
            Column("draw", "BIGINT", "Child of its parent and arm, from 1; NULL without a parent."),
            Column(
                "attempt", "BIGINT", "Which attempt this is, from 1; each resume and each retry is one more."
            ),
            _WRITTEN,
        ),
        latest_wins=True,
    ),
    Table("step", "One row per run and training iteration.", ("run_id", "step"), (RUN_ID, _STEP, _WRITTEN)),
    Table(
        "minibatch",
        "One row per optimizer update.",
        ("run_id", "step", "update"),
        (
            RUN_ID,
            _STEP,
            Column(
                "update",
                "BIGINT",
                "Optimizer update of the step, from 0 (there fresh rollouts have ratio 1).",
            ),
            _EPOCH,
            Column(
                "rollout_step",
                "BIGINT",
                "Iteration whose policy sampled the data (staleness = step - rollout_step).",
            ),
        ),
    ),
    Table(
        "trajectory",
        "One row per trajectory that a step trained on.",
        ("run_id", "step", "trajectory"),
        (
            RUN_ID,
            _STEP,
            _TRAJECTORY,
            Column("prompt_group", "BIGINT", "Prompt group, inside which group-relative advantages compare."),
            Column("rollout_step", "BIGINT", "Iteration whose policy sampled the trajectory."),
            Column(
                "rollout",
                "BIGINT",
                "Rollout that it is a training row of; NULL where every rollout has one row.",
            ),
            Column(
                "parent", "BIGINT", "Trajectory of the same rollout that it branches off; NULL without one."
            ),
            Column("shared_tokens", "BIGINT", "Tokens at its beginning that are those of its parent."),
            Column(
                "sample",
                "BIGINT",
                "The trainer's own number of the sample, counted in the order of the data; NULL without one.",
            ),
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
            RUN_ID,
            _STEP,
            _EPOCH,
            _TRAJECTORY,
            TURN_INDEX,
            Column(
                "update",
                "BIGINT",
                "Optimizer update of the step in which this turn was trained in this epoch.",
            ),
        ),
    ),
    Table(
        "turn_step",
        "One row per run, step and turn index: the roll-up of the turn ledger that charts read.",
        ("run_id", "step", "turn_index"),
        (RUN_ID, _STEP, TURN_INDEX),
    ),
    Table(
        "token",
        "One row per sampled trajectory of a step, with one LIST entry per token.",
        ("run_id", "step", "trajectory"),
        (
            RUN_ID,
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
            Column(
                "clipped", "BOOLEAN[]", "True where the clip stopped the token's gradient in the last epoch."
            ),
            Column("entropy", "DOUBLE[]", "Entropy of the policy's distribution at the token (nats)."),
            Column(
                "route_mismatch",
                "DOUBLE[]",
                "Share of layers whose experts differ between sampler and old policy.",
            ),
            Column(
                "route_shift",
                "DOUBLE[]",
                "Share of layers whose experts differ between old and current policy.",
            ),
            Column("advantage", "DOUBLE[]", "Advantage of the token."),
            Column("value", "DOUBLE[]", "Critic's value at the token; NULL without a critic."),
            Column("gradient_weight", "DOUBLE[]", "d loss / d log-prob of the token in the last epoch."),
            Column(
                "worst_epoch", "BIGINT", "Epoch with the largest sum of |gradient_weight| of the trajectory."
            ),
            Column("worst_log_ratio", "DOUBLE[]", "log_ratio in the worst epoch (nats)."),
            Column("worst_clipped", "BOOLEAN[]", "clipped in the worst epoch."),
            Column("worst_gradient_weight", "DOUBLE[]", "gradient_weight in the worst epoch."),
        ),
    ),
    Table(
        "transcript",
        "One row per trajectory of a step whose text was kept: all of a small step, whole groups of others.",
        ("run_id", "step", "trajectory"),
        (
            RUN_ID,
            _STEP,
            _TRAJECTORY,
            Column("text", "VARCHAR", "All of it, prompt and observations included."),
            Column(
                "part_start",
                "INTEGER[]",
                "Characters before each part: the prompt, a turn that the policy wrote, what it then read.",
            ),
            Column(
                "part_turn", "INTEGER[]", "Turn in which the policy wrote the part; 0 where it only read it."
            ),
        ),
    ),
    Table(
        "witness",
        "One row per run, step, network and layer group: what its weights were and how far they moved.",
        ("run_id", "step", "network", "layer"),
        (
            RUN_ID,
            _STEP,
            Column("network", "VARCHAR", "policy, critic, reference or sampler."),
            Column("layer", "VARCHAR", "Group of its tensors, by name: embedding, layer N, head or rest."),
            Column("parameters", "BIGINT", "Numbers in the group; a tied head counts as its embedding."),
            Column("sampled", "BIGINT", "How many of them are looked at: 16,384 of a tensor at most."),
            Column("trainable", "BOOLEAN", "Whether any tensor of the group is to be trained."),
            Column("dtype", "VARCHAR", "Coarsest number format of its tensors: float32, bfloat16, ..."),
            Column("of_step", "BIGINT", "Step whose weights a sampler claims; NULL of other networks."),
            Column("weight_norm", "DOUBLE", "Norm of all its weights at the start of the step."),
            Column(
                "moved", "DOUBLE", "Norm of how far the step moved them; estimated beyond 16,384 of a tensor."
            ),
            Column("moved_least", "DOUBLE", "The same of the numbers looked at alone, a lower bound."),
            Column("fingerprint_start", "DOUBLE", "Sum of the numbers looked at, with random signs, first."),
            Column("fingerprint_end", "DOUBLE", "The same after the updates of the step."),
            Column("fingerprint_bfloat16", "DOUBLE", "fingerprint_start of weights rounded to bfloat16."),
            Column("fingerprint_norm", "DOUBLE", "Norm of the numbers looked at, for its rounding."),
            Column("optimizer", "VARCHAR", "Its optimizer with betas, momentum and decay, as JSON."),
            Column("optimizer_steps", "BIGINT", "Steps that the optimizer took in the step."),
            Column("lr_sum", "DOUBLE", "Sum of the group's learning rate over them."),
            Column("gradient_path", "DOUBLE", "Sum over them of learning rate times norm of its gradient."),
            Column("started_at", "TIMESTAMP", "When the session began that wrote the row (UTC)."),
        ),
    ),
    Table(
        "witness_batch",
        "One row per run and step: what was sampled and what was trained, as checksums.",
        ("run_id", "step"),
        (
            RUN_ID,
            _STEP,
            Column("trajectories", "BIGINT", "Trajectories that an update trained on."),
            Column("sampled_checksum", "BIGINT", "Of their tokens and loss masks as they were sampled."),
            Column("trained_checksum", "BIGINT", "Of their tokens and loss masks as they were trained on."),
            Column("micro_batches", "BIGINT", "Backward passes of the policy in the step."),
        ),
    ),
    Table(
        "evaluation",
        "One row per run, step and data set of held-out questions.",
        ("run_id", "step", "data"),
        (
            RUN_ID,
            _STEP,
            Column(
                "data",
                "VARCHAR",
                "The held-out data: world (-no-search: empty retriever), benchmark or file.",
            ),
            Column("episodes", "BIGINT", "Held-out questions asked."),
            Column("success", "DOUBLE", "Share of questions answered exactly (fraction)."),
            Column("success_low", "DOUBLE", "Lower end of the 95 % Clopper-Pearson interval."),
            Column("success_high", "DOUBLE", "Upper end of the 95 % Clopper-Pearson interval."),
            Column("turns", "DOUBLE", "Mean turns per episode."),
            Column(
                "metric",
                "VARCHAR",
                "What success means: exact match or choice accuracy; NULL: the world's own.",
            ),
            Column("f1", "DOUBLE", "Mean F1 with the best gold answer; NULL where it was not taken."),
            Column("f1_low", "DOUBLE", "Lower end of its 95 % percentile bootstrap interval over questions."),
            Column(
                "f1_high", "DOUBLE", "Upper end of its 95 % percentile bootstrap interval over questions."
            ),
            _WRITTEN,
        ),
        latest_wins=True,
    ),  # a second `sorl eval` replaces its row
    Table(
        "note",
        "One row per note that a person wrote about a run, a step, a trajectory or tokens; never changed.",
        ("run_id", "note"),
        (
            RUN_ID,
            Column("note", "VARCHAR", "Identity of the note."),
            Column("step", "BIGINT", "Training iteration that it is about; NULL: the whole run."),
            Column("trajectory", "BIGINT", "Trajectory of the step that it is about; NULL: the whole step."),
            Column("first_token", "BIGINT", "First token of the trajectory that it is about, from 0."),
            Column("last_token", "BIGINT", "Last token that it is about; NULL: the whole trajectory."),
            Column("tag", "VARCHAR", "A word to find it by; empty without one."),
            Column("text", "VARCHAR", "What the person wrote."),
            Column("withdraws", "VARCHAR", "Note that this row takes back; NULL of a note."),
            _WRITTEN,
        ),
    ),
    Table(
        "event",
        "One row per thing that happened to a run.",
        ("run_id", "step", "kind", "diagnostic"),
        (
            RUN_ID,
            _STEP,
            Column(
                "kind",
                "VARCHAR",
                "What happened: collapse, mild, recovered, alarm, non_finite, format_collapse, "
                "retriever_down, segment_corrupt, guard_*, stale_weights; of its process: resumed, retried, "
                "interrupted, hang, out_of_memory, killed, failed.",
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
            Column(
                "alarm_value", "DOUBLE", "Value of the trip-wire, or its multiple of the run's own baseline."
            ),
            Column(
                "alarm_baseline_points",
                "BIGINT",
                "Points of the baseline's median; NULL: the value is absolute.",
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
            RUN_ID,
            Column("table_name", "VARCHAR", "Table that the segment holds rows of."),
            Column("file", "VARCHAR", "Path of the file, relative to the run's folder."),
            Column("rows", "BIGINT", "Rows ingested."),
            Column("bytes", "BIGINT", "Size of the file."),
            Column("status", "VARCHAR", "ingested, corrupt, or foreign: rows of another run, left out."),
            _WRITTEN,
        ),
    ),
)


def table(name: str) -> Table:
    """Return the declaration of table `name`; KeyError for a table that does not exist."""
    return {t.name: t for t in TABLES}[name]
