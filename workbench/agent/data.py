"""Data sets: Search-R1's Parquet, FlashRAG's JSON lines, MedQA; benchmarks by name; how an answer is scored."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.agent.protocol import normalise
from workbench.spec import InputError, nearest
from workbench.spec.files import from_json, open_file

_ASKED = re.compile(r".*Question:(.*)", re.DOTALL)  # the last one: templates explain themselves before they ask


@dataclass(frozen=True)
class Item:
    """A question with every accepted answer; `choices` maps letters to texts where it is multiple choice."""

    id: str
    question: str
    answers: tuple[str, ...]
    choices: tuple[tuple[str, str], ...] = ()
    source: str = ""  # data set that the row says it is from


class NotARow(ValueError):
    """A row that is in none of the known formats; the message says what it has."""


def item_of(row: Mapping[str, Any], number: int) -> Item | None:
    """Return the item of one row, `number` being its id where it has none; None where it has no gold answer at all.

    MedQA: `question`, `options`, `answer_idx`. FlashRAG: `question`, `golden_answers`. Search-R1's parquet: the same
    with `data_source`, `prompt` and `reward_model.ground_truth.target`, which is preferred because it is what is
    trained on; without a column `question` it is read from the prompt. Raises NotARow for anything else.
    """
    if _given(row, "options"):
        return _multiple_choice(row, number)
    question, answers = _question(row), _answers(row)
    if question is None or answers is None:
        raise NotARow(
            f"a row has the columns {', '.join(map(str, row))}; known are FlashRAG's (question, golden_answers), "
            "Search-R1's (prompt, reward_model) and MedQA's (question, options, answer_idx)"
        )
    source = str(row["data_source"]) if _given(row, "data_source") else ""
    return Item(_id(row, number), question, answers, source=source) if answers else None


def _multiple_choice(row: Mapping[str, Any], number: int) -> Item | None:
    question, options = _text(row.get("question")), row["options"]
    if isinstance(options, Mapping):
        choices = tuple(
            (str(letter).strip().upper(), str(text)) for letter, text in options.items() if text is not None
        )
    elif all(isinstance(option, Mapping) for option in options):  # [{"key": "A", "value": ...}], as the hub stores it
        choices = tuple((str(option["key"]).strip().upper(), str(option["value"])) for option in options)
    else:
        choices = tuple(zip("ABCDEFGHIJ", map(str, options), strict=False))
    letter = _text(row.get("answer_idx")) or next((k for k, text in choices if text == row.get("answer")), None)
    if question is None or letter is None:
        return None
    if letter.upper() not in dict(choices):
        raise NotARow(f"the right choice is {letter!r}, the choices are {', '.join(k for k, _ in choices)}")
    return Item(_id(row, number), question, (letter.upper(),), choices)


def _question(row: Mapping[str, Any]) -> str | None:
    if (question := _text(row.get("question"))) is not None:
        return question
    if not _given(row, "prompt"):
        return None
    messages = [m["content"] for m in row["prompt"] if m.get("role") == "user"]
    asked = _ASKED.fullmatch(messages[-1]) if messages else None
    return _text(asked.group(1)) if asked else None


def _answers(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Gold answers, empty ones and repetitions dropped; None for a row that has no place for them."""
    reward = row.get("reward_model")
    truth = reward.get("ground_truth") if isinstance(reward, Mapping) else None
    target = truth.get("target") if isinstance(truth, Mapping) else truth
    if target is None and not _given(row, "golden_answers"):
        return () if "golden_answers" in row else None
    given = row["golden_answers"] if target is None else target
    several = [given] if isinstance(given, (str, int, float)) else given
    texts = [_text(answer) for answer in several] if isinstance(several, Iterable) else []
    return tuple(dict.fromkeys(text for text in texts if text is not None))


