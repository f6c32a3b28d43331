"""How often `sorl diagnose` reads and judges logs of real runs: `python -m studies.real_logs`.

The corpus (experiments/results/real_logs/corpus.parquet) holds logs of RL runs of language models that people
committed or pasted, numbers and keys alone, each in the form in which it was found. Two judges labelled each
from its curves, before any tool had read it. `docs/results/real-logs.md` says what it is and what it cannot
show.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.finding import Diagnosis
from sorl.importing.logs import read
from sorl.spec import InputError
from sorl.spec.markdown import markdown_table

CORPUS = Path(__file__).parents[1] / "experiments" / "results" / "real_logs" / "corpus.parquet"
SPLITS = ("develop", "held_out")  # of which only the first may set thresholds
FELL = frozenset(("collapsed", "recovered", "falling"))
FLAT = frozenset(("no_clear_change", "saturated", "no_learning"))  # one word of ours
FEW = 20  # steps, below which "undecided" is right of a log that a judge gave another word


@dataclass(frozen=True)
class Judged:
    """A log with its labels and what was said of it; None where it could not be read."""

    name: str
    labels: tuple[dict[str, Any], dict[str, Any]]
    diagnosis: Diagnosis | None

    def accepted(self, field: str) -> set[str]:
        """Return what either judge accepts."""
        return set(self.labels[0][field]) | set(self.labels[1][field])

    @property
    def is_healthy(self) -> bool:
        """Whether both judges saw nothing wrong."""
        return all(label["healthy"] for label in self.labels)

    @property
    def outcome(self) -> str | None:
        """The word that was said; None for undecided or unread."""
        return None if self.diagnosis is None else self.diagnosis.log.run.get("outcome")

    @property
    def is_outcome_right(self) -> bool:
        """Whether either judge accepts the word."""
        if self.diagnosis is None:
            return False
        accepted = self.accepted("outcomes")
        if self.outcome is None:
            return "too_short" in accepted or self.diagnosis.log.steps < FEW
        return self.outcome in accepted or (self.outcome == "no_learning" and bool(accepted & FLAT))

    @property
    def is_false_collapse(self) -> bool:
        """Whether it is called fallen, and neither judge saw a fall."""
        return self.outcome in FELL and not self.accepted("outcomes") & FELL

    @property
    def alarms(self) -> list[str]:
        """The critical findings."""
        found = self.diagnosis.findings if self.diagnosis else ()
        return [finding.cause.name for finding in found if finding.severity == "critical"]


def judged_logs(split: str) -> Iterator[Judged]:
    """Yield the logs of a split with what is said of each."""
    rows = pq.read_table(CORPUS).to_pylist()
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            if row["split"] != split:
                continue
            file = Path(folder) / row["file"]
            file.write_bytes(row["content"])
            labels = (json.loads(row["first_label"]), json.loads(row["second_label"]))
            yield Judged(row["name"], labels, _diagnosis_of(file))


def _diagnosis_of(file: Path) -> Diagnosis | None:
    try:
        return diagnose(read(file))
    except InputError:
        return None


def count_split(split: str) -> list[str]:
    """One row of the table."""
    logs = list(judged_logs(split))
    readable = [log for log in logs if log.diagnosis is not None]
    healthy = [log for log in readable if log.is_healthy]
    alarmed = [log for log in healthy if log.alarms]
    counts = (
        (len(readable), len(logs)),
        (sum(log.is_outcome_right for log in readable), len(logs)),
        (sum(log.is_false_collapse for log in readable), len(readable)),
        (len(alarmed), len(healthy)),
    )
    return [split, *(f"{count} of {total}" for count, total in counts)]


def table() -> str:
    """The counts, a row a split."""
    header = ("split", "read", "outcome right", "called fallen by mistake", "healthy with a critical finding")
    return markdown_table(header, [count_split(split) for split in SPLITS])


def details(split: str) -> str:
    """What is wrong with each log of a split, a line each."""
    lines = []
    for log in judged_logs(split):
        if log.diagnosis is None:
            lines.append(f"{log.name}: not read")
            continue
        if not log.is_outcome_right:
            lines.append(f"{log.name}: {log.outcome}, not {'/'.join(sorted(log.accepted('outcomes')))}")
        if log.is_healthy and log.alarms:
            lines.append(f"{log.name}: healthy, and yet {', '.join(log.alarms)}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--details", choices=SPLITS, help="what is wrong with each log of a split")
    options = parser.parse_args()
    print(details(options.details) if options.details else table())
