"""A ledger without a process of its own, and what it wrote."""

import time

import pyarrow as pa
import pyarrow.parquet as pq

from sorl.recording import Ledger
from sorl.recording.ledger import decode
from sorl.recording.scribe import Scribe


class Local(Ledger):
    """A ledger whose rows are measured and written in its own thread; `others`: ranks that write parts."""

    others: tuple[Ledger, ...] = ()

    def _start(self, opened):
        self.scribe = Scribe(self.folder)
        self._put({"kind": "open", **opened, "ranks": [str(rank._parts) for rank in self.others]}, {})

    def _write(self, meta, message):
        self.scribe.take(*decode(message))

    def close(self, *told):
        super().close(*told)
        self.scribe.stop()


def table_of(folder, table):
    files = sorted((folder / "segments" / table).glob("[0-9]*.parquet"))
    return pa.concat_tables([pq.read_table(f) for f in files]) if files else None


def read(folder, table):
    found = table_of(folder, table)
    return found.to_pylist() if found else []


def wait_until(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()
