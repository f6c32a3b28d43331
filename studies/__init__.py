"""Studies that need a clone: of the workbench itself (`sorl bench`), and the paper's claims
(`sorl report`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sorl.analysis.stats import clopper_pearson
from sorl.spec import InputError


@dataclass(frozen=True)
class Share:
    """`k` of `n`, with a 95 % Clopper-Pearson interval."""

    k: int
    n: int

    def __str__(self) -> str:
        if not self.n:
            return "-"
        low, high = clopper_pearson(self.k, self.n)
        return f"{self.k}/{self.n} = {100 * self.k / self.n:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"

    @property
    def value(self) -> float:
        """k / n; 0 without any."""
        return self.k / self.n if self.n else 0.0


def stored(path: Path, names: Sequence[str], what: str) -> list[dict[str, Any]]:
    """Read the columns `names` of a file of `what`, None for NULL. Raises InputError for any other file."""
    try:
        frame = pd.read_parquet(path, columns=list(names))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"'{path}' holds no {what}: {str(error).splitlines()[0]}") from None
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]
