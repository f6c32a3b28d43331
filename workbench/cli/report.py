"""`sorl report EXPERIMENT`: write the results of experiments as one page that works offline."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Context, Option

from sorl.algorithms import resolve
from sorl.cli.bench import from_clone
from sorl.cli.compare import in_file_order, unfair
from sorl.cli.shared import current, experiment_of, one_of
from sorl.cli.tables import note, save
from sorl.grid import fairness
from sorl.measures import CATALOGUE
from sorl.objective import KINDS
from sorl.spec import InputError
from sorl.spec.names import FolderName
from sorl.store.reader import Reader

if TYPE_CHECKING:
    from sorl.analysis.results import Results

_EXPORT = "Instead of a report, write the results of every run and those of --from."

# Older files say nothing of these slots: their first kind was all that there was.
LATER_SLOTS = ("routing", "proximal", "rate")


def report(
    ctx: Context,
    experiments: list[str] | None = Argument(
        None, metavar="EXPERIMENT", help="Claims use all runs of an experiment."
    ),
    files: list[Path] | None = Option(
        None, "--from", metavar="FILE.parquet", help="Results of --export. Repeatable."
    ),
    form: str = one_of("--format", "html", "md", default="html"),
    output: Path | None = Option(
        None, "--output", "-o", metavar="FILE", help="Default: report-NAME.html; md: stdout."
    ),
    export: Path | None = Option(None, metavar="FILE.parquet", help=_EXPORT),
) -> None:
    """Write a report: question, verdicts on the paper's claims, design, figures, tables and settings."""
    names = [experiment_of(name) for name in experiments or []]
    files = files or []
    if not names and not files:
        raise InputError(
            "name an experiment (`sorl ls` lists them), or a file: `sorl report --from FILE.parquet`"
        )
    if form == "html" and export is None and find_spec("plotly") is None:
        raise InputError("the figures need plotly: run `pip install 'sorl[app]'`, or use `--format md`")
    results = gather(ctx.obj, names, files)
    if export is not None:
        # Files before runs: of a run that is in both, the one in the runs folder is the newer.
        _export([*results[len(names) :], *results[: len(names)]], export)
        return
    if form == "html" and output is None:
        experiment_names = "-".join(result.experiment for result in results)
        output = Path(
            FolderName(f"report-{experiment_names}.html", "without --output, the name of the report")
        )
    save(written(results, commands(results, names, files), form), output)


def _export(parts: Sequence["Results"], file: Path) -> None:
    """Write the results of one experiment as a file; the last part that has a run counts."""
    from sorl.analysis.results import merged, write

    results = merged(parts)
    write(results, file)
    note(f"wrote {file}: {len(results.runs)} runs")


def written(results: Sequence["Results"], lines: Sequence[str], form: str, level: int = 1) -> str:
    """Return the report as html or md, with the commands `lines`; in md the title is a heading of `level`."""
    from sorl.analysis.results import SERIES
    from sorl.app.report import content

    claims = from_clone("studies.claims")
    if form == "md":
        return content.markdown(content.report(results, {}, lines, claims), level)
    # Unit and formula of each curve; of two declarations of one name that of the step, which comes last here.
    drawn = [d for d in CATALOGUE if d.table == "minibatch" and d.name in SERIES]
    drawn += [d for d in CATALOGUE if d.table == "step" and d.name in SERIES]
    columns = {d.name: (d.unit.value, d.formula or d.description) for d in drawn}
    return content.html(content.report(results, columns, lines, claims))


def commands(results: Sequence["Results"], names: Sequence[str], files: Sequence[Path]) -> list[str]:
    """Return the commands that train the experiments again and write their report."""
    with_file = [result.experiment for result in results if result.toml]
    train = [f"sorl run {shlex.quote(f'experiments/{experiment}.toml')}" for experiment in with_file]
    from_files = [f"--from {shlex.quote(str(file))}" for file in files]
    return [*train, " ".join(["sorl report", *map(shlex.quote, names), *from_files])]


def gather(runs: Path, experiments: Sequence[str], files: Sequence[Path] = ()) -> list["Results"]:
    """Return the results of experiments in the runs folder, then those of files; InputError if one is
    missing.
    """
    from sorl.analysis.results import collect, read
    from sorl.analysis.runs import runs as runs_in

    recorded = []
    reader = current(runs) if experiments else Reader(runs)
    for name in experiments:
        frame = in_file_order(runs_in(reader, name), runs, name)
        frame["slots"] = [slots(config) for config in frame["config"]]
        recorded.append(collect(reader, name, frame, fairness.lines(unfair(reader, frame))))
    return [*recorded, *map(read, files)]


@lru_cache(maxsize=4096)
def slots(config: str | None) -> str | None:
    """Resolve a configuration to its slots, critic and group size, as JSON; None for an unknown algorithm."""
    try:
        settings = json.loads(config or "")
        algorithm = resolve(settings["algorithm"], settings["slots"])
        group_size = settings["learn"]["group_size"]
    except (ValueError, KeyError, TypeError, InputError):
        return None
    parts = {
        slot: {"kind": getattr(algorithm, slot).kind, **asdict(getattr(algorithm, slot))} for slot in KINDS
    }
    for slot in LATER_SLOTS:
        if parts[slot]["kind"] == next(iter(KINDS[slot])):
            del parts[slot]
    own = {"critic": algorithm.critic, "group_size": group_size or algorithm.group_size}
    return json.dumps({"slots": parts, **own}, sort_keys=True)
