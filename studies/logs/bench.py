"""How `sorl diagnose` does on logs of other trainers, next to rldoctor and a plain rule: `sorl bench logs`.

It reads every log of the corpus of real ones and thousands of generated ones, and counts what is said. The
verdict alone is measured on simulated curves (`bench/unsized_curves.py`), here on CURVES of each kind.
`--output` keeps the answers and counts, `--from` renders the tables again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench import unsized_curves
from bench.unsized_curves import Tally
from sorl.spec import InputError
from sorl.spec.markdown import markdown_table
from studies import Share
from studies.logs import sources
from studies.logs.answer import SCHEMA, Answer, answers_in, diagnosis_of, said_of, table_of
from studies.logs.files import FORMATS, NAMINGS
from studies.logs.sources import Source
from studies.logs.truths import LENGTHS
from studies.real_logs import SPLITS
from studies.scalar_logs.bench import ask_rldoctor

CURVES = 100  # simulated curves of each kind and length; the shipped page has 1,000
FEW_CURVES = 10  # where a count takes long
NOT_ASKED = "rldoctor is not installed, so it was not asked; `make bench-logs` installs it."


@dataclass(frozen=True)
class Results:
    """All that the study counts."""

    answers: list[Answer]
    tallies: list[Tally]


def main(runs: Path, files: Sequence[Path] = (), output: Path | None = None) -> str:
    """Return the tables of every log and curve, or of the results in files; write them to `output`."""
    results = read_all(files) if files else measure()
    if output is not None:
        write(results, output)
    return page(results)


def measure() -> Results:
    """Ask about every log, and judge the curves."""
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        answers = ask([*sources.real_sources(folder), *sources.generated_sources(folder)], folder)
    return Results(answers, list(unsized_curves.all_tallies(CURVES, FEW_CURVES)))


def ask(logs: Iterable[Source], folder: Path) -> list[Answer]:
    """Ask all sides about the logs. rldoctor is left out where it is not installed."""
    peers = folder / "rldoctor"
    peers.mkdir()
    answers = [ask_sorl(log, peers) for log in logs]
    theirs = ask_rldoctor(peers)
    return [
        replace(answer, given=replace(answer.given, peer=theirs.get(answer.expected.log)))
        for answer in answers
    ]


def ask_sorl(log: Source, peers: Path) -> Answer:
    """Diagnose a log, and leave what rldoctor is told of it in a folder."""
    diagnosis = diagnosis_of(log.path)
    rows = log.rows
    if rows is None and diagnosis is not None:
        rows = sources.rows_of(diagnosis.log)
    if rows:
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (peers / f"{log.expected.log}.jsonl").write_text(lines)
    return Answer(log.expected, said_of(diagnosis))


# ----------------------------------------------------------------------------------------------------
# Files


def write(results: Results, path: Path) -> None:
    """Keep answers and counts in one Parquet file; a row is one or the other."""
    answers = table_of(results.answers)
    tallies = unsized_curves.table_of_tallies(results.tallies)
    parts = [table for table in (answers, tallies) if table.num_rows]
    pq.write_table(pa.concat_tables(parts, promote_options="default"), path, compression="zstd")


def read_all(files: Iterable[Path]) -> Results:
    """Return the results of several files together."""
    results = Results([], [])
    for file in files:
        found = read(file)
        results.answers.extend(found.answers)
        results.tallies.extend(found.tallies)
    return results


def read(path: Path) -> Results:
    """Return the results in a file. Raises InputError for a file that has none."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"'{path}' cannot be read: {str(error).splitlines()[0]}") from None
    has_answers = {*SCHEMA.names} <= {*table.column_names}
    has_tallies = {field.name for field in fields(Tally)} <= {*table.column_names}
    if not has_answers and not has_tallies:
        raise InputError(f"'{path}' holds no results of `sorl bench logs`")
    answers: list[Answer] = []
    tallies: list[Tally] = []
    if has_answers:
        answers = answers_in(table.filter(pa.compute.field("part").is_valid()))
    if has_tallies:
        tallies = unsized_curves.tallies_in(table.filter(pa.compute.field("table").is_valid()))
    return Results(answers, tallies)


# ----------------------------------------------------------------------------------------------------
# Tables


def page(results: Results) -> str:
    """Markdown: every table that there are results for."""
    parts = []
    if results.answers:
        parts += [
            f"Logs of real runs:\n\n{real_table(results.answers)}",
            f"Generated logs, by what happens in them:\n\n{truth_table(results.answers)}",
            f"By format, naming and length:\n\n{form_table(results.answers)}",
            f"Next to others:\n\n{others_table(results.answers)}",
        ]
        if all(answer.given.peer is None for answer in results.answers):
            parts.append(NOT_ASKED)
    if results.tallies:
        parts.append(curve_tables(results.tallies))
    return "\n\n".join(parts)


Count = Callable[[Answer], bool]


def share(answers: Iterable[Answer], hit: Count) -> Share:
    """How many of the answers are hits."""
    hits = [hit(answer) for answer in answers]
    return Share(sum(hits), len(hits))


def of_part(answers: Iterable[Answer], part: str) -> list[Answer]:
    """The answers to real logs, or to generated ones."""
    return [answer for answer in answers if answer.expected.part == part]


def outcome_share(answers: Iterable[Answer]) -> Share:
    """Outcomes that are right, of those that are counted."""
    counted = [answer for answer in answers if answer.expected.outcomes]
    return share(counted, lambda answer: answer.is_outcome_right)


def fall_share(answers: Iterable[Answer]) -> Share:
    """Logs called fallen, of those that were read and of which no fall is right to say."""
    steady = [a for a in answers if a.expected.outcomes and not a.is_fallen and a.given.is_read]
    return share(steady, lambda answer: answer.says_fallen)


