"""`sorl note RUN TEXT`: write down what was seen of a run, a step, a trajectory or tokens of it."""

from typer import Argument, Context, Option

from sorl.cli import tables
from sorl.cli.shared import RUN, current, find, folder_of
from sorl.cli.tables import echo, print_table
from sorl.spec import InputError
from sorl.store.part_notes import PartNote, append_note, withdraw_note
from sorl.store.reader import Reader

_NOTES = """
    SELECT note, step, trajectory, first_token, last_token, tag, text, written_at FROM current_note
    WHERE run_id = ? ORDER BY step NULLS FIRST, trajectory NULLS FIRST, first_token NULLS FIRST, written_at
"""


def note(
    ctx: Context,
    run: str = RUN,
    text: str = Argument("", metavar="[TEXT]", help="What to keep; without it the notes are listed."),
    step: int | None = Option(None, min=0, help="Step that the note is about; default: the whole run."),
    trajectory: int | None = Option(None, min=0, help="Trajectory of the step that it is about."),
    tokens: str = Option("", metavar="FIRST:LAST", help="Tokens of the trajectory, from 0, both included."),
    tag: str = Option("", help="A word to find the note by."),
    withdraw: str = Option("", metavar="NOTE", help="Take back the note of this identity."),
) -> None:
    """Keep a note on a run, a step, a trajectory or tokens; the app shows it where it belongs."""
    reader = current(ctx.obj)
    run_id = find(reader, run)
    place = (ctx.obj, folder_of(ctx.obj, run_id).parent.name, run_id)
    if withdraw:
        _refuse_unknown(reader, run_id, withdraw)
        withdraw_note(*place, withdraw)
        tables.note(f"note {withdraw} taken back")
    elif text:
        echo(append_note(*place, PartNote(text, tag, step, trajectory, *_range_of(tokens))))
    else:
        notes = reader.rows(_NOTES, [run_id])
        print_table(notes.columns, notes.rows)


def _refuse_unknown(reader: Reader, run_id: str, note_id: str) -> None:
    known = sorted(row[0] for row in reader.rows(_NOTES, [run_id]).rows)
    if note_id not in known:
        names = ", ".join(known) or "none"
        raise InputError(f"run '{run_id}' has no note '{note_id}'; its notes: {names}")


def _range_of(tokens: str) -> tuple[int | None, int | None]:
    """Return the first and last token of FIRST:LAST, or of one token; None and None of nothing."""
    if not tokens:
        return None, None
    first, _, last = tokens.partition(":")
    if not first.isdecimal() or not (last or first).isdecimal():
        raise InputError(f"--tokens '{tokens}' is no range of tokens; write --tokens 3:9, or --tokens 3")
    return int(first), int(last or first)
