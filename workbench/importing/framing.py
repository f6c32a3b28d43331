"""The two framings of trackers' files, TFRecord and LevelDB's log, and the wire format of protobuf.

A damaged record costs itself: its checksum tells it, and reading goes on at the next record whose own
checksum is right.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from io import BufferedReader
from typing import Any

import numpy as np

from sorl.importing.rows import Rows
from sorl.spec.files import MIB

MESSAGE = 64 * MIB  # bytes of one record
CHECKED = 16_384  # bytes of a record whose checksum is computed: scalars are far below
_BATCH_BYTES = 4 * MIB  # of records that are checked at once
_BATCH_RECORDS = 4096
_FEW = 8  # records of one length, up to which each is checked on its own
_WINDOW = MIB  # bytes in which the next record is looked for at once
_SEARCHED = 64 * MIB  # bytes of a damaged TFRecord file in which records are looked for
_SEARCHED_POSITIONS = 3_000_000  # of a damaged LevelDB log, beyond which whole blocks are skipped
_BLOCK = 32_768  # of LevelDB's log format
_HEADER = 7  # bytes before a piece of it
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, reflected


# Protobuf

# Wire types.
_WHOLE_NUMBER = 0
_WITH_LENGTH = 2
_FIXED_BYTES = {1: 8, 5: 4}


def messages(data: Any) -> Iterator[tuple[int, Any]]:
    """Yield (field, value) of a protobuf message: whole numbers as int, the rest as bytes; of what is no
    bytes nothing. ValueError for none.
    """
    position = 0
    end = len(data) if isinstance(data, bytes) else 0
    while position < end:
        key, position = _varint(data, position)
        field = key >> 3
        wire_type = key & 7
        if wire_type == _WHOLE_NUMBER:
            number, position = _varint(data, position)
            yield field, number
            continue
        if wire_type == _WITH_LENGTH:
            size, position = _varint(data, position)
        else:
            size = _FIXED_BYTES.get(wire_type, end)
        if position + size > end:
            raise ValueError("a message is cut off")
        yield field, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the whole number that begins at a position, 7 bits a byte, and where it ends."""
    value = 0
    shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        shift += 7
        if byte < 128:
            return value, position
    raise ValueError("a message is cut off")


