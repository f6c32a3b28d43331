"""Where saved baselines lie: a file each in the folder `.baselines` of a runs folder."""

from pathlib import Path

from sorl.spec.files import MIB, InputError, nearest

FOLDER = ".baselines"  # of a runs folder
COPY = "baseline.json"  # in the folder of a run: what it was judged by
KIND = "baseline"  # of the events that a run has left the bands
LARGEST = 64 * MIB  # a larger file is refused


def baseline_names(runs: Path) -> list[str]:
    """Return the names of the baselines that are saved in a runs folder."""
    return sorted(file.stem for file in (runs / FOLDER).glob("*.json"))


def baseline_file(runs: Path, name: str) -> Path:
    """Return the file of a saved baseline. Raises InputError for one that is not there."""
    names = baseline_names(runs)
    if name not in names:
        raise InputError(
            f"no baseline '{name}'{nearest(name, names)}; `sorl baseline save NAME RUN ...` saves one"
        )
    return runs / FOLDER / f"{name}.json"
