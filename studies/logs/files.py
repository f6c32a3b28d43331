"""The same rows as files of different formats and under the names of different trainers."""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sorl.importing.framing import masked_crc32c
from sorl.spec.markdown import markdown_table
from studies.scalar_logs import trainers

Row = dict[str, float]

# Names that nobody has told the reader, as people make them up.
OWN = {
    "step": "step",
    "reward": "mean_reward",
    "entropy": "policy_entropy",
    "kl": "kl_divergence",
    "grad_norm": "gradient_norm",
    "loss": "loss",
    "lr": "learning_rate",
    "length": "avg_response_length",
    "truncated": "truncated_fraction",
}
NAMINGS: dict[str, dict[str, str]] = {
    **{trainer: trainers.NAMES[trainer] for trainer in ("verl", "trl", "openrlhf", "slime")},
    "own": OWN,
}
DIGITS = 6  # of a number in a file


@dataclass(frozen=True)
class Named:
    """Rows under the names of a trainer, and the name of the step among them."""

    step: str
    rows: list[Row]

    @staticmethod
    def under(naming: str, rows: Sequence[Mapping[str, float]]) -> Named:
        """Rename metrics; one that the trainer does not log is left out."""
        names = NAMINGS[naming]
        renamed = []
        for row in rows:
            kept = {names[metric]: _rounded(value) for metric, value in row.items() if metric in names}
            kept[names["step"]] = int(row["step"])
            renamed.append(kept)
        return Named(names["step"], renamed)

    def with_steps(self) -> Iterator[tuple[int, Row]]:
        """Yield each step with its row without it."""
        for row in self.rows:
            yield int(row[self.step]), {name: value for name, value in row.items() if name != self.step}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def json_lines(log: Named) -> str:
    """An object a line."""
    return trainers.lines(log.rows)


def json_list(log: Named) -> str:
    """One list of objects."""
    return json.dumps(log.rows, indent=1)


def comma_separated(log: Named) -> str:
    """A table with a heading."""
    file = io.StringIO()
    table = csv.DictWriter(file, list(log.rows[0]))
    table.writeheader()
    table.writerows(log.rows)
    return file.getvalue()


def dicts_behind_bars(log: Named) -> str:
    """Dictionaries as Python prints them, each after the progress bar that counts its step."""
    steps = list(log.with_steps())
    total = steps[-1][0]
    lines = []
    for step, row in steps:
        share = step / total
        filled = "█" * int(10 * share)
        clock = f"{step // 60:02d}:{step % 60:02d}<01:00,  1.00s/it"
        lines.append(f"\r{100 * share:3.0f}%|{filled:<10}| {step}/{total} [{clock}]\n{row}\n")
    return "".join(lines)


def pairs_between_bars(log: Named) -> str:
    """A line of pairs a step, parted by bars."""
    return "".join(f"{' | '.join(_pairs(row, ': '))}\n" for row in log.rows)


def verl_console(log: Named) -> str:
    """A line a step as verl prints it, behind the prefix of Ray."""
    lines = []
    for step, row in log.with_steps():
        pairs = " - ".join([f"step:{step}", *_pairs(row, ":")])
        lines.append(f"\x1b[36m(TaskRunner pid=812)\x1b[0m {pairs}\n")
    return "".join(lines)


def _pairs(row: Row, colon: str) -> list[str]:
    return [f"{name}{colon}{value}" for name, value in row.items()]


def markdown(log: Named) -> str:
    """A table as people paste it into an issue."""
    table = markdown_table(list(log.rows[0]), [list(row.values()) for row in log.rows])
    return f"My run:\n\n{table}\n"


def trainer_state(log: Named) -> str:
    """The file that transformers keeps beside a checkpoint."""
    history = [row | {"step": step, "epoch": step / 100} for step, row in log.with_steps()]
    return json.dumps({"global_step": history[-1]["step"], "log_history": history}, indent=1)


def notebook(log: Named) -> str:
    """A notebook with the table that a trainer shows in it."""
    names = [name for name in log.rows[0] if name != log.step]
    lines = [_html_row("th", ["Step", *names])]
    lines += [_html_row("td", [step, *row.values()]) for step, row in log.with_steps()]
    html = ["<table>\n", *lines, "</table>\n"]
    output = {"output_type": "display_data", "data": {"text/html": html, "text/plain": ["<table>"]}}
    cell = {"cell_type": "code", "source": ["trainer.train()"], "outputs": [output]}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def _html_row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>\n"


def tensorboard(log: Named) -> bytes:
    """A file of events, one a value."""
    records = [_message(3, b"brain.Event:2")]
    for step, row in log.with_steps():
        for name, value in row.items():
            simple_value = _varint(2 << 3 | 5) + struct.pack("<f", value)
            summary = _message(1, _message(1, name.encode()) + simple_value)
            records.append(_varint(2 << 3) + _varint(step) + _message(5, summary))
    return b"".join(map(_framed, records))


def _framed(record: bytes) -> bytes:
    size = struct.pack("<Q", len(record))
    return size + struct.pack("<I", masked_crc32c(size)) + record + struct.pack("<I", masked_crc32c(record))


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


@dataclass(frozen=True)
class Format:
    """A format: the name of a file of it, and its content."""

    file: str
    content: Callable[[Named], str | bytes]

    def write(self, log: Named, folder: Path) -> Path:
        """Write a log into a folder of its own, and return the file."""
        folder.mkdir(parents=True)
        path = folder / self.file
        content = self.content(log)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path


FORMATS = {
    "JSON lines": Format("metrics.jsonl", json_lines),
    "JSON list": Format("metrics.json", json_list),
    "CSV": Format("metrics.csv", comma_separated),
    "dicts behind progress bars": Format("console.log", dicts_behind_bars),
    "pairs between bars": Format("train.log", pairs_between_bars),
    "verl's console": Format("verl.log", verl_console),
    "Markdown table": Format("issue.md", markdown),
    "trainer_state.json": Format("trainer_state.json", trainer_state),
    "TensorBoard": Format("events.out.tfevents.1", tensorboard),
    "notebook": Format("run.ipynb", notebook),
}
