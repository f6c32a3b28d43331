"""What a report says: question, verdicts, design, figures, tables, fairness, settings, and how to make it again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.analysis import claims, compare, region
from workbench.analysis.region import Landscape, by_column, by_point, by_series, from_runs, region_of
from workbench.analysis.results import Results
from workbench.analysis.runs import KEPT, pooled, settings
from workbench.app.figures.region import region as drawn
from workbench.app.report import figures
from workbench.app.report.write import Code, Figure, Items, Part, Report, Section, Table, Text
from workbench.app.theme import Palette, styles
from workbench.spec import GridFile, InputError

if TYPE_CHECKING:
    import plotly.graph_objects as go

TONES = tuple(figures.TONES.items())


def report(experiments: Sequence[Results], words: figures.Words, commands: Sequence[str]) -> Report:
    """The report of one experiment, or of several whose runs the claims are judged on together."""
    one = len(experiments) == 1
    # An arm of a region is tried at many values, few of them with all seeds: its areas judge the claims.
    compared_at_one = [found for found in experiments if not is_region(found)]
    lead: list[Part] = []
    for found in experiments:
        lead.append(Text(found.question if one else f"{found.experiment}: {found.question}", "lead"))
        lead.append(Text(answer(found)))
    sections = [claimed(pooled(compared_at_one), compared_at_one)] if compared_at_one else []
    for found in experiments:
        sections += [] if one else [Section(found.experiment, [Text(found.question)])]
        sections += of_experiment(found, words, 2 if one else 3)
    return Report(" and ".join(f.experiment for f in experiments), lead, [*sections, reproduce(experiments, commands)])


def claimed(runs: pd.DataFrame, experiments: Sequence[Results]) -> Section:
    """The paper's claims, each with its verdict, and the figures and tables behind them."""
    judged, kept = claims.verdicts(runs), claims.verdicts(runs, KEPT)
    parts: list[Part] = [
        Text(
            f"Claims of arXiv 2511.20718, judged on the runs of {' and '.join(f.experiment for f in experiments)}. The "
            "paper's equations could be read in descriptions only; each verdict on the normalisation names the reading "
            "that ran."
        ),
        Table.of(claims.summary(judged, kept), TONES),
        *figures.of_claims(judged),
    ]
    for title, frame in (
        ("Every hypothesis: effect, interval, test.", claims.hypotheses(judged, kept)),
        (
            "Controls: other explanations on the same seeds, with 95 % Clopper-Pearson intervals.",
            claims.controls(judged),
        ),
    ):
        if len(frame):
            parts += [Text(title), Table.of(frame, TONES)]
    if down := int((runs["outcome"] == "falling").sum()):
        with_them = claims.verdicts(runs.assign(outcome=runs["outcome"].replace("falling", "collapsed")))
        found, other = ({v.letter: v.verdict for v in each} for each in (judged, with_them))
        parts.append(Text(both_ways(down, found, other), "note"))
    parts.append(Text(claims.rule(), "note"))
    return Section("The paper's claims, one by one", parts)


def answer(found: Results) -> str:
    """What the experiment says, in a sentence or two."""
    if is_region(found):
        return headline(found)
    return compare.answer(compare.summarise(found.runs))


def of_experiment(found: Results, words: figures.Words, level: int) -> list[Section]:
    """Design, figures, tables, fairness and settings of one experiment."""
    runs = found.runs
    last = [
        Section("Fairness of the comparison", [Items(fairness(found))], level),
        Section("Settings and machine", made(found), level),
    ]
    if is_region(found):
        return [*of_region(found, level), *last]
    frame = compare.figures(runs)
    lines = compare.reading(frame)
    test = next(
        (line for line in lines if line.startswith("Log-rank")), "No log-rank test: it needs two arms and a collapse."
    )
    tables: list[Part] = [
        Text("Finished runs: means with 95 % t-intervals, collapses with 95 % Clopper-Pearson intervals."),
        Table.of(compare.readable(frame)),
    ]
    for title, part in (
        ("Time to collapse (Kaplan-Meier), runs without one censored at their end.", compare.time_to_collapse(frame)),
        (f"Against {runs['arm'].iloc[0]}; in parentheses p-values with Holm's correction over these comparisons.",
         compare.against_reference(frame)),
        ("Over the conditions that all algorithms share.", compare.over_conditions(frame)),
    ):  # fmt: skip
        if len(part):
            tables += [Text(title), Table.of(part)]
    return [
        Section("Design", [Text(figures.counted(runs)), Table.of(design(runs))], level),
        Section("Figures", figures.of_experiment(runs, words, test), level),
        Section("Tables", [*tables, Items(lines)], level),
        *last,
    ]


