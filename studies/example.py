"""The recorded example: runs of the quickstart thinned to a few megabytes, which ship with the package."""

from __future__ import annotations

import argparse
import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from safetensors import safe_open
from safetensors.numpy import save_file

from sorl.store.batches import WEIGHTS
from sorl.store.example import ARCHIVE
from sorl.store.reader import Reader
from sorl.store.sync import sync

EXPERIMENT = "quickstart"
WHOLE = ("ppo",)  # arms of which both seeds are kept, and each epoch of the turns
# Of one step in so many the tokens are kept (around a fall of all); of the other arms the texts of one step
# in so many, and the turns of the last epoch.
EVERY = 3
AROUND = 4  # steps before and after the onset of which all tokens are kept
# Bits of the mantissa that are kept: 8 are a relative error of .2 % at most. Tables without an entry stay
# exact.
BITS = {"turn": 8, "turn_step": 10, "trajectory": 10, "minibatch": 10}
BATCHES = 2  # stored batches from the onset on of the first run of WHOLE, the first of them with its weights
_RUNS = (
    "SELECT run_id, arm, seed, coalesce(collapse_step, onset_low) FROM run WHERE experiment = ? ORDER BY ALL"
)


def make(runs: Path, archive: Path) -> None:
    """Write the archive from a runs folder in which the quickstart has been trained."""
    sync(runs)
    found = Reader(runs).rows(_RUNS, [EXPERIMENT]).rows
    with TemporaryDirectory() as scratch:
        home = Path(scratch) / EXPERIMENT
        _copy(runs / EXPERIMENT, home, True, None)
        for run_id, arm, seed, onset in found:
            whole = arm in WHOLE
            if whole or seed == 0:
                source = runs / EXPERIMENT / run_id
                target = home / run_id
                _copy(source, target, whole, onset if whole else None)
                if whole and seed == 0 and onset is not None:
                    _batches(source, target, onset)
        with tarfile.open(archive, "w:xz", preset=9) as tar:
            tar.add(home, EXPERIMENT, filter=_plain)


def _copy(source: Path, target: Path, whole: bool, onset: int | None) -> None:
    """Copy what describes a run, and its segments as one file a table."""
    target.mkdir(parents=True)
    for name in ("experiment.toml", "config.toml", "run.json", "console.log"):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    for table in sorted(path for path in (source / "segments").iterdir() if path.is_dir()):
        rows = pa.concat_tables(
            [pq.read_table(file) for file in sorted(table.glob("*.parquet"))], promote_options="permissive"
        )
        if table.name == "token":
            steps = rows["step"].to_numpy()
            near = np.zeros(len(steps), bool) if onset is None else np.abs(steps - onset) <= AROUND
            rows = rows.filter(pa.array(near | (steps % EVERY == 0)))
        if table.name == "transcript" and not whole:
            rows = rows.filter(pa.array(rows["step"].to_numpy() % EVERY == 0))
        if table.name == "turn" and not whole:
            rows = rows.filter(pc.equal(rows["epoch"], pc.max(rows["epoch"])))
        rows = rounded(rows, BITS[table.name]) if table.name in BITS else rows
        reals = [field.name for field in rows.schema if pa.types.is_floating(field.type)]
        (target / "segments" / table.name).mkdir(parents=True)
        pq.write_table(  # the archive compresses better over all files
            rows,
            target / "segments" / table.name / "000000.parquet",
            compression="none",
            use_dictionary=[name for name in rows.schema.names if name not in reals],
            column_encoding=dict.fromkeys(reals, "BYTE_STREAM_SPLIT"),
        )


def rounded(rows: pa.Table, bits: int) -> pa.Table:
    """Round the numbers of a table to `bits` of mantissa; NULL, NaN and Inf stay, and so does the type."""
    columns = []
    for column in rows.itercolumns():
        if pa.types.is_float64(column.type):
            values = column.combine_chunks()
            fraction, exponent = np.frexp(values.fill_null(0.0).to_numpy(zero_copy_only=False))
            shorter = np.ldexp(np.round(fraction * 2.0**bits) / 2.0**bits, exponent)
            column = pa.array(shorter, mask=np.asarray(values.is_null()))
        columns.append(column)
    return pa.table(columns, schema=rows.schema)


def _batches(source: Path, target: Path, onset: int) -> None:
    """Copy the batches after the last step before the fall, of all but the first without the weights."""
    (target / "batches").mkdir()
    for number in range(BATCHES):
        name = f"{onset + number:06}.safetensors"
        if (source / "batches" / name).is_file():
            with safe_open(source / "batches" / name, framework="numpy") as stored:
                kept = {
                    key: stored.get_tensor(key)
                    for key in set(stored.keys())
                    if number == 0 or not key.startswith(WEIGHTS)
                }
                save_file(kept, target / "batches" / name, stored.metadata())


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who made a file and when: the same runs give the same archive."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="Runs folder in which the quickstart has been trained.")
    parser.add_argument("--output", type=Path, default=ARCHIVE, help="The archive. Default: the shipped one.")
    options = parser.parse_args()
    make(options.runs, options.output)
    print(f"{options.output}: {options.output.stat().st_size / 2**20:.2f} MiB")
