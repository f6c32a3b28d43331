"""SkyRL: what is in the file of a batch, read without SkyRL and without running code of the file.

The file is a pickle of a class of SkyRL. A pickle can run any code, so this module resolves the handful of
names that such a file holds to classes of its own that do nothing, and refuses all other names.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from sorl.importing.dumps import files
from sorl.spec import InputError

TABLES = ("sequences", "attention_mask", "response_mask", "loss_mask")  # what no file lacks
# Our columns by the names of the tables, which may be missing.
COLUMNS = {
    "rollout_logprobs": "log_prob_behaviour",
    "action_log_probs": "log_prob_old",
    "base_action_log_probs": "log_prob_ref",
    "values": "values_old",
    "returns": "returns",
    "advantages": "advantages",
}
DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")


class _Batch:
    """Stands for the batch and for the function that restores it. Keeps the state and ignores the items.

    Files until 2026-03 hold each tensor twice, as an item and in the state.
    """

    state: Any = None

    def __init__(self, _kind: object, state: object) -> None:
        self.state = state

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        pass


class _Unread:
    """Stands for what no column needs, such as the device or routed experts. Keeps nothing."""

    def __init__(self, *parts: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


_STANDS_FOR: dict[tuple[str, str], type] = {
    ("torch", "device"): _Unread,
    # Tensors of files until 2026-03; `_load_from_bytes` would be a second pickle and is not opened.
    ("torch.storage", "_load_from_bytes"): _Unread,
    ("torch._utils", "_rebuild_tensor_v2"): _Unread,
    ("collections", "OrderedDict"): _Unread,
    # Arrays that SkyRL 0.4.0 pickles as they are: routed experts and the support of samples.
    ("numpy", "ndarray"): _Unread,
    ("numpy", "dtype"): _Unread,
    ("numpy.core.multiarray", "_reconstruct"): _Unread,
    ("numpy._core.multiarray", "_reconstruct"): _Unread,
}
for _module in ("skyrl.backends.skyrl_train.training_batch", "skyrl_train.training_batch"):
    _STANDS_FOR[_module, "TrainingInputBatch"] = _Batch
    _STANDS_FOR[_module, "_rebuild_tensor_batch"] = _Batch
    _STANDS_FOR[_module, "TensorFormat"] = str


class _Bounded:
    """A file that never allots more memory than it has bytes, whatever length a pickle claims."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self.stream = stream
        self.size = size
        self.readline = stream.readline

    def read(self, size: int) -> bytes:
        if size > self.size:
            raise EOFError("the pickle claims more bytes than the file has")
        return self.stream.read(size)


class _RefusedError(Exception):
    """A pickle names what a batch of SkyRL does not hold."""


# What reading a file raises that is cut off, or made up.
_DAMAGE = (
    pickle.UnpicklingError,
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    MemoryError,
    struct.error,
)


# The unpickler in C fills a table as large as any index that a pickle names; the one in Python does not.
class _Unpickler(pickle._Unpickler):
    """Reads the pickle of a batch; names other than those of _STANDS_FOR are refused."""

    def find_class(self, module: str, name: str) -> type:
        """What stands for a name. A pickle cannot change it: its `__setstate__` wants an instance."""
        stand_in = _STANDS_FOR.get((module, name))
        if stand_in is None:
            raise _RefusedError(f"{module}.{name}")
        return stand_in


@dataclass(frozen=True)
class Contents:
    """The tables of a file without the rows that fill up the batch, B rows of up to T response tokens."""

    tables: Mapping[str, np.ndarray]  # those of TABLES, and those of COLUMNS that there are
    metadata: Mapping[str, Any]
    pad_count: int  # rows that were dropped

    @property
    def row_count(self) -> int:
        """B."""
        return len(self.tables["sequences"])


