"""The results of an experiment as one small Parquet file: a row a run, its curves as lists, with the
question.

A report, its figures and every verdict are computed from this file alone; nothing has to be trained.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sorl.analysis.survival import observed
from sorl.spec import InputError
from sorl.spec.files import from_json, open_file, words_of

if TYPE_CHECKING:
    from sorl.store.reader import Reader

KEY = b"sorl_results"
FORMAT = 1
_VALUES = 50_000_000  # in a file; a thousand runs of a thousand steps are 30 million
# The curves: columns of `step`, or means over its updates, which skip NULLs.
SERIES = ("success", "grad_norm_max", "clip_frac", "ess_frac_min", "entropy", "clip_bias_norm", "value_mae")
OF_UPDATES = ("clip_bias_norm", "value_mae")
# Curves that no verdict is computed from, for questions that come later: which of them moves before a
# collapse.
SIGNALS = (
    "reward",
    "group_reward_std",
    "zero_advantage_frac",
    "valid_action_frac",
    "answered_frac",
    "truncated_frac",
    "turns",
    "response_tokens",
    "repetition_frac",
    "duplicate_turn_frac",
    "grad_norm_mean",
    "ratio_max",
    "ess_frac",
    "chi2",
    "out_of_range_frac",
    "approx_kl",
    "kl_k3",
    "kl_ref",
    "mismatch_kl",
    "advantage_std",
    "explained_variance",
    "heldout_success",
    "heldout_episodes",
)
CURVES = (*SERIES, *SIGNALS)
_TEXT = (
    "run_id",
    "experiment",
    "arm",
    "algorithm",
    "status",
    "reason",
    "outcome",
    "config",
    "slots",
    "versions",
)
_WHOLE = ("seed", "collapse_step", "onset_low", "onset_high", "detected", "steps", "planned")
_REAL = (
    "peak_success",
    "final_success",
    "clip_frac_mean",
    "grad_norm_median",
    "grad_norm_peak",
    "seconds",
    "time",
)
# Names of runs.runs that are also curves.
_RENAMED = {"clip_frac": "clip_frac_mean", "grad_norm_max": "grad_norm_peak"}


@dataclass(frozen=True)
class Results:
    """The runs of one experiment, its question and grid file, and what the guard says of the comparison."""

    experiment: str
    question: str
    toml: str
    fairness: tuple[str, ...]
    table: pa.Table

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run: columns of runs.runs and survival.observed, slots, `step`, curves as lists in
        NAME_curve.
        """
        names = {name: f"{name}_curve" for name in CURVES} | {new: old for old, new in _RENAMED.items()}
        return self.table.to_pandas().rename(columns=names)


def collect(reader: "Reader", experiment: str, frame: pd.DataFrame, fairness: Sequence[str]) -> Results:
    """Return the results of the rows of runs.runs, whose column `slots` has the slots of each run as JSON."""
    chosen = "(SELECT run_id FROM run WHERE experiment = $name)"
    more = reader.query("SELECT run_id, versions FROM run WHERE experiment = ?", [experiment])
    tables = {name: "u" if name in OF_UPDATES else "s" for name in CURVES}
    lists = ", ".join(
        f"list({of}.{name}::FLOAT ORDER BY s.step) AS {name}_curve" for name, of in tables.items()
    )
    # Rows, not a frame: in the lists of a frame NULL would be 0.
    answer = reader.rows(
        "WITH u AS (SELECT run_id, step, avg(clip_bias_norm) AS clip_bias_norm, avg(value_mae) AS value_mae "
        f"FROM minibatch WHERE run_id IN {chosen} GROUP BY run_id, step) "
        f"SELECT run_id, list(s.step ORDER BY s.step) AS step, {lists} "
        f"FROM step AS s LEFT JOIN u USING (run_id, step) WHERE run_id IN {chosen} GROUP BY run_id",
        {"name": experiment},
    )
    curves = pd.DataFrame(answer.rows, columns=answer.columns, dtype=object)
    for part in (more.drop_duplicates("run_id"), curves, observed(frame)[["run_id", "time", "event"]]):
        frame = frame.merge(part, on="run_id", how="left")
    known = reader.rows("SELECT question, toml FROM experiment WHERE experiment = ?", [experiment]).rows
    question, toml = known[0] if known else (None, None)
    about = {"experiment": experiment, "question": question or experiment, "toml": toml or ""}
    return results(frame.assign(experiment=experiment), about, fairness)


