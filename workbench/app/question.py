"""A question in SQL as the address of the screen holds it: readable while it is short, packed when it is long."""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from urllib.parse import quote

LONGEST = 20_000  # characters of a question
_READABLE = 1_500  # characters of an address: what programs that pass links on do not break
_PACKED = 6_000  # a server refuses the headers of a request beyond 16 KiB
_MARK = "packed:"  # no question begins so


def written(text: str) -> str | None:
    """`text` as a parameter of the address; None where it is too long for any."""
    if len(quote(text, errors="replace")) <= _READABLE and not text.startswith(_MARK):
        return text
    packed = _MARK + urlsafe_b64encode(zlib.compress(text.encode(errors="replace"), 9)).decode().rstrip("=")
    return packed if len(packed) <= _PACKED else None


def read(given: Sequence[str], default: str) -> tuple[str, list[str]]:
    """The question of a parameter (`default` where there is none), and a note where it cannot be read."""
    if not given:
        return default, []
    text = _unpacked(given[0].removeprefix(_MARK)) if given[0].startswith(_MARK) else given[0]
    if text is None or len(text) > LONGEST:
        return default, ["sql, which is cut off or too long"]
    return text, []


def _unpacked(code: str) -> str | None:
    try:
        packed = urlsafe_b64decode(code + "=" * (-len(code) % 4))
        opened = zlib.decompressobj()
        text = opened.decompress(packed, 4 * LONGEST + 1)  # never more, however little there was to unpack
        return text.decode() if opened.eof else None
    except (ValueError, zlib.error):
        return None
