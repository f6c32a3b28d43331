"""`sorl replay`: what every algorithm would have done on a stored batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.text import echo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.objective import Algorithm
    from workbench.replay import Gradients, Replay
    from workbench.replay.tables import Table
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
        str, typer.Argument(metavar="RUN", help="A run's id, the beginning of one, or its folder.", show_default=False)
    ],
    step: Annotated[
        int | None, typer.Option(min=0, help="Step whose batch is stored; without it they are listed.")
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Again for more; default: six.", show_default=False),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SLOT.OPTION=VALUE", help="Change a slot of each, as clip.high=0.3."),
    ] = None,
    variants: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="A table a variant, base and slots.", show_default=False)
    ] = None,
    update: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this optimizer update; again for more.", show_default=False)
    ] = None,
    trajectory: Annotated[
        int | None, typer.Option(min=0, help="Also every token of this trajectory.", show_default=False)
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Every token of --trajectory, or of the one that carries most.")
    ] = False,
    top: Annotated[int, typer.Option(min=0, help="Turns with the largest gradient share, of each algorithm.")] = 3,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="True gradients, where the weights are stored (slower).")
    ] = False,
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Only one of: {', '.join(TABLES)}.", show_default=False)
    ] = None,
    form: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "table",
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there.")] = None,
    double: Annotated[bool, typer.Option("--float64", help="Compute in float64 instead of float32.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Torch threads.")] = 1,
) -> None:
    """What each algorithm would have done with a stored batch: loss, ratios, clips, and who carries the gradient.

    Advantages are made again by each algorithm's own rule; what a batch cannot say is NULL, with the reason.
    """
    from workbench.cli.tables import check_format
    from workbench.spec import InputError, nearest
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

    from workbench.cli.variants import algorithms_of
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
    _tell(folder.name, done, found, form, output)
    if taken is not None and taken.reason:
        from workbench.cli.database import note

        note(taken.reason)


def _gradients(stored: StoredBatch, algorithms: Mapping[str, Algorithm], done: Replay) -> Gradients:
    from workbench.cli.network import Policy
    from workbench.replay import gradients

    return gradients(stored, algorithms, done, Policy.of(stored))


def run_folder(runs: Path | str, run: str) -> Path:
    """The folder of a run that is named by its id, by the beginning of one, or by the folder itself."""
    if (Path(run) / "config.toml").is_file():
        return Path(run).resolve()
    from workbench.cli.database import current
    from workbench.cli.show import find

    return folder_of(Path(runs), find(current(Path(runs)), run))


def folder_of(runs: Path, run_id: str) -> Path:
    """The folder of a run that the database knows. Raises InputError where there is none of its name any more."""
    from workbench.spec import InputError
    from workbench.store.segments import run_folders

    found = next((folder.path for folder in run_folders(runs) if folder.run_id == run_id), None)
    if found is None:
        raise InputError(
            f"run '{run_id}' has no folder of that name in '{runs}': it was renamed or removed; give it its name back"
        )
    return found


def _tell(run: str, done: Replay, found: dict[str, Table], form: str, output: Path | None) -> None:
    from workbench.cli.sql import write
    from workbench.store.text import as_csv, as_json

    if form == "parquet":
        assert output is not None
        _write_parquet(next(iter(found.values())), output)
    elif form == "csv":
        (one,) = found.values()
        write(as_csv(one.columns, one.rows), output)
    elif form == "json":
        told: dict[str, Any] = {
            "run": run, "step": done.stored.step, "own": done.own, "updates": len(done.stored.updates),
            "trajectories": len(done.stored.tokens), "advantage_gap": done.advantage_gap, "reasons": dict(done.reasons),
            **{name: table.records() for name, table in found.items()},
        }  # fmt: skip
        write(json.dumps(as_json(told), ensure_ascii=False, allow_nan=False, indent=1) + "\n", output)
    elif output is not None:
        write("\n".join(as_csv(table.columns, table.rows) for table in found.values()), output)
    else:
        _print(run, done, found)


def _print(run: str, done: Replay, found: dict[str, Table]) -> None:
    from workbench.cli.text import print_table

    stored = done.stored
    n = len({u.epoch for u in stored.updates})
    epochs = f"{n} epoch{'' if n == 1 else 's'}"
    echo(
        f"{run}, step {stored.step}: {len(stored.updates)} updates in {epochs} on "
        f"{len(stored.tokens)} trajectories, rollouts of step {stored.updates[0].rollout_step}; trained by {done.own}"
    )
    if done.advantage_gap is not None and done.advantage_gap > 1e-3:
        echo(
            f"! its advantages, made again from the stored rewards, differ by up to {done.advantage_gap:.3g} from "
            "those that it was trained on"
        )
    titles = {
        "summary": "All updates together; logged is what the trainer wrote down then",
        "turns": "By turn",
        "culprits": "Turns that carry most of the gradient",
        "tokens": "Tokens; weight = d loss / d log-prob",
    }
    for name, table in found.items():
        told = table.records()
        measured = [c for c in _TRUE if any(row.get(c) is not None for row in told if row.get("source") != "logged")]
        columns = [*_SHOWN[name], *measured]
        several = name != "tokens" and any(row["update"] is None for row in told if "update" in row)
        rows = [
            [row[c] for c in columns]
            for row in told
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

    from workbench.cli.database import note
    from workbench.replay.tables import CULPRITS, SUMMARY, TOKENS, TURNS
    from workbench.spec import InputError

    kinds = {"BIGINT": pa.int64(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(), "VARCHAR": pa.string()}
    types = {c.name: kinds[c.type] for c in (*SUMMARY, *TURNS, *CULPRITS, *TOKENS)}
    schema = pa.schema([(name, types[name]) for name in table.columns])
    try:
        pq.write_table(pa.Table.from_pylist(table.records(), schema=schema), output)
    except OSError as error:
        raise InputError(f"cannot write --output '{output}': {error.strerror or error}") from None
    note(f"wrote {output}: {len(table.rows):,} rows")
