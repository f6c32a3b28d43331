"""A crowd of runs for the scale bars of the app: rows made inside DuckDB, the same for the same size, never
trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sorl.measures import CATALOGUE
from sorl.spec import Diagnostic, InputError, RunSettings, Unit
from sorl.store.connect import database, writer
from sorl.store.reader import Reader
from sorl.store.schema import create, quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

EXPERIMENT = "browse"
START = datetime(2026, 11, 1, 12)
_ALGORITHMS = ("ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo")
_SEEDS = 20  # of an arm
_ROWS = 2_000_000  # of one transaction
_SIGN = {
    Unit.FRACTION: "0.1 + 0.05 * {u} + 0.4 * fallen",
    Unit.RATIO: "exp(0.04 * ({u} - 0.5) + 1.5 * fallen * {u})",
}
_SIZE = "(0.02 + 0.01 * {u}) * (1 + 30 * fallen * {u})"
_SUCCESS = "greatest(0, 0.8 * (1 - exp(-step / 800)) * (1 - 0.97 * fallen) + 0.02 * ({u} - 0.5))"


MOST_ROWS = 10**10  # of turns; the default size has 80 million, in tens of gigabytes


@dataclass(frozen=True)
class Size:
    """How many runs, steps of each and turn indices of each step."""

    runs: int = 1_000
    steps: int = 10_000
    turns: int = 8

    @classmethod
    def read(cls, text: str) -> Size:
        """A size written `1000x10000x8`. Raises InputError for anything else."""
        try:
            runs, steps, turns = (int(part) for part in text.split("x"))
        except ValueError:
            runs = 0
        if runs < 1 or steps < 1 or turns < 1:
            raise InputError(
                f"--size '{text}' is no size: RUNSxSTEPSxTURNS in whole numbers, such as 1000x10000x8"
            )
        if runs * steps * turns > MOST_ROWS:
            raise InputError(
                f"--size '{text}' is over {MOST_ROWS:,} rows of turns, the most: that is a terabyte"
            )
        return cls(runs, steps, turns)

    def __str__(self) -> str:
        return f"{self.runs}x{self.steps}x{self.turns}"


@dataclass(frozen=True)
class Member:
    """One run of the crowd; half of them fall."""

    number: int
    steps: int

    @property
    def settings(self) -> RunSettings:
        """What the run was configured with."""
        arm = self.number // _SEEDS
        learn = RunSettings().learn.model_copy(update={"staleness": 2 * (arm // len(_ALGORITHMS))})
        return RunSettings(
            algorithm=_ALGORITHMS[arm % len(_ALGORITHMS)],
            seed=self.number % _SEEDS,
            iterations=self.steps,
            learn=learn,
        )

    @property
    def arm(self) -> str:
        """Algorithm and staleness."""
        return f"{self.settings.algorithm} · staleness {self.settings.learn.staleness}"

    @property
    def run_id(self) -> str:
        """As the grid names runs: arm, seed, hash."""
        settings = self.settings
        mark = sha256(str(self.number).encode()).hexdigest()[:8]
        return f"{settings.algorithm}-staleness-{settings.learn.staleness}-s{settings.seed}-{mark}"

    @property
    def collapse(self) -> int | None:
        """The onset of its collapse, anywhere from a tenth to nine tenths of the run; None in every other
        run.
        """
        if self.number % 2:
            return None
        return int(self.steps * (0.1 + 0.8 * (self.number * 0.6180339887 % 1)))


def ensure(runs: Path, size: Size, say: Callable[[str], None]) -> None:
    """Make the crowd in `runs` where it is missing. Raises InputError for a folder that holds another
    database.
    """
    wanted = f"{size} rows made for `sorl bench --only browse`"
    if database(runs).exists():
        found = Reader(runs).rows("SELECT toml FROM experiment WHERE experiment = ?", [EXPERIMENT]).rows
        if not found or found[0][0] != wanted:
            raise InputError(f"'{runs}' holds another database: name an empty folder, or delete that one")
        return
    runs.mkdir(parents=True, exist_ok=True)
    with writer(runs, 1.0) as connection:
        create(connection)
        connection.execute("SET memory_limit = '2GiB'")
        for done in _fill(connection, size):
            say(f"{done} of {size.runs} runs made")
        connection.execute(
            "INSERT INTO experiment VALUES (?, ?, ?, ?)",
            [EXPERIMENT, "Can a thousand runs be browsed?", wanted, START],
        )


def _fill(connection: DuckDBPyConnection, size: Size) -> Iterator[int]:
    members = [Member(number, size.steps) for number in range(size.runs)]
    _insert(connection, "run", [_run(m) for m in members])
    _insert(connection, "event", [e for m in members for e in _events(m)])
    ids = [m.run_id for m in members]
    onsets = [m.collapse for m in members]
    at_once = max(1, _ROWS // (size.steps * size.turns))
    for first in range(0, size.runs, at_once):
        last = min(first + at_once, size.runs)
        connection.execute("BEGIN")
        for table, turns in (("step", 1), ("turn_step", size.turns)):
            connection.execute(
                _rows(table),
                {
                    "first": first * size.steps * turns,
                    "last": last * size.steps * turns,
                    "steps": size.steps,
                    "turns": turns,
                    "at": START,
                    "ids": ids,
                    "onsets": onsets,
                },
            )
        connection.execute("COMMIT")
        yield last


def _insert(connection: DuckDBPyConnection, table: str, rows: list[dict[str, Any]]) -> None:
    names = ", ".join(quoted(name) for name in rows[0])
    lists = ", ".join(f"unnest(${name})" for name in rows[0])
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    connection.execute(f"INSERT INTO {quoted(table)} ({names}) SELECT {lists}", columns)


def _run(m: Member) -> dict[str, Any]:
    settings = m.settings
    return {
        "run_id": m.run_id,
        "experiment": EXPERIMENT,
        "algorithm": settings.algorithm,
        "arm": m.arm,
        "seed": settings.seed,
        "config": settings.model_dump_json(),
        "status": "finished",
        "outcome": "healthy" if m.collapse is None else "collapsed",
        "collapse_step": m.collapse,
        "detection_step": None if m.collapse is None else min(m.steps - 1, m.collapse + 40),
        "peak_success": 0.8,
        "final_success": 0.8 if m.collapse is None else 0.03,
        "steps": m.steps,
        "started_at": START,
        "ended_at": START,
        "seconds": 60.0,
        "written_at": START,
    }


def _events(m: Member) -> Iterator[dict[str, Any]]:
    if m.collapse is None:
        return
    detected = min(m.steps - 1, m.collapse + 40)
    for step, kind, severity, name in (
        (max(0, m.collapse - 9), "alarm", "warning", "ess_frac_min"),
        (max(0, m.collapse - 4), "alarm", "warning", "grad_norm_max"),
        (detected, "collapse", "critical", "success"),
    ):
        yield {
            "run_id": m.run_id,
            "step": step,
            "kind": kind,
            "severity": severity,
            "diagnostic": name,
            "value": 1.0,
            "threshold": 0.5,
            "message": f"{name} crossed 0.5",
            "written_at": START,
        }


def _rows(table: str) -> str:
    """The statement that makes the rows of `table` from row numbers: run by run, step by step,
    turn by turn.
    """
    measured = [d for d in CATALOGUE if d.table == table and d.sql_type in ("DOUBLE", "BIGINT")]
    names = ["run_id", "step", "turn_index" if table == "turn_step" else "written_at"]
    draws = ", ".join(f"hash(row * 64 + {n}) AS draw{n}" for n in range(-(-len(measured) // 3)))
    columns = ", ".join(f"{_value(d, i)} AS {quoted(d.name)}" for i, d in enumerate(measured))
    return f"""
        INSERT INTO {table} ({", ".join(names)}, {", ".join(quoted(d.name) for d in measured)})
        SELECT {", ".join(names)}, {columns} FROM (
            SELECT *, {draws}, $at AS written_at,
                   CASE WHEN step >= onset THEN 1 - exp((onset - step) / 150) ELSE 0 END AS fallen
            FROM (
                SELECT row, row // $turns % $steps AS step, row % $turns + 1 AS turn_index,
                       $ids[row // ($steps * $turns) + 1] AS run_id,
                       $onsets[row // ($steps * $turns) + 1] AS onset
                FROM range($first::BIGINT, $last::BIGINT) AS numbers(row)
            )
        )
    """


def _value(d: Diagnostic, place: int) -> str:
    """A plausible value: noise around a level, and from the collapse on another level; full
    double precision.
    """
    # in [0, 1], three from each draw
    noise = f"(((draw{place // 3} >> {21 * (place % 3)}) & 2097151) / 2097151)"
    if d.sql_type == "BIGINT":
        return f"(64 * {noise})::BIGINT"
    if d.name == "success":
        return _SUCCESS.format(u=noise)
    if d.name == "heldout_success":  # measured now and then, as in a real run
        return f"CASE WHEN step % 50 = 0 THEN {_SUCCESS.format(u=noise)} END"
    if d.name == "grad_norm_max":  # a step of a fallen run that is no number, in one run of a hundred
        return (
            "CASE WHEN step = onset + 60 AND row // $steps % 100 = 0 THEN 'nan' ELSE"
            f" {_SIZE.format(u=noise)} END"
        )
    return _SIGN.get(d.unit, _SIZE).format(u=noise)
