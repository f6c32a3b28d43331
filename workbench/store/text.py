"""Untrusted text made safe for a terminal; the console log; CSV and JSON."""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

LOG_NAME = "console.log"
LONGEST = 4000  # characters of an error message, or of a text in a cell
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[@-Z\\-_])")
# Besides the control characters, those that reorder or break the text around them (a log must not rewrite
# what stands next to it), and halves of characters, which cannot be printed at all.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    """Strip escape sequences and control characters from program output (tab and newline stay)."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def visible(text: str) -> str:
    """Return a text with its control characters shown as `\\u001b`, as JSON escapes them (tab and newline
    stay).
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(text: str, most: int = LONGEST) -> str:
    """Return a text that does not fill the screen: its first `most` characters, and how many more there
    are.
    """
    return text if len(text) <= most else f"{text[:most]} ... ({len(text) - most:,} more characters)"


def tail(log: Path, since: int = 0, size: int = 65536) -> list[str]:
    """Return the last lines (at most `size` bytes) logged after byte `since`; none without a log."""
    if not log.is_file():
        return []
    with log.open("rb") as handle:
        end = handle.seek(0, 2)
        handle.seek(max(0, min(since, end), end - size))
        return [plain(line) for line in handle.read().decode(errors="replace").splitlines()]


def log_of(runs: Path, experiment: str, run_id: str) -> Path | None:
    """Return the console log of a run; None where there is none inside the run's own folder."""
    from sorl.store.segments import folder_of  # the command's help page starts on this module

    folder = folder_of(runs, experiment, run_id)
    log = folder and (folder / LOG_NAME).resolve()
    return log if log and log.is_file() and log.parent == folder else None


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return RFC 4180 text: NULL is an empty field, NaN and infinities are nan, inf and -inf,
    lists are JSON.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(
            [json.dumps(as_json(v), ensure_ascii=False) if isinstance(v, list | dict) else v for v in row]
        )
    return out.getvalue()


def as_json(value: Any) -> Any:
    """Convert a value for JSON, which has no word for NaN, and null already means "not measured"."""
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | tuple):
        return [as_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): as_json(v) for k, v in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
