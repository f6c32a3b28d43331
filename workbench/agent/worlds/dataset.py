"""Data sets: Search-R1's Parquet, FlashRAG's JSON lines, MedQA; benchmarks by name; and the world that asks
them.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sorl.agent.draws import draw
from sorl.agent.retrievers import Passage, Retriever, retriever_of
from sorl.agent.worlds import Question, Split, World, held_out
from sorl.spec import InputError, WorldSettings, nearest
from sorl.spec.files import from_json, open_file

# the last one: templates explain themselves before they ask
_QUESTION = re.compile(r".*Question:(.*)", re.DOTALL)
_ROWS = 1024  # of a parquet file that are in memory at a time


class Item(NamedTuple):
    """A question with every accepted answer; `choices` maps letters to texts where it is multiple choice."""

    question: str
    answers: tuple[str, ...]
    choices: tuple[tuple[str, str], ...] = ()


def _item(row: Mapping[str, Any]) -> Item | None:
    """The item of a row of MedQA, FlashRAG or Search-R1; None without a gold answer, ValueError for any other
    row.
    """
    given = {name: value for name, value in row.items() if value is not None}
    if "options" in given:
        return _multiple_choice(given)
    question = _text(given.get("question")) or _asked_in_prompt(given)
    gold = _ground_truth(given)
    if question is None or (gold is None and "golden_answers" not in row):
        raise ValueError(
            f"a row has the columns {', '.join(map(str, row))}; known are FlashRAG's (question,"
            " golden_answers), Search-R1's (prompt, reward_model) and MedQA's (question, options,"
            " answer_idx)"
        )
    answers = _accepted(given.get("golden_answers", ()) if gold is None else gold)
    return Item(question, answers) if answers else None


def _multiple_choice(given: Mapping[str, Any]) -> Item | None:
    """The item of a row of MedQA; None without question or answer, ValueError for an answer that is no
    choice.
    """
    question = _text(given.get("question"))
    choices = _choices(given["options"])
    letter = _text(given.get("answer_idx")) or _letter_of(given.get("answer"), choices)
    if question is None or letter is None:
        return None
    if letter.upper() not in dict(choices):
        listed = ", ".join(key for key, _ in choices)
        raise ValueError(f"the right choice is {letter!r}, the choices are {listed}")
    return Item(question, (letter.upper(),), choices)


def _letter_of(answer: Any, choices: Sequence[tuple[str, str]]) -> str | None:
    """The letter of the choice whose text is the answer."""
    return next((letter for letter, text in choices if text == answer), None)


def _asked_in_prompt(given: Mapping[str, Any]) -> str | None:
    """The question behind the last "Question:" of Search-R1's prompt."""
    messages = [message["content"] for message in given.get("prompt", ()) if message.get("role") == "user"]
    match = _QUESTION.fullmatch(messages[-1]) if messages else None
    return _text(match.group(1)) if match else None


def _ground_truth(given: Mapping[str, Any]) -> Any:
    """The answers that Search-R1 trains on, which come before FlashRAG's; None without them."""
    reward = given.get("reward_model")
    truth = reward.get("ground_truth") if isinstance(reward, Mapping) else None
    return truth.get("target") if isinstance(truth, Mapping) else truth


def _accepted(gold: Any) -> tuple[str, ...]:
    """The accepted answers, each once: of one answer or of several."""
    several: Iterable[Any] = ()
    if isinstance(gold, (str, int, float)):
        several = [gold]
    elif isinstance(gold, Iterable):
        several = gold
    texts = [_text(answer) for answer in several]
    return tuple(dict.fromkeys(text for text in texts if text is not None))


def _choices(options: Any) -> tuple[tuple[str, str], ...]:
    """(letter, text) of each choice: from a mapping, from [{"key": "A", "value": ...}] as the hub has it, or
    a list.
    """
    if not isinstance(options, Mapping):
        keyed = all(isinstance(option, Mapping) for option in options)
        options = (
            {o["key"]: o["value"] for o in options}
            if keyed
            else dict(zip("ABCDEFGHIJ", options, strict=False))
        )
    return tuple(
        (str(letter).strip().upper(), str(text)) for letter, text in options.items() if text is not None
    )