def results(frame: pd.DataFrame, about: dict[str, str], fairness: Sequence[str] = ()) -> Results:
    """Return rows with the columns of the file in its types."""
    named = frame.rename(columns={**_RENAMED, **{f"{name}_curve": name for name in CURVES}})
    # a signal that these runs did not log
    columns = []
    absent = [None] * len(named)
    for field in _schema():  # None for what is missing; curves stay arrays
        cells = [v if np.ndim(v) or not pd.isna(v) else None for v in named.get(field.name, absent)]
        columns.append(pa.array(cells, field.type))
    table = pa.Table.from_arrays(columns, schema=_schema())
    return Results(about["experiment"], about["question"], about["toml"], tuple(fairness), table)


def merged(parts: Sequence[Results]) -> Results:
    """Return parts of one experiment as one, arm by arm; the last part that has a run counts. InputError for
    others.
    """
    names = list(dict.fromkeys(part.experiment for part in parts))
    if len(names) > 1:
        raise InputError(f"--export writes one experiment to a file, not {len(names)} ({', '.join(names)})")
    table = pa.concat_tables([part.table for part in parts])
    rows = table.select(["run_id", "arm"]).to_pandas().assign(place=lambda rows: pd.factorize(rows["arm"])[0])
    last_rows = rows.drop_duplicates("run_id", keep="last").sort_values("place", kind="stable").index
    fairness = dict.fromkeys(chain.from_iterable(part.fairness for part in parts))
    return Results(
        names[0], parts[-1].question, parts[-1].toml, tuple(fairness), table.take(last_rows.to_list())
    )


def judged_again(recorded: Results, rows: Sequence[dict[str, Any]]) -> Results:
    """The results with the verdicts of `rows` (a dict per row of the table), and time and event as these have
    them.
    """
    frame = pd.DataFrame([_without_curves(row) for row in rows])
    watched = observed(frame).set_index("run_id")[["time", "event"]].to_dict("index")
    judged = [row | watched.get(row["run_id"], {"time": None, "event": None}) for row in rows]
    return replace(recorded, table=pa.Table.from_pylist(judged, schema=_schema()))


def _without_curves(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in CURVES}


def write(recorded: Results, file: Path) -> None:
    """Write results as a file. Raises InputError where it cannot be written."""
    about = {name: getattr(recorded, name) for name in ("experiment", "question", "toml", "fairness")} | {
        "format": FORMAT
    }
    table = recorded.table.replace_schema_metadata({KEY: json.dumps(about).encode()})
    try:
        pq.write_table(table, file, compression="zstd", compression_level=19)
    except OSError as error:
        raise InputError(f"cannot write '{file}': {words_of(error)}") from None


def read(file: Path) -> Results:
    """Return the results in a file of `sorl report EXPERIMENT --export FILE.parquet`.

    Raises InputError for anything else, saying what it is and how to make one.
    """
    make = "`sorl report EXPERIMENT --export FILE.parquet` writes one"
    schema = _schema()
    try:
        with open_file(file) as opened:
            parquet = pq.ParquetFile(opened)
            # Counted first, as a few bytes of a file can be more than memory holds.
            if _count_values(parquet.metadata) > _VALUES:
                raise InputError(f"'{file}' holds more than {_VALUES:,} values, which no results of runs do")
            table = parquet.read()
        about = from_json((table.schema.metadata or {})[KEY])
        if about["format"] != FORMAT:
            now = f"this version of sorl reads {FORMAT}"
            raise InputError(f"'{file}' holds results in format {about['format']}, {now}; {make}")
        experiment, question, toml = (str(about[name]) for name in ("experiment", "question", "toml"))
        fairness = tuple(str(line) for line in about["fairness"])
        return Results(experiment, question, toml, fairness, table.select(schema.names).cast(schema))
    except FileNotFoundError:
        raise InputError(f"no file '{file}'; {make}") from None
    except InputError:
        raise
    except (KeyError, ValueError, TypeError, OSError, pa.ArrowException) as error:
        raise InputError(
            f"'{file}' is no Parquet file of results ({str(error).splitlines()[0]}); {make}"
        ) from None


def _count_values(metadata: pq.FileMetaData) -> int:
    """How many values a Parquet file holds, by its footer."""
    count = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        count += sum(group.column(i).num_values for i in range(group.num_columns))
    return count


def _schema() -> pa.Schema:
    types = {
        pa.string(): _TEXT,
        pa.int64(): _WHOLE,
        pa.float64(): _REAL,
        pa.bool_(): ["event"],
        pa.list_(pa.int64()): ["step"],
        pa.list_(pa.float32()): CURVES,
    }
    fields = []
    for kind, names in types.items():
        fields += [pa.field(name, kind) for name in names]
    return pa.schema(fields)
