"""Names that become folders: of experiments and of runs, as typed or from a file that somebody mailed."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from sorl.spec.files import InputError

LONGEST = 200  # bytes; file systems allow 255, and temporary names add to it
RESERVED = ("segments",)  # a folder beside the runs of an experiment
# In a run's folder.
LADDER = "ladder"  # the checkpoints to fork from
BATCH_FOLDER = "batches"  # one safetensors file a stored step
BATCH_FORMAT = 1  # version of those files; a reader refuses a higher one


class FolderName(str):
    """A name that is safe as one folder below the runs folder.

    It is checked where it is made, so no path can be built from an unchecked text.
    """

    def __new__(cls, text: object, what: str) -> "FolderName":
        """Check a text. Raises InputError, beginning with `what`, if it is empty, hidden, too long or
        reserved, or holds a separator, a control character or blanks at its ends.
        """
        reason = _why_unsafe(text)
        if reason:
            shown = repr(text)[:LONGEST]
            allowed = "use letters, digits, '-' and '_'"
            raise InputError(f"{what} {shown} is no name of a folder: {reason}; {allowed}")
        return super().__new__(cls, text)

    def __reduce__(self) -> tuple[type["FolderName"], tuple[str, str]]:
        """Return how a copy or a pickle is made: by the same check."""
        return FolderName, (str(self), "the name")


def slug(text: str) -> str:
    """Return `text` as the beginning of a name: ASCII letters, digits, dots and single dashes."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9.]+", "-", ascii_text).strip("-.").lower()[:80] or "run"


def folder_to_write(runs: Path, experiment: FolderName, run_id: FolderName | None = None) -> Path:
    """Return the folder of an experiment, or of a run, for somebody who is about to make it or write to it.

    Raises InputError for a link that leads out of `runs`, and for a name that differs from one that is there
    by nothing but upper and lower case: on many file systems they are one folder.
    """
    folder = runs / experiment
    refuse_twins(runs, (experiment,))
    refuse_outside(runs, folder)
    if run_id is not None:
        refuse_twins(folder, (run_id,))
        folder = folder / run_id
        refuse_outside(runs, folder)
    return folder


def refuse_outside(runs: Path, folder: Path) -> None:
    """Raise InputError for a folder whose real place, behind its links, is not below `runs`."""
    try:
        place = folder.resolve()
    except (OSError, RuntimeError):  # a link to itself
        place = Path("/")
    if not place.is_relative_to(runs.resolve()):
        raise InputError(
            f"'{folder}' is a link that leads out of '{runs}': nothing is written there; move the folder to"
            " the place of the link, or link the whole runs folder and name it with --runs"
        )


def refuse_twins(parent: Path, names: Sequence[FolderName]) -> None:
    """Raise InputError for a name that differs by case only from a folder in `parent`, or from another
    name.
    """
    there = {entry.name for entry in parent.iterdir()} if parent.is_dir() else set()
    taken = {_folded(name): name for name in sorted(there)}
    for name in names:
        twin = name if name in there else taken.setdefault(_folded(name), name)
        if twin != name:
            raise InputError(
                f"'{parent}' already has '{twin}', and '{name}' differs from it by upper and lower case only:"
                " many file systems take them for one folder; give it another name"
            )


def _folded(name: str) -> str:
    """Return a name as a file system sees it that tells no upper from lower case."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _why_unsafe(text: object) -> str:
    """Why a text is no name of a folder; "" if it is one."""
    if not isinstance(text, str):
        return "it is no text"
    if not text:
        return "it is empty"
    if text.startswith("."):
        return "it begins with a dot"
    if text.startswith("-"):
        return "it begins with a dash, as options do"
    if "/" in text or "\\" in text:
        return "it holds a separator of folders"
    if not text.isprintable():
        return "it holds a control character"
    if text != text.strip():
        return "it begins or ends with a blank"
    if len(text.encode("utf-8", "surrogatepass")) > LONGEST:
        return f"it is longer than {LONGEST} bytes"
    if text in RESERVED:
        return "sorl uses that name itself"
    return ""
