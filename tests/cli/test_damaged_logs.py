"""No command hides that rows of a log were lost: each log has a known truth, and the output is compared."""

import re
from operator import attrgetter
from pathlib import Path

import pytest

from sorl.importing.logs import sources
from sorl.spec import InputError
from sorl.spec.reading import MATERIAL
from tests.cli.command import sorl
from tests.cli.damaged_logs import STEPS, DamagedLog, damaged_logs, lost_steps
from tests.importing.test_formats import series

LOGS = damaged_logs()
assert len({log.title for log in LOGS}) == len(LOGS)
COUNTS = re.compile(r"([\d,]+) of [\d,]+ (?:rows|records) left out")
OF_VALUES = re.compile(r"'reward': ([\d,]+) of [\d,]+ values are no numbers")
CUT = "the compressed file is damaged or cut off"


def lost_of(path: Path) -> int | None:
    """How many rows are missing from what is read; None where nothing can be. No value may be wrong."""
    try:
        (source,) = sources(path)
        (run,) = source.runs()
    except InputError:
        return None
    lost, wrong = lost_steps(series(run, "step.reward"))
    assert wrong == 0, "a value was read that nobody logged"
    return lost


def counted_losses(output: str) -> int:
    counts = COUNTS.findall(output) + OF_VALUES.findall(output)
    return sum(int(count.replace(",", "")) for count in counts)


@pytest.mark.parametrize("log", LOGS, ids=attrgetter("title"))
def test_every_command_that_reads_a_damaged_log_says_how_many_rows_are_lost(
    log: DamagedLog, tmp_path: Path
) -> None:
    path = tmp_path / log.file
    log.write(path)
    lost = lost_of(path)
    before = sorted(tmp_path.rglob("*"))
    for words in (["diagnose", path], ["diagnose", path, "--format", "json"], ["import", path]):
        result = sorl(*words, runs=tmp_path / "runs")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        assert result.exit_code == (2 if lost is None else 0), result.output
        if lost is None:
            assert sorted(tmp_path.rglob("*")) == before
            continue
        counted = counted_losses(result.output)
        if CUT in result.output:
            continue  # how many rows come after the damage nobody knows
        right = counted == lost if log.exact else (counted > 0) == (lost > 0) and counted <= 2 * lost + 1
        assert right, f"{counted} of {lost} lost rows are said: {result.output}"
        share = counted / (STEPS - lost + counted)
        if words[0] == "diagnose" and words[-1] != "json" and share > MATERIAL:
            assert result.stdout.startswith("Warning: "), result.stdout


def test_there_are_many_of_them() -> None:
    assert 3 * len(LOGS) > 300
