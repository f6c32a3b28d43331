"""What other rooms declare and the app must not import: a copy as data, which `make docs` keeps up to date."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "declared.toml"


@cache
def declared() -> dict[str, Any]:
    """Algorithms, the kinds of their slots, the notation of the formulas, and the collapse rule as Markdown."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
