"""What the screens ask: named SQL files of `sql/`, answered once for each state of the database; and the
dictionary of the columns.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import pandas as pd

from sorl.measures.declare import SYMBOLS
from sorl.store.connect import Busy, database
from sorl.store.reader import Reader

T = TypeVar("T")
State = tuple[tuple[int, int], ...]

QUERIES = Path(__file__).parent / "sql"
_WAIT = 2.0  # seconds to wait for a writer; a screen says so after that and tries again
_SECONDS = 30.0  # running time of one question
_REMEMBERED = 256 * 2**20  # bytes of answers
_RECORDS = 64 * 2**10  # bytes that an answer counts for which is no frame


@cache
def sql(name: str) -> tuple[str, str]:
    """Return title and text of the named query: one file each, whose first line is a comment that states the
    grain.
    """
    first, _, body = (QUERIES / f"{name}.sql").read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("--").strip(), body.strip()


class Store:
    """Answers from a runs folder, remembered until the database changes, longer while it is held: never
    change one.
    """

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.reader = Reader(runs, wait=_WAIT, seconds=_SECONDS)
        self._answers: OrderedDict[Hashable, tuple[State, Any, int]] = OrderedDict()
        self._lock = Lock()

    def state(self) -> State:
        """Return what changes with every write to the database: size and time of its files; empty without
        one.
        """
        path = database(self.runs)
        found: list[tuple[int, int]] = []
        for file in (path, path.with_name(path.name + ".wal")):
            with suppress(FileNotFoundError, NotADirectoryError):
                stat = file.stat()
                found.append((stat.st_mtime_ns, stat.st_size))
        return tuple(found)

    def query(self, name: str, **parameters: Any) -> pd.DataFrame:
        """Answer a named query; raises InputError and Busy as the reader does."""
        key = "frame", name, repr(parameters)
        return self.computed(key, lambda reader: reader.query(sql(name)[1], parameters or None))

    def records(self, name: str, **parameters: Any) -> list[dict[str, Any]]:
        """Answer a named query in Python values, which keep NULL (None) and NaN apart; raises as `query`
        does.
        """

        def ask(reader: Reader) -> list[dict[str, Any]]:
            answer = reader.rows(sql(name)[1], parameters or None)
            return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]

        return self.computed(("records", name, repr(parameters)), ask)

    def computed(self, key: Hashable, question: Callable[[Reader], T]) -> T:
        """Return the result of `question`, remembered under `key`; raises what it raises."""
        state = self.state()
        with self._lock:
            known = self._answers.get(key)
            if known is not None:
                self._answers.move_to_end(key)
        if known is not None and known[0] == state:
            return known[1]
        try:
            answer = question(self.reader)
        except Busy:
            if known is None:
                raise
            return known[1]
        size = int(answer.memory_usage().sum()) if hasattr(answer, "memory_usage") else _RECORDS
        with self._lock:
            self._answers[key] = (state, answer, size)
            self._answers.move_to_end(key)
            while len(self._answers) > 1 and sum(size for _, _, size in self._answers.values()) > _REMEMBERED:
                self._answers.popitem(last=False)
        return answer

    def forget(self) -> None:
        """Drop all remembered answers."""
        with self._lock:
            self._answers.clear()


# The dictionary of the measured columns.

# tables with a row per step or finer that is not one per trajectory
CHARTED = ("step", "minibatch", "turn_step")
_GRAIN = {"step": "step", "minibatch": "update", "turn_step": "turn index"}
# Table -> what a row of it is, the coarsest first.
LEVELS = {
    "step": "step",
    "minibatch": "optimizer update",
    "turn_step": "turn index",
    "turn": "turn",
    "trajectory": "trajectory",
    "token": "token",
}

# Column, or table.column -> what a person calls it, where its description begins with too many words for a
# title.
WORDS = {
    "status": "what it did",
    "n_tokens": "tokens written",
    "gradient_share": "share of the update's gradient",
    "turn_step.gradient_share": "share of the step's gradient",
    "ratio_mass_frac": "share of the update's ratio mass",
    "turn_step.ratio_mass_frac": "share of the step's ratio mass",
    "ratio_geo": "geometric turn ratio",
    "ratio_arith": "mean token ratio",
    "ratio_prod": "product ratio",
    "log_ratio_sum": "sum of log-ratios",
    "clip_frac": "share of tokens clipped",
    "out_of_range_frac": "share of tokens out of the clip's range",
    "advantage": "mean advantage",
    "advantage_std": "spread of advantages",
    "value": "value by the critic",
    "value_error": "error of the critic's value",
    "value_mae": "size of the critic's error",
    "explained_variance": "critic: explained variance",
    "approx_kl": "KL to the old policy (k1)",
    "kl_k3": "KL to the old policy (k3)",
    "route_mismatch_frac": "experts: trainer against sampler",
    "route_shift_frac": "experts: old against present policy",
    "router_entropy": "entropy of the routers",
    "expert_load_max": "load of the busiest expert",
    "entropy": "entropy",
    "mismatch": "trainer against sampler",
    "turn.retrieval_seconds": "search took",
    "turn.retrieval_empty_frac": "search found nothing",
    "turn.retrieval_failed_frac": "search failed",
    "turn_step.retrieval_failed_frac": "share of failed searches",
    "turn_step.retrieval_empty_frac": "share of searches without a passage",
    "n_turns": "number of turns",
    "search_frac": "share of turns that search",
    "answer_frac": "share of turns that answer",
    "invalid_frac": "share of invalid turns",
    "valid_action_frac": "share of valid turns",
    "grad_norm_max": "largest gradient norm",
    "ess_frac_min": "smallest effective sample size",
    "zero_advantage_frac": "prompt groups without a signal",
    "response_tokens": "tokens written a rollout",
    "seconds_total": "wall time of a step",
}
_SIGNS = {"<x>_m": "<.+>_m", "1[x]": r"1\[", "#{x}": r"#\{", "a": "(?!)"}  # alone, a is the article


def _symbol_pattern(symbols: str) -> re.Pattern[str]:
    """A pattern that finds any of `symbols`, which are separated by commas, in a formula."""
    parts = [_SIGNS.get(symbol) or rf"(?<!\w){re.escape(symbol)}(?![\w'])" for symbol in symbols.split(", ")]
    return re.compile("|".join(parts))


_NOTATION = {_symbol_pattern(symbols): f"{symbols}: {words}" for symbols, words in SYMBOLS}


def notation(formula: str) -> str:
    """Say what the symbols in a formula of the dictionary mean; nothing where it has none."""
    meanings = [meaning for pattern, meaning in _NOTATION.items() if pattern.search(formula)]
    return f"{'. '.join(meanings)}." if meanings else ""


@dataclass(frozen=True)
class Diagnostics:
    """The declared columns: `table.name` -> its row of table `diagnostic`."""

    rows: dict[str, dict[str, Any]]

    @property
    def charted(self) -> list[str]:
        """The columns that a curve over training can show, those of a step first."""
        metrics = [
            m for m, row in self.rows.items() if row["table_name"] in CHARTED and row["sql_type"] != "VARCHAR"
        ]
        return sorted(metrics, key=lambda m: CHARTED.index(self.rows[m]["table_name"]))

    def names(self, table: str, first: Sequence[str]) -> list[str]:
        """List the charted columns of a table, those of `first` before the others."""
        names = [self.rows[m]["name"] for m in self.charted if self.rows[m]["table_name"] == table]
        return sorted(names, key=lambda name: first.index(name) if name in first else len(first))

    def by_level(self) -> list[dict[str, Any]]:
        """The rows in the order of LEVELS; tables that this version does not know come last."""
        order = {table: place for place, table in enumerate(LEVELS)}
        return sorted(self.rows.values(), key=lambda row: order.get(row["table_name"], len(order)))

    def words(self, metric: str) -> tuple[str, str]:
        """Return unit and formula of a column; its description where it has no formula."""
        row = self.rows[metric]
        return row["unit"] or "", str(row["formula"] or row["description"] or "")

    def title(self, metric: str) -> str:
        """Return what a person calls a column: its WORDS, else those with which its description begins."""
        row = self.rows[metric]
        begins = re.split(r"[.,:;](?:\s|$)", str(row["description"] or ""), maxsplit=1)[0]
        lower = begins[:1].lower() + begins[1:] if begins[1:2].islower() else begins  # KL stays as it is
        return WORDS.get(metric) or WORDS.get(row["name"]) or lower or str(row["name"])

    def label(self, metric: str) -> str:
        """Name a column in a list: `grad_norm (update)`; the grain is left out for a step."""
        row = self.rows[metric]
        return row["name"] if row["table_name"] == "step" else f"{row['name']} ({_GRAIN[row['table_name']]})"


def dictionary(store: Store) -> Diagnostics:
    """Return the dictionary of the store's database."""
    return Diagnostics({f"{row['table_name']}.{row['name']}": row for row in store.records("dictionary")})
