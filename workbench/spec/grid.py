"""A grid file as it is written: the question, the seeds, what is crossed, the named controls, the search."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from workbench.spec.settings import Count, Positive, Seed, Settings


class Arm(Settings):
    """A named single change that is not crossed with the axes: a control."""

    model_config = ConfigDict(extra="allow", frozen=True)  # its keys are those of RunSettings, checked when resolved

    name: Annotated[str, Field(min_length=1)]


class RegionSettings(Settings):
    """The search of an experiment of kind region."""

    along: Annotated[str, Field(description="setting along which the boundary is searched, on a log scale")] = (
        "learn.policy.lr"
    )
    low: Annotated[Positive, Field(description="lowest value")]
    high: Annotated[Positive, Field(description="highest value")]
    points: Annotated[
        int, Field(ge=3, le=65, description="values from low to high, both included, evenly spaced on the log scale")
    ] = 9
    probes: Annotated[Count, Field(description="seeds with which a value is first tried")] = 2
    search: Annotated[
        Literal["adaptive", "full"],
        Field(description="adaptive: bisect; full: every value with every seed, to hold the search against"),
    ] = "adaptive"
    runs: Annotated[Count | None, Field(description="budget: so many runs in all")] = None
    minutes: Annotated[Positive | None, Field(description="budget: so many minutes of training, all runs added up")] = (
        None
    )

    @property
    def lattice(self) -> tuple[float, ...]:
        """The values, rounded to three digits: low (high / low)^(i / (points - 1))."""
        step = (self.high / self.low) ** (1 / (self.points - 1))
        return tuple(float(f"{self.low * step**i:.3g}") for i in range(self.points))

    @model_validator(mode="after")
    def _values_differ(self) -> RegionSettings:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low:g} must be below high = {self.high:g}")
        if len(set(self.lattice)) < self.points:
            raise ValueError(f"{self.points} points from {self.low:g} to {self.high:g} are not apart at three digits")
        return self


class GridFile(Settings):
    """A grid file: the question, the seeds, what is common, what is crossed, and the named controls."""

    kind: Literal["grid", "region"] = "grid"
    question: Annotated[str, Field(min_length=8)]
    seeds: Annotated[list[Seed], Field(min_length=1, default_factory=lambda: [0])]
    base: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    arms: list[Arm] = Field(default_factory=list)
    region: RegionSettings | None = None

    @model_validator(mode="after")
    def _a_region_has_its_table(self) -> GridFile:
        if (self.kind == "region") != (self.region is not None):
            told = "kind = 'region' needs a table [region]" if self.region is None else "[region] needs kind = 'region'"
            raise ValueError(f"{told}; docs/regions.md shows a file")
        return self
