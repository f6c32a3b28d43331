"""Sentences about a search in the conversations of a run."""

import pandas as pd
from rich.filesize import decimal

from sorl.app.conversation_search import Hits
from sorl.app.text import percent
from sorl.diagnosis.standing import counted


def describe_kept(hits: Hits, size_bytes: int) -> str:
    """Say of how many rollouts the text was kept, and what it takes on the disk."""
    kept = len(hits.with_text)
    every = len(hits.rollouts)
    which = "all" if kept == every else f"{kept:,} of"
    share = "" if kept == every else f" ({percent(kept / every)})"
    steps = hits.with_text["step"].nunique()
    size = f" They take {decimal(size_bytes)}, compressed." if size_bytes else ""
    return (
        f"The text of {which} {counted(every, 'rollout')}{share} is kept, in {counted(steps, 'step')}.{size}"
    )


def describe_hits(hits: Hits, is_narrowed: bool) -> str:
    """Say how many conversations fit, since which step, and at which step most of them do."""
    if not is_narrowed:
        return (
            f"{counted(len(hits.with_text), 'conversation')}: search for words, or narrow them by conditions."
        )
    if hits.fitting.empty:
        return f"None of {counted(len(hits.with_text), 'conversation')} fits."
    steps = hits.by_step
    found = steps[steps["found"] > 0]
    share = percent(len(hits.fitting) / len(hits.with_text))
    said = f"{len(hits.fitting):,} of {counted(len(hits.with_text), 'conversation')} fit ({share})"
    if len(found) == 1:
        return f"{said}, all at step {found['step'].iloc[0]}."
    return f"{said}, from step {found['step'].min()} to step {found['step'].max()}{_most(found)}."


def _most(found: pd.DataFrame) -> str:
    """Say at which step the largest share fits; nothing where it is the same at several."""
    top = found["share"].max()
    at = found[found["share"] == top]
    return f"; most at step {at['step'].iloc[0]} ({percent(top)})" if len(at) == 1 else ""
