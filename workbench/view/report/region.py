"""What a report says of an experiment of kind region: stable areas and the boundary of collapse, as tables."""

from __future__ import annotations

from workbench.spec import InputError
from workbench.verdict.region.landscape import from_runs, region_of
from workbench.verdict.region.tables import by_column, by_series
from workbench.verdict.region.words import answer, readable_columns, readable_series
from workbench.verdict.results import Results
from workbench.view.report.parts import Items, Section, Table, Text


def of(found: Results, level: int) -> list[Section]:
    """The section of a region; none for any other experiment."""
    file = region_of(found.toml)
    if file is None:
        return []
    try:
        landscape = from_runs(found.runs.assign(started_at=None), file, found.experiment)
    except InputError as error:
        return [Section("Stability region", [Text(str(error))], level)]
    series, columns = by_series(landscape), by_column(landscape)
    boundary = f"Boundary: {landscape.settings.along} at which half of the runs collapse, by {landscape.across}"
    return [
        Section(
            "Stability region",
            [
                Text("Stable area of each arm; intervals are 95 % bootstrap over seeds."),
                Table.of(readable_series(series)),
                Text(f"{boundary}; intervals are 95 % bootstrap over seeds."),
                Table.of(readable_columns(columns)),
                Items(answer(landscape, series, columns)),
            ],
            level,
        )
    ]