def _text(value: Any) -> str | None:
    """`value` as text, None for nothing and for blanks; 1969.0, which pandas makes of a column with gaps, is
    1969.
    """
    if value is None or value != value:
        return None
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text.strip() or None


class Data(NamedTuple):
    """The items of a file in its order, and how many of its rows had no gold answer and were left out."""

    name: str
    items: list[Item]
    left_out: int


def read(path: Path, name: str, limit: int | None = None) -> Data:
    """Return the first `limit` items of a `.parquet` file, else of JSON lines or one list; InputError names
    the row.
    """
    items: list[Item] = []
    left_out = number = 0
    for number, row in enumerate(_rows(path), start=1):
        if not isinstance(row, Mapping):
            raise InputError(
                f"row {number} of '{path}' is {type(row).__name__}, not an object with named fields"
            )
        try:
            item = _item(row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"row {number} of '{path}': {error}") from None
        left_out += item is None
        items += [item] if item else []
        if len(items) == limit:
            break
    if not items:
        raise InputError(f"'{path}' has no question with a gold answer among its {number} rows")
    if len({bool(item.choices) for item in items}) > 1:
        raise InputError(
            f"'{path}' has questions with choices and questions without; split it into two files"
        )
    return Data(name, items, left_out)


def _rows(path: Path) -> Iterator[Any]:
    try:
        with open_file(path) as opened:
            if path.suffix == ".parquet":
                for batch in pq.ParquetFile(opened).iter_batches(_ROWS):
                    yield from batch.to_pylist()
                return
            with io.TextIOWrapper(opened, "utf-8-sig") as file:
                start = file.read(1)
                file.seek(0)
                yield from (
                    from_json(file.read()) if start == "[" else (from_json(x) for x in file if x.strip())
                )
    except InputError:
        raise
    except (ValueError, OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read '{path}': {error}") from None


class Benchmark(NamedTuple):
    """A named data set: the split that papers report, its size, the hub's files, and what is measured."""

    name: str
    split: str
    questions: int
    about: str
    source: str
    splits: tuple[str, ...]
    metric: str = "exact match, F1"
    repository: str = "RUC-NLPIR/FlashRAG_datasets"  # one folder a data set; what Search-R1 is trained on
    pattern: str = "{name}/{split}.jsonl"

    def file(self, split: str) -> str:
        """Path of the split in the hub's repository. Raises InputError for a split that it does not have."""
        if split not in self.splits:
            hint = f"{nearest(split, self.splits)}; there is: {', '.join(self.splits)}"
            raise InputError(f"{self.name} has no split '{split}'{hint}")
        return self.pattern.format(name=self.name, split=split)


BENCHMARKS: tuple[Benchmark, ...] = (
    Benchmark(
        "nq",
        "test",
        3610,
        "questions to a search engine",
        "Kwiatkowski et al. 2019",
        ("train", "dev", "test"),
    ),
    Benchmark("triviaqa", "test", 11313, "trivia", "arXiv 1705.03551", ("train", "dev", "test")),
    Benchmark("popqa", "test", 14267, "entities of the long tail", "arXiv 2212.10511", ("test",)),
    Benchmark("hotpotqa", "dev", 7405, "2 hops", "arXiv 1809.09600", ("train", "dev")),
    Benchmark("2wikimultihopqa", "dev", 12576, "2 to 4 hops", "arXiv 2011.01060", ("train", "dev")),
    Benchmark("musique", "dev", 2417, "2 to 4 hops", "arXiv 2108.00573", ("train", "dev")),
    Benchmark("bamboogle", "test", 125, "2 hops, not on one page", "arXiv 2210.03350", ("test",)),
    Benchmark(
        "medqa",
        "test",
        1273,
        "medical licensing, 4 choices",
        "arXiv 2009.13081",
        ("train", "test"),
        metric="choice accuracy",
        repository="GBaker/MedQA-USMLE-4-options",
        pattern="phrases_no_exclude_{split}.jsonl",
    ),
)


def load(name: str, split: str | None = None, limit: int | None = None) -> Data:
    """Return the first `limit` questions of a file, or of a benchmark by name, fetched unless cached; or
    InputError.
    """
    path = Path(name)
    if path.is_file():
        if split is not None:
            raise InputError(f"--split is for benchmarks by name; '{name}' is a file, which is one split")
        only_a_split = path.stem in ("train", "dev", "test", "validation")
        return read(path, f"{path.resolve().parent.name}/{path.stem}" if only_a_split else path.stem, limit)
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    if name not in known:
        hint = f"{nearest(name, known)}; there is: {', '.join(known)}"
        raise InputError(f"no data '{name}': no such file, and no benchmark of that name{hint}")
    benchmark = known[name]
    file = benchmark.file(split or benchmark.split)
    from huggingface_hub import hf_hub_download

    try:
        path = Path(hf_hub_download(benchmark.repository, file, repo_type="dataset"))
    except Exception as error:  # noqa: BLE001  the hub's client raises a dozen kinds, offline ones among them
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"cannot fetch {file} of the data set {benchmark.repository} ({reason}); fetch it where there is"
            " a network and name the file: --data FILE.jsonl"
        ) from None
    return read(path, name if split in (None, benchmark.split) else f"{name}/{split}", limit)


