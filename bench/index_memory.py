"""Peak memory and time of building and of loading a BM25 index over generated passages.

python bench/index_memory.py [PASSAGES]        1,000,000 by default, each step in a process of its own
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# distinct words, words a passage
WORDS = 200_000
LENGTH = 30


def write(file: Path, passages: int) -> None:
    """Passages of LENGTH words, drawn with the frequencies of Zipf's law."""
    import numpy as np

    random = np.random.default_rng(0)
    with file.open("w") as out:
        for start in range(0, passages, 10_000):
            drawn = random.zipf(1.1, (min(10_000, passages - start), LENGTH)) % WORDS
            for i, row in enumerate(drawn.tolist(), start=start):
                out.write(json.dumps({"id": str(i), "contents": " ".join(f"w{word}" for word in row)}) + "\n")


def step(file: Path, cache: Path) -> None:
    """Open the index, building it if it is not there, answer 100 queries, and say what that took."""
    from sorl.agent.retrievers.local import BM25

    began = time.perf_counter()
    index = BM25(file, cache)
    opened = time.perf_counter() - began
    index.retrieve([f"w{i} w{7 * i + 1000}" for i in range(100)], 3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    asked = time.perf_counter() - began - opened
    print(f"{opened:.1f} s to open, {10 * asked:.2f} ms a query, peak {peak:,.0f} MiB", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        step(Path(sys.argv[2]), Path(sys.argv[3]))
        sys.exit()
    passages = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "corpus.jsonl")
        cache = Path(folder, "cache")
        write(file, passages)
        print(f"{passages:,} passages of {LENGTH} words, {file.stat().st_size / 2**20:,.0f} MiB", flush=True)
        for name in ("build", "load"):
            print(name, end=": ", flush=True)
            subprocess.run([sys.executable, __file__, "--step", str(file), str(cache)], check=True)
        print(
            "index on disk:"
            f" {sum(p.stat().st_size for p in cache.rglob('*') if p.is_file()) / 2**20:,.0f} MiB"
        )
