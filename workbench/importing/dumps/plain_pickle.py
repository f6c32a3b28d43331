"""A `pickle_module` for `torch.load` that makes tensors and plain values, and reads lists of numbers fast.

`weights_only=True` makes the same, an opcode at a time in Python: 2 MB/s for lists of token ids. Here a
regular expression finds the runs of numbers, and the unpickler in C reads them, ten times as fast. The rest
of a pickle does not reach the one in C: it fills a table as large as any index that the pickle names.
"""

from __future__ import annotations

import pickle
import re
from collections import OrderedDict
from io import BytesIO
from typing import Any, ClassVar

__all__ = ["Unpickler"]

# Opcode and value of floats, and of integers of one, two and four bytes; `e` appends all since the mark.
_NUMBERS = re.compile(rb"(?:G.{8}|K.|M.{2}|J.{4})++(?=e)", re.DOTALL)
_BEFORE_NUMBERS = b"]("  # an empty list and a mark
_AFTER_NUMBERS = b"e."


class _RebuildTensor:
    """torch's function that makes a tensor of a storage. It has no attributes that a pickle could set."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        import torch

        return torch._utils._rebuild_tensor_v2(*arguments)


_ALLOWED = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _RebuildTensor(),
}


_UnpicklerInPython: Any = pickle._Unpickler


class Unpickler(_UnpicklerInPython):  # type: ignore[misc]
    """Raises UnpicklingError where the pickle names anything that is not in the table.

    Storages are looked up by torch itself, before it asks here.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(_UnpicklerInPython.dispatch)

    def __init__(self, file: BytesIO, **options: Any) -> None:
        super().__init__(file, **options)
        self._file = file
        self._bytes = file.getbuffer()

    def find_class(self, module: str, name: str) -> Any:
        """Look up what the pickle names."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name} is not allowed") from None

    def load_mark(self) -> None:
        """Begin a list of arguments; take the numbers that it consists of at once."""
        super().load_mark()
        if self._unframer.current_frame is not None:  # torch.save writes protocol 2, which has no frames
            return
        run = _NUMBERS.match(self._bytes, self._file.tell())
        if run:
            self.stack.extend(pickle.loads(_BEFORE_NUMBERS + run[0] + _AFTER_NUMBERS))
            self._file.seek(run.end())

    dispatch[pickle.MARK[0]] = load_mark
