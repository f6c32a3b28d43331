"""`sorl guard -- COMMAND`: train with verl, and go back to a checkpoint when the score falls."""

from __future__ import annotations

import signal
from pathlib import Path

from typer import Argument, Exit, Option

from sorl.cli.tables import note
from sorl.spec import InputError
from sorl.store.text import visible

_COMMAND = Argument(
    ..., metavar="-- COMMAND ...", help="What starts verl, e.g. python -m verl.trainer.main_ppo OPTION=VALUE."
)
_CHANGE = Option(
    None,
    "--change",
    metavar="OPTION=VALUE",
    help="What the next start changes; once for each rollback, in their order. Several at once: with blanks"
    " between them.",
)
_CHECKPOINTS = Option(
    None,
    "--checkpoints",
    metavar="DIR",
    help="Where verl writes them; default: trainer.default_local_dir of the command.",
)


def guard(
    command: list[str] = _COMMAND,
    change: list[str] | None = _CHANGE,
    checkpoints: Path | None = _CHECKPOINTS,
    folder: Path = Option(Path("guard"), "--folder", help="Where the logs of all starts are written."),
    before: int = Option(1, "--before", min=0, help="Steps of the checkpoint before the fall, at least."),
    poll_seconds: float = Option(30.0, "--every", min=0.1, help="Seconds between two looks at the log."),
) -> None:
    """Train with verl under a guard: when the score collapses, it stops the command and starts it again from
    a checkpoint before the fall, with one change.

    Run it again to resume. `sorl import FOLDER/start-1.log` reads the log of a start.
    """
    from sorl.trainers.verl_guard import Guard, Plan

    changes = [_options_in(words) for words in change or ()]
    if not changes:
        raise InputError(
            "what should a start after a rollback change? E.g. --change actor_rollout_ref.actor.optim.lr=5e-7"
        )
    plan = Plan.of(command, checkpoints, changes, before, poll_seconds)
    # A scheduler asks a job to end by SIGTERM: verl is then stopped as by Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = Guard(plan, folder, lambda line: note(f"sorl guard: {visible(line)}")).run()
    except KeyboardInterrupt:
        note("sorl guard: stopped; run it again to resume")
        code = 130
    raise Exit(code)


def _options_in(words: str) -> dict[str, str]:
    """Return the options of one change. Raises InputError for what is no OPTION=VALUE."""
    options = {}
    for word in words.split():
        name, is_option, value = word.partition("=")
        if not is_option or not name:
            raise InputError(f"--change {word}: an option of verl and its value, OPTION=VALUE")
        options[name] = value
    return options
