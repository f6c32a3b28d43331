"""The command `sorl`: one module a verb, imported when it is typed; wrong input is one message and exit code
2.
"""

import os
import sys
from importlib import import_module
from itertools import islice
from keyword import iskeyword
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sorl.cli.tables import note
from sorl.store.text import shortened, visible

# In the order of the help page. Module and function have the verb's name; a group of verbs is a Typer called
# `app`.
VERBS = (
    "run",
    "plan",
    "fork",
    "guard",
    "ls",
    "show",
    "compare",
    "sql",
    "diagnose",
    "diff",
    "baseline",
    "import",
    "audit",
    "replay",
    "note",
    "app",
    "report",
    "eval",
    "retriever",
    "model",
    "algorithms",
    "diagnostics",
    "sync",
    "rescan",
    "doctor",
    "bench",
)
WRONG_INPUT = 2
# What only an extra of pyproject.toml installs. A verb that trains wants `train`, whichever package it misses
# first.
EXTRAS = {
    **dict.fromkeys(("scipy", "lifelines"), "analysis"),
    **dict.fromkeys(("streamlit", "plotly", "jinja2"), "app"),
    **dict.fromkeys(("torch", "transformers", "tokenizers", "urllib3"), "train"),
}
_TRAINS = ("run", "fork", "audit", "replay", "eval", "model")
# click's UsageError, of which later versions of typer have their own
_USAGE: Any = typer.BadParameter.__mro__[1]


class _Verbs(TyperGroup):
    """Looks verbs up by module, so that the imports of one verb do not slow the others down."""

    _listing = False  # the help page is being written: it needs a line about each verb, not the verb

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        super().format_help(ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            from sorl.spec import nearest

            ctx.fail(f"no command '{cmd_name}'{nearest(cmd_name, VERBS)}; there is: {', '.join(VERBS)}")
        if self._listing:
            return TyperCommand(cmd_name, help=summary(cmd_name))
        named = module_of(cmd_name)
        module = import_module(f"sorl.cli.{named}")
        verb = typer.Typer(add_completion=False)
        if function := getattr(module, named, None):
            verb.command(cmd_name)(function)
        command = typer.main.get_command(verb if function else module.app)
        command.name = cmd_name
        return command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept the global options after the verb too, as they are often typed."""
        for word in args:
            # Python reads bad bytes as surrogates
            if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in word):
                ctx.fail(f"'{visible(shortened(word))}' holds a NUL or is not UTF-8")
        before = []
        after = []
        words = iter(args)
        for word in words:
            if word == "--":
                after += [word, *words]
            elif word == "--runs":
                before += [word, *islice(words, 1)]
            else:
                (before if word == "--example" or word.startswith("--runs=") else after).append(word)
        return list(super().parse_args(ctx, before + after))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; a mistake of the user is a message, not a traceback, and so is what the system
        refuses.
        """
        from sorl.spec import InputError
        from sorl.spec.files import words_of

        try:
            return super().invoke(ctx)
        except InputError as error:
            note(f"sorl: {shortened(str(error))}")
        except ModuleNotFoundError as error:
            if (package := (error.name or "").partition(".")[0]) not in EXTRAS:
                raise
            verb = ctx.invoked_subcommand
            extra = "train" if verb in _TRAINS else EXTRAS[package]
            who = f"`sorl {verb}`" if verb else "this"  # without one, its module could not be imported
            note(f"sorl: {who} needs {package}, which is not installed: run `pip install 'sorl[{extra}]'`")
        except _USAGE as error:
            error.message = visible(shortened(error.message))
            raise
        except BrokenPipeError:  # `sorl sql ... | head`: the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:  # a disk that is full, a folder that cannot be made, a name that is too long
            place = f"'{error.filename}': " if error.filename is not None else ""
            note(f"sorl: {shortened(place + words_of(error))}")
        raise typer.Exit(WRONG_INPUT)


def module_of(verb: str) -> str:
    """Return the name of a verb's module and function: a word of Python gets a `_`."""
    return f"{verb}_" if iskeyword(verb) else verb


def summary(verb: str) -> str:
    """Return the first line of a verb's help, read from its source."""
    import ast

    tree = ast.parse(Path(__file__).with_name(f"{module_of(verb)}.py").read_text(encoding="utf-8"))
    functions = {node.name: node for node in reversed(tree.body) if isinstance(node, ast.FunctionDef)}
    chosen = functions.get(module_of(verb)) or [*functions.values()][-1]
    text = ast.get_docstring(chosen) or ""
    return " ".join(text.split("\n\n")[0].split())


app = typer.Typer(
    cls=_Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(
    epilog="Results go to stdout, the rest to stderr. Exit code 0: success, 1: a failure, 2: wrong input."
)
def sorl(
    ctx: typer.Context,
    runs: Path = typer.Option("runs", metavar="DIR", envvar="SORL_RUNS", help="The runs folder."),
    example: bool = typer.Option(False, "--example", help="Use the recorded example as the runs folder."),
) -> None:
    """Find out why off-policy RL training of multi-turn LLM agents collapses."""
    if example:
        from sorl.store.example import runs_folder

        runs = runs_folder()
    ctx.obj = runs


def main() -> None:
    """Entry point of the command `sorl`."""
    app(prog_name="sorl")
