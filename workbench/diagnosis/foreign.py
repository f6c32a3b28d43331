"""Reader of other trainers' logs: scalars per step from JSON lines, CSV, Parquet and JSON."""

import csv
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd

from workbench.diagnosis.log import Log
from workbench.spec import InputError
from workbench.spec.files import MIB, encoding_of, from_json, open_file, read_text

SIZE, DOCUMENT, LINE = 256 * MIB, 32 * MIB, 4 * MIB  # bytes of a file, of one that is one JSON value, of a line
ROWS, METRICS = 300_000, 1000
LARGEST = 1e100
STEPS = 50_000  # that are judged, in some seconds
_NAMED = 8  # columns that are named of a file without a known one
Judge = Callable[[Sequence[float | None], Sequence[int]], dict[str, Any]]


def read(path: Path, judge: Judge) -> Log:
    """Return the log in a file. `judge` says of scores and steps what table `run` would: outcome, collapse_step, ...

    Columns of ours keep their names, those of other trainers are translated (`NAMES`), the rest is left out.
    Raises InputError for a file that cannot be read or holds nothing that is known.
    """
    if (rows := _rows(path)).empty:
        raise InputError(f"'{path}' holds no rows")
    name, tables = _translate(rows, path.name)
    if (steps := tables["step"]).empty:
        raise InputError(f"no row of '{path}' has a step that is a number")
    run: dict[str, Any] = {"status": None, "outcome": None, "collapse_step": None, "detection_step": None}
    if score := next((name for name in ("success", "reward") if name in steps), None):
        points = steps.dropna(subset=score)
        run |= judge(points[score].astype(float).tolist(), points["step"].astype(int).tolist())
    return Log(name, lambda table, step: tables.get(table, pd.DataFrame()), {}, run)


def _rows(path: Path) -> pd.DataFrame:
    """Return the columns that are known, of at most ROWS rows; the others cost nothing, however many a file has."""
    import pyarrow as pa

    if path.suffix not in FORMATS:
        raise InputError(f"'{path}' has none of the endings {', '.join(FORMATS)}: rename the file by its format")
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size > SIZE:
                raise InputError(f"'{path}' is larger than {SIZE // MIB} MiB; give a part of it, or fewer metrics")
            return FORMATS[path.suffix](file, path)
    except InputError:
        raise
    except (OSError, ValueError, ArithmeticError, pa.ArrowException, csv.Error) as error:
        said = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"'{path}' cannot be read as {path.suffix[1:]}: {said}") from None


def _json(file: BufferedReader, path: Path) -> pd.DataFrame:
    """A list of rows, or `log_history` in a trainer_state.json."""
    found = from_json(read_text(path, DOCUMENT))
    rows = found.get("log_history") if isinstance(found, dict) else found
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"'{path}' is neither a list of objects nor a trainer_state.json with log_history")
    return frame(map(_flat, rows), path)


def _json_lines(file: BufferedReader, path: Path) -> pd.DataFrame:
    return frame(_lines(io.TextIOWrapper(file, encoding_of(file.peek(2))), path), path)


def _table(file: BufferedReader, path: Path) -> pd.DataFrame:
    """Text parted by comma, semicolon or tab; with semicolons `0,5` is a number, as spreadsheets have it."""
    text = io.TextIOWrapper(file, encoding_of(file.peek(2)))
    first = text.readline(LINE)
    text.seek(0)
    if not first.strip():
        raise ValueError("its first line, which should name the columns, is empty")
    separator = max(",;\t", key=first.count)
    _refuse_names(next(csv.reader([first], delimiter=separator, skipinitialspace=True), []), path)
    found = pd.read_csv(
        text, sep=separator, usecols=lambda name: _known(str(name)), nrows=ROWS + 1, index_col=False, low_memory=False,
        skipinitialspace=True,
    )  # fmt: skip
    _refuse_rows(len(found), path)
    if separator == ";":
        for name in found.select_dtypes(exclude=["number", "bool"]):
            found[name] = found[name].astype(str).str.replace(",", ".", regex=False)
    return found