def _text(value: Any) -> str | None:
    """`value` as text, None for nothing and for blanks; 1969.0, which pandas makes of a column with gaps, is 1969."""
    if value is None or value != value:
        return None
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text.strip() or None


def _given(row: Mapping[str, Any], name: str) -> bool:
    return row.get(name) is not None


def _id(row: Mapping[str, Any], number: int) -> str:
    return str(row["id"]) if _given(row, "id") else str(number)


Choices = Sequence[tuple[str, str]]
_LETTER = re.compile(r"\W*([A-Za-z])\W*")  # "B", "(b)", "B."
_LETTERED = re.compile(r"\W*([A-Za-z])\s*[).:]\s*(.+)", re.DOTALL)  # "B. aspirin", "(B) aspirin"; not "A patient"


def best(metric: Callable[[str, str], float], answer: str, golds: Sequence[str]) -> float:
    """Return the highest score of `answer` over the gold answers, as SQuAD and Search-R1 judge."""
    return max(metric(answer, gold) for gold in golds)


def choice(answer: str, choices: Choices) -> str | None:
    """The letter that `answer` chooses: by the letter, by letter and text, or by the text alone; None for no choice."""
    letters = {letter for letter, _ in choices}
    alone = _LETTER.fullmatch(answer)
    if alone and alone.group(1).upper() in letters:
        return alone.group(1).upper()
    texts = {normalise(text): letter for letter, text in choices}
    if normalise(answer) in texts:
        return texts[normalise(answer)]
    lettered = _LETTERED.fullmatch(answer.strip())
    return lettered.group(1).upper() if lettered and lettered.group(1).upper() in letters else None


def with_choices(question: str, choices: Choices) -> str:
    """Return the question with its choices below it, a line each, answered by a letter."""
    return "\n".join([question, *(f"{letter}. {text}" for letter, text in choices), "Answer with one letter."])


_ROWS = 1024  # of a parquet file that are in memory at a time


@dataclass(frozen=True)
class Data:
    """The items of a file in its order, and how many of its rows had no gold answer and were left out."""

    name: str
    items: list[Item]
    left_out: int = 0

    @property
    def multiple_choice(self) -> bool:
        """Whether the questions come with choices; a file is of one kind throughout."""
        return bool(self.items[0].choices)


def read(path: Path, name: str, limit: int | None = None) -> Data:
    """Return the first `limit` items of a `.parquet` file, or of JSON lines (or one JSON list) under any other name.

    Raises InputError that names file, row and what is wrong with it.
    """
    items: list[Item] = []
    left_out, number = 0, 0
    for number, row in enumerate(_rows(path), start=1):
        try:
            item = item_of(row, number - 1)
        except (NotARow, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"row {number} of '{path}': {error}") from None
        left_out += item is None
        items += [] if item is None else [item]
        if limit is not None and len(items) >= limit:
            break
    if not items:
        raise InputError(f"'{path}' has no question with a gold answer among its {number} rows")
    if len({bool(item.choices) for item in items}) > 1:
        raise InputError(f"'{path}' has questions with choices and questions without; split it into two files")
    return Data(name, items, left_out)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    try:
        with open_file(path) as opened, io.TextIOWrapper(opened, "utf-8-sig") as file:
            start = file.read(1)
            file.seek(0)
            if start == "[":
                yield from _objects(enumerate(from_json(file.read()), start=1), path)
            else:
                yield from _objects(
                    ((n, from_json(line)) for n, line in enumerate(file, start=1) if line.strip()), path
                )
    except (ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read '{path}': {error}") from None


def _objects(rows: Any, path: Path) -> Iterator[Mapping[str, Any]]:
    for number, row in rows:
        if not isinstance(row, Mapping):
            raise InputError(f"row {number} of '{path}' is {type(row).__name__}, not an object with named fields")
        yield row


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_file(path) as opened, pq.ParquetFile(opened) as file:
            for batch in file.iter_batches(_ROWS):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read '{path}': {error}") from None


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
