"""The example that ships with the package: a recorded quickstart, unpacked into the user's cache at first
use.
"""

import hashlib
import os
import shutil
import tarfile
from pathlib import Path
from tempfile import mkdtemp

from sorl.spec import InputError

ARCHIVE = Path(__file__).parents[1] / "example.tar.xz"
_PREFIX = "example-"


def runs_folder() -> Path:
    """Return a runs folder with the example, unpacked at first use, named by its digest; InputError if it
    fails.
    """
    cache = _cache()
    try:
        digest = hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()[:12]
        runs = cache / f"{_PREFIX}{digest}"
        if not runs.is_dir():
            cache.mkdir(parents=True, exist_ok=True)
            scratch = mkdtemp(prefix=".example-", dir=cache)
            with tarfile.open(ARCHIVE) as tar:
                tar.extractall(scratch, filter="data")
            try:
                os.rename(scratch, runs)  # two processes may unpack at once: the first one wins
            except OSError:
                shutil.rmtree(scratch, ignore_errors=True)
                if not runs.is_dir():
                    raise
    except (OSError, tarfile.TarError) as error:
        why = getattr(error, "strerror", None) or error
        place = f"the example into '{cache}' ({why})"
        raise InputError(f"cannot unpack {place}: set XDG_CACHE_HOME to another folder") from None
    return runs


def is_example(runs: Path) -> bool:
    """Return whether a runs folder is the unpacked example, which nobody should write to."""
    return runs.absolute().parent == _cache() and runs.name.startswith(_PREFIX)


def _cache() -> Path:
    return (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sorl").absolute()
