"""What `sorl` says, by a process of its own: the app itself has no torch, and a long answer must not stop it."""

import json
import os
import subprocess
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

import workbench
from workbench.spec import InputError
from workbench.store.text import plain

_COMMAND = (sys.executable, "-c", "from workbench.cli.main import main; main()")


def said(words: Sequence[str], typed: str, seconds: float, codes: Sequence[int] = (0,)) -> str:
    """Return what `sorl WORDS` prints if its exit code is one of `codes`.

    Raises InputError with its message, or with what to type instead: `typed`.
    """
    paths = [str(Path(workbench.__path__[0]).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*_COMMAND, *words], capture_output=True, timeout=seconds, check=False, env=environment,
            stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(f"this took more than {seconds:.0f} s; type it on a terminal: {typed}") from None
    except OSError as error:
        raise InputError(f"sorl could not be started ({error.strerror}); type it on a terminal: {typed}") from None
    if done.returncode not in codes:
        told = plain(done.stderr).strip().removeprefix("sorl: ")
        raise InputError(" ".join(told[-600:].split()) or f"`{typed}` ended with code {done.returncode}")
    return done.stdout


@st.cache_data(max_entries=64, show_spinner=False)
def answered(words: Sequence[str], typed: str, seconds: float, state: Hashable, codes: Sequence[int] = (0,)) -> Any:
    """Return the JSON that `sorl WORDS` prints, asked once for each `state` of what it reads; raises as `said` does."""
    return json.loads(said(words, typed, seconds, codes))
