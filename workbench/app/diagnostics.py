"""The database's own dictionary of measured columns, as the screens use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.app.data import Store

CHARTED = ("step", "minibatch", "turn_step")  # tables with a row per step or finer that is not one per trajectory
_GRAIN = {"step": "step", "minibatch": "update", "turn_step": "turn index"}


@dataclass(frozen=True)
class Diagnostics:
    """The declared columns: `table.name` -> its row of table `diagnostic`."""

    rows: dict[str, dict[str, Any]]

    @property
    def charted(self) -> list[str]:
        """The columns that a curve over training can show, those of a step first."""
        found = [m for m, row in self.rows.items() if row["table_name"] in CHARTED and row["sql_type"] != "VARCHAR"]
        return sorted(found, key=lambda m: CHARTED.index(self.rows[m]["table_name"]))

    def label(self, metric: str) -> str:
        """How a list names a column: `grad_norm (update)`; the grain is left out for a step."""
        row = self.rows[metric]
        return row["name"] if row["table_name"] == "step" else f"{row['name']} ({_GRAIN[row['table_name']]})"


def dictionary(store: Store) -> Diagnostics:
    """The dictionary of the store's database."""

    def read(reader: Any) -> Diagnostics:
        from workbench.app.data import sql

        answer = reader.rows(sql("dictionary")[1])
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        return Diagnostics({f"{row['table_name']}.{row['name']}": row for row in rows})

    return store.computed("dictionary", read)
