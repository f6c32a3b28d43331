"""Whether a test by forks tells the cause of a fall from what did not cause it: runs whose fault is known.

`sorl bench forks` trains what is not there yet, at one run of the fault lab a kind; `--from FILE.parquet`
only counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import pandas as pd

from sorl.analysis.forks import UNCHANGED, tests
from sorl.cli.bench import CLONE
from sorl.cli.children import train
from sorl.cli.interventions import LIKELIEST, intervene, removal
from sorl.cli.shared import current
from sorl.diagnosis.causes import CAUSES
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.finding import Cause, Diagnosis
from sorl.diagnosis.log import HIDDEN, of_run
from sorl.diagnosis.rank import in_order
from sorl.grid.config import load
from sorl.spec import InputError, RunSettings
from sorl.spec.markdown import markdown_table
from studies import Share, stored

SEED = 61  # no run of it was looked at while the checks were written
KINDS = (
    "entropy_bonus",
    "learning_rate",
    "reward_inverted",
    "turn_cut",
    "truncated",
    "retriever_empty",
    "retriever_junk",
    "reward_noise",
    "reward_format",
    "reward_shifted",
    "temperature",
    "temperature_hidden",
    "stale_weights",
    "observation_leak",
    "prompt_leak",
    "padding_leak",
    "turn_shift",
    "retokenised",
    "corrupt_log_prob",
    "staleness",
)
DRAWS = 5
STEPS = 16
DECOY = "step_size"  # tested besides, where the diagnosis names nothing wrong


@dataclass(frozen=True)
class Case:
    """One cause of one run, put to a test; `up` of `draws` children stay up without it,
    `plain_up` unchanged.
    """

    run_id: str
    fault: str
    outcome: str | None
    onset: int | None
    cause: str | None = None  # None: the run did not fall, or nothing could be tested
    named: bool = False  # by the diagnosis
    up: int = 0
    draws: int = 0
    plain_up: int = 0
    plain_draws: int = 0
    saves: bool = False
    refuted: bool = False

    @property
    def kills(self) -> bool:
        """Whether most children left unchanged fall."""
        return 2 * self.plain_up < self.plain_draws


def cases(runs: Path) -> Iterator[Case]:
    """Train, diagnose and test a run of each fault; what is finished is not trained again."""
    for kind in KINDS:
        grid = load(
            CLONE / "experiments" / "fault_lab.toml", [f"seeds=[{SEED}]"], only=[f"ppo · fault.kind {kind}"]
        )
        train(runs, grid, 1)
        name = grid.cells[0].run_id
        found = diagnose(of_run(current(runs), name, runs))
        begun = Case(name, kind, found.log.run.get("outcome"), found.log.onset)
        causes = candidates(found, grid.cells[0].settings)
        if found.log.onset is None or not causes:
            yield begun
            continue
        intervene(runs, found, DRAWS, yes=True, steps=STEPS, causes=causes, workers=1)
        named = [finding.cause.name for finding in found.findings]
        for cause, told in tests(current(runs), name).items():
            yield replace(
                begun,
                cause=cause,
                named=cause in named,
                up=told.up,
                draws=told.draws,
                plain_up=told.plain_up,
                plain_draws=told.plain_draws,
                saves=told.saves,
                refuted=told.refuted,
            )


def candidates(found: Diagnosis, settings: RunSettings) -> list[Cause]:
    """Return the likeliest causes that a fork can remove, the injected one, and a wrong one where none is
    named.
    """
    fault = settings.model_dump()[HIDDEN]["kind"]
    causes = [finding.cause for finding in in_order(found) if removal(finding.cause, settings)][:LIKELIEST]
    more = [fault] if all(cause.name != fault for cause in causes) else []
    more += [DECOY] if all(cause.name == fault for cause in causes) else []
    return [*causes, *(cause for cause in CAUSES if cause.name in more and removal(cause, settings))]


def scores(found: Sequence[Case]) -> str:
    """Markdown: how often the removal of the fault, and of anything else, is shown to save or not to save the
    run.
    """
    runs = {case.run_id: case for case in found}
    tested = [case for case in found if case.cause is not None]
    deadly = [case for case in tested if case.kills]
    right, wrong = ([c for c in deadly if (c.cause == c.fault) is same] for same in (True, False))
    lines = [
        (
            f"{len(runs)} runs, {len({c.run_id for c in tested})} of them tested; of "
            f"{len({c.run_id for c in deadly})} most children fall when left {UNCHANGED}."
        ),
        "",
        (
            f"The fault's removal is shown to save: {Share(sum(c.saves for c in right), len(right))}; shown"
            f" not to: {Share(sum(c.refuted for c in right), len(right))}."
        ),
        (
            "Another candidate's removal is shown not to save:"
            f" {Share(sum(c.refuted for c in wrong), len(wrong))}; shown to:"
            f" {Share(sum(c.saves for c in wrong), len(wrong))}."
        ),
        "",
    ]
    rows = [
        (
            c.fault,
            c.outcome,
            c.cause or "-",
            f"{c.up}/{c.draws}",
            f"{c.plain_up}/{c.plain_draws}",
            "saves" if c.saves else "does not" if c.refuted else "undecided" if c.cause else "-",
        )
        for c in found
    ]
    return "\n".join(
        [
            *lines,
            markdown_table(("fault", "run", "removed", "up without it", "up unchanged", "verdict"), rows),
        ]
    )


def main(runs: Path, files: Sequence[Path] = (), output: Path | None = None) -> str:
    """Return the counts of the runs, trained where they are missing, or of the cases of files; write them."""
    names = [field.name for field in fields(Case)]
    found = [Case(**row) for file in files for row in stored(file, names, "tests by forks")] if files else []
    for case in cases(runs) if not files else ():
        found.append(case)
        if output is not None:  # after each, so that a long study may be looked at, or stopped
            pd.DataFrame([asdict(one) for one in found]).to_parquet(output, index=False)
    if not found:
        raise InputError("there is no test by forks in these files")
    return scores(found)