def read_contents(file: Path) -> Contents:
    """The tables and the metadata of a batch. Raises InputError for a file that is damaged or holds more."""
    state = _read_state(file)
    batch = state.get("batch_dict")
    metadata = state.get("metadata") or {}
    if not isinstance(batch, dict) or not isinstance(metadata, dict):
        raise InputError(f"'{file}' holds no batch of SkyRL")
    if missing := [key for key in (*TABLES, "advantages") if batch.get(key) is None]:
        raise InputError(f"'{file}' has no {missing[0]}")
    present = [key for key in (*TABLES, *COLUMNS) if batch.get(key) is not None]
    tables = {key: _table(batch.pop(key), key, file) for key in present}
    if "values" not in tables:  # without a critic `returns` is a copy of the advantages
        tables.pop("returns", None)
    _check_shapes(tables, file)
    pad_count = metadata.get("pad_size", 0)
    batch_size = len(tables["sequences"])
    if not is_count(pad_count, batch_size):
        raise InputError(f"'{file}': pad_size is no number of its {batch_size} rows")
    row_count = batch_size - pad_count
    return Contents({key: table[:row_count] for key, table in tables.items()}, metadata, pad_count)


def _read_state(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as handle:
            batch = _Unpickler(_Bounded(handle, file.stat().st_size)).load()
    except _RefusedError as error:
        name = _printable(str(error))
        problem = f"'{file}' holds {name}, which is more than a batch of SkyRL, and is not opened"
        raise InputError(problem) from None
    except _DAMAGE as error:
        reason = _printable(str(error)) or type(error).__name__
        raise InputError(f"'{file}' cannot be read: {reason}") from None
    state = batch.state if isinstance(batch, _Batch) else None
    if not isinstance(state, dict):
        raise InputError(f"'{file}' holds no batch of SkyRL")
    return state


def _printable(text: str) -> str:
    """The beginning of a text that comes from a file, in one line."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:100])


def _table(encoded: Any, key: str, file: Path) -> np.ndarray:
    """A tensor as SkyRL encodes it: bytes with shape and dtype, or of bfloat16 what torch.save writes."""
    kind = encoded.get("format", "numpy") if isinstance(encoded, dict) else None
    if (
        not isinstance(kind, str)
        or kind not in ("numpy", "torch")
        or not isinstance(encoded.get("data"), bytes)
    ):
        raise InputError(f"'{file}': {key} is no table of numbers")
    if kind == "torch":
        tensor = files.load_tensors(file, BytesIO(encoded["data"]))
        return _numpy(tensor, key, file)
    dtype = encoded.get("dtype")
    shape = encoded.get("shape")
    if dtype not in DTYPES:
        raise InputError(f"'{file}': {key} has a dtype that is not read")
    if not isinstance(shape, tuple) or not all(is_count(size, len(encoded["data"])) for size in shape):
        raise InputError(f"'{file}': {key} has a shape that is none")
    if prod(shape) * np.dtype(dtype).itemsize != len(encoded["data"]):
        raise InputError(f"'{file}': {key} has {len(encoded['data'])} bytes for the shape {shape} of {dtype}")
    return np.frombuffer(encoded["data"], dtype).reshape(shape)


def _numpy(tensor: Any, key: str, file: Path) -> np.ndarray:
    try:
        return files.of_tensor(tensor)
    except (AttributeError, TypeError, ValueError, RuntimeError, MemoryError):
        raise InputError(f"'{file}': {key} is no table of numbers") from None


def _check_shapes(tables: Mapping[str, np.ndarray], file: Path) -> None:
    """Raise InputError unless two tables are (B, S) and all others (B, T)."""
    for key, table in tables.items():
        like = "sequences" if key == "attention_mask" else "response_mask"
        expected = table.shape if key == "sequences" else tables[like].shape
        if table.ndim != 2 or table.shape != expected or len(table) != len(tables["sequences"]):
            raise InputError(f"'{file}': {key} has the shape {table.shape}, which does not fit {like}")


def is_count(value: Any, most: int) -> bool:
    """Whether a value of the metadata is a number from 0 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
