"""How often a diagnosis of a scalar log is right: simulated, shipped and public logs of known truth, next to
rldoctor.

`sorl bench scalars` writes every log as a file, reads it back as any other trainer's, and counts. `--output`
keeps the answers, `--from` counts them again without training or simulating anything.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import pandas as pd

from sorl.spec import InputError
from sorl.spec.markdown import markdown_table
from studies import Share, stored
from studies.scalar_logs import corpus, shipped, trainers
from studies.scalar_logs.variants import ACCEPTED, HEALTHY

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
RLDOCTOR = ROOT / ".venv-rldoctor" / "bin" / "python"  # `make bench-rldoctor`
PUBLIC = Path(__file__).with_name("public.jsonl")
SIMULATED = "simulated"
SHIPPED = "shipped runs"
ISSUES = "public issues"
SCENARIOS = "rldoctor's scenarios"
SCENARIO_SEED = 1000  # rldoctor's own tests use the first ones
# Detector of rldoctor -> our causes that it may mean; any other is called as ours.
PEER = {
    "advantage_collapse": ("groups_too_easy", "groups_too_hard"),
    "kl_drift": ("kl_blowup",),
    "length_pathology": ("length_hacking", "truncation", "length_collapse"),
    "reward_composition": ("component_dominates",),
    "gradient_pathology": ("grad_spikes", "grad_explosion", "non_finite"),
}
KNOWN = {"entropy_collapse", "clip_saturation", "reward_hacking", "plateau"}.union(*PEER.values())
# Scenario of rldoctor -> our cause.
SCENARIO = {
    "saturated_groups": "groups_too_easy",
    "too_hard": "groups_too_hard",
    "format_domination": "component_dominates",
}


@dataclass(frozen=True)
class Answer:
    """A log with its truth, and what each side named, most likely first; None: it was not asked."""

    source: str
    log: str
    cause: str
    variant: str
    strength: str
    trainer: str
    seed: int
    split: str
    steps: int
    ours: tuple[str, ...]
    peer: tuple[str, ...] | None = None

    @property
    def healthy(self) -> bool:
        """Nothing is to be found."""
        return self.cause == HEALTHY

    def right(self, first: int, peer: bool = False) -> bool:
        """The cause is among the first so many names."""
        return any(self._means(name, peer) for name in ((self.peer or ()) if peer else self.ours)[:first])

    def _means(self, name: str, peer: bool) -> bool:
        return self.cause in (name, *PEER.get(name, ())) if peer else name in ACCEPTED[self.cause]


def main(runs: Path, files: Sequence[Path] = (), output: Path | None = None) -> str:
    """Return the rates of every log, or of the answers in files; write the answers to `output`."""
    found = [answer for file in files for answer in read(file)] if files else answers()
    if output is not None:
        write(found, output)
    return page(found)


def answers(
    cases: Iterable[corpus.Case] | None = None, sources: Sequence[str] = (SHIPPED, ISSUES)
) -> list[Answer]:
    """Write the logs, ask both sides, and return what they named. rldoctor is left out where it is not
    installed.
    """
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        asked = list(_simulated(folder, corpus.cases() if cases is None else cases))
        asked += _shipped(folder) if SHIPPED in sources else []
        asked += _public(folder) if ISSUES in sources else []
        theirs, scenarios = _rldoctor(folder)
        found = [replace(a, ours=ours(folder / f"{a.log}.jsonl")) for a in (*asked, *scenarios)]
        return [replace(a, peer=theirs.get(a.log)) for a in found]


def ours(path: Path) -> tuple[str, ...]:
    """The causes that the diagnosis names for a log; none for one that it cannot read."""
    from sorl.diagnosis.diagnose import diagnose
    from sorl.importing.logs import read

    try:
        log = read(path)
    except InputError:
        return ()
    return tuple(finding.cause.name for finding in diagnose(log).findings)


def _simulated(folder: Path, cases: Iterable[corpus.Case]) -> Iterator[Answer]:
    for case in cases:
        log = corpus.make(case)
        corpus.save(folder, log)
        yield Answer(
            SIMULATED,
            case.name,
            case.variant.cause,
            case.variant.name,
            case.strength,
            log.trainer,
            case.seed,
            case.split,
            len(log.rows),
            (),
        )


def _shipped(folder: Path) -> Iterator[Answer]:
    for run in shipped.runs(RESULTS):
        (folder / f"{run.run_id}.jsonl").write_text(trainers.lines(run.rows, run.trainer))
        yield Answer(
            SHIPPED, run.run_id, run.cause, run.experiment, "", run.trainer, 0, "", len(run.rows), ()
        )


def _public(folder: Path) -> Iterator[Answer]:
    for line in PUBLIC.read_text().splitlines():
        found = json.loads(line)
        (folder / f"{found['log']}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in found["rows"])
        )
        yield Answer(
            ISSUES,
            found["log"],
            found["cause"],
            found["address"],
            "",
            found["trainer"],
            0,
            "",
            len(found["rows"]),
            (),
        )


def _rldoctor(folder: Path) -> tuple[dict[str, tuple[str, ...]], list[Answer]]:
    """What rldoctor warns of, by log, and the logs of its own simulator; nothing where it is
    not installed.
    """
    answered = ask_rldoctor(folder, SCENARIO_SEED)
    if not answered:
        return {}, []
    scenarios = json.loads((folder / "scenarios.json").read_text())
    logs = [
        Answer(
            SCENARIOS,
            one["log"],
            SCENARIO.get(one["scenario"], one["scenario"]),
            one["scenario"],
            "",
            "trl",
            one["seed"],
            "",
            one["steps"],
            (),
        )
        for one in scenarios
    ]
    return answered, logs


def ask_rldoctor(folder: Path, scenario_seed: int | None = None) -> dict[str, tuple[str, ...]]:
    """The detectors of rldoctor that warn of the logs in a folder, with a seed of its own scenarios too;
    nothing where it is not installed.
    """
    if not RLDOCTOR.exists():
        return {}
    script = [str(RLDOCTOR), str(ROOT / "bench" / "rldoctor_scalars.py"), str(folder)]
    if scenario_seed is not None:
        script.append(str(scenario_seed))
    subprocess.run(script, check=True, stdout=sys.stderr)
    answers = json.loads((folder / "answers.json").read_text())["answers"]
    return {log: tuple(names) for log, names in answers.items()}


def write(found: Sequence[Answer], path: Path) -> None:
    """Write the answers as a small Parquet file, from which the rates can be counted again."""
    rows = [
        {**asdict(a), "ours": list(a.ours), "peer": None if a.peer is None else list(a.peer)} for a in found
    ]
    pd.DataFrame(rows).to_parquet(path, index=False)


def read(path: Path) -> list[Answer]:
    """Read the answers of such a file. Raises InputError for a file that is none."""
    rows = stored(path, [f.name for f in fields(Answer)], "answers of `sorl bench scalars`")
    for row in rows:
        row |= {name: None if row[name] is None else tuple(row[name]) for name in ("ours", "peer")}
    return [Answer(**row) for row in rows]


def page(found: Sequence[Answer]) -> str:
    """Markdown: the rates of both sides on every part of the corpus, and of the held-out half by cause and
    trainer.
    """
    held = _of(found, SIMULATED, corpus.HELD_OUT)
    known = [a for a in held if a.healthy or a.cause in KNOWN]
    parts = [
        ("simulated, held out", held),
        ("of these: causes that rldoctor looks for", known),
        ("simulated, development", _of(found, SIMULATED, corpus.DEVELOPMENT)),
    ]
    parts += [(source, _of(found, source)) for source in (SHIPPED, ISSUES, SCENARIOS)]
    lines = [markdown_table(HEADER, [_rates(name, part) for name, part in parts if part])]
    if all(a.peer is None for a in found):
        lines += [
            "",
            "rldoctor is not installed, so its columns are empty; `make bench-rldoctor` installs it.",
        ]
    rows = [_cause(cause, [a for a in held if a.cause == cause]) for cause in ACCEPTED]
    lines += ["", "The held-out half by cause:", "", markdown_table(BY_CAUSE, rows)]
    by_trainer = [_rates(trainer, [a for a in held if a.trainer == trainer]) for trainer in trainers.NAMES]
    lines += ["", "By trainer:", "", markdown_table(("trainer", *HEADER[1:]), by_trainer)]
    by_strength = [
        _rates(strength, [a for a in held if a.strength == strength and not a.healthy])
        for strength in corpus.STRENGTHS
    ]
    lines += ["", "By strength of the fault:", "", markdown_table(("strength", *HEADER[1:]), by_strength)]
    if wrong := Counter(name for a in held if a.healthy for name in a.ours[:1]):
        said = ", ".join(f"`{name}` {count}" for name, count in wrong.most_common())
        lines += ["", f"Named first on healthy logs of the held-out half: {said}."]
    return "\n".join(lines)


HEADER = (
    "logs",
    "right first",
    "among three",
    "false alarms",
    "rldoctor: right first",
    "among three",
    "false alarms",
)
BY_CAUSE = (
    "cause",
    "right first",
    "among three",
    "otherwise named first",
    "rldoctor: right first",
    "among three",
)


def _of(found: Sequence[Answer], source: str, split: str | None = None) -> list[Answer]:
    return [a for a in found if a.source == source and split in (None, a.split)]


def _rates(name: str, part: Sequence[Answer]) -> tuple[object, ...]:
    faulty = [a for a in part if not a.healthy]
    healthy = [a for a in part if a.healthy]
    quiet = [a for a in healthy if a.peer is not None]
    alarms = Share(sum(bool(a.ours) for a in healthy), len(healthy))
    return (
        name,
        *_right(faulty),
        alarms,
        *_right(faulty, peer=True),
        Share(sum(bool(a.peer) for a in quiet), len(quiet)),
    )


def _right(part: Sequence[Answer], peer: bool = False) -> tuple[Share, Share]:
    """How often the cause is first, and among the first three, of one side where it was asked."""
    asked = [a for a in part if not peer or a.peer is not None]
    first, three = (Share(sum(a.right(n, peer) for a in asked), len(asked)) for n in (1, 3))
    return first, three


def _cause(cause: str, part: Sequence[Answer]) -> tuple[object, ...]:
    wrong = Counter(a.ours[0] if a.ours else "nothing" for a in part if not a.right(1))
    said = ", ".join(f"{name} {count}" for name, count in wrong.most_common(4))
    return f"`{cause}`", *_right(part), said, *_right(part, peer=True)