def fairness(found: Results) -> Sequence[str]:
    """What the guard says of the comparison; of a region without what its search does on purpose."""
    if not is_region(found):
        nothing = "The guard found nothing that sets the arms apart besides what they are to compare."
        return found.fairness or (nothing,)
    meant = (
        "Values differ in seeds, steps and rollouts: the search spends seeds beside a boundary, a collapse ends a run."
    )
    return [*(line for line in found.fairness if not line.startswith("Note: the arms")), meant]


def design(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per arm: runs, steps, seeds, and every setting that not all arms share (slots by kind and options)."""
    arms = {str(arm): rows for arm, rows in runs.groupby("arm", sort=False)}
    told = {arm: _slots_in_words(settings(rows["config"].iloc[0], rows["slots"].iloc[0])) for arm, rows in arms.items()}
    keys = list(dict.fromkeys(key for flat in told.values() for key in flat))
    differing = [key for key in keys if len({json.dumps(flat.get(key), default=str) for flat in told.values()}) > 1]
    return pd.DataFrame(
        [
            {
                "arm": arm,
                "algorithm": rows["algorithm"].iloc[0],
                "seeds": " ".join(str(s) for s in sorted(rows["seed"])),
                "steps": _span(rows["steps"]),
                **{key: _word(told[arm].get(key)) for key in differing},
            }
            for arm, rows in arms.items()
        ]
    )


def _slots_in_words(flat: dict[str, Any]) -> dict[str, Any]:
    """The settings with one entry per slot instead of one per option."""
    slots: dict[str, list[str]] = {}
    rest = {}
    for key, value in flat.items():
        if key.startswith("slot."):
            _, slot, option = key.split(".", 2)
            words = slots.setdefault(slot, [])
            words.insert(0, str(value)) if option == "kind" else words.append(f"{option} {_word(value)}")
        else:
            rest[key] = value
    return {slot: ", ".join(words) for slot, words in slots.items()} | rest


def made(found: Results) -> list[Part]:
    """The settings that all arms share, versions, machine, time, and the grid file as it was run."""
    runs = found.runs
    flats = [settings(c, s) for c, s in zip(runs["config"], runs["slots"], strict=True)]
    common = {k: v for k, v in (flats[0] if flats else {}).items() if all(f.get(k) == v for f in flats)}
    rows = [[key, _word(value)] for key, value in sorted(_slots_in_words(common).items())]
    parts: list[Part] = []
    for number, line in Counter(_versions(v) for v in runs["versions"]).items():
        parts.append(Text(f"{line} runs: {number}"))
    parts.append(Text(f"{runs['seconds'].sum() / 3600:.1f} hours of training, summed over runs."))
    if rows:
        parts += [Text("Settings that all arms share."), Table(["setting", "value"], rows)]
    if found.toml:
        parts.append(Code(found.toml, f"{found.experiment}.toml"))
    return parts


def reproduce(experiments: Sequence[Results], commands: Sequence[str]) -> Section:
    """The commands that train, report and recompute."""
    return Section("Make it again", [Code("\n".join(commands))])


def _versions(text: Any) -> str:
    try:
        found = json.loads(text)
        return ", ".join(f"{name} {value}" for name, value in found.items()) + "."
    except (TypeError, ValueError, AttributeError):
        return "versions not recorded."


def _span(steps: pd.Series) -> str:
    known = steps.dropna().astype(int)
    if known.empty:
        return "-"
    return f"{known.min()}" if known.min() == known.max() else f"{known.min()} to {known.max()}"


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def is_region(found: Results) -> bool:
    """Whether the experiment is of kind region."""
    return region_of(found.toml) is not None


def of_region(found: Results, level: int) -> list[Section]:
    """The sections of a region: areas and boundaries by both readings of survival, and the claims that they judge."""
    file = region_of(found.toml)
    assert file is not None
    try:
        landscape = _landscape(found, file)
    except InputError as error:
        return [Section("Stability region", [Text(str(error))], level)]
    kept = landscape.read_as(KEPT)
    parts = _maps(landscape, by_column(landscape), by_point(landscape))
    for one, who in ((landscape, "all runs that did not collapse"), (kept, "only runs that learned and kept it")):
        series, columns = by_series(one), by_column(one)
        does = region.FALLS[one.survival]
        parts += [
            Text(f"Stable area where {who} count as survivors, with 95 % intervals of the fit."),
            Table.of(region.readable_series(series)),
            Text(f"Boundary: {one.settings.along} at which half of the runs {does}, by {one.across}."),
            Table.of(region.readable_columns(columns)),
            Items(region.answer(one, series, columns)),
        ]
    return [Section("Stability region", parts, level), *_claimed(landscape, kept, found.runs, level)]


def headline(found: Results) -> str:
    """The areas in a sentence for each reading of survival."""
    file = region_of(found.toml)
    assert file is not None
    try:
        landscape = _landscape(found, file)
    except InputError as error:
        return str(error)
    both = (landscape, landscape.read_as(KEPT))
    return " ".join(region.answer(one, by_series(one), by_column(one))[0] for one in both)


def _landscape(found: Results, file: GridFile) -> Landscape:
    return from_runs(found.runs.assign(started_at=None), file, found.experiment)


def _maps(landscape: Landscape, columns: pd.DataFrame, points: pd.DataFrame) -> list[Part]:
    arms = landscape.runs[["series", "algorithm"]].drop_duplicates("series")
    found: list[Part] = []
    for piece in dict.fromkeys(points["slice"]):
        mine = points[points["slice"] == piece]
        caption = (
            f"{int(mine['runs'].sum())} runs, seeds {_seeds(landscape)}. A cell: collapsed runs of runs at one "
            f"{landscape.settings.along} and {landscape.across}; empty where the search ran nothing. Line: where half "
            "of the runs collapse, with its 95 % interval; a triangle points beyond what was tried."
        )
        title = f"Collapsed runs by {landscape.settings.along} and {landscape.across}{f', {piece}' if piece else ''}"
        draw = partial(_draw, mine, columns[columns["slice"] == piece], landscape, arms)
        found.append(Figure(draw, title, caption))
    return found


def _draw(
    points: pd.DataFrame, columns: pd.DataFrame, landscape: Landscape, arms: pd.DataFrame, palette: Palette
) -> go.Figure:
    looks = styles(list(arms.itertuples(index=False, name=None)), palette)
    along, across = landscape.settings.along, landscape.across or ""
    return drawn(points, columns, landscape.settings.lattice, looks, palette, along, across)


def _seeds(landscape: Landscape) -> str:
    seeds = sorted({int(seed) for seed in landscape.runs["seed"]})
    return f"{seeds[0]} to {seeds[-1]}" if seeds == list(range(seeds[0], seeds[-1] + 1)) else ", ".join(map(str, seeds))


def both_ways(down: int, found: Mapping[str, str], with_them: Mapping[str, str]) -> str:
    """What `down` runs that were falling at their end would change in the verdicts, claim by claim."""
    told = [f"({claim}) {with_them[claim]}" for claim in found if found[claim] != with_them[claim]]
    changes = (
        f"counted as collapsed they would change: {', '.join(told)}"
        if told
        else "counted as collapsed they change no verdict"
    )
    return f"{down} runs were falling at their end and count neither way; {changes}."


def _claimed(landscape: Landscape, kept: Landscape, runs: pd.DataFrame, level: int) -> list[Section]:
    found, other = claims.shifts(landscape, runs), claims.shifts(kept, runs)
    if not found:
        return []
    by_kept = claims.area_verdicts(other)
    summary = pd.DataFrame(
        [
            {
                "claim": f"({letter}) {claims.AREA_SENTENCES[letter]}",
                "verdict": verdict,
                f"verdict if {KEPT}": by_kept[letter],
            }
            for letter, verdict in claims.area_verdicts(found).items()
        ]
    )
    parts: list[Part] = [Table.of(summary, TONES), Table.of(claims.readable_shifts(found, other), TONES)]
    if len(landscape.fading):
        fading = claims.area_verdicts(claims.shifts(landscape.with_fading(), runs))
        parts.append(Text(both_ways(len(landscape.fading), claims.area_verdicts(found), fading), "note"))
    parts.append(Text(claims.area_rule(), "note"))
    return [Section("The paper's claims, by stable areas", parts, level)]
