"""The questions of the screens: named SQL files, asked once for each state of the database and remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.store.connect import Busy, database
from workbench.store.reader import Reader

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
State = tuple[tuple[int, int], ...]

QUERIES = Path(__file__).parent / "queries"
_WAIT = 2.0  # seconds to wait for a writer; a screen says so after that and tries again
_SECONDS = 30.0  # running time of one question
_REMEMBERED = 256 * 2**20  # bytes of answers


@cache
def sql(name: str) -> tuple[str, str]:
    """Title and text of the named query: one file each, whose first line is a comment that states the grain."""
    first, _, body = (QUERIES / f"{name}.sql").read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("--").strip(), body.strip()


class Store:
    """Answers from the database of a runs folder.

    An answer is remembered until the database changes, so that a finished run costs nothing and a live one is read
    again. While somebody else holds the database, the last answer stands in. Frames are shared: never change one.
    """

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.reader = Reader(runs, wait=_WAIT, seconds=_SECONDS)
        self._answers: OrderedDict[Hashable, tuple[State, Any, int]] = OrderedDict()
        self._lock = Lock()

    def state(self) -> State:
        """What changes with every write to the database: size and time of its files; empty without a database."""
        path = database(self.runs)
        found = []
        for file in (path, path.with_name(path.name + ".wal")):
            try:
                stat = file.stat()
            except FileNotFoundError:
                continue
            found.append((stat.st_mtime_ns, stat.st_size))
        return tuple(found)

    def query(self, name: str, **parameters: Any) -> pd.DataFrame:
        """The answer to a named query; raises InputError and Busy as the reader does."""
        key = (name, *((k, _frozen(v)) for k, v in sorted(parameters.items())))
        return self.computed(key, lambda reader: reader.query(sql(name)[1], parameters or None))

    def records(self, name: str, **parameters: Any) -> list[dict[str, Any]]:
        """The rows of a named query as Python values, which keep NULL (None) and NaN apart; raises as `query` does."""
        key = ("records", name, *((k, _frozen(v)) for k, v in sorted(parameters.items())))

        def ask(reader: Reader) -> list[dict[str, Any]]:
            answer = reader.rows(sql(name)[1], parameters or None)
            return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]

        return self.computed(key, ask)

    def computed(self, key: Hashable, question: Callable[[Reader], T]) -> T:
        """The result of `question`, remembered under `key`; raises what it raises."""
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
        self._remember(key, state, answer)
        return answer

    def forget(self) -> None:
        """Ask everything anew from now on."""
        with self._lock:
            self._answers.clear()

    def _remember(self, key: Hashable, state: State, answer: Any) -> None:
        with self._lock:
            self._answers[key] = (state, answer, _size(answer))
            self._answers.move_to_end(key)
            while len(self._answers) > 1 and sum(size for _, _, size in self._answers.values()) > _REMEMBERED:
                self._answers.popitem(last=False)


def _frozen(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list) else value


def _size(answer: Any) -> int:
    import pandas as pd

    if isinstance(answer, list):
        return 1024 + sum(_weight(value) for row in answer if isinstance(row, dict) for value in row.values())
    if not isinstance(answer, pd.DataFrame):
        return 1024
    return len(answer) * sum(100 if kind.kind == "O" else 8 for kind in answer.dtypes)


def _weight(value: Any) -> int:
    return 40 * (len(value) if isinstance(value, list) else 1)