def text_field(value: Any) -> str:
    """Return a field as text; empty for one that is none."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else ""


def double_field(value: Any) -> float:
    """Return a field of 8 bytes as a float. Raises struct.error, TypeError for another."""
    return float(struct.unpack("<d", value)[0])


def fields_inside(data: Any, *path: int) -> Any:
    """Return the fields of a message, of a repeated one the last; or what stands at a path of fields, None
    without.
    """
    for field in path:
        data = dict(messages(data)).get(field)
    return data if path else dict(messages(data))


# CRC-32C, which TFRecord masks


def _table_of_crc32c() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


_TABLE = _table_of_crc32c()
_TABLE_LIST = _TABLE.tolist()


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of a TFRecord: CRC-32C, rotated and shifted."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE_LIST[(crc ^ byte) & 255] ^ (crc >> 8)
    return _masked(crc ^ 0xFFFFFFFF)


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc32c_of_rows(rows: np.ndarray) -> np.ndarray:
    """Return the checksums of N texts of L bytes, (N, L) uint8 -> (N,) uint32."""
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for position in range(rows.shape[1]):
        crc = _TABLE[(crc ^ rows[:, position]) & 255] ^ (crc >> np.uint32(8))
    crc ^= np.uint32(0xFFFFFFFF)
    rotated = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return rotated + np.uint32(0xA282EAD8)


_crc_of_length = lru_cache(4096)(masked_crc32c)


# TFRecord


class TfRecords:
    """Reads a TFRecord file: length (8 bytes), its checksum (4), data, theirs (4)."""

    def __init__(self, file: BufferedReader, rows: Rows) -> None:
        self._file = file
        self._rows = rows
        self._searched = 0  # bytes
        self._count = 0  # whole records so far, and their bytes
        self._bytes = 0

    def records(self) -> Iterator[bytes]:
        """Yield the records whose checksums are right; `rows` counts the others."""
        batch: list[tuple[int, bytes, int]] = []  # offset, data, checksum
        size = 0
        for record in self._framed():
            batch.append(record)
            size += len(record[1])
            if len(batch) >= _BATCH_RECORDS or size > _BATCH_BYTES:
                yield from self._checked(batch)
                batch = []
                size = 0
        yield from self._checked(batch)

    def _framed(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield (offset, data, checksum) of each record whose length is right."""
        while head := self._file.read(12):
            offset = self._file.tell() - len(head)
            if len(head) < 12:
                self._leave_out_end(offset)
                return
            size, checksum = struct.unpack("<QI", head)
            if size > MESSAGE or _crc_of_length(head[:8]) != checksum:
                if not self._seek_next(offset):
                    return
                continue
            data = self._file.read(size)
            tail = self._file.read(4)
            if len(tail) < 4:
                self._leave_out_end(offset)
                return
            self._count += 1
            self._bytes += len(data) + 16
            yield offset, data, int.from_bytes(tail, "little")

    def _leave_out_end(self, offset: int) -> None:
        self._rows.account.leave_out("the last record is cut off", f"byte {offset:,}", unit="records")

    def _seek_next(self, damaged: int) -> bool:
        """Go to the next record behind `damaged`, an offset; False where there is none."""
        start = damaged + 1
        offset = -1
        while offset < 0 and self._searched < _SEARCHED:
            self._file.seek(start)
            window = self._file.read(_WINDOW + 12)
            offset = _first_header(window)
            self._searched += len(window)
            if len(window) <= 12:
                break
            if offset < 0:
                start += len(window) - 11
        end = start + offset if offset >= 0 else self._file.seek(0, 2)
        usual = self._bytes / self._count if self._count else end - damaged
        lost = max(1, round((end - damaged) / usual))
        self._rows.account.leave_out(
            "damaged records (their number is estimated)", f"byte {damaged:,}", lost, unit="records"
        )
        self._file.seek(end)
        return offset >= 0

    def _checked(self, batch: list[tuple[int, bytes, int]]) -> Iterator[bytes]:
        """Yield the data of a batch in order, without those whose checksum is wrong."""
        by_length: dict[int, list[int]] = {}
        for index, (_, data, _) in enumerate(batch):
            if len(data) <= CHECKED:
                by_length.setdefault(len(data), []).append(index)
        damaged: set[int] = set()
        for length, indices in by_length.items():
            if len(indices) <= _FEW or not length:
                computed = [masked_crc32c(batch[index][1]) for index in indices]
            else:
                joined = b"".join(batch[index][1] for index in indices)
                computed = masked_crc32c_of_rows(np.frombuffer(joined, np.uint8).reshape(-1, length)).tolist()
            damaged |= {i for i, crc in zip(indices, computed, strict=True) if crc != batch[i][2]}
        for index, (offset, data, _) in enumerate(batch):
            if index in damaged:
                self._rows.account.leave_out(
                    "a record has another checksum", f"byte {offset:,}", unit="records"
                )
            else:
                yield data


def _first_header(window: bytes) -> int:
    """Return where the first right header (length and its checksum) stands in some bytes; -1 without one."""
    values = np.frombuffer(window, np.uint8)
    if len(values) < 12 or not values.any():
        return -1
    last = len(values) - 11
    # A length below 2^32 has four zeros at its end; that of nothing is no record here.
    candidates = np.flatnonzero(values[:last] | values[1 : last + 1] | values[2 : last + 2])
    for byte in range(4, 8):
        candidates = candidates[values[candidates + byte] == 0]
    for candidate in candidates.tolist():
        size, checksum = struct.unpack_from("<QI", window, candidate)
        if size <= MESSAGE and _crc_of_length(window[candidate : candidate + 8]) == checksum:
            return int(candidate)
    return -1


