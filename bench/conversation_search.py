"""How long a conversation takes to open, and a search over all texts of a run, next to a scan in Python.

    python bench/conversation_search.py --steps 500 --rollouts 256 --tokens 2000

The texts are made of 20,000 random sentences, 4.3 characters a token. Every step is a segment as a trainer
writes it, `sorl sync` brings it into the database, and the questions are those of the screens. The baseline
reads the same segments and looks for the words with Python's `in`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from sorl.app.conversation_search import find_snippets, pattern_of, search_conversations
from sorl.app.queries import Store
from sorl.recording.segments import SegmentWriter, filled
from sorl.store.sync import sync

RUN = "made-s0"
NEEDLE = "zyxwvut"
WORDS = 30_000
SENTENCES = 20_000
WORDS_OF_SENTENCE = 20
CHARACTERS_OF_TOKEN = 4.3  # of Gemma 3's tokenizer on the conversations of experiments/llm.toml
TURNS = 4


def make_sentences(seed: int) -> np.ndarray:
    """Return sentences of random words, of which some are much more frequent than others."""
    draw = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(
        ["".join(draw.choice(letters, size=draw.integers(2, 11))) for _ in range(WORDS)], dtype=object
    )
    weight = 1 / np.arange(1, WORDS + 1)
    picks = draw.choice(WORDS, (SENTENCES, WORDS_OF_SENTENCE), p=weight / weight.sum())
    return np.array([f"{' '.join(row)}. " for row in words[picks]], dtype=object)


@dataclass(frozen=True)
class Size:
    """How much a run has: steps, rollouts a step, tokens a rollout."""

    steps: int
    rollouts: int
    tokens: int

    @property
    def place(self) -> dict[str, int]:
        """Step and trajectory of the one text with the needle."""
        return {"step": self.steps // 2, "trajectory": self.rollouts - 1}


def write_run(folder: Path, size: Size) -> int:
    """Write the texts of a run as segments; return how many characters they have."""
    draw = np.random.default_rng(1)
    sentences = make_sentences(0)
    characters_of_sentence = float(np.mean([len(sentence) for sentence in sentences]))
    count = max(1, round(size.tokens * CHARACTERS_OF_TOKEN / characters_of_sentence))
    shape = (size.rollouts, count)
    characters = 0
    writer = SegmentWriter(folder, 2.0)
    for step in range(size.steps):
        texts = ["".join(row) for row in sentences[draw.integers(0, SENTENCES, shape)]]
        if step == size.place["step"]:
            texts[-1] = f"{texts[-1]} {NEEDLE}"
        characters += sum(map(len, texts))
        write_step(writer, step, texts)
    writer.append("run", filled(RUN, "run", {"experiment": ["made"], "status": ["finished"]}))
    writer.close()
    return characters


def write_step(writer: SegmentWriter, step: int, texts: list[str]) -> None:
    """Write the texts of a step and a row for each of their trajectories."""
    which = {"step": step, "trajectory": list(range(len(texts)))}
    starts = [np.linspace(0, len(text), 2 * TURNS, endpoint=False).astype(int).tolist() for text in texts]
    turns = [*chain.from_iterable((0, turn) for turn in range(1, TURNS + 1))]
    parts = {"text": texts, "part_start": starts, "part_turn": [turns] * len(texts)}
    writer.append("transcript", filled(RUN, "transcript", which | parts))
    writer.append("trajectory", filled(RUN, "trajectory", which | {"n_turns": TURNS}))
    writer.flush()


class Timed(NamedTuple):
    """An answer, and how many seconds it took."""

    seconds: float
    found: Any


def timed(question: Callable[[], Any]) -> Timed:
    """Ask a question and take its time."""
    began = time.perf_counter()
    found = question()
    return Timed(time.perf_counter() - began, found)


def scan(folder: Path) -> int:
    """Return how many texts hold the needle, read from the segments one after another."""
    count = 0
    for file in sorted((folder / "segments" / "transcript").glob("*.parquet")):
        texts = pq.read_table(file, columns=["text"])["text"].to_pylist()
        count += sum(NEEDLE in text for text in texts)
    return count


def search(store: Store, words: str, is_regular_expression: bool) -> int:
    """Return how many conversations the screen finds, with what stands around the words."""
    pattern = pattern_of(words, is_regular_expression=is_regular_expression)
    hits = search_conversations(store, RUN, pattern, "")
    return len(find_snippets(store, RUN, hits.fitting.to_dict("records"), pattern))


def report_search(store: Store, baseline: Timed, words: str, is_regular_expression: bool) -> None:
    """Print how long a search takes, next to the scan."""
    answer = timed(partial(search, store, words, is_regular_expression))
    assert answer.found == baseline.found == 1
    times = baseline.seconds / answer.seconds
    print(f"search all texts for {words}: {answer.seconds:.2f} s; a scan in Python takes {times:.1f} x that")


def main(size: Size) -> None:
    """Print the figures."""
    with TemporaryDirectory() as place:
        runs = Path(place)
        folder = runs / "made" / RUN
        characters = write_run(folder, size)
        segments = sum(file.stat().st_size for file in (folder / "segments" / "transcript").iterdir())
        synced = timed(partial(sync, runs))
        database = sum(file.stat().st_size for file in runs.glob("sorl.duckdb*"))
        print(f"{size.steps * size.rollouts:,} texts, {characters / 1e6:,.0f} million characters")
        print(f"segments {segments / 1e6:,.0f} MB, database {database / 1e6:,.0f} MB")
        print(f"sync: {synced.seconds:.1f} s")
        store = Store(runs)
        opened = timed(partial(store.records, "transcript", run=RUN, **size.place))
        print(f"open one conversation: {opened.seconds:.2f} s")
        listed = timed(partial(store.query, "rollouts", run=RUN))
        print(f"list all conversations, as the screen does when it opens: {listed.seconds:.2f} s")
        baseline = timed(partial(scan, folder))
        report_search(store, baseline, NEEDLE, is_regular_expression=False)
        report_search(store, baseline, "zyx[a-z]vut", is_regular_expression=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option, default in (("--steps", 500), ("--rollouts", 256), ("--tokens", 2000)):
        parser.add_argument(option, type=int, default=default)
    options = parser.parse_args()
    main(Size(options.steps, options.rollouts, options.tokens))
