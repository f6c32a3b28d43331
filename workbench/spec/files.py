"""What a user gives us: a mistake and the word that was meant; files, opened only if regular, read up to a
size.
"""

import errno
import fcntl
import json
import os
import platform
import re
import stat
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import IO, Any

IMPORTED_FROM = Path(__file__).parents[2]  # holds `sorl`; child processes need it on their path
DEPTH = 64  # tables and lists inside each other; readers descend by recursion
MIB = 2**20
_OWNER = 1000  # bytes of a lock file: a process and the name of its machine
_DEEP = f"it is nested more than {DEPTH} deep"
_LARGE = "it has a whole number of more than 64 bits"
_DIGITS = 300  # of a whole number in JSON; a float holds 308
# tomllib copies a dotted key for each of its parts, which takes minutes for a key of a few hundred kilobytes.
_LONG_KEY = re.compile(rf"""(?:[\w"'-]{{1,80}}[ \t]*\.[ \t]*){{{DEPTH}}}""")


class InputError(ValueError):
    """A mistake of the user: the message names the thing, what is allowed, what to type. Exit code 2, no
    traceback.
    """


def nearest(word: str, allowed: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest allowed name, or an empty string when none is close."""
    from difflib import get_close_matches

    match = get_close_matches(word, list(allowed), n=1)
    return f" (did you mean '{match[0]}'?)" if match else ""


def open_file(path: Path) -> BufferedReader:
    """The file, open for reading. Raises OSError for anything but a regular file: opening a
    pipe would block.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # what Python says of a NUL
        raise OSError(errno.EINVAL, "its name holds a NUL character", repr(str(path))) from None
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an OSError of this block name a file, as one of `open` does and one of `write` does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def words_of(error: OSError) -> str:
    """What the system refused, in words; a full disk always in the same ones."""
    words = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in words
    return "no space is left on its disk; make room and run the same command again" if full else words


def lock_file(path: Path) -> IO[str] | None:
    """Lock a file, made if missing, until the handle closes; None if another process has it, InputError if
    none can. The file says who locked it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe opens at once, without a reader
    handle = open(path, "a", opener=lambda name, _: os.open(name, flags, 0o666))  # noqa: SIM115
    try:
        if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
            handle.close()
            raise InputError(
                f"'{path}' is a pipe, a socket or a device, where a lock file should be: remove it"
            )
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(OSError):  # a full disk
            os.ftruncate(handle.fileno(), 0)
            os.write(handle.fileno(), f"{os.getpid()} {platform.node()}\n".encode())
        return handle
    except BlockingIOError:
        handle.close()
        return None
    except OSError as error:
        handle.close()
        why = f"is on storage without file locks ({error.strerror}), so two processes could train one run"
        raise InputError(
            f"'{path.parent}' {why}; mount it with flock, or name another folder with --runs"
        ) from None


def lock_holder(path: Path) -> int | None:
    """Return the process of this machine that locked a file last, if it is alive; None if that is not known.

    It may have been another one that has the lock by now, so this is for messages only.
    """
    with suppress(OSError, ValueError, OverflowError):
        pid, machine = read_text(path, _OWNER).split(maxsplit=1)
        if machine.strip() == platform.node():
            os.kill(int(pid), 0)
            return int(pid)
    return None


def read_text(path: Path, most: int) -> str:
    """Return the text of a file of at most `most` bytes, UTF-8 or UTF-16. Raises OSError as `open_file`,
    InputError.
    """
    with open_file(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InputError(f"'{path}' is larger than {most / MIB:g} MiB, the most that is read of such a file")
    try:
        return content.decode(encoding_of(content))
    except UnicodeDecodeError as error:
        raise InputError(f"'{path}' is not UTF-8 text (byte {error.start})") from None


def encoding_of(beginning: bytes) -> str:
    """UTF-16 where the first bytes are its mark, or a character of ASCII in it; else UTF-8, with its mark
    left out.
    """
    if beginning[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    if len(beginning) > 1 and 0 in beginning[:2]:
        return "utf-16-be" if beginning[0] == 0 else "utf-16-le"
    return "utf-8-sig"


def from_json(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError if it is none or nested beyond DEPTH. A number beyond a float is
    inf.
    """
    try:
        found = json.loads(
            text, parse_int=lambda digits: int(digits) if len(digits) <= _DIGITS else float(digits)
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise ValueError(_DEEP) from None
    brackets = (
        text.count("{") + text.count("[") if isinstance(text, str) else text.count(b"{") + text.count(b"[")
    )
    if brackets > DEPTH:
        deque(_inside(found), maxlen=0)
    return found


def from_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text; ValueError if it is none, nested beyond DEPTH, or has integers over
    64 bits.
    """
    import tomllib

    if _LONG_KEY.search(text):
        raise ValueError(f"it has a key of more than {DEPTH} parts")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_DEEP) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # what Python says of a number of thousands of digits
        raise ValueError(_LARGE) from None
    if any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in _inside(found)):
        raise ValueError(_LARGE)
    return found


def leaves(
    table: Mapping[str, Any], atomic: Collection[str] = (), prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested tables; empty tables, lists and those named in
    `atomic` are values.
    """
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and name not in atomic:
            yield from leaves(value, atomic, f"{name}.")
        else:
            yield name, value


def _inside(found: Any) -> Iterator[Any]:
    """Every value inside a value, level by level: it may be too deep for recursion, which is a ValueError
    here.
    """
    level = [found]
    for _ in range(DEPTH + 1):
        tables = [x.values() if isinstance(x, dict) else x for x in level if isinstance(x, dict | list)]
        if not tables:
            return
        level = list(chain.from_iterable(tables))
        yield from level
    raise ValueError(_DEEP)
