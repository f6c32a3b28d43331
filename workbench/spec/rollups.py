"""The tables that sync makes of others, so that a curve over many runs need not read every row."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.spec.tables import RUN_ID, TURN_INDEX, Column, Table


@dataclass(frozen=True)
class Rollup:
    """A table that sync makes of another one, so that a curve over many runs need not read every row.

    Each numeric measured column of `source` is here a STRUCT over the rows of a block of `width` steps: n (finite
    values), broken (NaN or Inf), total, low, high, and log (sum of ln max(value, e^-20), of ratios only).
    """

    name: str
    source: str
    width: int
    keys: tuple[str, ...] = ()  # columns of `source` that are told apart, besides the run

    @property
    def grain(self) -> str:
        """What a row is."""
        each = "".join(f", {key}" for key in self.keys)
        return f"One row per run{each} and block of {self.width} steps: roll-up of {self.source}, filled by sync."

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that are not measured."""
        keys = [TURN_INDEX] if "turn_index" in self.keys else []
        return (
            RUN_ID, *keys,
            Column("block", "BIGINT", f"step // {self.width}."),
        )  # fmt: skip


# Sync fills it together with the roll-ups: neither has segments of its own.
SPAN = Table(
    "span",
    "One row per run and table with roll-ups: the steps that are recorded, and those that are rolled up.",
    ("run_id", "table_name"),
    (
        RUN_ID,
        Column("table_name", "VARCHAR", "step, minibatch or turn_step."),
        Column("first_step", "BIGINT", "First recorded step."),
        Column("last_step", "BIGINT", "Last recorded step."),
        Column("rolled_to", "BIGINT", "Steps below it are rolled up; later rows are read as they are."),
    ),
)
_WIDTHS: tuple[tuple[str, str, tuple[str, ...], tuple[int, ...]], ...] = (
    ("step_block", "step", (), (4, 16, 64)),
    ("minibatch_block", "minibatch", (), (16, 64)),
    ("turn_step_block", "turn_step", (), (4, 16, 64)),
    ("turn_index_block", "turn_step", ("turn_index",), (16, 64)),
)
# Of the same rows the narrow ones come first: the wider ones are made of them.
ROLLUPS: tuple[Rollup, ...] = tuple(
    Rollup(f"{name}_{width}", source, width, keys) for name, source, keys, widths in _WIDTHS for width in widths
)
