"""`sorl bench diagnose` and `attribution`: the diagnosis against faults that are known."""

from __future__ import annotations

from pathlib import Path

import typer

LABELLED = ("fault_lab", "fault_lab_healthy")
PLANTED = (500, 150, 200)  # faults, weak ones, batches without any


def scored(runs: Path, shipped: Path | None = None, output: Path | None = None) -> None:
    """Print rates and confusions of the labelled runs, or of the shipped cases; write the cases to `output`."""
    from workbench.cli.database import current
    from workbench.spec import InputError
    from workbench.verdict.diagnosis import score
    from workbench.verdict.diagnosis.page import scores

    found = score.read(shipped) if shipped is not None else list(score.cases(current(runs), LABELLED))
    if not found:
        files = " and ".join(f"experiments/{name}.toml" for name in LABELLED)
        raise InputError(f"no finished run of {' or '.join(LABELLED)} in '{runs}'; `sorl run` {files} first")
    typer.echo(scores(found))
    if output is not None:
        score.write(found, output)


def attributed(shipped: Path | None = None, output: Path | None = None) -> None:
    """Print how often the turn and the span of planted faults are named, or of the shipped cases; write the cases."""
    from workbench.cli.database import note
    from workbench.verdict.diagnosis import planted

    if shipped is not None:
        found = planted.read(shipped)
    else:
        from workbench.cli.planted.trial import cases, plans

        found = list(cases(plans(*PLANTED), lambda done, of: note(f"{done} of {of} batches")))
    typer.echo(planted.page(found))
    if output is not None:
        planted.write(found, output)
