"""The benchmarks of search agents by name: which split is evaluated, where its file lies on the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workbench.agent.data.read import Data, read
from workbench.spec import InputError, nearest

_FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"  # one folder a data set, one JSONL a split; what Search-R1 is trained on


@dataclass(frozen=True)
class Benchmark:
    """A named data set: the split that papers report, its size, the hub's files, and what is measured."""

    name: str
    split: str
    questions: int
    about: str
    source: str
    splits: tuple[str, ...]
    metric: str = "exact match, F1"
    repository: str = _FLASHRAG
    pattern: str = "{name}/{split}.jsonl"

    def file(self, split: str) -> str:
        """Path of the split in the hub's repository. Raises InputError for a split that it does not have."""
        if split not in self.splits:
            raise InputError(
                f"{self.name} has no split '{split}'{nearest(split, self.splits)}; there is: {', '.join(self.splits)}"
            )
        return self.pattern.format(name=self.name, split=split)


BENCHMARKS: tuple[Benchmark, ...] = (
    Benchmark("nq", "test", 3610, "questions to a search engine", "Kwiatkowski et al. 2019", ("train", "dev", "test")),
    Benchmark("triviaqa", "test", 11313, "trivia", "arXiv 1705.03551", ("train", "dev", "test")),
    Benchmark("popqa", "test", 14267, "entities of the long tail", "arXiv 2212.10511", ("test",)),
    Benchmark("hotpotqa", "dev", 7405, "2 hops", "arXiv 1809.09600", ("train", "dev")),
    Benchmark("2wikimultihopqa", "dev", 12576, "2 to 4 hops", "arXiv 2011.01060", ("train", "dev")),
    Benchmark("musique", "dev", 2417, "2 to 4 hops", "arXiv 2108.00573", ("train", "dev")),
    Benchmark("bamboogle", "test", 125, "2 hops, not on one page", "arXiv 2210.03350", ("test",)),
    Benchmark(
        "medqa", "test", 1273, "medical licensing, 4 choices", "arXiv 2009.13081", ("train", "test"),
        metric="choice accuracy", repository="GBaker/MedQA-USMLE-4-options", pattern="phrases_no_exclude_{split}.jsonl",
    ),
)  # fmt: skip


def load(name: str, split: str | None = None, limit: int | None = None) -> Data:
    """The first `limit` questions of a file, or of a benchmark by its name, fetched from the hub unless it is cached.

    Raises InputError for a name that is neither, a file that cannot be read, or a hub that does not answer.
    """
    path = Path(name)
    if path.is_file():
        if split is not None:
            raise InputError(f"--split is for benchmarks by name; '{name}' is a file, which is one split")
        return read(path, _label(path), limit)
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    if name not in known:
        raise InputError(
            f"no data '{name}': no such file, and no benchmark of that name{nearest(name, known)}; "
            f"there is: {', '.join(known)}"
        )
    benchmark = known[name]
    chosen = split or benchmark.split
    label = name if chosen == benchmark.split else f"{name}/{chosen}"
    return read(_fetched(benchmark, chosen), label, limit)


def _label(path: Path) -> str:
    """Name of the data in a file: its stem, with its folder before it where the stem is only a split."""
    splits = ("train", "dev", "test", "validation")
    return f"{path.resolve().parent.name}/{path.stem}" if path.stem in splits else path.stem


def _fetched(benchmark: Benchmark, split: str) -> Path:
    from huggingface_hub import hf_hub_download

    file = benchmark.file(split)
    try:
        return Path(hf_hub_download(benchmark.repository, file, repo_type="dataset"))
    except Exception as error:  # noqa: BLE001  the hub's client raises a dozen kinds, offline ones among them
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"cannot fetch {file} of the data set {benchmark.repository} ({reason}); fetch it where there is a network "
            "and name the file: --data FILE.jsonl"
        ) from None