def _parquet(file: BufferedReader, path: Path) -> pd.DataFrame:
    """The columns of numbers; its rows are counted first, as a few bytes of a file can be more than memory holds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = pq.ParquetFile(file)
    _refuse_rows(found.metadata.num_rows, path)
    kinds = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    numbers = [field.name for field in found.schema_arrow if any(kind(field.type) for kind in kinds)]
    _refuse_names(numbers, path)
    return found.read(columns=list(filter(_known, numbers))).replace_schema_metadata(None).to_pandas()


# Ending of a file -> its rows, with the columns that are known; a new format is a function here and its line.
FORMATS: dict[str, Callable[[BufferedReader, Path], pd.DataFrame]] = {
    ".jsonl": _json_lines, ".json": _json, ".csv": _table, ".tsv": _table, ".parquet": _parquet,
}  # fmt: skip


def frame(rows: Iterable[dict[str, Any]], path: Path) -> pd.DataFrame:
    """Return the known metrics of rows. Raises InputError for too many rows or metrics, or for none that is known."""
    kept: list[dict[str, Any]] = []
    seen: dict[str, None] = {}
    for row in rows:
        kept.append({name: value for name, value in row.items() if _known(name)})
        _refuse_rows(len(kept), path)
        if len(kept) == 1 or not kept[-1].keys() <= seen.keys():
            seen |= dict.fromkeys([*kept[-1], *itertools.islice(row, _NAMED)])
            _refuse_names(list(seen), path, sure=False)
    if kept:
        _refuse_names(list(seen), path)
    return pd.DataFrame(kept)


def _refuse_rows(rows: int, path: Path) -> None:
    if rows > ROWS:
        raise InputError(f"'{path}' has more than {ROWS:,} rows; give a part of it, or one row a step")


def _refuse_names(names: Sequence[str], path: Path, *, sure: bool = True) -> None:
    """InputError for more metrics than any trainer has, and where these are all, for none that is known."""
    metrics = sum(map(_metric, names))
    if metrics > METRICS:
        raise InputError(f"'{path}' has more than {METRICS:,} metrics named as ours; give a part of them")
    if sure and not metrics:
        raise InputError(
            f"'{path}' has no metric that is known here (it has: {', '.join(names[:_NAMED])}, ...); known are the "
            "names of verl, Search-R1, TRL, SkyRL, prime-rl, slime, ROLL and OpenRLHF, and our own as step.entropy or "
            "minibatch.grad_norm"
        )


def _lines(file: TextIO, path: Path) -> Iterator[dict[str, Any]]:
    """Yield one object a line; a last line that was cut off is left out, any other broken one is an error."""
    for number, line in enumerate(iter(partial(file.readline, LINE), ""), start=1):
        if not line.strip():
            continue
        try:
            row = from_json(line)
        except ValueError as error:
            if not line.endswith("\n") and len(line) < LINE:
                return
            raise InputError(f"line {number} of '{path}' is not JSON: {line[:60]!r} ({error})") from None
        if not isinstance(row, dict):
            raise InputError(f"line {number} of '{path}' is no object with metrics: {line[:60]!r}")
        yield _flat(row)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return one flat row: metrics that are nested one level (`{"data": {...}, "step": 3}`) join the others."""
    nested = {k: v for value in row.values() if isinstance(value, dict) for k, v in value.items()}
    return {**nested, **{k: v for k, v in row.items() if not isinstance(v, (dict, list))}}


def _metric(name: str) -> bool:
    return name in SCORES or _column(name) is not None


def _known(name: str) -> bool:
    return name in STEP or _metric(name)


def _column(name: str) -> str | None:
    """Our table.column of a metric; None for one that is not known."""
    ours = "." in name and name.split(".")[0] in ("step", "minibatch")
    return NAMES.get(name) or NAMES.get(name.removeprefix("train/")) or (name if ours else None)


