"""The report of experiments: its parts, what it says, and its two forms: a page that needs no network, or
Markdown.
"""

import base64
import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sorl.analysis import compare, forks, region_words
from sorl.analysis.region import Landscape, by_column, by_point, by_series, from_runs, region_of
from sorl.analysis.results import SERIES, Results
from sorl.analysis.runs import KEPT, nested, settings
from sorl.analysis.survival import collapses, curve, observed
from sorl.app import theme
from sorl.app.data import CARRIED, banded, carried, lone, onset_of, stopped
from sorl.app.figures.common import AXES
from sorl.app.figures.curves import Panel, curves
from sorl.app.figures.maps import Slice
from sorl.app.figures.maps import region as region_figure
from sorl.app.figures.matrix import layout, matrix
from sorl.app.figures.runs import survival
from sorl.app.text import html_text, setting, visible
from sorl.app.theme import DARK, LIGHT, Palette
from sorl.diagnosis import standing
from sorl.spec import OUTCOMES, GridFile, InputError
from sorl.spec.files import MIB
from sorl.spec.markdown import markdown_table
from sorl.store.text import shortened

Words = Mapping[str, tuple[str, str]]  # curve -> unit, definition
Draw = Callable[[Palette], go.Figure | str]
Styles = Callable[[Palette], dict[str, theme.Style]]

ARMS = 6  # of a figure; more are drawn in several
POINTS = 160  # of a line
NO_CLAIMS = "The verdicts on the paper's claims need a clone of the repository: run `sorl report` from one."
_WHO = ["arm", "run_id", "seed"]
_BANDS = (
    "Line: interquartile mean over seeds, drawn where all of them have a value (success and reward of a run"
    " that was stopped after its collapse are carried on at their last value); darker band: its 95 %"
    " bootstrap interval over seeds; edges or paler band: lowest and highest seed; thin lines: seeds, where"
    " there are fewer than three or not all are left, without an interval; ▼ onset of the fall; ✕ NaN or Inf."
)
_FAIR = "The guard found nothing that sets the arms apart besides what they are to compare."
_MEANT = (
    "Values differ in seeds, steps and rollouts: the search spends seeds near a boundary, a collapse ends a"
    " run."
)
_FOLDER = Path(__file__).parent
# Only where it would act: an underscore inside a word, a bracket that no link follows and a lone < are
# letters.
_MARKS = re.compile(r"([\\`*|$~]|<(?=[A-Za-z!?/])|&(?=#?\w+;)|(?<!\w)_|_(?!\w)|\](?=[(\[:])|^[#>])")


class Text(NamedTuple):
    """A paragraph; `kind` is plain, lead (a size larger) or note (smaller)."""

    text: str
    kind: str = "plain"


class Items(NamedTuple):
    """A list of sentences."""

    lines: Sequence[str]


class Code(NamedTuple):
    """Lines to type or a file, in a box that opens on a click on its `title` where it has one."""

    text: str
    title: str = ""


class Table(NamedTuple):
    """A table; cells whose text is a key of `tones` (text -> outcome) have the colour of that outcome."""

    frame: pd.DataFrame
    tones: Mapping[str, str] = MappingProxyType({})


class Figure(NamedTuple):
    """A figure (plotly or SVG) in any palette, its title, and a caption with n, seeds and the kind of
    interval.
    """

    draw: Draw
    title: str
    caption: str


Part = Text | Items | Code | Table | Figure


class Section(NamedTuple):
    """A heading of level 2 or 3, and its parts."""

    title: str
    parts: Sequence[Part]
    level: int = 2


class Report(NamedTuple):
    """The whole page."""

    title: str
    lead: Sequence[Part]
    sections: Sequence[Section]


class _About(NamedTuple):
    """What the report says of one experiment."""

    answer: str  # in a sentence or two
    sections: list[Section]  # what the answer rests on
    fairness: Sequence[str]  # what the guard says of the comparison


