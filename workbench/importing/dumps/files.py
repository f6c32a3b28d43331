"""Files of dumps, read safely: JSON lines, tensors without code, and whether a file is still written to."""

from __future__ import annotations

import json
import pickle
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from sorl.importing.dumps.json_numbers import decoded_arrays
from sorl.spec import InputError

# What torch raises on a file that is cut off, or made up.
_DAMAGE = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    MemoryError,
    zipfile.BadZipFile,
)
SETTLED_SECONDS = 10.0  # a file that has not changed for so long is taken for complete
LONGEST_LINE = 512 * 2**20  # bytes


class RefusedError(InputError):
    """A file that is whole, and holds other classes than tensors and plain values."""

    def __init__(self, file: Path, refused: str) -> None:
        super().__init__(
            f"'{file}' holds {refused}, which is more than tensors and plain values, and is not opened"
        )
        self.refused = refused


def is_settled(file: Path, later: bool) -> bool:
    """Whether a file is complete: a `later` one exists, or it has not changed for SETTLED_SECONDS."""
    return later or time.time() - file.stat().st_mtime > SETTLED_SECONDS


def numbered(folder: Path, pattern: str) -> dict[int, Path]:
    """Files of a folder by the number in their names; `pattern` has one `{}` where that is."""
    before, after = pattern.split("{}")
    files = {}
    for file in folder.glob(pattern.replace("{}", "*")):
        digits = file.name[len(before) : len(file.name) - len(after)]
        if digits.isdecimal():
            files[int(digits)] = file
    return dict(sorted(files.items()))


def json_objects(
    file: Path, stream: IO[bytes] | None = None, decode: Callable[[bytes], Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; NaN and Infinity are numbers.

    `decode` makes the value of a line: `decoded`, or `decoded_with_arrays` for long lists of numbers.
    Raises InputError for a line that is no object, with its number. A last line without an end that cannot be
    read is left out: it may be being written.
    """
    with stream or file.open("rb") as handle:
        number = 0
        while line := handle.readline(LONGEST_LINE):
            number += 1
            if len(line) >= LONGEST_LINE:
                raise InputError(f"'{file}': line {number} is longer than {LONGEST_LINE >> 20} MiB")
            try:
                row = (decode or decoded)(line)
            except (ValueError, RecursionError):
                if not line.endswith(b"\n"):
                    return
                raise InputError(f"'{file}': line {number} is no JSON") from None
            if not isinstance(row, dict):
                raise InputError(f"'{file}': line {number} is no JSON object")
            yield row


def ends_within_line(file: Path) -> bool:
    """Whether a file of lines was cut off, or is being written: its last line has no end."""
    with file.open("rb") as handle:
        if not handle.seek(0, 2):
            return False
        handle.seek(-1, 2)
        return handle.read(1) != b"\n"


def decoded(line: bytes) -> Any:
    """The value of a line of JSON; orjson reads it several times as fast where it is installed."""
    try:
        import orjson
    except ModuleNotFoundError:
        return json.loads(line)
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:  # a bare NaN is no JSON, and Python writes it
        return json.loads(line)


def decoded_with_arrays(line: bytes) -> Any:
    """The value of a line of JSON; long lists of numbers are float64 arrays where simdjson is installed."""
    try:
        return decoded_arrays(line)
    except (ModuleNotFoundError, ValueError):  # a bare NaN is no JSON, and Python writes it
        return decoded(line)


def load_tensors(file: Path, stream: IO[bytes] | None = None) -> Any:
    """What `torch.save` wrote, tensors on the CPU. Code in it is never run: other classes are refused.

    `stream`: bytes that `torch.save` wrote into a part of `file`.
    """
    import torch

    source = stream or file
    try:
        return _load_quickly(source)
    except (pickle.UnpicklingError, *_DAMAGE):  # torch says better what is wrong, and allows more classes
        if stream is not None:
            stream.seek(0)
    try:
        return torch.load(source, map_location="cpu", weights_only=True, mmap=False)
    except pickle.UnpicklingError as error:
        refused = str(error).split("GLOBAL ")[1].split(" ")[0] if "GLOBAL " in str(error) else "an object"
        raise RefusedError(file, refused) from None
    except _DAMAGE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"'{file}' cannot be read: {reason}") from None


def _load_quickly(source: Path | IO[bytes]) -> Any:
    """Load plain values and tensors. Raises one of _DAMAGE or UnpicklingError for anything else."""
    import torch

    from sorl.importing.dumps import plain_pickle

    readable: Any = str(source) if isinstance(source, Path) else source
    archive = torch._C.PyTorchFileReader(readable)
    if "constants.pkl" in archive.get_all_records():
        raise ValueError("a program of TorchScript, which torch.load would make runnable")
    if not isinstance(source, Path):
        source.seek(0)
    return torch.load(source, map_location="cpu", pickle_module=plain_pickle, weights_only=False, mmap=False)


def floats(values: Any, what: str, file: Path) -> np.ndarray:
    """Values as float32, null as NaN. Raises InputError for what are no numbers."""
    return _array(values, np.float32, what, file)


def token_ids(values: Any, what: str, file: Path) -> np.ndarray:
    """Values as int32 token ids. Raises InputError for what are none."""
    ids = _array(values, np.int64, what, file)
    if len(ids) and not (ids.min() >= 0 and ids.max() < 2**31):
        raise InputError(f"'{file}': {what} holds a number that is no token id")
    return ids.astype(np.int32)


def flags(values: Any, what: str, file: Path) -> np.ndarray:
    """Values as bool, whatever is not 0 being true. Raises InputError for what are no numbers."""
    return _array(values, np.float32, what, file) != 0


def _array(values: Any, kind: Any, what: str, file: Path) -> np.ndarray:
    try:
        if hasattr(values, "untyped_storage"):
            values = of_tensor(values)
        array = np.asarray(values, dtype=kind)
    except (TypeError, ValueError, OverflowError, RuntimeError, MemoryError):
        raise InputError(f"'{file}': {what} is no list of numbers") from None
    if array.ndim != 1:
        raise InputError(f"'{file}': {what} has {array.ndim} axes, and one was expected")
    return array


def of_tensor(tensor: Any) -> np.ndarray:
    """The values of a tensor. Raises ValueError for one that claims more of them than its file holds."""
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError
    plain = tensor.detach()
    return (plain.float() if plain.is_floating_point() else plain).numpy()


def one_length(arrays: dict[str, np.ndarray], file: Path, row: int) -> None:
    """Raise InputError where arrays of a row have different lengths."""
    lengths: Sequence[int] = [len(values) for values in arrays.values()]
    if len({*lengths}) > 1:
        lengths_in_words = ", ".join(f"{name} {length}" for name, length in zip(arrays, lengths, strict=True))
        raise InputError(f"'{file}', row {row}: columns of different lengths: {lengths_in_words}")
