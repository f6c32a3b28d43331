"""What is measured: levels, units, alarms, and the declaration that joins them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Level(StrEnum):
    """The grain at which a quantity is measured; each level is one table of the store."""

    TOKEN = "token"
    TURN = "turn"
    TURN_STEP = "turn_step"
    TRAJECTORY = "trajectory"
    UPDATE = "update"
    STEP = "step"
    RUN = "run"

    @property
    def table(self) -> str:
        """Name of the table whose rows have this grain (an optimizer update is a row of `minibatch`)."""
        return "minibatch" if self is Level.UPDATE else self.value


class Unit(StrEnum):
    """The unit of a measured quantity, as axes and tooltips print it."""

    NATS = "nats"
    RATIO = "ratio"
    FRACTION = "fraction"
    REWARD = "reward"
    NORM = "norm"
    COUNT = "count"
    TOKENS = "tokens"
    SECONDS = "s"
    BYTES = "bytes"
    NONE = ""


@dataclass(frozen=True)
class Alarm:
    """A mark on one diagnostic: its value crosses `value` in direction `when` at `points` consecutive points.

    A relative mark is `value` times the median ("baseline") or the mean ("start") of the run's own first `warmup`
    points, or times its running maximum ("peak"), because absolute thresholds do not carry from one model to another.
    `reason` says where the mark comes from.
    """

    when: Literal["above", "below", "at least"]
    value: float
    reason: str
    points: int = 1
    relative: Literal["", "baseline", "start", "peak"] = ""
    warmup: int = 10
    severity: Literal["info", "warning", "critical"] = "warning"


@dataclass(frozen=True)
class Diagnostic:
    """A declared measurement: its name is the column, its level the table, its description the tooltip."""

    name: str
    level: Level
    unit: Unit
    formula: str
    source: str
    description: str
    alarm: Alarm | None = None
    sql_type: Literal["DOUBLE", "BIGINT", "BOOLEAN", "VARCHAR"] = "DOUBLE"
    no_alarm: str = ""  # why it has none; empty where it has one

    @property
    def table(self) -> str:
        """Name of the table that holds this diagnostic's column."""
        return self.level.table
