"""Standard input as a log: what is pasted or piped is kept in a file while it is read."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO

from sorl.spec import InputError
from sorl.spec.files import MIB

NAME = "standard input"  # as messages and the diagnosis name it
LARGEST = 256 * MIB  # bytes that are kept
_PIECE = 65_536  # bytes that are read at once
_INSTEAD = "type `sorl diagnose - < FILE`, or `sorl diagnose FILE`"


@contextmanager
def spooled() -> Iterator[Path]:
    """Have standard input as a file within the block; its folder is named after its content.

    Raises InputError where it is a terminal, is empty or holds more than LARGEST bytes.
    """
    stream = _stream()
    with tempfile.TemporaryDirectory(prefix="sorl-") as folder:
        whole = Path(folder) / "all"
        digest = sha256()
        size = 0
        with whole.open("wb") as file:
            while piece := stream.read(_PIECE):
                size += len(piece)
                if size > LARGEST:
                    raise InputError(
                        f"{NAME} holds more than {LARGEST // MIB} MiB: write it to a file and give the file"
                    )
                digest.update(piece)
                file.write(piece)
        if not size:
            raise InputError(f"{NAME} is empty; {_INSTEAD}")
        home = Path(folder) / digest.hexdigest()[:12]
        home.mkdir()
        try:
            yield whole.rename(home / NAME)
        except InputError as error:
            raise InputError(str(error).replace(f"'{home / NAME}'", NAME)) from None


def _stream() -> IO[bytes]:
    if sys.stdin is None or sys.stdin.closed:
        raise InputError(f"there is no {NAME}; {_INSTEAD}")
    if sys.stdin.isatty():
        raise InputError(f"{NAME} is a terminal: paste into a file, or {_INSTEAD}")
    return sys.stdin.buffer
