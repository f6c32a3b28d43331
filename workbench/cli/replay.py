"""`sorl replay`: run a stored batch through several algorithms."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typer import Argument, Context, Option

from sorl.algorithms import CORE, resolve
from sorl.cli.shared import OUTPUT, number, one_of, run_folder, toml_of
from sorl.cli.tables import as_text, document, echo, note, print_table, save, save_parquet
from sorl.grid.cell import algorithm_label, expand, merge
from sorl.grid.grid_file import option
from sorl.objective import Algorithm
from sorl.recording.segments import TYPES
from sorl.replay import tables
from sorl.replay.tables import Replay, Rows
from sorl.spec import Column, InputError
from sorl.store import batches
from sorl.store.batches import StoredBatch

if TYPE_CHECKING:
    import torch

# Table -> its title and the columns that a terminal shows.
TABLES = {
    "summary": (
        "All updates together; source logged: by the trainer",
        (
            "algorithm source policy_loss stabiliser_ratio "
            "stabiliser_factor unit_ratio_max clip_frac out_of_range_frac ess_frac weight_abs"
        ),
    ),
    "turns": (
        "By turn",
        (
            "algorithm turn_index n_tokens unit_ratio_mean unit_ratio_max approx_kl clip_frac "
            "out_of_range_frac gradient_share unit_ratio_mass_frac"
        ),
    ),
    "culprits": (
        "Turns with the largest gradient share",
        "algorithm rank trajectory turn_index n_tokens advantage ratio_max clip_frac gradient_share",
    ),
    "tokens": (
        "Tokens; weight = d loss / d log-prob",
        "algorithm update position turn_index token log_ratio unit_ratio advantage clipped weight",
    ),
}
# With --corrections, in place of these.
CORRECTION_TABLES = {
    "corrections": (
        "What each correction leaves of the batch; omega: before cap and mask, weight: after them",
        (
            "correction omega_mean omega_max weight_mean weight_max capped_frac masked_frac ess_frac "
            "gradient_left shrinks"
        ),
    ),
    "correction_turns": (
        "By turn",
        (
            "correction turn_index n_tokens omega_mean weight_mean masked_frac gradient_left "
            "gradient_masked_frac"
        ),
    ),
    "correction_positions": (
        "By fifths of what the policy wrote in a trajectory",
        "correction part n_tokens omega_mean weight_mean masked_frac gradient_left gradient_masked_frac",
    ),
    "silenced": (
        "Who keeps less than a tenth of its pull; the half that keeps least against the other half",
        (
            "correction silenced silenced_frac left_shortest left_longest tokens_least tokens_most tokens_p "
            "reward_least reward_most reward_p"
        ),
    ),
}
_SET = "Change every algorithm, e.g. clip.high=0.3. Repeatable."
_TOKENS = "List the tokens of --trajectory; default: the one with the largest gradient share."


def replay(
    ctx: Context,
    run: str = Argument(..., metavar="RUN", help="A run id, a unique prefix of one, or the run's folder."),
    step: int | None = Option(
        None, min=0, help="Step of the stored batch; without it the stored steps are listed."
    ),
    algorithm: list[str] | None = Option(
        None, metavar="NAME", help="Default: the six of the core grid. Repeatable."
    ),
    change: list[str] | None = Option(None, "--set", metavar="SLOT.OPTION=VALUE", help=_SET),
    variants: Path | None = Option(
        None, metavar="FILE.toml", help="Variants: one table each, with base and slots."
    ),
    update: list[int] | None = Option(None, min=0, help="Only this optimizer update. Repeatable."),
    trajectory: int | None = Option(None, min=0, help="Also list every token of this trajectory."),
    tokens: bool = Option(False, "--tokens", help=_TOKENS),
    top: int = Option(3, min=0, help="Turns to list per algorithm, by gradient share."),
    corrections: bool = Option(
        False, "--corrections", help="Ask instead what each rollout correction leaves of the batch."
    ),
    gradients: bool = Option(
        False, "--gradients", help="Also compute true gradients; needs stored weights, slower."
    ),
    table: str | None = one_of("--table", *TABLES, *CORRECTION_TABLES, more=": only this table"),
    form: str = one_of("--format", "table", "csv", "json", "parquet", default="table"),
    output: Path | None = OUTPUT,
    double: bool = Option(False, "--float64", help="Compute in float64 instead of float32."),
    threads: int = number(
        1, "--threads", least=1, most=1024, why="no machine has so many", what="Torch threads."
    ),
) -> None:
    """Run a stored batch through several algorithms: losses, ratios, clips and gradient shares.

    Each algorithm recomputes its own advantages. A value that the batch does not determine is NULL, with the
    reason.
    """
    is_about_corrections = corrections or table in CORRECTION_TABLES
    written = Form(table, form, output)
    _refuse_form(written, CORRECTION_TABLES if is_about_corrections else TABLES)
    folder = run_folder(ctx.obj, run)
    stored = _stored_batch(folder, step, weights=gradients)
    import torch

    torch.set_num_threads(threads)
    algorithms = algorithms_of(stored.meta, algorithm or (), variants, change or ())
    dtype = torch.float64 if double else torch.float32
    question = _Question(folder.name, stored, algorithms, update or [], dtype)
    if is_about_corrections:
        _replay_corrections(question, written)
        return
    done = question.play(trajectory, find_trajectory=tokens or table == "tokens")
    _show_replay(question, done, top, written, with_gradients=gradients)


def _stored_batch(folder: Path, step: int | None, *, weights: bool) -> StoredBatch:
    """Return the batch of a step. Raises InputError without a step, with the stored ones in it."""
    if step is None and (stored := batches.steps(folder)):
        raise InputError(
            f"name a stored step of run '{folder.name}' with --step; stored are {batches.ranges(stored)}"
        )
    # without a stored batch, says how to store them
    return batches.read(folder, step or 0, weights=weights)


def _refuse_form(form: "Form", known: Collection[str]) -> None:
    """Raise InputError for a table that is not among the known ones, or cannot be written as asked."""
    if form.table is not None and form.table not in known:
        raise InputError(f"--corrections has no table {form.table}; it has {', '.join(known)}")
    if form.form in ("csv", "parquet") and form.table is None:
        raise InputError(f"--format {form.form} holds one table: add --table {'|'.join(known)}")
    if form.form == "parquet" and form.output is None:
        raise InputError("--format parquet writes a binary file: add --output FILE.parquet")


class _Question(NamedTuple):
    """A stored batch and what it is replayed through; the first algorithm is the one that ran."""

    run: str
    stored: StoredBatch
    algorithms: Mapping[str, Algorithm]
    updates: Sequence[int]  # empty: all
    dtype: "torch.dtype"

    @property
    def own(self) -> str:
        """The label of the algorithm that ran."""
        return next(iter(self.algorithms))

    def play(self, trajectory: int | None, *, find_trajectory: bool) -> Replay:
        """The replay with the tokens of a trajectory: the one given, or if asked for the one with most of the
        gradient.
        """
        from sorl.replay.play import play

        play_with = partial(
            play, self.stored, self.algorithms, self.own, self.updates or None, dtype=self.dtype
        )
        done = play_with(trajectory=trajectory)
        if find_trajectory and trajectory is None:
            worst = tables.culprits(done, 1)
            trajectory = worst[0]["trajectory"] if worst else 0
            done = play_with(trajectory=trajectory)
        if trajectory is not None and not done.tokens:
            stored = self.stored
            inside = [str(u.index) for u in stored.updates if trajectory in stored.trajectory[u.rows]]
            raise InputError(
                f"trajectory {trajectory} was trained on in updates {', '.join(inside)} of step"
                f" {stored.step} only"
            )
        return done

    def gradients(self, done: Replay) -> tuple[dict[tuple[str, int], dict[str, float | None]], str]:
        """The true gradients of a replay, and why some are missing."""
        from sorl.replay.networks import Networks
        from sorl.replay.play import gradients

        return gradients(self.stored, self.algorithms, done, Networks(self.stored))


def _show_replay(question: _Question, done: Replay, top: int, form: "Form", *, with_gradients: bool) -> None:
    """Write the tables of a replay, and note which gradients are missing."""
    gradients, incomplete = question.gradients(done) if with_gradients else ({}, "")
    answer = {
        "summary": tables.summary(done, gradients),
        "turns": tables.turns(done),
        "culprits": tables.culprits(done, top),
    }
    if done.tokens:
        answer["tokens"] = tables.tokens(done)
    if form.form == "table" and form.output is None:
        _print(question.run, done, answer if form.table is None else {form.table: answer[form.table]})
    else:
        _write(_head(question.run, done), answer, tables.TABLES, form)
    if incomplete:
        note(incomplete)


def _replay_corrections(question: _Question, form: "Form") -> None:
    """Write what each rollout correction leaves of the batch."""
    from sorl.replay import corrections as weighing

    stored = question.stored
    weighed = weighing.weigh_corrections(
        stored, question.algorithms, question.own, question.updates or None, question.dtype
    )
    head = {
        "run": question.run,
        "step": stored.step,
        "own": question.own,
        "updates": len(set(question.updates) or stored.updates),
        "trajectories": len(stored.tokens),
        "caveats": weighing.caveats(stored, question.own),
    }
    _write(head, weighing.tables(weighed, stored), weighing.TABLES, form)


def _head(run: str, done: Replay) -> dict[str, Any]:
    """What an answer is about, for JSON."""
    return {
        "run": run,
        "step": done.stored.step,
        "own": done.own,
        "updates": len(done.stored.updates),
        "trajectories": len(done.stored.tokens),
        "advantage_gap": done.advantage_gap,
        "caveats": done.caveats,
        "reasons": dict(done.reasons),
    }


class Form(NamedTuple):
    """Which table is written, how and where."""

    table: str | None  # None: all of them
    form: str
    output: Path | None


def _write(
    head: Mapping[str, Any], answer: Mapping[str, Rows], columns: Mapping[str, Sequence[Column]], form: Form
) -> None:
    """Write tables as the form says; those of a terminal are those of the corrections."""
    if form.table is not None:
        answer = {form.table: answer[form.table]}
    if form.form == "parquet" and form.table is not None and form.output is not None:
        import pyarrow as pa

        schema = pa.schema([(c.name, TYPES[c.type]) for c in columns[form.table]])
        save_parquet(pa.Table.from_pylist(answer[form.table], schema=schema), form.output)
    elif form.form == "json":
        save(document({**head, **answer}), form.output)
    elif form.form == "csv" or form.output is not None:
        texts = []
        for name, rows in answer.items():
            names = [column.name for column in columns[name]]
            texts.append(as_text(names, [list(row.values()) for row in rows], "csv"))
        save("\n".join(texts), form.output)
    else:
        _print_corrections(head, answer)


def _print_corrections(head: Mapping[str, Any], answer: Mapping[str, Rows]) -> None:
    from sorl.replay.corrections import acting

    updates = "1 update" if head["updates"] == 1 else f"{head['updates']} updates together"
    echo(f"{head['run']}, step {head['step']}: {updates} on {head['trajectories']} trajectories")
    for caveat in head["caveats"]:
        echo(f"! {caveat}")
    acting_names = acting(answer["corrections"]) if "corrections" in answer else None
    if acting_names is not None and not acting_names:
        echo("Sampler and trainer give the tokens the same log-probs: no correction changes anything here.")
        return
    for name, rows in answer.items():
        title, columns = CORRECTION_TABLES[name]
        if acting_names is not None and name != "corrections":  # in detail only those that do something
            rows = [row for row in rows if row["correction"] in acting_names]
        echo(f"\n{title}")
        _print_rows(columns.split(), rows)


def _print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    print_table(columns, [tuple(map(row.__getitem__, columns)) for row in rows], null="NULL")


def _print(run: str, done: Replay, answer: Mapping[str, Rows]) -> None:
    """Print the tables of a replay on a terminal, with what limits them."""
    _print_subject(run, done)
    for name, rows in answer.items():
        title, columns = TABLES[name]
        answered = [row for row in rows if not row.get("reason")]
        replayed = [row for row in answered if row.get("source") != "logged"]
        measured = [column.name for column in tables.GRADIENT if _is_measured(column.name, replayed)]
        has_totals = any("update" in row and row["update"] is None for row in answered)
        if name != "tokens" and has_totals:
            answered = [row for row in answered if row["update"] is None]  # only all updates together
        echo(f"\n{title}")
        _print_rows([*columns.split(), *measured], answered)
    if done.reasons and "summary" in answer:
        echo()
        for label, reason in done.reasons.items():
            echo(f"{label}: no answer, {reason}")


def _print_subject(run: str, done: Replay) -> None:
    """Print which updates were replayed, and the caveats."""
    updates = done.stored.updates
    epochs = len({update.epoch for update in updates})
    epochs_in_words = "1 epoch" if epochs == 1 else f"{epochs} epochs"
    trained_by = f"; trained by {done.own}" if done.is_own_known else ""
    echo(
        f"{run}, step {done.stored.step}: {len(updates)} updates in {epochs_in_words} on"
        f" {len(done.stored.tokens)} trajectories, rollouts of step {updates[0].rollout_step}{trained_by}"
    )
    for caveat in done.caveats:
        echo(f"! {caveat}")
    gap = done.advantage_gap
    if gap is not None and gap > 1e-3:
        they = f"its advantages, recomputed from the stored rewards, differ by up to {gap:.3g}"
        echo(f"! {they} from the advantages it was trained on")


def _is_measured(column: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row.get(column) is not None for row in rows)


def algorithms_of(
    meta: Mapping[str, Any], names: Sequence[str], file: Path | None, changes: Sequence[str]
) -> dict[str, Algorithm]:
    """Return by label the algorithm that ran (from `meta` of its batch), and then the others to replay.

    `names`: known algorithms, with the slots of `changes` set; by default the six of the core, or with
    changes the one that ran. `file`: a table a variant, {base = ..., slot = ...}.
    """
    slots = _slots_of(changes)
    ran = _ran(meta)
    tables: list[dict[str, Any]] = [{"base": name} for name in names]
    if not tables and file is None:
        tables = [ran] if slots else [{"base": name} for name in CORE]
    algorithms: dict[str, Algorithm] = {}
    for table in (ran, *(merge(table, slots) for table in tables)):
        label = algorithm_label(table if len(table) > 1 else table["base"])
        algorithms.setdefault(label, resolve(table))
    for name, table in ({} if file is None else _variants(file)).items():
        try:
            if name in algorithms:
                raise InputError("another algorithm of this replay has that name; rename it")
            algorithms[name] = resolve(table)
        except InputError as error:
            raise InputError(f"variant [{name}] in {file}: {error}") from None
    return algorithms


def _ran(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the algorithm that ran, as a table with its base and slots."""
    algorithm = meta["algorithm"]
    return merge(algorithm if isinstance(algorithm, dict) else {"base": algorithm}, meta["slots"])


def _slots_of(changes: Sequence[str]) -> dict[str, Any]:
    """Return the tables of slots that `--set SLOT.OPTION=VALUE` means."""
    options = (option(change, example="clip.high=0.3") for change in changes)
    return expand({key.removeprefix("slots."): value for key, value in options}, "--set")


def _variants(file: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a file of variants. Raises InputError where it holds anything else."""
    variants = toml_of("--variants", file)
    if not variants or not all(isinstance(table, dict) for table in variants.values()):
        example = '[wide] base = "ppo" clip = { high = 0.5 }'
        raise InputError(f"--variants '{file}' must hold one table per variant; write it like {example}")
    return variants