def report(
    experiments: Sequence[Results], words: Words, commands: Sequence[str], claims: ModuleType | None = None
) -> Report:
    """Return the report of the experiments; study `claims` (of a clone) judges the paper's claims on all
    together.
    """
    lead = list[Part]()
    sections = list[Section]()
    # An arm of a region is tried at many values, few of them with all seeds: its areas judge the claims.
    # Forks are no runs from a warm start: study `forks` judges the claims by them.
    children = {results.experiment: forks.of_results(results.runs) for results in experiments}
    compared = [f for f in experiments if region_of(f.toml) is None and children[f.experiment].empty]
    if claims is None:
        sections.append(Section("The paper's claims", [Text(NO_CLAIMS)]))
    elif compared:
        sections.append(claims.section(compared))
    is_alone = len(experiments) == 1
    level = 2 if is_alone else 3
    for results in experiments:
        question = shortened(results.question)
        if not is_alone:
            sections.append(Section(results.experiment, [Text(question)]))
            question = f"{results.experiment}: {question}"
        file = region_of(results.toml)
        if file is None:
            about = _about_comparison(results, children[results.experiment], words, level)
        else:
            about = _about_region(results, file, level, claims)
        lead += [Text(question, "lead"), Text(about.answer)]
        sections += [
            *about.sections,
            Section("Fairness of the comparison", [Items(about.fairness)], level),
            Section("Settings and machine", list(_settings_parts(results)), level),
        ]
    sections.append(Section("Make it again", [Code("\n".join(commands))]))
    return Report(" and ".join(results.experiment for results in experiments), lead, sections)


def titled(parts: Iterable[tuple[str, pd.DataFrame]], tones: Mapping[str, str]) -> Iterator[Part]:
    """Yield the tables that have rows, each with a line above it."""
    for title, frame in parts:
        if len(frame):
            yield from (Text(title), Table(frame, tones))


def _about_comparison(results: Results, children: pd.DataFrame, words: Words, level: int) -> _About:
    """Compare the arms of an experiment; forks (`children`) also with their parents."""
    answer = compare.answer(compare.summarise(results.runs))
    sections = _comparison(results.runs, words, level)
    if len(children):
        answer = f"{forks.sentence(children)} {answer}"
        parts: list[Part] = [Text(forks.ABOUT), Table(forks.table(children))]
        sections = [Section("Forks within their parents", parts, level), *sections]
    return _About(answer, sections, results.fairness or [_FAIR])


def _comparison(runs: pd.DataFrame, words: Words, level: int) -> list[Section]:
    frame = compare.figures(runs)
    lines = compare.reading(frame)
    none = "No log-rank test: it needs two arms and a collapse."
    test = next((line for line in lines if line.startswith("Log-rank")), none)
    more = [
        (
            "Time to collapse (Kaplan-Meier), runs without one censored at their end.",
            compare.time_to_collapse(frame),
        ),
        (
            (
                f"Against {runs['arm'].iloc[0]}; in parentheses p-values with Holm's correction over these"
                " comparisons."
            ),
            compare.against_reference(frame),
        ),
        ("Over the conditions that all algorithms share.", compare.over_conditions(frame)),
    ]
    means = Text("Finished runs: means with 95 % t-intervals, collapses with 95 % Clopper-Pearson intervals.")
    return [
        Section("Design", [Text(counted(runs)), Table(design(runs))], level),
        Section("Figures", list(_figures(runs, words, test)), level),
        Section("Tables", [means, Table(compare.readable(frame)), *titled(more, {}), Items(lines)], level),
    ]


def _figures(runs: pd.DataFrame, words: Words, test: str) -> Iterator[Figure]:
    """Yield outcomes, success, survival and the other curves, each with its n; `test` is the log-rank test in
    words.
    """
    key = (
        "A cell is a run: its outcome as colour, its success (0 to 1) as a curve over the longest run, with"
        " its peak (the highest median of five steps) and its last step, the onset of its collapse dotted."
    )
    last = runs["steps"].max()
    success = points(runs, "success").assign(last=max(1, int(last) - 1 if last == last else 1))
    yield Figure(lambda palette: matrix(layout(runs), success, palette), "Outcomes", f"{counted(runs)} {key}")
    for part in groups(runs):
        names = [str(arm) for arm in dict.fromkeys(part["arm"])]
        n = counted(part)
        styles = partial(theme.styles, runs[["arm", "algorithm"]].to_numpy(), drawn=names)
        tail = "" if len(names) == runs["arm"].nunique() else f": {'; '.join(names)}"
        yield Figure(_drawn_curves(part, styles, words, ["success"]), f"Success{tail}", f"{n} {_BANDS}")
        if len(rows := observed(part)):
            watched = (
                f"{n} {collapses(rows)}. Kaplan-Meier: a step down is the onset of a collapse, a tick a run"
                " that had not collapsed when it ended. Band: 95 % interval, from three runs on. Runs at"
                " risk below."
            )

            def draw(palette: Palette, rows: pd.DataFrame = rows, styles: Styles = styles) -> go.Figure:
                return survival(curve(rows), rows, styles(palette), palette, test)

            yield Figure(draw, f"Survival: runs not yet collapsed{tail}", watched)
        others = [name for name in SERIES if name != "success"]
        yield Figure(_drawn_curves(part, styles, words, others), f"Diagnostics{tail}", f"{n} {_BANDS}")