def recall_share(answers: Iterable[Answer]) -> Share:
    """First findings that are the cause, of the logs with one."""
    faulty = [answer for answer in answers if answer.expected.is_faulty]
    return share(faulty, lambda answer: answer.is_first_right)


def precision_share(answers: Iterable[Answer]) -> Share:
    """First serious findings that are a cause of the log, of all logs with a serious finding."""
    accused = [answer for answer in answers if answer.given.serious]
    return share(accused, lambda answer: answer.is_first_serious_right)


def critical_share(answers: Iterable[Answer]) -> Share:
    """Healthy logs that were read and have a critical finding."""
    healthy = [answer for answer in answers if answer.expected.is_healthy and answer.given.is_read]
    return share(healthy, lambda answer: bool(answer.given.critical))


REAL_HEADER = (
    "split",
    "read",
    "outcome right",
    "called fallen by mistake",
    "healthy with a critical finding",
    "cause first (recall)",
    "first serious finding right (precision)",
)


def real_table(answers: Iterable[Answer]) -> str:
    """The real logs, a row a split."""
    real = of_part(answers, "real")
    rows = []
    for split in SPLITS:
        part = [answer for answer in real if answer.expected.split == split]
        rows.append(
            [
                split,
                share(part, lambda answer: answer.is_whole),
                outcome_share(part),
                fall_share(part),
                critical_share(part),
                recall_share(part),
                precision_share(part),
            ]
        )
    return markdown_table(REAL_HEADER, rows)


GENERATED_HEADER = (
    "read whole",
    "outcome right",
    "called fallen by mistake",
    "healthy with a critical finding",
    "cause named first",
)


def _generated_row(title: str, part: Sequence[Answer]) -> list[object]:
    return [
        title,
        share(part, lambda answer: answer.is_whole),
        outcome_share(part),
        fall_share(part),
        critical_share(part),
        recall_share(part),
    ]


def truth_table(answers: Iterable[Answer]) -> str:
    """The generated logs by what happens in them; those of a level by their noise as well."""
    generated = of_part(answers, "generated")
    groups: dict[str, list[Answer]] = {}
    for answer in generated:
        truth = answer.expected.truth
        noise = answer.expected.noise
        groups.setdefault(f"{truth}, {noise} noise" if noise else truth, []).append(answer)
    rows = [_generated_row("all", generated)]
    rows += [_generated_row(title, part) for title, part in groups.items()]
    return markdown_table(("what happens", *GENERATED_HEADER), rows)


def form_table(answers: Iterable[Answer]) -> str:
    """The generated logs by their format, naming and length."""
    generated = of_part(answers, "generated")
    levels = [answer for answer in generated if answer.expected.noise]
    rows: list[list[object]] = []
    for form in FORMATS:
        part = [answer for answer in generated if answer.expected.format == form]
        rows.append(_generated_row(form, part))
    for naming in NAMINGS:
        part = [answer for answer in generated if answer.expected.naming == naming]
        rows.append(_generated_row(f"names: {naming}", part))
    for length in LENGTHS:
        part = [answer for answer in levels if answer.expected.rows == length]
        rows.append(_generated_row(f"{length} rows", part))
    return markdown_table(("logs", *GENERATED_HEADER), rows)


OTHERS_HEADER = ("logs", "side", "fallen: alarmed", "healthy: alarmed", "cause named first")


def others_table(answers: Iterable[Answer]) -> str:
    """What three sides say of the same logs."""
    rows: list[list[object]] = []
    for part in ("generated", "real"):
        logs = of_part(answers, part)
        rows += _rows_of_sides(part, logs)
    return markdown_table(OTHERS_HEADER, rows)


def _rows_of_sides(part: str, logs: Sequence[Answer]) -> Iterator[list[object]]:
    """One row a side. All get the logs that our reader reads."""
    readable = [answer for answer in logs if answer.given.is_read]
    asked = [answer for answer in readable if answer.given.peer is not None]
    yield _side(part, "sorl", readable, lambda a: a.is_alarmed, lambda a: a.is_first_right)
    yield _side(part, "rldoctor", asked, lambda a: bool(a.given.peer), lambda a: a.is_peer_right)
    yield _side(part, "plain rule", readable, lambda a: bool(a.given.rule_fell), None)


def _side(part: str, name: str, logs: Sequence[Answer], alarm: Count, right: Count | None) -> list[object]:
    fallen = [answer for answer in logs if answer.is_fallen and not answer.expected.is_healthy]
    healthy = [answer for answer in logs if answer.expected.is_healthy]
    faulty = [answer for answer in logs if answer.expected.is_faulty]
    causes = "-" if right is None else share(faulty, right)
    return [part, name, share(fallen, alarm), share(healthy, alarm), causes]


CURVE_TITLES = {
    "null": "Curves that lose nothing, called fallen:",
    "falls": "Falls, called so:",
    "onset": "The last step before the fall, of those called so:",
    "scales": "Falls that get another word on another scale:",
    "live falls": "Steps from a fall to the first verdict that says so, judged as the curve grows:",
    "live null": "Curves that lose nothing, ever called fallen as they grow:",
}


def curve_tables(tallies: Sequence[Tally]) -> str:
    """The verdict on simulated curves."""
    return "\n\n".join(curve_table(name, tallies) for name in CURVE_TITLES)


def curve_table(name: str, tallies: Sequence[Tally]) -> str:
    """One table of the verdict on simulated curves, with its title."""
    return f"{CURVE_TITLES[name]}\n\n{unsized_curves.table_of(name, tallies)}"
