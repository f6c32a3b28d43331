"""`sorl replay`: run a stored batch through several algorithms."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.shared import echo
from workbench.spec import InputError, nearest
from workbench.spec.files import MIB, from_toml, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from workbench.objective import Algorithm
    from workbench.replay import Gradients, Replay
    from workbench.replay.tables import Table
    from workbench.spec import ComputeSettings
    from workbench.store.batches import StoredBatch

FORMATS = ("table", "csv", "json", "parquet")
TABLES = ("summary", "turns", "culprits", "tokens")
_SHOWN = {
    "summary": (
        "algorithm", "source", "policy_loss", "stabiliser_ratio", "stabiliser_factor", "unit_ratio_max", "clip_frac",
        "out_of_range_frac", "ess_frac", "weight_abs",
    ),
    "turns": (
        "algorithm", "turn_index", "n_tokens", "unit_ratio_mean", "unit_ratio_max", "approx_kl", "clip_frac",
        "out_of_range_frac", "gradient_share", "unit_ratio_mass_frac",
    ),
    "culprits": (
        "algorithm", "rank", "trajectory", "turn_index", "n_tokens", "advantage", "ratio_max", "clip_frac",
        "gradient_share",
    ),
    "tokens": (
        "algorithm", "update", "position", "turn_index", "token", "log_ratio", "unit_ratio", "advantage", "clipped",
        "weight",
    ),
}  # fmt: skip
_TRUE = ("grad_norm", "clip_bias_norm", "gradient_cosine")


def replay(
    ctx: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run id, a unique prefix of one, or the run's folder.", show_default=False
        ),
    ],
    step: Annotated[
        int | None, typer.Option(min=0, help="Step of the stored batch; without it the stored steps are listed.")
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Algorithm to replay; repeatable. Default: the six of the core grid.",
            show_default=False,
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SLOT.OPTION=VALUE",
            help="Change an option of every algorithm, e.g. clip.high=0.3. Repeatable.",
        ),
    ] = None,
    variants: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Variants: one table each, with base and slots.", show_default=False),
    ] = None,
    update: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this optimizer update. Repeatable.", show_default=False)
    ] = None,
    trajectory: Annotated[
        int | None, typer.Option(min=0, help="Also list every token of this trajectory.", show_default=False)
    ] = None,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens", help="List every token of --trajectory, by default of the one with the largest gradient share."
        ),
    ] = False,
    top: Annotated[int, typer.Option(min=0, help="Turns to list per algorithm, by gradient share.")] = 3,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Also compute true gradients; needs stored weights, slower.")
    ] = False,
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Only one of: {', '.join(TABLES)}.", show_default=False)
    ] = None,
    form: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "table",
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")] = None,
    double: Annotated[bool, typer.Option("--float64", help="Compute in float64 instead of float32.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Torch threads.")] = 1,
) -> None:
    """Run a stored batch through several algorithms: losses, ratios, clips and gradient shares.

    Each algorithm recomputes its own advantages. A value that the batch does not determine is NULL, with the reason.
    """
    from workbench.cli.tables import check_format
    from workbench.store import batches

    check_format(form, FORMATS)
    if table is not None and table not in TABLES:
        raise InputError(f"--table '{table}' is unknown{nearest(table, TABLES)}; there is: {', '.join(TABLES)}")
    if form in ("csv", "parquet") and table is None:
        raise InputError(f"--format {form} holds one table: add --table {'|'.join(TABLES)}")
    if form == "parquet" and output is None:
        raise InputError("--format parquet writes a binary file: add --output FILE.parquet")
    folder = run_folder(ctx.obj, run)
    if step is None:
        known = batches.steps(folder)
        if not known:
            batches.file_of(folder, 0)
        raise InputError(f"name a stored step of run '{folder.name}' with --step; stored are {batches.ranges(known)}")
    stored = batches.read(folder, step, weights=gradients)
    import torch

    from workbench.replay import play, tables

    torch.set_num_threads(threads)
    own, algorithms = algorithms_of(stored.meta, algorithm or (), variants, change or ())
    dtype = torch.float64 if double else torch.float32
    done = play(stored, algorithms, own, update or None, trajectory, dtype)
    if (tokens or table == "tokens") and trajectory is None:
        worst = tables.culprits(done, 1).records()
        trajectory = worst[0]["trajectory"] if worst else 0
        done = play(stored, algorithms, own, update or None, trajectory, dtype)
    if trajectory is not None and not done.tokens:
        inside = [str(u.index) for u in stored.updates if trajectory in stored.trajectory[u.rows]]
        raise InputError(f"trajectory {trajectory} was trained on in updates {', '.join(inside)} of step {step} only")
    taken = _gradients(stored, algorithms, done) if gradients else None
    found = {
        "summary": tables.summary(done, taken.found if taken else None),
        "turns": tables.turns(done),
        "culprits": tables.culprits(done, top),
        **({} if trajectory is None else {"tokens": tables.tokens(done, trajectory)}),
    }
    if table is not None:
        found = {table: found[table]}
    _write(folder.name, done, found, form, output)
    if taken is not None and taken.reason:
        from workbench.cli.shared import note

        note(taken.reason)


def _gradients(stored: StoredBatch, algorithms: Mapping[str, Algorithm], done: Replay) -> Gradients:
    from workbench.replay import gradients

    return gradients(stored, algorithms, done, Policy.of(stored))


def run_folder(runs: Path | str, run: str) -> Path:
    """Return the folder of a run, given its id, a unique prefix, or the folder itself."""
    if (Path(run) / "config.toml").is_file():
        return Path(run).resolve()
    from workbench.cli.shared import current
    from workbench.cli.show import find

    return folder_of(Path(runs), find(current(Path(runs)), run))


def folder_of(runs: Path, run_id: str) -> Path:
    """Return the folder of a recorded run. Raises InputError if it was renamed or removed."""
    from workbench.store.segments import run_folders

    found = next((folder.path for folder in run_folders(runs) if folder.run_id == run_id), None)
    if found is None:
        raise InputError(
            f"run '{run_id}' has no folder of that name in '{runs}': it was renamed or removed; restore its name"
        )
    return found


def _write(run: str, done: Replay, found: dict[str, Table], form: str, output: Path | None) -> None:
    from workbench.cli.sql import write
    from workbench.store.text import as_csv, as_json

    if form == "parquet":
        assert output is not None
        _write_parquet(next(iter(found.values())), output)
    elif form == "csv":
        (one,) = found.values()
        write(as_csv(one.columns, one.rows), output)
    elif form == "json":
        document: dict[str, Any] = {
            "run": run, "step": done.stored.step, "own": done.own, "updates": len(done.stored.updates),
            "trajectories": len(done.stored.tokens), "advantage_gap": done.advantage_gap, "reasons": dict(done.reasons),
            **{name: table.records() for name, table in found.items()},
        }  # fmt: skip
        write(json.dumps(as_json(document), ensure_ascii=False, allow_nan=False, indent=1) + "\n", output)
    elif output is not None:
        write("\n".join(as_csv(table.columns, table.rows) for table in found.values()), output)
    else:
        _print(run, done, found)


def _print(run: str, done: Replay, found: dict[str, Table]) -> None:
    from workbench.cli.tables import print_table

    stored = done.stored
    n = len({u.epoch for u in stored.updates})
    epochs = f"{n} epoch{'' if n == 1 else 's'}"
    echo(
        f"{run}, step {stored.step}: {len(stored.updates)} updates in {epochs} on "
        f"{len(stored.tokens)} trajectories, rollouts of step {stored.updates[0].rollout_step}; trained by {done.own}"
    )
    if done.advantage_gap is not None and done.advantage_gap > 1e-3:
        echo(
            f"! its advantages, recomputed from the stored rewards, differ by up to {done.advantage_gap:.3g} from "
            "the advantages it was trained on"
        )
    titles = {
        "summary": "All updates together; source logged: by the trainer",
        "turns": "By turn",
        "culprits": "Turns with the largest gradient share",
        "tokens": "Tokens; weight = d loss / d log-prob",
    }
    for name, table in found.items():
        records = table.records()
        measured = [c for c in _TRUE if any(row.get(c) is not None for row in records if row.get("source") != "logged")]
        columns = [*_SHOWN[name], *measured]
        several = name != "tokens" and any(row["update"] is None for row in records if "update" in row)
        rows = [
            [row[c] for c in columns]
            for row in records
            if not (several and row.get("update", None) is not None) and not row.get("reason")
        ]
        echo(f"\n{titles[name]}")
        print_table(columns, rows, null="NULL")
    if done.reasons and "summary" in found:
        echo("")
        for label, reason in done.reasons.items():
            echo(f"{label}: no answer, {reason}")


def _write_parquet(table: Table, output: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from workbench.cli.shared import note
    from workbench.replay.tables import CULPRITS, SUMMARY, TOKENS, TURNS

    kinds = {"BIGINT": pa.int64(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(), "VARCHAR": pa.string()}
    types = {c.name: kinds[c.type] for c in (*SUMMARY, *TURNS, *CULPRITS, *TOKENS)}
    schema = pa.schema([(name, types[name]) for name in table.columns])
    try:
        pq.write_table(pa.Table.from_pylist(table.records(), schema=schema), output)
    except OSError as error:
        raise InputError(f"cannot write --output '{output}': {error.strerror or error}") from None
    note(f"wrote {output}: {len(table.rows):,} rows")


def algorithms_of(
    meta: Mapping[str, Any], names: Sequence[str], file: Path | None, changes: Sequence[str]
) -> tuple[str, dict[str, Algorithm]]:
    """Return the label of the algorithm that ran (from `meta` of its batch), and all to replay, that one first.

    `names`: known algorithms, each with the slots that `changes` (`clip.high=0.3`) set; without names and without
    `file` the six of the core, or with changes only the one that ran, changed. `file`: a table a variant, {base = ...,
    slot = ...}. Raises InputError for what cannot be read.
    """
    from workbench.algorithms import CORE, resolve
    from workbench.grid.cell import algorithm_label, merge

    ran = meta["algorithm"] if isinstance(meta["algorithm"], dict) else {"base": meta["algorithm"]}
    ran = merge(ran, meta["slots"])
    own = algorithm_label(ran if len(ran) > 1 else ran["base"])
    found = {own: resolve(ran)}
    slots = _slots(changes)
    tables: list[dict[str, Any]] = [{"base": name} for name in names]
    if not tables and file is None:
        tables = [ran] if slots else [{"base": name} for name in CORE]
    for table in tables:
        whole = merge(table, slots)
        found.setdefault(algorithm_label(whole if len(whole) > 1 else whole["base"]), resolve(whole))
    for name, table in _variants(file).items():
        if name in found:
            raise InputError(f"variant [{name}] in {file} has the name of another algorithm of this replay; rename it")
        try:
            found[name] = resolve(table)
        except InputError as error:
            raise InputError(f"variant [{name}] in {file}: {error}") from None
    return own, found


def _slots(changes: Sequence[str]) -> dict[str, Any]:
    from workbench.grid.cell import expand

    flat: dict[str, Any] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        key = key.strip().removeprefix("slots.")
        if not equals or not key or not value.strip():
            raise InputError(f"--set '{change}' is not SLOT.OPTION=VALUE; write it like --set clip.high=0.3")
        try:
            flat[key] = from_toml(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            flat[key] = value.strip()  # a bare word is what people type at a shell
        except ValueError as error:
            raise InputError(f"--set {key}: the value cannot be: {error}") from None
    return expand(flat, "--set")


def _variants(file: Path | None) -> dict[str, dict[str, Any]]:
    if file is None:
        return {}
    example = 'write it like [wide] base = "ppo" clip = { high = 0.5 }, a table a variant'
    try:
        found = from_toml(read_text(file, MIB))
    except OSError as error:
        raise InputError(f"cannot read --variants '{file}': {error.strerror}") from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"--variants '{file}' is not valid TOML: {error}; {example}") from None
    if not found or not all(isinstance(table, dict) for table in found.values()):
        raise InputError(f"--variants '{file}' must hold one table per variant; {example}")
    return found


class Policy:
    """Weights of the step's start on the CPU, at the temperature and precision that it was trained at."""

    def __init__(self, model: Any, temperature: float, compute: ComputeSettings) -> None:
        self.model, self.temperature, self.compute = model, temperature, compute
        self.parameters: Sequence[Tensor] = [p for p in model.parameters() if p.requires_grad]

    @classmethod
    def of(cls, stored: StoredBatch) -> Policy:
        """From a batch that was read with its weights. Raises InputError where it has none, or they do not fit."""
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        from workbench.spec import ComputeSettings, InputError

        meta = stored.meta
        if "model" not in meta or not stored.weights:
            raise InputError(
                "--gradients needs the weights of the step, and they are not stored: they take more than "
                "record.batches.weights_mb; raise it and train again, or leave --gradients out"
            )
        config = AutoConfig.for_model(**meta["model"])
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        own = {n.removeprefix("policy."): torch.from_numpy(w) for n, w in stored.weights.items() if n[:7] == "policy."}
        missing, unexpected = model.load_state_dict(own, strict=False)
        lacking = set(missing) - set(getattr(model, "all_tied_weights_keys", None) or ())
        if unexpected or lacking:
            raise InputError(
                f"the stored weights do not fit the stored architecture: {sorted({*unexpected, *lacking})[:4]}"
            )
        return cls(model, meta["temperature"], ComputeSettings.model_validate({**meta["compute"], "device": "cpu"}))

    def log_probs(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies of tokens (b, t), with gradient, as the trainer takes them."""
        import torch

        from workbench.learn.networks import autocast, log_probs

        with autocast(torch.device("cpu"), self.compute):
            return log_probs(self.model, tokens, self.temperature, True, mask)