def _drawn_curves(part: pd.DataFrame, styles: Styles, words: Words, of: Sequence[str]) -> Draw:
    onsets = part.assign(x=onset_of(part)).dropna(subset=["x"])[["arm", "run_id", "x"]]
    ended = stopped(part).to_numpy().nonzero()[0]

    @cache  # both palettes share the panels
    def panel(name: str) -> Panel:
        every = points(part, name)
        finite = every["mean"].abs() < math.inf
        seeds = every[finite]
        data = banded(carried(seeds, ended) if name in CARRIED else seeds)
        return Panel(name, *words.get(name, ("", "")), data, broken=every[~finite], seeds=lone(seeds, data))

    return lambda palette: curves(
        [panel(n) for n in of], styles(palette), palette, AXES["step"], onsets=onsets
    )


def counted(runs: pd.DataFrame) -> str:
    """Return `6 arms, 30 runs, 5 seeds each (0 to 4).`"""
    each = runs.groupby("arm", sort=False)["seed"].nunique()
    several = (
        standing.counted(each.max(), "seed") if each.nunique() == 1 else f"{each.min()} to {each.max()} seeds"
    )
    return f"{standing.counted(len(each), 'arm')}, {len(runs)} runs, {several} each ({_seeds(runs['seed'])})."


def _seeds(seeds: pd.Series) -> str:
    known = sorted(seeds.dropna().astype(int).unique())
    whole = len(known) > 2 and known[-1] - known[0] == len(known) - 1
    return f"{known[0]} to {known[-1]}" if whole else ", ".join(map(str, known))


