"""How often `sorl diff` names the one thing in which two runs differ, over 40 pairs.

    sorl run experiments/diff_pairs.toml && sorl run experiments/diff_good.toml
    python -m studies.difference_pairs runs

Twenty pairs differ in a setting, ten in a fault that no setting says, five in the version of TRL or verl
alone, five in nothing but the seed. The good run of a pair is always one run. A setting, a default or a cause
is right when it is the one that was changed, and it was named first; of the last five, when nothing is named.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from sorl.cli.audit import checks
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.log import Log, of_run
from sorl.difference.baseline import Baseline, with_version
from sorl.difference.difference import Difference, compare
from sorl.importing.logs import read
from sorl.spec.files import from_toml, leaves
from sorl.store.reader import Reader
from sorl.store.sync import sync
from studies import Share

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
CHANGED = "diff_pairs"
GOOD = "diff_good"
FAULT = "fault.kind"
GOOD_SEED = 32
BAD_SEED = 31
AGAIN = ((33, 34), (35, 36), (37, 38), (39, 40), (41, 42))  # seeds of pairs that differ in nothing


class Versions(NamedTuple):
    """Two versions of a trainer, and the option whose default changed between them."""

    trainer: str
    good: str
    bad: str
    option: str


VERSIONS = (
    Versions("TRL", "0.17.0", "0.18.0", "temperature"),
    Versions("TRL", "0.18.2", "0.19.0", "beta"),
    Versions("TRL", "0.21.0", "0.22.0", "loss_type"),
    Versions("TRL", "1.9.2", "1.10.0", "max_completion_length"),
    Versions("verl", "0.3.0.post1", "0.4.1", "actor_rollout_ref.actor.entropy_coeff"),
)


class Answer(NamedTuple):
    """What was changed in a pair, and what `sorl diff` named."""

    group: str
    changed: str
    kind: str
    name: str

    @property
    def is_right(self) -> bool:
        """Whether that is what was changed."""
        if self.group == "nothing":
            return self.kind == "nothing"
        return self.name == self.changed


def answers(runs: Path) -> Iterator[Answer]:
    """Yield the answer of every pair."""
    sync(runs)
    reader = Reader(runs)
    good = {seed: _log(reader, runs, GOOD, "good", seed) for seed in _seeds()}
    for arm in from_toml((EXPERIMENTS / f"{CHANGED}.toml").read_text(encoding="utf-8"))["arms"]:
        changes = dict(leaves(arm))
        bad = _log(reader, runs, CHANGED, changes.pop("name"), BAD_SEED)
        found = _compared(runs, good[GOOD_SEED], bad)
        fault = changes.get(FAULT)
        if fault is not None:
            yield Answer("fault", str(fault), found.kind, found.name)
        else:
            yield Answer("setting", _changed(changes), found.kind, found.name)
    for first, second in AGAIN:
        found = _compared(runs, good[first], good[second])
        yield Answer("nothing", "", found.kind, found.name)
    for versions in VERSIONS:
        found = _of_versions(versions)
        yield Answer("version", versions.option, found.kind, found.name)


def _seeds() -> list[int]:
    seeds = [GOOD_SEED]
    for pair in AGAIN:
        seeds += pair
    return seeds


def _changed(changes: Mapping[str, Any]) -> str:
    """Return the one setting of an arm that is not the recipe's."""
    names = list(changes)
    if len(names) != 1:
        raise ValueError(f"an arm changes one thing, and this one {names}")
    return names[0]


def _log(reader: Reader, runs: Path, experiment: str, arm: str, seed: int) -> Log:
    sql = "SELECT run_id FROM run SEMI JOIN cell USING (run_id) WHERE experiment = ? AND arm = ? AND seed = ?"
    ((run_id,),) = reader.rows(sql, [experiment, arm, seed]).rows
    return of_run(reader, run_id, runs)


def _compared(runs: Path, good: Log, bad: Log) -> Difference:
    """Compare two runs as the command does: the bad one is audited."""
    found = checks(runs, bad.folder) if bad.folder is not None else ()
    return compare(Baseline.of([diagnose(good)]), diagnose(bad, checks=found))


# Logs of other trainers that differ in the version alone.

STEPS = 80
_TYPED = {
    "TRL": {"learning_rate": 1e-6, "num_generations": 8, "per_device_train_batch_size": 8},
    "verl": {
        "actor_rollout_ref.actor.optim.lr": 1e-6,
        "actor_rollout_ref.rollout.n": 8,
        "data.train_batch_size": 128,
    },
}
_METRICS = {
    "TRL": ("reward", "completions/mean_length", "grad_norm", "entropy"),
    "verl": ("critic/score/mean", "response_length/mean", "actor/grad_norm", "actor/entropy"),
}


def _of_versions(versions: Versions) -> Difference:
    with TemporaryDirectory() as scratch:
        good = _written(Path(scratch) / "good", versions.trainer, 0)
        bad = _written(Path(scratch) / "bad", versions.trainer, 1)
        good_log = with_version(read(good), versions.good)
        bad_log = with_version(read(bad), versions.bad)
        return compare(Baseline.of([diagnose(good_log)]), diagnose(bad_log))


def _written(folder: Path, trainer: str, seed: int) -> Path:
    """Write a log of four metrics, each with its own noise, and the settings that somebody typed."""
    folder.mkdir()
    draw = np.random.default_rng(seed)
    reward, length, norm, entropy = _METRICS[trainer]
    lines = []
    for step in range(1, STEPS + 1):
        row = {
            "step": step,
            reward: 0.3 + 0.005 * step + draw.normal(0, 0.03),
            length: 200 + draw.normal(0, 8),
            norm: 0.5 + draw.normal(0, 0.04),
            entropy: 0.5 - 0.001 * step + draw.normal(0, 0.01),
        }
        lines.append(json.dumps(row))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "config.json").write_text(json.dumps(_TYPED[trainer]))
    return folder


def main(runs: Path) -> None:
    """Print the answer of each pair that is wrong, and the shares."""
    found = list(answers(runs))
    for one in found:
        if not one.is_right:
            sys.stdout.write(f"{one.group} {one.changed or '-'}: named {one.kind} {one.name}\n")
    for group in dict.fromkeys(one.group for one in found):
        rights = [one.is_right for one in found if one.group == group]
        sys.stdout.write(f"{group}: {Share(sum(rights), len(rights))}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
