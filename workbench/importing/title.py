"""The name of a run that a file holds."""

from pathlib import Path

# Names that every file of its kind has.
_USUAL = ("metrics", "trainer_state", "log", "logs", "console", "history", "progress")


def title_of(path: Path) -> str:
    """Return the name of a run: of the file, or of its folder where every file of its kind has that name."""
    folder = path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent
    return folder.name if path.stem in _USUAL else path.stem