def groups(runs: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the runs of at most ARMS arms at a time, the first arm always among them."""
    first, *others = dict.fromkeys(runs["arm"])
    count = math.ceil(len(others) / (ARMS - 1))
    for part in np.array_split(np.array(others, dtype=object), count) if len(others) >= ARMS else [others]:
        yield runs[runs["arm"].isin([first, *part])]


def points(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a curve of every run, a row a bucket of steps: run, arm, run_id, seed, bucket, x, mean, low,
    high.
    """
    rows = []
    for place, run in enumerate(runs.to_dict("records")):
        values = run[f"{name}_curve"]
        if isinstance(values, np.ndarray):
            points = {"run": place, "step": run["step"], "value": values}
            rows.append(pd.DataFrame(points | {column: run[column] for column in _WHO}))
    if not rows:
        return pd.DataFrame(columns=["run", *_WHO, "bucket", "x", "mean", "low", "high"])
    every = pd.concat(rows, ignore_index=True).astype({"value": float}).dropna(subset=["value"])
    width = max(1, math.ceil((runs["steps"].max() or 1) / POINTS))
    buckets = every.assign(bucket=every["step"] // width).groupby(["run", *_WHO, "bucket"], sort=True)
    return buckets.agg(
        x=("step", "mean"), mean=("value", "mean"), low=("value", "min"), high=("value", "max")
    ).reset_index()


def design(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per arm: runs, steps, seeds, and every setting that not all arms share (slots by their
    kind).
    """
    arms = runs.groupby("arm", sort=False)
    flats = [_by_slot(settings(rows["config"].iloc[0], rows["slots"].iloc[0])) for _, rows in arms]
    keys = dict.fromkeys(chain.from_iterable(flats))
    differing = [key for key in keys if _differs(flats, key)]
    rows_of_arms = []
    for (arm, rows), flat in zip(arms, flats, strict=True):
        steps = rows["steps"].dropna().astype(int)
        if steps.nunique() > 1:
            span = f"{steps.min()} to {steps.max()}"
        else:
            span = str(steps.iloc[0]) if len(steps) else "-"
        seeds = " ".join(str(seed) for seed in sorted(rows["seed"]))
        row = {"arm": arm, "algorithm": rows["algorithm"].iloc[0], "seeds": seeds, "steps": span}
        rows_of_arms.append(row | {key: setting(flat.get(key)) for key in differing})
    return pd.DataFrame(rows_of_arms)


def _by_slot(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with one entry per slot instead of one per option."""
    slots = defaultdict[str, list[str]](list)
    for key, value in flat.items():
        if key.startswith("slot."):
            _, slot, option = key.split(".", 2)
            words = slots[slot]
            words.insert(0, str(value)) if option == "kind" else words.append(f"{option} {setting(value)}")
    rest = {key: value for key, value in flat.items() if not key.startswith("slot.")}
    return {slot: ", ".join(words) for slot, words in slots.items()} | rest


def _settings_parts(results: Results) -> Iterator[Part]:
    """Yield versions, machine, time, the settings that all arms share, and the grid file as it was run."""
    runs = results.runs
    for versions, count in Counter(map(_versions, runs["versions"])).items():
        yield Text(f"{count} runs: {versions}")
    yield Text(f"{runs['seconds'].sum() / 3600:.1f} hours of training, summed over runs.")
    flats = [settings(c, s) for c, s in zip(runs["config"], runs["slots"], strict=True)]
    first = flats[0] if flats else {}
    common = {key: value for key, value in first.items() if not _differs_from(flats, key, value)}
    rows = [(key, setting(value)) for key, value in sorted(_by_slot(common).items())]
    yield from titled(
        [("Settings that all arms share.", pd.DataFrame(rows, columns=["setting", "value"]))], {}
    )
    if results.toml:
        yield Code(shortened(results.toml, MIB), f"{results.experiment}.toml")


def _versions(text: Any) -> str:
    return (
        ", ".join(f"{name} {value}" for name, value in nested(text).items()) or "versions not recorded"
    ) + "."


def _about_region(results: Results, file: GridFile, level: int, claims: ModuleType | None) -> _About:
    """Give areas and boundaries by both readings of survival, and the claims that they judge."""
    fairness = [*(line for line in results.fairness if not line.startswith("Note: the arms")), _MEANT]
    try:
        landscape = from_runs(results.runs.assign(started_at=None), file, results.experiment)
    except InputError as error:
        return _About(str(error), [Section("Stability region", [Text(str(error))], level)], fairness)
    that_learned = landscape.read_as(KEPT)
    readings = [
        _read_survival(landscape, "all runs that did not collapse"),
        _read_survival(that_learned, "only runs that learned and kept it"),
    ]
    parts: list[Part] = [*_maps(landscape), *chain.from_iterable(reading.parts for reading in readings)]
    judged = claims.area_sections(landscape, that_learned, results.runs, level) if claims else []
    answer = " ".join(reading.answer for reading in readings)
    return _About(answer, [Section("Stability region", parts, level), *judged], fairness)


class _Reading(NamedTuple):
    """What a region says by one reading of survival."""

    answer: str
    parts: list[Part]


def _read_survival(landscape: Landscape, survivors: str) -> _Reading:
    """Give the areas and boundaries of a landscape; `survivors` says which runs count as such."""
    series = by_series(landscape)
    columns = by_column(landscape)
    lines = region_words.answer(landscape, series, columns)
    does = region_words.FALLS[landscape.survival]
    along = region_words.in_words(landscape.settings.along)
    across = region_words.in_words(landscape.across)
    parts: list[Part] = [
        Text(f"Stable area where {survivors} count as survivors, with 95 % intervals of the fit."),
        Table(region_words.readable_series(series)),
        Text(f"Boundary: {along} at which half of the runs {does}, by {across}."),
        Table(region_words.readable_columns(columns)),
        Items(lines),
    ]
    return _Reading(lines[0], parts)


def _maps(landscape: Landscape) -> Iterator[Figure]:
    points = by_point(landscape)
    columns = by_column(landscape)
    arms = landscape.runs[["series", "algorithm"]].to_numpy()
    along = region_words.in_words(landscape.settings.along)
    across = region_words.in_words(landscape.across, unit=True)
    for name in dict.fromkeys(points["slice"]):
        mine = points[points["slice"] == name]
        edges = columns[columns["slice"] == name]
        piece = Slice(mine, edges, landscape.settings.lattice, along, across)

        def draw(palette: Palette, piece: Slice = piece) -> go.Figure:
            return region_figure(piece, theme.styles(arms, palette), palette)

        n = f"{int(mine['runs'].sum())} runs, seeds {_seeds(landscape.runs['seed'])}."
        caption = (
            f"{n} A cell: collapsed runs of runs at one {along} and {across}; empty where the search ran"
            " nothing. Dot and bar: where half of the runs collapse, with its 95 % interval; a triangle"
            " points beyond what was tried."
        )
        yield Figure(draw, f"Collapsed runs by {along} and {across}{f', {name}' if name else ''}", caption)


# Its two forms. Texts of a report are literal: writing them out escapes them.


def html(report: Report) -> str:
    """Return the page. Its content policy allows its own two scripts and no request to anywhere."""
    from plotly.offline import get_plotlyjs

    figures: dict[str, dict[str, Any]] = {}

    def figure(part: Figure) -> dict[str, Any]:
        both = {kind: part.draw(palette) for kind, palette in (("light", LIGHT), ("dark", DARK))}
        if svg := {kind: one for kind, one in both.items() if isinstance(one, str)}:
            return {"svg": svg}
        name = f"f{len(figures)}"
        figures[name] = {
            kind: json.loads(one.to_json()) for kind, one in both.items() if not isinstance(one, str)
        }
        return {"svg": {}, "name": name, "height": int(figures[name]["light"]["layout"]["height"])}

    pages = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=html_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    library = get_plotlyjs().replace("</script", "<\\/script")
    script = (_FOLDER / "report.js").read_text(encoding="utf-8")
    digests = [
        base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in (library, script)
    ]
    return pages.get_template("report.html.j2").render(
        report=report,
        kind=lambda part: type(part).__name__,
        figure=figure,
        svg=Markup,
        outcomes=OUTCOMES,
        figures=figures,  # what the template draws fills them, so it asks for them last
        library=Markup(library),
        script=Markup(script),
        digests=digests,
        palettes={"light": LIGHT, "dark": DARK},
    )


def markdown(report: Report, level: int = 1) -> str:
    """Return the page without its figures; its title has a heading of `level`, its sections those below."""
    blocks = [f"{'#' * level} {text(report.title)}", *(_block(part) for part in report.lead)]
    for section in report.sections:
        if section.parts and all(isinstance(part, Figure) for part in section.parts):
            continue
        blocks.append(f"{'#' * (level + section.level - 1)} {text(section.title)}")
        blocks += [_block(part) for part in section.parts]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _block(part: Part) -> str:
    if isinstance(part, Text):
        return f"**{text(part.text)}**" if part.kind == "lead" else text(part.text)
    if isinstance(part, Items):
        return "\n".join(f"- {text(line)}" for line in part.lines)
    if isinstance(part, Table):
        names = [text(name) for name in part.frame]
        rows = part.frame.astype(str).map(text).to_numpy().tolist()
        return markdown_table(names, rows)
    if isinstance(part, Code):  # its fence is longer than any in it
        fence = "`" * max(3, 1 + max((len(found) for found in re.findall(r"`+", part.text)), default=0))
        lines = "\n".join(visible(line) for line in part.text.strip("\n").split("\n"))
        return (f"{text(part.title)}\n\n" if part.title else "") + f"{fence}\n{lines}\n{fence}"
    return ""


def text(words: object) -> str:
    """Return `words` as Markdown that shows exactly them, on one line."""
    return _MARKS.sub(r"\\\1", visible(words)).replace("\n", " ")


def _differs(flats: Sequence[Mapping[str, Any]], key: str) -> bool:
    return len({json.dumps(flat.get(key), default=str) for flat in flats}) > 1


def _differs_from(flats: Sequence[Mapping[str, Any]], key: str, value: object) -> bool:
    return not all(flat.get(key) == value for flat in flats)