_ORDER = 31  # key of the draws


class Dataset(World):
    """The items of `world.data`; without `world.eval_data` the tenth of them whose hash says so
    is held out.
    """

    def __init__(
        self, settings: WorldSettings, retriever: Retriever | None = None, items: Sequence[Item] | None = None
    ) -> None:
        super().__init__(
            settings, None if settings.top_k == 0 else retriever or retriever_of(settings.retriever)
        )
        self._items = {"train": list(items), "eval": list(items)} if items is not None else _splits(settings)

    def question(self, split: Split, seed: int, index: int) -> Question:
        """Return question `index` of the stream (split, seed): every item once, then all in a new order."""
        items = self._items[split]
        epoch, place = divmod(index, len(items))
        return _question(items[int(_order(seed, epoch, len(items))[place])], index)

    def every(self) -> list[Question]:
        """Return each held-out item once, in the order of the file."""
        return [_question(item, index) for index, item in enumerate(self._items["eval"])]

    def observation(self, passages: Sequence[Passage]) -> str:
        """Return the passages as Search-R1 writes them: `Doc 1(Title: ...) text`, one a line."""
        documents = []
        for number, passage in enumerate(passages, start=1):
            title, _, text = passage.contents.partition("\n")
            documents.append(f"Doc {number}(Title: {title}) {text}" if text else f"Doc {number} {title}")
        return "\n".join(documents)


def _question(item: Item, index: int) -> Question:
    text = item.question
    if item.choices:
        text = "\n".join(
            [text, *(f"{letter}. {said}" for letter, said in item.choices), "Answer with one letter."]
        )
    return Question(index, text, item.answers[0], index, answers=item.answers, choices=item.choices)


def _splits(settings: WorldSettings) -> dict[str, list[Item]]:
    if settings.data is None:
        raise InputError(
            'world.kind = "dataset" needs world.data: a file, or the name of a benchmark such as "nq"'
        )
    items = load(settings.data, settings.data_split).items
    if settings.eval_data is not None:
        return {"train": items, "eval": load(settings.eval_data).items}
    parts: dict[str, list[Item]] = {"train": [], "eval": []}
    for item in items:
        parts["eval" if held_out(item.question) else "train"].append(item)
    for split, found in parts.items():
        if not found:
            raise InputError(
                f"'{settings.data}' is too small to hold out a tenth: no question is left to {split}"
            )
    return parts


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, n: int) -> np.ndarray:
    return np.random.default_rng(draw(_ORDER, seed, epoch)).permutation(n)
