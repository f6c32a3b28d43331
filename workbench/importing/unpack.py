"""Compressed logs: gz, bz2, xz, zst, zip and tar are unpacked to a folder that goes with the process, or
with the block that reads them.
"""

from __future__ import annotations

import atexit
import bz2
import lzma
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from sorl.spec import InputError
from sorl.spec.files import MIB, open_file

UNPACKED = 1024 * MIB  # bytes that a file may unpack to
MEMBERS = 10_000  # files of an archive
_PIECE = 65_536  # bytes that are read of a stream at once
_FED = 2048  # compressed bytes that are unpacked at once: bz2 makes some megabytes of so few
_TAR_HEAD = 512  # bytes; the name of the format stands at 257
_GZIP = 31  # what zlib calls the format
_ENDINGS = (".gz", ".bz2", ".xz", ".zst", ".zstd", ".zip", ".tgz", ".tar")
_scratch: ContextVar[Path | None] = ContextVar("folder that archives are unpacked to", default=None)
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
)


class Unpacked(NamedTuple):
    """What a compressed file holds: a file, or the folder of an archive; `damage` says what is missing."""

    path: Path
    damage: str


def _fed(file: BufferedReader, decompressor: Callable[[], Any]) -> Iterator[bytes]:
    """Yield what a compressed stream holds, of streams behind each other all."""
    current = decompressor()
    fed = False  # whether the current stream has begun
    for piece in iter(partial(file.read, _FED), b""):
        rest = piece
        while rest:
            yield current.decompress(rest)
            fed = True
            rest = b""
            if current.eof:
                rest = current.unused_data.lstrip(b"\0")
                current = decompressor()
                fed = False
    if fed:
        raise EOFError


def _zstandard(file: BufferedReader) -> Iterator[bytes]:
    import pyarrow as pa

    return iter(partial(pa.CompressedInputStream(file, "zstd").read, _PIECE), b"")


# By their first bytes.
_STREAMS: dict[bytes, Callable[[BufferedReader], Iterator[bytes]]] = {
    b"\x1f\x8b": partial(_fed, decompressor=partial(zlib.decompressobj, _GZIP)),
    b"BZh": partial(_fed, decompressor=bz2.BZ2Decompressor),
    b"\xfd7zXZ\0": partial(_fed, decompressor=lzma.LZMADecompressor),
    b"(\xb5/\xfd": _zstandard,
}


def is_packed(path: Path) -> bool:
    """Whether a file is compressed or an archive, by its first bytes."""
    with open_file(path) as file:
        head = file.read(_TAR_HEAD)
    return head.startswith((b"PK\3\4", *_STREAMS)) or _is_tar(head)


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


@contextmanager
def unpacked_below(scratch: Path) -> Iterator[None]:
    """Have the archives that this block reads unpacked below a folder, which the caller removes."""
    before = _scratch.set(scratch)
    try:
        yield
    finally:
        _scratch.reset(before)


def unpacked(path: Path) -> Unpacked:
    """Return what a compressed file holds, up to where it is damaged.

    Raises InputError for one that holds more than UNPACKED bytes or MEMBERS files, is encrypted, or is
    damaged from its start.
    """
    state = path.stat()
    return _unpacked(path.resolve(), state.st_size, state.st_mtime_ns, _scratch.get())


@lru_cache(64)
def _unpacked(path: Path, size: int, changed_at: int, scratch: Path | None) -> Unpacked:
    folder = Path(tempfile.mkdtemp(prefix="sorl-", dir=scratch))
    if scratch is None:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = _Target(path, folder / "files")
    with open_file(path) as file:
        head = file.peek(_TAR_HEAD)[:_TAR_HEAD]
        if head.startswith(b"PK"):
            return target.unzip(file)
        if _is_tar(head):
            return target.untar(file)
        stream = next(stream for magic, stream in _STREAMS.items() if head.startswith(magic))
        inner = folder / _inner_name(path)
        target.copy(stream(file), inner)
    with open_file(inner) as file:
        if not _is_tar(file.peek(_TAR_HEAD)[:_TAR_HEAD]):
            return Unpacked(inner, target.damage)
        return target.untar(file)


def _inner_name(path: Path) -> str:
    name = path.name
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name or "log"


class _Target:
    """The folder that an archive is unpacked to, within bounds: a few kilobytes must not fill the disk."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self._folder = folder
        self._bytes = 0
        self._files = 0
        self.damage = ""

    def copy(self, pieces: Iterator[bytes], target: Path) -> None:
        """Write a stream to a file. What comes before damage is kept; an error only if that is nothing."""
        self._files += 1
        if self._files > MEMBERS:
            raise InputError(f"'{self._path}' holds more than {MEMBERS:,} files; give a part of them")
        written = 0
        with target.open("wb") as file:
            try:
                for piece in pieces:
                    self._bytes += len(piece)
                    if self._bytes > UNPACKED:
                        limit = f"more than {UNPACKED // MIB:,} MiB"
                        raise InputError(f"'{self._path}' unpacks to {limit}; give a part of it")
                    written += file.write(piece)
            except InputError:
                raise
            except _DAMAGE:
                self._damaged(
                    f"the compressed file is damaged or cut off: read are {written:,} bytes of text"
                )
        if self.damage and not self._bytes:
            raise InputError(f"'{self._path}' is damaged: it cannot be decompressed")

    def unzip(self, file: IO[bytes]) -> Unpacked:
        """Unpack a zip archive."""
        try:
            archive = zipfile.ZipFile(file)
        except _DAMAGE:
            raise InputError(f"'{self._path}' is damaged: the list of its files is missing") from None
        with archive:
            for member in archive.infolist():
                target = None if member.is_dir() else self._place(member.filename)
                if member.flag_bits & 1:
                    raise InputError(f"'{self._path}' is encrypted: unpack it first")
                if target is not None:
                    self._copy_member(partial(archive.open, member), target)
        return self._result()

    def untar(self, file: IO[bytes]) -> Unpacked:
        """Unpack a tar archive: regular files alone."""
        try:
            with tarfile.open(fileobj=file) as archive:
                for member in archive:
                    target = self._place(member.name) if member.isreg() else None
                    if target is not None:
                        self._copy_member(partial(archive.extractfile, member), target)
        except InputError:
            raise
        except _DAMAGE:
            self._damaged(f"the archive is damaged or cut off: read are {self._files:,} files")
        return self._result()

    def _copy_member(self, opened: Callable[[], IO[bytes] | None], target: Path) -> None:
        try:
            source = opened()
        except _DAMAGE:
            self._damaged(f"'{target.name}' in the archive is damaged")
            return
        if source is not None:
            with source:
                self.copy(iter(partial(source.read, _PIECE), b""), target)

    def _place(self, name: str) -> Path | None:
        """Return where a member goes, below the folder; None for a name that leads elsewhere."""
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if not parts or len(name) > 1000 or any(part in ("..", "/") or "\0" in part for part in parts):
            self._damaged(f"a file with the name {name[:60]!r} was left out of the archive")
            return None
        target = self._folder.joinpath(*parts)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            self._damaged(f"a file with the name {name[:60]!r} was left out of the archive")
            return None
        return target

    def _damaged(self, reason: str) -> None:
        self.damage = self.damage or reason

    def _result(self) -> Unpacked:
        """Return the file of an archive of one, else the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        files = [file for file in self._folder.rglob("*") if file.is_file()]
        return Unpacked(files[0] if len(files) == 1 else self._folder, self.damage)
