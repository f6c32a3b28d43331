"""The turns of an episode as a table: a column a turn, a row a measured column of the turn ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.app.safe import html_text
from workbench.app.wording import number, word

if TYPE_CHECKING:
    from workbench.app.diagnostics import Diagnostics

_FIRST = (
    "status", "n_tokens", "ratio_geo", "ratio_arith", "ratio_prod", "log_ratio_sum", "ratio_max", "ratio_min",
    "clip_frac", "out_of_range_frac", "approx_kl", "entropy", "advantage", "value", "value_error", "ratio_mass_frac",
    "gradient_share",
)  # fmt: skip


def ledger(rows: Sequence[Mapping[str, Any]], known: Diagnostics) -> str:
    """The table as HTML; `rows` are the turns of one epoch. Bold is the one with most of the gradient."""
    declared = [row["name"] for row in known.rows.values() if row["table_name"] == "turn"]
    names = sorted(declared, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    worst = _worst(rows)
    head = "".join(
        f'<th class="sorl-worst">turn {row["turn_index"]}</th>' if row is worst else f"<th>{row['turn_index']}</th>"
        for row in rows
    )
    body = "".join(_line(known.rows[f"turn.{name}"], rows, worst) for name in names)
    lines = f"<tr><th></th>{head}</tr>{body}"
    return f'<div class="sorl-scroll"><table class="sorl-table sorl-ledger">{lines}</table></div>'


def _worst(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The turn with the largest gradient_share; NaN is worse than any number. None where none was measured."""
    measured = [row for row in rows if row["gradient_share"] is not None]

    def size(row: Mapping[str, Any]) -> float:
        value = float(row["gradient_share"])
        return math.inf if math.isnan(value) else value

    return max(measured, key=size) if measured else None


def _line(declared: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], worst: Mapping[str, Any] | None) -> str:
    name = declared["name"]
    words = f"{declared['formula']} — {declared['description']}"
    unit = f' <span class="sorl-unit">{html_text(declared["unit"])}</span>' if declared["unit"] else ""
    cells = "".join(_cell(row.get(name), is_worst=row is worst) for row in rows)
    return f'<tr><th title="{html_text(words)}">{html_text(name)}{unit}</th>{cells}</tr>'


def _cell(value: Any, *, is_worst: bool) -> str:
    broken = isinstance(value, float) and not math.isfinite(value)
    marks = " ".join(name for name, on in (("sorl-worst", is_worst), ("sorl-broken", broken)) if on)
    text = word(value) if isinstance(value, (str, bool)) else number(value)
    return f'<td class="{marks}">{html_text(text)}</td>'