def _translate(rows: pd.DataFrame, name: str) -> tuple[str, dict[str, pd.DataFrame]]:
    """Return the tables of a log, and its name; of more than STEPS steps only every so many-th is looked at."""
    key = next((column for column in STEP if column in rows), None)
    steps = _numbers(rows[key]) if key else pd.Series(range(len(rows)), rows.index, dtype=float)
    order = steps[steps.abs() < 2.0**53].astype("int64")
    if len(known := order.drop_duplicates().sort_values()) > STEPS:
        every = -(-len(known) // STEPS)
        name = f"{name} (one in {every} of its {len(known):,} steps)"
        order = order[order.isin(known.iloc[::every])]
    rows = rows.loc[order.index]
    columns: dict[str, dict[str, pd.Series]] = {"step": {"step": order}, "minibatch": {"step": order}}
    for metric in rows.columns:
        table, _, column = (_column(str(metric)) or "").partition(".")
        if table:
            columns[table].setdefault(column, _numbers(rows[metric]))
    for metric in (metric for metric in SCORES if metric in rows):
        columns["step"].setdefault("success", _numbers(rows[metric]))
    means = {table: pd.DataFrame(found).groupby("step", as_index=False).mean() for table, found in columns.items()}
    return name, means


def _numbers(column: pd.Series) -> pd.Series:
    """Return the column as floats: what is no number is NaN, and infinite what no sum of some thousands would hold."""
    numbers = pd.to_numeric(column, errors="coerce").astype(float)
    return numbers.mask(numbers.abs() > LARGEST, np.sign(numbers) * np.inf)


# The metrics of verl, Search-R1, TRL, SkyRL, prime-rl, slime, ROLL, OpenRLHF and AReaL that have the definition of a
# table.column of ours. A metric whose definition differs (a clip fraction per sequence, a KL of another sign) is left
# out: a wrong name is worse than a missing one.
_METRICS: dict[str, str] = {
    "minibatch.grad_norm": "actor/grad_norm grad_norm optim/grad_norm train/grad_norm actor_grad_norm update/grad_norm",
    "minibatch.policy_loss": "actor/pg_loss policy_loss",
    "step.clip_frac":
        "actor/pg_clipfrac clip_ratio/region_mean loss_metrics/clip_ratio train/pg_clipfrac ppo_clip_ratio "
        "update/clip_ratio",
    "step.approx_kl": "actor/ppo_kl train/ppo_kl actor/approxkl@sum ppo_kl",
    "step.entropy":
        "actor/entropy actor/entropy_loss entropy policy_entropy entropy/all/mean train/entropy_loss entropy_loss "
        "update/entropy",
    "minibatch.lr": "actor/lr learning_rate optim/lr",
    "step.kl_ref": "actor/kl_loss kl",
    "minibatch.value_loss": "critic/vf_loss",
    "step.explained_variance": "critic/vf_explained_var",
    "minibatch.vf_clip_frac": "critic/vf_clipfrac",
    "minibatch.critic_grad_norm": "critic/grad_norm",
    "step.response_tokens": "response_length/mean completions/mean_length",
    "step.truncated_frac": "response_length/clip_ratio completions/clipped_ratio rollout/truncated_rate",
    "step.turns": "num_turns/mean",
    "step.mismatch_kl": "rollout_corr/kl mismatch_kl/all/mean",
    "step.ess_frac": "rollout_corr/rollout_is_eff_sample_size",
    "step.staleness": "training/off_policy/trajectory_staleness/mean async/staleness_mean off_policy/mean",
    "step.seconds_rollout": "timing_s/gen",
    "step.seconds_update": "timing_s/update_actor",
    "step.valid_action_frac": "env/ratio_of_valid_action",
    "step.searches": "env/number_of_valid_search",
    "step.reward_std": "reward_std",
    "step.zero_advantage_frac": "frac_reward_zero_std",
    "minibatch.mismatch":
        "sampling/sampling_logp_difference/mean policy/rollout_train_logprobs_abs_diff_mean "
        "train/train_rollout_logprob_abs_diff",
    "minibatch.mismatch_max": "sampling/sampling_logp_difference/max policy/rollout_train_logprobs_abs_diff_max",
    "minibatch.ratio_max": "loss_metrics/is_ratio_max actor/ratio_max@max",
}  # fmt: skip
NAMES: dict[str, str] = {metric: column for column, metrics in _METRICS.items() for metric in metrics.split()}

STEP = ("step", "global_step", "training/global_step", "train/global_step", "trainer/global_step", "_step", "iteration")

# Of a trainer that logs no exact match, the mean reward stands in for success: collapse is judged by it.
SCORES = (
    "success", "val-core/acc/mean@1", "critic/score/mean", "critic/rewards/mean", "reward/mean", "reward",
    "rewards/mean", "rollout/raw_reward", "train/reward",
)  # fmt: skip
