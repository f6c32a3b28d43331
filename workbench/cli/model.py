"""`sorl model trim`: a causal language model with only the tokens that a task needs."""

from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from sorl.cli.tables import echo, note
from sorl.spec import InputError

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def group() -> None:
    """Make a pretrained model ready for a task: `sorl model trim`."""


@app.command()
def trim(
    ctx: typer.Context,
    source: Path = Argument(..., metavar="MODEL", help="Folder of a causal language model of transformers."),
    target: Path = Argument(..., metavar="FOLDER", help="Where the smaller model is saved."),
    grid: Path | None = Option(
        None, "--grid", metavar="FILE.toml", help="Keep what the worlds of this grid file read and write."
    ),
    texts: list[Path] = Option(
        [], "--text", metavar="FILE", help="Keep what occurs in this text file. Repeatable."
    ),
) -> None:
    """Keep the tokens that a grid's worlds, text files and ASCII need, and drop the other rows of embedding
    and head.
    """
    if grid is None and not texts:
        raise InputError("nothing says which tokens to keep: give --grid FILE.toml or --text FILE")
    if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
        raise InputError(f"'{target}' exists already; name a new folder, or remove it first")
    from transformers import AutoModelForCausalLM

    from sorl.agent import trim as trimming
    from sorl.learn.networks import weights_folder
    from sorl.learn.warmstart import tokenizer_of

    folder = weights_folder(source)
    tokenizer = tokenizer_of(folder)
    needed: set[int] = set()
    if grid is not None:
        for world, wording in _worlds_of(ctx, grid):
            note(f"reading what {grid.name} asks and finds")
            needed |= trimming.tokens_of_world(world, tokenizer, wording)
    for text in texts:
        needed |= trimming.tokens_of_texts(_lines_of(text), tokenizer)
    note(f"loading {source}")
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, local_files_only=True)
    trimmed = trimming.trim(model, tokenizer, needed, target)
    millions = f"{trimmed.parameters / 1e6:.1f} of {trimmed.parameters_before / 1e6:.1f} million"
    tokens = f"{trimmed.tokens:,} of {trimmed.tokens_before:,} tokens"
    echo(f"kept {tokens} and {millions} parameters: {target}")


def _worlds_of(ctx: typer.Context, grid: Path) -> list[tuple[Any, str]]:
    """The different worlds of a grid file, each with the wording of its prompts."""
    from sorl.agent.worlds import build
    from sorl.grid import config
    from sorl.grid.folder import History

    cells = config.load(grid, [], History(ctx.obj), []).cells
    asked = dict.fromkeys((cell.settings.world, cell.settings.wording) for cell in cells)
    return [(build(world), wording) for world, wording in asked]


def _lines_of(file: Path) -> list[str]:
    """The lines of a text file; InputError for one that is not there or not UTF-8."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read '{file}': {error}") from None
