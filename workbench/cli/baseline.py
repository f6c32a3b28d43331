"""`sorl baseline`: save what is normal for a recipe, and compare later runs with it."""

from typer import Argument, Context, Option, Typer

from sorl.cli.diff import VERSION, baseline_of
from sorl.cli.shared import MAP
from sorl.cli.tables import echo, note, print_table
from sorl.spec.names import FolderName

_RUNS = Argument(
    ..., metavar="RUN ...", help="Runs that worked: run ids, experiments, or logs of other trainers."
)

app = Typer(no_args_is_help=True, help="Save what is normal for a recipe, and compare later runs with it.")


@app.command("save")
def save_baseline(
    ctx: Context,
    name: str = Argument(..., metavar="NAME", help="What to call it; one of the same name is replaced."),
    which: list[str] = _RUNS,
    version: str = Option("", "--version", metavar="VERSION", help=VERSION.format(side="good")),
    name_map: list[str] | None = MAP,
) -> None:
    """Save the settings and the bands of runs that worked under a name, for `sorl diff NAME BAD`."""
    from sorl.difference.baseline import save

    folder_name = FolderName(name, "NAME")
    normal = baseline_of(ctx.obj, which, version, name_map)
    save(ctx.obj, folder_name, normal)
    fell = [run.name for run in normal.runs if run.fell]
    if fell:
        note(f"of these runs {len(fell)} fell ({', '.join(fell[:3])}): the band is wide where they did")
    echo(f"baseline {name}: {len(normal.runs)} runs, {len(normal.bands)} columns")


@app.command("ls")
def list_baselines(ctx: Context) -> None:
    """List the saved baselines."""
    from sorl.difference.baseline import load
    from sorl.spec.baselines import baseline_names

    saved = [load(ctx.obj, name) for name in baseline_names(ctx.obj)]
    rows = [
        [baseline.name, len(baseline.runs), len(baseline.bands), baseline.runs[0].name] for baseline in saved
    ]
    print_table(["baseline", "runs", "columns", "first run"], rows)
