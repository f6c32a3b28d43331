"""Helpers of the tests of slime and miles: copies of samples, changed, and rows against what was written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sorl.importing.dumps.rows import Dump, DumpStep, Row
from studies.dump_samples.megatron_rows import SampleRow

SAMPLES = Path(__file__).parent / "samples"


def copy_of(sample: str, tmp_path: Path) -> Path:
    """A copy of a sample that a test may change."""
    folder = tmp_path / "dump"
    shutil.copytree(SAMPLES / sample, folder)
    return folder


def change(file: Path, edit: Callable[[Any], Any]) -> None:
    """Load a file of a sample, change its contents in place, and save it again."""
    pack = torch.load(file, weights_only=True)
    replaced = edit(pack)
    torch.save(pack if replaced is None else replaced, file)


def only_step(dump: Dump) -> DumpStep:
    [step] = dump.steps(-1)
    return step


def assert_rows_are(rows: Sequence[Row], expected: Sequence[SampleRow]) -> None:
    """Compare with the numbers that the sample was made of."""
    assert len(rows) == len(expected)
    for row, sample in zip(rows, expected, strict=True):
        assert row.tokens.tolist() == sample.tokens
        assert row.prompt_length == len(sample.prompt)
        assert row.written.tolist() == [flag == 1 for flag in sample.written]
        assert row.mask.tolist() == [flag == 1 for flag in sample.trained]
        assert row.columns["log_prob_behaviour"].tolist() == sample.behaviour
        assert row.columns["log_prob_old"].tolist() == sample.old
        assert row.columns["log_prob_ref"].tolist() == sample.reference
        assert row.columns["advantages"].tolist() == [sample.advantage] * len(sample.response)
        assert row.trajectory == sample.trajectory
        assert row.group == str(sample.group)
        assert row.reward == sample.reward
        assert row.version == sample.steps[0]
        assert row.newest_version == (sample.steps[-1] if len(sample.steps) > 1 else None)


def updates_of(rows: Sequence[SampleRow]) -> list[list[int]]:
    """Row numbers of each update."""
    updates: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        updates.setdefault(row.update, []).append(number)
    return [updates[update] for update in sorted(updates)]