# LevelDB's log, as W&B and SwanLab write it (with the CRC of zlib)


# Kinds of pieces.
_WHOLE = 1
_FIRST = 2
_MIDDLE = 3
_LAST = 4


class LevelRecords:
    """Reads a LevelDB log behind 7 bytes: pieces (checksum, length, kind) in blocks of 32 KiB."""

    def __init__(self, file: BufferedReader, rows: Rows) -> None:
        self._file = file
        self._rows = rows
        self._record = bytearray()
        self._open = False  # whether `_record` waits for its last piece
        self._searched = 0  # positions
        self._count = 0  # right pieces so far, and their bytes
        self._bytes = 0

    def records(self) -> Iterator[bytes]:
        """Yield the records whose pieces are all right; `rows` counts the others."""
        self._file.read(7)
        block_start = 7
        while block := self._file.read(_BLOCK - block_start % _BLOCK):
            is_last = len(block) + block_start % _BLOCK < _BLOCK
            position = 0
            while position + _HEADER <= len(block):
                offset = block_start + position
                kind, end = self._right_piece(block, position)
                if kind:
                    self._count += 1
                    self._bytes += end - position
                    yield from self._add(kind, block[position + _HEADER : end], offset)
                    position = end
                else:
                    position = self._skip(block, position, offset, is_last)
            if is_last and position < len(block):
                self._leave_out_end(block_start + position)
            block_start += len(block)
        if self._open:
            self._leave_out_end(block_start)

    def _right_piece(self, block: bytes, position: int) -> tuple[int, int]:
        """Return the kind of the piece at a position, 0 if it is damaged, and where it ends."""
        checksum, size, kind = struct.unpack_from("<IHB", block, position)
        end = position + _HEADER + size
        if not _WHOLE <= kind <= _LAST or end > len(block):
            return 0, end
        computed = zlib.crc32(block[position + _HEADER : end], zlib.crc32(bytes([kind])))
        return (kind if computed & 0xFFFFFFFF == checksum else 0), end

    def _skip(self, block: bytes, damaged: int, offset: int, is_last: bool) -> int:
        """Return where the next right piece of a block begins, and count what lies before it."""
        following = self._next_piece(block, damaged)
        if following == len(block) and is_last and 0 < block[damaged + 6] <= _LAST:
            self._leave_out_end(offset)
            return following
        self._open = False
        usual = self._bytes / self._count if self._count else following - damaged
        lost = max(1, round((following - damaged) / usual))
        self._rows.account.leave_out(
            "damaged records (their number is estimated)", f"byte {offset:,}", lost, unit="records"
        )
        return following

    def _next_piece(self, block: bytes, damaged: int) -> int:
        if block.count(0, damaged) == len(block) - damaged:
            return len(block)
        for position in range(damaged + 1, len(block) - _HEADER + 1):
            self._searched += 1
            if self._searched > _SEARCHED_POSITIONS:
                return len(block)
            if 0 < block[position + 6] <= _LAST and self._right_piece(block, position)[0]:
                return position
        return len(block)

    def _add(self, kind: int, data: bytes, offset: int) -> Iterator[bytes]:
        """Add a piece; yield the record that it ends."""
        begins = kind in (_WHOLE, _FIRST)
        if begins and self._open:
            self._rows.account.leave_out("a record without an end", f"byte {offset:,}", unit="records")
        if not begins and not self._open:
            return  # its first piece was damaged, and is counted
        if begins:
            self._record.clear()
        self._record += data
        self._open = kind in (_FIRST, _MIDDLE)
        if len(self._record) > MESSAGE:
            reason = f"longer than {MESSAGE // MIB} MiB"
            self._rows.account.leave_out(reason, f"byte {offset:,}", unit="records")
            self._open = False
        elif not self._open:
            yield bytes(self._record)

    def _leave_out_end(self, offset: int) -> None:
        self._open = False
        self._rows.account.leave_out("the last record is cut off", f"byte {offset:,}", unit="records")
